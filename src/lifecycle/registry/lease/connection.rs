//! The daemon's end of a connection to one client.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use super::message::{DirectAnswer, PENDING_INPUT_MAX};
use crate::os::process::ProcessId;
use crate::os::unix_socket;

/// How many bytes to read at once; most requests are shorter.
const READ_SIZE: usize = 160;

/// The number of a client, which no other client of the daemon has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientId(u64);

impl ClientId {
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Whether the client has a lease of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseState {
    /// It has asked for none, or has returned it and knows that the mount stays.
    None,
    /// It holds the mount as long as the connection is open.
    Held,
    /// It has returned its lease and waits for the answer whether the mount stays, or for the end
    /// of the connection.
    Leaving,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ClientId,
    pub(super) stream: UnixStream,
    /// The process at the other end, if it is known.
    pub(super) pid: Option<i32>,
    pub(super) lease: LeaseState,
    pub(super) is_open: bool,
    /// Bytes received that belong to no answered request.
    received: VecDeque<u8>,
}

impl Connection {
    /// A connection over `stream`, which must not block.
    pub(super) fn new(
        id: ClientId,
        stream: UnixStream,
        pid: Option<i32>,
        lease: LeaseState,
    ) -> Self {
        Self { id, stream, pid, lease, is_open: true, received: VecDeque::new() }
    }

    /// The process at the other end; `None` if this PID namespace does not show it, or if it has
    /// exited and another process has the connection open.
    pub(super) fn process(&self) -> Option<ProcessId> {
        ProcessId::of(self.pid?).ok()
    }

    /// Reads all bytes received, and detects the end of the connection.
    pub(super) fn receive(&mut self) {
        let mut bytes = [0; READ_SIZE];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return self.is_open = false,
                Ok(count) => self.received.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.is_open = false,
            }
            if self.received.len() > PENDING_INPUT_MAX {
                return self.is_open = false;
            }
        }
    }

    /// Takes the next whole line that was received, without its newline.
    pub(super) fn next_line(&mut self) -> Option<String> {
        let end = self.received.iter().position(|&byte| byte == b'\n')?;
        let line = self.received.drain(..=end).take(end).collect();
        Some(String::from_utf8(line).unwrap_or_default())
    }

    /// Sends `line`. A client that does not read even these few bytes is disconnected.
    pub(super) fn send(&mut self, line: &str) {
        self.is_open &= self.stream.write_all(line.as_bytes()).is_ok();
    }

    pub(super) fn send_with(&mut self, line: &str, descriptors: &[BorrowedFd<'_>]) {
        if descriptors.is_empty() {
            return self.send(line);
        }
        match unix_socket::send_with(&self.stream, line.as_bytes(), descriptors) {
            // The user has too many descriptors in unread messages (unix(7), ETOOMANYREFS).
            Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::AGAIN) => {
                self.send(&DirectAnswer::Later.encode().0);
            }
            sent => self.is_open &= sent == Ok(line.len()),
        }
    }
}
