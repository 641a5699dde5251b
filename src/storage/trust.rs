//! Whether other users could put something else in the place of a path.
//!
//! Owns that judgement, for what is executed or written by a name that is not the user's own
//! choice. Invariant: each folder and link on the way counts, not only the last one, since who may
//! rename a folder may replace all that is below it.
//!
//! A folder where everybody may write is safe only with the sticky bit, and then for what belongs
//! to the user or to root, or to whoever owns `/`. Members of a group are trusted, as they share a
//! project.
//!
//! A user namespace shows every owner without a number in it as the overflow uid (65534), root and
//! all other users alike. So nothing of that owner is trusted but `/`.

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
    let is_known = found.uid() == geteuid().as_raw() || found.uid() == 0 || root();
    is_known && !is_unmapped(found.uid())
}

/// Whether `uid` stands for all users who have no number in this user namespace.
pub fn is_unmapped(uid: u32) -> bool {
    let number = |path| fs::read_to_string(path).ok()?.trim().parse().ok();
    let overflow = number("/proc/sys/kernel/overflowuid").unwrap_or(OVERFLOW_UID);
    // A kernel without user namespaces has no map, and a new namespace an empty one.
    let is_in_map = || fs::read_to_string("/proc/self/uid_map").map_or(true, |map| maps(&map, uid));
    uid == overflow && !is_in_map()
}

/// The overflow uid of a kernel that nobody has configured.
const OVERFLOW_UID: u32 = 65_534;

/// Whether `map`, lines of "first number here, first number outside, count", has `uid`. Outside of
/// user namespaces it has all.
fn maps(map: &str, uid: u32) -> bool {
    let has = |line: &str| {
        let mut fields = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (fields.next(), fields.next(), fields.next())
        else {
            return false;
        };
        u64::from(uid).checked_sub(first).is_some_and(|offset| offset < count)
    };
    map.lines().any(has)
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
    fn a_number_that_a_user_namespace_does_not_map_is_nobodys() {
        let all = "         0          0 4294967295\n";
        let own = "      1000       1000          1\n";
        let many = "0 1000 1\n1 100000 65536\n";
        assert!(maps(all, 65_534) && maps(many, 65_534) && !maps(own, 65_534) && !maps("", 65_534));
        assert!(maps(own, 1000) && !maps(own, 1001) && !maps(own, 0));
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
