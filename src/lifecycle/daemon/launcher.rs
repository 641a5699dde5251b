//! Starts a daemon in the background, and talks to it until it serves.
//!
//! `Launched` is the launcher's side, `Launcher` the daemon's. A process with threads cannot fork,
//! so the program executes itself again.
//! Invariants: the daemon ends if its launcher ends before "ready". From "ready" on, the connection
//! between them is the launcher's lease. SIGTERM, SIGINT or SIGHUP to either or both of them before
//! the daemon mounts leaves no record.
//!
//! The daemon's standard input is the lock of the mount point, and its standard output is a socket
//! to the launcher, whose first line is the plan. If another process mounts, the daemon sends
//! "opened" over the socket and receives a FUSE connection. Then it sends "ready".

use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};

use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::inherited;
use crate::lifecycle::plan::{self, Background, ConnectionSource, DaemonPlan, MountPlan};
use crate::lifecycle::registry::{Client, MountLock};
use crate::os::process::{self, ProcessId};
use crate::os::signal::{ENDING, Mask};
use crate::os::unfinished::Unfinished;
use crate::os::unix_socket;

/// A daemon that is starting. Dropping this closes the connection, and the daemon ends.
#[derive(Debug)]
pub(crate) struct Launched {
    process: Child,
    client: Client,
}

impl Launched {
    /// Starts a daemon in the background, with the lock of its mount point.
    pub(crate) fn start(
        plan: &MountPlan,
        role: Background,
        lock: Option<&mut MountLock>,
    ) -> Result<Self> {
        let failed = |error| Error::io("cannot start the daemon", error);
        let (mut ours, theirs) = UnixStream::pair().map_err(failed)?;
        let stdin = match &lock {
            Some(lock) => Stdio::from(lock.duplicate()?),
            None => Stdio::null(),
        };
        let value = match role.source {
            ConnectionSource::Mount => "mount",
            ConnectionSource::Private => "private",
            ConnectionSource::Handed => "handed",
        };
        let mut command = process::own_program(plan::daemon_words(plan, value));
        command.stdin(stdin).stdout(OwnedFd::from(theirs));
        // Until it holds them itself.
        Mask::of(&ENDING).pass_to(&mut command);
        let process = command.spawn().map_err(failed)?;
        // The daemon removes them if it gets no plan.
        if let Some(lock) = lock {
            lock.keep_files();
        }
        // If the daemon has exited, it has printed why, and its exit status is read later.
        let _ = DaemonPlan::new(plan, role).write_to(&mut ours);
        let daemon = i32::try_from(process.id()).ok().and_then(|pid| ProcessId::of(pid).ok());
        Ok(Self { process, client: Client::new(ours, daemon) })
    }

    /// Waits until the daemon has opened the archives and needs a FUSE connection.
    pub(crate) fn wait_until_opened(&mut self) -> Result<()> {
        self.wait_for(OPENED)
    }

    /// Hands the FUSE connection to the daemon.
    pub(crate) fn hand_over(&mut self, connection: OwnedFd) -> Result<()> {
        unix_socket::send(&self.client, connection.as_fd())
            .map_err(|error| Error::io("cannot pass the mount to the daemon", error.into()))
    }

    /// Waits until files can be read; returns the lease.
    pub(crate) fn wait_until_ready(mut self) -> Result<Client> {
        self.wait_for(READY)?;
        Ok(self.client)
    }

    /// Like `wait_until_ready`, for a mount that this process sees at `mount_point`. Also asks for
    /// the attributes of its root, which takes the whole way through the kernel and back. If the
    /// mount does not answer, this gives the lease back, and the daemon has ended or had the time
    /// to.
    ///
    /// The daemon cannot ask itself. If it is killed while it waits for its own answer, it cannot
    /// exit: the kernel drops the request only after the daemon has exited.
    pub(crate) fn wait_until_answers(self, mount_point: &Path) -> Result<Client> {
        let client = self.wait_until_ready()?;
        match fs::symlink_metadata(mount_point) {
            Ok(_) => Ok(client),
            Err(error) => {
                let _ = client.leave();
                let context =
                    format!("{}: mounted, but the daemon does not answer", mount_point.display());
                Err(Error::io(context, error))
            }
        }
    }

    /// Closes the connection, and waits until the daemon has removed what it created and has
    /// exited.
    pub(crate) fn give_up(mut self) {
        drop(self.client);
        let _ = self.process.wait();
    }

    /// Waits for a message. Fails with `Reported` if the daemon has printed why it exited.
    fn wait_for(&mut self, message: &str) -> Result<()> {
        // Returns with the line, or with an empty one when the process ends.
        if self.client.read_line(None)? == message {
            return Ok(());
        }
        let failed = |error| Error::io("cannot wait for the daemon", error);
        let status = self.process.wait().map_err(failed)?;
        if let Some(signal) = status.signal() {
            let context = format!("signal {signal} killed the daemon before files could be read");
            let error = Error::new(Kind::Io, context);
            return Err(match signal {
                6 | 9 => error
                    .with_hint("if memory ran out or ulimit -v is low, lower --cache or --threads"),
                _ => error,
            });
        }
        let code = status.code().unwrap_or_default();
        let context = format!("the daemon exited with status {code} before files could be read");
        if let Some(reported) = REPORTED.iter().find(|reported| i32::from(**reported) == code) {
            return Err(Error::new(Kind::Reported(*reported), context));
        }
        Err(Error::new(Kind::Io, context)
            .with_hint("the daemon is started as /proc/self/exe, which must be archfs"))
    }
}

/// Exit statuses for which the daemon has printed an error: those of archfs, and that of a panic.
const REPORTED: [u8; 7] = [1, 2, 3, 4, 5, 6, 101];

const OPENED: &str = "opened\n";
const READY: &str = "ready\n";

/// The process that started this daemon.
#[derive(Debug)]
pub struct Launcher {
    stream: UnixStream,
    /// Standard input as it was inherited.
    input: OwnedFd,
    /// From the start of this process until it has the lock.
    unfinished: Option<Unfinished>,
}

impl Launcher {
    /// Takes over the plan and the descriptors that the launcher handed to this process, and closes
    /// all others. `unfinished` has held signals since before this process unblocked them.
    ///
    /// # Errors
    /// `Io` if the launcher has exited.
    pub fn adopt(unfinished: Option<Unfinished>) -> Result<(Self, DaemonPlan<Background>)> {
        // Otherwise ps and the kernel log would show `exe`: the process was started as
        // /proc/self/exe.
        let _ = fs::write("/proc/self/comm", "archfs");
        // Opening may take minutes. During that time Ctrl-C and the end of the launcher end this
        // process.
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
        let failed = |error| Error::io("cannot take over the descriptors of the launcher", error);
        let own = |descriptor: rustix::fd::BorrowedFd<'_>| descriptor.try_clone_to_owned();
        let stream = UnixStream::from(own(rustix::stdio::stdout()).map_err(failed)?);
        let input = own(rustix::stdio::stdin()).map_err(failed)?;
        let plan = match is_open(&stream) {
            true => DaemonPlan::<Background>::read_from(&mut BufReader::new(&stream)),
            false => Ok(None),
        };
        let exited = || Error::new(Kind::Io, "the process that started this mount has exited");
        let plan = match plan.and_then(|plan| plan.ok_or_else(exited)) {
            Ok(plan) => plan,
            Err(error) => {
                MountLock::remove_inherited(input);
                return Err(error);
            }
        };
        inherited::close_all(&inherited::kept(&plan.mount));
        // Otherwise there is no record.
        let unfinished = unfinished.filter(|_| plan.role.source == ConnectionSource::Mount);
        Ok((Self { stream, input, unfinished }, plan))
    }

    /// The lock of `mount_point`, inherited as standard input.
    pub(crate) fn lock(&mut self, mount_point: &Path) -> Result<MountLock> {
        let input = self
            .input
            .try_clone()
            .map_err(|error| Error::io("no lock of the mount point", error))?;
        let mut lock = MountLock::adopt(input, mount_point)?;
        lock.remove_on_signal(self.unfinished.take());
        Ok(lock)
    }

    /// Asks for a FUSE connection; `None` if the launcher could not mount, and printed why.
    pub(crate) fn connection(&mut self) -> Result<Option<OwnedFd>> {
        let failed = |error: io::Error| Error::io("the launcher passed no mount", error);
        self.stream.write_all(OPENED.as_bytes()).map_err(failed)?;
        unix_socket::receive(&self.stream).map_err(|error| failed(error.into()))
    }

    /// Reports that files can be read, and closes the inherited terminal and lock. Returns the
    /// connection, which is the launcher's lease.
    ///
    /// Starts a new session, so that Ctrl-C in the terminal reaches the job and not the daemon. Not
    /// earlier: at a mount point of autofs or of a systemd automount, only the process group that
    /// mounts can use the path until the launcher exits (autofs_d_manage in fs/autofs/root.c).
    pub(crate) fn ready(mut self) -> Result<UnixStream> {
        let failed = |error: io::Error| {
            Error::io("the process that waited for this mount has exited", error)
        };
        let _ = set_parent_process_death_signal(None);
        let _ = setsid();
        self.stream.write_all(READY.as_bytes()).map_err(failed)?;
        crate::log::keep_messages(close_standard_streams().map_err(failed)?);
        Ok(self.stream)
    }
}

/// Whether the other end is open. If the launcher ended before this process asked for a signal at
/// the launcher's end, that signal never comes.
fn is_open(stream: &UnixStream) -> bool {
    let mut watched = [PollFd::new(stream, PollFlags::empty())];
    let polled = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let closed = PollFlags::ERR | PollFlags::HUP;
    polled.is_err() || !watched.iter().any(|fd| fd.revents().intersects(closed))
}

/// The reader of the launcher's output must see its end, so the daemon cannot keep it open.
/// Standard error stays open if it is a file, such as the output of a batch job, for later
/// messages; returns whether it does.
fn close_standard_streams() -> io::Result<bool> {
    let null = File::options().read(true).write(true).open(Path::new("/dev/null"))?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    let stderr = rustix::fs::fstat(rustix::stdio::stderr())?;
    let is_file = rustix::fs::FileType::from_raw_mode(stderr.st_mode).is_file();
    if !is_file {
        rustix::stdio::dup2_stderr(&null)?;
    }
    Ok(is_file)
}
