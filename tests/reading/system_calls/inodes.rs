//! What stat, links, devices and extended attributes show.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirEntryExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{Access, XattrFlags, getxattr, lgetxattr, listxattr, setxattr};
use rustix::io::Errno;

use super::{Format, archives, small_tree, with_each_format, with_mount};
use crate::support::mount::Mounted;
use crate::support::skip::skip_part;
use crate::support::{archfs, image, run, skip_without_mounts, source, work_directory};

/// > **stat**: `st_size`, mode, owner, link count, device number and mtime are those in the
/// > archive. SquashFS stores mtime as unsigned 32-bit seconds since 1970; pax tars also store the
/// > fraction. atime and ctime equal mtime.
///
/// > A directory of a tar has a link count of 1.
#[test]
fn stat_shows_the_packed_metadata_and_one_timestamp() {
    let check = |mount: &Path, tree: &Path, name: &str, has_fraction: bool| {
        let [found, packed] =
            [mount, tree].map(|root| fs::symlink_metadata(root.join(name)).unwrap());
        let of_all = |it: &Metadata| (it.mode(), it.uid(), it.gid(), it.rdev(), it.mtime());
        assert_eq!(of_all(&found), of_all(&packed), "{name}");
        if !packed.is_dir() {
            assert_eq!((found.len(), found.nlink()), (packed.len(), packed.nlink()), "{name}");
        }
        let fraction = if has_fraction { packed.mtime_nsec() } else { 0 };
        let time = (packed.mtime(), fraction);
        assert_eq!((found.mtime(), found.mtime_nsec()), time, "{name}: mtime");
        assert_eq!((found.atime(), found.atime_nsec()), time, "{name}: atime");
        assert_eq!((found.ctime(), found.ctime_nsec()), time, "{name}: ctime");
    };
    with_each_format(|format, mount, tree| {
        assert_eq!(fs::metadata(tree.join("folder/a")).unwrap().mtime_nsec(), 123_456_789);
        let links = fs::metadata(mount.join("folder")).unwrap().nlink();
        assert_eq!(links, if format == Format::Tar { 1 } else { 3 });
        for name in ["a", "b", "hard", "link", "fifo", "block", "below", ""] {
            check(mount, tree, &format!("folder/{name}"), format == Format::Tar);
        }
    });
    with_mount(|mount, tree| {
        // The last second of 32 unsigned bits, and the first that would be negative if signed.
        for (name, second) in [("text-1", 4_294_967_295), ("fifo", 2_147_483_648)] {
            check(mount, tree, name, false);
            assert_eq!(fs::metadata(mount.join(name)).unwrap().mtime(), second, "{name}");
        }
        for name in ["text-10", "noise-8192", "link-long", "char", "socket", "text-0"] {
            check(mount, tree, name, false);
        }
    });
}

/// > `st_blocks` does not count holes.
#[test]
fn stat_and_statvfs_count_blocks_and_inodes() {
    with_mount(|mount, tree| {
        assert_eq!(fs::metadata(mount).unwrap().ino(), 1);
        let sparse = fs::metadata(mount.join("sparse")).unwrap();
        assert!(sparse.blocks() * 512 < 1 << 20, "holes take no blocks");
        let full = fs::metadata(mount.join("noise-2560000")).unwrap();
        assert_eq!(full.blocks() * 512, 2_560_000);
        let whole = rustix::fs::statvfs(mount).unwrap();
        assert!(whole.f_blocks > 0 && whole.f_bfree == 0 && whole.f_namemax == 255);
        let inodes = fs::read_dir(tree.join("many")).unwrap().count() as u64;
        assert!(whole.f_files > inodes);
    });
}

/// > `st_blksize` is 256 KiB for a tar, and for an image its block size, but at least 128 KiB.
/// > Python therefore reads a whole JPEG at once.
#[test]
fn the_block_size_lets_python_read_a_jpeg_at_once() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = work.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("picture"), source::noise(1, 100_000)).unwrap();
    let [(_, usual), (_, tar)] = archives(work.path(), &tree);
    let of_blocks = |size: &str| image::make(work.path(), size, &tree, &["-b", size]);
    for (archive, unit) in [
        (usual, 128 << 10),
        (of_blocks("16K"), 128 << 10),
        (of_blocks("512K"), 512 << 10),
        (of_blocks("1M"), 1 << 20),
        (tar, 256 << 10),
    ] {
        let mounted = Mounted::archfs(&archive, &work.path().join("mount"), &[]);
        let picture = mounted.path().join("picture");
        assert_eq!(fs::metadata(&picture).unwrap().blksize(), unit, "{}", archive.display());
        // Like a library that reads the first bytes to detect the type.
        let script = "import os, sys\nit = open(sys.argv[1], 'rb')\nit.read(10)\n\
                      print(os.lseek(it.fileno(), 0, os.SEEK_CUR))";
        let output = run(Command::new("python3").arg("-c").arg(script).arg(picture));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "100000\n", "{}", archive.display());
    }
}

#[test]
fn inode_numbers_are_unique_and_the_same_at_the_next_mount() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = source::varied();
    let image = image::make(work.path(), "image.sqfs", &tree, &["-comp", "zstd"]);
    let numbers = || -> BTreeMap<_, _> {
        let mounted = Mounted::archfs(&image, &work.path().join("mount"), &[]);
        let directory = mounted.path().join("many");
        let entries = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap());
        entries
            .map(|entry| {
                assert_eq!(entry.ino(), entry.metadata().unwrap().ino());
                (entry.file_name(), entry.ino())
            })
            .collect()
    };
    let first = numbers();
    assert_eq!(first.values().collect::<BTreeSet<_>>().len(), first.len());
    assert_eq!(first, numbers());
}

/// > `st_ino` is the same for all hard links of a file, and the same at every mount of the same
/// > archive.
#[test]
fn hard_links_have_one_inode_number_at_every_mount() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = small_tree(work.path());
    for (format, archive) in archives(work.path(), &tree) {
        let numbers = || {
            let mounted = Mounted::archfs(&archive, &work.path().join("mount"), &[]);
            let names = ["folder/hard", "folder/a", "folder/b", "folder/link", "folder"];
            names.map(|name| fs::symlink_metadata(mounted.path().join(name)).unwrap().ino())
        };
        let first = numbers();
        assert_eq!(first[0], first[1], "{format:?}");
        assert_eq!(first[1..].iter().collect::<BTreeSet<_>>().len(), 4, "{format:?}: {first:?}");
        assert_eq!(first, numbers(), "{format:?}");
    }
}

/// > **Symbolic links** hold the bytes they were packed with, and the kernel resolves them. An
/// > absolute link leads out of the mount, as on any file system.
#[test]
fn symlinks_keep_their_bytes_and_absolute_ones_leave_the_mount() {
    with_mount(|mount, tree| {
        for name in ["link-long", "link-bytes", "link-absolute", "link-folder"] {
            let [found, packed] = [mount, tree].map(|root| fs::read_link(root.join(name)).unwrap());
            assert_eq!(found, packed, "{name}");
        }
        let outside = fs::read("/etc/passwd").unwrap();
        assert_eq!(fs::read(mount.join("link-absolute")).unwrap(), outside);
        assert!(mount.join("link-folder/hard").is_file());
    });
}

/// > **Devices, fifos, sockets** are shown. The mount is `nodev` and `nosuid`, so device nodes
/// > cannot be opened and set-uid bits have no effect.
#[test]
fn device_nodes_and_set_uid_bits_are_inert() {
    with_mount(|mount, tree| {
        let kind = |name: &str| fs::symlink_metadata(mount.join(name)).unwrap().file_type();
        assert!(kind("char").is_char_device() && kind("block").is_block_device());
        assert!(kind("fifo").is_fifo() && kind("socket").is_socket());
        for name in ["char", "block"] {
            let [found, packed] =
                [mount, tree].map(|root| fs::symlink_metadata(root.join(name)).unwrap().rdev());
            assert_eq!(found, packed, "{name}");
            let error = File::open(mount.join(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{name}");
        }
        assert_eq!(fs::metadata(mount.join("text-1")).unwrap().mode() & 0o7777, 0o4755);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(mount.to_str().unwrap())).unwrap();
        assert!(line.contains("ro,nosuid,nodev"), "{line}");
    });
}

/// > **Extended attributes** `user.*`, `trusted.*` and `security.*` are shown as packed; setting
/// > one fails with EROFS.
#[test]
fn attributes_are_shown_as_packed_and_cannot_be_set() {
    with_mount(|mount, tree| {
        for (file, name) in [
            ("text-10", "user.small"),
            ("text-10", "user.empty"),
            ("noise-8192", "user.large"),
            ("many", "trusted.bytes"),
            ("empty", "security.archfs"),
            ("link-folder", "trusted.other"),
        ] {
            let value = |root: &Path| {
                let mut value = vec![0; 1 << 16];
                let len = lgetxattr(root.join(file), name, &mut value[..]).unwrap();
                value.truncate(len);
                value
            };
            assert_eq!(value(mount), value(tree), "{file}: {name}");
        }
        for name in ["user.small", "user.new", "trusted.bytes", "security.archfs"] {
            let set = setxattr(mount.join("text-10"), name, b"x", XattrFlags::empty());
            assert_eq!(set, Err(Errno::ROFS), "{name}");
        }
    });
}

/// > If an archive has none, listing and reading them fails with EOPNOTSUPP.
#[test]
fn an_archive_without_attributes_supports_none() {
    with_each_format(|format, mount, _| {
        let mut value = [0; 100];
        // In any order, and again.
        for file in ["folder/a", "folder/b", "folder/a"] {
            let path = mount.join(file);
            let listed = listxattr(&path, &mut value[..]);
            assert_eq!(listed, Err(Errno::OPNOTSUPP), "{format:?}");
            for name in ["user.any", "security.any"] {
                let read = getxattr(&path, name, &mut value[..]);
                assert_eq!(read, Err(Errno::OPNOTSUPP), "{format:?}: {name}");
            }
        }
    });
}

/// A tar with one file, which Python's tarfile gives these pax records.
const TAR_OF_MACOS: &str = "import sys, tarfile
member = tarfile.TarInfo('file')
member.pax_headers = {'SCHILY.xattr.com.apple.quarantine': 'q', 'SCHILY.xattr.user.kept': 'u',
                      'LIBARCHIVE.xattr.com.apple.provenance': 'AQI', 'SCHILY.xattr.system.nfs4_acl': 'a'}
tarfile.open(sys.argv[1], 'w').addfile(member)";

/// > Names that Linux does not know, such as `com.apple.quarantine` in a tar of macOS, are hidden:
/// > reading one fails with EOPNOTSUPP.
#[test]
fn attributes_that_linux_does_not_know_are_hidden() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archive = work.path().join("macos.tar");
    run(Command::new("python3").args(["-c", TAR_OF_MACOS]).arg(&archive));
    let mounted = Mounted::archfs(&archive, &work.path().join("mount"), &[]);
    let file = mounted.path().join("file");
    let mut buffer = [0; 100];
    let listed = listxattr(&file, &mut buffer[..]).unwrap();
    assert_eq!(&buffer[..listed], b"user.kept\0");
    assert_eq!(getxattr(&file, "user.kept", &mut buffer[..]), Ok(1));
    for name in ["com.apple.quarantine", "com.apple.provenance", "system.nfs4_acl"] {
        assert_eq!(getxattr(&file, name, &mut buffer[..]), Err(Errno::OPNOTSUPP), "{name}");
    }
    // Programs that copy attributes fail on a name that they cannot set.
    run(Command::new("cp").arg("--preserve=xattr").arg(&file).arg(work.path().join("copied")));
    run(Command::new("rsync").arg("-X").arg(&file).arg(work.path().join("synced")));
    let extracted = run(archfs().arg("extract").arg(&archive).arg(work.path().join("out")));
    let stderr = String::from_utf8(extracted.stderr).unwrap();
    assert!(!stderr.contains("extended attributes"), "{stderr}");
    for copy in ["copied", "synced", "out/file"] {
        let listed = listxattr(work.path().join(copy), &mut buffer[..]).unwrap();
        assert_eq!(&buffer[..listed], b"user.kept\0", "{copy}");
    }
}

#[test]
fn a_large_or_missing_attribute_gives_its_error() {
    with_mount(|mount, _| {
        let mut small = [0; 10];
        let large = getxattr(mount.join("text-10"), "user.large", &mut small[..]);
        assert_eq!(large, Err(Errno::RANGE));
        let missing = getxattr(mount.join("text-10"), "user.none", &mut small[..]);
        assert_eq!(missing, Err(Errno::NODATA));
        let nothing = listxattr(mount.join("noise-10"), &mut small[..]);
        assert_eq!(nothing, Ok(0));
    });
}

/// A mount of a tree with these files, which `prepare` changes.
fn with_files(options: &[&str], prepare: impl Fn(&Path), test: impl Fn(&Path)) {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = work.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::set_permissions(work.path(), Permissions::from_mode(0o755)).unwrap();
    prepare(&tree);
    let image = image::make(work.path(), "data.sqfs", &tree, &[]);
    let mounted = Mounted::archfs(&image, &work.path().join("mount"), options);
    test(mounted.path());
}

/// > **access** with X_OK fails with EACCES for a file without any execute bit, even for the user
/// > who mounted it.
#[test]
fn x_ok_needs_an_execute_bit() {
    for options in [&[][..], &["-oallow_other"]] {
        let prepare = |tree: &Path| {
            fs::create_dir(tree.join("folder")).unwrap();
            for (name, mode) in [("data", 0o644), ("tool", 0o755), ("group", 0o650)] {
                fs::write(tree.join(name), name).unwrap();
                fs::set_permissions(tree.join(name), Permissions::from_mode(mode)).unwrap();
            }
        };
        with_files(options, prepare, |mount| {
            let access = |name: &str, kind: Access| rustix::fs::access(mount.join(name), kind);
            for name in ["data", "tool", "group", "folder"] {
                let expected = if name == "data" { Err(Errno::ACCESS) } else { Ok(()) };
                assert_eq!(access(name, Access::EXEC_OK), expected, "{name} {options:?}");
                let both = access(name, Access::READ_OK | Access::EXEC_OK);
                assert_eq!(both, expected, "{name} {options:?}");
                assert_eq!(access(name, Access::READ_OK), Ok(()), "{name} {options:?}");
                assert_eq!(access(name, Access::EXISTS), Ok(()), "{name} {options:?}");
                assert_eq!(access(name, Access::WRITE_OK), Err(Errno::ROFS), "{name}");
            }
            run(Command::new("sh").arg("-c").arg("cd folder").current_dir(mount));
        });
    }
}

/// > The names of `trusted.*` are listed only to processes that can read them, which requires
/// > CAP_SYS_ADMIN.
#[test]
fn trusted_attributes_are_listed_only_to_processes_that_can_read_them() {
    let prepare = |tree: &Path| {
        let file = tree.join("file");
        fs::write(&file, "data").unwrap();
        for name in ["user.a", "trusted.b", "user.c"] {
            setxattr(&file, name, b"value", XattrFlags::empty()).unwrap();
        }
    };
    with_files(&["-oallow_other"], prepare, |mount| {
        let file = mount.join("file");
        // Only the names, or with the values, each of which is read.
        let listed_by = |words: &[&str], how: &str| {
            let mut command = Command::new("setpriv");
            command.args(words).args(["getfattr", "--absolute-names", how, "--match=-"]).arg(&file);
            let text = String::from_utf8(run(&mut command).stdout).unwrap();
            let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            let names = lines.map(|line| line.split('=').next().unwrap().to_owned());
            names.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        let own = ["user.a", "user.c"];
        for how in ["--no-dereference", "--dump"] {
            assert_eq!(listed_by(&[], how), ["trusted.b", "user.a", "user.c"]);
            assert_eq!(listed_by(&["--reuid=65534", "--clear-groups"], how), own);
            assert_eq!(listed_by(&["--bounding-set=-sys_admin"], how), own, "root without it");
        }
    });
}

/// > It fits in 32 bits if the archives have fewer than 2^32 inodes. In an image it is the number
/// > that the image stores, with 1 for the root.
#[test]
fn inode_numbers_fit_32_bits_and_match_the_kernel() {
    if skip_without_mounts() {
        return;
    }
    let tree = source::varied();
    let work = work_directory();
    // The inode table exceeds 64 KiB, so references into it need more than 32 bits.
    let with_table = |name: &str, options: &[&str]| {
        image::make(work.path(), name, &tree, &[&["-comp", "zstd", "-noI"], options].concat())
    };
    let (exported, plain) = (with_table("a.sqfs", &[]), with_table("b.sqfs", &["-no-exports"]));
    let mount_point = work.path().join("mount");
    // The inode number of each name, from stat and from the listing.
    let numbers = |mount: &Path| {
        let mut found = BTreeMap::new();
        let mut waiting = vec![mount.to_owned()];
        while let Some(directory) = waiting.pop() {
            for entry in fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap()) {
                let metadata = entry.metadata().unwrap();
                assert_eq!(entry.ino(), metadata.ino());
                if metadata.is_dir() {
                    waiting.push(entry.path());
                }
                let name = entry.path().strip_prefix(mount).unwrap().to_owned();
                found.insert(name, (metadata.ino(), metadata.nlink(), metadata.is_dir()));
            }
        }
        found
    };
    let check = |archives: &[&Path]| {
        let archives: Vec<_> = archives.iter().map(|it| it.to_path_buf()).collect();
        let mounted = Mounted::several(&[], &archives, &mount_point, &[]);
        let found = numbers(mounted.path());
        assert_eq!(fs::metadata(&mount_point).unwrap().ino(), 1);
        assert!(found.len() > 3000 && found.values().all(|it| it.0 > 1 && it.0 >> 32 == 0));
        let alone = found.values().filter(|it| it.1 == 1 || it.2).count();
        let own: BTreeSet<_> =
            found.values().filter(|it| it.1 == 1 || it.2).map(|it| it.0).collect();
        assert_eq!(own.len(), alone, "each has a number of its own");
        found
    };
    let found = check(&[&exported]);
    let kernel_mount_point = work.path().join("kernel");
    match Mounted::kernel(&exported, &kernel_mount_point) {
        Ok(kernel) => {
            let root = fs::metadata(kernel.path()).unwrap().ino();
            for (name, (expected, ..)) in numbers(kernel.path()) {
                let expected = if expected == 1 { root } else { expected };
                assert_eq!(found[&name].0, expected, "{}", name.display());
            }
        }
        Err(error) => {
            assert!(
                std::env::var_os("CI").is_none(),
                "CI must have the kernel's SquashFS: {error}"
            );
            skip_part(&format!("no SquashFS in this kernel: {error}"));
        }
    }
    check(&[&plain]);
    let small = work.path().join("small");
    fs::create_dir_all(small.join("many")).unwrap();
    fs::write(small.join("many/other"), "x").unwrap();
    let [_, (_, tar)] = archives(work.path(), &small);
    let of_all = check(&[&exported, &tar, &plain]);
    assert_eq!(of_all.len(), found.len() + 1, "each of two archives has the other names");
}
