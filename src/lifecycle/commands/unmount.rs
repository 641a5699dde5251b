//! The command `unmount`: asks the daemon, or clears up after a killed one.
//!
//! Invariants: this only touches mounts of type fuse.archfs, and only those of this user (for
//! root, of any user). A mount that other processes hold stays, unless it is unmounted lazily.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result};
use crate::lifecycle::commands::holder::{self, Holder, HolderChoice};
use crate::lifecycle::commands::{descendants, list};
use crate::lifecycle::mount::{self, Detach, attach, mount_point};
use crate::lifecycle::registry::{
    self, Client, EXIT_TIMEOUT, HolderStatus, LockWait, MountFate, MountLock, MountState,
    RecordSnapshot, UNMOUNT_TIMEOUT, UnmountAnswer,
};
use crate::os::mount_users;
use crate::os::mountinfo::{self, MountEntry, MountId};
use crate::os::process::ProcessId;

/// How long a daemon may take to answer a request of this command.
const UNMOUNT_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Time within which a daemon usually exits. After that, this looks for what keeps it.
const EXIT_EXPECTED: Duration = Duration::from_secs(1);

/// Time between two checks of a mount that is starting.
const START_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The result of `unmount`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The mount is unmounted, and everything created for it is removed.
    Gone,
    /// The caller's lease has ended, but others hold the mount. The text names their processes.
    HeldByOthers(String),
    /// No process holds it, but it stays until it is unmounted, or for the linger time.
    Stays,
}

/// Unmounts the archfs mount at `path`. Returns when everything created for it is also
/// removed. A mount that others hold stays, unless `how` is `Lazily`.
///
/// # Errors
/// `NotMounted` if nothing is mounted there, or something that is not an archfs mount of this user;
/// `Busy` if it is in use, or if others hold it and the caller does not; `TimedOut`; `Io`.
pub fn unmount(path: &Path, how: Detach) -> Result<Unmounted> {
    let mount_point = mount_point::locate(path)?;
    match registry::mount_state(&mount_point)? {
        MountState::Alive(entry, snapshot, _) => ask(&mount_point, &entry, &snapshot, how),
        MountState::Ending => {
            wait_for_exit(&mount_point, UNMOUNT_TIMEOUT);
            clean_up(&mount_point)
        }
        MountState::Stale(_) => clean_up(&mount_point),
        MountState::Unrecorded(entry) => {
            attach::detach(&entry, how, None)?;
            clean_up(&mount_point)
        }
        MountState::Foreign(entry) => Err(list::foreign(&mount_point, &entry)),
        MountState::Free | MountState::Starting(_) => {
            let context = format!("{}: not mounted", mount_point.display());
            Err(Error::new(Kind::NotMounted, context).with_hint(list::LIST))
        }
    }
}

fn ask(
    mount_point: &Path,
    entry: &MountEntry,
    snapshot: &RecordSnapshot,
    how: Detach,
) -> Result<Unmounted> {
    log::info!("{}: unmounting {}", mount_point.display(), entry.describe());
    let mut client = snapshot.connect();
    // Looked up now: after the unmount, the kernel may give the device number to another mount.
    let is_copy = |other: &MountEntry| other.device == entry.device && other.id != entry.id;
    let copies: Vec<_> = mountinfo::all()?.into_iter().filter(is_copy).collect();
    let answer = match &mut client {
        Some(client) => client.unmount(how, &callers(), UNMOUNT_ANSWER_TIMEOUT),
        None => Ok(None),
    };
    match answer {
        Ok(Some(UnmountAnswer::Done)) => {
            let daemon = client.as_ref().and_then(Client::daemon);
            let limit = match how {
                Detach::IfIdle => EXIT_EXPECTED,
                Detach::Lazily => EXIT_TIMEOUT,
            };
            let has_exited = client.map_or(Ok(true), |client| client.wait_for_exit(how, limit))?;
            if !has_exited {
                await_exit(mount_point, entry, &copies, daemon);
            }
            Ok(Unmounted::Gone)
        }
        Ok(Some(UnmountAnswer::Released(others))) => Ok(Unmounted::HeldByOthers(others)),
        Ok(Some(UnmountAnswer::Refused(others))) => {
            let context = format!("{}: held by {others}", mount_point.display());
            Err(Error::new(Kind::Busy, context)
                .with_hint("archfs unmounts when they exit; use --lazy to unmount now"))
        }
        Ok(Some(UnmountAnswer::Busy(why))) => {
            let is_used = why.ends_with(mount::IN_USE);
            let daemon = client.as_ref().and_then(Client::daemon);
            let users = if is_used { by_users(mount_point, daemon) } else { String::new() };
            Err(mount::busy_with(why + &users))
        }
        // It was killed, or is exiting.
        Ok(None | Some(UnmountAnswer::Begun)) => {
            wait_for_exit(mount_point, EXIT_TIMEOUT);
            match registry::mount_state(mount_point)? {
                MountState::Alive(..) if how == Detach::IfIdle => {
                    let context = "the daemon no longer accepts requests";
                    Err(silent(Error::new(Kind::TimedOut, context), mount_point))
                }
                MountState::Alive(entry, ..) => detach_from_outside(&entry),
                _ => clean_up(mount_point),
            }
        }
        Err(error) if error.kind() == Kind::TimedOut && how == Detach::Lazily => {
            detach_from_outside(entry)
        }
        Err(error) if error.kind() == Kind::TimedOut => Err(silent(error, mount_point)),
        Err(error) => Err(error.within(mount_point.display())),
    }
}

/// Which processes use the mount, besides its `daemon`, for the end of a message; empty if /proc
/// shows none.
fn by_users(mount_point: &Path, daemon: Option<ProcessId>) -> String {
    let users = descendants::all_users_of(mount_point).into_iter();
    let users = users.filter(|user| Some(*user) != daemon);
    let users: Vec<_> =
        users.map(|user| HolderStatus { pid: user.pid(), name: user.name() }).collect();
    if users.is_empty() { String::new() } else { format!(" by {}", HolderStatus::named(&users)) }
}

/// Waits at most `EXIT_TIMEOUT` until `daemon`, which has unmounted `entry`, has exited. Warns if
/// other processes still have the mount, for which it serves on, or this namespace has it at
/// another place: `copies` were there before.
fn await_exit(
    mount_point: &Path,
    entry: &MountEntry,
    copies: &[MountEntry],
    daemon: Option<ProcessId>,
) {
    let path = mount_point.display();
    let is_copy =
        |found: &MountEntry| copies.iter().any(|copy| MountId::of(copy) == MountId::of(found));
    if let Ok(Some(bound)) = mountinfo::find(is_copy) {
        let place = bound.mount_point.display();
        return crate::log::warn(
            format_args!("{path}: unmounted, but it is also mounted at {place}"),
            &format!("archfs unmount {place}"),
        );
    }
    let users = mount_users::of(&MountId::of(entry), daemon.map(ProcessId::pid));
    let Some(first) = users.first() else {
        let has_exited =
            daemon.is_none_or(|daemon| daemon.wait_for_end(Some(EXIT_TIMEOUT)).unwrap_or(true));
        if !has_exited {
            log::warn!(
                "{path}: unmounted, but the daemon does not exit; another user's process may have \
                 the mount in its own mount namespace"
            );
        }
        return;
    };
    let (more, have) = match users.len() {
        1 => (String::new(), "has"),
        count => (format!(" and {} more", count - 1), "have"),
    };
    let place = match &first.mounted_at {
        Some(place) => format!("{have} it at {} in another mount namespace", place.display()),
        None => format!("{have} files of it open"),
    };
    let what = format!(
        "{path}: unmounted, but process {} ({}){more} still {place}, so the daemon serves on",
        first.pid, first.name
    );
    match daemon {
        Some(daemon) => crate::log::warn(
            format_args!("{what}"),
            &format!(
                "it exits when they do; `kill -INT {}` ends it now, and their reads fail",
                daemon.pid()
            ),
        ),
        None => log::warn!("{what}"),
    }
}

/// Detaches a mount whose daemon does not answer. If the daemon runs again, it clears up itself.
fn detach_from_outside(entry: &MountEntry) -> Result<Unmounted> {
    attach::detach(entry, Detach::Lazily, None)?;
    Ok(Unmounted::Gone)
}

/// Removes what the daemon of the mount at `mount_point` has left. Waits at most `EXIT_TIMEOUT`
/// until it has exited.
fn clean_up(mount_point: &Path) -> Result<Unmounted> {
    registry::clean_up_after_exit(mount_point, EXIT_TIMEOUT)?;
    Ok(Unmounted::Gone)
}

/// Waits at most `limit` until the daemon of the mount at `mount_point` has freed its lock; returns
/// whether it has.
fn wait_for_exit(mount_point: &Path, limit: Duration) -> bool {
    match MountLock::wait_for(mount_point, Instant::now() + limit) {
        LockWait::NoFile => true,
        // It was killed before it cleaned up.
        LockWait::Locked(lock) => lock.clean_up(mount_point).is_ok(),
        LockWait::TimedOut => false,
    }
}

/// Ends the lease on the mount at `path` that `mount --until-pid` took for process `pid`, as if the
/// process had ended. The mount is unmounted, lazily if it is in use, unless others hold it or it
/// is kept. Returns when it is unmounted, or at once if it stays.
///
/// # Errors
/// `NotMounted` if that process does not hold what is mounted there; `NotFound` if there is no such
/// process; `TimedOut`; `Io`.
pub fn give_back(path: &Path, pid: i32) -> Result<Unmounted> {
    let mount_point = mount_point::locate(path)?;
    let process = ProcessId::of(pid)?;
    let not_ours = |why: String| {
        Err(Error::new(Kind::NotMounted, format!("{}: {why}", mount_point.display())))
    };
    let not_held = || not_ours(format!("process {pid} is not a holder"));
    let snapshot = match started(&mount_point)? {
        MountState::Alive(_, snapshot, _) => snapshot,
        MountState::Unrecorded(entry) | MountState::Foreign(entry) => {
            return Err(list::foreign(&mount_point, &entry));
        }
        _ => return unmount(path, Detach::IfIdle),
    };
    let Some(mut client) = snapshot.connect() else {
        // The daemon was just killed, or is exiting.
        return match wait_for_exit(&mount_point, EXIT_TIMEOUT) {
            true => clean_up(&mount_point),
            false => not_ours("the daemon no longer accepts requests".into()),
        };
    };
    let status = match client.status(UNMOUNT_ANSWER_TIMEOUT) {
        Err(error) if error.kind() == Kind::TimedOut => return Err(silent(error, &mount_point)),
        Err(error) => return Err(error.within(mount_point.display())),
        // The daemon was just killed, and its mount is stale once it has exited. Or it is exiting.
        Ok(None) => match client.leave()? {
            MountFate::Lost => return clean_up(&mount_point),
            MountFate::Unmounted { .. } | MountFate::Stays => {
                return not_ours("the daemon no longer accepts requests".into());
            }
        },
        Ok(Some(status)) => status,
    };
    let (held, others): (Vec<_>, Vec<_>) =
        status.holders.into_iter().partition(|holder| holder.pid == pid);
    let is_held = !held.is_empty();
    // A mount without holders may have been made for this process, and be about to end.
    if !is_held && (status.until_unmount || !others.is_empty()) {
        return not_held();
    }
    // With a lease of its own, this connection receives the outcome. If the daemon gives no more
    // leases, the connection ends with the mount.
    client.hold()?;
    client.unwatch(process)?;
    match client.leave()? {
        MountFate::Stays if !is_held => not_held(),
        MountFate::Stays if others.is_empty() => Ok(Unmounted::Stays),
        MountFate::Stays => Ok(Unmounted::HeldByOthers(HolderStatus::named(&others))),
        MountFate::Unmounted { .. } => Ok(Unmounted::Gone),
        MountFate::Lost => clean_up(&mount_point),
    }
}

/// The state of `mount_point` after a process that is about to mount there has mounted or ended. A
/// mount that was made for the caller may be starting: if the process that starts it was
/// interrupted, the daemon mounts and unmounts before it ends. Waits at most `EXIT_TIMEOUT`,
/// because another process may mount there and take longer.
fn started(mount_point: &Path) -> Result<MountState> {
    let deadline = Instant::now() + EXIT_TIMEOUT;
    loop {
        match registry::mount_state(mount_point)? {
            MountState::Starting(_) if Instant::now() < deadline => {
                thread::sleep(START_POLL_INTERVAL);
            }
            state => return Ok(state),
        }
    }
}

/// The script that runs this command, if it can be identified, and this process. A shell may have
/// replaced itself by this process for its last command.
fn callers() -> Vec<ProcessId> {
    let script = match holder::choose(HolderChoice::Default) {
        Ok(Holder::Process(process)) => Some(process),
        Ok(Holder::UntilUnmount(_)) | Err(_) => None,
    };
    script.into_iter().chain(ProcessId::own()).collect()
}

/// The error for a daemon that does not answer.
fn silent(error: Error, mount_point: &Path) -> Error {
    error.within(mount_point.display()).with_hint("use --lazy to unmount without the daemon")
}
