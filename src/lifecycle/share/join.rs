//! Joins a live mount, or takes the lock to mount.
//!
//! Invariant: of any number of processes that ask at once, one gets the lock of the mount point,
//! with nothing mounted there. All others get a lease on what it mounts.
//!
//! The daemon listens on its socket before it opens the archives, so the others connect and wait
//! for its answer, however long opening takes. If the daemon fails, the connection ends and each
//! of them starts over: one gets the lock.
//!
//! A daemon that was asked to exit grants no lease. Its mount stays until the last holder ends or
//! the grace period is over. A process that asks during that time waits for the end of the
//! connection and starts over. It keeps nothing that it learned before the wait. So it may wake too
//! early, and other processes may mount, unmount or clear there during the wait. The cost is the
//! order: a process that asks later may get the mount point first, even with another archive.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use super::clean_up;
use super::lease::{Client, HoldAnswer};
use super::lock::MountLock;
use super::record::{self, Record};
use super::record_snapshot::RecordSnapshot;
use super::state::{MountState, mount_state, mount_state_within};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::MountPlan;
use crate::lifecycle::mount::mount_point::taken;
use crate::lifecycle::mount::owned_directory;
use crate::lifecycle::slurm::JobStep;
use crate::os::memory;
use crate::os::mountinfo::MountEntry;
use crate::os::process::ProcessId;
use crate::vfs::ViewOptions;

/// How long a mount that is ending may take to free its mount point while no daemon answers. A
/// daemon that answers ends within its grace period, which the user may set to any length.
const SILENT_END_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a daemon that has mounted may take to answer.
const JOIN_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait before a message says why.
const EXPLAIN_AFTER: Duration = Duration::from_secs(1);

/// How often to check a state again if no connection reports its changes.
const STATE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The result of asking for a mount.
#[derive(Debug)]
pub(in crate::lifecycle) enum JoinOutcome {
    /// A lease on the requested mount, which is live.
    Joined(Client, Record),
    /// The lock of the mount point, where nothing is mounted.
    Locked(MountLock),
}

/// Joins the mount of `plan` at `mount_point`, or locks the mount point for it. Clears a stale
/// mount first.
///
/// # Errors
/// `Busy` if something else is mounted there; `Io`; `TimedOut`.
pub(in crate::lifecycle) fn join_or_lock(
    mount_point: &Path,
    plan: &MountPlan,
) -> Result<JoinOutcome> {
    let record = first_record(mount_point, plan)?;
    let mut waiting = Waiting::default();
    loop {
        if let Some(lock) = MountLock::try_acquire(&record)? {
            return clear_and_record(mount_point, lock, &record);
        }
        let (entry, snapshot) = match mount_state(mount_point)? {
            MountState::Alive(entry, snapshot, _) => (Some(entry), snapshot),
            MountState::Starting(snapshot) => (None, snapshot),
            MountState::Unrecorded(entry) | MountState::Foreign(entry) => {
                return Err(taken(mount_point, &entry));
            }
            MountState::Stale(_) => {
                clean_up::detach_stale_unlocked(mount_point)?;
                waiting.wait_for_end(mount_point, None)?;
                continue;
            }
            MountState::Ending => {
                waiting.wait_for_end(mount_point, None)?;
                continue;
            }
            // It became free after `try_acquire`.
            MountState::Free => {
                thread::sleep(STATE_POLL_INTERVAL);
                continue;
            }
        };
        match ask_for_lease(mount_point, entry.as_ref(), &snapshot, plan, &mut waiting)? {
            LeaseAnswer::Granted(mut client, found) => {
                match check_outlasts(mount_point, &mut client)? {
                    Some(()) => return Ok(JoinOutcome::Joined(client, found)),
                    None => waiting.wait_for_end(mount_point, None)?,
                }
            }
            // The daemon does not listen yet, or failed to mount.
            _ if entry.is_none() => waiting.wait_for_start(mount_point),
            LeaseAnswer::Refused(client) => waiting.wait_for_end(mount_point, Some(client))?,
            LeaseAnswer::NotListening => waiting.wait_for_end(mount_point, None)?,
        }
    }
}

/// Clears what a killed daemon has left at `mount_point`, whose lock is `lock`, and writes `record`
/// to the record file.
fn clear_and_record(mount_point: &Path, lock: MountLock, record: &Record) -> Result<JoinOutcome> {
    if let Some(entry) = lock.detach_stale(mount_point)? {
        lock.remove();
        return Err(taken(mount_point, &entry));
    }
    if let creation_start @ Some(_) = lock.directory_creation_start() {
        owned_directory::remove_unused(mount_point, creation_start);
    }
    clean_up::remove_ended_records(mount_point);
    lock.write(record)?;
    Ok(JoinOutcome::Locked(lock))
}

/// The answer of a daemon to a request for a lease.
enum LeaseAnswer {
    /// It grants one on the mount that the record describes.
    Granted(Client, Record),
    /// It is about to unmount, and then closes this connection.
    Refused(Client),
    /// No daemon listens, its record cannot be read, or it closed the connection.
    NotListening,
}

/// Asks the daemon of `snapshot` for a lease, if it mounts what `plan` says.
///
/// All daemons of a mount point listen at the same path, and a process that clears a stale mount
/// holds the lock while the file still has the record of the killed daemon. So the record counts
/// only if it is read while a daemon is connected. A daemon keeps the lock from before it listens
/// until it grants no more leases. If it grants this one, the record is its own.
///
/// # Errors
/// `Busy` if it mounts something else; `TimedOut`; `Io`.
fn ask_for_lease(
    mount_point: &Path,
    entry: Option<&MountEntry>,
    snapshot: &RecordSnapshot,
    plan: &MountPlan,
    waiting: &mut Waiting,
) -> Result<LeaseAnswer> {
    let Some(mut client) = snapshot.connect() else {
        return Ok(LeaseAnswer::NotListening);
    };
    let Some(record) = snapshot.read_again() else {
        return Ok(LeaseAnswer::NotListening);
    };
    check_same(mount_point, entry, &record, plan)?;
    let mut answer_by = None;
    let mut wait_longer = || {
        match mount_state_within(mount_point, Duration::ZERO) {
            Ok(MountState::Starting(_)) => {
                waiting.explain_start(mount_point);
                answer_by = None;
                true
            }
            // The daemon was killed, so it will not answer.
            Ok(MountState::Stale(_)) => false,
            _ => {
                Instant::now()
                    < *answer_by.get_or_insert_with(|| Instant::now() + JOIN_ANSWER_TIMEOUT)
            }
        }
    };
    match client.hold_while(&mut wait_longer) {
        Ok(HoldAnswer::Granted) => Ok(LeaseAnswer::Granted(client, record)),
        Ok(HoldAnswer::Refused) => Ok(LeaseAnswer::Refused(client)),
        Ok(HoldAnswer::Closed) => Ok(LeaseAnswer::NotListening),
        Err(error) if error.kind() == Kind::TimedOut => match mount_state(mount_point)? {
            MountState::Stale(_) => Ok(LeaseAnswer::NotListening),
            _ => Err(error
                .within(mount_point.display())
                .with_hint("run `archfs list` to see its daemon")),
        },
        Err(error) => Err(error.within(mount_point.display())),
    }
}

/// Whether the daemon of a mount that is ending answered during a wait.
#[derive(Clone, Copy)]
enum Daemon {
    Answers,
    IsSilent,
}

/// How long this process has waited for others.
#[derive(Default)]
struct Waiting {
    starting_since: Option<Instant>,
    /// How long a previous mount has been ending.
    ending: Duration,
    /// The part of that since its daemon last answered.
    unanswered: Duration,
    has_explained: bool,
}

impl Waiting {
    /// Waits before a mount that is ending is checked again. `refused` is the connection to its
    /// daemon, if that has just answered.
    fn wait_for_end(&mut self, mount_point: &Path, refused: Option<Client>) -> Result<()> {
        let since = Instant::now();
        match refused {
            Some(mut client) => {
                client.wait_until_closed(EXPLAIN_AFTER)?;
                self.note_ending(since.elapsed(), Daemon::Answers);
            }
            None => self.note_ending(since.elapsed(), Daemon::IsSilent),
        }
        thread::sleep(STATE_POLL_INTERVAL);
        self.note_ending(STATE_POLL_INTERVAL, Daemon::IsSilent);
        if self.unanswered >= SILENT_END_TIMEOUT {
            let context =
                format!("{}: the previous mount was not unmounted in time", mount_point.display());
            return Err(Error::new(Kind::TimedOut, context)
                .with_hint("run `archfs list` to see its daemon"));
        }
        if self.ending >= EXPLAIN_AFTER {
            self.explain(mount_point, "waiting until the previous mount is unmounted");
        }
        Ok(())
    }

    fn note_ending(&mut self, time: Duration, daemon: Daemon) {
        self.ending += time;
        self.unanswered = match daemon {
            Daemon::Answers => Duration::ZERO,
            Daemon::IsSilent => self.unanswered + time,
        };
    }

    /// Waits before a mount that is starting is checked again.
    fn wait_for_start(&mut self, mount_point: &Path) {
        self.explain_start(mount_point);
        thread::sleep(STATE_POLL_INTERVAL);
    }

    fn explain_start(&mut self, mount_point: &Path) {
        let since = *self.starting_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= EXPLAIN_AFTER {
            self.explain(mount_point, "waiting for another process to mount here");
        }
    }

    fn explain(&mut self, mount_point: &Path, text: &str) {
        if !self.has_explained {
            self.has_explained = true;
            log::warn!("{}: {text}", mount_point.display());
        }
    }
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
    let path = mount_point.display();
    if record.archives == real_paths(plan) {
        let context = format!(
            "{path}: {described} is mounted here with other options, or has changed since it was mounted"
        );
        return Err(Error::new(Kind::Busy, context).with_hint(
            "to share it, give the same --subdir, --offset, --recursive, --allow-changes and -o",
        ));
    }
    let context = format!("{path}: {described} is mounted here");
    Err(Error::new(Kind::Busy, context)
        .with_hint("choose another mount point, or unmount that first"))
}

/// Refuses a mount that may end before this process. A batch system kills a daemon when its job or
/// step ends, and the mount fails then. It accepts a mount of the same job that stays until it is
/// unmounted explicitly: such a mount, for example of a mount step, is meant to outlast other
/// steps. Returns `None` if the daemon unmounts before it answers.
fn check_outlasts(mount_point: &Path, client: &mut Client) -> Result<Option<()>> {
    let own = JobStep::own();
    let Some(step) = client.daemon().and_then(|daemon| JobStep::of(daemon.pid())) else {
        return Ok(Some(()));
    };
    if !step.may_end_before(own.as_ref()) {
        return Ok(Some(()));
    }
    if step.is_of_the_job_of(own.as_ref()) {
        match client.status(JOIN_ANSWER_TIMEOUT)? {
            None => return Ok(None),
            Some(status) if status.until_unmount => return Ok(Some(())),
            Some(_) => {}
        }
    }
    let path = mount_point.display();
    let context = format!("{path}: the mount here ends with {}", step.describe());
    Err(Error::new(Kind::Busy, context).with_hint(
        "use another mount point, for example one with $SLURM_JOB_ID in its name, or `archfs run --private`",
    ))
}

/// The record of a process that is about to mount as `plan` says.
///
/// # Errors
/// `NotFound` if this process cannot be identified.
pub(in crate::lifecycle) fn first_record(mount_point: &Path, plan: &MountPlan) -> Result<Record> {
    Ok(Record {
        process: ProcessId::own()?,
        mount: None,
        creates_directory: false,
        is_ending: false,
        node: record::node(),
        job: plan.cache_bytes.is_none().then(memory::job),
        identity: identity(plan),
        archives: real_paths(plan),
        mount_point: mount_point.to_owned(),
    })
}

/// The archives of `plan` as absolute paths without symbolic links.
pub(in crate::lifecycle) fn real_paths(plan: &MountPlan) -> Vec<PathBuf> {
    let real = |path: &PathBuf| fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    plan.archives.iter().map(real).collect()
}

/// A digest that is equal for plans whose mounts show the same: the same archives, unchanged, in
/// the same order, with the same options for the view. Memory, threads and similar options do not
/// count; those of the process that mounts apply.
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
            // Opening it later reports the error.
            Err(_) => digest.update(path.as_os_str().as_bytes()),
        }
    }
    let options =
        format!("{offset} {recursive} {subdir:?} {uid:?} {gid:?} {access:?} {allow_changes}");
    digest.update(options.as_bytes());
    format!("{:032x}", digest.digest128())
}

#[cfg(test)]
mod tests {
    use rustix::process::geteuid;

    use super::*;

    fn plan(mount_point: PathBuf) -> MountPlan {
        MountPlan::without_options("/a.sqfs".into(), mount_point)
    }

    fn ask(plan: &MountPlan, snapshot: &RecordSnapshot) -> Result<LeaseAnswer> {
        ask_for_lease(&plan.mountpoint, None, snapshot, plan, &mut Waiting::default())
    }

    fn snapshot(plan: &MountPlan) -> RecordSnapshot {
        RecordSnapshot::of(&plan.mountpoint, geteuid().as_raw()).unwrap()
    }

    #[test]
    fn only_a_daemon_that_does_not_answer_is_given_up() {
        let mut waiting = Waiting::default();
        for _ in 0..100 {
            waiting.note_ending(Duration::from_secs(1), Daemon::Answers);
            waiting.note_ending(STATE_POLL_INTERVAL, Daemon::IsSilent);
        }
        assert!(waiting.unanswered < SILENT_END_TIMEOUT && waiting.ending > SILENT_END_TIMEOUT);
        waiting.note_ending(SILENT_END_TIMEOUT, Daemon::IsSilent);
        assert!(waiting.unanswered >= SILENT_END_TIMEOUT);
    }

    #[test]
    fn the_record_of_a_killed_daemon_refuses_no_other_archive() {
        let work = tempfile::tempdir().unwrap();
        let plan = plan(work.path().join("mount"));
        let other = Record {
            identity: "other".to_owned(),
            ..first_record(&plan.mountpoint, &plan).unwrap()
        };
        let lock = MountLock::try_acquire(&other).unwrap().unwrap();
        let snapshot = snapshot(&plan);
        assert!(snapshot.was_locked, "a process clears the stale mount");
        assert!(matches!(ask(&plan, &snapshot), Ok(LeaseAnswer::NotListening)));
        let _listener = lock.listen().unwrap();
        assert_eq!(ask(&plan, &snapshot).map(|_| ()).unwrap_err().kind(), Kind::Busy);
        lock.remove();
    }

    #[test]
    fn compares_with_the_record_of_the_daemon_that_is_connected() {
        let work = tempfile::tempdir().unwrap();
        let plan = plan(work.path().join("mount"));
        let same = first_record(&plan.mountpoint, &plan).unwrap();
        let lock = MountLock::try_acquire(&same).unwrap().unwrap();
        let snapshot = snapshot(&plan);
        // Another process mounts another archive before this one connects. The daemon has exited
        // before it answers, so that this test never waits.
        lock.write(&Record { identity: "other".to_owned(), ..same }).unwrap();
        let listener = lock.listen().unwrap();
        let asked = thread::scope(|scope| {
            scope.spawn(|| drop(listener.accept().unwrap()));
            ask(&plan, &snapshot)
        });
        assert_eq!(asked.map(|_| ()).unwrap_err().kind(), Kind::Busy);
        lock.remove();
    }
}
