//! The state of a mount point: free, or with a live mount, a stale one, or something else.
//!
//! Every command that mounts, shares, unmounts or cleans up starts from this state. It follows from
//! the mount table and the record file. A mount is alive while its record file is locked. Its
//! daemon may hang, so archfs probes the mount itself only if there is no locked record file, and
//! only for a limited time.
//!
//! Invariant: only a mount of type fuse.archfs of this user counts as ours; for root, one of any
//! user.

use std::path::Path;
use std::time::Duration;

use rustix::process::geteuid;

use super::record::Record;
use super::record_snapshot::RecordSnapshot;
use crate::error::Result;
use crate::lifecycle::mount::PROBE_TIMEOUT;
use crate::os::mountinfo::{self, MountEntry, MountId};
use crate::os::probe;

/// The state of a mount point. Its record file is the one of a shared mount; private mounts have
/// others.
#[derive(Debug)]
pub(in crate::lifecycle) enum MountState {
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
    pub(in crate::lifecycle) fn is_mounted(&self) -> bool {
        matches!(self, Self::Alive(..) | Self::Unrecorded(_) | Self::Foreign(_))
    }
}

/// The state of `mount_point`, an absolute path without symbolic links.
pub(in crate::lifecycle) fn mount_state(mount_point: &Path) -> Result<MountState> {
    mount_state_within(mount_point, PROBE_TIMEOUT)
}

/// Like `mount_state`, but waits at most `probe_timeout` for the answer of a mount without a locked
/// record file: for callers that retry.
pub(in crate::lifecycle) fn mount_state_within(
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
        return Ok(match probe::is_stale(mount_point, &entry, probe_timeout) {
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
