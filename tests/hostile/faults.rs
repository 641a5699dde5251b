//! An archive fails while it is mounted: its file system returns errors, hangs or goes away, or the
//! archive is truncated, replaced, rewritten or deleted.
//!
//! A reader gets the packed bytes or EIO, and no error outlasts its fault.
//! src/formats/opening/faults.rs has the faults of single reads.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};

use crate::support;
use crate::support::faulty::{Fault, Faulty};
use crate::support::mount::{CleanUp, Mounted, is_mounted, unmount};
use crate::support::skip::skip;
use crate::support::stage::said;
use crate::support::{archfs, image, run, skip_without_mounts, source, tar, work_directory};

/// Length of each packed file: a few blocks of an image and a tail.
const LEN: usize = 300_000;

/// The packed files by name.
type Files = BTreeMap<String, Vec<u8>>;

/// A directory with files that compress a little, and their contents.
fn packed(work: &Path) -> (PathBuf, Files) {
    let directory = work.join("source");
    fs::create_dir(&directory).unwrap();
    let make = |number: u64| {
        let noise = source::noise(number + 1, LEN / 2);
        let bytes: Vec<u8> = noise.iter().flat_map(|byte| [*byte, b'x']).collect();
        let name = format!("file-{number:02}");
        fs::write(directory.join(&name), &bytes).unwrap();
        (name, bytes)
    };
    let files = (0..12).map(make).collect();
    (directory, files)
}

/// The kinds of archive that are read in different ways. Every other kind is read like the last
/// one.
const KINDS: [&str; 4] = ["sqfs", "tar", "tar.gz", "tar.xz"];

fn archive(work: &Path, directory: &Path, kind: &str) -> PathBuf {
    if kind == "sqfs" {
        return image::make(work, "data.sqfs", directory, &["-comp", "zstd"]);
    }
    let stored = work.join("data.tar");
    tar::pack(&stored, directory);
    let program = match kind {
        "tar" => return stored,
        "tar.gz" => "gzip -1 -c",
        _ => "xz -0 -T0 --block-size=500KiB -c",
    };
    let target = work.join(format!("data.{kind}"));
    let line = format!("{program} < \"$1\" > \"$2\"");
    run(Command::new("bash").args(["-ec", &line, "bash"]).arg(stored).arg(&target));
    target
}

/// Reads a file past the page cache.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map(|_| bytes)
}

/// Concurrent reading threads.
const READERS: usize = 4;

/// Reads all files in each of several threads and returns the number of failed reads. Each read
/// must return the right bytes or EIO.
fn read_all(mount_point: &Path, files: &Files) -> usize {
    let (sender, results) = channel();
    for reader in 0..READERS {
        let (sender, mount_point, files) = (sender.clone(), mount_point.to_owned(), files.clone());
        thread::spawn(move || {
            let mut failed = 0;
            for (name, expected) in files.iter().cycle().skip(3 * reader).take(files.len()) {
                match read(&mount_point.join(name)) {
                    Ok(found) => assert!(found == *expected, "{name}: other bytes than packed"),
                    Err(error) => {
                        let number = error.raw_os_error();
                        assert_eq!(number, Some(libc::EIO), "{name}: {error}");
                        failed += 1;
                    }
                }
            }
            let _ = sender.send(failed);
        });
    }
    drop(sender);
    let limit = Duration::from_secs(60);
    (0..READERS)
        .map(|_| results.recv_timeout(limit).expect("no reader hangs or sees wrong bytes"))
        .sum()
}

/// Each kind of archive, mounted from a file system that can fail.
fn on_a_faulty_file_system(check: impl Fn(&str, &Faulty, &Mounted, &Files)) {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let (directory, files) = packed(work.path());
    for kind in KINDS {
        let archive = archive(work.path(), &directory, kind);
        let faulty = Faulty::new(&archive, &work.path().join(format!("faulty-{kind}")));
        let mount_point = work.path().join("mount");
        // The smallest cache, so that reads reach the archive.
        // With readahead, a copy would have what was read before the fault.
        let options = ["--cache", "1M", "--readahead=off"];
        let mount = Mounted::archfs(faulty.file(), &mount_point, &options);
        let daemon = mount.daemon();
        check(kind, &faulty, &mount, &files);
        assert_eq!(mount.daemon(), daemon, "{kind}: the same daemon serves");
    }
}

/// > An error is returned to the reader and not cached: the next read tries again, also for data
/// > that is decompressed into a temporary file.
#[test]
fn failing_reads_return_eio_and_later_reads_succeed() {
    on_a_faulty_file_system(|kind, faulty, mount, files| {
        for one_in in [1, 2, 5] {
            faulty.set(Fault::Failing(one_in));
            let before = faulty.failed();
            let failed = read_all(mount.path(), files);
            assert!(faulty.failed() > before, "{kind}: one in {one_in}");
            // With few reads, none may have been the fifth.
            assert!(failed > 0 || one_in == 5, "{kind}: one in {one_in}");
            faulty.set(Fault::None);
            assert_eq!(read_all(mount.path(), files), 0, "{kind}: no error is remembered");
        }
    });
}

/// > **Short and interrupted reads** are continued.
#[test]
fn short_and_interrupted_reads_are_continued() {
    on_a_faulty_file_system(|kind, faulty, mount, files| {
        for fault in [Fault::Halves, Fault::Interrupted] {
            faulty.set(fault);
            let before = faulty.failed();
            assert_eq!(read_all(mount.path(), files), 0, "{kind}: {fault:?}");
            assert!(faulty.failed() > before, "{kind}: {fault:?}");
            // Opening the archive as well.
            let list = archfs().arg("ls").arg(faulty.file()).output().unwrap();
            assert_eq!(list.stdout.iter().filter(|&&byte| byte == b'\n').count(), files.len());
        }
    });
}

/// > A read that hangs blocks only the readers that need its data.
#[test]
fn a_hanging_file_system_blocks_only_readers_that_need_it() {
    on_a_faulty_file_system(|kind, faulty, mount, files| {
        let (name, expected) = files.iter().next().unwrap();
        let last = files.keys().next_back().unwrap();
        let cached = mount.path().join(last);
        assert!(fs::read(&cached).unwrap() == files[last]);
        faulty.set(Fault::Hanging);
        let before = faulty.reads();
        let path = mount.path().join(name);
        let reader = thread::spawn(move || read(&path).unwrap());
        support::wait_until("the archive is read", || faulty.reads() > before);
        // Readers that do not need the archive continue, and the daemon answers.
        assert!(fs::read(&cached).unwrap() == files[last], "{kind}");
        run(archfs().arg("stats").arg(mount.path()));
        assert!(!reader.is_finished());
        faulty.set(Fault::None);
        assert!(reader.join().unwrap() == *expected, "{kind}");
    });
}

/// > **Errors of the archive's file system** all become EIO, even if the daemon of that file system
/// > has died (ENOTCONN).
#[test]
fn every_error_of_the_file_system_becomes_eio() {
    on_a_faulty_file_system(|kind, faulty, mount, files| {
        for number in [libc::EACCES, libc::ENOENT, libc::ENXIO, libc::ESTALE, libc::ETIMEDOUT] {
            faulty.set(Fault::Refused(number));
            assert!(read_all(mount.path(), files) > 0, "{kind}: {number}");
        }
        faulty.set(Fault::None);
        assert_eq!(read_all(mount.path(), files), 0, "{kind}: no error is remembered");
    });
}

/// > **Errors of the archive's file system** all become EIO, even if the daemon of that file system
/// > has died (ENOTCONN).
#[test]
fn a_file_system_whose_daemon_died_gives_eio() {
    on_a_faulty_file_system(|kind, faulty, mount, files| {
        faulty.abort();
        let reads = READERS * files.len();
        assert_eq!(read_all(mount.path(), files), reads, "{kind}: all give EIO, none ENOTCONN");
    });
}

/// > **The archive's file system is full, read-only or lazily unmounted**: nothing changes, because
/// > archfs writes only a saved index there. If that fails, archfs prints a note.
#[test]
fn reading_continues_after_a_lazy_unmount_of_the_file_system() {
    on_a_faulty_file_system(|kind, faulty, mount, files| {
        faulty.unmount_lazily();
        assert!(!faulty.file().exists());
        assert_eq!(read_all(mount.path(), files), 0, "{kind}");
    });
}

/// > **Truncated**: the missing part gives EIO, and nothing is filled with zeros.
#[test]
fn a_truncated_part_gives_eio_and_the_rest_is_correct() {
    on_a_faulty_file_system(|kind, faulty, mount, files| {
        let first = files.keys().next().unwrap();
        let len = fs::metadata(faulty.file()).unwrap().len();
        for end in [len / 2, 1] {
            faulty.set(Fault::EndsAt(end));
            let failed = read_all(mount.path(), files);
            assert!(failed > 0, "{kind}: cut at {end}");
            if end > 1 && kind != "sqfs" {
                assert!(read(&mount.path().join(first)).unwrap() == files[first], "{kind}");
            }
        }
        faulty.set(Fault::None);
        assert_eq!(read_all(mount.path(), files), 0, "{kind}");
    });
}

/// A mounted archive on the disk of this machine, and its files.
struct Plain {
    files: Files,
    archive: PathBuf,
    mount: Mounted,
    work: tempfile::TempDir,
}

impl Plain {
    /// The lines of the log that report a rewritten archive.
    fn reports(&self) -> Vec<String> {
        let text = fs::read_to_string(self.work.path().join("log")).unwrap();
        let lines = text.lines().filter(|line| line.contains(": rewritten in place: was "));
        lines.map(str::to_owned).collect()
    }
}

fn plain(kind: &str) -> Plain {
    plain_with(kind, &[])
}

fn plain_with(kind: &str, options: &[&str]) -> Plain {
    let work = work_directory();
    let (directory, files) = packed(work.path());
    let archive = archive(work.path(), &directory, kind);
    let log = work.path().join("log");
    let all = [&["--cache", "1M", "--log-file", log.to_str().unwrap()], options].concat();
    let mount = Mounted::archfs(&archive, &work.path().join("mount"), &all);
    Plain { files, archive, mount, work }
}

/// > **Truncated**: the missing part gives EIO, and nothing is filled with zeros.
///
/// > With `--allow-changes` only the line in the log remains.
#[test]
fn a_truncated_archive_still_serves_remaining_and_cached_data() {
    if skip_without_mounts() {
        return;
    }
    for kind in KINDS {
        let plain = plain_with(kind, &["--allow-changes"]);
        let Plain { files, archive, mount, .. } = &plain;
        let bytes = fs::read(archive).unwrap();
        let (last, expected) = files.iter().next_back().unwrap();
        assert!(fs::read(mount.path().join(last)).unwrap() == *expected);
        let file = OpenOptions::new().write(true).open(archive).unwrap();
        file.set_len(bytes.len() as u64 / 3).unwrap();
        // The kernel has the pages cached and need not ask for them.
        assert!(fs::read(mount.path().join(last)).unwrap() == *expected, "{kind}");
        let failed = read_all(mount.path(), files);
        assert!(failed > 0, "{kind}: what is not there is not made up");
        if kind != "sqfs" {
            assert!(failed < READERS * files.len(), "{kind}: some files can be read");
        }
        file.write_all_at(&bytes, 0).unwrap();
        assert_eq!(read_all(mount.path(), files), 0, "{kind}: it has recovered");
        assert_eq!(plain.reports().len(), 1, "{kind}");
    }
}

/// > Data that the kernel or archfs has cached can still be read.
#[test]
fn decoded_data_stays_readable_after_truncation_or_rewriting() {
    if skip_without_mounts() {
        return;
    }
    // Decoded data is cached in blocks of this size.
    for kind in ["sqfs", "tar.gz", "tar.xz"] {
        let work = work_directory();
        let (directory, files) = packed(work.path());
        let archive = archive(work.path(), &directory, kind);
        let mount = Mounted::archfs(&archive, &work.path().join("mount"), &["--cache", "64M"]);
        let (name, expected) = files.iter().next().unwrap();
        // Bypasses the page cache, because the kernel would read ahead and cache more.
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(libc::O_DIRECT);
        let file = file.open(mount.path().join(name)).unwrap();
        let assert_page = |number: usize| {
            let mut page = vec![0; 4096];
            file.read_exact_at(&mut page, number as u64 * 4096).unwrap();
            assert!(page == expected[number * 4096..][..4096], "{kind}: page {number}");
        };
        assert_page(0);
        let len = fs::metadata(&archive).unwrap().len();
        let rewritten = OpenOptions::new().write(true).open(&archive).unwrap();
        rewritten.write_all_at(&source::noise(1, len as usize), 0).unwrap();
        assert_page(1);
        rewritten.set_len(0).unwrap();
        assert_page(2);
        assert!(read_all(mount.path(), &files) > 0, "{kind}: what was not decoded is gone");
    }
}

/// Another archive with the same names.
fn other(work: &Path, kind: &str) -> (PathBuf, Files) {
    let directory = work.join("other");
    fs::create_dir(&directory).unwrap();
    let (source, mut files) = packed(&directory);
    for (name, bytes) in &mut files {
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        fs::write(source.join(name), bytes).unwrap();
    }
    (archive(&directory, &source, kind), files)
}

/// > **Replaced or deleted**: the mount keeps reading the file that was opened. A new `mount` of
/// > that path at the same mount point is refused, because the archive is another file. At another
/// > mount point the new archive is mounted.
#[test]
fn a_replaced_archive_is_still_served_and_the_new_one_needs_a_new_mount() {
    if skip_without_mounts() {
        return;
    }
    for kind in ["sqfs", "tar", "tar.gz"] {
        let Plain { work, files, archive, mount } = plain(kind);
        let (new, new_files) = other(work.path(), kind);
        fs::rename(new, &archive).unwrap();
        assert_eq!(read_all(mount.path(), &files), 0, "{kind}: the open file is the truth");
        let mut shared = archfs();
        shared.args(["mount", "--keep"]).arg(&archive).arg(mount.path());
        let shared = shared.output().unwrap();
        assert_eq!(shared.status.code(), Some(1), "{}", said(&shared));
        assert!(said(&shared).contains("has changed since it was mounted"), "{}", said(&shared));
        let again = Mounted::archfs(&archive, &work.path().join("again"), &[]);
        assert_eq!(
            read_all(again.path(), &new_files),
            0,
            "{kind}: the new one at another mount point"
        );
        assert_eq!(read_all(mount.path(), &files), 0, "{kind}");
    }
}

/// > **Replaced or deleted**: the mount keeps reading the file that was opened.
#[test]
fn a_deleted_archive_stays_readable_and_cannot_be_mounted_again() {
    if skip_without_mounts() {
        return;
    }
    for kind in ["sqfs", "tar", "tar.gz"] {
        let Plain { work, files, archive, mount } = plain(kind);
        fs::remove_file(&archive).unwrap();
        assert_eq!(read_all(mount.path(), &files), 0, "{kind}");
        let output = archfs().arg("mount").arg(&archive).arg(work.path().join("again")).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("no such file"), "{}", said(&output));
    }
}

/// Overwrites bytes at several offsets of `archive` and returns its new contents.
fn rewrite(archive: &Path) -> Vec<u8> {
    let bytes = fs::read(archive).unwrap();
    let file = OpenOptions::new().write(true).open(archive).unwrap();
    let mount_points = (4096..bytes.len() - 4096).step_by(30_000);
    for (seed, at) in (1..).zip(mount_points) {
        file.write_all_at(&source::noise(seed, 4096), at as u64).unwrap();
    }
    fs::read(archive).unwrap()
}

/// > **Rewritten in place**: the first read that finds another size or modification time of the
/// > archive logs one line. That read and all later ones that need the archive give EIO, even if
/// > the old bytes and time return.
#[test]
fn an_archive_rewritten_in_place_never_gives_wrong_bytes() {
    if skip_without_mounts() {
        return;
    }
    for kind in KINDS {
        let plain = plain(kind);
        let Plain { files, archive, mount, .. } = &plain;
        let daemon = mount.daemon();
        let (bytes, modified) =
            (fs::read(archive).unwrap(), fs::metadata(archive).unwrap().modified().unwrap());
        let (first, expected) = files.iter().next().unwrap();
        assert!(fs::read(mount.path().join(first)).unwrap() == *expected);
        assert!(plain.reports().is_empty());
        // Rewritten while other threads read, as by a copy over it.
        let reader = {
            let (mount_point, files) = (mount.path().to_owned(), files.clone());
            thread::spawn(move || read_all(&mount_point, &files))
        };
        rewrite(archive);
        reader.join().expect("what was read while it was rewritten was right or EIO");
        let failed = read_all(mount.path(), files);
        assert!(failed > 0, "{kind}: what is not cached cannot be right");
        assert_eq!(plain.reports().len(), 1, "{kind}: {:?}", plain.reports());
        let file = OpenOptions::new().write(true).open(archive).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        file.set_modified(modified).unwrap();
        assert!(read_all(mount.path(), files) > 0, "{kind}: the archive was another");
        assert_eq!(plain.reports().len(), 1, "{kind}: no line for each file");
        assert_eq!(mount.daemon(), daemon, "{kind}");
    }
}

/// > With `--allow-changes` only the line in the log remains. A read then gives EIO if the format
/// > detects the change. Otherwise it gives the new bytes (uncompressed tars, blocks without a
/// > checksum). A name may disappear (ENOENT).
#[test]
fn allow_changes_gives_bytes_or_errors_and_keeps_the_mount() {
    if skip_without_mounts() {
        return;
    }
    for kind in KINDS {
        let word = if kind == "tar" { "-oallow_changes" } else { "--allow-changes" };
        let plain = plain_with(kind, &[word]);
        let Plain { files, archive, mount, .. } = &plain;
        let daemon = mount.daemon();
        let now = rewrite(archive);
        let (mut changed, mut failed) = (0, 0);
        for (name, packed) in files {
            match read(&mount.path().join(name)) {
                Ok(found) => {
                    assert_eq!(found.len(), LEN, "{kind}: its length is known");
                    changed += usize::from(found != *packed);
                    if kind == "tar" {
                        assert!(now.windows(LEN).any(|it| it == found), "{name}: the new bytes");
                    }
                }
                // The listing that named it may be rewritten as well.
                Err(error) => {
                    let number = error.raw_os_error();
                    assert!(matches!(number, Some(libc::EIO | libc::ENOENT)), "{kind}: {error}");
                    failed += 1;
                }
            }
        }
        match kind {
            // Uncompressed tars have no checksums of their contents.
            "tar" => assert_eq!((changed, failed), (files.len(), 0)),
            // Each block has a checksum.
            "tar.xz" => assert!(changed == 0 && failed > 0, "{changed} {failed}"),
            _ => assert!(changed + failed > 0, "{kind}"),
        }
        assert_eq!(plain.reports().len(), 1, "{kind}: {:?}", plain.reports());
        assert_eq!(mount.daemon(), daemon, "{kind}");
        run(archfs().arg("stats").arg(mount.path()));
    }
}

/// > If a mount has more archives than it may hold open, archfs closes some and reopens them. A
/// > closed archive that was replaced, changed or deleted gives EIO until the original file is
/// > back.
#[test]
fn a_replaced_archive_is_noticed_when_it_is_reopened() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tars: Vec<_> = (0..80)
        .map(|number| {
            let path = work.path().join(format!("{number}.tar"));
            let (name, text) = (format!("file-{number}"), format!("old {number}"));
            fs::write(&path, tar::of(&[(&name, text.as_bytes())])).unwrap();
            path
        })
        .collect();
    let mount_point = work.path().join("mount");
    let few = ["prlimit", "--nofile=64:64"];
    let mount = Mounted::several(&few, &tars, &mount_point, &["--cache", "1M"]);
    let read_text = |number: usize| {
        read(&mount.path().join(format!("file-{number}"))).map(|it| String::from_utf8(it).unwrap())
    };
    let check_all_but = |changed: &[usize]| {
        for number in 0..80 {
            match read_text(number) {
                Ok(text) => assert_eq!(text, format!("old {number}")),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO));
                    assert!(changed.contains(&number), "{number}: {error}");
                }
            }
        }
    };
    check_all_but(&[]);
    // Replaced, rewritten with the same length, truncated, deleted. Most of these archives are
    // closed now. The others will be closed once all the rest have been read.
    let set = |number: usize, text: &str| {
        let name = format!("file-{number}");
        fs::write(work.path().join("new"), tar::of(&[(&name, text.as_bytes())])).unwrap();
    };
    let keep = |number: usize| {
        fs::rename(&tars[number], work.path().join(format!("kept-{number}"))).unwrap();
    };
    set(3, "new 3");
    keep(3);
    fs::rename(work.path().join("new"), &tars[3]).unwrap();
    set(4, "new 4");
    let new = fs::read(work.path().join("new")).unwrap();
    let old = fs::read(&tars[4]).unwrap();
    File::create(&tars[4]).unwrap().write_all(&new).unwrap();
    keep(5);
    File::options().write(true).open(&tars[6]).unwrap().set_len(700).unwrap();
    let changed = [3, 4, 5, 6];
    check_all_but(&changed);
    check_all_but(&changed);
    for number in changed {
        assert!(read_text(number).is_err(), "{number} is served as if nothing had happened");
    }
    // The original file is accepted again.
    for number in [3, 5] {
        fs::rename(work.path().join(format!("kept-{number}")), &tars[number]).unwrap();
        assert_eq!(read_text(number).unwrap(), format!("old {number}"));
    }
    // Rewriting the old bytes still makes another version.
    File::create(&tars[4]).unwrap().write_all(&old).unwrap();
    check_all_but(&[4, 6]);
}

/// A separate file system for an archive.
struct Disk {
    mount_point: PathBuf,
    _clean_up: CleanUp,
}

impl Disk {
    fn new(work: &Path, size: &str) -> Self {
        let mount_point = work.join("disk");
        fs::create_dir(&mount_point).unwrap();
        let option = format!("size={size}");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &option, "none"]).arg(&mount_point));
        Self { _clean_up: CleanUp(mount_point.clone()), mount_point }
    }
}

/// > **The archive's file system is full, read-only or lazily unmounted**: nothing changes, because
/// > archfs writes only a saved index there. If that fails, archfs prints a note.
#[test]
fn a_full_read_only_or_unmounted_file_system_changes_nothing() {
    if skip_without_mounts() {
        return;
    }
    // A log that is open for writing there would prevent remounting read-only.
    for log in ["disk/log", "log"] {
        let work = work_directory();
        let disk = Disk::new(work.path(), "64M");
        let (directory, files) = packed(work.path());
        let archive = disk.mount_point.join("data.tar.gz");
        fs::copy(self::archive(work.path(), &directory, "tar.gz"), &archive).unwrap();
        // Full: neither an index, beside the archive or in the cache directory, nor statistics can
        // be saved.
        let mut filler = File::create(disk.mount_point.join("filler")).unwrap();
        let piece = vec![1; 1 << 20];
        while filler.write_all(&piece).is_ok() {}
        drop(filler);
        let mount_point = work.path().join("mount");
        let _clean_up = CleanUp(mount_point.clone());
        let mut command = archfs();
        command.args(["mount", "--keep", "--stats-json"]).arg(disk.mount_point.join("numbers"));
        command.arg("--log-file").arg(work.path().join(log)).arg(&archive).arg(&mount_point);
        let output =
            command.env("XDG_CACHE_HOME", disk.mount_point.join("cache")).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(read_all(&mount_point, &files), 0, "full");
        let mut remount = Command::new("mount");
        let remounted = remount.args(["-o", "remount,ro"]).arg(&disk.mount_point).output().unwrap();
        assert!(remounted.status.success() || log == "disk/log", "{}", said(&remounted));
        assert_eq!(read_all(&mount_point, &files), 0, "read-only");
        run(Command::new("umount").arg("-l").arg(&disk.mount_point));
        assert_eq!(read_all(&mount_point, &files), 0, "taken away");
        unmount(&mount_point);
        assert!(!is_mounted(&mount_point));
    }
}

/// > **The archive's file system is full, read-only or lazily unmounted**: nothing changes, because
/// > archfs writes only a saved index there. If that fails, archfs prints a note.
#[test]
fn no_room_for_an_index_is_a_note_and_the_mount_works() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let disk = Disk::new(work.path(), "8M");
    let archive = disk.mount_point.join("many.tar");
    let members: Vec<_> = (0..3000).map(|number| format!("member-{number}")).collect();
    let members: Vec<_> = members.iter().map(|name| (name.as_str(), name.as_bytes())).collect();
    fs::write(&archive, tar::of(&members)).unwrap();
    let mut filler = File::create(disk.mount_point.join("filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    let mut command = archfs();
    command.args(["mount", "--keep"]).arg(&archive).arg(&mount_point);
    let output = command.env("XDG_CACHE_HOME", disk.mount_point.join("cache")).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let note = "the next mount reads all headers again";
    assert!(said(&output).contains(note), "{}", said(&output));
    assert_eq!(fs::read(mount_point.join("member-2999")).unwrap(), b"member-2999");
    unmount(&mount_point);
}

/// > **Truncated**: the missing part gives EIO, and nothing is filled with zeros.
#[test]
fn a_loop_device_of_a_truncated_file_gives_eio() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let (directory, files) = packed(work.path());
    let archive = archive(work.path(), &directory, "sqfs");
    let bytes = fs::read(&archive).unwrap();
    let attached =
        Command::new("losetup").args(["--find", "--show", "--read-only"]).arg(&archive).output();
    let attached = attached.unwrap();
    if !attached.status.success() {
        assert!(std::env::var_os("CI").is_none(), "CI must have loop devices: {}", said(&attached));
        skip(&format!("no loop device: {}", said(&attached)));
        return;
    }
    let device = PathBuf::from(String::from_utf8(attached.stdout).unwrap().trim());
    let mount_point = work.path().join("mount");
    let mount = Mounted::archfs(&device, &mount_point, &["--cache", "1M"]);
    assert_eq!(read_all(mount.path(), &files), 0);
    let file = OpenOptions::new().write(true).open(&archive).unwrap();
    file.set_len(4096).unwrap();
    run(Command::new("blockdev").arg("--flushbufs").arg(&device));
    assert!(read_all(mount.path(), &files) > 0, "what is not there is not made up");
    file.write_all_at(&bytes, 0).unwrap();
    run(Command::new("blockdev").arg("--flushbufs").arg(&device));
    assert_eq!(read_all(mount.path(), &files), 0, "it has recovered");
    drop(mount);
    run(Command::new("losetup").arg("--detach").arg(device));
}
