//! What docs/SEMANTICS.md promises of each system call, shown on a mount.
//!
//! Owns the promises that a comparison of trees does not see.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Dir, SeekFrom, XattrFlags, seek};
use rustix::io::Errno;

mod support;

use support::mount::Mounted;
use support::{can_mount, image, source, work_folder};

/// A mount of the varied tree in an image with small blocks, and that tree.
fn with_mount(test: impl Fn(&Path, &Path)) {
    if !can_mount() {
        return;
    }
    let tree = source::varied();
    let work = work_folder();
    let image = image::make(work.path(), "image.sqfs", &tree, &["-comp", "zstd", "-b", "16K"]);
    let mounted = Mounted::archfs(&image, &work.path().join("mount"), &[]);
    test(mounted.path(), &tree);
}

#[test]
fn any_range_read_is_the_range_of_the_source() {
    with_mount(|mount, tree| {
        for name in ["text-2560000", "noise-2560000", "sparse", "twin", "text-8192"] {
            let [ours, theirs] = [mount, tree].map(|root| File::open(root.join(name)).unwrap());
            let len = theirs.metadata().unwrap().len();
            let random = source::noise(7, 16 * 200);
            for pair in random.chunks(16) {
                let number = |at: usize| u64::from_le_bytes(pair[at..at + 8].try_into().unwrap());
                let (offset, size) = (number(0) % (len + 10), number(8) % 300_000);
                let mut buffers = [vec![0; size as usize], vec![0; size as usize]];
                let [a, b] = &mut buffers;
                let counts = [ours.read_at(a, offset).unwrap(), theirs.read_at(b, offset).unwrap()];
                assert_eq!(counts[0], counts[1], "{name} {offset} {size}");
                assert!(a == b, "{name} {offset} {size}");
            }
        }
    });
}

#[test]
fn direct_io_and_mmap_give_the_same_bytes() {
    with_mount(|mount, tree| {
        let name = "text-2560000";
        let expected = fs::read(tree.join(name)).unwrap();
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT);
        let mut read = Vec::new();
        options.open(mount.join(name)).unwrap().read_to_end(&mut read).unwrap();
        assert!(read == expected, "O_DIRECT");
        let script = "import mmap,sys,hashlib\n\
            f=open(sys.argv[1],'rb')\n\
            m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ)\n\
            print(hashlib.md5(m[:]).hexdigest(), hashlib.md5(open(sys.argv[2],'rb').read()).hexdigest())";
        let mut python = std::process::Command::new("python3");
        python.arg("-c").arg(script).arg(mount.join(name)).arg(tree.join(name));
        let output = String::from_utf8(support::run(&mut python).stdout).unwrap();
        let (a, b) = output.trim().split_once(' ').unwrap();
        assert_eq!(a, b, "mmap");
    });
}

#[test]
fn every_change_is_refused_as_on_a_read_only_file_system() {
    with_mount(|mount, _| {
        let file = mount.join("text-10");
        let refused = |what: &str, result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem, "{what}");
        };
        refused("write", OpenOptions::new().write(true).open(&file).map(|_| ()));
        refused("create", File::create(mount.join("new")).map(|_| ()));
        refused("mkdir", fs::create_dir(mount.join("new")));
        refused("unlink", fs::remove_file(&file));
        refused("rmdir", fs::remove_dir(mount.join("empty")));
        refused("rename", fs::rename(&file, mount.join("new")));
        refused("link", fs::hard_link(&file, mount.join("new")));
        refused("symlink", std::os::unix::fs::symlink("a", mount.join("new")));
        refused("chmod", fs::set_permissions(&file, fs::metadata(&file).unwrap().permissions()));
        refused("chown", std::os::unix::fs::chown(&file, Some(1), None));
        let set = rustix::fs::setxattr(&file, "user.new", b"x", XattrFlags::empty());
        assert_eq!(set, Err(Errno::ROFS));
    });
}

#[test]
fn inode_numbers_are_unique_and_the_same_at_the_next_mount() {
    if !can_mount() {
        return;
    }
    let work = work_folder();
    let tree = source::varied();
    let image = image::make(work.path(), "image.sqfs", &tree, &["-comp", "zstd"]);
    let numbers = || -> BTreeMap<_, _> {
        let mounted = Mounted::archfs(&image, &work.path().join("mount"), &[]);
        let folder = mounted.path().join("many");
        let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
        entries
            .map(|entry| {
                use std::os::unix::fs::DirEntryExt;
                assert_eq!(entry.ino(), entry.metadata().unwrap().ino());
                (entry.file_name(), entry.ino())
            })
            .collect()
    };
    let first = numbers();
    assert_eq!(first.values().collect::<BTreeSet<_>>().len(), first.len());
    assert_eq!(first, numbers());
}

#[test]
fn a_listing_goes_on_from_any_place_told_before() {
    with_mount(|mount, _| {
        let mut folder = Dir::read_from(File::open(mount.join("many")).unwrap()).unwrap();
        let mut names = Vec::new();
        let mut places = Vec::new();
        while let Some(entry) = folder.read() {
            let entry = entry.unwrap();
            names.push(entry.file_name().to_owned());
            places.push(entry.offset());
        }
        assert_eq!(names.len(), 3003, "3001 names and two dots");
        assert_eq!(&names[..2], [c".".to_owned(), c"..".to_owned()]);
        for nth in [0, 1, 2, 3, 255, 256, 257, 258, 1500, 3001] {
            folder.seek(places[nth]).unwrap();
            let next = folder.read().unwrap().unwrap();
            assert_eq!(next.file_name(), &*names[nth + 1], "after {nth}");
        }
        folder.rewind();
        assert_eq!(folder.read().unwrap().unwrap().file_name(), c".");
    });
}

#[test]
fn stat_shows_what_readers_want() {
    with_mount(|mount, tree| {
        let found = fs::metadata(mount.join("text-2560000")).unwrap();
        assert!(found.blksize() >= 128 << 10, "{}", found.blksize());
        assert_eq!(fs::metadata(mount).unwrap().ino(), 1);
        let sparse = fs::metadata(mount.join("sparse")).unwrap();
        assert!(sparse.blocks() * 512 < 1 << 20, "holes take no blocks");
        let whole = rustix::fs::statvfs(mount).unwrap();
        assert!(whole.f_blocks > 0 && whole.f_bfree == 0 && whole.f_namemax == 255);
        let inodes = fs::read_dir(tree.join("many")).unwrap().count() as u64;
        assert!(whole.f_files > inodes);
    });
}

#[test]
fn holes_are_found_and_the_end_is_one() {
    with_mount(|mount, _| {
        let file = File::open(mount.join("sparse")).unwrap();
        let end = file.metadata().unwrap().len();
        let first = seek(&file, SeekFrom::Data(0)).unwrap();
        assert!(first <= 5_000_000 && first > 4_900_000, "{first}");
        assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0));
        assert_eq!(seek(&file, SeekFrom::Data(25_000_000)), Err(Errno::NXIO));
        assert_eq!(seek(&file, SeekFrom::Hole(end)), Err(Errno::NXIO));
        let full = File::open(mount.join("noise-2560000")).unwrap();
        assert_eq!(seek(&full, SeekFrom::Data(12_345)), Ok(12_345));
        assert_eq!(seek(&full, SeekFrom::Hole(12_345)), Ok(2_560_000));
    });
}

#[test]
fn names_that_are_not_there_are_not_found() {
    with_mount(|mount, _| {
        let long = "n".repeat(256);
        assert_eq!(fs::metadata(mount.join("nothing")).unwrap_err().kind(), ErrorKind::NotFound);
        let error = fs::metadata(mount.join(long)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
        let error = fs::metadata(mount.join("text-10/x")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotADirectory);
    });
}

#[test]
fn a_file_is_no_terminal_and_an_attribute_too_large_for_its_buffer_says_so() {
    with_mount(|mount, _| {
        let file = File::open(mount.join("text-10")).unwrap();
        assert!(!std::io::IsTerminal::is_terminal(&file));
        let mut small = [0; 10];
        let large = rustix::fs::getxattr(mount.join("text-10"), "user.large", &mut small[..]);
        assert_eq!(large, Err(Errno::RANGE));
        let missing = rustix::fs::getxattr(mount.join("text-10"), "user.none", &mut small[..]);
        assert_eq!(missing, Err(Errno::NODATA));
        let nothing = rustix::fs::listxattr(mount.join("noise-10"), &mut small[..]);
        assert_eq!(nothing, Ok(0));
    });
}

#[test]
fn device_nodes_and_set_uid_bits_are_inert() {
    with_mount(|mount, _| {
        let error = File::open(mount.join("char")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(mount.to_str().unwrap())).unwrap();
        assert!(line.contains("ro,nosuid,nodev"), "{line}");
    });
}
