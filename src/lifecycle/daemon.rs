//! The daemon: mounts, serves until the mount has no more reason to be, unmounts.
//!
//! Owns the order of things at both ends. Leaves how long that is to `hold` and being started in
//! the background to `launcher`. Invariants: "ready" is said only of a mount that answers; on any
//! event unmounting is the first thing done, for a batch system may kill everything milliseconds
//! later.

use std::fs::File;
use std::io::{self, Write};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::hold::{Held, Hold, Step, TRY_AGAIN};
use super::join::{self, Entrance};
use super::launcher::Launcher;
use super::lease::{Client, Leases};
use super::mounted::{Mounted, unmount_on_panic};
use super::mountpoint::{self, Mountpoint};
use super::process::{ASK_AGAIN, ProcessId, timespec};
use super::release::Release;
use super::report::Report;
use super::signals::{self, Ignored, SessionEnd, Wakes};
use super::{MountPlan, Way, inherited, mountinfo, session, stage, unmount};
use crate::cache;
use crate::error::{Error, Result};
use crate::formats::{self, OpenOptions};
use crate::fuse::{ArchiveFilesystem, SessionShape, session_shape};
use crate::memory;
use crate::progress::Progress;
use crate::stats::Stats;
use crate::sync::Arc;
use crate::vfs::{Tree, View};

/// Serves in the background, started by `launcher` with the arguments for `way`. Opening counts in
/// `progress`; `opened` is called when it is done.
///
/// # Errors
/// What opening and mounting report; `Io` where the connection to the kernel broke.
pub fn serve_in_background(
    plan: &MountPlan,
    way: Way,
    progress: &Progress,
    opened: impl FnOnce(),
) -> Result<()> {
    let mut launcher = Launcher::adopt()?;
    crate::log::start(plan.verbosity, plan.log_file.as_deref())?;
    let archive = open(plan, progress)?;
    opened();
    launcher.leave_terminal();
    // From here on there is something to undo, so a signal may not end the process by itself.
    let (wakes, session_end) = signals::watch(Ignored::AreHeeded)?;
    let mut lock = None;
    let (mount, connection) = match way {
        Way::Mount => {
            let place = mountpoint::locate(&plan.mountpoint)?;
            let lock = lock.insert(launcher.lock(&place)?);
            Mounted::attach(&place, plan, lock)?
        }
        Way::Private => {
            let place = mountpoint::locate(&plan.mountpoint)?;
            let lock = launcher.lock(&place)?;
            let mountpoint = Mountpoint::within_namespace(&place)?;
            drop(lock);
            let Some(connection) = launcher.connection()? else {
                return Ok(());
            };
            (Mounted::elsewhere(plan, Some(mountpoint)), connection)
        }
        Way::Handed => {
            let Some(connection) = launcher.connection()? else {
                return Ok(());
            };
            (Mounted::elsewhere(plan, None), connection)
        }
    };
    let mut daemon = Daemon::start(plan, archive, mount, connection, (wakes, session_end))?;
    daemon.leases.give_to(launcher.ready()?)?;
    drop(lock);
    daemon.serve()
}

/// Serves in this process, until a signal, an unmount, or the end of `holder`, if there is one. If
/// the same is mounted there already, holds that instead. Opening counts in `progress`; `opened` is
/// called when it is done.
///
/// # Errors
/// As `serve_in_background`; `Busy` where something else is mounted there.
pub fn serve_in_foreground(
    plan: &MountPlan,
    holder: Option<ProcessId>,
    ready: Option<u32>,
    progress: &Progress,
    opened: impl FnOnce(),
) -> Result<()> {
    crate::log::start(plan.verbosity, plan.log_file.as_deref())?;
    if let Some(number) = inherited::number(&plan.mountpoint) {
        let connection = inherited::connection(number)?;
        let archive = open(plan, progress)?;
        opened();
        let wakes = signals::watch(Ignored::Stay)?;
        let mount = Mounted::elsewhere(plan, None);
        let mut daemon = Daemon::start(plan, archive, mount, connection, wakes)?;
        daemon.hold_for(holder)?;
        announce(ready)?;
        return daemon.serve();
    }
    let place = mountpoint::locate(&plan.mountpoint)?;
    let lock = match join::enter(&place, plan)? {
        Entrance::Free(lock) => lock,
        Entrance::Shared(client, _) => {
            opened();
            let (wakes, _session_end) = signals::watch(Ignored::Stay)?;
            announce(ready)?;
            return hold_what_is_shared(client, wakes, holder);
        }
    };
    let served = open(plan, progress).and_then(|archive| {
        opened();
        let wakes = signals::watch(Ignored::Stay)?;
        let (mount, connection) = Mounted::attach(&place, plan, &lock)?;
        let mut daemon = Daemon::start(plan, archive, mount, connection, wakes)?;
        daemon.hold_for(holder)?;
        announce(ready)?;
        Ok(daemon)
    });
    match served {
        Ok(daemon) => {
            drop(lock);
            daemon.serve()
        }
        Err(error) => {
            drop(lock);
            let _ = unmount::clear_up(&place);
            Err(error)
        }
    }
}

/// Checks that descriptor `ready` was inherited, before anything is done.
///
/// # Errors
/// `NotFound` where it was not; `Io`.
pub fn check_ready(ready: Option<u32>) -> Result<()> {
    ready.map(ready_file).transpose().map(|_| ())
}

fn ready_file(number: u32) -> Result<File> {
    let duplicate = inherited::duplicate(number.try_into().unwrap_or(-1));
    duplicate.map(File::from).map_err(|error| error.within(format!("--ready-fd {number}")))
}

/// Says that files can be read to descriptor `ready`, which was inherited.
///
/// # Errors
/// `Io` where nobody reads it.
pub(super) fn announce(ready: Option<u32>) -> Result<()> {
    let Some(number) = ready else {
        return Ok(());
    };
    ready_file(number)?
        .write_all(b"ready\n")
        .map_err(|error| Error::io("nobody waits for this mount any more", error))
}

/// Holds a lease on the mount of another daemon until a signal, its end, or that of `holder`.
fn hold_what_is_shared(client: Client, mut wakes: Wakes, holder: Option<ProcessId>) -> Result<()> {
    // A set of leases to wait on: the process, and the connection in the place of the listener.
    let mut leases = Leases::new(None)?;
    if let Some(holder) = holder {
        leases.watch(holder)?;
    }
    loop {
        let mut watched = leases.watched();
        watched.extend(wakes.watched());
        watched.push(PollFd::new(&client, PollFlags::IN));
        let limit = leases.has_to_ask().then_some(ASK_AGAIN);
        wait(&mut watched, limit)?;
        let is_gone = watched.last().is_some_and(|daemon| !daemon.revents().is_empty());
        leases.attend(false, &String::new);
        let woken = wakes.take();
        if is_gone {
            return Ok(());
        }
        if woken.asked > 0 || woken.at_once || (holder.is_some() && !leases.is_held()) {
            return client.leave().map(|_| ());
        }
    }
}

/// What is served, and where it is counted.
struct Opened {
    tree: Arc<dyn Tree>,
    stats: Arc<Stats>,
    report: Report,
}

fn open(plan: &MountPlan, progress: &Progress) -> Result<Opened> {
    let stats = Arc::new(Stats::default());
    let options = OpenOptions {
        offset: plan.offset,
        cache_bytes: plan.cache_bytes.unwrap_or_else(cache::default_bytes),
        recursive: plan.recursive,
        index: plan.index.clone(),
        stats: Arc::clone(&stats),
        ..OpenOptions::default()
    };
    let files = stage::archives(plan, options.cache_bytes, progress)?;
    let tree = formats::open_files(&files, &options, progress)?;
    let tree = View::apply(tree, &plan.view).map_err(|error| match plan.archives.first() {
        Some(first) => error.within(first.display()),
        None => error,
    })?;
    let report = Report::begin(plan, Arc::clone(&stats));
    Ok(Opened { tree, stats, report })
}

/// A daemon at work.
struct Daemon {
    mount: Arc<Mounted>,
    leases: Leases,
    hold: Hold,
    release: Release,
    wakes: Wakes,
    /// Readable when mounts have changed: somebody may have unmounted this one.
    mounts: File,
    session: JoinHandle<io::Result<()>>,
    stats: Arc<Stats>,
    report: Report,
    /// Whether somebody who waited for the end was told what was served.
    has_told: bool,
}

/// How many threads a mount takes where nobody says.
pub(super) fn usual_threads() -> usize {
    shape(None).threads
}

fn shape(threads: Option<usize>) -> SessionShape {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    session_shape(processors, memory::limit(), threads)
}

impl Daemon {
    /// Starts to answer the kernel.
    fn start(
        plan: &MountPlan,
        Opened { tree, stats, report }: Opened,
        mount: Arc<Mounted>,
        connection: OwnedFd,
        (wakes, session_end): (Wakes, SessionEnd),
    ) -> Result<Self> {
        unmount_on_panic(Arc::downgrade(&mount));
        let listener = mount.listen()?;
        let shape = shape(plan.threads);
        let release = Release::new(&tree, &stats, plan.cache_idle, session_end.waker()?);
        let filesystem = ArchiveFilesystem::new(tree, Arc::clone(&stats), plan.terms.idle);
        let session = session::start(filesystem, connection, shape, session_end)?;
        // The working directory may lie on a file system that somebody wants to unmount.
        let _ = std::env::set_current_dir("/");
        let hold = Hold::new(plan.terms, Instant::now());
        let (leases, mounts) = (Leases::new(listener)?, mountinfo::changes()?);
        let has_told = false;
        Ok(Self { mount, leases, hold, release, wakes, mounts, session, stats, report, has_told })
    }

    /// Lives for `holder`, or until somebody unmounts.
    fn hold_for(&mut self, holder: Option<ProcessId>) -> Result<()> {
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
            let held = Held { by_process: self.leases.is_held(), kept: self.leases.is_kept() };
            let now = Instant::now();
            // Who was given a lease may not have got to the first request.
            let uses = self.stats.requests().saturating_add(self.leases.given());
            match self.hold.next(now, held, uses) {
                Step::Serve(until) => {
                    let until = [until, self.release.attend(now)].into_iter().flatten().min();
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

    fn unmount(&mut self) {
        self.leases.begin_to_end();
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
            Error::io(format!("{}: connection lost", self.mount.place().display()), error)
        })
    }

    /// Waits until something happens, at most `limit`; tells whether the session has ended.
    fn wait(&mut self, limit: Option<Duration>) -> Result<bool> {
        let ask_again = self.leases.has_to_ask().then_some(ASK_AGAIN);
        let mut watched = self.leases.watched();
        watched.extend(self.wakes.watched());
        watched.push(PollFd::new(&self.mounts, PollFlags::PRI));
        wait(&mut watched, [limit, ask_again].into_iter().flatten().min())?;
        let woken = self.wakes.take();
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
