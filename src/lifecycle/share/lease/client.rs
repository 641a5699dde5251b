//! The side of those who need a mount.
//!
//! Owns the connection to a daemon. Invariant: dropping it gives its lease back.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::sockopt::socket_peercred;

use super::super::EXIT;
use super::message::{Answer, Request, Status, UnmountAnswer, UnmountRequest};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::detach::Detach;
use crate::lifecycle::system::process::ProcessId;

/// How long a daemon may take to answer; it does nothing else on the thread that answers, but for
/// unmounting through fusermount.
const ANSWER: Duration = Duration::from_secs(30);

/// How long the kernel may take to unmount.
const UNMOUNT: Duration = Duration::from_secs(120);

/// How often, while it does not answer, the caller decides whether to wait longer.
const SLICE: Duration = Duration::from_millis(250);

/// The first of these times, which doubles: longer than most answers take, also that of a daemon
/// that mounts.
const FIRST_SLICE: Duration = Duration::from_millis(20);

/// A socket cannot wait for no time.
const SHORTEST: Duration = Duration::from_millis(1);

/// A connection to a daemon, with or without a lease.
#[derive(Debug)]
pub(in crate::lifecycle) struct Client {
    stream: BufReader<UnixStream>,
    /// The process at the other end, where it was there to be seen.
    daemon: Option<ProcessId>,
}

/// What became of a mount when a lease on it was given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) enum LeaseEnd {
    /// It is gone; the line tells what was served.
    Gone(String),
    /// Its daemon has ended without a word.
    Lost,
    /// It stays for now: others hold it, or it lingers.
    Stays,
}

impl Client {
    /// The daemon that listens at `socket`.
    ///
    /// # Errors
    /// `Io` where nobody listens.
    pub(in crate::lifecycle) fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .map_err(|error| Error::io(format!("{}: nobody answers", socket.display()), error))?;
        let peer = socket_peercred(&stream).ok();
        let daemon = peer.and_then(|peer| ProcessId::of(peer.pid.as_raw_nonzero().get()).ok());
        Ok(Self::over(stream, daemon))
    }

    /// The process at the other end, where it can be told.
    pub(in crate::lifecycle) fn daemon(&self) -> Option<ProcessId> {
        self.daemon
    }

    /// The process `daemon` at the other end of `stream`.
    pub(in crate::lifecycle) fn over(stream: UnixStream, daemon: Option<ProcessId>) -> Self {
        Self { stream: BufReader::new(stream), daemon }
    }

    /// Takes a lease for as long as this connection is open; `false` where the mount is on its way
    /// out.
    ///
    /// # Errors
    /// `Io` where the daemon does not answer.
    pub(in crate::lifecycle) fn hold(&mut self) -> Result<bool> {
        self.ask(Request::Hold).map(|answer| answer == Some(Answer::Done))
    }

    /// The same, for as long as `wait_longer`, which is called now and then, says so.
    ///
    /// # Errors
    /// `TimedOut`; `Io`.
    pub(in crate::lifecycle) fn hold_while(
        &mut self,
        wait_longer: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        match self.send(Request::Hold) {
            Err(error) if is_end(&error) => return Ok(false),
            sent => sent?,
        }
        Ok(Answer::decode(&self.line_while(wait_longer)?) == Some(Answer::Done))
    }

    /// Asks the daemon to unmount for `callers`, whose leases it ends where others hold the mount;
    /// returns its answer, or `None` where the connection ended without one.
    ///
    /// # Errors
    /// `TimedOut`; `Io`.
    pub(in crate::lifecycle) fn unmount(
        &mut self,
        how: Detach,
        callers: &[ProcessId],
        limit: Duration,
    ) -> Result<Option<UnmountAnswer>> {
        match self.send(Request::Unmount(UnmountRequest { how, callers: callers.to_vec() })) {
            Err(error) if is_end(&error) => return Ok(None),
            sent => sent?,
        }
        match UnmountAnswer::decode(&self.line(Some(limit))?) {
            Some(UnmountAnswer::Begun) => Ok(UnmountAnswer::decode(&self.line(Some(UNMOUNT))?)),
            answer => Ok(answer),
        }
    }

    /// Lets the mount hold as long as `process` lives, too; `false` where it has ended.
    ///
    /// # Errors
    /// `NotFound` where the process has ended already; `Io` where the daemon does not answer.
    pub(in crate::lifecycle) fn watch(&mut self, process: ProcessId) -> Result<bool> {
        match self.ask(Request::Watch(process))? {
            Some(Answer::NoProcess) => {
                let context = format!("process {} has ended already", process.pid());
                Err(Error::new(Kind::NotFound, context))
            }
            answer => Ok(answer == Some(Answer::Done)),
        }
    }

    /// Lets the mount hold until somebody unmounts it; `false` where it has ended.
    ///
    /// # Errors
    /// `Io` where the daemon does not answer.
    pub(in crate::lifecycle) fn keep(&mut self) -> Result<bool> {
        self.ask(Request::Keep).map(|answer| answer == Some(Answer::Done))
    }

    /// Ends what `watch` began.
    ///
    /// # Errors
    /// `Io` where the daemon does not answer.
    pub(in crate::lifecycle) fn release(&mut self, process: ProcessId) -> Result<()> {
        self.ask(Request::Release(process)).map(|_| ())
    }

    /// Gives the lease back; returns when the mount is gone, or at once if it stays.
    ///
    /// # Errors
    /// `Io` where the daemon does not answer.
    pub(in crate::lifecycle) fn leave(mut self) -> Result<LeaseEnd> {
        match self.send(Request::Leave) {
            // It has ended, and may have told its numbers before.
            Err(error) if is_end(&error) => {}
            sent => sent?,
        }
        let line = self.line(Some(ANSWER))?;
        Ok(match Answer::decode(&line) {
            Some(Answer::Held | Answer::Lingering) => LeaseEnd::Stays,
            _ if line.is_empty() => return self.lost(),
            _ => LeaseEnd::Gone(line.trim_end().to_owned()),
        })
    }

    /// A process that is killed closes one file after the other, and its mount looks alive until
    /// the last; only then can it be cleared.
    fn lost(self) -> Result<LeaseEnd> {
        if let Some(daemon) = self.daemon {
            daemon.wait_for_end(Some(EXIT))?;
        }
        Ok(LeaseEnd::Lost)
    }

    /// Who holds the mount.
    ///
    /// # Errors
    /// `Io` where the daemon does not answer.
    pub(in crate::lifecycle) fn status(&mut self, limit: Duration) -> Result<Status> {
        self.send(Request::Status)?;
        let line = self.line(Some(limit))?;
        serde_json::from_str(&line)
            .map_err(|error| Error::new(Kind::Io, "the daemon answers oddly").with_source(error))
    }

    /// What the mount served so far, as a line of JSON.
    ///
    /// # Errors
    /// `TimedOut`; `Io`.
    pub(in crate::lifecycle) fn numbers(&mut self) -> Result<String> {
        self.send(Request::Numbers)?;
        self.line(Some(ANSWER))
    }

    /// Waits until the daemon ends the connection, which it does when the mount is gone, at most
    /// `limit`.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn wait_until_gone(&mut self, limit: Duration) -> Result<()> {
        // It has answered all that it was asked, so there is no line to come.
        match self.line(Some(limit)) {
            Err(error) if error.kind() == Kind::TimedOut => Ok(()),
            line => line.map(drop),
        }
    }

    /// Waits until the daemon, which has unmounted, has reported what it served, and has exited;
    /// one that has unmounted lazily may have files open that it goes on to serve. Returns whether
    /// it has done so within `limit`.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn wait_for_exit(
        mut self,
        how: Detach,
        limit: Duration,
    ) -> Result<bool> {
        self.wait_until_gone(limit)?;
        match (how, self.daemon) {
            (Detach::IfIdle, Some(daemon)) => daemon.wait_for_end(Some(limit)),
            _ => Ok(true),
        }
    }

    /// The next line, whole; empty at the end of the connection, or of the daemon's first thread,
    /// which is the one that answers: others of a killed daemon may go on, with the connection
    /// open. Waits without end where there is no limit.
    ///
    /// # Errors
    /// `TimedOut`; `Io`.
    pub(in crate::lifecycle) fn line(&mut self, limit: Option<Duration>) -> Result<String> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        self.line_while(&mut || deadline.is_none_or(|deadline| Instant::now() < deadline))
    }

    fn line_while(&mut self, wait_longer: &mut dyn FnMut() -> bool) -> Result<String> {
        let failed = |error| Error::io("the daemon does not answer", error);
        let (mut line, mut is_killed, mut is_over) = (Vec::new(), false, false);
        let mut slice = FIRST_SLICE;
        loop {
            self.stream.get_ref().set_read_timeout(Some(slice)).map_err(failed)?;
            match self.stream.read_until(b'\n', &mut line) {
                Ok(_) => {
                    let text = String::from_utf8(line);
                    return text.map_err(|error| failed(std::io::Error::other(error)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // A daemon that was killed with unread requests.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Ok(String::new());
                }
                Err(error) => return Err(failed(error)),
            }
            // Both were seen before that, so what came until then would have been read.
            if is_killed {
                return Ok(String::new());
            }
            if is_over {
                return Err(Error::new(Kind::TimedOut, "the daemon does not answer"));
            }
            is_killed = self.daemon.is_some_and(ProcessId::is_killed);
            is_over = !wait_longer();
            slice = match is_over {
                true => SHORTEST,
                false => (slice * 2).min(SLICE),
            };
        }
    }

    /// `None` at the end of the connection.
    fn ask(&mut self, request: Request) -> Result<Option<Answer>> {
        match self.send(request) {
            // The daemon is gone, which the end of its answers tells, too.
            Err(error) if is_end(&error) => return Ok(None),
            sent => sent?,
        }
        Ok(Answer::decode(&self.line(Some(ANSWER))?))
    }

    fn send(&mut self, request: Request) -> Result<()> {
        self.stream
            .get_mut()
            .write_all(request.encode().as_bytes())
            .map_err(|error| Error::io("the daemon does not listen", error))
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}

fn is_end(error: &Error) -> bool {
    use std::error::Error as _;
    let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
