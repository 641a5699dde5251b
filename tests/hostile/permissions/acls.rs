//! POSIX ACLs in a tar, on a mount that every user may enter: no user gets more access than in the
//! source.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use rustix::fs::{XattrFlags, lgetxattr, llistxattr, setxattr};
use rustix::io::Errno;

use super::{OTHER, OWNER, Scene, done, mode, scene};
use crate::support::mount::unmount;
use crate::support::user::User;
use crate::support::{archfs, run};

/// The owner of the files. No test acts as this user.
const STRANGER: u32 = 1234;

const ATTRIBUTE: &str = "system.posix_acl_access";

/// A name; the permissions of the owner, named users, the group, named groups and others; and
/// whether a mode alone gives both users the same access.
type File = (&'static str, u32, &'static [(u32, u16)], u16, &'static [(u32, u16)], u16, bool);

/// The group of all files is that of `OWNER`.
const FILES: [File; 7] = [
    ("plain", 6, &[], 4, &[], 0, true),
    // The group bits of the mode are rwx, but the group has no access.
    ("masked", 6, &[(STRANGER, 7)], 0, &[], 0, true),
    ("named", 6, &[(OTHER, 6)], 4, &[], 0, false),
    // Denied to one user, granted to others or the group.
    ("denied", 6, &[(OTHER, 0)], 4, &[], 4, false),
    ("denied-in-group", 6, &[(OWNER, 0)], 6, &[], 4, false),
    ("denied-group", 6, &[], 4, &[(OTHER, 0)], 4, true),
    ("program", 7, &[(STRANGER, 5)], 1, &[], 5, true),
];

/// The ACL in the encoding of the kernel's extended attribute.
fn attribute((_, owner, users, group, groups, others, _): &File) -> Vec<u8> {
    let named = |tag, list: &[(u32, u16)]| {
        list.iter().map(|&(id, rights)| (tag, rights, id)).collect::<Vec<_>>()
    };
    let all = users.iter().chain(*groups).fold(*group, |mask, (_, rights)| mask | rights);
    let none = u32::MAX;
    let mut entries: Vec<(u16, u16, u32)> = vec![(1, *owner as u16, none)];
    entries.extend(named(2, users));
    entries.push((4, *group, none));
    entries.extend(named(8, groups));
    entries.extend([(0x10, all, none), (0x20, *others, none)]);
    let mut value = vec![2, 0, 0, 0];
    for (tag, rights, id) in entries {
        value.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    value
}

fn source(work: &Path) -> std::path::PathBuf {
    let directory = work.join("acls");
    for directory in [&directory, &directory.join("closed")] {
        fs::create_dir(directory).unwrap();
        fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(directory.join("closed/file"), "x").unwrap();
    for file in &FILES {
        let path = directory.join(file.0);
        fs::write(&path, "#!/bin/sh\n").unwrap();
        chown(&path, Some(STRANGER), Some(OWNER)).unwrap();
        setxattr(&path, ATTRIBUTE, &attribute(file), XattrFlags::empty()).unwrap();
    }
    // A directory that one user may not search.
    chown(directory.join("closed"), Some(STRANGER), Some(STRANGER)).unwrap();
    let closed = ("closed", 7, &[(OTHER, 4)][..], 5, &[][..], 5, false);
    setxattr(directory.join("closed"), ATTRIBUTE, &attribute(&closed), XattrFlags::empty())
        .unwrap();
    directory
}

/// The accesses that the kernel grants `user` below `root`, as "NAME KIND" lines.
fn allowed(user: &User, root: &Path) -> Vec<String> {
    let names = FILES.iter().map(|file| file.0).chain(["closed/file"]).collect::<Vec<_>>();
    let script = format!(
        "cd {} && for name in {}; do cat $name > /dev/null 2>&1 && echo $name read; \
         test -x $name && echo $name run; done; true",
        root.display(),
        names.join(" ")
    );
    done(user, &script).lines().map(str::to_owned).collect()
}

/// > POSIX ACLs of a tar are then hidden, and the modes are reduced so that no user gets more than
/// > the ACL gives. Users and groups that an ACL names get the permissions of all others.
#[test]
fn acls_in_a_tar_grant_no_more_than_the_source() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, stage, .. } = &scene;
    let work = stage.work.path();
    let directory = source(work);
    for (name, options) in [
        ("acls", &["--acls"][..]),
        ("xattrs", &["--xattrs", "--xattrs-include=*"]),
        ("both.gz", &["--acls", "--xattrs", "--xattrs-include=*", "-z"]),
    ] {
        let archive = work.join(format!("{name}.tar"));
        let mut pack = Command::new("tar");
        pack.args(["--format=posix", "--numeric-owner", "-C"]).arg(&directory).args(options);
        run(pack.arg("-cf").arg(&archive).arg("."));
        let extracted = work.join(format!("extracted-{name}"));
        fs::create_dir(&extracted).unwrap();
        let mut unpack = Command::new("tar");
        unpack.args(["--numeric-owner", "--same-owner", "-p", "-C"]).arg(&extracted);
        run(unpack.args(options).arg("-xf").arg(&archive));
        let mut mount = archfs();
        mount
            .args(["mount", "-q", "--keep", "-o", "allow_other"])
            .arg(archive)
            .arg(&stage.mount_point);
        run(&mut mount);
        let mut less = 0;
        for user in [owner, other] {
            let [from_mount, from_source] =
                [&stage.mount_point, &extracted].map(|root| allowed(user, root));
            for right in &from_mount {
                assert!(from_source.contains(right), "{name}: uid {}: {right}", user.uid);
            }
            for right in from_source.iter().filter(|right| !from_mount.contains(right)) {
                let file = right.split(' ').next().unwrap();
                let file = FILES.iter().find(|it| it.0 == file);
                assert!(!file.is_some_and(|file| file.6), "{name}: uid {}: {right}", user.uid);
                less += 1;
            }
            assert!(!from_mount.is_empty() && from_source.len() < 2 * FILES.len());
        }
        assert!(less > 0, "{name}: some rights are beyond a mode");
        // The mode alone would give the group full access.
        let masked = "masked";
        assert_eq!(mode(&directory.join(masked)) & 0o070, 0o070);
        assert_eq!(mode(&stage.mount_point.join(masked)), 0o600, "{name}");
        let mut names = [0; 1000];
        let len = llistxattr(stage.mount_point.join(masked), &mut names[..]).unwrap();
        assert_eq!(len, 0, "{name}: {}", names[..len].escape_ascii());
        let read = lgetxattr(stage.mount_point.join(masked), ATTRIBUTE, &mut names[..]);
        assert!(matches!(read, Err(Errno::NODATA | Errno::OPNOTSUPP)), "{name}: {read:?}");
        unmount(&stage.mount_point);
        // If other users cannot enter, nothing is enforced, and modes are as packed.
        run(archfs()
            .args(["mount", "-q", "--keep"])
            .arg(work.join(format!("{name}.tar")))
            .arg(&stage.mount_point));
        assert_eq!(mode(&stage.mount_point.join(masked)), mode(&directory.join(masked)), "{name}");
        unmount(&stage.mount_point);
    }
}
