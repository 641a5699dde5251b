//! Whether other users could put something else in the place of a path.
//!
//! Owns that judgement, for what is executed or written by a name that is not the user's own
//! choice. Invariant: each folder and link on the way counts, not only the last one, since who may
//! rename a folder may replace all that is below it.
//!
//! A folder where everybody may write is safe only with the sticky bit, and then for what belongs
//! to the user or to root. Root is also who owns `/`: in a container without that user all that is
//! root's outside looks like nobody's. Members of a group are trusted, as they share a project.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::process::geteuid;

/// Symbolic links that are followed, as many as the kernel does (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Whether the owner of a file is this user or root.
pub fn is_trusted(found: &Metadata) -> bool {
    let root = || fs::symlink_metadata("/").is_ok_and(|root| root.uid() == found.uid());
    found.uid() == geteuid().as_raw() || found.uid() == 0 || root()
}

/// The first file, folder or link on the way to `path` that somebody else than this user and root
/// may change or replace; `None` where there is none. What does not exist yet does not count.
pub fn weak_point(path: &Path) -> Option<PathBuf> {
    // What is still to be gone through, the next one last.
    let mut ahead = vec![path.to_owned()];
    let mut at = match path.is_absolute() {
        true => PathBuf::from("/"),
        false => std::env::current_dir().ok()?,
    };
    let mut links = 0;
    while let Some(path) = ahead.pop() {
        let mut components = path.components();
        let Some(first) = components.next() else {
            continue;
        };
        ahead.push(components.as_path().to_owned());
        match first {
            Component::RootDir | Component::Prefix(_) => at = PathBuf::from("/"),
            Component::CurDir => {}
            Component::ParentDir => {
                at.pop();
            }
            Component::Normal(name) => {
                let next = at.join(name);
                let found = match fs::symlink_metadata(&next) {
                    Err(error) if error.kind() == ErrorKind::NotFound => return None,
                    Err(_) => return Some(next),
                    Ok(found) => found,
                };
                let is_open = found.mode() & 0o002 != 0;
                let is_sticky = found.is_dir() && found.mode() & 0o1000 != 0;
                if !is_trusted(&found) || (is_open && !is_sticky && !found.is_symlink()) {
                    return Some(next);
                }
                if found.is_symlink() {
                    links += 1;
                    match fs::read_link(&next) {
                        Ok(target) if links <= LINKS_MAX => ahead.push(target),
                        _ => return Some(next),
                    }
                } else {
                    at = next;
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;

    #[test]
    fn what_is_the_users_own_is_safe() {
        let work = tempfile::tempdir().unwrap();
        let folder = fs::canonicalize(work.path()).unwrap().join("a/b");
        assert_eq!(weak_point(&folder), None, "what is not there yet");
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(weak_point(&folder), None);
        assert_eq!(weak_point(&folder.join("../../a/./b")), None);
        symlink("b", folder.with_file_name("link")).unwrap();
        assert_eq!(weak_point(&folder.with_file_name("link")), None);
        symlink("round", folder.join("round")).unwrap();
        assert_eq!(weak_point(&folder.join("round")), Some(folder.join("round")));
    }

    #[test]
    fn a_folder_that_everybody_may_write_to_is_weak_wherever_it_stands() {
        let work = tempfile::tempdir().unwrap();
        let open = fs::canonicalize(work.path()).unwrap().join("open");
        let within = open.join("mine/file");
        fs::create_dir_all(open.join("mine")).unwrap();
        fs::write(&within, "").unwrap();
        symlink(&within, work.path().join("link")).unwrap();
        for (mode, weak) in [(0o755, None), (0o1777, None), (0o777, Some(open.clone()))] {
            fs::set_permissions(&open, Permissions::from_mode(mode)).unwrap();
            for path in [&within, &work.path().join("link"), &open.join("mine/../mine")] {
                assert_eq!(weak_point(path), weak, "{mode:o} {}", path.display());
            }
        }
    }

    #[test]
    fn what_belongs_to_somebody_else_is_weak() {
        if !geteuid().is_root() {
            return;
        }
        let work = tempfile::tempdir().unwrap();
        let work = fs::canonicalize(work.path()).unwrap();
        let (folder, link) = (work.join("folder"), work.join("link"));
        fs::create_dir(&folder).unwrap();
        symlink("folder", &link).unwrap();
        lchown(&link, Some(5), None).unwrap();
        assert_eq!(weak_point(&link.join("file")), Some(link));
        chown(&folder, Some(5), None).unwrap();
        assert_eq!(weak_point(&folder.join("file")), Some(folder));
    }
}
