//! The daemon: mounts, serves until the mount has no more reason to be, unmounts.
//!
//! Owns the order of things at both ends. Leaves how long that is to `end_policy` and being started
//! in the background to `launcher`. Invariants: "ready" is said only of a mount that answers; on
//! any event unmounting is the first thing done, because a batch system may kill everything
//! milliseconds later.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::fuse::{ArchiveFilesystem, SessionShape, session_shape};
use crate::lifecycle::MountPlan;
use crate::lifecycle::mount::detach::Detach;
use crate::lifecycle::share::{Leases, UnmountAnswer, UnmountRequest};
use crate::lifecycle::system::process::{ASK_AGAIN, ProcessId, timespec};
use crate::memory;
use crate::mountinfo;
use crate::processors;
use crate::stats::Stats;
use crate::sync::Arc;

pub(super) mod address_space;
pub(super) mod budget_share;
pub(super) mod clone_fd;
pub(super) mod end_policy;
mod idle;
pub(super) mod kill_wait;
pub(super) mod launcher;
mod log_file;
mod mounted;
#[cfg(test)]
mod proof;
mod release;
mod report;
pub(super) mod session;
pub(super) mod signals;
pub(super) mod slurm_end;
pub(super) mod snapshot;
mod stage;
mod start;

use budget_share::Share;
use end_policy::{EndPolicy, Holders, Step, TRY_AGAIN};
use kill_wait::KillWait;
use mounted::{Mounted, unmount_on_panic};
use release::Release;
use report::Report;
use signals::{SessionEnd, Wakes};
use slurm_end::Script;
use start::Opened;

pub(super) use start::announce;
pub use start::{check_ready, serve_in_background, serve_in_foreground};

/// A daemon at work.
struct Daemon {
    mount: Arc<Mounted>,
    leases: Leases,
    hold: EndPolicy,
    release: Release,
    share: Share,
    wakes: Wakes,
    /// The process that it was started for, in a step of Slurm the batch script.
    script: Option<ProcessId>,
    kill_wait: KillWait,
    /// Readable when mounts have changed: somebody may have unmounted this one.
    mounts: File,
    session: JoinHandle<io::Result<()>>,
    stats: Arc<Stats>,
    report: Report,
    /// Whether somebody who waited for the end was told what was served.
    has_told: bool,
    /// When the record has to be made to look new again.
    refresh_at: Instant,
}

/// How often that is: cleaners of /tmp remove what is days old.
const REFRESH: Duration = Duration::from_secs(3600);

/// How many threads a mount takes where nobody says.
pub(in crate::lifecycle) fn usual_threads() -> usize {
    shape(None).threads
}

fn shape(threads: Option<usize>) -> SessionShape {
    let left = memory::headroom_at_start().map(|left| left.bytes);
    let memory = [memory::limit(), left].into_iter().flatten().min();
    session_shape(processors::count(), memory, threads)
}

impl Daemon {
    /// Starts to answer the kernel.
    fn start(
        plan: &MountPlan,
        Opened { tree, stats, report, cache_bytes, budget }: Opened,
        mount: Arc<Mounted>,
        connection: OwnedFd,
        listener: Option<UnixListener>,
        (wakes, session_end): (Wakes, SessionEnd),
    ) -> Result<Self> {
        unmount_on_panic(Arc::downgrade(&mount));
        let shape = shape(plan.threads);
        let share = match plan.cache_bytes {
            Some(_) => Share::whole(cache_bytes, budget, Arc::clone(&stats)),
            None => Share::join(cache_bytes, budget, Arc::clone(&stats), mount.peers()),
        };
        let release = Release::new(&tree, &stats, plan.cache_idle, session_end.waker()?);
        let wake = session_end.waker()?;
        let filesystem = ArchiveFilesystem::new(tree, Arc::clone(&stats), plan.lifetime.idle);
        let session = session::start(filesystem, connection, shape, cache_bytes, session_end)?;
        // The working directory may lie on a file system that somebody wants to unmount.
        let _ = std::env::set_current_dir("/");
        let hold = EndPolicy::new(plan.lifetime, Instant::now());
        let (leases, mounts) = (Leases::new(listener)?, mountinfo::changes()?);
        let kill_wait = match plan.lifetime.grace {
            Some(_) => KillWait::default(),
            None => KillWait::ask(wake),
        };
        Ok(Self {
            mount,
            leases,
            hold,
            release,
            share,
            wakes,
            script: None,
            kill_wait,
            mounts,
            session,
            stats,
            report,
            has_told: false,
            refresh_at: Instant::now() + REFRESH,
        })
    }

    /// Lives for `holder`, or until somebody unmounts.
    fn hold_for(&mut self, holder: Option<ProcessId>) -> Result<()> {
        self.script = holder;
        match holder {
            Some(process) => {
                // One that has ended meanwhile leaves nobody, and the mount goes.
                self.leases.watch(process)?;
            }
            None => self.leases.keep(),
        }
        Ok(())
    }

    /// Serves until there is a reason to end, and unmounts then.
    fn serve(mut self) -> Result<()> {
        loop {
            if self.hold.is_over(Instant::now()) {
                // Before anybody is answered, who else would get a lease on a mount that goes.
                self.leases.begin_to_end();
            }
            self.leases.attend(self.hold.lingers(), &|| self.report.snapshot().json());
            while let Some((client, request)) = self.leases.next_unmount() {
                self.unmount_for(client, &request);
            }
            let held = Holders { by_process: self.leases.is_held(), kept: self.leases.is_kept() };
            let now = Instant::now();
            // Whatever is done next: what has changed would end each wait at once.
            let share = self.share.attend(now);
            // Who was given a lease may not have got to the first request.
            let uses = self.stats.requests().saturating_add(self.leases.given());
            match self.hold.next(now, held, uses) {
                Step::Serve(until) => {
                    let until = [until, share, self.release.attend(now), self.refresh(now)];
                    let until = until.into_iter().flatten().min();
                    let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
                    if self.wait(limit)? {
                        return self.end();
                    }
                    if self.mount.was_taken_away() {
                        self.unmount();
                        self.hold.unmounted();
                    }
                }
                Step::UnmountIfIdle => match self.mount.unmount_if_idle() {
                    Ok(()) => self.hold.unmounted(),
                    Err(_) => self.hold.busy(now),
                },
                // Taking away what somebody mounted over it is not ours to do.
                Step::Unmount if self.mount.is_covered() => {
                    if self.wait(Some(TRY_AGAIN))? {
                        return self.end();
                    }
                }
                Step::Unmount => {
                    self.unmount();
                    self.hold.unmounted();
                }
                // Files that are still open end with this process.
                Step::Exit => {
                    self.unmount();
                    self.mount.clear_up();
                    self.report.finish(self.has_told);
                    return Ok(());
                }
            }
        }
    }

    /// Keeps the record from being removed for its age; returns when to do so again.
    fn refresh(&mut self, now: Instant) -> Option<Instant> {
        if now >= self.refresh_at {
            self.refresh_at = now + REFRESH;
            if let Some(listener) = self.mount.keep_fresh()
                && let Err(error) = self.leases.listen_at(listener)
            {
                log::warn!("{error}");
            }
        }
        self.mount.is_attached().then_some(self.refresh_at)
    }

    /// Unmounts because a process asks for it, unless others hold the mount or it is in use; says
    /// what came of it.
    fn unmount_for(&mut self, client: u64, request: &UnmountRequest) {
        let answer = match request.how {
            Detach::Lazily => {
                self.leases.answer_unmount(client, &UnmountAnswer::Begun);
                self.mount.clear_up();
                UnmountAnswer::Done
            }
            Detach::IfIdle => match self.leases.leave_to_others(&request.callers) {
                Some(held) => held,
                None => {
                    self.leases.answer_unmount(client, &UnmountAnswer::Begun);
                    match self.mount.unmount_if_idle() {
                        Ok(()) => UnmountAnswer::Done,
                        Err(error) => UnmountAnswer::Busy(error.to_string()),
                    }
                }
            },
        };
        self.leases.answer_unmount(client, &answer);
        if answer == UnmountAnswer::Done {
            self.unmount();
            self.hold.unmounted();
        }
    }

    fn unmount(&mut self) {
        self.leases.begin_to_end();
        // First, since the kernel takes its time to do all of it.
        self.share.leave();
        // Of a private mount only the directory is left, once `run` has detached it and waits for
        // that. Where `run` was killed, it goes with the last process of the namespace: until then
        // it is what they find their files below.
        if self.mount.is_attached() || self.leases.is_awaited() {
            self.mount.clear_up();
        }
        self.has_told |= self.leases.close(&self.report.write().summary());
    }

    /// The session has ended: nothing is mounted any more, or the kernel gave up.
    fn end(mut self) -> Result<()> {
        self.mount.clear_up();
        self.unmount();
        self.report.finish(self.has_told);
        let outcome = self.session.join().unwrap_or_else(|_| Err(io::Error::other("a panic")));
        outcome.map_err(|error| {
            Error::io(format!("{}: connection lost", self.mount.mount_point().display()), error)
        })
    }

    /// Waits until something happens, at most `limit`; tells whether the session has ended.
    fn wait(&mut self, limit: Option<Duration>) -> Result<bool> {
        let ask_again = self.leases.has_to_ask().then_some(ASK_AGAIN);
        let mut watched = self.leases.watched();
        watched.extend(self.wakes.watched());
        watched.push(PollFd::new(&self.mounts, PollFlags::PRI));
        watched.extend(self.share.watched());
        wait(&mut watched, [limit, ask_again].into_iter().flatten().min())?;
        let woken = self.wakes.take(Script::of(self.script));
        if let Some(kill_wait) = self.kill_wait.get() {
            self.hold.stay_below(kill_wait);
        }
        for _ in 0..woken.asked {
            self.hold.ask(Instant::now());
            self.leases.close_to_newcomers();
        }
        if woken.at_once {
            self.hold.ask_at_once();
        }
        Ok(woken.session_ended)
    }
}

fn wait(watched: &mut [PollFd<'_>], limit: Option<Duration>) -> Result<()> {
    match poll(watched, limit.map(timespec).as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::io("can not wait", error.into())),
    }
}
