//! A pool of files of which only a limited number is open at a time.
//!
//! Invariant: at most `limit` files of a pool are open, not counting those in use by a read.

use std::collections::VecDeque;
use std::fs::File;
use std::io;

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::os::process;
use crate::sync::{Arc, Mutex, Weak};

/// Descriptors the process needs for other purposes.
const OTHERS: u64 = 32;

/// One file of a pool, open or not. Guards only the handle. No other lock is held while it is
/// taken, and no I/O runs under it.
pub(super) type Slot = Mutex<Option<Arc<File>>>;

/// Files that share a limit of open descriptors.
#[derive(Debug)]
pub(super) struct FilePool {
    limit: usize,
    /// Slots with an open file, oldest first. Eviction order hardly matters, because a shuffled
    /// epoch reads all files equally. No other lock is held while this one is taken.
    open: Mutex<VecDeque<Weak<Slot>>>,
}

impl FilePool {
    /// A pool of at most `limit` open files.
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), open: Mutex::new(VecDeque::new()) })
    }

    /// How many files a pool may keep open: half the process's limit, because connections, threads
    /// and libraries also need descriptors. At least `OTHERS` descriptors stay free.
    pub(super) fn room() -> usize {
        let limit = process::open_files_max();
        let room = (limit / 2).min(limit.saturating_sub(OTHERS));
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// The file of `slot`; calls `open` if it is closed.
    pub(super) fn file(
        &self,
        slot: &Arc<Slot>,
        open: impl Fn() -> Result<File>,
    ) -> Result<Arc<File>> {
        if let Some(file) = slot.lock().as_ref() {
            return Ok(Arc::clone(file));
        }
        // Other code, such as connections of holders, may use up all descriptors. A read must not
        // fail for that while this pool can close a file.
        let file = loop {
            match open() {
                Ok(file) => break file,
                Err(error) if is_out_of_descriptors(&error) && self.close_oldest() => {}
                Err(error) => return Err(error),
            }
        };
        Ok(self.keep(slot, file))
    }

    /// Stores `file` in `slot`; closes another file if there are too many.
    pub(super) fn keep(&self, slot: &Arc<Slot>, file: File) -> Arc<File> {
        let file = Arc::new(file);
        // If another thread was faster, its file is used and this one closes.
        let mut held = slot.lock();
        if let Some(file) = held.as_ref() {
            return Arc::clone(file);
        }
        *held = Some(Arc::clone(&file));
        drop(held);
        let is_full = {
            let mut open = self.open.lock();
            open.push_back(Arc::downgrade(slot));
            open.len() > self.limit
        };
        if is_full {
            self.close_oldest();
        }
        file
    }

    /// Closes the file that was opened first. Returns whether there was one.
    fn close_oldest(&self) -> bool {
        let Some(oldest) = self.open.lock().pop_front() else {
            return false;
        };
        let closing = oldest.upgrade().and_then(|slot| slot.lock().take());
        drop(closing);
        true
    }
}

/// Whether `error` means that the process or the node has too many open files.
fn is_out_of_descriptors(error: &Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        let number = error.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
        if matches!(number, Some(Errno::MFILE | Errno::NFILE)) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::{Changes, FileStorage, Storage};
    use super::*;
    use crate::error::Kind;

    fn open_files() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn reads_many_files_with_few_of_them_open() {
        let work = tempfile::tempdir().unwrap();
        let pool = FilePool::new(10);
        let before = open_files();
        let files: Vec<_> = (0..300_u32)
            .map(|number| {
                let path = work.path().join(number.to_string());
                std::fs::write(&path, number.to_le_bytes()).unwrap();
                FileStorage::open_in(&path, Changes::default(), Some(&pool)).unwrap()
            })
            .collect();
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let files = &files;
                scope.spawn(move || {
                    for turn in 0..2000 {
                        let number = (turn * 7919 + thread * 31) % files.len();
                        let mut bytes = [0; 4];
                        files[number].read_exact_at(&mut bytes, 0).unwrap();
                        assert_eq!(u32::from_le_bytes(bytes), number as u32);
                    }
                });
            }
        });
        // Other tests of this process have open files too.
        assert!(open_files() < before + 100, "{} open", open_files());
    }

    #[test]
    fn closes_its_own_files_if_no_descriptors_are_left() {
        let work = tempfile::tempdir().unwrap();
        let pool = FilePool::new(3);
        let paths: Vec<_> = (0..4).map(|number| work.path().join(number.to_string())).collect();
        let open = |path: &std::path::PathBuf| {
            std::fs::write(path, "x").unwrap();
            FileStorage::open_in(path, Changes::default(), Some(&pool)).unwrap()
        };
        let files: Vec<_> = paths.iter().map(open).collect();
        let tries = std::cell::Cell::new(0);
        let refuse_twice = || {
            tries.set(tries.get() + 1);
            match tries.get() {
                1 | 2 => {
                    let refused = Error::io("cannot open", Errno::MFILE.into());
                    Err(Error::new(Kind::Io, "again").with_source(refused))
                }
                _ => Ok(File::open(&paths[0]).unwrap()),
            }
        };
        let slot = Arc::new(Slot::default());
        pool.file(&slot, refuse_twice).unwrap();
        assert_eq!((tries.get(), pool.open.lock().len()), (3, 2));
        // It reopens the files it closed. With none left to close, it reports the error.
        files.iter().for_each(|file| file.read_exact_at(&mut [0], 0).unwrap());
        let refuse = || Err(Error::io("cannot open", Errno::MFILE.into()));
        let error = pool.file(&Arc::new(Slot::default()), refuse).unwrap_err();
        assert!(error.to_string().contains("Too many open files"), "{error}");
        assert_eq!(pool.open.lock().len(), 0);
        files.iter().for_each(|file| file.read_exact_at(&mut [0], 0).unwrap());
    }

    #[test]
    fn a_replaced_file_is_not_read() {
        let work = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| work.path().join(name));
        std::fs::write(&a, "old").unwrap();
        std::fs::write(&b, "another").unwrap();
        let pool = FilePool::new(1);
        let [first, second] = [&a, &b]
            .map(|path| FileStorage::open_in(path, Changes::default(), Some(&pool)).unwrap());
        let mut bytes = [0; 3];
        first.read_exact_at(&mut bytes, 0).unwrap();
        second.read_exact_at(&mut bytes, 0).unwrap();
        std::fs::write(work.path().join("new"), "new").unwrap();
        std::fs::rename(work.path().join("new"), &a).unwrap();
        let error = first.read_exact_at(&mut bytes, 0).unwrap_err();
        assert_eq!(error.kind(), Kind::Io, "{error}");
        assert!(error.to_string().contains("replaced"), "{error}");
    }
}
