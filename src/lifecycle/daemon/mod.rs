//! The daemon: mounts, serves until nothing needs the mount, unmounts.
//!
//! `end_policy` decides how long it serves; `launcher` starts it in the background.
//! Invariants: "ready" is reported only for a mount that answers. Whatever ends the mount, the
//! daemon unmounts first, because a batch system may kill everything milliseconds later.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::error::{Error, Kind, Result};
use crate::fuse::{ArchiveFilesystem, FailureLog, SessionShape, session_shape};
use crate::lifecycle::mount::Detach;
use crate::lifecycle::registry::{
    self, ClientId, DirectAnswer, Leases, Responder, UnmountAnswer, UnmountRequest,
};
use crate::lifecycle::{Health, MountPlan};
use crate::os::memory;
use crate::os::mountinfo;
use crate::os::process::{ASK_AGAIN, ProcessId, timespec};
use crate::os::processors;
use crate::stats::Stats;
use crate::sync::Arc;
use crate::url;

pub(super) mod archive_cache;
pub(super) mod budget_share;
mod direct_reads;
pub(super) mod end_policy;
pub(super) mod launcher;
mod mounted;
pub(super) mod name_readahead;
pub(super) mod opening;
#[cfg(test)]
mod proof;
mod release;
pub(super) mod report;
pub(super) mod session;
pub(super) mod signals;
pub(super) mod slurm_end;
mod stage;
mod start;
mod together;

use archive_cache::ArchiveCachePolicy;
use budget_share::BudgetShare;
use direct_reads::DirectReads;
use end_policy::{EndPolicy, Holders, Step, UNMOUNT_RETRY_INTERVAL};
use mounted::{DetachedRecord, Mounted, unmount_on_panic};
use name_readahead::NameReadahead;
use release::Release;
use report::Report;
use signals::{SessionEnd, WakeSources};
use slurm_end::{KillWait, Script};
use stage::Staging;
use start::Opened;
use together::Departure;

pub use start::{serve_in_background, serve_in_foreground};

struct Daemon {
    mount: Arc<Mounted>,
    leases: Leases,
    policy: EndPolicy,
    services: Services,
    /// The FUSE connection, if archives are at URLs, until the mount is unmounted.
    remote: Option<OwnedFd>,
    direct: DirectReads,
    wakes: WakeSources,
    /// The process that it was started for. In a Slurm step this is the batch script.
    script: Option<ProcessId>,
    kill_wait: KillWait,
    /// Polls as POLLPRI when the mount table changes: another process may have unmounted this
    /// mount.
    mounts: File,
    session: JoinHandle<io::Result<()>>,
    stats: Arc<Stats>,
    failure_log: Arc<FailureLog>,
    report: Report,
    /// When to touch the record file again.
    refresh_at: Instant,
}

/// Work that the daemon does beside serving, from time to time.
trait Service {
    /// Does what is due at `now`, without waiting. Returns when to call this again if nothing wakes
    /// the daemon before that time.
    fn update(&mut self, now: Instant) -> Option<Instant>;
}

struct Services {
    budget: BudgetShare,
    release: Release,
    archive_cache: ArchiveCachePolicy,
    name_readahead: NameReadahead,
    detached: DetachedRecord,
    /// Goes on as long as the daemon serves.
    _staging: Option<Staging>,
    /// Until the mount is unmounted.
    departure: Option<Departure>,
}

impl Services {
    /// Updates all services. Returns when to do that again.
    fn update(&mut self, now: Instant) -> Option<Instant> {
        let all: [&mut dyn Service; 5] = [
            &mut self.budget,
            &mut self.release,
            &mut self.archive_cache,
            &mut self.name_readahead,
            &mut self.detached,
        ];
        all.into_iter().filter_map(|service| service.update(now)).min()
    }

    /// What else wakes the daemon.
    fn watched(&self) -> impl Iterator<Item = PollFd<'_>> {
        [self.budget.watched(), self.name_readahead.watched()].into_iter().flatten()
    }
}

/// How often to touch the record file: cleaners of /tmp remove files that are days old.
const REFRESH: Duration = Duration::from_secs(3600);

/// How long the end of a mount waits until failed requests are logged.
const FAILURE_LOG_LIMIT: Duration = Duration::from_secs(2);

/// How long a client may take to return its lease after the session has ended.
const LEAVE_LIMIT: Duration = Duration::from_millis(200);

/// Number of threads of a mount by default.
pub(crate) fn usual_threads() -> usize {
    shape(None).threads
}

fn shape(threads: Option<usize>) -> SessionShape {
    let left = memory::headroom_at_start().map(|left| left.bytes);
    let memory = [memory::limit(), left].into_iter().flatten().min();
    session_shape(processors::count(), memory, threads)
}

impl Daemon {
    /// Starts the threads that answer the kernel.
    fn start(
        plan: &MountPlan,
        opened: Opened,
        mount: Arc<Mounted>,
        connection: OwnedFd,
        listener: Option<UnixListener>,
        (wakes, session_end): (WakeSources, SessionEnd),
    ) -> Result<Self> {
        unmount_on_panic(Arc::downgrade(&mount));
        let Opened { tree, stats, report, cache_bytes, budget, mut archive_cache, .. } = opened;
        let (staging, departure) = (opened.staging, opened.departure);
        let shape = shape(plan.threads);
        // A budget that the user sets is not shared.
        let peers = match plan.cache_bytes {
            Some(_) => None,
            None => mount.peers(),
        };
        let budget = BudgetShare::join(cache_bytes, budget, Arc::clone(&stats), peers);
        let release = Release::new(&tree, &stats, plan.cache_idle, session_end.waker()?);
        let wake = session_end.waker()?;
        let archives = plan.archives.iter().map(|path| path.display().to_string()).collect();
        let failure_log = FailureLog::new(Arc::clone(&tree), archives);
        let direct = DirectReads::new(Arc::clone(&tree), Arc::clone(&mount), Arc::clone(&stats));
        let name_readahead = NameReadahead::new(
            // It would look them up through the program that serves the mount point.
            plan.name_readahead && plan.overlay.is_none(),
            Arc::clone(&mount),
            tree.totals().inodes,
            Arc::clone(&stats),
            session_end.waker()?,
        );
        let (counts, log) = (Arc::clone(&stats), Arc::clone(&failure_log));
        let filesystem = ArchiveFilesystem::new(tree, counts, log, plan.lifetime.idle);
        let filesystem = match plan.overlay {
            Some(_) => filesystem.with_distant_numbers(),
            None => filesystem,
        };
        let is_remote = plan.archives.iter().any(|archive| url::is_url(archive));
        let failed = |error| Error::io("cannot duplicate the connection to the kernel", error);
        let remote = is_remote.then(|| connection.try_clone()).transpose().map_err(failed)?;
        let session = session::start(filesystem, connection, shape, cache_bytes, session_end)?;
        let archives = mount.archives().unwrap_or_else(|| registry::real_paths(plan));
        archive_cache.begin(archives);
        // The working directory may be on a file system that the user wants to unmount.
        let _ = std::env::set_current_dir("/");
        let policy = EndPolicy::new(plan.lifetime, Instant::now());
        let (leases, mounts) = (Leases::new(listener)?, mountinfo::changes()?);
        let kill_wait = match plan.lifetime.grace {
            Some(_) => KillWait::default(),
            None => KillWait::look_up(wake),
        };
        let detached = DetachedRecord::new(Arc::clone(&mount));
        let services = Services {
            budget,
            release,
            archive_cache,
            name_readahead,
            detached,
            _staging: staging,
            departure,
        };
        Ok(Self {
            mount,
            leases,
            policy,
            services,
            remote,
            direct,
            wakes,
            script: None,
            kill_wait,
            mounts,
            session,
            stats,
            failure_log,
            report,
            refresh_at: Instant::now() + REFRESH,
        })
    }

    /// Holds the mount as long as `holder` runs, or until it is unmounted.
    fn hold_for(&mut self, holder: Option<ProcessId>) -> Result<()> {
        self.script = holder;
        match holder {
            Some(process) => {
                // If the process has ended in the meantime, nothing holds the mount, and the daemon
                // ends.
                self.leases.watch_process(process)?;
            }
            None => self.leases.keep_until_unmount(),
        }
        Ok(())
    }

    /// Serves until the mount ends, then unmounts.
    fn serve(mut self) -> Result<()> {
        loop {
            // Signals are taken after requests are received, and before these are answered. So a
            // client that connects after a signal gets no lease on a mount that is ending.
            self.leases.receive_requests();
            if self.take_events() {
                return self.end();
            }
            if self.mount.was_unmounted_by_others() {
                // First: the kernel may give the device number to another mount now.
                self.mount.end_direct_reads();
                self.unmount();
                self.policy.note_unmounted();
            }
            if self.policy.is_over(Instant::now()) {
                self.leases.admit_none();
            }
            let mut answers = Answers {
                report: &self.report,
                stats: &self.stats,
                direct: &mut self.direct,
                name_readahead: &mut self.services.name_readahead,
            };
            self.leases.answer_requests(self.policy.lingers(), &mut answers);
            while let Some((client, request)) = self.leases.take_unmount_request() {
                self.unmount_for(client, &request);
            }
            let holders = Holders {
                by_process: self.leases.has_lease(),
                until_unmount: self.leases.stays_until_unmount(),
            };
            let now = Instant::now();
            // A new holder may not have sent its first request.
            let uses = self.stats.uses().saturating_add(self.leases.lease_requests_granted());
            match self.policy.next(now, holders, uses) {
                Step::Serve(until) => self.wait_until(until)?,
                Step::UnmountIfIdle => match self.unmount_if_idle() {
                    Ok(()) => self.policy.note_unmounted(),
                    Err(_) => self.policy.note_in_use(now),
                },
                // A mount that another process put over this one is not ours to unmount.
                Step::Unmount if self.mount.is_covered() => {
                    self.wait_until(Some(now + UNMOUNT_RETRY_INTERVAL))?;
                }
                Step::Unmount => {
                    self.unmount();
                    self.policy.note_unmounted();
                }
                // Files that are still open cannot be read any more once this process exits.
                Step::Exit => {
                    self.unmount();
                    self.mount.clear_up();
                    self.report.finish();
                    return Ok(());
                }
            }
        }
    }

    /// Touches the record file so that it is not removed for its age; returns when to do so again.
    fn refresh(&mut self, now: Instant) -> Option<Instant> {
        if now >= self.refresh_at {
            self.refresh_at = now + REFRESH;
            if let Some(listener) = self.mount.keep_fresh()
                && let Err(error) = self.leases.listen_at(listener)
            {
                log::warn!("{error}");
            }
            if let Some(directory) = self.mount.record_directory() {
                self.services.budget.renew_watch(&directory, now);
            }
        }
        self.mount.is_attached().then_some(self.refresh_at)
    }

    /// Unmounts for another process, unless others hold the mount or it is in use, and sends the
    /// result.
    fn unmount_for(&mut self, client: ClientId, request: &UnmountRequest) {
        let answer = match request.how {
            Detach::Lazily => {
                self.leases.answer_unmount(client, &UnmountAnswer::Begun);
                self.mount.clear_up();
                UnmountAnswer::Done
            }
            Detach::IfIdle => match self.leases.release_callers(&request.callers) {
                Some(answer) => answer,
                None => {
                    self.leases.answer_unmount(client, &UnmountAnswer::Begun);
                    match self.unmount_if_idle() {
                        Ok(()) => UnmountAnswer::Done,
                        Err(error) => UnmountAnswer::Busy(error.to_string()),
                    }
                }
            },
        };
        self.leases.answer_unmount(client, &answer);
        if answer == UnmountAnswer::Done {
            self.unmount();
            self.policy.note_unmounted();
        }
    }

    /// Unmounts, unless another process uses the mount.
    fn unmount_if_idle(&mut self) -> Result<()> {
        self.services.name_readahead.stop();
        self.mount.unmount_if_idle()
    }

    fn unmount(&mut self) {
        let departing = self.services.departure.as_mut().and_then(Departure::begin);
        if let Some(connection) = self.remote.take() {
            session::end_server_requests_after(connection);
        }
        self.services.name_readahead.stop();
        self.leases.admit_none();
        // First, because the kernel takes some time to free the watch of the peers.
        self.services.budget.leave();
        // When `run` has detached a private mount and waits, only the directory is left to remove.
        // If `run` was killed, the directory stays until the last process of the namespace ends:
        // the paths of its files lead through it.
        if self.mount.is_attached() || self.leases.has_leaving_client() {
            self.mount.clear_up();
        }
        self.failure_log.finish(FAILURE_LOG_LIMIT);
        let messages = match crate::log::kept() {
            (messages, false) => messages,
            (_, true) => Vec::new(),
        };
        if self.leases.close(&self.report.write().summary(), &messages) {
            self.report.note_received();
        }
        self.services.detached.note_unmounted();
        if let Some(departing) = departing {
            departing.wait();
        }
    }

    /// Ends the daemon after its session: nothing is mounted any more, or the kernel gave up.
    fn end(mut self) -> Result<()> {
        self.mount.clear_up();
        self.await_leavers();
        self.unmount();
        let overlay = self.mount.finish_overlay();
        self.report.finish();
        let outcome = self.session.join().unwrap_or_else(|_| Err(io::Error::other("a panic")));
        let path = self.mount.mount_point().display();
        outcome.map_err(|error| Error::io(format!("{path}: FUSE connection lost"), error))?;
        overlay.map_err(|error| {
            // Now: the process that asked for the mount does not wait for it any more.
            crate::log::error(&error.within(path));
            Error::new(Kind::Reported(1), "the program that served the mount point has failed")
        })
    }

    /// Waits until the clients have returned their leases, at most `LEAVE_LIMIT`. `run` detaches a
    /// private mount, which ends the session, and only then returns its lease. It prints the
    /// summary, so the daemon must know whether it will.
    fn await_leavers(&mut self) {
        self.leases.admit_none();
        let deadline = Instant::now() + LEAVE_LIMIT;
        while self.leases.has_connected_holder() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || wait(&mut self.leases.watched(), Some(left)).is_err() {
                return;
            }
            self.leases.serve_requests(false, &mut ());
        }
    }

    /// Does what else is due, then waits until something happens, at most until `until`.
    fn wait_until(&mut self, until: Option<Instant>) -> Result<()> {
        let now = Instant::now();
        let until = [until, self.refresh(now), self.services.update(now)].into_iter().flatten();
        let limit = until.min().map(|until| until.saturating_duration_since(Instant::now()));
        let poll_interval = self.leases.needs_timer().then_some(ASK_AGAIN);
        let mut watched = self.leases.watched();
        watched.extend(self.wakes.watched());
        watched.push(PollFd::new(&self.mounts, PollFlags::PRI));
        watched.extend(self.services.watched());
        wait(&mut watched, [limit, poll_interval].into_iter().flatten().min())
            .map_err(|error| error.within(self.mount.mount_point().display()))
    }

    /// Tells the policy which signals arrived; returns whether the session has ended.
    fn take_events(&mut self) -> bool {
        let events = self.wakes.take(Script::of(self.script));
        if let Some(kill_wait) = self.kill_wait.get() {
            self.policy.limit_default_grace(kill_wait);
        }
        for _ in 0..events.end_requests {
            self.policy.request_end(Instant::now());
            self.leases.admit_only_holders();
        }
        if events.end_now {
            self.policy.request_end_now();
        }
        events.session_ended
    }
}

/// Answers requests of clients that are not about leases.
struct Answers<'d> {
    report: &'d Report,
    stats: &'d Stats,
    direct: &'d mut DirectReads,
    name_readahead: &'d mut NameReadahead,
}

impl Responder for Answers<'_> {
    fn stats(&self) -> String {
        self.report.snapshot().json()
    }

    fn health(&self) -> Health {
        let (messages, are_printed) = crate::log::kept();
        Health {
            staged: self.stats.staged.counts(),
            readahead: self.stats.readahead.counts(),
            together: self.stats.together.counts(),
            blocked: self.stats.blocked(),
            messages,
            are_printed,
        }
    }

    fn direct(&mut self) -> DirectAnswer<'_> {
        if !self.direct.was_asked() {
            // Lookups are most of what is left to do for FUSE.
            self.name_readahead.begin_now();
        }
        self.direct.answer()
    }
}

fn wait(watched: &mut [PollFd<'_>], limit: Option<Duration>) -> Result<()> {
    match poll(watched, limit.map(timespec).as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::io("cannot wait for requests and signals", error.into())),
    }
}
