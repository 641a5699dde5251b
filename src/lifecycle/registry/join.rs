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

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::clean_up;
use super::identity::{first_record, identity, real_paths};
use super::lease::{Client, HoldAnswer};
use super::lock::MountLock;
use super::record::Record;
use super::state::{MountState, RecordSnapshot, mount_state, mount_state_within};
use crate::batch_job::JobStep;
use crate::error::{Error, Kind, Result};
use crate::lifecycle::MountPlan;
use crate::lifecycle::mount::mount_point::taken;
use crate::lifecycle::mount::owned_directory;
use crate::os::mountinfo::MountEntry;
use crate::os::unfinished::Unfinished;

/// How long a daemon that has mounted may take to answer.
const JOIN_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How often to check a state again if no connection reports its changes.
const STATE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How long a mount that is ending may take to free its mount point while no daemon answers. A
/// daemon that answers ends within its grace period, which the user may set to any length.
const SILENT_END_TIMEOUT: Duration = Duration::from_secs(30);

const EXPLAIN_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) enum JoinOutcome {
    /// A lease on the requested mount, which is live.
    Joined(Client, Record),
    /// The lock of the mount point, where nothing is mounted.
    Locked(MountLock),
}

/// Joins the mount of `plan` at `mount_point`, or locks the mount point for it. Detaches a stale
/// mount first.
pub(crate) fn join_or_lock(mount_point: &Path, plan: &MountPlan) -> Result<JoinOutcome> {
    let record = first_record(mount_point, plan)?;
    let mut waiting = JoinWait::new(mount_point);
    loop {
        let unfinished = Unfinished::begin();
        if let Some(lock) = MountLock::try_acquire(&record)? {
            return clean_up_and_record(mount_point, lock, &record, unfinished);
        }
        drop(unfinished);
        let (entry, snapshot) = match mount_state(mount_point)? {
            MountState::Alive(entry, snapshot, _) => (Some(entry), snapshot),
            MountState::Starting(snapshot) => (None, snapshot),
            MountState::Unrecorded(entry) | MountState::Foreign(entry) => {
                return Err(taken(mount_point, &entry));
            }
            MountState::Stale(_) => {
                clean_up::detach_stale_unlocked(mount_point)?;
                waiting.wait_for_end()?;
                continue;
            }
            MountState::Ending => {
                waiting.wait_for_end()?;
                continue;
            }
            // It became free after `try_acquire`.
            MountState::Free => {
                thread::sleep(STATE_POLL_INTERVAL);
                continue;
            }
        };
        let on_starting = &mut || waiting.explain_start();
        match ask_for_lease(mount_point, entry.as_ref(), &snapshot, plan, on_starting)? {
            LeaseAnswer::Granted(mut client, found) => {
                if check_outlasts(mount_point, &mut client)? {
                    return Ok(JoinOutcome::Joined(client, found));
                }
                waiting.wait_for_end()?;
            }
            // The daemon does not listen yet, or failed to mount.
            _ if entry.is_none() => waiting.wait_for_start(),
            LeaseAnswer::Refused(client) => waiting.wait_for_end_of(client)?,
            LeaseAnswer::NoAnswer => waiting.wait_for_end()?,
        }
    }
}

/// Removes what a killed daemon has left at `mount_point`, of which `lock` is the lock, and writes
/// `record` to the record file. From then on a signal, also one that `unfinished` holds, removes
/// the file. While it has the record of the killed daemon, it stays.
fn clean_up_and_record(
    mount_point: &Path,
    mut lock: MountLock,
    record: &Record,
    unfinished: Option<Unfinished>,
) -> Result<JoinOutcome> {
    let is_new = lock.record().as_ref() == Some(record);
    match is_new {
        true => lock.remove_on_signal(unfinished),
        false => drop(unfinished),
    }
    if let Some(entry) = lock.detach_stale(mount_point)? {
        lock.remove();
        return Err(taken(mount_point, &entry));
    }
    // The killed daemon may not have marked the directory as created by archfs. Then the new mount
    // would not remove it.
    if let creation_start @ Some(_) = lock.directory_creation_start() {
        owned_directory::remove_unused(mount_point, creation_start);
    }
    clean_up::remove_ended_records(mount_point);
    if !is_new {
        let unfinished = Unfinished::begin();
        lock.write(record)?;
        lock.remove_on_signal(unfinished);
    }
    Ok(JoinOutcome::Locked(lock))
}

/// Refuses a mount that may end before this process. A batch system kills a daemon when its job or
/// step ends, and the mount fails then. It accepts a mount of the same job that stays until it is
/// unmounted explicitly: such a mount, for example of a mount step, is meant to outlast other
/// steps. Returns `false` if the daemon unmounts before it answers.
///
/// Fails with `Busy` if the mount may end before this process; `TimedOut`; `Io`.
fn check_outlasts(mount_point: &Path, client: &mut Client) -> Result<bool> {
    let own = JobStep::own();
    let Some(step) = client.daemon().and_then(|daemon| JobStep::of(daemon.pid())) else {
        return Ok(true);
    };
    if !step.may_end_before(own.as_ref()) {
        return Ok(true);
    }
    if step.is_of_the_job_of(own.as_ref()) {
        match client.status(JOIN_ANSWER_TIMEOUT)? {
            None => return Ok(false),
            Some(status) if status.until_unmount => return Ok(true),
            Some(_) => {}
        }
    }
    let path = mount_point.display();
    let context = format!("{path}: the mount here ends with {}", step.describe());
    Err(Error::new(Kind::Busy, context).with_hint(
        "use another mount point, for example one with $SLURM_JOB_ID in its name, or `archfs run --private`",
    ))
}

enum LeaseAnswer {
    /// It grants one on the mount that the record describes.
    Granted(Client, Record),
    /// It is about to unmount, and then closes this connection.
    Refused(Client),
    /// No daemon listens, it was killed or closed the connection, or its record cannot be read.
    NoAnswer,
}

/// Asks the daemon of `snapshot` for a lease, if it mounts what `plan` says.
///
/// All daemons of a mount point listen at the same path, and a process that detaches a stale mount
/// holds the lock while the file still has the record of the killed daemon. So the record counts
/// only if it is read while a daemon is connected. A daemon keeps the lock from before it listens
/// until it grants no more leases. If it grants this one, the record is its own.
///
/// A daemon that has not mounted yet may take as long as it needs; `on_starting` is called from
/// time to time.
fn ask_for_lease(
    mount_point: &Path,
    entry: Option<&MountEntry>,
    snapshot: &RecordSnapshot,
    plan: &MountPlan,
    on_starting: &mut dyn FnMut(),
) -> Result<LeaseAnswer> {
    let Some(mut client) = snapshot.connect() else {
        return Ok(LeaseAnswer::NoAnswer);
    };
    let Some(record) = snapshot.read_again() else {
        return Ok(LeaseAnswer::NoAnswer);
    };
    check_same(mount_point, entry, &record, plan)?;
    let mut deadline = None;
    let mut keeps_waiting = || {
        match mount_state_within(mount_point, Duration::ZERO) {
            Ok(MountState::Starting(_)) => {
                on_starting();
                deadline = None;
                true
            }
            // The daemon was killed, so it will not answer.
            Ok(MountState::Stale(_)) => false,
            _ => {
                Instant::now()
                    < *deadline.get_or_insert_with(|| Instant::now() + JOIN_ANSWER_TIMEOUT)
            }
        }
    };
    match client.hold_while(&mut keeps_waiting) {
        Ok(HoldAnswer::Granted) => Ok(LeaseAnswer::Granted(client, record)),
        Ok(HoldAnswer::Refused) => Ok(LeaseAnswer::Refused(client)),
        Ok(HoldAnswer::Closed) => Ok(LeaseAnswer::NoAnswer),
        Err(error) if error.kind() == Kind::TimedOut => match mount_state(mount_point)? {
            MountState::Stale(_) => Ok(LeaseAnswer::NoAnswer),
            _ => Err(error
                .within(mount_point.display())
                .with_hint("run `archfs list` to see its daemon")),
        },
        Err(error) => Err(error.within(mount_point.display())),
    }
}

/// Checks that the mount that `record` describes shows what `plan` asks for.
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
        return Err(Error::new(Kind::Busy, context).with_hint(format!(
            "if the archive was replaced: archfs unmount {path}; to share the mount, give the same \
             --subdir, --offset, --nested, --partial, --allow-changes, --overlay and -o"
        )));
    }
    let context = format!("{path}: {described} is mounted here");
    Err(Error::new(Kind::Busy, context)
        .with_hint("choose another mount point, or unmount that first"))
}

/// The wait of a process that joins a mount point, for other processes to mount or unmount there.
/// It adds up over several waits.
#[derive(Debug)]
struct JoinWait<'a> {
    mount_point: &'a Path,
    /// When it first waited for another process to mount.
    starting_since: Option<Instant>,
    /// How long it has waited for the end of previous mounts.
    ending: Duration,
    /// The part of that since a daemon last answered.
    unanswered: Duration,
    has_explained: bool,
}

impl<'a> JoinWait<'a> {
    fn new(mount_point: &'a Path) -> Self {
        Self {
            mount_point,
            starting_since: None,
            ending: Duration::ZERO,
            unanswered: Duration::ZERO,
            has_explained: false,
        }
    }

    /// Waits before a mount that is ending is checked again. `client` is the connection to its
    /// daemon, which has just refused a lease, and closes the connection when it has unmounted.
    fn wait_for_end_of(&mut self, mut client: Client) -> Result<()> {
        let since = Instant::now();
        client.wait_until_closed(EXPLAIN_AFTER)?;
        self.note_ending(since.elapsed(), Daemon::Answers);
        self.wait_for_end()
    }

    /// Waits before a mount that is ending is checked again, if its daemon does not answer.
    fn wait_for_end(&mut self) -> Result<()> {
        thread::sleep(STATE_POLL_INTERVAL);
        self.note_ending(STATE_POLL_INTERVAL, Daemon::IsSilent);
        if self.unanswered >= SILENT_END_TIMEOUT {
            let path = self.mount_point.display();
            let context = format!("{path}: the previous mount was not unmounted in time");
            return Err(Error::new(Kind::TimedOut, context)
                .with_hint("run `archfs list` to see its daemon"));
        }
        if self.ending >= EXPLAIN_AFTER {
            self.explain("waiting until the previous mount is unmounted");
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

    fn wait_for_start(&mut self) {
        self.explain_start();
        thread::sleep(STATE_POLL_INTERVAL);
    }

    /// Explains the wait for a mount that is starting, once it has taken a while.
    fn explain_start(&mut self) {
        let since = *self.starting_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= EXPLAIN_AFTER {
            self.explain("waiting for another process to mount here");
        }
    }

    fn explain(&mut self, text: &str) {
        if !self.has_explained {
            self.has_explained = true;
            log::warn!("{}: {text}", self.mount_point.display());
        }
    }
}

/// Whether the daemon of a mount that is ending answered during a wait.
#[derive(Clone, Copy)]
enum Daemon {
    Answers,
    IsSilent,
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rustix::process::geteuid;

    use super::*;

    fn plan(mount_point: PathBuf) -> MountPlan {
        MountPlan::without_options("/a.sqfs".into(), mount_point)
    }

    fn ask(plan: &MountPlan, snapshot: &RecordSnapshot) -> Result<LeaseAnswer> {
        ask_for_lease(&plan.mount_point, None, snapshot, plan, &mut || {})
    }

    fn snapshot(plan: &MountPlan) -> RecordSnapshot {
        RecordSnapshot::of(&plan.mount_point, geteuid().as_raw()).unwrap()
    }

    #[test]
    fn the_record_of_a_killed_daemon_refuses_no_other_archive() {
        let work = tempfile::tempdir().unwrap();
        let plan = plan(work.path().join("mount"));
        let other = Record {
            identity: "other".to_owned(),
            ..first_record(&plan.mount_point, &plan).unwrap()
        };
        let lock = MountLock::try_acquire(&other).unwrap().unwrap();
        let snapshot = snapshot(&plan);
        assert!(snapshot.was_locked, "a process detaches the stale mount");
        assert!(matches!(ask(&plan, &snapshot), Ok(LeaseAnswer::NoAnswer)));
        let _listener = lock.listen().unwrap();
        assert_eq!(ask(&plan, &snapshot).map(|_| ()).unwrap_err().kind(), Kind::Busy);
        lock.remove();
    }

    #[test]
    fn compares_with_the_record_of_the_daemon_that_is_connected() {
        let work = tempfile::tempdir().unwrap();
        let plan = plan(work.path().join("mount"));
        let same = first_record(&plan.mount_point, &plan).unwrap();
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

    #[test]
    fn only_a_daemon_that_does_not_answer_is_given_up() {
        let mut waiting = JoinWait::new(Path::new("/mnt"));
        for _ in 0..100 {
            waiting.note_ending(Duration::from_secs(1), Daemon::Answers);
            waiting.note_ending(STATE_POLL_INTERVAL, Daemon::IsSilent);
        }
        assert!(waiting.unanswered < SILENT_END_TIMEOUT && waiting.ending > SILENT_END_TIMEOUT);
        waiting.note_ending(SILENT_END_TIMEOUT, Daemon::IsSilent);
        assert!(waiting.unanswered >= SILENT_END_TIMEOUT);
    }
}
