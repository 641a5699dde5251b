//! Lists this user's archfs mounts on this node, and reports the statistics of one.
//!
//! Invariant: a daemon that does not answer cannot make this hang, because every request has a time
//! limit.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::geteuid;

use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::mount_point;
use crate::lifecycle::registry::{self, Health, MountState, RecordSnapshot, Status};
use crate::log::Message;
use crate::os::mount_users;
use crate::os::mountinfo::{self, MountEntry};

/// Hint for errors about a path that is not an archfs mount.
pub(crate) const LIST: &str = "run `archfs list` to see your mounts on this node";

/// How long a daemon may take to name the holders of its mount.
const STATUS_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// One mount.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// Mount point.
    pub mount_point: PathBuf,
    /// Archives shown. Without a record this is the source in the mount table.
    pub archives: Vec<PathBuf>,
    /// The daemon, if it is known.
    pub daemon: Option<i32>,
    /// Processes that hold it: process id and name.
    pub holders: Vec<(i32, String)>,
    /// Whether it stays until it is unmounted.
    pub kept: bool,
    /// How it serves its readers.
    pub health: Health,
    /// Its state.
    pub state: State,
}

/// State of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is served.
    Alive,
    /// Its daemon has ended: the mount is stale.
    Stale,
    /// Its daemon runs but does not answer.
    Silent,
    /// Nothing is known of its daemon.
    Unknown,
    /// It is unmounted, and served to the processes that hold it: they have files open, or their
    /// mount namespace has a copy of the mount.
    Detached,
}

/// Statistics of the archfs mount at `path` so far: one JSON object, with the keys of
/// docs/STATS.md.
///
/// # Errors
/// `NotMounted` if no mount of this user is served there; `TimedOut`; `Io`.
pub fn stats(path: &Path) -> Result<String> {
    let mount_point = mount_point::locate(path)?;
    let snapshot = match registry::mount_state(&mount_point)? {
        MountState::Alive(_, snapshot, _) => snapshot,
        MountState::Stale(_) => {
            let context = format!("{}: {STALE}", mount_point.display());
            return Err(Error::new(Kind::NotMounted, context).with_hint(clear(&mount_point)));
        }
        _ => {
            let context = format!("{}: not an archfs mount of yours", mount_point.display());
            return Err(Error::new(Kind::NotMounted, context).with_hint(LIST));
        }
    };
    let stats = match snapshot.connect() {
        Some(mut client) => client.stats()?,
        None => String::new(),
    };
    match stats.trim_end() {
        "" => {
            Err(Error::new(Kind::NotMounted, format!("{}: just unmounted", mount_point.display())))
        }
        stats => Ok(stats.to_owned()),
    }
}

/// The errors and warnings that the daemon of the archfs mount at `path` has kept; none if it does
/// not answer.
pub fn messages(path: &Path) -> Vec<Message> {
    health(path).messages
}

/// The errors and warnings of the mount at `path` that its daemon has not printed where a user sees
/// them.
pub fn unseen_messages(path: &Path) -> Vec<Message> {
    let health = health(path);
    if health.are_printed { Vec::new() } else { health.messages }
}

/// How the mount at `path` serves its readers; nothing if there is none, or its daemon does not
/// answer.
fn health(path: &Path) -> Health {
    let alive = mount_point::locate(path).and_then(|path| registry::mount_state(&path));
    let Ok(MountState::Alive(_, snapshot, _)) = alive else { return Health::default() };
    let health =
        snapshot.connect().and_then(|mut client| client.health(STATUS_ANSWER_TIMEOUT).ok());
    health.flatten().unwrap_or_default()
}

/// What is wrong with a stale mount.
pub const STALE: &str = "a stale mount: its daemon has ended";

/// The error for a mount point at which `entry` is mounted, which is no archfs mount of this user.
pub(super) fn foreign(mount_point: &Path, entry: &MountEntry) -> Error {
    let context = format!(
        "{}: {} is mounted here, which is not an archfs mount of yours",
        mount_point.display(),
        entry.describe()
    );
    Error::new(Kind::NotMounted, context)
}

/// How to clear the stale mount at `path`.
pub(super) fn clear(path: &Path) -> String {
    format!("clear it: archfs unmount {}", path.display())
}

/// The mounts of this user that are unmounted but still served.
fn detached() -> Vec<Listed> {
    let snapshots = RecordSnapshot::all_of(geteuid().as_raw());
    let listed = |snapshot: &RecordSnapshot| {
        let (record, mount) = snapshot.detached()?;
        let daemon = record.process.pid();
        let holders = mount_users::of(mount, Some(daemon)).into_iter();
        Some(Listed {
            mount_point: record.mount_point.clone(),
            archives: record.archives.clone(),
            daemon: Some(daemon),
            holders: holders.map(|user| (user.pid, user.name)).collect(),
            kept: false,
            health: Health::default(),
            state: State::Detached,
        })
    };
    snapshots.iter().filter_map(listed).collect()
}

/// All archfs mounts of this user, in the order they were mounted, and then those that are
/// unmounted but still served.
pub fn list() -> Result<Vec<Listed>> {
    let mut mount_points: Vec<PathBuf> = Vec::new();
    for entry in mountinfo::all()? {
        if entry.is_own() && !mount_points.contains(&entry.mount_point) {
            mount_points.push(entry.mount_point);
        }
    }
    let mut all = Vec::new();
    for mount_point in mount_points {
        let own_record = || {
            RecordSnapshot::of(&mount_point, geteuid().as_raw())
                .and_then(|snapshot| snapshot.record)
        };
        let (entry, record, state, client) = match registry::mount_state(&mount_point)? {
            MountState::Alive(entry, snapshot, record) => {
                (entry, Some(record), State::Alive, snapshot.connect())
            }
            MountState::Stale(entry) => (entry, own_record(), State::Stale, None),
            MountState::Unrecorded(entry) => (entry, None, State::Unknown, None),
            // It was unmounted during the scan, or another mount covers it.
            _ => continue,
        };
        let status =
            client.and_then(|mut client| client.status(STATUS_ANSWER_TIMEOUT).ok().flatten());
        let state = if state == State::Alive && status.is_none() { State::Silent } else { state };
        let Status { holders, until_unmount, health } = status.unwrap_or_default();
        all.push(Listed {
            archives: match &record {
                Some(record) => record.archives.clone(),
                None => vec![entry.source.into()],
            },
            daemon: record.map(|record| record.process.pid()),
            holders: holders.into_iter().map(|holder| (holder.pid, holder.name)).collect(),
            kept: until_unmount,
            health,
            state,
            mount_point,
        });
    }
    all.extend(detached());
    Ok(all)
}
