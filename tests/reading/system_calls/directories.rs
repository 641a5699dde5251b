//! Directory listings and lookups.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Dir, DirEntry, FileType};

use super::{requests, with_each_format, with_mount};

/// All entries of a directory, in the order of getdents(2).
fn listed(directory: &Path) -> Vec<DirEntry> {
    Dir::read_from(File::open(directory).unwrap()).unwrap().map(|entry| entry.unwrap()).collect()
}

/// Checks that `directory` of the mount lists the entries of `tree` as promised.
fn assert_listed(mount: &Path, tree: &Path, directory: &str) {
    let listed = listed(&mount.join(directory));
    let names: Vec<&[u8]> = listed.iter().map(|entry| entry.file_name().to_bytes()).collect();
    assert_eq!(names[..2], [&b"."[..], b".."]);
    assert!(names[2..].is_sorted_by(|one, next| one < next), "{directory}: {names:?}");
    let expected: BTreeSet<Vec<u8>> = fs::read_dir(tree.join(directory))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .collect();
    assert_eq!(names[2..].iter().map(|name| name.to_vec()).collect::<BTreeSet<_>>(), expected);
    for entry in &listed {
        let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
        let found = fs::symlink_metadata(tree.join(directory).join(name)).unwrap();
        assert_eq!(entry.file_type(), FileType::from_raw_mode(found.mode()), "{name:?}");
    }
}

/// > **readdir** lists every name once, with its type, in byte order, after `.` and `..`.
#[test]
fn names_are_listed_once_with_their_types_sorted_by_bytes() {
    with_mount(|mount, tree| {
        for directory in ["", "many", "deep", "empty"] {
            assert_listed(mount, tree, directory);
        }
    });
    with_each_format(|_, mount, tree| {
        for directory in ["", "folder", "folder/below"] {
            assert_listed(mount, tree, directory);
        }
    });
}

/// > `telldir` positions stay valid, even after `rewinddir` and in another descriptor.
#[test]
fn telldir_positions_stay_valid() {
    with_mount(|mount, _| {
        let open = || Dir::read_from(File::open(mount.join("many")).unwrap()).unwrap();
        let mut directory = open();
        let mut names = Vec::new();
        let mut mount_points = Vec::new();
        while let Some(entry) = directory.read() {
            let entry = entry.unwrap();
            names.push(entry.file_name().to_owned());
            mount_points.push(entry.offset());
        }
        assert_eq!(names.len(), 3003, "3001 names and two dots");
        assert_eq!(&names[..2], [c".".to_owned(), c"..".to_owned()]);
        let check = |directory: &mut Dir, what: &str| {
            for nth in [0, 1, 2, 3, 255, 256, 257, 258, 1500, 3001] {
                directory.seek(mount_points[nth]).unwrap();
                let next = directory.read().unwrap().unwrap();
                assert_eq!(next.file_name(), &*names[nth + 1], "{what}: after {nth}");
            }
        };
        check(&mut directory, "as it was read");
        directory.rewind();
        assert_eq!(directory.read().unwrap().unwrap().file_name(), c".");
        check(&mut directory, "after rewinddir");
        check(&mut open(), "in another descriptor");
    });
}

/// > The inode number listed for `..` is 0xffffffff except in the root; stat returns the right one.
#[test]
fn the_parent_inode_number_is_right_in_stat_and_fixed_in_listings() {
    with_mount(|mount, _| {
        let number = |directory: &str, name: &CStr| {
            let entries = listed(&mount.join(directory));
            entries.into_iter().find(|entry| entry.file_name() == name).unwrap().ino()
        };
        let by_stat = |path: &str| fs::metadata(mount.join(path)).unwrap().ino();
        for (directory, above) in [("many", ""), ("deep/deep", "deep")] {
            assert_eq!(number(directory, c".."), 0xffff_ffff);
            assert_eq!(number(directory, c"."), by_stat(directory));
            assert_eq!(by_stat(&format!("{directory}/..")), by_stat(above));
        }
        assert_eq!(number("", c".."), by_stat(""));
        assert_eq!(number("", c"."), by_stat(""));
    });
}

/// > The kernel also caches that a name does not exist.
#[test]
fn a_missing_name_is_looked_up_once() {
    with_mount(|mount, _| {
        let missing = |name: &str| {
            assert_eq!(fs::metadata(mount.join(name)).unwrap_err().kind(), ErrorKind::NotFound);
        };
        let before = requests(mount, "lookup");
        missing("nothing");
        assert_eq!(requests(mount, "lookup"), before + 1);
        (0..50).for_each(|_| missing("nothing"));
        assert_eq!(requests(mount, "lookup"), before + 1);
        missing("nothing else");
        assert_eq!(requests(mount, "lookup"), before + 2);
    });
}

#[test]
fn impossible_names_give_their_own_errors() {
    with_mount(|mount, _| {
        let long = "n".repeat(256);
        let error = fs::metadata(mount.join(long)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
        let error = fs::metadata(mount.join("text-10/x")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotADirectory);
    });
}
