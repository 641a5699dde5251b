//! Daemons of this user that share one budget for their caches.
//!
//! Each names its job in its record, and counts while its record file is locked. inotify(7) reports
//! changes: a record is written, removed, or closed when its daemon ends. The kernel reports a
//! closed file a moment before it frees the lock.

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use super::lock::MountLock;
use super::record::{RECORD_SUFFIX, Record};
use super::state::RecordSnapshot;
use crate::error::{Error, Result};
use crate::os::process::ProcessId;

/// What is watched in the directory of the record.
const WATCHED: WatchFlags =
    WatchFlags::MODIFY.union(WatchFlags::DELETE).union(WatchFlags::CLOSE_WRITE);

/// The daemons that share a cache budget with this one.
#[derive(Debug)]
pub(crate) struct Peers {
    job: String,
    directory: PathBuf,
    changes: OwnedFd,
    /// The watch descriptor of the directory in `changes`.
    watch: i32,
}

impl Peers {
    /// The daemons that share a budget with the holder of `lock`; `None` if its record names no
    /// job. Watches only the directory of that record; `count` looks in all directories of this
    /// user on the node. If the record moves to another directory, call `renew_watch`.
    pub(crate) fn of(lock: &MountLock) -> Result<Option<Self>> {
        let Some(job) = lock.record().and_then(|record| record.job) else {
            return Ok(None);
        };
        let directory = lock.record_directory();
        let changes =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).and_then(|changes| {
                let watch = inotify::add_watch(&changes, directory, WATCHED)?;
                Ok((changes, watch))
            });
        let (changes, watch) = changes.map_err(|error| {
            let context =
                format!("{}: cannot share the cache budget of the job", directory.display());
            Error::io(context, error.into())
        })?;
        Ok(Some(Self { job, directory: directory.to_owned(), changes, watch }))
    }

    /// Watches `directory`, which contains the record now, instead of the one before; returns
    /// whether it is another directory. A directory that was removed and created again at the same
    /// path is another one.
    pub(crate) fn renew_watch(&mut self, directory: &Path) -> bool {
        // The kernel returns the old watch if it watches that directory already.
        match inotify::add_watch(&self.changes, directory, WATCHED) {
            Ok(watch) if watch != self.watch => {
                let _ = inotify::remove_watch(&self.changes, self.watch);
                self.watch = watch;
                self.directory = directory.to_owned();
                true
            }
            Ok(_) => false,
            Err(error) => {
                log::info!("{}: cannot watch the records of mounts: {error}", directory.display());
                false
            }
        }
    }

    /// The number of daemons that share the budget, including this one.
    pub(crate) fn count(&self) -> usize {
        let all = RecordSnapshot::all_on_node(Some(&self.directory), |_| true).into_iter();
        let shares = |snapshot: &RecordSnapshot| {
            let record = snapshot.record.as_ref().filter(|_| snapshot.was_locked);
            record.is_some_and(|record| record.job.as_deref() == Some(&self.job))
        };
        all.filter(shares).count().max(1)
    }

    /// Becomes readable when the count may have changed.
    pub(crate) fn changes(&self) -> &OwnedFd {
        &self.changes
    }

    /// Removes the watch. Returns the descriptor, which the caller should close last. The kernel
    /// frees a watch in the background, and close(2) waits for that: 13 ms on Linux 6.18.
    pub(crate) fn stop(self) -> OwnedFd {
        let _ = inotify::remove_watch(&self.changes, self.watch);
        self.changes
    }

    /// Whether a record changed since the last call. Does not block.
    pub(crate) fn take_changes(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.changes, &mut buffer);
        let mut changed = false;
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| name.to_bytes());
            let is_record = name.is_none_or(|name| name.ends_with(RECORD_SUFFIX.as_bytes()));
            changed |= is_record || event.events().contains(ReadFlags::QUEUE_OVERFLOW);
        }
        changed
    }
}

/// Whether another daemon of this user on this node serves one of `archives`.
pub(crate) fn is_served_by_others(archives: &[PathBuf]) -> bool {
    let own = ProcessId::own().ok();
    let serves = |record: Option<&Record>| {
        record.is_some_and(|record| {
            Some(record.process) != own
                && record.is_of_this_node()
                && record.archives.iter().any(|archive| archives.contains(archive))
        })
    };
    // Reading the state of a lock takes it for a moment, so this reads only those of matching
    // records.
    RecordSnapshot::all_on_node(None, serves).iter().any(|snapshot| snapshot.was_locked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(mount_point: &Path, job: &str) -> MountLock {
        let record = Record { job: Some(job.to_owned()), ..Record::for_tests(mount_point) };
        MountLock::try_acquire(&record).unwrap().unwrap()
    }

    #[test]
    fn watches_the_directory_to_which_the_record_has_moved() {
        let work = tempfile::tempdir().unwrap();
        let own = lock(&work.path().join("own"), "test-moved");
        let mut peers = Peers::of(&own).unwrap().unwrap();
        assert!(!peers.renew_watch(own.record_directory()), "it has not moved");
        assert!(peers.renew_watch(work.path()));
        peers.take_changes();
        std::fs::write(work.path().join("a.mount"), "record").unwrap();
        assert!(peers.take_changes());
        own.remove();
    }

    #[test]
    fn counts_only_live_daemons_of_the_same_job() {
        let work = tempfile::tempdir().unwrap();
        let path = |name: &str| work.path().join(name);
        let own = lock(&path("own"), "test-peers");
        let peers = Peers::of(&own).unwrap().unwrap();
        assert_eq!(peers.count(), 1);
        for (job, count) in [("test-peers", 2), ("test-peers-2", 1)] {
            peers.take_changes();
            let other = lock(&path("other"), job);
            assert!(peers.take_changes());
            assert_eq!(peers.count(), count, "{job}");
            // Like a killed daemon, which only closes its files.
            drop(other);
            assert!(peers.take_changes(), "the end of a daemon, however it ends");
            assert_eq!(peers.count(), 1, "{job}");
            lock(&path("other"), job).remove();
        }
        own.remove();
    }
}
