//! open, read, seek and locks.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;

use rustix::fs::{FlockOperation, SeekFrom, XattrFlags, fcntl_lock, flock, seek, sendfile};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};
use rustix::termios::tcgetattr;

use super::{BLOCK, requests, with_mount};
use crate::support::mount::{CleanUp, Mounted};
use crate::support::stage::Talker;
use crate::support::{archfs, image, run, skip_without_mounts, source, wait_until, work_directory};

/// > **open** reaches archfs only once: the kernel remembers that later opens need no request.
#[test]
fn only_the_first_open_sends_a_request() {
    with_mount(|mount, tree| {
        // Other requests are counted together with OPEN.
        let other = || requests(mount, "other");
        for name in ["text-10", "many"] {
            File::open(mount.join(name)).unwrap();
        }
        // The requests that the statistics themselves cost.
        let before = [other(), other()];
        let names = fs::read_dir(tree.join("many")).unwrap().map(|it| it.unwrap().file_name());
        for name in names.take(300) {
            File::open(mount.join("many").join(name)).unwrap();
        }
        for name in ["many", "empty", "deep", "deep/deep"] {
            File::open(mount.join(name)).unwrap();
        }
        assert_eq!(other() - before[1], before[1] - before[0]);
    });
}

/// > **read, pread, mmap, sendfile, O_DIRECT** return the bytes that were packed.
#[test]
fn every_range_read_matches_the_source() {
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

/// > **read, pread, mmap, sendfile, O_DIRECT** return the bytes that were packed.
#[test]
fn every_way_to_read_gives_the_same_bytes() {
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
        let mut python = Command::new("python3");
        python.arg("-c").arg(script).arg(mount.join(name)).arg(tree.join(name));
        let output = String::from_utf8(run(&mut python).stdout).unwrap();
        let (a, b) = output.trim().split_once(' ').unwrap();
        assert_eq!(a, b, "mmap");
        let file = File::open(mount.join(name)).unwrap();
        let sent = tempfile::tempfile().unwrap();
        while sendfile(&sent, &file, None, expected.len()).unwrap() > 0 {}
        let mut read = vec![0; expected.len()];
        sent.read_exact_at(&mut read, 0).unwrap();
        assert!(read == expected, "sendfile");
        assert!(fs::read(mount.join(name)).unwrap() == expected, "read");
    });
}

/// > A damaged block gives EIO, and the log names the block and its archive. The bytes around it
/// > can still be read.
#[test]
fn a_damaged_block_gives_eio_and_the_bytes_around_it_are_correct() {
    const BLOCK: usize = 128 << 10;
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir(&source).unwrap();
    // Three blocks that compress alike, each with a zlib checksum.
    let noise = source::noise(1, 3 * BLOCK / 2);
    let bytes: Vec<u8> = noise.into_iter().flat_map(|byte| [byte, b'x']).collect();
    fs::write(source.join("file"), &bytes).unwrap();
    let options = ["-comp", "gzip", "-no-fragments"];
    let image = image::make(work.path(), "image.sqfs", &source, &options);
    let mut packed = fs::read(&image).unwrap();
    // Data is between the superblock and the inode table, whose position is at offset 64.
    let tables = u64::from_le_bytes(packed[64..72].try_into().unwrap()) as usize;
    let middle = (96 + tables) / 2;
    packed[middle..middle + 30].fill(0xaa);
    fs::write(&image, packed).unwrap();

    let log = work.path().join("log");
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    let mut mount = archfs();
    run(mount.args(["mount", "--keep", "-v", "--log-file"]).args([&log, &image, &mount_point]));
    let file = File::open(mount_point.join("file")).unwrap();
    let mut found = vec![0; BLOCK];
    let error = file.read_exact_at(&mut found, BLOCK as u64).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    for start in [0, 2 * BLOCK] {
        file.read_exact_at(&mut found, start as u64).unwrap();
        assert!(found == bytes[start..start + BLOCK], "the bytes at {start}");
    }
    // The request is answered before the path for the message is known.
    let read_log = || fs::read_to_string(&log).unwrap();
    wait_until("the log names the block", || read_log().contains("data block at 0x"));
    let log = read_log();
    assert!(log.contains("image.sqfs: "), "{log}");
    let (_, block) = log.split_once("data block at 0x").expect(&log);
    let digits = block.split(|c: char| !c.is_ascii_hexdigit()).next().unwrap();
    let block = usize::from_str_radix(digits, 16).unwrap();
    // After the first of three blocks, and not in the third.
    let third = (tables - 96) / 3;
    assert!((96 + third / 2..=middle).contains(&block), "{block:#x}: {log}");
}

/// > Opening for writing fails with EROFS.
#[test]
fn every_change_is_refused_as_on_a_read_only_file_system() {
    with_mount(|mount, _| {
        let file = mount.join("text-10");
        let refused = |what: &str, result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem, "{what}");
        };
        refused("write", OpenOptions::new().write(true).open(&file).map(|_| ()));
        refused("append", OpenOptions::new().append(true).open(&file).map(|_| ()));
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

/// > **lseek** with SEEK_DATA and SEEK_HOLE finds the holes that the archive records: in an image
/// > in units of its block size, in a tar as they were packed.
#[test]
fn lseek_finds_holes_and_the_end_of_file() {
    with_mount(|mount, _| {
        let file = File::open(mount.join("sparse")).unwrap();
        let end = file.metadata().unwrap().len();
        // Six bytes at offset 5,000,000: data in the block that contains them.
        let block = 5_000_000 / BLOCK * BLOCK;
        assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(block));
        assert_eq!(seek(&file, SeekFrom::Hole(block)), Ok(block + BLOCK));
        assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0));
        assert_eq!(seek(&file, SeekFrom::Data(25_000_000)), Err(Errno::NXIO));
        assert_eq!(seek(&file, SeekFrom::Hole(end)), Err(Errno::NXIO));
        let full = File::open(mount.join("noise-2560000")).unwrap();
        assert_eq!(seek(&full, SeekFrom::Data(12_345)), Ok(12_345));
        assert_eq!(seek(&full, SeekFrom::Hole(12_345)), Ok(2_560_000));
    });
}

/// > A file's tail in a fragment always counts as data.
#[test]
fn zeros_in_the_tail_of_a_file_are_data() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir(&source).unwrap();
    // A tail of only zeros would be stored as a hole.
    let end = 2 * BLOCK + 10_000;
    let mut bytes = vec![0; end as usize];
    *bytes.last_mut().unwrap() = b'x';
    fs::write(source.join("zeros"), bytes).unwrap();
    let options = ["-comp", "zstd", "-b", "16K", "-always-use-fragments"];
    let image = image::make(work.path(), "image.sqfs", &source, &options);
    let mounted = Mounted::archfs(&image, &work.path().join("mount"), &[]);
    let file = File::open(mounted.path().join("zeros")).unwrap();
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(2 * BLOCK));
    assert_eq!(seek(&file, SeekFrom::Hole(2 * BLOCK)), Ok(end));
}

/// > **ioctl** fails with ENOTTY (`isatty` is false). **fsync** succeeds.
#[test]
fn ioctl_fails_with_enotty_and_fsync_succeeds() {
    with_mount(|mount, _| {
        let file = File::open(mount.join("text-10")).unwrap();
        // TCGETS.
        assert_eq!(tcgetattr(&file).map(|_| ()), Err(Errno::NOTTY));
        assert!(!file.is_terminal());
        let directory = File::open(mount.join("many")).unwrap();
        for opened in [&file, &directory] {
            opened.sync_all().unwrap();
            opened.sync_data().unwrap();
        }
    });
}

/// > **flock** works among the processes of one node, and so do **fcntl locks** for reading. A
/// > write lock needs a file that is open for writing, so it fails with EBADF.
#[test]
fn locks_work_between_processes() {
    with_mount(|mount, _| {
        let path = mount.join("text-10");
        let file = File::open(&path).unwrap();
        let others_may = |how: &str| {
            let mut other = Command::new("flock");
            other.args([how, "--nonblock", "--conflict-exit-code", "9"]).arg(&path).arg("true");
            let status = other.status().unwrap().code();
            assert!(matches!(status, Some(0 | 9)), "{how}: {status:?}");
            status == Some(0)
        };
        for (own, shared, exclusive) in [
            (FlockOperation::LockShared, true, false),
            (FlockOperation::LockExclusive, false, false),
            (FlockOperation::Unlock, true, true),
        ] {
            flock(&file, own).unwrap();
            assert_eq!((others_may("-s"), others_may("-x")), (shared, exclusive), "{own:?}");
        }

        let script = "import fcntl, sys\nit = open(sys.argv[1], 'rb')\n\
                      fcntl.lockf(it, fcntl.LOCK_SH)\nprint('held', flush=True)\ninput()";
        let mut holder = Talker::start(Command::new("python3").arg("-c").arg(script).arg(&path));
        assert_eq!(holder.line(), "held");
        let in_the_way = |of: FlockType| fcntl_getlk(&file, &Flock::from(of)).unwrap();
        let met = in_the_way(FlockType::WriteLock).expect("a lock of the other process");
        assert_eq!((met.pid, met.typ), (Some(holder.pid()), FlockType::ReadLock));
        assert_eq!(in_the_way(FlockType::ReadLock), None);
        fcntl_lock(&file, FlockOperation::NonBlockingLockShared).unwrap();
        let exclusive = fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(exclusive, Err(Errno::BADF));
        holder.write("\n");
        assert_eq!(holder.end(), Some(0));
        assert_eq!(in_the_way(FlockType::WriteLock), None);
    });
}
