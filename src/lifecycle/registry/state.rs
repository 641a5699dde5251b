//! What a process finds at a mount point without holding its lock.
//!
//! `RecordSnapshot` is a record file as it was read at one moment. Whether the file was locked
//! shows whether the mount was alive. To find out, the reader takes a shared lock for microseconds;
//! a process that needs the lock at that moment retries.
//!
//! `MountState` follows from the record file and the mount table. Every command that mounts,
//! shares, unmounts or cleans up starts from it. A daemon may hang, so archfs probes the mount
//! itself only if there is no locked record file, and only for a limited time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

use super::lease::Client;
use super::lock::MountLock;
use super::record::{RECORD_SUFFIX, Record, is_private, read_record, record_name, socket_name};
use crate::error::Result;
use crate::lifecycle::mount::PROBE_TIMEOUT;
use crate::os::mountinfo::{self, MountEntry, MountId};
use crate::os::record_directory::RecordDirectory;

#[derive(Debug)]
pub(crate) struct RecordSnapshot {
    record_directory: RecordDirectory,
    name: String,
    /// `None` if it was being written.
    pub(crate) record: Option<Record>,
    /// Whether the daemon, or the process that was starting it, was alive.
    pub(crate) was_locked: bool,
}

impl RecordSnapshot {
    /// Reads the record file of user `uid` for `mount_point`, if there is one.
    pub(crate) fn of(mount_point: &Path, uid: u32) -> Option<Self> {
        let name = record_name(mount_point);
        Self::read(RecordDirectory::containing_of(uid, &name)?, &name, &|_| true)
    }

    pub(crate) fn all_of(uid: u32) -> Vec<Self> {
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
        let tried = retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockShared));
        let was_locked = tried == Err(Errno::WOULDBLOCK);
        let _ = flock(&file, FlockOperation::Unlock);
        let record = read_record(&file);
        Some(Self { record, name: name.to_owned(), record_directory, was_locked })
    }

    /// The mount of a daemon that has unmounted it but still serves, to processes that have files
    /// of it or another mount namespace; see `MountLock::acquire_private`.
    pub(crate) fn detached(&self) -> Option<(&Record, &MountId)> {
        let record = self.record.as_ref().filter(|record| record.is_ending && self.was_locked)?;
        let is_detached = is_private(&self.name) && record.is_of_this_node();
        record.mount.as_ref().filter(|_| is_detached).map(|mount| (record, mount))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The record that the file contains now; `None` if it is being written or was removed.
    pub(super) fn read_again(&self) -> Option<Record> {
        read_record(&File::open(self.record_directory.join(&self.name)).ok()?)
    }

    /// Locks the file now, unless another process holds the lock or the file was removed.
    pub(crate) fn try_lock(&self) -> Option<MountLock> {
        MountLock::try_acquire_named(&self.record_directory, &self.name)
    }

    pub(crate) fn connect(&self) -> Option<Client> {
        Client::connect(&self.socket()).ok()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.record_directory.join(&socket_name(&self.name))
    }
}

/// The state of a mount point. Its record file is the one of a shared mount; private mounts have
/// others. Only a mount of type fuse.archfs of this user counts as ours; for root, one of any user.
#[derive(Debug)]
pub(crate) enum MountState {
    /// Nothing is mounted, and the record file is not locked.
    Free,
    /// The record file is locked, and no mount belongs to it yet. Its process is opening archives,
    /// mounting, or detaching a stale mount; or it has mounted but not yet updated the record. The
    /// snapshot has no record if that is being written.
    Starting(Box<RecordSnapshot>),
    /// A mount of ours, whose record file is locked and names this mount.
    Alive(MountEntry, Box<RecordSnapshot>, Record),
    /// A mount of ours whose daemon has ended: the kernel reports ENOTCONN. Or its daemon was
    /// killed and is about to exit.
    Stale(MountEntry),
    /// The record file is locked, and its daemon is unmounting, or has unmounted but not removed
    /// the record.
    Ending,
    /// A mount of ours without a locked record file that is not stale, or does not answer. Its
    /// daemon cannot be asked. For example, another program made the mount, or /tmp was emptied.
    Unrecorded(MountEntry),
    /// A mount that is not ours: of another type or user.
    Foreign(MountEntry),
}

impl MountState {
    /// Whether there is a mount, of any type or user, that is neither stale nor being unmounted.
    pub(crate) fn is_mounted(&self) -> bool {
        matches!(self, Self::Alive(..) | Self::Unrecorded(_) | Self::Foreign(_))
    }
}

/// The state of `mount_point`, an absolute path without symbolic links.
pub(crate) fn mount_state(mount_point: &Path) -> Result<MountState> {
    mount_state_within(mount_point, PROBE_TIMEOUT)
}

/// Like `mount_state`, but waits at most `probe_timeout` for the answer of a mount without a locked
/// record file: for callers that retry.
pub(crate) fn mount_state_within(
    mount_point: &Path,
    probe_timeout: Duration,
) -> Result<MountState> {
    loop {
        let state = mount_state_once(mount_point, probe_timeout)?;
        match &state {
            // It may have been unmounted after mountinfo was read and before the record was read.
            // If so, start over.
            MountState::Stale(entry)
            | MountState::Unrecorded(entry)
            | MountState::Foreign(entry)
                if mounted_at(mount_point)?.as_ref() != Some(entry) => {}
            _ => return Ok(state),
        }
    }
}

/// The mount at `mount_point`. An automount trigger does not count, because the kernel replaces it
/// when the directory is entered.
pub(super) fn mounted_at(mount_point: &Path) -> Result<Option<MountEntry>> {
    Ok(mountinfo::topmost(mount_point)?.filter(|entry| entry.kind != "autofs"))
}

fn mount_state_once(mount_point: &Path, probe_timeout: Duration) -> Result<MountState> {
    let entry = mounted_at(mount_point)?;
    let owner = entry.as_ref().filter(|entry| entry.is_archfs()).and_then(MountEntry::owner);
    let owner = owner.unwrap_or_else(|| geteuid().as_raw());
    let locked = RecordSnapshot::of(mount_point, owner).filter(|snapshot| snapshot.was_locked);
    let Some(entry) = entry else {
        return Ok(match locked {
            None => MountState::Free,
            Some(snapshot) => match &snapshot.record {
                Some(Record { mount: Some(_), .. }) => MountState::Ending,
                _ => MountState::Starting(Box::new(snapshot)),
            },
        });
    };
    if !entry.may_unmount() {
        return Ok(MountState::Foreign(entry));
    }
    let Some(snapshot) = locked else {
        return Ok(match entry.is_stale(probe_timeout) {
            true => MountState::Stale(entry),
            false => MountState::Unrecorded(entry),
        });
    };
    Ok(match snapshot.record.clone() {
        // A killed process keeps its lock until its last thread has ended, which may be blocked in
        // a read.
        Some(record) if record.process.is_zombie() => MountState::Stale(entry),
        Some(record) if record.is_ending => MountState::Ending,
        Some(record) if record.mount == Some(MountId::of(&entry)) => {
            MountState::Alive(entry, Box::new(snapshot), record)
        }
        _ => MountState::Starting(Box::new(snapshot)),
    })
}
