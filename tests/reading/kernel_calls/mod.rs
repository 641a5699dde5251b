//! Compares system calls on a mount of archfs with those on the kernel's SquashFS, as root and as
//! an ordinary user.
//!
//! `calls.py` makes the calls. Every difference is listed here with its reason.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};

use crate::support::mount::Mounted;
use crate::support::skip::skip;
use crate::support::{image, run, skip_without_mounts, source, work_directory};

/// UID of the ordinary user. No other test mounts with it.
const USER: u32 = 13;

/// An allowed difference: calls, result of archfs, result of the kernel's SquashFS, reason. A star
/// stands for any text.
type Difference = (&'static str, &'static str, &'static str, &'static str);

const DIFFERENCES: [Difference; 17] = [
    ("*stat ino .", "'1'", "*", "the root of a FUSE file system is 1"),
    ("*stat ino attributes", "*", "'1'", "so this inode has the number of the root"),
    ("*stat blksize *", "'131072'", "'1024'", "so that programs read in large pieces"),
    ("*stat blocks .", "*", "'0'", "SquashFS counts no blocks of directories"),
    ("*stat blocks closed", "*", "'0'", "as above"),
    ("*stat blocks many", "*", "'0'", "as above"),
    ("*stat blocks sticky", "*", "'0'", "as above"),
    ("*stat blocks *folder", "'1'", "*", "SquashFS adds the size of extended attributes"),
    ("*stat blocks attributes", "'1'", "*", "as above"),
    ("statfs longest *", "255", "256", "SquashFS stores 256 bytes, Linux shows 255"),
    ("* x-255x", "ENAMETOOLONG", "ENOENT", "as above"),
    ("* x-255x *", "ENAMETOOLONG", "E*", "as above"),
    ("open * DIRECT", "'opened'", "EINVAL", "SquashFS has no O_DIRECT"),
    ("f*sync *", "None", "EINVAL", "SquashFS has no fsync; there is nothing to write"),
    ("getxattr * system.posix_acl_access", "ENODATA", "ENOTSUP", "a tar may have it"),
    ("FIGETBSZ *", "b'*'", "b'*'", "the block size of the mount: FUSE has a page, SquashFS 1 KiB"),
    ("FIBMAP *", "b'*'", "EINVAL", "FUSE says that no block is known, SquashFS does not answer"),
];

/// An interpreter that the user can execute as well.
const PYTHON: &str = "/usr/bin/python3";

/// Minimum number of compared calls.
const LEAST: usize = 500;

fn tree(work: &Path) -> PathBuf {
    let root = work.join("tree");
    let at = |name: &str| root.join(name);
    for directory in ["", "folder", "many", "closed", "sticky"] {
        fs::create_dir(at(directory)).unwrap();
    }
    let program = b"#!/bin/sh\nexit 7\n";
    for (name, bytes) in [
        ("text", b"some text\n".to_vec()),
        ("blocks", source::noise(1, 3 * 16384)),
        ("tail", source::noise(2, 70_000)),
        ("empty", Vec::new()),
        ("private", b"private".to_vec()),
        ("group", b"group".to_vec()),
        ("program", program.to_vec()),
        ("setuid", program.to_vec()),
        ("attributes", b"attributes".to_vec()),
        ("folder/a", b"a".to_vec()),
        ("folder/b", b"b".to_vec()),
        ("closed/inside", b"inside".to_vec()),
    ] {
        fs::write(at(name), bytes).unwrap();
    }
    let holes = File::create(at("holes")).unwrap();
    holes.write_all_at(b"middle", 40_000).unwrap();
    holes.set_len(200_000).unwrap();
    for number in 0..700 {
        fs::write(at(&format!("many/name-{number:04}")), "").unwrap();
    }
    fs::hard_link(at("text"), at("hard")).unwrap();
    for (link, target) in
        [("link", "text"), ("dangling", "no/such"), ("loop", "loop"), ("link-folder", "folder")]
    {
        symlink(target, at(link)).unwrap();
    }
    let mode = Mode::from_raw_mode;
    mknodat(CWD, at("fifo"), FileType::Fifo, mode(0o644), 0).unwrap();
    mknodat(CWD, at("char"), FileType::CharacterDevice, mode(0o666), makedev(1, 3)).unwrap();
    mknodat(CWD, at("block"), FileType::BlockDevice, mode(0o660), makedev(7, 300)).unwrap();
    drop(UnixListener::bind(at("socket")).unwrap());
    for (name, owner, group, bits) in [
        ("private", 0, 0, 0o600),
        ("group", 0, USER, 0o640),
        ("program", 0, 0, 0o755),
        ("setuid", 0, 0, 0o4755),
        ("closed", 0, 0, 0o700),
        ("sticky", USER, USER, 0o1777),
        ("", 0, 0, 0o755),
        ("folder", 0, 0, 0o755),
        ("many", 0, 0, 0o755),
    ] {
        chown(at(name), Some(owner), Some(group)).unwrap();
        fs::set_permissions(at(name), Permissions::from_mode(bits)).unwrap();
    }
    for (name, value) in [
        ("user.small", b"v".to_vec()),
        ("user.empty", Vec::new()),
        ("user.large", source::noise(3, 2000)),
        ("trusted.t", b"t".to_vec()),
        ("security.s", b"s".to_vec()),
    ] {
        for file in ["attributes", "folder"] {
            setxattr(at(file), name, &value, XattrFlags::empty()).unwrap();
        }
    }
    root
}

/// The calls and their results, as root or as the user.
fn calls(script: &Path, mount: &Path, user: Option<u32>) -> Vec<(String, String)> {
    let mut command = match user {
        None => Command::new(PYTHON),
        Some(user) => {
            let mut command = Command::new("setpriv");
            command.args([format!("--reuid={user}"), format!("--regid={user}")]);
            command.args(["--clear-groups", PYTHON]);
            command
        }
    };
    let output = run(command.arg(script).arg(mount).current_dir("/"));
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| {
        let (call, outcome) = line.split_once('\t').unwrap();
        (call.to_owned(), outcome.to_owned())
    };
    text.lines().map(line).collect()
}

/// Whether `text` matches `pattern`, in which a star stands for any text.
fn is_like(text: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => text == pattern,
        Some((before, behind)) => text.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.get(at..).is_some_and(|rest| is_like(rest, behind)))
        }),
    }
}

#[test]
fn every_call_matches_the_kernels_squashfs_or_a_listed_difference() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    fs::set_permissions(work.path(), Permissions::from_mode(0o755)).unwrap();
    let tree = tree(work.path());
    let image = image::make(work.path(), "data.sqfs", &tree, &["-comp", "zstd", "-b", "16K"]);
    let kernel = match Mounted::kernel(&image, &work.path().join("kernel")) {
        Ok(kernel) => kernel,
        Err(error) => {
            assert!(
                std::env::var_os("CI").is_none(),
                "CI must have the kernel's SquashFS: {error}"
            );
            skip(&format!("no SquashFS in this kernel: {error}"));
            return;
        }
    };
    // The flags that every archfs mount has.
    run(Command::new("mount").args(["-o", "remount,ro,nosuid,nodev"]).arg(kernel.path()));
    let mount = Mounted::archfs(&image, &work.path().join("mount"), &["-oallow_other"]);
    let script = work.path().join("calls.py");
    fs::write(&script, include_str!("calls.py")).unwrap();
    let mut is_used = vec![false; DIFFERENCES.len()];
    let mut unknown = Vec::new();
    let mut count = 0;
    for user in [None, Some(USER)] {
        let [found, expected] =
            [mount.path(), kernel.path()].map(|mount_point| calls(&script, mount_point, user));
        assert_eq!(found.len(), expected.len());
        count += found.len();
        for ((call, ours), (same, theirs)) in found.iter().zip(&expected) {
            assert_eq!(call, same);
            if ours == theirs {
                continue;
            }
            let known = DIFFERENCES.iter().position(|(calls, archfs, kernel, _)| {
                is_like(call, calls) && is_like(ours, archfs) && is_like(theirs, kernel)
            });
            match known {
                Some(nth) => is_used[nth] = true,
                None => unknown.push(format!("{user:?} {call}: {ours}, the kernel: {theirs}")),
            }
        }
    }
    assert!(unknown.is_empty(), "{} of {count} calls:\n{}", unknown.len(), unknown.join("\n"));
    let unused: Vec<_> = DIFFERENCES.iter().zip(is_used).filter(|(_, used)| !used).collect();
    assert!(unused.is_empty(), "differences that there are none of: {unused:?}");
    assert!(count >= LEAST, "{count} calls");
}
