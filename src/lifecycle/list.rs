//! This user's archfs mounts on this node, and the numbers of one.
//!
//! Owns gathering what is known of each. Invariant: a daemon that does not answer costs a moment,
//! not a hang.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::lease::Status;
use super::occupant::{self, Occupant};
use super::registry::Record;
use super::{join, mountinfo, mountpoint};
use crate::error::{Error, Kind, Result};

/// What to say where no mount is.
pub(super) const LIST: &str = "archfs list shows your mounts on this node";

/// How long a daemon may take to say who holds its mount.
const ANSWER: Duration = Duration::from_secs(2);

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Where it is.
    pub place: PathBuf,
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
    let place = mountpoint::locate(path)?;
    let Occupant::Alive(..) = occupant::look(&place)? else {
        let context = format!("{}: no archfs mount of yours is served here", place.display());
        return Err(Error::new(Kind::NotMounted, context).with_hint(LIST));
    };
    let numbers = match join::connect(&place) {
        Some(mut client) => client.numbers()?,
        None => String::new(),
    };
    match numbers.trim_end() {
        "" => Err(Error::new(Kind::NotMounted, format!("{}: it has just ended", place.display()))),
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
        if occupant::is_own(&entry) && !places.contains(&entry.place) {
            places.push(entry.place);
        }
    }
    let mut all = Vec::new();
    for place in places {
        let (entry, record, state) = match occupant::look(&place)? {
            Occupant::Alive(entry, record) => (entry, Some(record), State::Alive),
            Occupant::Dead(entry) => (entry, Record::read(&place), State::Dead),
            Occupant::Other(entry) if occupant::may_touch(&entry) => (entry, None, State::Unknown),
            // It went while this was gathered, or something else lies on top of it.
            _ => continue,
        };
        let status = match state {
            State::Alive => join::connect(&place).and_then(|mut it| it.status(ANSWER).ok()),
            _ => None,
        };
        let state = if state == State::Alive && status.is_none() { State::Silent } else { state };
        let Status { holders, kept } = status.unwrap_or_default();
        all.push(Listed {
            archives: match &record {
                Some(record) => record.archives.clone(),
                None => vec![entry.source.into()],
            },
            daemon: record.map(|record| record.daemon.pid()),
            holders: holders.into_iter().map(|holder| (holder.pid, holder.name)).collect(),
            kept,
            state,
            place,
        });
    }
    Ok(all)
}
