//! The size limit of all temporary files of a mount.
//!
//! On a disk, the limit is half of the space that was free when the first file was created. Files
//! in a tmpfs use memory of the job, and are limited to what the job has left beside the cache.
//! That is checked again while they grow.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::os::memory::{self, Headroom};
use crate::os::unlinked::{free_bytes, is_in_memory};
use crate::sync::{Arc, Mutex};
use crate::units::Size;

/// Memory that stays free beside the cache and files in memory, bytes.
const SPARE: u64 = 16 << 20;

/// The limit, measured when the first file is created.
#[derive(Debug, Default)]
pub(crate) struct SpoolLimit {
    /// The most bytes the cache may use.
    cache: u64,
    /// Guards the rest of the limit. Never held together with another lock, or while a file is
    /// written.
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
struct State {
    /// Bytes that all files may use together, and bytes that are not granted yet.
    total: u64,
    left: u64,
    /// The memory that the job had left, for files in memory.
    memory: Option<Headroom>,
    /// Memory sets the limit, not the free space of the file system.
    memory_bound: bool,
}

impl SpoolLimit {
    /// A limit for files beside a cache of at most `cache` bytes.
    pub(super) fn for_cache(cache: u64) -> Arc<Self> {
        Arc::new(Self { cache, state: Mutex::default() })
    }

    /// A limit of `total` bytes.
    #[cfg(test)]
    pub(super) fn fixed(total: u64) -> Arc<Self> {
        let state =
            Mutex::new(Some(State { total, left: total, memory: None, memory_bound: false }));
        Arc::new(Self { cache: 0, state })
    }

    /// Sets the limit from the file system of `file`, unless it was set for an earlier file.
    pub(super) fn measure(&self, file: &File) -> io::Result<()> {
        let half = free_bytes(file)?.unwrap_or(u64::MAX) / 2;
        let memory = if is_in_memory(file) { memory::headroom() } else { None };
        let available =
            |left: Headroom| left.bytes.saturating_sub(self.cache).saturating_sub(SPARE);
        let total = memory.map_or(half, |left| half.min(available(left)));
        let memory_bound = total < half;
        self.state.lock().get_or_insert(State { total, left: total, memory, memory_bound });
        Ok(())
    }

    /// Bytes that are not granted yet.
    pub(super) fn left(&self) -> u64 {
        self.state.lock().as_ref().map_or(0, |state| state.left)
    }

    /// Grants up to `max` bytes; `None` if less than `min` are left.
    pub(super) fn grant(&self, min: u64, max: u64) -> Option<u64> {
        let is_in_memory = self.state.lock().as_ref()?.memory.is_some();
        // Other processes of the job may have used memory since.
        let needed = min.saturating_add(SPARE);
        let is_short = is_in_memory && memory::headroom().is_some_and(|left| left.bytes < needed);
        let mut state = self.state.lock();
        let state = state.as_mut()?;
        state.memory_bound |= is_short;
        if is_short || state.left < min {
            return None;
        }
        let granted = state.left.min(max);
        state.left = state.left.saturating_sub(granted);
        Some(granted)
    }

    /// Returns granted bytes.
    pub(super) fn give_back(&self, bytes: u64) {
        if let Some(state) = self.state.lock().as_mut() {
            state.left = state.left.saturating_add(bytes).min(state.total);
        }
    }

    /// The message for files in `directory` that exceed the limit.
    pub(super) fn exceeded(&self, directory: &Path) -> String {
        let directory = directory.display();
        let (most, memory) = {
            let state = self.state.lock();
            let by_memory = state.as_ref().filter(|state| state.memory_bound);
            (
                state.as_ref().map_or(0, |state| state.total),
                by_memory.and_then(|state| state.memory),
            )
        };
        match memory {
            Some(Headroom { bytes, bound }) => format!(
                "decompressed, it takes more than {most} bytes of memory, because {directory} is in memory; \
                 {} {}, and the cache may take {} (--cache)",
                bound.leaves(),
                Size(bytes),
                Size(self.cache)
            ),
            None => format!(
                "decompressed, it takes more than {most} bytes, half of what was free in {directory}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_of_a_mount_share_one_limit() {
        let limit = SpoolLimit::fixed(100);
        assert_eq!(limit.grant(10, 60), Some(60));
        assert_eq!(limit.grant(10, 60), Some(40));
        assert_eq!(limit.grant(1, 60), None, "two files have taken all");
        limit.give_back(40);
        assert_eq!((limit.grant(41, 60), limit.grant(40, 60)), (None, Some(40)));
    }

    #[test]
    fn files_in_memory_get_the_memory_left_by_the_cache() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let left = memory::headroom().unwrap().bytes;
        let limit = SpoolLimit::for_cache(left);
        limit.measure(&file).unwrap();
        assert_eq!(limit.left(), 0, "the cache may take all");
        assert!(limit.exceeded(Path::new("/x")).contains("of memory"));
        let limit = SpoolLimit::for_cache(0);
        limit.measure(&file).unwrap();
        assert!(limit.left() > 0 && limit.left() < left);
        let limit = SpoolLimit::fixed(1);
        assert!(limit.exceeded(Path::new("/x")).contains("half of what was free in /x"));
    }

    #[test]
    fn a_limit_is_measured_once() {
        let limit = SpoolLimit::fixed(7);
        limit.measure(&tempfile::tempfile().unwrap()).unwrap();
        assert_eq!(limit.left(), 7);
    }
}
