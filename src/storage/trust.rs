//! Whether other users could put something else in the place of a path.
//!
//! Owns that judgement, for what is executed or written by a name that is not the user's own
//! choice. Invariant: each folder and link on the way counts, not only the last one, since who may
//! rename a folder may replace all that is below it.
//!
//! A folder where everybody may write is safe only with the sticky bit, and then for what belongs
//! to the user or to root, or to whoever owns `/`. So is a folder that a group may write to, unless
//! that group has no member but this user or root.
//!
//! The server of a FUSE file system can claim any owner for its files, and exchange them at any
//! time. So only one that this user or root mounted is trusted.
//!
//! A user namespace shows every owner without a number in it as the overflow uid (65534), root and
//! all other users alike. So nothing of that owner is trusted but `/`.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fd::AsFd;
use rustix::fs::{OFlags, fstatfs};
use rustix::process::geteuid;

use crate::mountinfo;

/// Symbolic links that are followed, as many as the kernel does (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Whether the owner of a file is this user or root.
pub fn is_trusted(found: &Metadata) -> bool {
    let root = || fs::symlink_metadata("/").is_ok_and(|root| root.uid() == found.uid());
    let is_known = is_us_or_root(found.uid()) || root();
    is_known && !is_unmapped(found.uid())
}

/// Whether the file system of `file` is served through FUSE by another user than this one and root.
/// Where that cannot be told, it is.
pub fn is_served_by_another(file: impl AsFd) -> bool {
    let file = file.as_fd();
    // The width of the number differs among machines.
    if fstatfs(file).is_ok_and(|found| found.f_type as u64 != FUSE) {
        return false;
    }
    let is_mount_of_another = |id| {
        let mount = mountinfo::find(|entry| entry.id == id).ok()??;
        Some(mount.is_fuse() && !mount.owner().is_some_and(is_us_or_root))
    };
    mountinfo::id_of(file).ok().and_then(is_mount_of_another).unwrap_or(true)
}

/// The kind of every FUSE file system (FUSE_SUPER_MAGIC in linux/magic.h).
pub(super) const FUSE: u64 = 0x6573_5546;

fn is_us_or_root(uid: u32) -> bool {
    uid == geteuid().as_raw() || uid == 0
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
pub fn first_untrusted(path: &Path) -> Option<PathBuf> {
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
                let is_open = found.mode() & 0o002 != 0
                    || (found.mode() & 0o020 != 0
                        && !Users::read().have_to_themselves(found.gid()));
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
                } else if open_path(&next).is_none_or(is_served_by_another) {
                    return Some(next);
                } else {
                    at = next;
                }
            }
        }
    }
    None
}

/// Opens what is at `path`, not for reading.
fn open_path(path: &Path) -> Option<File> {
    let flags = (OFlags::PATH | OFlags::NOFOLLOW).bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path).ok()
}

/// What the node's own files tell of users and groups (passwd(5), group(5)). Those of a directory
/// service are not in them, so their groups may have any members.
struct Users {
    passwd: String,
    group: String,
    own: u32,
}

impl Users {
    fn read() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self { passwd: read("/etc/passwd"), group: read("/etc/group"), own: geteuid().as_raw() }
    }

    /// Whether `gid` is the group of this user or root, and nobody else is in it.
    fn have_to_themselves(&self, gid: u32) -> bool {
        let number = |field: Option<&str>| field?.parse::<u32>().ok();
        let (mut ours, mut others) = (Vec::new(), 0);
        for line in self.passwd.lines() {
            let fields: Vec<_> = line.split(':').collect();
            let is_ours = |uid| uid == self.own || uid == 0;
            if number(fields.get(2).copied()).is_some_and(is_ours) {
                ours.push((fields[0], number(fields.get(3).copied())));
            } else if number(fields.get(3).copied()) == Some(gid) {
                others += 1;
            }
        }
        let members = self.group.lines().filter_map(|line| {
            let mut fields = line.split(':').skip(2);
            (number(fields.next()) == Some(gid)).then(|| fields.next().unwrap_or_default())
        });
        let mut members =
            members.flat_map(|names| names.split(',')).filter(|name| !name.is_empty());
        others == 0
            && ours.iter().any(|(_, group)| *group == Some(gid))
            && members.all(|member| ours.iter().any(|(name, _)| *name == member))
    }
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
        assert_eq!(first_untrusted(&folder), None, "what is not there yet");
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(first_untrusted(&folder), None);
        assert_eq!(first_untrusted(&folder.join("../../a/./b")), None);
        symlink("b", folder.with_file_name("link")).unwrap();
        assert_eq!(first_untrusted(&folder.with_file_name("link")), None);
        symlink("round", folder.join("round")).unwrap();
        assert_eq!(first_untrusted(&folder.join("round")), Some(folder.join("round")));
    }

    #[test]
    fn a_folder_that_everybody_may_write_to_is_weak_wherever_it_stands() {
        let work = tempfile::tempdir().unwrap();
        let open = fs::canonicalize(work.path()).unwrap().join("open");
        let within = open.join("mine/file");
        fs::create_dir_all(open.join("mine")).unwrap();
        fs::write(&within, "").unwrap();
        symlink(&within, work.path().join("link")).unwrap();
        // The group of a new folder is the user's own; that of one with other members comes below.
        for (mode, weak) in [(0o755, None), (0o1777, None), (0o777, Some(open.clone()))] {
            fs::set_permissions(&open, Permissions::from_mode(mode)).unwrap();
            for path in [&within, &work.path().join("link"), &open.join("mine/../mine")] {
                assert_eq!(first_untrusted(path), weak, "{mode:o} {}", path.display());
            }
        }
    }

    /// > A directory that a group may write to counts as one that others may write to, unless the
    /// > group has no other member.
    #[test]
    fn only_a_group_of_nobody_else_may_write() {
        let users = |own| Users {
            passwd: "root:x:0:0::/:/bin/sh\nbroken\nada:x:1000:1000::/:\nbob:x:1001:1001::/:\n\
                     cy:x:1002:100::/:\ndi:x:1003:100::/:\neve:x:1004:1004::/:\n"
                .to_owned(),
            group: "root:x:0:\nusers:x:100:\nada:x:1000:ada\nbob:x:1001:ada,bob\neve:x:1004:\n\
                    project:x:2000:ada\n"
                .to_owned(),
            own,
        };
        assert!(users(1000).have_to_themselves(1000) && users(1000).have_to_themselves(0));
        assert!(!users(1001).have_to_themselves(1001), "another member");
        assert!(!users(1002).have_to_themselves(100), "the login group of two");
        assert!(!users(1000).have_to_themselves(2000), "not a login group");
        assert!(!users(1000).have_to_themselves(1004), "another user's");
        assert!(!users(5000).have_to_themselves(5000), "of a directory service");
    }

    #[test]
    fn a_folder_of_a_group_with_members_is_weak() {
        let work = tempfile::tempdir().unwrap();
        let folder = fs::canonicalize(work.path()).unwrap().join("folder");
        fs::create_dir(&folder).unwrap();
        if !geteuid().is_root() || chown(&folder, None, Some(12_345)).is_err() {
            return;
        }
        for (mode, weak) in [(0o755, None), (0o1775, None), (0o775, Some(folder.clone()))] {
            fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            assert_eq!(first_untrusted(&folder.join("file")), weak, "{mode:o}");
        }
        chown(&folder, None, Some(0)).unwrap();
        assert_eq!(first_untrusted(&folder.join("file")), None, "root's group");
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
        assert_eq!(first_untrusted(&link.join("file")), Some(link));
        chown(&folder, Some(5), None).unwrap();
        assert_eq!(first_untrusted(&folder.join("file")), Some(folder));
    }
}
