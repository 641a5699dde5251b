//! Taking part in a mount, or getting the lock to make it.
//!
//! Invariant: of any number of processes that ask at once, one gets the lock of the mount point
//! with nothing mounted there, and all others a lease on what it mounts.
//!
//! The daemon listens at its socket before it opens the archives, so the others connect and wait
//! for its answer, however long opening takes. If it fails, the connection ends, and each looks
//! again: one of them gets the lock.
//!
//! A daemon that was asked to exit gives no lease. Its mount stays until the last holder ends, or
//! the grace period is over. A process that comes then waits for the end of the connection and
//! looks again. Nothing that it saw before the wait counts afterwards, so it does no harm to wake
//! too early, or that others mount, unmount or clear there meanwhile. The cost is the order: a
//! process that asks later may come first, also with another archive.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use super::lease::Client;
use super::lock::{self, MountLock, RecordFile};
use super::record::{self, Record};
use super::state::{self, MountState};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::MountPlan;
use crate::lifecycle::mount::mount_point::taken;
use crate::lifecycle::system::process::ProcessId;
use crate::lifecycle::system::slurm::JobStep;
use crate::memory;
use crate::mountinfo::MountEntry;
use crate::vfs::ViewOptions;

/// How long a mount that is ending may take until its mount point is free.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a daemon that serves may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// After how long a person is told what is waited for.
const EXPLAIN_AFTER: Duration = Duration::from_secs(1);

/// How often a state is looked at again that no connection tells of.
const RETRY: Duration = Duration::from_millis(5);

/// What a process gets that wants to mount.
#[derive(Debug)]
pub(in crate::lifecycle) enum Entry {
    /// A lease on the mount that it asked for.
    Shared(Client, Record),
    /// The lock of the mount point, where nothing is mounted.
    Free(MountLock),
}

/// Takes part in the mount of `plan` at `mount_point`, or locks the mount point for it; clears a
/// stale mount.
///
/// # Errors
/// `Busy` where something else is mounted there; `Io`; `TimedOut`.
pub(in crate::lifecycle) fn enter(mount_point: &Path, plan: &MountPlan) -> Result<Entry> {
    let record = first_record(mount_point, plan)?;
    let mut patience = Patience::default();
    loop {
        if let Some(lock) = MountLock::try_acquire(&record)? {
            return take_over(mount_point, lock, &record);
        }
        match state::look(mount_point)? {
            MountState::Other(entry) => return Err(taken(mount_point, &entry)),
            MountState::Alive(entry, file, found) => {
                check_same(mount_point, Some(&entry), &found, plan)?;
                match ask_for_lease(mount_point, &file, &mut patience)? {
                    Asked::Given(mut client) => {
                        check_lasts(mount_point, &mut client)?;
                        return Ok(Entry::Shared(client, found));
                    }
                    Asked::Ending(client) => patience.wait_for_end(mount_point, client)?,
                }
            }
            MountState::Starting(file) => match &file.record {
                Some(found) => {
                    check_same(mount_point, None, found, plan)?;
                    match ask_for_lease(mount_point, &file, &mut patience)? {
                        Asked::Given(mut client) => {
                            check_lasts(mount_point, &mut client)?;
                            return Ok(Entry::Shared(client, found.clone()));
                        }
                        // Not listening yet, or failed.
                        Asked::Ending(_) => patience.wait_for_start(mount_point),
                    }
                }
                None => patience.wait_for_start(mount_point),
            },
            MountState::Stale(_) => {
                state::detach_stale(mount_point)?;
                patience.wait_for_end(mount_point, None)?;
            }
            MountState::Ending => patience.wait_for_end(mount_point, None)?,
            // Free by now.
            MountState::Free => thread::sleep(RETRY),
        }
    }
}

/// With the lock, what a killed daemon left is cleared, and the file says what is about to be
/// mounted.
fn take_over(mount_point: &Path, lock: MountLock, record: &Record) -> Result<Entry> {
    if let Some(entry) = state::clear_locked(mount_point)? {
        lock.remove();
        return Err(taken(mount_point, &entry));
    }
    if let begun @ Some(_) = lock.begun() {
        crate::lifecycle::mount::owned_directory::remove_unused(mount_point, begun);
    }
    lock::clear_others(mount_point);
    lock.write(record)?;
    Ok(Entry::Free(lock))
}

/// What a daemon that was asked for a lease does.
enum Asked {
    /// It gives one.
    Given(Client),
    /// It is ending, and this connection with it, or does not listen.
    Ending(Option<Client>),
}

fn ask_for_lease(mount_point: &Path, file: &RecordFile, patience: &mut Patience) -> Result<Asked> {
    let Ok(mut client) = Client::connect(&file.socket()) else {
        return Ok(Asked::Ending(None));
    };
    let mut answer_by = None;
    let mut wait_longer = || {
        match state::look_within(mount_point, Duration::ZERO) {
            Ok(MountState::Starting(_)) => {
                patience.explain_start(mount_point);
                answer_by = None;
                true
            }
            // Killed: it will not answer.
            Ok(MountState::Stale(_)) => false,
            _ => Instant::now() < *answer_by.get_or_insert_with(|| Instant::now() + ANSWER),
        }
    };
    match client.hold_while(&mut wait_longer) {
        Ok(true) => Ok(Asked::Given(client)),
        Ok(false) => Ok(Asked::Ending(Some(client))),
        Err(error) if error.kind() == Kind::TimedOut => match state::look(mount_point)? {
            MountState::Stale(_) => Ok(Asked::Ending(None)),
            _ => Err(error
                .within(mount_point.display())
                .with_hint("archfs list shows which process serves it")),
        },
        Err(error) => Err(error),
    }
}

/// How long a process has waited for others.
#[derive(Default)]
struct Patience {
    starting_since: Option<Instant>,
    ending: Duration,
    has_explained: bool,
}

impl Patience {
    /// Waits until it is worth to look again at a mount that is ending.
    fn wait_for_end(&mut self, mount_point: &Path, ending: Option<Client>) -> Result<()> {
        let since = Instant::now();
        if let Some(mut client) = ending {
            client.wait_until_gone(EXPLAIN_AFTER)?;
        }
        thread::sleep(RETRY);
        self.ending += since.elapsed();
        if self.ending >= PATIENCE {
            let context = format!("{}: the last mount here does not go", mount_point.display());
            return Err(Error::new(Kind::TimedOut, context)
                .with_hint("archfs list shows which process serves it"));
        }
        if self.ending >= EXPLAIN_AFTER {
            self.explain(mount_point, "waiting until the last mount here is gone");
        }
        Ok(())
    }

    /// Waits until it is worth to look again at a mount that is starting.
    fn wait_for_start(&mut self, mount_point: &Path) {
        self.explain_start(mount_point);
        thread::sleep(RETRY);
    }

    fn explain_start(&mut self, mount_point: &Path) {
        let since = *self.starting_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= EXPLAIN_AFTER {
            self.explain(mount_point, "waiting for another process that mounts here");
        }
    }

    fn explain(&mut self, mount_point: &Path, what: &str) {
        if !self.has_explained {
            self.has_explained = true;
            log::warn!("{}: {what}", mount_point.display());
        }
    }
}

/// A connection to the daemon of the mount at `mount_point`, if it listens.
pub(in crate::lifecycle) fn connect(file: &RecordFile) -> Option<Client> {
    Client::connect(&file.socket()).ok()
}

fn check_same(
    mount_point: &Path,
    entry: Option<&MountEntry>,
    record: &Record,
    plan: &MountPlan,
) -> Result<()> {
    if record.identity == identity(plan) {
        return Ok(());
    }
    let described = entry.map_or_else(
        || {
            format!(
                "{} (fuse.archfs)",
                record.archives.first().map_or(Path::new("?"), |p| p).display()
            )
        },
        MountEntry::describe,
    );
    let shown = mount_point.display();
    if record.archives == real_paths(plan) {
        let context = format!(
            "{shown}: {described} is mounted here, with other options or as it was before it changed"
        );
        return Err(Error::new(Kind::Busy, context).with_hint(
            "what is shared has to be asked for with the same --subdir, --offset, --recursive, \
             --allow-changes and -o",
        ));
    }
    let context = format!("{shown}: {described} is mounted here");
    Err(Error::new(Kind::Busy, context)
        .with_hint("choose another mount point, or unmount that first"))
}

/// A daemon that a batch system kills with another job, or with a step that may end first, would
/// take its mount away while this process still reads. One that is kept, such as a mount step of
/// its own, is meant to outlast the steps of its job.
fn check_lasts(mount_point: &Path, client: &mut Client) -> Result<()> {
    let own = JobStep::own();
    let Some(group) = client.daemon().and_then(|daemon| JobStep::of(daemon.pid())) else {
        return Ok(());
    };
    if !group.may_end_before(own.as_ref())
        || (group.is_of_the_job_of(own.as_ref()) && client.status(ANSWER)?.kept)
    {
        return Ok(());
    }
    let shown = mount_point.display();
    let context = format!("{shown}: what is mounted here ends with {}", group.describe());
    Err(Error::new(Kind::Busy, context).with_hint(
        "use a mount point of this job's own, such as one with $SLURM_JOB_ID in it, or `archfs run --private`",
    ))
}

/// The record of a process that is about to mount as `plan` says.
///
/// # Errors
/// `NotFound` where this process cannot be identified.
pub(in crate::lifecycle) fn first_record(mount_point: &Path, plan: &MountPlan) -> Result<Record> {
    Ok(Record {
        process: ProcessId::own()?,
        mount: None,
        creates: false,
        is_ending: false,
        node: record::node(),
        job: plan.cache_bytes.is_none().then(memory::job),
        identity: identity(plan),
        archives: real_paths(plan),
        mount_point: mount_point.to_owned(),
    })
}

/// The archives of `plan` by paths that mean the same everywhere.
pub(in crate::lifecycle) fn real_paths(plan: &MountPlan) -> Vec<PathBuf> {
    let real = |path: &PathBuf| fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    plan.archives.iter().map(real).collect()
}

/// Equal for plans that show the same: the same files, unchanged, in the same order, in the same
/// way. Memory, threads and the like make no difference; the first process that mounts chooses.
pub(in crate::lifecycle) fn identity(plan: &MountPlan) -> String {
    let MountPlan { archives, offset, recursive, view, access, allow_changes, .. } = plan;
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
            // Opening it reports what is wrong.
            Err(_) => digest.update(path.as_os_str().as_bytes()),
        }
    }
    let options =
        format!("{offset} {recursive} {subdir:?} {uid:?} {gid:?} {access:?} {allow_changes}");
    digest.update(options.as_bytes());
    format!("{:032x}", digest.digest128())
}
