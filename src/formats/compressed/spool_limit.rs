//! What the temporary files of all compressed archives of a mount may take together.
//!
//! On a disk that is half of what was free when the first file was made. Files of a tmpfs are
//! memory of the job, so they get no more than the job has left beside the cache, and that is
//! looked at again while they grow.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::memory::{self, Headroom};
use crate::storage::{free_bytes, is_in_memory};
use crate::sync::{Arc, Mutex};
use crate::units::Size;

/// Memory that stays free beside files in memory and the cache, bytes.
const SPARE: u64 = 16 << 20;

/// The limit, measured when the first file is made.
#[derive(Debug, Default)]
pub(crate) struct SpoolLimit {
    /// What the cache may take, bytes.
    cache: u64,
    /// Guards the rest of the limit; taken alone, never while a file is written.
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
struct State {
    /// Bytes that all files may take, and that are not granted yet.
    most: u64,
    left: u64,
    /// What the job had left, for files in memory.
    memory: Option<Headroom>,
    /// Memory sets the limit, not the file system.
    is_by_memory: bool,
}

impl SpoolLimit {
    /// A limit for files beside a cache that may take `cache` bytes.
    pub(super) fn beside(cache: u64) -> Arc<Self> {
        Arc::new(Self { cache, state: Mutex::default() })
    }

    /// A limit of `most` bytes.
    #[cfg(test)]
    pub(super) fn of(most: u64) -> Arc<Self> {
        let state = Mutex::new(Some(State { most, left: most, memory: None, is_by_memory: false }));
        Arc::new(Self { cache: 0, state })
    }

    /// Sets the limit by where `file` is, unless that was done for another file.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn measure(&self, file: &File) -> io::Result<()> {
        let half = free_bytes(file)?.unwrap_or(u64::MAX) / 2;
        let memory = if is_in_memory(file) { memory::headroom() } else { None };
        let beside = |left: Headroom| left.bytes.saturating_sub(self.cache).saturating_sub(SPARE);
        let most = memory.map_or(half, |left| half.min(beside(left)));
        let is_by_memory = most < half;
        self.state.lock().get_or_insert(State { most, left: most, memory, is_by_memory });
        Ok(())
    }

    /// Bytes that files may still take.
    pub(super) fn left(&self) -> u64 {
        self.state.lock().as_ref().map_or(0, |state| state.left)
    }

    /// Grants up to `most` bytes; `None` where not even `least` are left.
    pub(super) fn take(&self, least: u64, most: u64) -> Option<u64> {
        let is_in_memory = self.state.lock().as_ref()?.memory.is_some();
        // Others may have taken memory since.
        let needed = least.saturating_add(SPARE);
        let is_short = is_in_memory && memory::headroom().is_some_and(|left| left.bytes < needed);
        let mut state = self.state.lock();
        let state = state.as_mut()?;
        state.is_by_memory |= is_short;
        if is_short || state.left < least {
            return None;
        }
        let granted = state.left.min(most);
        state.left = state.left.saturating_sub(granted);
        Some(granted)
    }

    /// Takes back what was granted.
    pub(super) fn give_back(&self, bytes: u64) {
        if let Some(state) = self.state.lock().as_mut() {
            state.left = state.left.saturating_add(bytes).min(state.most);
        }
    }

    /// What to say of files in `directory` that are too large.
    pub(super) fn exceeded(&self, directory: &Path) -> String {
        let directory = directory.display();
        let (most, memory) = {
            let state = self.state.lock();
            let by_memory = state.as_ref().filter(|state| state.is_by_memory);
            (state.as_ref().map_or(0, |state| state.most), by_memory.and_then(|state| state.memory))
        };
        match memory {
            Some(Headroom { bytes, bound }) => format!(
                "decoded it takes more than {most} bytes of memory, for {directory} is in memory; \
                 {} {}, and the cache may take {} (--cache)",
                bound.leaves(),
                Size(bytes),
                Size(self.cache)
            ),
            None => format!(
                "decoded it takes more than {most} bytes, half of what was free in {directory}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_of_a_mount_share_one_limit() {
        let limit = SpoolLimit::of(100);
        assert_eq!(limit.take(10, 60), Some(60));
        assert_eq!(limit.take(10, 60), Some(40));
        assert_eq!(limit.take(1, 60), None, "two files have taken all");
        limit.give_back(40);
        assert_eq!((limit.take(41, 60), limit.take(40, 60)), (None, Some(40)));
    }

    #[test]
    fn files_in_memory_get_what_the_cache_leaves_of_the_job() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let left = memory::headroom().unwrap().bytes;
        let limit = SpoolLimit::beside(left);
        limit.measure(&file).unwrap();
        assert_eq!(limit.left(), 0, "the cache may take all");
        assert!(limit.exceeded(Path::new("/x")).contains("of memory"));
        let limit = SpoolLimit::beside(0);
        limit.measure(&file).unwrap();
        assert!(limit.left() > 0 && limit.left() < left);
        let limit = SpoolLimit::of(1);
        assert!(limit.exceeded(Path::new("/x")).contains("half of what was free in /x"));
    }

    #[test]
    fn a_limit_is_measured_once() {
        let limit = SpoolLimit::of(7);
        limit.measure(&tempfile::tempfile().unwrap()).unwrap();
        assert_eq!(limit.left(), 7);
    }
}
