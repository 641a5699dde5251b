//! More files than a process may have open at once, of which as many are open as it may.
//!
//! Owns which files stay open; leaves opening and reading to `file`.
//! Invariant: at most `limit` files of a pool are open, but for those that a read is using just
//! now.

use std::collections::VecDeque;
use std::fs::File;
use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{Error, Result};
use crate::sync::{Arc, Mutex, Weak};

/// Descriptors that a process needs besides the archives.
const OTHERS: u64 = 32;

/// A file's place in a pool: open or not. Guards nothing but the handle; taken with no other lock
/// held, and never over I/O.
pub(super) type Slot = Mutex<Option<Arc<File>>>;

/// Files that share an allowance.
#[derive(Debug)]
pub struct FilePool {
    limit: usize,
    /// Those that are open, the one opened first in front: which one is closed hardly matters,
    /// since reads of a shuffled epoch go to all of them. Taken with no other lock held.
    open: Mutex<VecDeque<Weak<Slot>>>,
}

impl FilePool {
    /// A pool of `limit` open files.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), open: Mutex::new(VecDeque::new()) })
    }

    /// How many files a pool may have open in this process: half of what the system allows, since
    /// connections, threads and libraries need some, too, and these a certain number at least.
    pub fn room() -> usize {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let room = (limit / 2).min(limit.saturating_sub(OTHERS));
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Asks the system for as many open files as this process may ask for.
    pub fn enlarge_room() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // Refused, the limit stays what it was, and `room` says so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }

    /// The file of `slot`, opened by `open` if it is not.
    pub(super) fn file(
        &self,
        slot: &Arc<Slot>,
        open: impl Fn() -> Result<File>,
    ) -> Result<Arc<File>> {
        if let Some(file) = slot.lock().as_ref() {
            return Ok(Arc::clone(file));
        }
        // Who else took all descriptors, such as holders of the mount, shall not cost a reader his
        // file while this pool has others.
        let file = loop {
            match open() {
                Ok(file) => break file,
                Err(error) if is_out_of_descriptors(&error) && self.close_oldest() => {}
                Err(error) => return Err(error),
            }
        };
        Ok(self.keep(slot, file))
    }

    /// Has `slot` hold `file`, and closes another where there are too many.
    pub(super) fn keep(&self, slot: &Arc<Slot>, file: File) -> Arc<File> {
        let file = Arc::new(file);
        // Somebody else may have been quicker; then this file closes again.
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

    /// Closes the file that was opened first; tells whether there was one.
    fn close_oldest(&self) -> bool {
        let Some(oldest) = self.open.lock().pop_front() else {
            return false;
        };
        let closing = oldest.upgrade().and_then(|slot| slot.lock().take());
        drop(closing);
        true
    }
}

/// Whether `error` is that this process, or the node, may have no more files open.
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
    fn any_number_of_files_is_read_with_few_of_them_open() {
        let work = tempfile::tempdir().unwrap();
        let pool = FilePool::new(10);
        let before = open_files();
        let files: Vec<_> = (0..300_u32)
            .map(|number| {
                let path = work.path().join(number.to_string());
                std::fs::write(&path, number.to_le_bytes()).unwrap();
                FileStorage::open_in(&path, &pool, Changes::default()).unwrap()
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
        // Other tests of this process have files open, too.
        assert!(open_files() < before + 100, "{} open", open_files());
    }

    #[test]
    fn closes_files_of_its_own_where_others_took_all_descriptors() {
        let work = tempfile::tempdir().unwrap();
        let pool = FilePool::new(3);
        let paths: Vec<_> = (0..4).map(|number| work.path().join(number.to_string())).collect();
        let open = |path: &std::path::PathBuf| {
            std::fs::write(path, "x").unwrap();
            FileStorage::open_in(path, &pool, Changes::default()).unwrap()
        };
        let files: Vec<_> = paths.iter().map(open).collect();
        let tries = std::cell::Cell::new(0);
        let refuse_twice = || {
            tries.set(tries.get() + 1);
            match tries.get() {
                1 | 2 => {
                    let refused = Error::io("can not open", Errno::MFILE.into());
                    Err(Error::new(Kind::Io, "again").with_source(refused))
                }
                _ => Ok(File::open(&paths[0]).unwrap()),
            }
        };
        let slot = Arc::new(Slot::default());
        pool.file(&slot, refuse_twice).unwrap();
        assert_eq!((tries.get(), pool.open.lock().len()), (3, 2));
        // What it closed it opens again; with nothing left to close the error is told.
        files.iter().for_each(|file| file.read_exact_at(&mut [0], 0).unwrap());
        let refuse = || Err(Error::io("can not open", Errno::MFILE.into()));
        let error = pool.file(&Arc::new(Slot::default()), refuse).unwrap_err();
        assert!(error.to_string().contains("Too many open files"), "{error}");
        assert_eq!(pool.open.lock().len(), 0);
        files.iter().for_each(|file| file.read_exact_at(&mut [0], 0).unwrap());
    }

    #[test]
    fn a_file_that_was_replaced_is_not_read_as_the_old_one() {
        let work = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| work.path().join(name));
        std::fs::write(&a, "old").unwrap();
        std::fs::write(&b, "another").unwrap();
        let pool = FilePool::new(1);
        let [first, second] =
            [&a, &b].map(|path| FileStorage::open_in(path, &pool, Changes::default()).unwrap());
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
