//! Starting a daemon in the background, and what passes between the two until it serves.
//!
//! Owns both sides: the launcher's, who starts and waits, and the daemon's, who says how far it is.
//! A process with threads can not fork, so the program runs itself again.
//! Invariants: the daemon ends if its launcher does before "ready"; from "ready" on the connection
//! between them is the launcher's lease.
//!
//! The daemon's standard input is the lock of the mount point and its standard output a socket to
//! the launcher. Over it go "opened" and a connection to the kernel, where somebody else mounts,
//! and then "ready".

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};

use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::inherited;
use crate::lifecycle::share::{Client, MountLock};
use crate::lifecycle::system::process::ProcessId;
use crate::lifecycle::system::scm_rights;

/// A daemon that is on its way. Dropping it lets go of the daemon, which ends then.
#[derive(Debug)]
pub(in crate::lifecycle) struct Launched {
    process: Child,
    client: Client,
}

/// `Err` holds the exit status of a daemon that failed, and has said why on standard error.
pub(in crate::lifecycle) type Started<T> = std::result::Result<T, i32>;

impl Launched {
    /// Starts `archfs ARGUMENTS` in the background, with the lock of the mount point it shall
    /// serve.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn start(
        arguments: &[OsString],
        lock: Option<&MountLock>,
    ) -> Result<Self> {
        let failed = |error| Error::io("can not start archfs in the background", error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let stdin = match lock {
            Some(lock) => Stdio::from(lock.duplicate()?),
            None => Stdio::null(),
        };
        let process = Command::new("/proc/self/exe")
            .arg0("archfs")
            .args(arguments)
            .stdin(stdin)
            .stdout(OwnedFd::from(theirs))
            .spawn()
            .map_err(failed)?;
        let daemon = i32::try_from(process.id()).ok().and_then(|pid| ProcessId::of(pid).ok());
        Ok(Self { process, client: Client::over(ours, daemon) })
    }

    /// Waits until it has opened the archives and needs a connection to the kernel.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn wait_until_opened(&mut self) -> Result<Started<()>> {
        self.wait_for(OPENED)
    }

    /// Hands it the connection.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn hand_over(&mut self, connection: OwnedFd) -> Result<()> {
        scm_rights::send(&self.client, connection.as_fd())
            .map_err(|error| Error::io("can not hand over the mount", error.into()))
    }

    /// Waits until files can be read; returns the lease.
    ///
    /// # Errors
    /// `Io`, also where a signal ended it.
    pub(in crate::lifecycle) fn wait_until_ready(mut self) -> Result<Started<Client>> {
        Ok(self.wait_for(READY)?.map(|()| self.client))
    }

    /// The same, of a mount that this process sees at `mount_point`. Asks for its root, which takes
    /// the whole way through the kernel and back. Where it does not answer, the lease is given back
    /// and the daemon has ended, or has been given the time to.
    ///
    /// The daemon does not ask itself: one that is killed while it waits for its own answer can not
    /// end, since the kernel lets go of the question only when it has.
    ///
    /// # Errors
    /// `Io`, also where the mount does not answer.
    pub(in crate::lifecycle) fn wait_until_answers(
        self,
        mount_point: &Path,
    ) -> Result<Started<Client>> {
        let client = match self.wait_until_ready()? {
            Ok(client) => client,
            Err(status) => return Ok(Err(status)),
        };
        match fs::symlink_metadata(mount_point) {
            Ok(_) => Ok(Ok(client)),
            Err(error) => {
                let _ = client.leave();
                let context = format!("{}: mounted, but does not answer", mount_point.display());
                Err(Error::io(context, error))
            }
        }
    }

    /// Lets go of it and returns when it has ended, and removed what it made.
    pub(in crate::lifecycle) fn give_up(mut self) {
        drop(self.client);
        let _ = self.process.wait();
    }

    fn wait_for(&mut self, word: &str) -> Result<Started<()>> {
        // Ends with the line, or without one when the process does.
        if self.client.line(None)? == word {
            return Ok(Ok(()));
        }
        let failed = |error| Error::io("can not wait for archfs in the background", error);
        let status = self.process.wait().map_err(failed)?;
        if let Some(signal) = status.signal() {
            let context = format!(
                "signal {signal} ended archfs in the background before files could be read"
            );
            let error = Error::new(Kind::Io, context);
            return Err(match signal {
                6 | 9 => error.with_hint(
                    "perhaps memory ran out, or ulimit -v is low: --cache and --threads take less",
                ),
                _ => error,
            });
        }
        let code = status.code().unwrap_or_default();
        if TOLD.contains(&code) {
            return Ok(Err(code));
        }
        let context =
            format!("archfs in the background ended with status {code} before files could be read");
        Err(Error::new(Kind::Io, context)
            .with_hint("it is started by /proc/self/exe, which has to be archfs itself"))
    }
}

/// The statuses of archfs, which come with an error on standard error, and that of a panic, which
/// tells itself.
const TOLD: [i32; 7] = [1, 2, 3, 4, 5, 6, 101];

const OPENED: &str = "opened\n";
const READY: &str = "ready\n";

/// Whoever started this daemon.
#[derive(Debug)]
pub(in crate::lifecycle) struct Launcher {
    stream: UnixStream,
    /// Standard input as it was handed over.
    input: OwnedFd,
}

impl Launcher {
    /// Takes over what the launcher handed to this process, where descriptors in `kept` stay open.
    /// Call it first of all.
    ///
    /// # Errors
    /// `Io`, also where the launcher has ended.
    pub(in crate::lifecycle) fn adopt(kept: &[RawFd]) -> Result<Self> {
        inherited::close_all(kept);
        // It was started as /proc/self/exe, which would be its name in ps and in the kernel's log.
        let _ = fs::write("/proc/self/comm", "archfs");
        // Opening may take minutes; until then Ctrl-C and the end of whoever waits end this
        // process.
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
        let failed = |error| Error::io("can not take over from whoever started this", error);
        let own = |descriptor: rustix::fd::BorrowedFd<'_>| descriptor.try_clone_to_owned();
        let stream = UnixStream::from(own(rustix::stdio::stdout()).map_err(failed)?);
        let input = own(rustix::stdio::stdin()).map_err(failed)?;
        if !is_open(&stream) {
            return Err(Error::new(Kind::Io, "whoever started this mount has ended"));
        }
        Ok(Self { stream, input })
    }

    /// The lock of `mount_point`, which standard input is.
    ///
    /// # Errors
    /// `Usage` where it is not; `Io`.
    pub(in crate::lifecycle) fn lock(&self, mount_point: &Path) -> Result<MountLock> {
        let input = self.input.try_clone().map_err(|error| Error::io("no lock", error))?;
        MountLock::adopt(input, mount_point)
    }

    /// Starts a session of its own, so that Ctrl-C in the terminal reaches the job and not the
    /// daemon.
    pub(in crate::lifecycle) fn leave_terminal(&self) {
        let _ = setsid();
    }

    /// Asks for a connection to the kernel; `None` where the launcher could not mount, which it
    /// says.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn connection(&mut self) -> Result<Option<OwnedFd>> {
        let failed = |error: io::Error| Error::io("no mount was handed over", error);
        self.stream.write_all(OPENED.as_bytes()).map_err(failed)?;
        scm_rights::receive(&self.stream).map_err(|error| failed(error.into()))
    }

    /// Says that files can be read, and lets go of the terminal and of the lock; returns the
    /// connection that is the launcher's lease.
    ///
    /// # Errors
    /// `Io` where the launcher has ended.
    pub(in crate::lifecycle) fn ready(mut self) -> Result<UnixStream> {
        let failed = |error: io::Error| Error::io("nobody waits for this mount any more", error);
        let _ = set_parent_process_death_signal(None);
        self.stream.write_all(READY.as_bytes()).map_err(failed)?;
        detach().map_err(failed)?;
        Ok(self.stream)
    }
}

/// Whether the other end is open: a launcher that ended before this process asked to be told of its
/// end would never be missed.
fn is_open(stream: &UnixStream) -> bool {
    let mut watched = [PollFd::new(stream, PollFlags::empty())];
    let asked = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let closed = PollFlags::ERR | PollFlags::HUP;
    asked.is_err() || !watched.iter().any(|fd| fd.revents().intersects(closed))
}

/// Whoever reads the output of the launcher must see its end, so the daemon can not keep it open.
/// A file, such as the output of a batch job, is kept for what the daemon still has to say.
fn detach() -> io::Result<()> {
    let null = File::options().read(true).write(true).open(Path::new("/dev/null"))?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    let stderr = rustix::fs::fstat(rustix::stdio::stderr())?;
    if !rustix::fs::FileType::from_raw_mode(stderr.st_mode).is_file() {
        rustix::stdio::dup2_stderr(&null)?;
    }
    Ok(())
}
