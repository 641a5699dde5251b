//! Asks the daemon of a mount for a lease, if it mounts what the caller needs.

use std::path::Path;
use std::time::{Duration, Instant};

use super::identity::{identity, real_paths};
use super::lease::{Client, HoldAnswer};
use super::record::Record;
use super::record_snapshot::RecordSnapshot;
use super::state::{MountState, mount_state, mount_state_within};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::MountPlan;
use crate::os::mountinfo::MountEntry;

/// How long a daemon that has mounted may take to answer.
pub(super) const JOIN_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The answer of a daemon to a request for a lease.
pub(super) enum LeaseAnswer {
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
pub(super) fn ask_for_lease(
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
        return Err(Error::new(Kind::Busy, context).with_hint(
            "to share it, give the same --subdir, --offset, --nested, --partial, --allow-changes and -o",
        ));
    }
    let context = format!("{path}: {described} is mounted here");
    Err(Error::new(Kind::Busy, context)
        .with_hint("choose another mount point, or unmount that first"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::thread;

    use rustix::process::geteuid;

    use super::super::identity::first_record;
    use super::super::lock::MountLock;
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
}
