//! Whether other users could replace what a path leads to.
//!
//! Used for files that archfs executes or writes by a name the user did not choose. Invariant:
//! every directory and link on the way is checked, because a user who can rename a directory can
//! replace everything below it.
//!
//! A world-writable directory is safe only with the sticky bit, and then only for files that belong
//! to the user, to root or to the owner of `/`. The same holds for a directory that a group may
//! write to, unless the group has no member other than this user or root.
//!
//! The daemon of a FUSE file system can claim any owner for its files, and exchange them at any
//! time. So a FUSE mount is trusted only if this user or root mounted it.
//!
//! A user namespace shows every owner that it does not map as the overflow uid (65534): root and
//! all other users alike. So nothing that belongs to that uid is trusted except `/`.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fd::AsFd;
use rustix::fs::{OFlags, fstatfs};
use rustix::process::geteuid;

use crate::os::mountinfo;

/// Maximum number of symbolic links followed, as in the kernel (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Whether the owner of a file is this user or root.
pub fn is_trusted(metadata: &Metadata) -> bool {
    let root = || fs::symlink_metadata("/").is_ok_and(|root| root.uid() == metadata.uid());
    let is_known = is_us_or_root(metadata.uid()) || root();
    is_known && !is_unmapped(metadata.uid())
}

/// Whether `file` is on a FUSE mount of a user other than this one and root. If unknown, true.
pub fn is_served_by_another(file: impl AsFd) -> bool {
    let file = file.as_fd();
    // The width of this number depends on the architecture.
    if fstatfs(file).is_ok_and(|status| status.f_type as u64 != FUSE) {
        return false;
    }
    let is_mount_of_another = |id| {
        let mount = mountinfo::find(|entry| entry.id == id).ok()??;
        Some(mount.is_fuse() && !mount.owner().is_some_and(is_us_or_root))
    };
    mountinfo::id_of(file).ok().and_then(is_mount_of_another).unwrap_or(true)
}

/// The type of every FUSE file system (FUSE_SUPER_MAGIC in linux/magic.h).
pub const FUSE: u64 = 0x6573_5546;

fn is_us_or_root(uid: u32) -> bool {
    uid == geteuid().as_raw() || uid == 0
}

/// Whether `uid` stands for all users that this user namespace does not map.
pub fn is_unmapped(uid: u32) -> bool {
    let number = |path| fs::read_to_string(path).ok()?.trim().parse().ok();
    let overflow = number("/proc/sys/kernel/overflowuid").unwrap_or(OVERFLOW_UID);
    // A kernel without user namespaces has no map, and a new namespace has an empty one.
    let is_in_map = || fs::read_to_string("/proc/self/uid_map").map_or(true, |map| maps(&map, uid));
    uid == overflow && !is_in_map()
}

/// The kernel's default overflow uid.
const OVERFLOW_UID: u32 = 65_534;

/// Whether `map` contains `uid`. Its lines are "first uid inside, first uid outside, count".
/// Outside user namespaces it contains every uid.
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

/// The first file, directory or link on the way to `path` that a user other than this one and root
/// can change or replace; `None` if there is none. Missing components do not count.
pub fn first_untrusted(path: &Path) -> Option<PathBuf> {
    // Paths still to walk, the next one last.
    let mut ahead = vec![path.to_owned()];
    let mut current = match path.is_absolute() {
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
            Component::RootDir | Component::Prefix(_) => current = PathBuf::from("/"),
            Component::CurDir => {}
            Component::ParentDir => {
                current.pop();
            }
            Component::Normal(name) => {
                let next = current.join(name);
                let metadata = match fs::symlink_metadata(&next) {
                    Err(error) if error.kind() == ErrorKind::NotFound => return None,
                    Err(_) => return Some(next),
                    Ok(metadata) => metadata,
                };
                let is_open = metadata.mode() & 0o002 != 0
                    || (metadata.mode() & 0o020 != 0
                        && !Users::read().is_private_group(metadata.gid()));
                let is_sticky = metadata.is_dir() && metadata.mode() & 0o1000 != 0;
                if !is_trusted(&metadata) || (is_open && !is_sticky && !metadata.is_symlink()) {
                    return Some(next);
                }
                if metadata.is_symlink() {
                    links += 1;
                    match fs::read_link(&next) {
                        Ok(target) if links <= LINKS_MAX => ahead.push(target),
                        _ => return Some(next),
                    }
                } else if open_path(&next).is_none_or(is_served_by_another) {
                    return Some(next);
                } else {
                    current = next;
                }
            }
        }
    }
    None
}

/// Opens `path` as a handle only, not for reading.
fn open_path(path: &Path) -> Option<File> {
    let flags = (OFlags::PATH | OFlags::NOFOLLOW).bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path).ok()
}

/// Users and groups of the node's own files (passwd(5), group(5)). A directory service is not
/// included, so its groups may have any members.
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

    /// Whether `gid` is the group of this user or root and has no other members.
    fn is_private_group(&self, gid: u32) -> bool {
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
    fn the_users_own_files_are_trusted() {
        let work = tempfile::tempdir().unwrap();
        let directory = fs::canonicalize(work.path()).unwrap().join("a/b");
        assert_eq!(first_untrusted(&directory), None, "what is not there yet");
        fs::create_dir_all(&directory).unwrap();
        assert_eq!(first_untrusted(&directory), None);
        assert_eq!(first_untrusted(&directory.join("../../a/./b")), None);
        symlink("b", directory.with_file_name("link")).unwrap();
        assert_eq!(first_untrusted(&directory.with_file_name("link")), None);
        symlink("round", directory.join("round")).unwrap();
        assert_eq!(first_untrusted(&directory.join("round")), Some(directory.join("round")));
    }

    #[test]
    fn a_world_writable_directory_anywhere_on_the_way_is_untrusted() {
        let work = tempfile::tempdir().unwrap();
        let open = fs::canonicalize(work.path()).unwrap().join("open");
        let within = open.join("mine/file");
        fs::create_dir_all(open.join("mine")).unwrap();
        fs::write(&within, "").unwrap();
        symlink(&within, work.path().join("link")).unwrap();
        // A new directory has the user's own group; a group with other members is tested below.
        for (mode, untrusted) in [(0o755, None), (0o1777, None), (0o777, Some(open.clone()))] {
            fs::set_permissions(&open, Permissions::from_mode(mode)).unwrap();
            for path in [&within, &work.path().join("link"), &open.join("mine/../mine")] {
                assert_eq!(first_untrusted(path), untrusted, "{mode:o} {}", path.display());
            }
        }
    }

    /// > A directory that a group may write to counts as one that others may write to, unless the
    /// > group has no other member.
    #[test]
    fn only_a_group_without_other_members_may_write() {
        let users = |own| Users {
            passwd: "root:x:0:0::/:/bin/sh\nbroken\nada:x:1000:1000::/:\nbob:x:1001:1001::/:\n\
                     cy:x:1002:100::/:\ndi:x:1003:100::/:\neve:x:1004:1004::/:\n"
                .to_owned(),
            group: "root:x:0:\nusers:x:100:\nada:x:1000:ada\nbob:x:1001:ada,bob\neve:x:1004:\n\
                    project:x:2000:ada\n"
                .to_owned(),
            own,
        };
        assert!(users(1000).is_private_group(1000) && users(1000).is_private_group(0));
        assert!(!users(1001).is_private_group(1001), "another member");
        assert!(!users(1002).is_private_group(100), "the login group of two");
        assert!(!users(1000).is_private_group(2000), "not a login group");
        assert!(!users(1000).is_private_group(1004), "another user's");
        assert!(!users(5000).is_private_group(5000), "of a directory service");
    }

    #[test]
    fn a_directory_of_a_group_with_members_is_untrusted() {
        let work = tempfile::tempdir().unwrap();
        let directory = fs::canonicalize(work.path()).unwrap().join("directory");
        fs::create_dir(&directory).unwrap();
        if !geteuid().is_root() || chown(&directory, None, Some(12_345)).is_err() {
            return println!("SKIPPED: needs root");
        }
        for (mode, untrusted) in [(0o755, None), (0o1775, None), (0o775, Some(directory.clone()))] {
            fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
            assert_eq!(first_untrusted(&directory.join("file")), untrusted, "{mode:o}");
        }
        chown(&directory, None, Some(0)).unwrap();
        assert_eq!(first_untrusted(&directory.join("file")), None, "root's group");
    }

    #[test]
    fn an_unmapped_uid_belongs_to_no_known_user() {
        let all = "         0          0 4294967295\n";
        let own = "      1000       1000          1\n";
        let many = "0 1000 1\n1 100000 65536\n";
        assert!(maps(all, 65_534) && maps(many, 65_534) && !maps(own, 65_534) && !maps("", 65_534));
        assert!(maps(own, 1000) && !maps(own, 1001) && !maps(own, 0));
    }

    #[test]
    fn files_of_other_users_are_untrusted() {
        if !geteuid().is_root() {
            return println!("SKIPPED: needs root");
        }
        let work = tempfile::tempdir().unwrap();
        let work = fs::canonicalize(work.path()).unwrap();
        let (directory, link) = (work.join("directory"), work.join("link"));
        fs::create_dir(&directory).unwrap();
        symlink("directory", &link).unwrap();
        lchown(&link, Some(5), None).unwrap();
        assert_eq!(first_untrusted(&link.join("file")), Some(link));
        chown(&directory, Some(5), None).unwrap();
        assert_eq!(first_untrusted(&directory.join("file")), Some(directory));
    }
}
