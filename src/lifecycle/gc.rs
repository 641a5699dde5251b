//! Clearing what killed daemons left on this node.
//!
//! Owns finding it: dead mounts, records, directories that archfs made. Invariants: what is alive
//! is never touched, nor anything of another user.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::occupant::{self, Occupant};
use super::process::ProcessId;
use super::registry::{MadeDirectory, PlaceLock, Registry};
use super::{mountinfo, unmount};
use crate::error::{Error, Result};

/// What was cleared, and what could not be.
#[derive(Debug, Default)]
pub struct Cleared {
    /// Dead mounts.
    pub mounts: Vec<PathBuf>,
    /// Directories that were made for mounts.
    pub directories: Vec<PathBuf>,
    /// What went wrong.
    pub errors: Vec<Error>,
}

/// Clears dead mounts of this user, the directories made for them, and records of mounts that are
/// no more.
///
/// # Errors
/// `Io` where /proc can not be read; what goes wrong with one mount is in the result.
pub fn gc() -> Result<Cleared> {
    let mut cleared = Cleared::default();
    let mut places: Vec<PathBuf> = Vec::new();
    let mounted = mountinfo::all()?;
    let mounted = mounted.into_iter().filter(occupant::is_own).map(|entry| entry.place);
    let registry = Registry::existing();
    let recorded = registry.iter().flat_map(|registry| {
        registry.keys().into_iter().filter_map(|key| Some(registry.record(&key)?.place))
    });
    for place in mounted.chain(recorded) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    // All are detached before any is waited for: a batch system may give this process little time.
    let mut begun = Vec::new();
    for place in places {
        match Begun::at(&place) {
            Ok(Some(this)) => begun.push((place, this)),
            Ok(None) => {}
            Err(error) => cleared.errors.push(error),
        }
    }
    let deadline = Instant::now() + unmount::DAEMON_END;
    for (place, Begun { lock, was_mounted, daemon }) in begun {
        unmount::wait_for_end(daemon, deadline);
        match unmount::forget(&place, lock) {
            Ok(()) if was_mounted => cleared.mounts.push(place),
            Ok(()) => {}
            Err(error) => cleared.errors.push(error),
        }
    }
    if let Some(registry) = registry {
        cleared.directories = MadeDirectory::clear_unused(&registry);
        registry.clear_files();
    }
    Ok(cleared)
}

/// A place with nothing dead mounted at it any more, locked.
struct Begun {
    lock: PlaceLock,
    was_mounted: bool,
    /// The one that was recorded, which may still be about to end.
    daemon: Option<ProcessId>,
}

impl Begun {
    /// Detaches what is dead at `place`.
    fn at(place: &Path) -> Result<Option<Self>> {
        // Whoever has the lock is about to do something there, and finds what is dead by itself.
        let Some(lock) = PlaceLock::try_acquire(place)? else {
            return Ok(None);
        };
        let was_mounted = matches!(occupant::look(place)?, Occupant::Dead(_));
        let daemon = unmount::clear_all_dead(place)?;
        Ok(Some(Self { lock, was_mounted, daemon }))
    }
}
