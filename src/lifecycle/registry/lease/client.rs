//! The client's side of a lease: a connection to the daemon.
//!
//! Dropping the connection returns the lease.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, BorrowedFd};

use super::super::{EXIT_TIMEOUT, UNMOUNT_TIMEOUT};
use super::message::{
    Answer, DirectAnswer, Health, Request, Status, UnmountAnswer, UnmountRequest,
};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::Detach;
use crate::log::Message;
use crate::os::process::ProcessId;
use crate::os::unix_socket;

/// How long a daemon may take to answer. The thread that answers does nothing else, except to
/// unmount with fusermount.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The timeout of the first read, after which the client checks whether to go on waiting. It
/// doubles after each check. Most answers take less, even those of a daemon that is mounting.
const READ_TIMEOUT_FIRST: Duration = Duration::from_millis(20);

const READ_TIMEOUT_MAX: Duration = Duration::from_millis(250);

/// The timeout of the last read: a socket does not accept zero.
const READ_TIMEOUT_LAST: Duration = Duration::from_millis(1);

/// A connection to a daemon, with or without a lease.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
    /// The process at the other end; `None` if it could not be identified.
    daemon: Option<ProcessId>,
}

/// What happened to a mount when a lease on it was returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MountFate {
    /// It is unmounted. The summary of what was served is empty if the daemon has printed that, and
    /// so are the messages that it kept.
    Unmounted { summary: String, messages: Vec<Message> },
    /// Its daemon was killed, or ended without an answer.
    Lost,
    /// It stays: it has other holders, stays until it is unmounted explicitly, or lingers.
    Stays,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldAnswer {
    Granted,
    /// The daemon is about to unmount; it closes the connection when it has.
    Refused,
    /// The daemon closed the connection without an answer, for example because it was killed.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prepared {
    Ready,
    NotYet,
    Never,
    /// It does not know the request.
    Unknown,
}

impl Client {
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).map_err(|error| {
            Error::io(format!("{}: cannot connect to the daemon", socket.display()), error)
        })?;
        let peer = unix_socket::credentials_of_peer(&stream).ok();
        let daemon = peer.and_then(|peer| ProcessId::of(peer.pid?).ok());
        Ok(Self::new(stream, daemon))
    }

    pub(crate) fn daemon(&self) -> Option<ProcessId> {
        self.daemon
    }

    pub(crate) fn new(stream: UnixStream, daemon: Option<ProcessId>) -> Self {
        Self { stream: BufReader::new(stream), daemon }
    }

    /// Takes a lease for as long as this connection is open; `false` if the daemon refuses it
    /// because it is about to unmount, or closes the connection.
    pub(crate) fn hold(&mut self) -> Result<bool> {
        self.ask(Request::Hold).map(|answer| answer == Some(Answer::Done))
    }

    /// Like `hold`, but with a time limit of the caller: waits for the answer until
    /// `keeps_waiting` returns false. Calls it 20 ms after the request, and then at intervals that
    /// grow to 250 ms.
    pub(crate) fn hold_while(
        &mut self,
        keeps_waiting: &mut dyn FnMut() -> bool,
    ) -> Result<HoldAnswer> {
        self.send_unless_closed(Request::Hold)?;
        Ok(match self.read_answer_while(keeps_waiting)? {
            Some(Answer::Done) => HoldAnswer::Granted,
            Some(_) => HoldAnswer::Refused,
            None => HoldAnswer::Closed,
        })
    }

    /// Asks the daemon to unmount for `callers`; if the mount has other holders, it only ends the
    /// leases of `callers`. Returns its answer, or `None` if the connection ended without one. The
    /// daemon has to begin within `timeout`; unmounting may take `UNMOUNT_TIMEOUT` after that.
    pub(crate) fn unmount(
        &mut self,
        how: Detach,
        callers: &[ProcessId],
        timeout: Duration,
    ) -> Result<Option<UnmountAnswer>> {
        match self.send(Request::Unmount(UnmountRequest { how, callers: callers.to_vec() })) {
            Err(error) if is_closed(&error) => return Ok(None),
            sent => sent?,
        }
        match UnmountAnswer::decode(&self.read_line(Some(timeout))?) {
            Some(UnmountAnswer::Begun) => {
                Ok(UnmountAnswer::decode(&self.read_line(Some(UNMOUNT_TIMEOUT))?))
            }
            answer => Ok(answer),
        }
    }

    /// Takes a lease that ends with `process`; `false` as for `hold`.
    ///
    /// Fails with `NotFound` if the process has ended already; `Io` if the daemon does not answer.
    pub(crate) fn watch(&mut self, process: ProcessId) -> Result<bool> {
        match self.ask(Request::Watch(process))? {
            Some(Answer::NoProcess) => {
                let context = format!("process {} has already exited", process.pid());
                Err(Error::new(Kind::NotFound, context))
            }
            answer => Ok(answer == Some(Answer::Done)),
        }
    }

    /// Keeps the mount until it is unmounted explicitly, even without leases; `false` as for
    /// `hold`.
    pub(crate) fn keep_until_unmount(&mut self) -> Result<bool> {
        self.ask(Request::KeepUntilUnmount).map(|answer| answer == Some(Answer::Done))
    }

    /// Returns the lease that `watch` took for `process`.
    pub(crate) fn unwatch(&mut self, process: ProcessId) -> Result<()> {
        self.ask(Request::Unwatch(process)).map(|_| ())
    }

    /// Returns the lease of this connection. If the mount stays, returns at once; if not, when it
    /// is unmounted.
    pub(crate) fn leave(mut self) -> Result<MountFate> {
        // It may have sent its summary before it closed the connection.
        self.send_unless_closed(Request::Leave)?;
        // If this is the last lease, the answer comes after the unmount.
        let line = self.read_line(Some(UNMOUNT_TIMEOUT))?;
        Ok(match Answer::decode(&line) {
            Some(Answer::Held | Answer::Lingering) => MountFate::Stays,
            _ if line.is_empty() => {
                // A killed process closes its files one by one. Its mount looks alive until the
                // last one is closed, and can be cleaned up only then.
                if let Some(daemon) = self.daemon {
                    daemon.wait_for_end(Some(EXIT_TIMEOUT))?;
                }
                MountFate::Lost
            }
            _ => {
                // A daemon of an older version sends no messages, and closes the connection.
                let messages = self.read_line(Some(ANSWER_TIMEOUT)).unwrap_or_default();
                let messages = serde_json::from_str(&messages).unwrap_or_default();
                MountFate::Unmounted { summary: line.trim_end().to_owned(), messages }
            }
        })
    }

    /// The holders of the mount, if the daemon answers within `timeout`; `None` if it closes the
    /// connection instead. A client with a lease may get the summary of the mount before that.
    pub(crate) fn status(&mut self, timeout: Duration) -> Result<Option<Status>> {
        self.send_unless_closed(Request::Status)?;
        let line = self.read_line(Some(timeout))?;
        Ok(serde_json::from_str(&line).ok())
    }

    /// How the mount serves its readers, if the daemon answers within `timeout`. An older version
    /// closes the connection: `None`.
    pub(crate) fn health(&mut self, timeout: Duration) -> Result<Option<Health>> {
        self.send_unless_closed(Request::Health)?;
        let line = self.read_line(Some(timeout))?;
        Ok(serde_json::from_str(&line).ok())
    }

    /// The statistics of the mount so far, as a line of JSON; empty if the daemon closes the
    /// connection instead.
    pub(crate) fn stats(&mut self) -> Result<String> {
        self.send_unless_closed(Request::Stats)?;
        self.read_line(Some(ANSWER_TIMEOUT))
    }

    /// Makes the daemon prepare direct reads. `Unknown` if it is of a version without them,
    /// which closes the connection. So the connection must hold no lease.
    pub(crate) fn prepare_direct_reads(&mut self) -> Result<Prepared> {
        self.send_unless_closed(Request::Direct)?;
        // read(2) discards descriptors that come with the line.
        Ok(match self.read_line(Some(ANSWER_TIMEOUT))? {
            line if line == DirectAnswer::Later.encode().0 => Prepared::NotYet,
            line if line == DirectAnswer::Never.encode().0 => Prepared::Never,
            line if line.starts_with("direct ") => Prepared::Ready,
            _ => Prepared::Unknown,
        })
    }

    /// Waits until the daemon closes the connection, which it does when it has unmounted, or until
    /// `timeout` has passed.
    pub(crate) fn wait_until_closed(&mut self, timeout: Duration) -> Result<()> {
        // All requests are answered, so no other line follows.
        match self.read_line(Some(timeout)) {
            Err(error) if error.kind() == Kind::TimedOut => Ok(()),
            line => line.map(drop),
        }
    }

    /// Waits until the daemon, which has unmounted, has exited; returns whether it has. After a
    /// lazy unmount it may serve open files for long, so this waits only until it has closed the
    /// connection. Each of the two waits takes at most `timeout`.
    pub(crate) fn wait_for_exit(mut self, how: Detach, timeout: Duration) -> Result<bool> {
        self.wait_until_closed(timeout)?;
        match (how, self.daemon) {
            (Detach::IfIdle, Some(daemon)) => daemon.wait_for_end(Some(timeout)),
            _ => Ok(true),
        }
    }

    /// The next whole line; empty if the connection ends, or the main thread of the daemon, which
    /// is the one that answers. Other threads of a killed daemon may run on and keep the
    /// connection open. Without `timeout` this waits for ever.
    pub(crate) fn read_line(&mut self, timeout: Option<Duration>) -> Result<String> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        self.read_line_while(&mut || deadline.is_none_or(|deadline| Instant::now() < deadline))
    }

    /// Like `read_line`, until `keeps_waiting` returns false, which is called between two reads.
    fn read_line_while(&mut self, keeps_waiting: &mut dyn FnMut() -> bool) -> Result<String> {
        let failed = |error| Error::io("the daemon does not answer", error);
        let (mut line, mut is_killed, mut has_timed_out) = (Vec::new(), false, false);
        let mut read_timeout = READ_TIMEOUT_FIRST;
        loop {
            self.stream.get_ref().set_read_timeout(Some(read_timeout)).map_err(failed)?;
            match self.stream.read_until(b'\n', &mut line) {
                Ok(_) => {
                    let text = String::from_utf8(line);
                    return text.map_err(|error| failed(std::io::Error::other(error)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The daemon was killed before it had read all requests.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Ok(String::new());
                }
                Err(error) => return Err(failed(error)),
            }
            // Both were set before this read, so it would have returned any answer sent until then.
            if is_killed {
                return Ok(String::new());
            }
            if has_timed_out {
                return Err(Error::new(Kind::TimedOut, "the daemon does not answer"));
            }
            is_killed = self.daemon.is_some_and(ProcessId::is_zombie);
            has_timed_out = !keeps_waiting();
            read_timeout = match has_timed_out {
                true => READ_TIMEOUT_LAST,
                false => (read_timeout * 2).min(READ_TIMEOUT_MAX),
            };
        }
    }

    /// Sends `request`; returns the answer, or `None` if the connection has ended.
    fn ask(&mut self, request: Request) -> Result<Option<Answer>> {
        self.send_unless_closed(request)?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        self.read_answer_while(&mut || Instant::now() < deadline)
    }

    fn read_answer_while(
        &mut self,
        keeps_waiting: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Answer>> {
        match Answer::decode(&self.read_line_while(keeps_waiting)?) {
            Some(Answer::TooManyClients) => {
                let context = "the daemon has as many clients as it can serve";
                Err(Error::new(Kind::Busy, context)
                    .with_hint("mount once per node, not once per task, or at another path"))
            }
            answer => Ok(answer),
        }
    }

    /// Like `send`, but succeeds if the daemon has closed the connection. What it sent before can
    /// still be read.
    fn send_unless_closed(&mut self, request: Request) -> Result<()> {
        match self.send(request) {
            Err(error) if is_closed(&error) => Ok(()),
            sent => sent,
        }
    }

    fn send(&mut self, request: Request) -> Result<()> {
        self.stream
            .get_mut()
            .write_all(request.encode().as_bytes())
            .map_err(|error| Error::io("cannot send to the daemon", error))
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}

fn is_closed(error: &Error) -> bool {
    use std::error::Error as _;
    let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client whose daemon has sent `lines` and has closed the connection.
    fn client_after(lines: &str) -> Client {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(lines.as_bytes()).unwrap();
        Client::new(ours, None)
    }

    #[test]
    fn a_daemon_that_unmounts_during_a_request_gives_no_status() {
        for lines in ["", "10 files read, 1 MiB\n"] {
            assert_eq!(client_after(lines).status(ANSWER_TIMEOUT).unwrap(), None, "{lines}");
        }
        assert_eq!(client_after("").stats().unwrap(), "");
        let status =
            client_after("{\"holders\":[],\"kept\":true}\n").status(ANSWER_TIMEOUT).unwrap();
        assert!(status.unwrap().until_unmount);
    }

    #[test]
    fn a_daemon_with_too_many_clients_is_not_taken_for_one_that_is_ending() {
        let hold = |lines| client_after(lines).hold_while(&mut || true);
        let full = hold(Answer::TooManyClients.encode()).unwrap_err();
        assert_eq!(full.kind(), Kind::Busy);
        assert_eq!(hold(Answer::Ending.encode()).unwrap(), HoldAnswer::Refused);
        assert_eq!(hold("").unwrap(), HoldAnswer::Closed);
    }

    #[test]
    fn a_daemon_that_does_not_know_direct_reads_prepares_none() {
        for (answer, prepared) in [
            ("", Prepared::Unknown),
            ("too many clients\n", Prepared::Unknown),
            ("direct later\n", Prepared::NotYet),
            ("direct none\n", Prepared::Never),
            ("direct 2\n", Prepared::Ready),
        ] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(answer.as_bytes()).unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(Client::new(ours, None).prepare_direct_reads().unwrap(), prepared);
        }
    }
}
