//! Packed tars, read by GNU tar, bsdtar, Python's tarfile and archfs.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::support::{run, skip_without_mounts, source, tree, work_directory};

/// The tree without sockets, which a tar cannot contain.
fn without_sockets(snapshot: &Snapshot) -> Snapshot {
    let is_socket = |mode: u32| mode & 0o170_000 == 0o140_000;
    let kept = snapshot.iter().filter(|(_, node)| !is_socket(node.mode));
    kept.map(|(path, node)| (path.clone(), node.clone())).collect()
}

#[test]
fn gnu_tar_bsdtar_and_archfs_show_the_source() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = source::varied();
    // The root is not a member.
    let mut expected = without_sockets(&take(&tree, Depth::Everything));
    expected.remove(&b""[..]);
    let archive = packed(work.path(), "a.tar", &tree, &[]);
    for (program, options) in [
        ("tar", &["--xattrs", "--xattrs-include=*", "--numeric-owner", "-S"][..]),
        ("bsdtar", &["--xattrs", "--numeric-owner"]),
    ] {
        let extracted = directory(work.path(), "extracted");
        run(Command::new(program)
            .args(options)
            .arg("-xpf")
            .arg(&archive)
            .arg("-C")
            .arg(&extracted));
        let mut found = take(&extracted, Depth::Everything);
        found.remove(&b""[..]);
        assert_same(program, &expected, &found);
    }
    let mut found = by_archfs(&archive, work.path());
    found.remove(&b""[..]);
    assert_same("archfs", &expected, &found);
    let listed = said(&["tar", "-tf", text(&archive)]);
    assert_eq!(listed.lines().count(), {
        // GNU tar escapes newlines.
        expected.len()
    });
}

#[test]
fn the_root_is_not_a_member_and_copies_the_first_source() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("a", b"a"), ("b", b"b")]);
    fs::set_permissions(&tree, Permissions::from_mode(0o700)).unwrap();
    for (path, user) in [(&tree, 1), (&tree.join("a"), 2), (&tree.join("b"), 3)] {
        chown(path, Some(user), Some(user + 10)).unwrap();
    }
    let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::options().write(true).open(tree.join("a")).unwrap().set_modified(time).unwrap();
    let archive = packed(work.path(), "a.tar", &tree, &[]);
    assert_eq!(said(&["tar", "-tf", text(&archive)]), "a\nb\n");
    let found = by_archfs(&archive, work.path());
    let root = &found[&b""[..]];
    assert_eq!((root.mode & 0o7777, root.uid, root.gid), (0o755, 2, 12));
    assert_eq!(root.seconds, 1_000_000_000);
}

#[test]
fn pythons_tarfile_reads_the_same_names_times_and_bytes() {
    let work = work_directory();
    let archive = packed(work.path(), "a.tar", &source::varied(), &[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/tar_tree.py");
    let lines = said(&["python3", text(&script), text(&archive)]);
    let found = tree::lines(tree::open_one(&archive).as_ref());
    let by_python = lines.lines().count();
    assert!(by_python > 3000, "{by_python} lines");
    for line in lines.lines().filter(|line| !line.starts_with("/ ")) {
        let (path, rest) = line.split_once(' ').unwrap();
        let path: Vec<u8> = (0..path.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&path[at..at + 2], 16).unwrap())
            .collect();
        assert_eq!(found.get(&path).map(String::as_str), Some(rest), "{}", path.escape_ascii());
    }
}

#[test]
fn the_same_source_gives_the_same_bytes() {
    let work = work_directory();
    let tree = source::varied();
    let first = packed(work.path(), "1.tar", &tree, &["--threads", "1"]);
    let other = packed(work.path(), "2.tar", &tree, &["--threads", "7"]);
    assert_eq!(sum(&first), sum(&other));
}

#[test]
fn a_sparse_file_of_5_gib_takes_only_its_data_if_that_is_asked_for() {
    let work = work_directory();
    let archive = packed(work.path(), "a.tar", &source::large(), &["--sparse"]);
    let size = fs::metadata(&archive).unwrap().len();
    // A header of 512 bytes for each of 100,000 names, and a second one for some.
    assert!(size < 200 << 20, "{size} bytes");
    let listed = said(&["tar", "-tvf", text(&archive), "sparse-5g"]);
    assert!(listed.contains(" 5368709120 "), "{listed}");
}

/// 7-Zip and busybox do not know the sparse format of pax, and extract another file without an
/// error.
#[test]
fn holes_are_zeros_that_every_program_reads() {
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir(&source).unwrap();
    let file = File::create(source.join("holes")).unwrap();
    file.set_len(3 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"data", 1 << 20).unwrap();
    let archive = packed(work.path(), "a.tar", &source, &[]);
    let bytes = fs::read(&archive).unwrap();
    assert!(!bytes.windows(10).any(|part| part == b"GNU.sparse"));
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    assert!(size(&archive) > 3 << 20);
    let small = packed(work.path(), "b.tar", &source, &["--sparse"]);
    assert!(size(&small) < 1 << 20);
    for archive in [&archive, &small] {
        let out = work.path().join("out");
        fs::create_dir(&out).unwrap();
        run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&out));
        assert_eq!(fs::read(out.join("holes")).unwrap(), fs::read(source.join("holes")).unwrap());
        fs::remove_dir_all(&out).unwrap();
    }
}
