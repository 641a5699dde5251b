//! This user's archfs mounts on this node, and the numbers of one.
//!
//! Owns gathering what is known of each. Invariant: a daemon that does not answer costs a moment,
//! not a hang.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::geteuid;

use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::mount_point;
use crate::lifecycle::share::{self, MountState, RecordFile, Status};
use crate::mountinfo;

/// What to say where no mount is.
pub(in crate::lifecycle) const LIST: &str = "archfs list shows your mounts on this node";

/// How long a daemon may take to say who holds its mount.
const ANSWER: Duration = Duration::from_secs(2);

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Where it is.
    pub mount_point: PathBuf,
    /// What it shows; only the first where no record tells more.
    pub archives: Vec<PathBuf>,
    /// The process that serves it, if it is known.
    pub daemon: Option<i32>,
    /// Who holds it: process and name.
    pub holders: Vec<(i32, String)>,
    /// Whether it holds until somebody unmounts.
    pub kept: bool,
    /// How it does.
    pub state: State,
}

/// How a mount does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is served.
    Alive,
    /// Its daemon is gone.
    Dead,
    /// Its daemon lives and does not answer.
    Silent,
    /// Nothing is known of its daemon.
    Unknown,
}

/// What the mount of archfs at `path` served so far: one JSON object, with the keys of
/// docs/STATS.md.
///
/// # Errors
/// `NotMounted` where no mount of this user is served there; `TimedOut`; `Io`.
pub fn stats(path: &Path) -> Result<String> {
    let mount_point = mount_point::locate(path)?;
    let MountState::Alive(_, file, _) = share::look(&mount_point)? else {
        let context = format!("{}: no archfs mount of yours is served here", mount_point.display());
        return Err(Error::new(Kind::NotMounted, context).with_hint(LIST));
    };
    let numbers = match share::connect(&file) {
        Some(mut client) => client.numbers()?,
        None => String::new(),
    };
    match numbers.trim_end() {
        "" => Err(Error::new(
            Kind::NotMounted,
            format!("{}: it has just ended", mount_point.display()),
        )),
        numbers => Ok(numbers.to_owned()),
    }
}

/// All mounts of archfs of this user, in the order they were made.
///
/// # Errors
/// `Io` where /proc can not be read.
pub fn list() -> Result<Vec<Listed>> {
    let mut places: Vec<PathBuf> = Vec::new();
    for entry in mountinfo::all()? {
        if entry.is_own() && !places.contains(&entry.mount_point) {
            places.push(entry.mount_point);
        }
    }
    let mut all = Vec::new();
    for mount_point in places {
        let own = || RecordFile::of(&mount_point, geteuid().as_raw()).and_then(|file| file.record);
        let (entry, record, state, client) = match share::look(&mount_point)? {
            MountState::Alive(entry, file, record) => {
                (entry, Some(record), State::Alive, share::connect(&file))
            }
            MountState::Stale(entry) => (entry, own(), State::Dead, None),
            MountState::Other(entry) if entry.may_be_touched() => {
                (entry, None, State::Unknown, None)
            }
            // It went while this was gathered, or something else lies on top of it.
            _ => continue,
        };
        let status = client.and_then(|mut client| client.status(ANSWER).ok());
        let state = if state == State::Alive && status.is_none() { State::Silent } else { state };
        let Status { holders, kept } = status.unwrap_or_default();
        all.push(Listed {
            archives: match &record {
                Some(record) => record.archives.clone(),
                None => vec![entry.source.into()],
            },
            daemon: record.map(|record| record.process.pid()),
            holders: holders.into_iter().map(|holder| (holder.pid, holder.name)).collect(),
            kept,
            state,
            mount_point,
        });
    }
    Ok(all)
}
