//! Unmounting from outside the daemon: the command `unmount`, and dead mounts.
//!
//! Owns who may unmount what. Invariants: only mounts of type fuse.archfs, of this user (or any,
//! for root), are ever touched; a mount that other processes hold is left to them.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::attach::{self, Detach};
use super::holder::{self, Holder, Wish};
use super::lease::{HolderStatus, Left};
use super::mountinfo::MountEntry;
use super::occupant::{self, Occupant};
use super::process::ProcessId;
use super::registry::{PlaceLock, Record};
use super::{join, list, mountpoint};
use crate::error::{Error, Kind, Result};

/// How long a daemon may take to clear up once its mount is gone, or to end once it was killed; it
/// has nothing left to do then.
pub(super) const DAEMON_END: Duration = Duration::from_secs(5);

/// How long the helper of a daemon that was killed may take to end.
const HELPER_END: Duration = Duration::from_secs(2);

/// How long it may take to say who holds its mount.
const ANSWER: Duration = Duration::from_secs(5);

/// What `unmount` did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The mount and what was made for it are gone.
    Gone,
    /// The caller holds it no more, but others do; their processes are named.
    HeldByOthers(String),
    /// Nobody holds it, but it stays: until somebody unmounts it, or for the time it lingers.
    Stays,
}

/// Unmounts what archfs mounted at `path`, and returns when the mount and what was made for it are
/// gone. What others hold is only left, unless `how` is `Lazily`.
///
/// # Errors
/// `NotMounted` where nothing, something else or somebody else's is mounted there; `Busy`, also
/// where others hold it and the caller does not; `Io`.
pub fn unmount(path: &Path, how: Detach) -> Result<Unmounted> {
    let place = mountpoint::locate(path)?;
    let shown = place.display();
    // Whoever wants to share the mount has the lock while taking a lease: before, and is counted
    // here, or after, and finds that it is gone.
    let (lock, occupant) = match occupant::look(&place)? {
        Occupant::Alive(_, asked_for) => {
            let lock = PlaceLock::acquire(&place)?;
            match occupant::look(&place)? {
                // It went while the lock was waited for, and somebody has mounted anew.
                Occupant::Alive(_, record) if record != asked_for => return Ok(Unmounted::Gone),
                occupant => (Some(lock), occupant),
            }
        }
        occupant => (None, occupant),
    };
    let (record, entry) = match occupant {
        Occupant::Alive(entry, record) => (Some(record), entry),
        Occupant::Other(entry) if occupant::may_touch(&entry) => (None, entry),
        Occupant::Other(entry) => {
            let context =
                format!("{shown}: {} is mounted here, not by archfs for you", entry.describe());
            return Err(Error::new(Kind::NotMounted, context));
        }
        Occupant::Dead(_) => {
            drop(lock);
            return clear_dead(&place).map(|()| Unmounted::Gone);
        }
        // It is as good as gone.
        Occupant::Leaving(record) => {
            wait_until_cleared(&record);
            return match lock {
                Some(lock) => forget(&place, lock),
                None => clear_up(&place),
            }
            .map(|()| Unmounted::Gone);
        }
        Occupant::Nothing => {
            // Where it went while the lock was waited for, that is what was asked for.
            if lock.is_some() {
                return forget_locked(&place, lock);
            }
            let context = format!("{shown}: nothing is mounted here");
            return Err(Error::new(Kind::NotMounted, context).with_hint(list::LIST));
        }
    };
    if how == Detach::IfIdle {
        match leave_to_others(&place) {
            Ok(None) => {}
            Ok(Some(others)) => return Ok(Unmounted::HeldByOthers(others)),
            Err(_) if record.as_ref().is_some_and(|record| !record.daemon.is_alive()) => {
                // It was killed just now.
                drop(lock);
                return clear_dead(&place).map(|()| Unmounted::Gone);
            }
            Err(error) => return Err(error),
        }
    }
    log::info!("{shown}: unmounting {}", entry.describe());
    attach::detach(&place, how)?;
    if let Some(record) = &record {
        wait_until_cleared(record);
    }
    let gone = forget_locked(&place, lock)?;
    if let Some(record) = record {
        // A daemon whose files are still open goes on serving them; there is nothing to wait for.
        if how == Detach::IfIdle && !record.daemon.wait_for_end(Some(DAEMON_END))? {
            log::warn!("process {} goes on without its mount {shown}", record.daemon.pid());
        }
    }
    Ok(gone)
}

/// Gives back at `path` what `mount --until-pid` took for the process `pid`, as if that had ended:
/// the mount goes, lazily if it is in use, unless others hold it or it is kept. Returns when it is
/// gone, if it goes.
///
/// # Errors
/// `NotMounted` where that process does not hold what is mounted there; `NotFound` where there is
/// no such process; `Io`.
pub fn give_back(path: &Path, pid: i32) -> Result<Unmounted> {
    let place = mountpoint::locate(path)?;
    let process = ProcessId::of(pid)?;
    let not_ours =
        |why: String| Err(Error::new(Kind::NotMounted, format!("{}: {why}", place.display())));
    let not_held = || not_ours(format!("not held by process {pid}"));
    let record = match occupant::look(&place)? {
        Occupant::Alive(_, record) => record,
        Occupant::Other(entry) => {
            let described = entry.describe();
            return not_ours(format!("{described} is mounted here, not by archfs for you"));
        }
        // Clearing what is dead is nobody's loss.
        _ => return unmount(path, Detach::IfIdle),
    };
    let Some(mut client) = join::connect(&place) else {
        // It was killed just now, or is about to end.
        if record.daemon.wait_for_end(Some(DAEMON_END))? {
            return clear_up(&place).map(|()| Unmounted::Gone);
        }
        return not_ours("its daemon does not listen any more".into());
    };
    let status = match client.status(ANSWER) {
        Err(error) if error.kind() == Kind::TimedOut => return Err(silent(error, &place)),
        // It was killed just now, and its mount is dead when it has ended.
        Err(error) => match client.leave()? {
            Left::Lost => return clear_up(&place).map(|()| Unmounted::Gone),
            Left::Gone(_) | Left::Stays => return Err(error),
        },
        Ok(status) => status,
    };
    let (held, others): (Vec<_>, Vec<_>) =
        status.holders.into_iter().partition(|holder| holder.pid == pid);
    let is_held = !held.is_empty();
    // One that nobody holds yet was begun for that process, perhaps, and is about to go.
    if !is_held && (status.kept || !others.is_empty()) {
        return not_held();
    }
    // With a lease of its own this connection is told what becomes of the mount. Where none is
    // given any more, it ends with the mount.
    client.hold()?;
    client.release(process)?;
    match client.leave()? {
        Left::Stays if !is_held => not_held(),
        Left::Stays if others.is_empty() => Ok(Unmounted::Stays),
        Left::Stays => Ok(Unmounted::HeldByOthers(named(&others))),
        Left::Gone(_) => Ok(Unmounted::Gone),
        Left::Lost => clear_up(&place).map(|()| Unmounted::Gone),
    }
}

/// The daemon of `place` does not say who holds it.
fn silent(error: Error, place: &Path) -> Error {
    error.within(place.display()).with_hint("--lazy unmounts it whoever holds it")
}

fn named(holders: &[HolderStatus]) -> String {
    let named: Vec<_> =
        holders.iter().map(|holder| format!("{} ({})", holder.pid, holder.name)).collect();
    named.join(", ")
}

fn forget_locked(place: &Path, lock: Option<PlaceLock>) -> Result<Unmounted> {
    if let Some(lock) = lock {
        forget(place, lock)?;
    }
    Ok(Unmounted::Gone)
}

/// Gives back the lease of the caller's script, and `--keep`, where others hold the mount, too;
/// returns those.
///
/// # Errors
/// `Busy` where only others hold it.
fn leave_to_others(place: &Path) -> Result<Option<String>> {
    let Some(mut client) = join::connect(place) else {
        return Ok(None);
    };
    let status = client.status(ANSWER).map_err(|error| silent(error, place))?;
    // Whose script this is called in, if that can be told; and this process, which a shell may have
    // put in its own place for its last command.
    let script = match holder::choose(Wish::Usual) {
        Ok(Holder::Process(process)) => Some(process),
        Ok(Holder::Nobody(_)) | Err(_) => None,
    };
    let own: Vec<_> = script.into_iter().chain(ProcessId::own()).collect();
    let is_own = |holder: &HolderStatus| own.iter().any(|own| own.pid() == holder.pid);
    let (held, others): (Vec<_>, Vec<_>) = status.holders.into_iter().partition(is_own);
    if others.is_empty() {
        return Ok(None);
    }
    let named = named(&others);
    if held.is_empty() && !status.kept {
        let context = format!("{}: held by process {named}", place.display());
        return Err(Error::new(Kind::Busy, context)
            .with_hint("it goes when they end; --lazy unmounts it all the same"));
    }
    for process in own {
        client.release(process)?;
    }
    if status.kept {
        client.unkeep()?;
    }
    Ok(Some(named))
}

/// Waits until the daemon of `record`, whose mount is gone, has removed what was made for it, or
/// can not do so any more.
fn wait_until_cleared(record: &Record) {
    let deadline = Instant::now() + DAEMON_END;
    while Instant::now() < deadline
        && record.daemon.is_alive()
        && Record::read(&record.place).as_ref() == Some(record)
    {
        thread::sleep(Duration::from_millis(2));
    }
    wait_for_end(Some(record.daemon), deadline);
}

/// Clears the dead mount at `place`, if it still is one, and its record and directory.
///
/// # Errors
/// `Io`.
pub(super) fn clear_dead(place: &Path) -> Result<()> {
    let lock = PlaceLock::acquire(place)?;
    clear_all_dead_and_wait(place)?;
    forget(place, lock)
}

/// Clears what is left at `place` of a daemon that ended before it served, or was killed. The
/// caller has let go of the lock of the place: a helper that the daemon has started may still hold
/// it.
///
/// # Errors
/// `Io`.
pub(super) fn clear_up(place: &Path) -> Result<()> {
    let deadline = Instant::now() + HELPER_END;
    while Instant::now() < deadline {
        if let Some(lock) = PlaceLock::try_acquire(place)? {
            clear_all_dead_and_wait(place)?;
            return forget(place, lock);
        }
        thread::sleep(Duration::from_millis(2));
    }
    // Somebody mounts or clears there now, and with that what was dead.
    Ok(())
}

/// Clears all dead mounts at `place`. Call it with the lock of the place. Returns the daemon that
/// was recorded there, for `wait_for_end`.
///
/// # Errors
/// `Io`.
pub(super) fn clear_all_dead(place: &Path) -> Result<Option<ProcessId>> {
    let daemon = Record::read(place).map(|record| record.daemon);
    while let Occupant::Dead(entry) = occupant::look(place)? {
        clear(place, &entry)?;
    }
    Ok(daemon)
}

/// The same, and waits for the end of that daemon.
///
/// # Errors
/// `Io`.
pub(super) fn clear_all_dead_and_wait(place: &Path) -> Result<()> {
    let daemon = clear_all_dead(place)?;
    wait_for_end(daemon, Instant::now() + DAEMON_END);
    Ok(())
}

/// Waits until `daemon`, if there is one and it is dead, has closed its files, at most until
/// `deadline`.
///
/// One that is killed is dead from the end of its first thread on, and until the end of the last it
/// uses the directory that it made, which nobody can remove then, but `gc` later.
pub(super) fn wait_for_end(daemon: Option<ProcessId>, deadline: Instant) {
    if let Some(daemon) = daemon.filter(|daemon| !daemon.is_alive()) {
        let left = deadline.saturating_duration_since(Instant::now());
        if !daemon.wait_for_end(Some(left)).unwrap_or(true) {
            log::debug!("process {} was killed and does not end", daemon.pid());
        }
    }
}

/// Removes what is left of a place where nothing is mounted any more.
///
/// # Errors
/// `Io`.
pub(super) fn forget(place: &Path, lock: PlaceLock) -> Result<()> {
    if matches!(occupant::look(place)?, Occupant::Nothing) {
        Record::forget(place);
        mountpoint::remove_left_over(place);
        lock.remove();
    }
    Ok(())
}

/// Clears the dead mount `entry` at `place`. Call it with the lock of the place.
///
/// # Errors
/// `Io`.
pub(super) fn clear(place: &Path, entry: &MountEntry) -> Result<()> {
    log::warn!("{}: clearing a dead mount of {}", place.display(), entry.describe());
    // Processes may still hold files of it, which give them ENOTCONN for ever; they are in no one's
    // way.
    attach::detach(place, Detach::Lazily)?;
    // Below may be another, which is served.
    if Record::read(place).is_none_or(|record| !record.daemon.is_alive()) {
        Record::forget(place);
    }
    Ok(())
}
