//! Whether the page cache of an archive keeps what was handed out.
//!
//! The kernel caches what a mount reads, so what archfs read for it is in memory twice: as pages of
//! the mount, and as pages of the archive. A dataset that fits into memory once but not twice would
//! then be read from storage in every epoch. So where both do not fit, the pages of the archive are
//! dropped as soon as they were served. `lifecycle` decides; this is the switch.

use crate::sync::{AtomicBool, Ordering};

/// The switch of a mount, shared by its archives.
#[derive(Debug, Default)]
pub struct ArchiveCache {
    drops: AtomicBool,
}

impl ArchiveCache {
    /// Whether served pages are dropped.
    pub fn drops(&self) -> bool {
        self.drops.load(Ordering::Relaxed)
    }

    /// Drops served pages from now on, or keeps them.
    pub fn set_drops(&self, drops: bool) {
        self.drops.store(drops, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;
    use crate::os::page_cache;
    use crate::storage::{FileStorage, Storage};
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
        storage.serve(&switch, true);
        assert!(!storage.drops_served(), "pages are kept by default");
        switch.set_drops(true);
        if !storage.drops_served() {
            return eprintln!("SKIPPED: /var/tmp is in memory");
        }
        storage.drop_served(1..PAGE - 1, false);
        assert_eq!(cached(file.as_file()), all, "parts of a page");
        storage.drop_served(1..4 * PAGE + 1, false);
        if cached(file.as_file()) == all {
            return eprintln!("SKIPPED: /var/tmp keeps dropped pages, like overlayfs");
        }
        assert_eq!(cached(file.as_file()), [0, 4, 5, 6, 7, 8, 9, 10]);
        // The next part of the same file: the page that both share was served completely.
        storage.drop_served(4 * PAGE + 1..6 * PAGE, true);
        assert_eq!(cached(file.as_file()), [0, 6, 7, 8, 9, 10]);
        storage.drop_served(7 * PAGE..u64::MAX, false);
        assert_eq!(cached(file.as_file()), [0, 6], "with the last page, which is not full");
        storage.drop_served(u64::MAX - 1..u64::MAX, true);
        read(&all);
    }

    #[test]
    fn contents_are_read_without_what_lies_around_them() {
        let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        file.write_all(&vec![7; 4 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        let storage = FileStorage::open(file.path()).unwrap();
        storage.serve(&Arc::new(ArchiveCache::default()), true);
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
            storage.read_contents_at(&mut [0; 32 << 10], part * (32 << 10)).unwrap();
        }
        assert_eq!(pages(&storage), 64);
        storage.will_need(1 << 20, 1 << 20);
        storage.read_contents_at(&mut [0; 32 << 10], (2 << 20) - (32 << 10)).unwrap();
        assert_eq!(pages(&storage), 64 + 256, "what is asked for by name");
    }
}
