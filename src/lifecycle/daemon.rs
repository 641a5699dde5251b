//! The daemon: mounts, serves until the mount has no more reason to be, unmounts.
//!
//! Owns the order of things at both ends, and starting in the background (the program runs itself
//! again, since a process with threads can not fork). Leaves who it lives for to `holder`.
//! Invariants: "ready" is said only of a mount that answers; on any event unmounting is the first
//! thing done, for a batch system may kill everything milliseconds later.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::{fs, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};

use super::attach::{Attached, Detach};
use super::mountpoint::Mountpoint;
use super::process::ProcessId;
use super::registry::{Record, Registered};
use super::{MountPlan, inherited, session, signals, stage};
use crate::cache;
use crate::error::{Error, Kind, Result};
use crate::formats::{self, OpenOptions, Saving};
use crate::fuse::session_shape;
use crate::progress::Progress;
use crate::sync::{Arc, Mutex, Weak};
use crate::vfs::{Tree, View};

/// Tells glibc from which size on a buffer always has a mapping of its own, which ends with it.
///
/// Left alone, it learns from each large buffer that is freed to serve the next from a heap, of
/// which there is one a thread, and hardly any of that goes back: a mount with a cache of 64 MiB
/// and chunks of 8 MiB came to 380 MB. The kernel's zeroing of the pages costs a hundredth of the
/// time to decode them. Blocks of SquashFS are smaller and served as before. Other libraries ignore
/// it.
const LARGE_BUFFERS: &str = "MALLOC_MMAP_THRESHOLD_";
const LARGE_BUFFER: &str = "4194304";

/// What a daemon waits for.
#[derive(Debug)]
pub(super) enum Event {
    /// Somebody asked it to end.
    Signal,
    /// The process it lives for has ended.
    HolderEnded,
    /// The mount is gone and its last file closed, or the connection broke.
    SessionEnded(io::Result<()>),
}

/// Where to say that files can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Nowhere: somebody watches the process itself.
    Silent,
    /// A line to that descriptor, which was inherited.
    Descriptor(u32),
    /// A line to standard output, after which the process lets go of its terminal: it was started
    /// in the background by `start`.
    Launcher,
}

/// Mounts as `plan` says and serves until a signal, the end of `holder`, or an unmount from
/// outside. Opening counts in `progress`; `opened` is called when it is done.
///
/// # Errors
/// What opening and mounting report; `Io` where the connection to the kernel broke.
pub fn serve(
    plan: &MountPlan,
    holder: Option<ProcessId>,
    ready: Ready,
    progress: &Progress,
    opened: impl FnOnce(),
) -> Result<()> {
    if ready == Ready::Launcher {
        inherited::close_all();
        // Opening may take minutes; until then Ctrl-C and the end of whoever waits end this
        // process.
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
        if !somebody_waits() {
            return Err(Error::new(Kind::Io, "whoever started this mount has ended"));
        }
    }
    crate::log::start(plan.verbosity, plan.log_file.as_deref())?;
    let tree = open(plan, progress)?;
    opened();
    if ready == Ready::Launcher {
        // A session of its own, so that Ctrl-C in the terminal reaches the job and not the daemon.
        let _ = setsid();
    }
    let source = source(&plan.archives);
    // From here on there is something to undo, so a signal may not end the process by itself.
    let (sender, events) = channel();
    signals::watch(sender.clone())?;
    let mountpoint = Mountpoint::prepare(&plan.mountpoint)?;
    let (attached, connection) = Attached::new(mountpoint.place(), &source, plan.access)?;
    let mount = Mount::new(attached, mountpoint);
    unmount_on_panic(Arc::downgrade(&mount));
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let shape = session_shape(processors, plan.threads);
    session::start(tree, connection, shape, sender.clone())?;
    if let Some(holder) = holder {
        thread::Builder::new()
            .name("holder".into())
            .spawn(move || {
                if let Err(error) = holder.wait_for_end(None) {
                    log::error!("{error}; staying mounted until `archfs unmount`");
                    return;
                }
                let _ = sender.send(Event::HolderEnded);
            })
            .map_err(|error| Error::io("can not start a thread", error))?;
    }
    mount.check_that_it_answers()?;
    // The working directory may lie on a file system that somebody wants to unmount.
    let _ = std::env::set_current_dir("/");
    let _ = set_parent_process_death_signal(None);
    announce(ready)?;
    mount.hold(&events)
}

/// Starts `archfs ARGUMENTS` in the background; returns when its mount can be read.
///
/// # Errors
/// `Io` where it can not be started. Where it fails by itself it has said why on standard error,
/// and its exit status is returned in `Ok(Err(status))`.
pub fn start(arguments: &[OsString]) -> Result<std::result::Result<(), i32>> {
    let failed = |error| Error::io("can not start archfs in the background", error);
    let mut child = Command::new("/proc/self/exe")
        .arg0("archfs")
        .args(arguments)
        .env(LARGE_BUFFERS, LARGE_BUFFER)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        // Ends with the line, or without one when the process does.
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    if line == "ready\n" {
        return Ok(Ok(()));
    }
    let status = child.wait().map_err(failed)?;
    if let Some(signal) = status.signal() {
        return Err(Error::new(
            Kind::Io,
            format!("signal {signal} ended archfs in the background before files could be read"),
        )
        .with_hint("signal 9 may mean that memory ran out: --cache makes archfs take less"));
    }
    Ok(Err(status.code().filter(|&code| code != 0).unwrap_or(1)))
}

/// Whether the other end of standard output is open: a launcher that ended before this process
/// asked to be told of its end would never be missed.
fn somebody_waits() -> bool {
    let stdout = rustix::stdio::stdout();
    let mut watched = [PollFd::from_borrowed_fd(stdout, PollFlags::empty())];
    let asked = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let closed = PollFlags::ERR | PollFlags::HUP;
    asked.is_err() || !watched.iter().any(|fd| fd.revents().intersects(closed))
}

fn open(plan: &MountPlan, progress: &Progress) -> Result<Arc<dyn Tree>> {
    let options = OpenOptions {
        offset: plan.offset,
        cache_bytes: plan.cache_bytes.unwrap_or_else(cache::default_bytes),
        recursive: plan.recursive,
        index: plan.index.clone(),
        saving: Saving::default(),
    };
    let files = stage::archives(plan, options.cache_bytes, progress)?;
    let tree = formats::open_files(&files, &options, progress)?;
    View::apply(tree, &plan.view).map_err(|error| match plan.archives.first() {
        Some(first) => error.within(first.display()),
        None => error,
    })
}

/// What mount(8) shows as mounted: the archive, or the first one and how many more.
fn source(archives: &[PathBuf]) -> PathBuf {
    let Some((first, more)) = archives.split_first() else {
        return PathBuf::new();
    };
    let mut source = fs::canonicalize(first).unwrap_or_else(|_| first.clone()).into_os_string();
    if !more.is_empty() {
        source.push(format!(" (+{})", more.len()));
    }
    source.into()
}

/// A mount that is served, and everything that was made for it.
struct Mount {
    place: PathBuf,
    /// Guards what is left to undo, so that it is undone once. No other lock is taken within.
    parts: Mutex<Option<Parts>>,
}

struct Parts {
    attached: Attached,
    mountpoint: Mountpoint,
    _registered: Option<Registered>,
}

impl Mount {
    fn new(attached: Attached, mountpoint: Mountpoint) -> Arc<Self> {
        let place = mountpoint.place().to_owned();
        let made = mountpoint.made();
        let registered = ProcessId::own()
            .and_then(|daemon| {
                Record { daemon, made, place: place.clone() }.write(attached.entry())
            })
            .inspect_err(|error| log::warn!("{error}; `archfs unmount` will know less"))
            .ok();
        let parts = Parts { attached, mountpoint, _registered: registered };
        Arc::new(Self { place, parts: Mutex::new(Some(parts)) })
    }

    /// Asks for the root of the mount, which takes the whole way through the kernel and back.
    fn check_that_it_answers(&self) -> Result<()> {
        fs::symlink_metadata(&self.place).map(|_| ()).map_err(|error| {
            Error::io(format!("{}: mounted, but does not answer", self.place.display()), error)
        })
    }

    /// Serves until there is a reason to end, and unmounts then.
    fn hold(&self, events: &Receiver<Event>) -> Result<()> {
        let mut asked_before = false;
        loop {
            // The session sends its end itself; an error here can only mean the same.
            match events.recv().unwrap_or(Event::SessionEnded(Ok(()))) {
                // A second signal ends it at once, files open or not.
                Event::Signal if asked_before => return Ok(()),
                Event::Signal => {
                    asked_before = true;
                    self.unmount();
                }
                Event::HolderEnded => self.unmount(),
                Event::SessionEnded(outcome) => {
                    self.unmount();
                    return outcome.map_err(|error| {
                        Error::io(format!("{}: connection lost", self.place.display()), error)
                    });
                }
            }
        }
    }

    /// Unmounts, lazily if it is in use, and removes what was made; does nothing the second time.
    fn unmount(&self) {
        let Some(Parts { attached, mut mountpoint, _registered }) = self.parts.lock().take() else {
            return;
        };
        // First of all: the rest of this process may not get to run.
        let idle = attached.detach(Detach::IfIdle);
        if idle.as_ref().is_err_and(|error| error.kind() == Kind::Busy) {
            log::warn!("{}: in use, unmounting lazily", self.place.display());
        }
        // Detaches lazily what is still there.
        drop(attached);
        mountpoint.remove();
    }
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
                let _ = parts.attached.detach(Detach::Lazily);
                drop(parts);
            }
        }
        std::process::exit(101);
    }));
}

/// Says that files can be read, and lets go of the terminal where a launcher waited for that.
///
/// # Errors
/// `Io` where nobody reads it.
pub fn announce(ready: Ready) -> Result<()> {
    let failed = |error: io::Error| Error::io("nobody waits for this mount any more", error);
    match ready {
        Ready::Silent => Ok(()),
        Ready::Descriptor(number) => {
            let path = format!("/proc/self/fd/{number}");
            let opened = File::options().write(true).open(&path);
            let mut file = opened
                .map_err(|error| Error::io(format!("--ready-fd {number}: can not write"), error))?;
            file.write_all(b"ready\n").map_err(failed)
        }
        Ready::Launcher => {
            let mut stdout = io::stdout();
            stdout.write_all(b"ready\n").and_then(|()| stdout.flush()).map_err(failed)?;
            detach_from_terminal().map_err(failed)
        }
    }
}

/// Whoever reads the output of the launcher must see its end, so the daemon can not keep it open.
/// A file, such as the output of a batch job, is kept for what the daemon still has to say.
fn detach_from_terminal() -> io::Result<()> {
    let null = File::options().read(true).write(true).open(Path::new("/dev/null"))?;
    rustix::stdio::dup2_stdout(&null)?;
    let stderr = rustix::fs::fstat(rustix::stdio::stderr())?;
    if !rustix::fs::FileType::from_raw_mode(stderr.st_mode).is_file() {
        rustix::stdio::dup2_stderr(&null)?;
    }
    Ok(())
}
