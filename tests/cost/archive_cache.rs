//! What a mount leaves of its archives in the page cache, and how much it reads of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::cgroup::{Bound, Group};
use crate::support::mount::{CleanUp, Mounted, unmount};
use crate::support::page_cache::{PAGE, forget, resident_pages};
use crate::support::skip::skip;
use crate::support::{
    archfs, image, run, skip_without_mounts, source, tar, wait_until, work_directory,
};

const FILES: u64 = 300;

/// The lengths of the files: between one and three READs of the kernel, none a multiple of a page.
fn len(number: u64) -> usize {
    40_001 + usize::try_from(number * 7919 % 300_000).unwrap()
}

fn contents(number: u64) -> Vec<u8> {
    source::noise(number + 1, len(number))
}

/// A tar and an image of the files. mksquashfs does not compress noise.
fn archives(work: &Path) -> [PathBuf; 2] {
    let directory = work.join("files");
    fs::create_dir(&directory).unwrap();
    for number in 0..FILES {
        fs::write(directory.join(number.to_string()), contents(number)).unwrap();
    }
    let archive = work.join("data.tar");
    tar::pack(&archive, &directory);
    let image = image::make(work, "data.sqfs", &directory, &["-comp", "gzip"]);
    fs::remove_dir_all(&directory).unwrap();
    [archive, image]
}

/// Archives whose pages can be dropped; `None`, with a message, if they are only in memory.
fn archives_on_disk(work: &Path) -> Option<[PathBuf; 2]> {
    let archives = archives(work);
    let is_on_disk = archives.iter().all(|archive| forget(archive));
    if !is_on_disk {
        skip(&format!("{} keeps files in memory", work.display()));
    }
    is_on_disk.then_some(archives)
}

/// Reads the files with these numbers, and returns their length, bytes.
fn read(mount_point: &Path, numbers: impl Iterator<Item = u64>) -> u64 {
    let read = numbers.map(|number| {
        let found = fs::read(mount_point.join(number.to_string())).unwrap();
        assert!(found == contents(number), "{number}: other bytes");
        found.len() as u64
    });
    read.sum()
}

/// Whether little of what was read is kept: metadata, pages that files share, and what was announced for one
/// READ and loaded when another one had served it, which happens on a loaded machine.
fn is_little(kept: u64, wanted: u64) -> bool {
    kept * 2 <= wanted
}

fn bytes_in_memory(archive: &Path) -> u64 {
    resident_pages(archive) * PAGE
}

#[test]
fn served_pages_leave_the_page_cache_of_the_archive_or_stay() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let Some(archives) = archives_on_disk(work.path()) else { return };
    for archive in archives {
        let mount_point = work.path().join("mount");
        let left = |choice: &str| {
            assert!(forget(&archive));
            let mounted = Mounted::archfs(&archive, &mount_point, &[choice]);
            let wanted = read(mounted.path(), 0..FILES);
            drop(mounted);
            (wanted, bytes_in_memory(&archive))
        };
        let (wanted, kept) = left("--archive-cache=keep");
        assert!(kept * 10 >= wanted * 9, "{}: {kept} of {wanted}", archive.display());
        let (wanted, kept) = left("--archive-cache=drop");
        assert!(is_little(kept, wanted), "{}: {kept} of {wanted}", archive.display());
    }
}

#[test]
fn random_files_read_little_of_their_neighbours() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let Some(archives) = archives_on_disk(work.path()) else { return };
    for archive in archives {
        let mount_point = work.path().join("mount");
        let mounted = Mounted::archfs(&archive, &mount_point, &["--archive-cache=keep"]);
        run(Command::new("ls").arg("-lR").arg(mounted.path()));
        assert!(forget(&archive));
        let wanted = read(mounted.path(), (0..FILES).map(|nth| nth * 97 % FILES).take(100));
        let found = bytes_in_memory(&archive);
        assert!(found * 100 <= wanted * 115, "{}: {found} of {wanted}", archive.display());
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

#[test]
fn files_in_the_order_of_the_archive_are_read_ahead_for_each_reader() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let Some(archives) = archives_on_disk(work.path()) else { return };
    for archive in archives {
        let order = in_archive_order(&archive);
        assert_eq!(order.len() as u64, FILES);
        let mount_point = work.path().join("mount");
        for readers in [1, 4] {
            let mounted = Mounted::archfs(&archive, &mount_point, &["--archive-cache=keep"]);
            run(Command::new("ls").arg("-lR").arg(mounted.path()));
            assert!(forget(&archive));
            let steps = 0..20;
            let numbers = steps.flat_map(|step| (0..readers).map(move |reader| reader * 70 + step));
            let wanted = read(mounted.path(), numbers.map(|nth| order[nth]));
            let ahead = || bytes_in_memory(&archive).saturating_sub(wanted);
            let readers = readers as u64;
            wait_until("a mebibyte is read ahead for each reader", || ahead() >= readers << 20);
            let most = readers * (5 << 19);
            assert!(ahead() <= most, "{}: {} bytes ahead", archive.display(), ahead());
        }
    }
}

#[test]
fn served_pages_leave_where_archive_and_data_do_not_both_fit_into_the_job() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let Some([archive, _]) = archives_on_disk(work.path()) else { return };
    let Some(group) = Group::new(Bound::Memory) else { return };
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    let size = fs::metadata(&archive).unwrap().len();
    let mount = |group: &Group, mount_point: &Path| {
        let (program, archive) = (archfs().get_program().to_owned(), archive.display());
        let line = format!(
            "{} mount --quiet --keep --cache=8M {archive} {}",
            program.display(),
            mount_point.display()
        );
        let output = group.run(&line);
        assert!(output.status.success(), "{output:?}");
    };
    let left = |limit: u64| {
        group.set(limit);
        assert!(forget(&archive));
        mount(&group, &mount_point);
        let wanted = read(&mount_point, 0..FILES);
        unmount(&mount_point);
        wait_until("the group is empty", || group.is_empty());
        (wanted, bytes_in_memory(&archive))
    };
    let (wanted, kept) = left(size * 3);
    assert!(kept * 10 >= wanted * 9, "{kept} of {wanted} stay if both fit");
    let (wanted, kept) = left(size * 3 / 2);
    assert!(is_little(kept, wanted), "{kept} of {wanted} stay if one fits");

    // Another daemon of the same archive may still need them.
    let other = work.path().join("other");
    let _clean_up = CleanUp(other.clone());
    mount(&group, &other);
    let (wanted, kept) = {
        assert!(forget(&archive));
        mount(&group, &mount_point);
        (read(&mount_point, 0..FILES), bytes_in_memory(&archive))
    };
    assert!(kept >= wanted / 2, "{kept} of {wanted} stay for another daemon");
    unmount(&other);
}

#[test]
fn a_staged_copy_in_memory_is_never_dropped() {
    if skip_without_mounts() {
        return;
    }
    if !Path::new("/dev/shm").is_dir() {
        skip("/dev/shm is missing");
        return;
    }
    let work = work_directory();
    let [archive, _] = archives(work.path());
    let mount_point = work.path().join("mount");
    let options = ["--archive-cache=drop", "--stage=/dev/shm"];
    let mounted = Mounted::archfs(&archive, &mount_point, &options);
    for _ in 0..2 {
        read(mounted.path(), 0..FILES);
        for number in 0..FILES {
            assert!(forget(&mounted.path().join(number.to_string())));
        }
    }
}
