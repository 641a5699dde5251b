//! Whether a file is this user's or root's, and who else may change it. `path_walk` applies this to
//! all parts of a path.
//!
//! The daemon of a FUSE file system can claim any owner for its files, and exchange them at any
//! time. So a FUSE mount is trusted only if this user or root mounted it.
//!
//! A user namespace shows every owner that it does not map as the overflow uid (65534): root and
//! all other users alike. So nothing that belongs to that uid is trusted except `/`.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;

use rustix::fd::AsFd;
use rustix::fs::fstatfs;
use rustix::process::geteuid;

use crate::os::mountinfo::{self, MountEntry};

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
    let mount = |id| mountinfo::find(|entry| entry.id == id).ok()?;
    mountinfo::id_of(file).ok().and_then(mount).is_none_or(|mount| is_of_another(&mount))
}

/// Whether `mount` is a FUSE mount of a user other than this one and root.
pub(super) fn is_of_another(mount: &MountEntry) -> bool {
    mount.is_fuse() && !mount.owner().is_some_and(is_us_or_root)
}

/// The type of every FUSE file system (FUSE_SUPER_MAGIC in linux/magic.h).
pub const FUSE: u64 = 0x6573_5546;

fn is_us_or_root(uid: u32) -> bool {
    uid == geteuid().as_raw() || uid == 0
}

/// Whether `uid` stands for all users that this user namespace does not map.
pub fn is_unmapped(uid: u32) -> bool {
    uid == overflow_uid() && is_in_user_namespace()
}

/// Whether this user namespace does not map all users.
pub(crate) fn is_in_user_namespace() -> bool {
    // A kernel without user namespaces has no map, and a new namespace has an empty one.
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !maps(&map, overflow_uid()))
}

/// Whether this user is root, and not only in a user namespace.
pub(crate) fn is_root_of_node() -> bool {
    geteuid().is_root() && !is_in_user_namespace()
}

fn overflow_uid() -> u32 {
    let number = |path| fs::read_to_string(path).ok()?.trim().parse().ok();
    number("/proc/sys/kernel/overflowuid").unwrap_or(OVERFLOW_UID)
}

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

/// Whether users other than the owner and root may write to the file.
pub fn may_others_write(metadata: &Metadata) -> bool {
    metadata.mode() & 0o002 != 0
        || (metadata.mode() & 0o020 != 0 && !Users::read().is_private_group(metadata.gid()))
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
    use super::*;

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
    fn an_unmapped_uid_belongs_to_no_known_user() {
        let all = "         0          0 4294967295\n";
        let own = "      1000       1000          1\n";
        let many = "0 1000 1\n1 100000 65536\n";
        assert!(maps(all, 65_534) && maps(many, 65_534) && !maps(own, 65_534) && !maps("", 65_534));
        assert!(maps(own, 1000) && !maps(own, 1001) && !maps(own, 0));
    }
}
