//! Makes the sound archives that mutants are made of: small, with one file of every kind.
//!
//! All times and owners are fixed, so each run makes the same bytes and a mutant keeps its number
//! while mksquashfs and tar stay the same.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, makedev, mknodat, setxattr};

use crate::support::{image, run, source::noise};

/// Options of mksquashfs, in addition to the common ones.
const IMAGES: [(&str, &str, &[&str]); 11] = [
    ("gzip", "tree", &["-comp", "gzip", "-b", "4096"]),
    ("xz", "tree", &["-comp", "xz", "-b", "4096"]),
    ("lzma", "tree", &["-comp", "lzma", "-b", "4096"]),
    ("lzo", "tree", &["-comp", "lzo", "-b", "4096"]),
    ("lz4", "tree", &["-comp", "lz4", "-b", "4096"]),
    ("zstd", "tree", &["-comp", "zstd", "-b", "4096"]),
    ("zstd-128k", "tree", &["-comp", "zstd", "-b", "131072", "-always-use-fragments"]),
    ("lz4-no-fragments", "tree", &["-comp", "lz4", "-b", "8192", "-no-fragments"]),
    ("plain", "tree", &["-b", "4096", "-noI", "-noId", "-noD", "-noF", "-noX"]),
    ("plain-tables-xz", "tree", &["-comp", "xz", "-b", "4096", "-noI", "-noId", "-noX"]),
    ("wide", "wide", &["-comp", "gzip", "-b", "4096", "-noI", "-noId", "-noX", "-no-exports"]),
];

/// Makes the images in `directory`.
pub(crate) fn make_images(directory: &Path, work: &Path) {
    make_tree(&work.join("tree"));
    make_wide(&work.join("wide"));
    for (nth, (name, tree, options)) in IMAGES.iter().enumerate() {
        let fixed = ["-mkfs-time", "0", "-all-time", "1000000000", "-no-duplicates"];
        let options: Vec<&str> = options.iter().chain(&fixed[..]).copied().collect();
        image::make(directory, &format!("{nth:02}-{name}"), &work.join(tree), &options);
    }
}

/// Text that compresses, with every position different.
fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| if at % 16 == 0 { (at / 16) as u8 } else { b'a' + (at % 16) as u8 }).collect()
}

/// Half text, half noise, so that some blocks are stored uncompressed.
fn mixed(len: usize) -> Vec<u8> {
    [text(len / 2), noise(len as u64, len - len / 2)].concat()
}

/// One file of every kind.
pub(crate) fn make_tree(root: &Path) -> PathBuf {
    let at = |name: &str| root.join(name);
    fs::create_dir_all(at("folder/within/another")).unwrap();
    for size in [0, 10, 4095, 4096, 4097, 12_000] {
        fs::write(at(&format!("text-{size}")), text(size)).unwrap();
    }
    fs::write(at("mixed"), mixed(18_000)).unwrap();
    fs::write(at("folder/noise"), noise(7, 3000)).unwrap();
    fs::write(at("folder/within/tail"), text(9000)).unwrap();
    let holes = [&text(5000)[..], &[0; 9000], &noise(9, 700)].concat();
    fs::write(at("holes"), holes).unwrap();
    fs::write(at("all-hole"), [0; 16_384]).unwrap();
    fs::write(at(&"n".repeat(255)), "the longest name").unwrap();
    fs::create_dir(at("many")).unwrap();
    for number in 0..30 {
        fs::write(at(&format!("many/{number:03}")), format!("file {number}")).unwrap();
    }
    symlink("text-10", at("link")).unwrap();
    symlink("t/".repeat(150), at("folder/link-long")).unwrap();
    fs::hard_link(at("mixed"), at("folder/hard")).unwrap();
    let mode = Mode::from_raw_mode;
    mknodat(CWD, at("fifo"), FileType::Fifo, mode(0o640), 0).unwrap();
    mknodat(CWD, at("socket"), FileType::Socket, mode(0o640), 0).unwrap();
    mknodat(CWD, at("block"), FileType::BlockDevice, mode(0o660), makedev(7, 300)).unwrap();
    mknodat(CWD, at("char"), FileType::CharacterDevice, mode(0o600), makedev(4095, 77)).unwrap();
    fs::set_permissions(at("text-10"), fs::Permissions::from_mode(0o4711)).unwrap();
    std::os::unix::fs::chown(at("text-4096"), Some(1000), Some(70_000)).unwrap();
    let none = XattrFlags::empty();
    for name in ["text-10", "many", "folder/noise"] {
        setxattr(at(name), "user.small", b"v", none).unwrap();
        setxattr(at(name), "user.empty", b"", none).unwrap();
        // A large value that several files share is stored out of line.
        setxattr(at(name), "user.large", &text(700), none).unwrap();
        setxattr(at(name), "trusted.bytes", b"\0\xff\n", none).unwrap();
        setxattr(at(name), "security.archfs", name.as_bytes(), none).unwrap();
    }
    for name in ["link", "fifo", "char", "socket"] {
        lsetxattr(at(name), "trusted.other", name.as_bytes(), none).unwrap();
    }
    root.to_owned()
}

/// A directory with an index, and few inodes.
fn make_wide(root: &Path) {
    fs::create_dir_all(root.join("wide")).unwrap();
    for number in 0..4 {
        fs::write(root.join(format!("file-{number}")), text(number * 3000)).unwrap();
    }
    for number in 0..160 {
        let file = root.join(format!("file-{}", number % 4));
        let name = format!("wide/{number:04}-{}", "w".repeat(120));
        fs::hard_link(file, root.join(name)).unwrap();
    }
}

/// Options of GNU tar for each format. The oldest two formats support less.
const TARS: [(&str, &[&str]); 5] = [
    ("gnu", &["--format=gnu", "--sparse"]),
    ("pax", &["--format=posix", "--sparse", "--xattrs", "--xattrs-include=*"]),
    ("pax-sparse", &["--format=posix", "--sparse", "--sparse-version=0.1"]),
    ("ustar", &["--format=ustar", "--exclude=n*nnn", "--exclude=link-long"]),
    (
        "v7",
        &["--format=v7", "--exclude=n*nnn", "--exclude=link-long", "--exclude=[cbf][hli][afo]*"],
    ),
];

/// Which tars are compressed, and how: some in several members, frames or blocks.
const PACKED: [(&str, &str, &str); 6] = [
    ("gnu", "gz", "gzip -n"),
    ("pax", "gz", "sh -c 'head -c 20000 | gzip -n; gzip -n'"),
    ("gnu", "bz2", "bzip2"),
    ("pax", "xz", "xz --block-size=16384"),
    ("gnu", "zst", "sh -c 'head -c 20000 | zstd -q; zstd -q'"),
    ("pax", "lz4", "lz4 -q -B4"),
];

/// Makes the tars in `directory`, and the contents of the compressed ones in `inner`.
pub(crate) fn make_tars(directory: &Path, inner: &Path, work: &Path) {
    let tree = make_tree(&work.join("tree"));
    // A tar has no sockets, and this many small files would only take time.
    fs::remove_file(tree.join("socket")).unwrap();
    for number in 8..30 {
        fs::remove_file(tree.join(format!("many/{number:03}"))).unwrap();
    }
    let mut number = 0;
    let mut destination = |name: String| {
        number += 1;
        directory.join(format!("{:02}-{name}", number - 1))
    };
    for (name, options) in TARS {
        let tar = inner.join(format!("{name}.tar"));
        let fixed = ["--sort=name", "--mtime=@1000000000", "--numeric-owner"];
        let pax = "--pax-option=delete=atime,delete=ctime,exthdr.name=%d/PaxHeaders/%f";
        let mut command = Command::new("tar");
        command.args(fixed).args(options).arg("-cf").arg(&tar);
        if options[0].ends_with("posix") {
            command.arg(pax);
        }
        run(command.arg("-C").arg(&tree).arg("."));
        fs::copy(&tar, destination(format!("{name}.tar"))).unwrap();
    }
    for (name, ending, packer) in PACKED {
        let tar = inner.join(format!("{name}.tar"));
        let script = format!("{packer} < \"$1\" > \"$2\"");
        let packed = destination(format!("{name}.tar.{ending}"));
        run(Command::new("sh").args(["-c", &script, "sh"]).arg(tar).arg(packed));
    }
}

/// Programs that make ZIP archives, and their arguments before the archive. Times are in UTC.
const ZIPS: [(&str, &[&str]); 6] = [
    ("info-zip", &["zip", "-q", "-r", "-y"]),
    ("info-zip-stored", &["zip", "-q", "-r", "-y", "-0"]),
    ("info-zip-bzip2", &["zip", "-q", "-r", "-y", "-Z", "bzip2"]),
    ("7-zip", &["7z", "a", "-bd", "-tzip", "-mm=Deflate"]),
    ("7-zip-lzma", &["7z", "a", "-bd", "-tzip", "-mm=LZMA"]),
    ("bsdtar", &["bsdtar", "--format=zip", "-cf"]),
];

/// Makes the ZIP archives in `directory`.
pub(crate) fn make_zips(directory: &Path, work: &Path) {
    let tree = work.join("tree");
    fs::create_dir_all(tree.join("folder/within")).unwrap();
    fs::create_dir_all(tree.join("many")).unwrap();
    for number in 0..12 {
        fs::write(tree.join(format!("many/{number:03}")), text(100 + number)).unwrap();
    }
    for size in [0, 10, 4095, 4096, 12_000] {
        fs::write(tree.join(format!("text-{size}")), text(size)).unwrap();
    }
    fs::write(tree.join("mixed"), mixed(18_000)).unwrap();
    fs::write(tree.join("folder/noise"), noise(7, 3000)).unwrap();
    fs::write(tree.join("folder/within/tail"), text(9000)).unwrap();
    symlink("folder/noise", tree.join("link")).unwrap();
    let touch = ["-c", "find . -exec touch -h -d @1000000000 {} +"];
    run(Command::new("sh").args(touch).current_dir(&tree));
    for (nth, (name, words)) in ZIPS.iter().enumerate() {
        let path = directory.join(format!("{nth:02}-{name}.zip"));
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(path).arg(".").env("TZ", "UTC");
        run(command.current_dir(&tree));
    }
}
