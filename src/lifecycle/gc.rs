//! Clearing what killed daemons left on this node.
//!
//! Owns finding it: dead mounts, records, directories that archfs made. Invariants: what is alive
//! is never touched, nor anything of another user.

use std::path::{Path, PathBuf};

use super::occupant::{self, Occupant};
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
    for place in places {
        match clear(&place) {
            Ok(true) => cleared.mounts.push(place),
            Ok(false) => {}
            Err(error) => cleared.errors.push(error),
        }
    }
    if let Some(registry) = registry {
        cleared.directories = MadeDirectory::clear_unused(&registry);
        registry.clear_files();
    }
    Ok(cleared)
}

/// Clears `place` if its mount or record is dead; tells whether a mount was.
fn clear(place: &Path) -> Result<bool> {
    // Whoever has the lock is about to do something there, and finds what is dead by itself.
    let Some(lock) = PlaceLock::try_acquire(place)? else {
        return Ok(false);
    };
    let was_mounted = matches!(occupant::look(place)?, Occupant::Dead(_));
    unmount::clear_all_dead(place)?;
    unmount::forget(place, lock)?;
    Ok(was_mounted)
}
