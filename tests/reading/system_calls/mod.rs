//! System calls on a mount do what docs/SEMANTICS.md says.
//!
//! `files` covers reading, seeking and locks, `directories` listings and names, `inodes` stat and
//! attributes.

mod directories;
mod files;
mod handles;
mod inodes;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, makedev, mknodat, utimensat};

use crate::support::mount::Mounted;
use crate::support::{archfs, image, run, skip_without_mounts, source, work_directory};

/// Block size of the images of `with_mount`.
const BLOCK: u64 = 16 << 10;

/// Mounts the varied tree as an image with small blocks, for a check against that tree.
fn with_mount(test: impl Fn(&Path, &Path)) {
    if skip_without_mounts() {
        return;
    }
    let tree = source::varied();
    let work = work_directory();
    let image = image::make(work.path(), "image.sqfs", &tree, &["-comp", "zstd", "-b", "16K"]);
    let mounted = Mounted::archfs(&image, &work.path().join("mount"), &[]);
    test(mounted.path(), &tree);
}

/// Mounts a small tree as an image and then as a tar, for a check against that tree.
fn with_each_format(test: impl Fn(Format, &Path, &Path)) {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = small_tree(work.path());
    for (format, archive) in archives(work.path(), &tree) {
        let mounted = Mounted::archfs(&archive, &work.path().join("mount"), &[]);
        test(format, mounted.path(), &tree);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Image,
    Tar,
}

/// An image and a tar of `tree`.
fn archives(work: &Path, tree: &Path) -> [(Format, PathBuf); 2] {
    let tar = work.join("data.tar");
    let mut pack = Command::new("tar");
    pack.arg("-C").arg(tree).args(["--format=posix", "--sort=none", "-cf"]).arg(&tar).arg(".");
    run(&mut pack);
    let image = image::make(work, "data.sqfs", tree, &["-comp", "zstd"]);
    [(Format::Image, image), (Format::Tar, tar)]
}

/// Names whose byte order differs from the alphabetical order.
const NAMES: [&[u8]; 9] = [b"b", b"B", b"a", b"a-", b"a.b", b"ab", b"\xff", b"\x01", b" "];

/// A file of each kind that every format supports, in a directory; times with fractions, no
/// extended attributes.
fn small_tree(work: &Path) -> PathBuf {
    let tree = work.join("tree");
    let directory = tree.join("folder");
    fs::create_dir_all(directory.join("below")).unwrap();
    for name in NAMES {
        fs::write(directory.join(OsStr::from_bytes(name)), name).unwrap();
    }
    fs::hard_link(directory.join("a"), directory.join("hard")).unwrap();
    symlink("a", directory.join("link")).unwrap();
    mknodat(CWD, directory.join("fifo"), FileType::Fifo, Mode::from(0o640), 0).unwrap();
    let device = makedev(7, 300);
    mknodat(CWD, directory.join("block"), FileType::BlockDevice, Mode::from(0o660), device)
        .unwrap();
    chown(directory.join("b"), Some(1234), Some(5678)).unwrap();
    for (name, seconds) in [("a", 1), ("link", 1_600_000_000), ("below", 4_000_000_000)] {
        let time = Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, directory.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    tree
}

/// Number of requests of that kind sent by the kernel so far (docs/STATS.md).
fn requests(mount: &Path, kind: &str) -> u64 {
    let output = run(archfs().args(["stats", "--json"]).arg(mount));
    let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    stats["requests"][kind].as_u64().unwrap_or_else(|| panic!("{kind}: {stats}"))
}
