//! Reads all names of a mount ahead, when processes look up one name after the other.
//!
//! A data loader opens files in random order by paths that it got from a list. The first use of
//! each path is a LOOKUP, which costs more than the read of a small file: the process sleeps until
//! an event loop has answered. A listing with attributes (READDIRPLUS) brings hundreds of names and
//! inodes into the kernel with one request, for about a seventh of the time per name. So after
//! some lookups archfs lists all directories once.
//!
//! Another process does that (`read_names`). If the daemon listed its own mount and were killed
//! while it waits for its own answer, it could not exit (`launcher`).
//!
//! Invariants: at most one process lists at a time. It ends before the daemon unmounts, when the
//! daemon ends, or shortly after. Names are read ahead only if memory for all of them is free. The
//! process opens only directories on the given device, one at a time, so it reads nothing but the
//! mount itself.

use std::ffi::{CStr, CString, OsStr};
use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags, RawDir, fadvise, fstat, open, statat};

use super::Service;
use super::mounted::Mounted;
use crate::os::memory;
use crate::os::process::{self, ProcessId};
use crate::stats::Stats;
use crate::sync::Arc;
use crate::units::{counted, format_duration, format_size};

/// Names are read ahead after lookups of this part of them. One listing of all costs about as much
/// as lookups of a seventh.
const LOOKED_UP_PART: u64 = 32;

/// The least number of lookups before that. Fewer are over before a process has started.
const LOOKUPS_MIN: u64 = 256;

/// Kernel memory for a name with its inode, in bytes; 1,150 were measured on Linux 6.18.
const NAME_BYTES: u64 = 1536;

/// Names may take this part of the memory that is left.
const MEMORY_PART: u64 = 4;

/// Time from the start of one listing to the next: at least this, and at least this many times as
/// long as the last listing took. The kernel may drop names for lack of memory.
const INTERVAL: Duration = Duration::from_secs(60);
const INTERVAL_FACTOR: u32 = 20;

/// Bytes of one part of a listing. Since Linux 6.13 one request may fill all of it.
const PART_BYTES: usize = 64 << 10;

/// How long an unmount waits until a listing ends by itself, and then until it is killed.
const END_LIMIT: Duration = Duration::from_millis(100);

pub(super) struct NameReadahead {
    mount: Arc<Mounted>,
    stats: Arc<Stats>,
    /// The number of inodes, nearly that of names.
    names: u64,
    state: ReadaheadState,
}

enum ReadaheadState {
    /// Waits until there were enough lookups.
    Watching,
    Listing(Listing),
    /// Waits until this time before lookups are counted again.
    Pausing(Instant),
    Off,
}

struct Listing {
    process: Child,
    /// The process ends when this closes. It writes the number of names to it.
    connection: UnixStream,
    started: Instant,
}

impl NameReadahead {
    /// Reads the names of `mount`, which has `inodes`, after lookups that `stats` counts. `wake`
    /// must make the daemon call `update` soon.
    pub(super) fn new(
        is_wanted: bool,
        mount: Arc<Mounted>,
        inodes: u64,
        stats: Arc<Stats>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let is_possible = is_wanted && inodes > LOOKUPS_MIN && mount.is_attached();
        let mut readahead = Self { mount, stats, names: inodes, state: ReadaheadState::Off };
        if is_possible {
            readahead.stats.lookup_alarm.connect(Box::new(wake));
            readahead.watch();
        }
        readahead
    }

    /// The descriptor to poll while a process lists.
    pub(super) fn watched(&self) -> Option<PollFd<'_>> {
        match &self.state {
            ReadaheadState::Listing(listing) => {
                Some(PollFd::new(&listing.connection, PollFlags::IN))
            }
            _ => None,
        }
    }

    /// Starts a listing without waiting for lookups, if there was none yet.
    pub(super) fn begin_now(&mut self) {
        if matches!(self.state, ReadaheadState::Watching) {
            self.begin(Instant::now());
        }
    }

    /// Ends a listing that is under way, so that it does not keep the mount busy.
    pub(super) fn stop(&mut self) {
        if let ReadaheadState::Listing(listing) = &mut self.state {
            listing.stop();
            self.state = ReadaheadState::Pausing(Instant::now() + INTERVAL);
        }
    }

    fn watch(&mut self) {
        self.stats.lookup_alarm.set(lookups_before(self.names));
        self.state = ReadaheadState::Watching;
    }

    fn begin(&mut self, now: Instant) {
        self.state = ReadaheadState::Pausing(now + INTERVAL);
        let needed = self.names.saturating_mul(NAME_BYTES);
        if let Some(left) = memory::headroom()
            && needed > left.bytes / MEMORY_PART
        {
            let names = counted(self.names, "name");
            let (needed, left) = (format_size(needed), format_size(left.bytes));
            log::info!("not reading {names} ahead: {needed} of kernel memory, {left} left");
            return;
        }
        match Listing::start(&self.mount) {
            Ok(listing) => self.state = ReadaheadState::Listing(listing),
            Err(error) => {
                log::info!("not reading names ahead: {error}");
                self.state = ReadaheadState::Off;
            }
        }
    }
}

impl Service for NameReadahead {
    fn update(&mut self, now: Instant) -> Option<Instant> {
        match &mut self.state {
            ReadaheadState::Watching if !self.stats.lookup_alarm.is_set() => self.begin(now),
            ReadaheadState::Listing(listing) => {
                if let Poll::Ready(names) = listing.result() {
                    let took = listing.started.elapsed();
                    let time = format_duration(took);
                    match names {
                        Some(names) => {
                            log::info!("read {} ahead in {time}", counted(names, "name"));
                        }
                        None => log::info!("stopped reading names ahead after {time}"),
                    }
                    let pause = INTERVAL.max(took.saturating_mul(INTERVAL_FACTOR));
                    self.state = ReadaheadState::Pausing(listing.started + pause);
                }
            }
            ReadaheadState::Pausing(until) if now >= *until => self.watch(),
            ReadaheadState::Watching | ReadaheadState::Pausing(_) | ReadaheadState::Off => {}
        }
        match self.state {
            ReadaheadState::Pausing(until) => Some(until),
            _ => None,
        }
    }
}

impl Drop for NameReadahead {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Listing {
    fn start(mount: &Mounted) -> io::Result<Self> {
        let device = mount.device_number().ok_or(ErrorKind::NotFound)?;
        let (connection, theirs) = UnixStream::pair()?;
        connection.set_nonblocking(true)?;
        let process = process::silent_own_program(["read-names", "--"])
            .arg(mount.mount_point())
            .arg(device.to_string())
            .stdin(OwnedFd::from(theirs))
            .spawn()?;
        Ok(Self { process, connection, started: Instant::now() })
    }

    /// The number of names, once the process has ended. There is none if it did not finish.
    fn result(&mut self) -> Poll<Option<u64>> {
        let mut number = [0; size_of::<u64>()];
        let is_finished = match self.connection.read(&mut number) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Poll::Pending,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Poll::Pending,
            // The number is the last thing that the process writes before it exits.
            Ok(len) => len == number.len(),
            Err(_) => false,
        };
        let _ = self.process.wait();
        Poll::Ready(is_finished.then(|| u64::from_ne_bytes(number)))
    }

    /// Makes the process end, and waits for that. Even a killed process only ends when the kernel
    /// has got the answer that it waits for, which may take as long as storage takes.
    fn stop(&mut self) {
        let _ = self.connection.shutdown(Shutdown::Both);
        if !self.ends_soon() {
            let _ = self.process.kill();
            if !self.ends_soon() {
                log::info!("the process that reads names ahead has not ended yet");
            }
        }
    }

    fn ends_soon(&mut self) -> bool {
        let watched = i32::try_from(self.process.id()).ok().and_then(|pid| ProcessId::of(pid).ok());
        // A process that has already ended has no identity.
        if let Some(process) = watched {
            let _ = process.wait_for_end(Some(END_LIMIT));
        }
        !matches!(self.process.try_wait(), Ok(None))
    }
}

fn lookups_before(names: u64) -> u64 {
    (names / LOOKED_UP_PART).max(LOOKUPS_MIN)
}

/// Lists everything below `mount_point`, as long as that is on `device` and the other end of
/// standard input is open. Writes the number of names to standard input, which is a socket.
pub fn read_names(mount_point: &Path, device: u64) -> io::Result<()> {
    let daemon = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut lister =
        Lister { daemon, device, buffer: vec![MaybeUninit::uninit(); PART_BYTES], names: 0 };
    let mut pending = vec![mount_point.to_owned()];
    while let Some(directory) = pending.pop() {
        if !lister.list(&directory, &mut pending)? {
            return Ok(());
        }
    }
    lister.daemon.write_all(&lister.names.to_ne_bytes())
}

/// Lists directories so that the kernel has their names and inodes.
///
/// The kernel asks for attributes with a listing (READDIRPLUS) at the start of a directory, and
/// later only if the names that it got were used (FUSE_READDIRPLUS_AUTO). So this asks for the
/// attributes of one name after each part of a listing. They are there already, so no request
/// follows.
struct Lister {
    daemon: UnixStream,
    device: u64,
    buffer: Vec<MaybeUninit<u8>>,
    names: u64,
}

impl Lister {
    /// Lists `directory`, and adds its subdirectories to `pending`. Returns whether to go on.
    fn list(&mut self, directory: &Path, pending: &mut Vec<PathBuf>) -> io::Result<bool> {
        // A faulty directory does not hide the others.
        let Some(opened) = self.open(directory) else { return Ok(true) };
        // Otherwise the kernel would answer from a listing that it has, which has no attributes.
        let _ = fadvise(&opened, 0, None, Advice::DontNeed);
        let mut last: Option<CString> = None;
        let mut entries = RawDir::new(&opened, &mut self.buffer);
        while let Some(entry) = entries.next() {
            let Ok(entry) = entry else { return Ok(true) };
            let (name, kind) = (entry.file_name(), entry.file_type());
            let is_dot = matches!(name.to_bytes(), b"." | b"..");
            if !is_dot {
                self.names = self.names.saturating_add(1);
                if kind == FileType::Directory {
                    pending.push(directory.join(OsStr::from_bytes(name.to_bytes())));
                }
                // Any name will do.
                if last.is_none() {
                    last = Some(name.to_owned());
                }
            }
            if entries.is_buffer_empty() {
                if let Some(name) = last.take() {
                    let _ = use_name(&opened, &name);
                }
                if has_ended(&self.daemon) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn open(&self, directory: &Path) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = open(directory, flags, Mode::empty()).ok()?;
        (fstat(&opened).ok()?.st_dev == self.device).then_some(opened)
    }
}

fn use_name(directory: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|_| ())
}

/// Whether the daemon has ended or wants this to end.
fn has_ended(daemon: &UnixStream) -> bool {
    let mut watched = [PollFd::new(daemon, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut watched, Some(&at_once)), Ok(1..))
}
