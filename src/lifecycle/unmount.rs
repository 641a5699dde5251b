//! Unmounting from outside the daemon: the command `unmount`, the end of `run`, dead mounts.
//!
//! Owns who may unmount what. Invariant: only mounts of type fuse.archfs, of this user (or any, for
//! root), are ever touched.

use std::path::Path;
use std::time::Duration;

use rustix::process::geteuid;

use super::attach::{self, Detach};
use super::mountinfo::{self, MountEntry};
use super::mountpoint;
use super::registry::{self, Record};
use crate::error::{Error, Kind, Result};

/// How long a daemon may take to end once its mount is gone; it has nothing left to do then.
const DAEMON_END: Duration = Duration::from_secs(5);

/// Unmounts what archfs mounted at `path`, and returns when the mount and what was made for it are
/// gone.
///
/// # Errors
/// `NotMounted` where nothing, something else or somebody else's is mounted there; `Busy`; `Io`.
pub fn unmount(path: &Path, how: Detach) -> Result<()> {
    let place = mountpoint::locate(path)?;
    let shown = place.display();
    let Some(entry) = mountinfo::topmost(&place)? else {
        return Err(Error::new(Kind::NotMounted, format!("{shown}: nothing is mounted here")));
    };
    if !may_touch(&entry) {
        let context =
            format!("{shown}: {} is mounted here, not by archfs for you", entry.describe());
        return Err(Error::new(Kind::NotMounted, context));
    }
    if registry::is_dead(&entry, &place) {
        return clear(&place, &entry);
    }
    let record = Record::read(&entry, &place);
    attach::detach(&place, how)?;
    let Some(record) = record else {
        return Ok(());
    };
    if let Some(made) = record.made {
        mountpoint::remove(&place, made);
    }
    // A daemon whose files are still open goes on serving them; there is nothing to wait for.
    if how == Detach::IfIdle && !record.daemon.wait_for_end(Some(DAEMON_END))? {
        log::warn!("process {} goes on without its mount {shown}", record.daemon.pid());
    }
    Ok(())
}

/// Whether this user may unmount `entry` with archfs.
pub(super) fn may_touch(entry: &MountEntry) -> bool {
    let user = geteuid();
    entry.is_ours() && (user.is_root() || entry.owner() == Some(user.as_raw()))
}

/// Clears the dead mount `entry` at `place`, the directory made for it and its record.
///
/// # Errors
/// `Io`.
pub(super) fn clear(place: &Path, entry: &MountEntry) -> Result<()> {
    let record = Record::read(entry, place);
    // Processes may still hold files of it, which give them ENOTCONN for ever; they are in no one's
    // way.
    attach::detach(place, Detach::Lazily)?;
    if let Some(made) = record.and_then(|record| record.made) {
        mountpoint::remove(place, made);
    }
    registry::forget(entry);
    Ok(())
}
