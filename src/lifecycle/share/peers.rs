//! Daemons of this user that share one budget for their caches.
//!
//! Each names its job in its record, so a daemon counts as long as its record file is locked.
//! Changes are seen by inotify(7): a record that is written, goes, or is closed by the end of its
//! daemon. The kernel reports a closed file a moment before its lock is free.

use std::mem::MaybeUninit;

use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::process::geteuid;

use super::lock::{RECORD, RecordFile};
use super::registry::Registry;
use crate::error::{Error, Result};

/// The daemons that share with this one.
#[derive(Debug)]
pub(in crate::lifecycle) struct Peers {
    job: String,
    changes: OwnedFd,
    /// What of `changes` watches the directory.
    watch: i32,
}

impl Peers {
    /// The daemons of `job` whose records are in `registry`, where that of this daemon is, or in
    /// another directory of this user.
    ///
    /// # Errors
    /// `Io` where the directory cannot be watched.
    pub(super) fn of(job: &str, registry: &Registry) -> Result<Self> {
        let directory = registry.directory();
        let watched = WatchFlags::MODIFY | WatchFlags::DELETE | WatchFlags::CLOSE_WRITE;
        let changes =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).and_then(|changes| {
                let watch = inotify::add_watch(&changes, directory, watched)?;
                Ok((changes, watch))
            });
        let (changes, watch) = changes.map_err(|error| {
            let context = format!("{}: cannot share the budget of the job", directory.display());
            Error::io(context, error.into())
        })?;
        Ok(Self { job: job.to_owned(), changes, watch })
    }

    /// How many daemons share, this one included.
    pub(in crate::lifecycle) fn count(&self) -> usize {
        let all = RecordFile::all_of(geteuid().as_raw()).into_iter();
        let shares = |file: &RecordFile| {
            let record = file.record.as_ref().filter(|_| file.is_locked);
            record.is_some_and(|record| record.job.as_deref() == Some(&self.job))
        };
        all.filter(shares).count().max(1)
    }

    /// Becomes readable when the count may have changed.
    pub(in crate::lifecycle) fn changes(&self) -> &OwnedFd {
        &self.changes
    }

    /// Watches no longer. Returns the descriptor, to be closed last: the kernel frees a watch in
    /// the background, and whoever closes its descriptor waits for that, 13 ms on Linux 6.18.
    pub(in crate::lifecycle) fn stop(self) -> OwnedFd {
        let _ = inotify::remove_watch(&self.changes, self.watch);
        self.changes
    }

    /// Whether anything changed since the last call; waits for nothing.
    pub(in crate::lifecycle) fn take_changes(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.changes, &mut buffer);
        let mut changed = false;
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| name.to_bytes());
            let is_record = name.is_none_or(|name| name.ends_with(RECORD.as_bytes()));
            changed |= is_record || event.events().contains(ReadFlags::QUEUE_OVERFLOW);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::lock::MountLock;
    use super::super::record::{self, Record};

    fn lock(mount_point: &Path, job: &str) -> MountLock {
        let record = Record {
            process: "1:1".parse().unwrap(),
            mount: None,
            creates: false,
            is_ending: false,
            node: record::node(),
            job: Some(job.to_owned()),
            identity: "x".to_owned(),
            archives: vec![],
            mount_point: mount_point.to_owned(),
        };
        MountLock::try_acquire(&record).unwrap().unwrap()
    }

    #[test]
    fn counts_the_live_daemons_of_the_job_and_no_others() {
        let work = tempfile::tempdir().unwrap();
        let at = |name: &str| work.path().join(name);
        let own = lock(&at("own"), "test-peers");
        let peers = own.peers().unwrap().unwrap();
        assert_eq!(peers.count(), 1);
        for (job, count) in [("test-peers", 2), ("test-peers-2", 1)] {
            peers.take_changes();
            let other = lock(&at("other"), job);
            assert!(peers.take_changes());
            assert_eq!(peers.count(), count, "{job}");
            // A killed daemon closes its files and does nothing more.
            drop(other);
            assert!(peers.take_changes(), "the end of a daemon, however it ends");
            assert_eq!(peers.count(), 1, "{job}");
            lock(&at("other"), job).remove();
        }
        own.remove();
    }
}
