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

use super::clean_up;
use super::identity::first_record;
use super::join_wait::{JoinWait, STATE_POLL_INTERVAL};
use super::lease::Client;
use super::lease_request::{JOIN_ANSWER_TIMEOUT, LeaseAnswer, ask_for_lease};
use super::lock::MountLock;
use super::record::Record;
use super::state::{MountState, mount_state};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::MountPlan;
use crate::lifecycle::mount::mount_point::taken;
use crate::lifecycle::mount::owned_directory;
use crate::lifecycle::slurm::JobStep;

/// The result of asking for a mount.
#[derive(Debug)]
pub(in crate::lifecycle) enum JoinOutcome {
    /// A lease on the requested mount, which is live.
    Joined(Client, Record),
    /// The lock of the mount point, where nothing is mounted.
    Locked(MountLock),
}

/// Joins the mount of `plan` at `mount_point`, or locks the mount point for it. Detaches a stale
/// mount first.
pub(in crate::lifecycle) fn join_or_lock(
    mount_point: &Path,
    plan: &MountPlan,
) -> Result<JoinOutcome> {
    let record = first_record(mount_point, plan)?;
    let mut waiting = JoinWait::new(mount_point);
    loop {
        if let Some(lock) = MountLock::try_acquire(&record)? {
            return clean_up_and_record(mount_point, lock, &record);
        }
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
/// `record` to the record file.
fn clean_up_and_record(
    mount_point: &Path,
    lock: MountLock,
    record: &Record,
) -> Result<JoinOutcome> {
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
    lock.write(record)?;
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
