//! A record file as it was read at one moment, by a process that does not hold its lock.
//!
//! Whether the file was locked shows whether the mount was alive. To find out, the reader takes a
//! shared lock for microseconds; a process that needs the lock at that moment retries.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::lease::Client;
use super::lock::MountLock;
use super::record::Record;
use super::record_directory::RecordDirectory;
use super::record_file::{
    RECORD_SUFFIX, is_private, read_record, record_name, retry_if_interrupted, socket_name,
};
use crate::os::mountinfo::MountId;

/// A record file, as it was when it was read.
#[derive(Debug)]
pub(in crate::lifecycle) struct RecordSnapshot {
    record_directory: RecordDirectory,
    name: String,
    /// `None` if it was being written.
    pub(in crate::lifecycle) record: Option<Record>,
    /// Whether the daemon, or the process that was starting it, was alive.
    pub(in crate::lifecycle) was_locked: bool,
}

impl RecordSnapshot {
    /// Reads the record file of user `uid` for `mount_point`, if there is one.
    pub(in crate::lifecycle) fn of(mount_point: &Path, uid: u32) -> Option<Self> {
        let name = record_name(mount_point);
        Self::read(RecordDirectory::containing_of(uid, &name)?, &name, &|_| true)
    }

    /// Reads all record files of user `uid`.
    pub(in crate::lifecycle) fn all_of(uid: u32) -> Vec<Self> {
        Self::all_in(RecordDirectory::all_of(uid), |_| true)
    }

    /// Reads the record files of this user on this node for whose record `is_wanted` is true, and
    /// no network file system. `own` is the directory of the record of this process. Does not touch
    /// the locks of the other records.
    pub(super) fn all_on_node(
        own: Option<&Path>,
        is_wanted: impl Fn(Option<&Record>) -> bool,
    ) -> Vec<Self> {
        Self::all_in(RecordDirectory::all_on_node(own), is_wanted)
    }

    fn all_in(
        directories: Vec<RecordDirectory>,
        is_wanted: impl Fn(Option<&Record>) -> bool,
    ) -> Vec<Self> {
        let all = directories.into_iter();
        all.flat_map(|record_directory| {
            let names = record_directory.names(RECORD_SUFFIX).into_iter();
            let read =
                names.filter_map(|name| Self::read(record_directory.clone(), &name, &is_wanted));
            read.collect::<Vec<_>>()
        })
        .collect()
    }

    fn read(
        record_directory: RecordDirectory,
        name: &str,
        is_wanted: &impl Fn(Option<&Record>) -> bool,
    ) -> Option<Self> {
        let file = File::open(record_directory.join(name)).ok()?;
        if !is_wanted(read_record(&file).as_ref()) {
            return None;
        }
        let tried = retry_if_interrupted(|| flock(&file, FlockOperation::NonBlockingLockShared));
        let was_locked = tried == Err(Errno::WOULDBLOCK);
        let _ = flock(&file, FlockOperation::Unlock);
        let record = read_record(&file);
        Some(Self { record, name: name.to_owned(), record_directory, was_locked })
    }

    /// The mount of a daemon that has unmounted it but still serves, to processes that have files
    /// of it or another mount namespace; see `MountLock::acquire_private`.
    pub(in crate::lifecycle) fn detached(&self) -> Option<(&Record, &MountId)> {
        let record = self.record.as_ref().filter(|record| record.is_ending && self.was_locked)?;
        let is_detached = is_private(&self.name) && record.is_of_this_node();
        record.mount.as_ref().filter(|_| is_detached).map(|mount| (record, mount))
    }

    /// The name of the file.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The record that the file contains now; `None` if it is being written or was removed.
    pub(super) fn read_again(&self) -> Option<Record> {
        read_record(&File::open(self.record_directory.join(&self.name)).ok()?)
    }

    /// Locks the file now, unless another process holds the lock or the file was removed.
    pub(in crate::lifecycle) fn try_lock(&self) -> Option<MountLock> {
        MountLock::try_acquire_named(&self.record_directory, &self.name)
    }

    /// Connects to the daemon, if it listens.
    pub(in crate::lifecycle) fn connect(&self) -> Option<Client> {
        Client::connect(&self.socket()).ok()
    }

    /// The path of the daemon's socket.
    pub(in crate::lifecycle) fn socket(&self) -> PathBuf {
        self.record_directory.join(&socket_name(&self.name))
    }
}
