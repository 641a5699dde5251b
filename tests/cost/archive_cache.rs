//! What a mount leaves of its archives in the page cache, and how much it reads of them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use crate::support::cgroup::{Bound, Group};
use crate::support::mount::{CleanUp, Mounted, unmount};
use crate::support::page_cache::{IdlePagesStay, PAGE, forget, resident_pages};
use crate::support::skip::skip;
use crate::support::{
    archfs, image, run, skip_without_mounts, source, tar, wait_until, work_directory,
};

const FILES: u64 = 300;

/// The part of an archive that may stay, in percent: metadata, pages that two files share, and at most 2 MiB that
/// were read ahead.
const LITTLE: u64 = 25;

/// The same of an image of compressed blocks.
const LITTLE_COMPRESSED: u64 = 35;

/// The lengths of the files: between one and three READs of the kernel, none a multiple of a page.
fn len(number: u64) -> usize {
    40_001 + usize::try_from(number * 7919 % 300_000).unwrap()
}

/// The contents of a file by its number.
type Contents = fn(u64) -> Vec<u8>;

/// Bytes that mksquashfs does not compress.
fn noise(number: u64) -> Vec<u8> {
    source::noise(number + 1, len(number))
}

/// Bytes that it compresses to a third.
fn compressible(number: u64) -> Vec<u8> {
    let mut bytes = noise(number);
    bytes
        .chunks_mut(3 << 10)
        .for_each(|chunk| chunk.iter_mut().skip(1 << 10).for_each(|byte| *byte = 0));
    bytes
}

/// An archive of the files, and their contents.
struct Archive {
    path: PathBuf,
    contents: Contents,
    /// Whether its blocks are compressed.
    is_compressed: bool,
}

impl Archive {
    fn len(&self) -> u64 {
        fs::metadata(&self.path).unwrap().len()
    }

    /// Reads the files with these numbers, and returns their length, bytes.
    fn read(&self, mount_point: &Path, numbers: impl Iterator<Item = u64>) -> u64 {
        let read = numbers.map(|number| {
            let found = fs::read(mount_point.join(number.to_string())).unwrap();
            assert!(found == (self.contents)(number), "{number}: other bytes");
            found.len() as u64
        });
        read.sum()
    }

    fn bytes_in_memory(&self) -> u64 {
        bytes_in_memory(&self.path)
    }

    /// A mount of it below `work` that reads ahead only what is in order. Its names and attributes
    /// were read, and nothing of the archive is in memory.
    fn listed_and_forgotten(&self, work: &Path) -> Mounted {
        let options = ["--archive-cache=keep", "--readahead=off"];
        let mounted = Mounted::archfs(&self.path, &work.join("mount"), &options);
        run(Command::new("ls").arg("-lR").arg(mounted.path()));
        assert!(forget(&self.path));
        mounted
    }
}

/// A work directory with the archives in it; `None` if they cannot be mounted, or are only in
/// memory.
fn stage() -> Option<(TempDir, [Archive; 3])> {
    if skip_without_mounts() {
        return None;
    }
    let work = work_directory();
    let archives = archives_on_disk(work.path())?;
    Some((work, archives))
}

/// A tar, an image of uncompressed blocks and one of compressed blocks, whose pages can be dropped;
/// `None`, with a message, if they are only in memory.
fn archives_on_disk(work: &Path) -> Option<[Archive; 3]> {
    let directory = work.join("files");
    let fill = |contents: Contents| {
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        for number in 0..FILES {
            fs::write(directory.join(number.to_string()), contents(number)).unwrap();
        }
    };
    fill(noise);
    let tar = work.join("data.tar");
    tar::pack(&tar, &directory);
    let uncompressed = image::make(work, "data.sqfs", &directory, &["-comp", "gzip"]);
    fill(compressible);
    let compressed = image::make(work, "compressed.sqfs", &directory, &["-comp", "gzip"]);
    fs::remove_dir_all(&directory).unwrap();
    let is_on_disk = [&tar, &uncompressed, &compressed].into_iter().all(|path| forget(path));
    if !is_on_disk {
        skip(&format!("{} keeps files in memory", work.display()));
        return None;
    }
    let of_noise = |path| Archive { path, contents: noise, is_compressed: false };
    let compressed = Archive { path: compressed, contents: compressible, is_compressed: true };
    Some([of_noise(tar), of_noise(uncompressed), compressed])
}

/// Whether little of an archive is kept: metadata, pages that two files share, and what was announced and never
/// served or loaded when another READ had served it.
fn is_little(kept: u64, archive_len: u64) -> bool {
    kept * 100 <= archive_len * LITTLE
}

/// Whether an archive is kept. Not all of it has to be: some systems reclaim what was not used for a while though
/// memory is free (DAMON), and metadata that nobody needs is never read.
fn is_most(kept: u64, archive_len: u64) -> bool {
    kept * 2 >= archive_len
}

/// Drops the pages of the files with these numbers from the page cache of the mount.
fn forget_files(mount_point: &Path, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        assert!(forget(&mount_point.join(number.to_string())));
    }
}

/// Bytes that a process has read from storage.
fn read_from_storage(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    line.unwrap().parse().unwrap()
}

fn bytes_in_memory(archive: &Path) -> u64 {
    resident_pages(archive) * PAGE
}

#[test]
fn served_pages_leave_the_page_cache_of_the_archive_or_stay() {
    let Some((work, archives)) = stage() else { return };
    for archive in archives {
        let (mount_point, name) = (work.path().join("mount"), archive.path.display());
        let left = |choice: &str| {
            assert!(forget(&archive.path));
            let mounted = Mounted::archfs(&archive.path, &mount_point, &[choice]);
            archive.read(mounted.path(), 0..FILES);
            drop(mounted);
            archive.bytes_in_memory()
        };
        let kept = left("--archive-cache=keep");
        assert!(is_most(kept, archive.len()), "{name}: {kept} of {}", archive.len());
        let kept = left("--archive-cache=drop");
        // Compressed blocks are a few pages long, and more of their first and last pages stay.
        let most = if archive.is_compressed { LITTLE_COMPRESSED } else { LITTLE };
        assert!(kept * 100 <= archive.len() * most, "{name}: {kept} of {}", archive.len());
    }
}

#[test]
fn files_that_were_dropped_are_read_from_storage_again() {
    let Some((work, [tar, image, _])) = stage() else { return };
    for archive in [tar, image] {
        let (mount_point, name) = (work.path().join("mount"), archive.path.display());
        let read_again = |choice: &str| {
            assert!(forget(&archive.path));
            let mounted = Mounted::archfs(&archive.path, &mount_point, &[choice]);
            archive.read(mounted.path(), 0..FILES);
            forget_files(mounted.path(), 0..FILES);
            let before = read_from_storage(mounted.daemon());
            archive.read(mounted.path(), 0..FILES);
            read_from_storage(mounted.daemon()) - before
        };
        let read = read_again("--archive-cache=keep");
        let kept = archive.len().saturating_sub(read);
        assert!(is_most(kept, archive.len()), "{name}: {read} of {}", archive.len());
        let read = read_again("--archive-cache=drop");
        assert!(
            read * 100 >= archive.len() * (100 - LITTLE),
            "{name}: {read} of {}",
            archive.len()
        );
    }
}

#[test]
fn random_files_read_little_of_their_neighbors() {
    let Some((work, [tar, image, _])) = stage() else { return };
    for archive in [tar, image] {
        let mounted = archive.listed_and_forgotten(work.path());
        let wanted = archive.read(mounted.path(), (0..FILES).map(|nth| nth * 97 % FILES).take(100));
        let found = archive.bytes_in_memory();
        assert!(found * 100 <= wanted * 115, "{}: {found} of {wanted}", archive.path.display());
    }
}

/// The numbers of the files in the order of the archive.
fn in_archive_order(archive: &Path) -> Vec<u64> {
    if archive.extension().is_some_and(|extension| extension == "tar") {
        let listed = run(Command::new("tar").arg("-tf").arg(archive)).stdout;
        let listed = String::from_utf8(listed).unwrap();
        return listed.lines().filter_map(|line| line.rsplit('/').next()?.parse().ok()).collect();
    }
    // mksquashfs sorts by name.
    let mut numbers: Vec<u64> = (0..FILES).collect();
    numbers.sort_by_key(u64::to_string);
    numbers
}

/// Reads the files with these numbers below a directory once the archive is read directly and none of
/// it is in memory. Prints their length.
const READ_DIRECTLY: &str = r"
import os, sys, time
archive, root, *numbers = sys.argv[1:]

def read(number):
    with open(os.path.join(root, number), 'rb', buffering=0) as opened:
        return len(opened.read())

for name in os.listdir(root):
    os.stat(os.path.join(root, name))
until = time.monotonic() + 1
while time.monotonic() < until:
    read(numbers[0])
descriptor = os.open(archive, os.O_RDONLY)
os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
print(sum(read(number) for number in numbers))
";

#[test]
fn direct_reads_read_little_of_their_neighbors() {
    let Some((work, [tar, image, _])) = stage() else { return };
    for archive in [tar, image] {
        // The kernel reads ahead if pages before a read are in memory, and more of them than are read.
        let order = in_archive_order(&archive.path);
        let is_pair = |pair: &&[u64]| len(pair[0]) > 2 * len(pair[1]);
        let numbers: Vec<u64> = order
            .chunks_exact(4)
            .filter_map(|four| four[..3].windows(2).find(is_pair))
            .flatten()
            .copied()
            .collect();
        assert!(numbers.len() >= 10, "{numbers:?}");
        let statistics = work.path().join("statistics");
        let mount_point = work.path().join("mount");
        let mut command = archfs();
        command.args(["run", "--direct", "--archive-cache=keep", "--stats-json"]).arg(&statistics);
        command.arg(&archive.path).arg(&mount_point).args(["--", "python3", "-c", READ_DIRECTLY]);
        command.arg(&archive.path).arg(&mount_point);
        command.args(numbers.iter().map(u64::to_string));
        let wanted = String::from_utf8(run(&mut command).stdout).unwrap();
        let (wanted, found): (u64, _) = (wanted.trim().parse().unwrap(), archive.bytes_in_memory());
        assert!(found * 100 <= wanted * 115, "{}: {found} of {wanted}", archive.path.display());
        let statistics = fs::read_to_string(&statistics).unwrap();
        let statistics: serde_json::Value = serde_json::from_str(&statistics).unwrap();
        let requests = statistics["requests"]["read"].as_u64().unwrap();
        assert!(requests < 20, "{requests} reads through the mount");
    }
}

#[test]
fn files_in_the_order_of_the_archive_are_read_ahead_for_each_reader() {
    let Some((work, [tar, image, _])) = stage() else { return };
    for archive in [tar, image] {
        let order = in_archive_order(&archive.path);
        assert_eq!(order.len() as u64, FILES);
        for readers in [1, 4] {
            let mounted = archive.listed_and_forgotten(work.path());
            let steps = 0..20;
            let numbers = steps.flat_map(|step| (0..readers).map(move |reader| reader * 70 + step));
            let wanted = archive.read(mounted.path(), numbers.map(|nth| order[nth]));
            let ahead = || archive.bytes_in_memory().saturating_sub(wanted);
            let readers = readers as u64;
            wait_until("a mebibyte is read ahead for each reader", || ahead() >= readers << 20);
            let most = readers * (5 << 19);
            assert!(ahead() <= most, "{}: {} bytes ahead", archive.path.display(), ahead());
        }
    }
}

#[test]
fn the_end_of_a_file_is_read_without_the_files_after_it() {
    let Some((work, [tar, image, _])) = stage() else { return };
    // In the image, most ends are in uncompressed fragment blocks.
    for archive in [tar, image] {
        let mounted = archive.listed_and_forgotten(work.path());
        let mut wanted = 0;
        for number in (0..FILES).step_by(31) {
            let file = File::open(mounted.path().join(number.to_string())).unwrap();
            // Each read is a READ.
            fadvise(&file, 0, None, Advice::Random).unwrap();
            let mut found = vec![0; len(number)];
            let (start, end) = found.split_at_mut(len(number) - 8000);
            file.read_exact_at(start, 0).unwrap();
            file.read_exact_at(end, start.len() as u64).unwrap();
            assert!(found == (archive.contents)(number), "{number}: other bytes");
            wanted += found.len() as u64;
        }
        let found = archive.bytes_in_memory();
        assert!(found * 100 <= wanted * 115, "{}: {found} of {wanted}", archive.path.display());
    }
}

/// Mounts an archive in a group of processes.
fn mount_in(group: &Group, archive: &Archive, mount_point: &Path) {
    let (program, archive) = (archfs().get_program().to_owned(), archive.path.display());
    let line = format!(
        "{} mount --quiet --keep --cache=8M {archive} {}",
        program.display(),
        mount_point.display()
    );
    let output = group.run(&line);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn served_pages_leave_where_archive_and_data_do_not_both_fit_into_the_job() {
    let Some((work, [tar, image, _])) = stage() else { return };
    let Some(group) = Group::new(Bound::Memory) else { return };
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    for archive in [&tar, &image] {
        let (size, name) = (archive.len(), archive.path.display());
        let left = |limit: u64| {
            group.set(limit);
            assert!(forget(&archive.path));
            mount_in(&group, archive, &mount_point);
            archive.read(&mount_point, 0..FILES);
            unmount(&mount_point);
            wait_until("the group is empty", || group.is_empty());
            archive.bytes_in_memory()
        };
        let kept = left(size * 3);
        assert!(is_most(kept, size), "{name}: {kept} of {size} stay if both fit");
        let kept = left(size * 3 / 2);
        assert!(is_little(kept, size), "{name}: {kept} of {size} stay if one fits");
    }

    // Another daemon of the same archive may still need them.
    let other = work.path().join("other");
    let _clean_up = CleanUp(other.clone());
    mount_in(&group, &tar, &other);
    assert!(forget(&tar.path));
    mount_in(&group, &tar, &mount_point);
    tar.read(&mount_point, 0..FILES);
    // The group has memory for the archive once, beside the daemons.
    let (kept, size) = (tar.bytes_in_memory(), tar.len());
    assert!(kept * 2 >= size, "{kept} of {size} stay for another daemon");
    unmount(&other);
}

#[test]
fn a_compressed_image_takes_as_much_memory_as_it_serves() {
    let Some((work, [_, _, archive])) = stage() else { return };
    let Some(group) = Group::new(Bound::Memory) else { return };
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    let size = archive.len();
    // Memory for the image twice, but not for the image and its files, which are three times as large.
    group.set(size * 3);
    mount_in(&group, &archive, &mount_point);
    archive.read(&mount_point, 0..FILES);
    assert!(!is_little(archive.bytes_in_memory(), size), "dropped before anything is known");
    let large = (0..FILES).find(|number| len(*number) > 300_000).unwrap();
    wait_until("served pages are dropped", || {
        forget_files(&mount_point, std::iter::once(large));
        assert!(forget(&archive.path));
        archive.read(&mount_point, std::iter::once(large));
        archive.bytes_in_memory() < 48 << 10
    });
}

/// The copy of an archive that a daemon has open.
fn copy_of(archive: &Archive, daemon: u32) -> PathBuf {
    let open = fs::read_dir(format!("/proc/{daemon}/fd")).unwrap();
    let is_copy = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().ends_with("(deleted)"))
            && fs::metadata(path).is_ok_and(|found| found.len() >= archive.len())
    };
    open.map(|entry| entry.unwrap().path()).find(is_copy).expect("a copy")
}

#[test]
fn a_staged_copy_on_a_disk_leaves_the_page_cache() {
    let Some((work, [tar, image, _])) = stage() else { return };
    let stage = work.path().join("stage");
    fs::create_dir(&stage).unwrap();
    for archive in [tar, image] {
        let mount_point = work.path().join("mount");
        let stage = format!("--stage={}", stage.display());
        let mounted =
            Mounted::archfs(&archive.path, &mount_point, &["--archive-cache=drop", &stage]);
        let copy = copy_of(&archive, mounted.daemon());
        let is_complete = || {
            let mut command = archfs();
            let output = command.args(["stats", "--json"]).arg(mounted.path()).output().unwrap();
            let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            stats["staged"]["copied_bytes"] == stats["staged"]["total_bytes"]
        };
        let is_dropped = || is_little(bytes_in_memory(&copy), archive.len());
        wait_until("the copy is complete", is_complete);
        wait_until("the copy is dropped", is_dropped);
        archive.read(mounted.path(), 0..FILES);
        wait_until("what was read is dropped", is_dropped);
    }
}

#[test]
fn preloaded_pages_leave_when_they_were_served() {
    let _idle_pages_stay = IdlePagesStay::new();
    let Some((work, [tar, image, _])) = stage() else { return };
    for archive in [tar, image] {
        let mount_point = work.path().join("mount");
        let options = ["--archive-cache=drop", "--preload"];
        let mounted = Mounted::archfs(&archive.path, &mount_point, &options);
        wait_until("the archive is read", || archive.bytes_in_memory() >= archive.len());
        archive.read(mounted.path(), 0..FILES);
        let kept = archive.bytes_in_memory();
        assert!(is_little(kept, archive.len()), "{kept} of {}", archive.len());
    }
}
