//! One mount for all who ask for the same archives at the same place.
//!
//! Owns deciding whether there is such a mount already, and taking a lease on it. Invariant: of any
//! number of processes that ask at once, one gets the lock of the place with nothing mounted there,
//! and all others a lease on what it mounts.
//!
//! A daemon that was asked to end gives no lease, and its mount goes when the last holder lets go,
//! at the latest when the grace is over. Who comes then has to wait for it, and does so without the
//! lock of the place: a holder lets go by `archfs unmount`, too, which takes that lock, so with the
//! lock held each would wait for the other until the grace is over. In general, whoever has the
//! lock may wait for a daemon that serves, which never waits for the lock, but not for what holders
//! do.
//!
//! After such a wait nothing counts that was seen before it: the lock is taken and the place looked
//! at anew, as by one who comes just then. So it does no harm to wake too early, nor that somebody
//! mounted, unmounted or cleared there meanwhile. Of several who waited one gets the lock and
//! mounts, and the others, who wait for the lock then, share. One that is killed while it waits
//! leaves nothing behind. The cost is the order: who asks later may come first, also with another
//! archive.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use super::batch::Group;
use super::lease::Client;
use super::mountinfo::MountEntry;
use super::mountpoint::taken;
use super::occupant::{self, Occupant};
use super::registry::{Key, PlaceLock, Record, Registry};
use super::{MountPlan, unmount};
use crate::error::{Error, Kind, Result};
use crate::vfs::ViewOptions;

/// How long a mount that is on its way out may take until its place is free.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a daemon may take to say whether it is kept.
const ANSWER: Duration = Duration::from_secs(5);

/// After what time of that a person is told why nothing happens, and it is looked again whatever
/// the daemon says.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// How often it is looked whether one is gone whose daemon does not listen any more.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What is at a place for somebody who wants to mount there.
#[derive(Debug)]
pub(super) enum Entrance {
    /// What was asked for, with a lease on it.
    Shared(Client, Record),
    /// Nothing, and nobody else mounts there while the lock is held.
    Free(PlaceLock),
}

/// Finds out what is at `place`, where `plan` shall be mounted; clears a dead mount.
///
/// # Errors
/// `Busy` where something else is mounted there; `Io`; `TimedOut`.
pub(super) fn enter(place: &Path, plan: &MountPlan) -> Result<Entrance> {
    let mut patience = Patience::default();
    loop {
        let lock = PlaceLock::acquire(place)?;
        let ending = match occupant::look(place)? {
            Occupant::Nothing => return Ok(Entrance::Free(lock)),
            Occupant::Other(entry) => return Err(taken(place, &entry)),
            Occupant::Alive(entry, record) => {
                check_same(place, &entry, &record, plan)?;
                match ask_for_lease(place)? {
                    Asked::Given(mut client) => {
                        check_lasts(place, &record, &mut client)?;
                        return Ok(Entrance::Shared(client, record));
                    }
                    Asked::Ending(daemon) => daemon,
                }
            }
            Occupant::Dead(_) => {
                // A mount that is shorter than its end would leave the directory to it.
                unmount::clear_all_dead_and_wait(place)?;
                None
            }
            Occupant::Leaving(_) => None,
        };
        drop(lock);
        patience.wait(place, ending)?;
    }
}

/// What came of asking a daemon for a lease.
enum Asked {
    /// Here it is.
    Given(Client),
    /// The mount is on its way out, and with it this connection, if the daemon still listens.
    Ending(Option<Client>),
}

/// Asks for a lease on the mount at `place`. Call it with the lock of the place.
fn ask_for_lease(place: &Path) -> Result<Asked> {
    let Some(mut client) = connect(place) else {
        return Ok(Asked::Ending(None));
    };
    Ok(match client.hold()? {
        true => Asked::Given(client),
        false => Asked::Ending(Some(client)),
    })
}

/// That of one who waits for mounts to end. What others take to mount meanwhile does not count.
#[derive(Default)]
struct Patience {
    waited: Duration,
    has_told: bool,
}

impl Patience {
    /// Waits until it is worth to look at `place` again. Call it without the lock of the place.
    fn wait(&mut self, place: &Path, ending: Option<Client>) -> Result<()> {
        let since = Instant::now();
        if let Some(mut daemon) = ending {
            daemon.wait_until_gone(TELL_AFTER)?;
        }
        thread::sleep(LOOK_AGAIN);
        self.waited += since.elapsed();
        if self.waited >= PATIENCE {
            let context = format!("{}: the last mount here does not go", place.display());
            return Err(Error::new(Kind::TimedOut, context)
                .with_hint("archfs list tells which process serves it"));
        }
        if self.waited >= TELL_AFTER && !self.has_told {
            self.has_told = true;
            log::warn!("{}: waiting until the last mount here is gone", place.display());
        }
        Ok(())
    }
}

/// A connection to the daemon of the mount at `place`, if it listens.
pub(super) fn connect(place: &Path) -> Option<Client> {
    Client::connect(&Registry::existing()?.socket(&Key::of(place))).ok()
}

fn check_same(place: &Path, entry: &MountEntry, record: &Record, plan: &MountPlan) -> Result<()> {
    let wanted = identity(plan);
    if record.identity == wanted {
        return Ok(());
    }
    if record.archives == real_paths(plan) {
        let context = format!(
            "{}: {} is mounted here, with other options or as it was before it changed",
            place.display(),
            entry.describe()
        );
        return Err(Error::new(Kind::Busy, context).with_hint(
            "what is shared has to be asked for with the same --subdir, --offset, --recursive and -o",
        ));
    }
    Err(taken(place, entry))
}

/// A daemon that a batch system kills with another job, or with a step that may end first, would
/// take its mount away while this process still reads. One that is kept, such as a mount step of
/// its own, is meant to outlast the steps of its job.
fn check_lasts(place: &Path, record: &Record, client: &mut Client) -> Result<()> {
    let own = Group::own();
    let Some(group) = Group::of(record.daemon.pid()) else {
        return Ok(());
    };
    if !group.may_end_before(own.as_ref())
        || (group.is_of_the_job_of(own.as_ref()) && client.status(ANSWER)?.kept)
    {
        return Ok(());
    }
    let context =
        format!("{}: what is mounted here ends with {}", place.display(), group.describe());
    Err(Error::new(Kind::Busy, context).with_hint(
        "mount at a place of this job's own, such as one with $SLURM_JOB_ID in it, or use `archfs run --private`",
    ))
}

/// The archives of `plan` by paths that mean the same everywhere.
pub(super) fn real_paths(plan: &MountPlan) -> Vec<PathBuf> {
    let real = |path: &PathBuf| fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    plan.archives.iter().map(real).collect()
}

/// Equal for plans that show the same: the same files, unchanged, in the same order, in the same
/// way. Memory, threads and the like make no difference; who comes first chooses.
pub(super) fn identity(plan: &MountPlan) -> String {
    let MountPlan { archives, offset, recursive, view, access, .. } = plan;
    let ViewOptions { subdir, uid, gid } = view;
    let mut digest = Xxh3::new();
    for path in archives {
        match fs::metadata(path) {
            Ok(found) => {
                for number in [found.dev(), found.ino(), found.size()] {
                    digest.update(&number.to_le_bytes());
                }
                for number in [found.mtime(), found.mtime_nsec()] {
                    digest.update(&number.to_le_bytes());
                }
            }
            // Opening it will tell what is wrong.
            Err(_) => digest.update(path.as_os_str().as_bytes()),
        }
    }
    let options = format!("{offset} {recursive} {subdir:?} {uid:?} {gid:?} {access:?}");
    digest.update(options.as_bytes());
    format!("{:032x}", digest.digest128())
}
