//! Which pages of an archive stay in the page cache.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use super::*;
use crate::os::page_cache;
use crate::os::unlinked;
use crate::storage::{
    CopyTarget, FilePart, FileStorage, Fill, FillScope, NearCopy, Storage, near_copy, serve,
};
use crate::sync::Arc;

const PAGE: u64 = 4096;

/// Which pages of `file`, which has 10 pages and a byte, are in the page cache.
fn cached(file: &File) -> Vec<u64> {
    let pages = page_cache::holds(file, (0..11).map(|page| page * PAGE));
    (0..).zip(pages).filter_map(|(page, is_cached)| is_cached.then_some(page)).collect()
}

#[test]
fn only_whole_pages_of_what_was_served_are_dropped() {
    // /tmp may be in memory.
    let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    file.write_all(&[7; 10 * PAGE as usize + 1]).unwrap();
    file.as_file().sync_all().unwrap();
    let storage = FileStorage::open(file.path()).unwrap();
    let read = |expected: &[u64]| {
        storage.read_exact_at(&mut [0; 10 * PAGE as usize + 1], 0).unwrap();
        assert_eq!(cached(file.as_file()), expected);
    };
    let all: Vec<u64> = (0..11).collect();
    read(&all);
    assert!(!storage.drops_served(), "nothing is mounted");
    let switch = Arc::new(ArchiveCache::default());
    storage.serve(&switch, true, None);
    assert!(!storage.drops_served(), "pages are kept by default");
    switch.set_drops(true);
    if !storage.drops_served() {
        return eprintln!("SKIPPED: /var/tmp is in memory");
    }
    read(&all);
    storage.drop_served(1..PAGE - 1, FilePart::First);
    assert_eq!(cached(file.as_file()), all, "parts of a page");
    storage.drop_served(1..4 * PAGE + 1, FilePart::First);
    if cached(file.as_file()) == all {
        return eprintln!("SKIPPED: /var/tmp keeps dropped pages, like overlayfs");
    }
    assert_eq!(cached(file.as_file()), [0, 4, 5, 6, 7, 8, 9, 10]);
    // The next part of the same file: the page that both share was served completely.
    storage.drop_served(4 * PAGE + 1..6 * PAGE, FilePart::Later);
    assert_eq!(cached(file.as_file()), [0, 6, 7, 8, 9, 10]);
    storage.drop_served(7 * PAGE..u64::MAX, FilePart::First);
    assert_eq!(cached(file.as_file()), [0, 6], "with the last page, which is not full");
    storage.drop_served(u64::MAX - 1..u64::MAX, FilePart::Later);
    read(&all);
}

/// Length of a file of several folios, in bytes.
const LEN: u64 = 16 << 20;

/// A file of `LEN` bytes on a disk that is not cached; `None`, with a message, if its pages
/// cannot be dropped.
fn uncached() -> Option<(tempfile::NamedTempFile, Arc<FileStorage>)> {
    let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    file.write_all(&vec![7; LEN as usize]).unwrap();
    file.as_file().sync_all().unwrap();
    let storage = Arc::new(FileStorage::open(file.path()).unwrap());
    storage.drop_cached(0, LEN);
    if storage.is_in_memory() || pages(&storage) > 0 {
        eprintln!("SKIPPED: /var/tmp keeps dropped pages");
        return None;
    }
    Some((file, storage))
}

/// The number of pages of a file of `LEN` bytes in the page cache.
fn pages(storage: &FileStorage) -> usize {
    let cached = storage.are_cached((0..LEN / PAGE).map(|page| page * PAGE));
    cached.into_iter().filter(|is_cached| *is_cached).count()
}

/// Drops a file of `LEN` bytes as if its contents were files of 80 KB.
fn drop_piecewise(storage: &FileStorage) {
    for start in (0..LEN).step_by(80_000) {
        storage.drop_served(start..(start + 80_000).min(LEN), FilePart::at(start));
    }
}

#[test]
fn pages_that_were_read_ahead_can_be_dropped_file_by_file() {
    let Some((_file, storage)) = uncached() else { return };
    let files = [Arc::clone(&storage)];
    let cache = Arc::new(ArchiveCache::default());
    let copies = serve(&files, &cache, FillScope::Everything, 0).unwrap();
    copies[0].wait(Duration::ZERO, |_| {}).unwrap();
    assert_eq!(pages(&storage), (LEN / PAGE) as usize);
    drop_piecewise(&storage);
    assert_eq!(pages(&storage), 0);
}

/// A complete copy of `storage` in `target`, and the file as read from there.
fn copied(storage: Arc<FileStorage>, target: File) -> (Arc<NearCopy>, Vec<Arc<FileStorage>>) {
    let room = Box::new(|| None);
    let (copy, copies) =
        near_copy(vec![storage], CopyTarget::New(target), "copy".into(), room).unwrap();
    let _fill = Fill::start(&copy).unwrap();
    copy.wait(Duration::ZERO, |_| {}).unwrap();
    (copy, copies)
}

#[test]
fn a_copy_on_a_disk_can_be_dropped() {
    let Some((_file, storage)) = uncached() else { return };
    let target = unlinked::create("/var/tmp".as_ref()).unwrap();
    let (copy, copies) = copied(storage, target);
    assert!(pages(&copies[0]) > 0);
    copy.drop_pages().unwrap();
    assert_eq!(pages(&copies[0]), 0);
    // What is read of it then can be dropped file by file.
    copies[0].serve(&Arc::new(ArchiveCache::default()), true, None);
    copies[0].read_contents_at(&mut vec![0; LEN as usize], 0, FilePart::First).unwrap();
    drop_piecewise(&copies[0]);
    assert_eq!(pages(&copies[0]), 0);
}

#[test]
fn files_in_memory_are_never_dropped() {
    let Ok(mut file) = tempfile::NamedTempFile::new_in("/dev/shm") else {
        return eprintln!("SKIPPED: no /dev/shm");
    };
    file.write_all(&[7; PAGE as usize]).unwrap();
    let storage = Arc::new(FileStorage::open(file.path()).unwrap());
    assert!(storage.is_in_memory());
    let switch = Arc::new(ArchiveCache::default());
    switch.set_drops(true);
    let target = unlinked::create("/dev/shm".as_ref()).unwrap();
    let (_copy, copies) = copied(Arc::clone(&storage), target);
    for storage in [&storage, &copies[0]] {
        storage.serve(&switch, true, None);
        assert!(!storage.drops_served());
    }
}

#[test]
fn readahead_of_the_head_does_not_continue_in_the_contents() {
    let Some((_file, storage)) = uncached() else { return };
    storage.read_exact_at(&mut [0; 1024], 0).unwrap();
    storage.serve(&Arc::new(ArchiveCache::default()), true, None);
    for part in 0..64 {
        storage.read_contents_at(&mut [0; 32 << 10], part * (32 << 10), FilePart::First).unwrap();
    }
    assert_eq!(pages(&storage), 64 * 8);
}

#[test]
fn the_kernel_reads_around_contents_only_a_little() {
    assert!(reads_little_ahead(Some(AROUND_MAX)));
    assert!(!reads_little_ahead(Some(AROUND_MAX + 1)));
    assert!(!reads_little_ahead(None));
}

/// As on NFS with its default.
#[test]
fn the_kernel_reads_around_contents_while_there_is_room() {
    let Some((_file, storage)) = uncached() else { return };
    let mut storage = Arc::into_inner(storage).unwrap();
    let cache = Arc::new(ArchiveCache::default());
    storage.serve(&cache, true, None);
    storage.serving.get_mut().unwrap().gains_from_readahead = true;
    // Two neighbors, of which the second is read as `part`.
    let pages_of = |part: FilePart| {
        storage.drop_cached(0, storage.len());
        for (offset, part) in [(1 << 20, FilePart::First), ((1 << 20) + (32 << 10), part)] {
            storage.read_contents_at(&mut [0; 32 << 10], offset, part).unwrap();
        }
        pages(&storage)
    };
    assert_eq!(pages_of(FilePart::First), 16);
    cache.set_has_room(true);
    assert!(pages_of(FilePart::First) > 16);
    assert_eq!(pages_of(FilePart::Later), 16, "the end of a file");
    storage.drop_read_around();
    assert_eq!(pages(&storage), 0);
    cache.set_drops(true);
    assert_eq!(pages_of(FilePart::First), 16);
}

#[test]
fn contents_are_read_without_what_lies_around_them() {
    let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    file.write_all(&vec![7; 4 << 20]).unwrap();
    file.as_file().sync_all().unwrap();
    let storage = FileStorage::open(file.path()).unwrap();
    storage.serve(&Arc::new(ArchiveCache::default()), true, None);
    let pages = |storage: &FileStorage| {
        let offsets = (0..1024).map(|page| page * PAGE);
        storage.are_cached(offsets).into_iter().filter(|is_cached| *is_cached).count()
    };
    storage.drop_cached(0, 4 << 20);
    if storage.is_in_memory() || pages(&storage) > 0 {
        return eprintln!("SKIPPED: /var/tmp keeps dropped pages");
    }
    // Reads in order, for which the kernel would read ahead.
    for part in 0..8 {
        storage.read_contents_at(&mut [0; 32 << 10], part * (32 << 10), FilePart::First).unwrap();
    }
    assert_eq!(pages(&storage), 64);
    // The end of a file of 260 KiB.
    storage.read_contents_at(&mut [0; 4 << 10], 256 << 10, FilePart::Later).unwrap();
    assert_eq!(pages(&storage), 65);
    storage.will_need(1 << 20, 1 << 20);
    storage.read_contents_at(&mut [0; 32 << 10], (2 << 20) - (32 << 10), FilePart::First).unwrap();
    assert_eq!(pages(&storage), 65 + 256, "what is asked for by name");
}
