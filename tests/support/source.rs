//! Source trees with every kind of file, the same in each run.
//!
//! Trees are made once and kept, under a lock because several test programs use them. VERSION is
//! part of their path.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags,
    chownat, flock, lsetxattr, makedev, mknodat, setxattr, utimensat,
};

use super::cache_directory;

/// Increase when the contents made here change.
const VERSION: u32 = 3;

/// Files of all kinds, with sizes around block boundaries, odd names, owners, times and attributes.
pub fn varied() -> PathBuf {
    made_once("varied", make_varied)
}

/// A directory of 100,000 names, and a sparse file of 5 GiB.
pub fn large() -> PathBuf {
    made_once("large", make_large)
}

/// Pseudo-random bytes that do not compress, the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Text that compresses well.
fn text(len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 64);
    let mut line = 0;
    while bytes.len() < len {
        bytes.extend(format!("line {line} of a file of {len} bytes\n").bytes());
        line += 1;
    }
    bytes.truncate(len);
    bytes
}

fn made_once(name: &str, make: fn(&Path)) -> PathBuf {
    let directory = cache_directory().join(format!("{name}-{VERSION}"));
    let lock = File::create(cache_directory().join(format!("{name}.lock"))).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let done = directory.join("done");
    if !done.exists() {
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(directory.join("tree")).unwrap();
        make(&directory.join("tree"));
        fs::write(done, "").unwrap();
    }
    directory.join("tree")
}

/// The file `name`, made once for all runs by `make`, which gets its path.
pub fn made_file(name: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let file = cache_directory().join(format!("{VERSION}-{name}"));
    let lock = File::create(cache_directory().join(format!("{name}.lock"))).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    if !file.exists() {
        let unfinished = cache_directory().join(format!("unfinished-{name}"));
        make(&unfinished);
        fs::rename(unfinished, &file).unwrap();
    }
    file
}

fn make_varied(root: &Path) {
    let at = |name: &str| root.join(name);
    let kib = 1024;
    let borders = [4 * kib, 128 * kib, 1024 * kib];
    let sizes = borders.iter().flat_map(|size| [size - 1, *size, size + 1]);
    for size in [0, 1, 10, 8 * kib, 300 * kib, 2500 * kib].into_iter().chain(sizes) {
        fs::write(at(&format!("text-{size}")), text(size)).unwrap();
        fs::write(at(&format!("noise-{size}")), noise(size as u64 + 1, size)).unwrap();
    }
    // Identical contents, which most images store once.
    fs::write(at("twin"), text(300 * kib)).unwrap();
    fs::write(at("zeros"), vec![0; 500 * kib]).unwrap();
    fs::create_dir(at("many")).unwrap();
    for number in 0..3000 {
        let name = format!("many/{number:06}-{}", "x".repeat(number % 200));
        fs::write(at(&name), format!("{number} ").repeat(number % 300)).unwrap();
    }
    sparse(&at("sparse"), 30 << 20, &[(5_000_000, b"middle"), (20_000_000, b"end")]);
    sparse(&at("all-hole"), 1 << 20, &[]);

    fs::write(at(&"n".repeat(255)), "the longest name").unwrap();
    for name in [&b"\xff\xfe not utf-8"[..], b"new\nline", b" ", b"-rf", b"a\\b\"c'd\t"] {
        fs::write(root.join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    fs::create_dir_all(at(&["deep"; 40].join("/"))).unwrap();
    fs::create_dir(at("empty")).unwrap();

    symlink("x".repeat(4000), at("link-long")).unwrap();
    symlink(std::ffi::OsStr::from_bytes(b"\xff\x80"), at("link-bytes")).unwrap();
    symlink("/etc/passwd", at("link-absolute")).unwrap();
    symlink("many", at("link-folder")).unwrap();
    fs::hard_link(at("text-10"), at("hard")).unwrap();
    fs::hard_link(at("text-10"), at("many/hard")).unwrap();

    let mode = Mode::from_raw_mode;
    mknodat(CWD, at("fifo"), FileType::Fifo, mode(0o640), 0).unwrap();
    mknodat(CWD, at("block"), FileType::BlockDevice, mode(0o660), makedev(7, 300)).unwrap();
    mknodat(CWD, at("char"), FileType::CharacterDevice, mode(0o600), makedev(4095, 77)).unwrap();
    // The path of a socket has at most 107 bytes, so make it at a short path and move it.
    let short = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(short.path().join("s")).unwrap());
    let mut mv = std::process::Command::new("mv");
    super::run(mv.arg(short.path().join("s")).arg(at("socket")));
    fs::hard_link(at("fifo"), at("hard-fifo")).unwrap();

    for (name, bits) in [("text-1", 0o4755), ("text-8192", 0o2711), ("empty", 0o1777), ("twin", 0)]
    {
        fs::set_permissions(at(name), fs::Permissions::from_mode(bits)).unwrap();
    }
    for (name, uid, gid) in [("text-0", 65_534, 65_533), ("link-long", 4_000_000_000, 7)] {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        chownat(CWD, at(name), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    make_xattrs(root);
    for (name, seconds) in [("text-10", 1), ("text-1", 4_294_967_295), ("fifo", 2_147_483_648)] {
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, at(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

fn make_xattrs(root: &Path) {
    let none = XattrFlags::empty();
    for name in ["text-10", "many", "noise-8192", "empty"] {
        let path = root.join(name);
        setxattr(&path, "user.small", b"v", none).unwrap();
        setxattr(&path, "user.empty", b"", none).unwrap();
        // A large value that several files share is stored out of line.
        setxattr(&path, "user.large", &text(2000), none).unwrap();
        setxattr(&path, "trusted.bytes", b"\0\xff\n", none).unwrap();
        setxattr(&path, "security.archfs", b"s", none).unwrap();
    }
    for name in ["link-folder", "fifo", "char", "socket"] {
        lsetxattr(root.join(name), "trusted.other", name.as_bytes(), none).unwrap();
    }
}

fn make_large(root: &Path) {
    let directory = root.join("hundred-thousand");
    fs::create_dir(&directory).unwrap();
    for number in 0..100_000 {
        File::create(directory.join(format!("{number:05}-{}", number % 7))).unwrap();
    }
    let far: [(u64, &[u8]); 4] =
        [(0, b"start"), (3 << 30, b"three"), ((4 << 30) - 2, b"border"), ((5 << 30) - 3, b"end")];
    sparse(&root.join("sparse-5g"), 5 << 30, &far);
}

fn sparse(path: &Path, len: u64, parts: &[(u64, &[u8])]) {
    let mut file = File::create(path).unwrap();
    for (offset, bytes) in parts {
        file.seek(SeekFrom::Start(*offset)).unwrap();
        file.write_all(bytes).unwrap();
    }
    file.set_len(len).unwrap();
}
