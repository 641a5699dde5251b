//! What is at a place now: nothing, a mount that is served, a dead one, something else.
//!
//! Owns that judgement, which everything that mounts, shares, unmounts or clears starts from.
//! Invariants: only mounts of type fuse.archfs of this user (or any, for root) are taken for ours;
//! a mount that hangs costs a moment at most, and none where a record tells of its daemon.

use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::geteuid;

use super::answer;
use super::mountinfo::{self, MountEntry};
use super::registry::{MountId, Record};
use crate::error::Result;

/// How long a mount without a record may take to tell that it is not dead. The dead answer at once.
const ANSWER: Duration = Duration::from_secs(2);

/// What is at a place.
#[derive(Debug)]
pub(super) enum Occupant {
    /// Nothing is mounted there.
    Nothing,
    /// A mount of ours, and what is known of it.
    Alive(MountEntry, Record),
    /// A mount of ours whose daemon is gone.
    Dead(MountEntry),
    /// Nothing is mounted, but that daemon has not yet cleared up behind its mount.
    Leaving(Record),
    /// Something that is not ours, or that nothing is known of.
    Other(MountEntry),
}

/// What is at `place`, an absolute path without symbolic links.
///
/// # Errors
/// `Io` where /proc can not be read.
pub(super) fn look(place: &Path) -> Result<Occupant> {
    look_within(place, ANSWER)
}

/// The same for one who looks again soon, and so need not wait long for the dead.
///
/// # Errors
/// As `look`.
pub(super) fn look_within(place: &Path, limit: Duration) -> Result<Occupant> {
    loop {
        let occupant = look_once(place, limit)?;
        match &occupant {
            // It may have been unmounted, and its record removed, between the look at the one and
            // that at the other.
            Occupant::Dead(entry) | Occupant::Other(entry)
                if seen_at(place)?.as_ref() != Some(entry) => {}
            _ => return Ok(occupant),
        }
    }
}

/// What is mounted at `place`. An automount trigger is replaced when the directory is entered; all
/// else is in the way.
fn seen_at(place: &Path) -> Result<Option<MountEntry>> {
    Ok(mountinfo::topmost(place)?.filter(|entry| entry.kind != "autofs"))
}

fn look_once(place: &Path, limit: Duration) -> Result<Occupant> {
    let entry = seen_at(place)?;
    let record = Record::read(place);
    let Some(entry) = entry else {
        return Ok(match record {
            Some(record) if record.daemon.is_alive() => Occupant::Leaving(record),
            _ => Occupant::Nothing,
        });
    };
    if !may_touch(&entry) {
        return Ok(Occupant::Other(entry));
    }
    let is_of_it = |record: &Record| record.mount == MountId::of(&entry);
    Ok(match record.filter(is_of_it) {
        Some(record) if record.daemon.is_alive() => Occupant::Alive(entry, record),
        Some(_) => Occupant::Dead(entry),
        None => match answer::of(place, &entry, limit) {
            // Of a daemon that ends just then the kernel says that the connection was aborted.
            Some(Err(Errno::NOTCONN | Errno::CONNABORTED)) => Occupant::Dead(entry),
            // A daemon writes its record after it has mounted, and before it answers.
            Some(_) | None => match Record::read(place).filter(is_of_it) {
                Some(record) if record.daemon.is_alive() => Occupant::Alive(entry, record),
                _ => Occupant::Other(entry),
            },
        },
    })
}

/// Whether `entry` is a mount that this user made with archfs.
pub(super) fn is_own(entry: &MountEntry) -> bool {
    entry.is_ours() && entry.owner() == Some(geteuid().as_raw())
}

/// Whether this user may unmount `entry` with archfs.
pub(super) fn may_touch(entry: &MountEntry) -> bool {
    let user = geteuid();
    entry.is_ours() && (user.is_root() || entry.owner() == Some(user.as_raw()))
}
