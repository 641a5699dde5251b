//! The daemon: mounts, serves until the mount has no more reason to be, unmounts.
//!
//! Owns the order of things at both ends. Leaves how long that is to `hold` and being started in
//! the background to `launcher`. Invariants: "ready" is said only of a mount that answers; on any
//! event unmounting is the first thing done, for a batch system may kill everything milliseconds
//! later.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::attach::{Attached, Detach};
use super::hold::{Held, Hold, Step};
use super::join::{self, Entrance};
use super::launcher::Launcher;
use super::lease::{Client, Leases};
use super::mountpoint::{self, Mountpoint};
use super::process::{ASK_AGAIN, ProcessId};
use super::registry::{Key, MountId, PlaceLock, Record, Registered, Registry};
use super::signals::{self, SessionEnd, Wakes};
use super::{MountPlan, Way, inherited, mountinfo, session, unmount};
use crate::cache;
use crate::error::{Error, Result};
use crate::formats::{self, OpenOptions, Saving};
use crate::fuse::session_shape;
use crate::progress::Progress;
use crate::sync::{Arc, Mutex, Weak};
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
    let tree = open(plan, progress)?;
    opened();
    launcher.leave_terminal();
    // From here on there is something to undo, so a signal may not end the process by itself.
    let (wakes, session_end) = signals::watch()?;
    let mut lock = None;
    let (mount, connection) = match way {
        Way::Mount => {
            let place = mountpoint::locate(&plan.mountpoint)?;
            lock = Some(launcher.lock(&place)?);
            Mount::attach(&place, plan)?
        }
        Way::Private => {
            let place = mountpoint::locate(&plan.mountpoint)?;
            let lock = launcher.lock(&place)?;
            let mountpoint = Mountpoint::within_namespace(&place)?;
            drop(lock);
            (Mount::elsewhere(plan, Some(mountpoint)), launcher.connection()?)
        }
        Way::Handed => (Mount::elsewhere(plan, None), launcher.connection()?),
    };
    let mut daemon = Daemon::start(plan, tree, mount, connection, (wakes, session_end))?;
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
        let connection = inherited::duplicate(number)?;
        let tree = open(plan, progress)?;
        opened();
        let wakes = signals::watch()?;
        let mount = Mount::elsewhere(plan, None);
        let mut daemon = Daemon::start(plan, tree, mount, connection, wakes)?;
        daemon.hold_for(holder)?;
        announce(ready)?;
        return daemon.serve();
    }
    let place = mountpoint::locate(&plan.mountpoint)?;
    let lock = match join::enter(&place, plan)? {
        Entrance::Free(lock) => lock,
        Entrance::Shared(client, _) => {
            opened();
            let (wakes, _session_end) = signals::watch()?;
            announce(ready)?;
            return hold_what_is_shared(client, wakes, holder);
        }
    };
    let served = open(plan, progress).and_then(|tree| {
        opened();
        let wakes = signals::watch()?;
        let (mount, connection) = Mount::attach(&place, plan)?;
        let mut daemon = Daemon::start(plan, tree, mount, connection, wakes)?;
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
            let _ = unmount::forget(&place, lock);
            Err(error)
        }
    }
}

/// Says that files can be read to descriptor `ready`, which was inherited.
///
/// # Errors
/// `Io` where nobody reads it.
pub fn announce(ready: Option<u32>) -> Result<()> {
    let Some(number) = ready else {
        return Ok(());
    };
    let opened = File::options().write(true).open(format!("/proc/self/fd/{number}"));
    let mut file =
        opened.map_err(|error| Error::io(format!("--ready-fd {number}: can not write"), error))?;
    file.write_all(b"ready\n")
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
        leases.attend(false);
        let woken = wakes.take();
        if is_gone {
            return Ok(());
        }
        if woken.asked > 0 || woken.at_once || (holder.is_some() && !leases.is_held()) {
            return client.leave().map(|_| ());
        }
    }
}

fn open(plan: &MountPlan, progress: &Progress) -> Result<Arc<dyn Tree>> {
    let options = OpenOptions {
        offset: plan.offset,
        cache_bytes: plan.cache_bytes.unwrap_or_else(cache::default_bytes),
        recursive: plan.recursive,
        index: plan.index.clone(),
        saving: Saving::default(),
    };
    let tree = formats::open(&plan.archives, &options, progress)?;
    View::apply(tree, &plan.view).map_err(|error| match plan.archives.first() {
        Some(first) => error.within(first.display()),
        None => error,
    })
}

/// A daemon at work.
struct Daemon {
    mount: Arc<Mount>,
    leases: Leases,
    hold: Hold,
    wakes: Wakes,
    /// Readable when mounts have changed: somebody may have unmounted this one.
    mounts: File,
    session: JoinHandle<io::Result<()>>,
}

impl Daemon {
    /// Starts to answer the kernel.
    fn start(
        plan: &MountPlan,
        tree: Arc<dyn Tree>,
        mount: Arc<Mount>,
        connection: OwnedFd,
        (wakes, session_end): (Wakes, SessionEnd),
    ) -> Result<Self> {
        unmount_on_panic(Arc::downgrade(&mount));
        let listener = mount.listen()?;
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let shape = session_shape(processors, plan.threads);
        let session = session::start(tree, connection, shape, session_end)?;
        mount.check_that_it_answers()?;
        // The working directory may lie on a file system that somebody wants to unmount.
        let _ = std::env::set_current_dir("/");
        let hold = Hold::new(plan.terms, Instant::now());
        let (leases, mounts) = (Leases::new(listener)?, mountinfo::changes()?);
        Ok(Self { mount, leases, hold, wakes, mounts, session })
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
            self.leases.attend(self.hold.lingers());
            let held = Held { by_process: self.leases.is_held(), kept: self.leases.is_kept() };
            let now = Instant::now();
            match self.hold.next(now, held, 0) {
                Step::Serve(until) => {
                    let limit = until.map(|until| until.saturating_duration_since(now));
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
                Step::Unmount => {
                    self.unmount();
                    self.hold.unmounted();
                }
                // Files that are still open end with this process.
                Step::Exit => {
                    self.unmount();
                    self.mount.clear_up();
                    return Ok(());
                }
            }
        }
    }

    fn unmount(&mut self) {
        self.leases.begin_to_end();
        self.mount.unmount();
        self.leases.close();
    }

    /// The session has ended: nothing is mounted any more, or the kernel gave up.
    fn end(mut self) -> Result<()> {
        self.unmount();
        self.mount.clear_up();
        let outcome = self.session.join().unwrap_or_else(|_| Err(io::Error::other("a panic")));
        outcome.map_err(|error| {
            Error::io(format!("{}: connection lost", self.mount.place.display()), error)
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
        }
        if woken.at_once {
            self.hold.ask_at_once();
        }
        Ok(woken.session_ended)
    }
}

fn wait(watched: &mut [PollFd<'_>], limit: Option<Duration>) -> Result<()> {
    let limit = limit.map(|limit| Timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    match poll(watched, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::io("can not wait", error.into())),
    }
}

/// A mount that is served, and everything that was made for it.
struct Mount {
    place: PathBuf,
    /// Guards what is left to undo, so that it is undone once. No other lock is taken within.
    parts: Mutex<Option<Parts>>,
}

/// Undone in this order.
struct Parts {
    /// `None` where somebody else mounted, who unmounts, too.
    attached: Option<Attached>,
    mountpoint: Option<Mountpoint>,
    /// `None` where nobody else can see the mount.
    registered: Option<Registered>,
}

impl Mount {
    /// Mounts at `place`, whose lock is held, and registers that.
    fn attach(place: &Path, plan: &MountPlan) -> Result<(Arc<Self>, OwnedFd)> {
        let mountpoint = Mountpoint::prepare(place)?;
        let archives = join::real_paths(plan);
        let source = source(&archives);
        let (attached, connection) = Attached::new(mountpoint.place(), &source, plan.access)?;
        let record = Record {
            daemon: ProcessId::own()?,
            mount: MountId::of(attached.entry()),
            identity: join::identity(plan),
            archives,
            place: place.to_owned(),
        };
        let registered = Some(record.write()?);
        let parts = Parts { attached: Some(attached), mountpoint: Some(mountpoint), registered };
        let place = place.to_owned();
        Ok((Arc::new(Self { place, parts: Mutex::new(Some(parts)) }), connection))
    }

    /// A mount that somebody else made, on `mountpoint` if that is ours to remove.
    fn elsewhere(plan: &MountPlan, mountpoint: Option<Mountpoint>) -> Arc<Self> {
        let parts = Parts { attached: None, mountpoint, registered: None };
        Arc::new(Self { place: plan.mountpoint.clone(), parts: Mutex::new(Some(parts)) })
    }

    /// Where others ask for leases; `None` where nobody else can see the mount.
    fn listen(&self) -> Result<Option<UnixListener>> {
        if self.parts.lock().as_ref().is_none_or(|parts| parts.registered.is_none()) {
            return Ok(None);
        }
        let socket = Registry::open()?.socket(&Key::of(&self.place));
        let _ = fs::remove_file(&socket);
        UnixListener::bind(&socket)
            .map(Some)
            .map_err(|error| Error::io(format!("{}: can not listen", socket.display()), error))
    }

    /// Asks for the root of the mount, which takes the whole way through the kernel and back. Of
    /// one that this process can not see, its maker asks.
    fn check_that_it_answers(&self) -> Result<()> {
        if self.parts.lock().as_ref().is_none_or(|parts| parts.attached.is_none()) {
            return Ok(());
        }
        fs::symlink_metadata(&self.place).map(|_| ()).map_err(|error| {
            Error::io(format!("{}: mounted, but does not answer", self.place.display()), error)
        })
    }

    /// Whether somebody else unmounted it; files may still be open.
    fn was_taken_away(&self) -> bool {
        match &*self.parts.lock() {
            Some(Parts { attached: Some(attached), .. }) => !attached.is_there().unwrap_or(true),
            _ => false,
        }
    }

    /// Unmounts and clears up, unless somebody uses the mount.
    fn unmount_if_idle(&self) -> Result<()> {
        if let Some(Parts { attached: Some(attached), .. }) = &*self.parts.lock() {
            attached.detach(Detach::IfIdle)?;
        }
        self.clear_up();
        Ok(())
    }

    /// Unmounts, lazily if somebody uses the mount, and clears up; does nothing the second time.
    /// What somebody else mounted, that one unmounts; the directory is in use until then.
    fn unmount(&self) {
        if self.parts.lock().as_ref().is_some_and(|parts| parts.attached.is_some()) {
            self.clear_up();
        }
    }

    /// Undoes whatever was done and is not undone yet.
    fn clear_up(&self) {
        let Some(Parts { attached, mountpoint, registered }) = self.parts.lock().take() else {
            return;
        };
        // First of all: the rest of this process may not get to run.
        drop(attached);
        drop(mountpoint);
        let is_registered = registered.is_some();
        // Last, since it tells others that the place is free.
        drop(registered);
        if is_registered && let Ok(Some(lock)) = PlaceLock::try_acquire(&self.place) {
            let _ = unmount::forget(&self.place, lock);
        }
    }
}

/// What mount(8) shows as mounted: the archive, or the first one and how many more.
fn source(archives: &[PathBuf]) -> PathBuf {
    let Some((first, more)) = archives.split_first() else {
        return PathBuf::new();
    };
    let mut source = first.clone().into_os_string();
    if !more.is_empty() {
        source.push(format!(" (+{})", more.len()));
    }
    source.into()
}

/// A panic in one event loop would leave a mount that answers less and less; end it loudly instead.
/// The hook lives as long as the process, so it must not keep the mount from being dropped.
fn unmount_on_panic(mount: Weak<Mount>) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        if let Some(mount) = mount.upgrade() {
            log::error!("{}: a fault in archfs itself, unmounting", mount.place.display());
            // Whoever panicked may hold the lock; waiting for it would hang instead.
            if let Some(parts) = mount.parts.try_lock().and_then(|mut parts| parts.take()) {
                drop(parts);
            }
        }
        std::process::exit(101);
    }));
}
