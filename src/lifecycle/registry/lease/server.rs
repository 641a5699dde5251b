//! The daemon's side of leases: connections, watched processes and answers.
//!
//! Invariants: nothing here blocks, so no client can delay another. Only connections of the user
//! of the mount and of root are accepted.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::event::{PollFd, PollFlags};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use super::message::{
    Answer, DirectAnswer, Health, HolderStatus, PENDING_INPUT_MAX, Request, Status, UnmountAnswer,
    UnmountRequest,
};
use crate::error::{Error, Result};
use crate::failpoint;
use crate::log::Message;
use crate::os::process::{ProcessId, Watch};
use crate::os::unix_socket;
use crate::units::processes;

/// The maximum number of open connections; others are refused. Each task on the node needs
/// one.
const CLIENTS_MAX: usize = 4096;

/// All leases of a mount.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// `None` if no client can connect: the mount is private, or already unmounted.
    listener: Option<UnixListener>,
    /// Connected clients, with or without a lease.
    clients: Vec<Connection>,
    /// Processes with a lease but without a connection.
    processes: Vec<(ProcessId, Watch)>,
    /// Whether the mount stays without leases until it is unmounted explicitly.
    until_unmount: bool,
    lease_requests_granted: u64,
    admission: Admission,
    /// Whether accept(2) failed, for example because there are no more descriptors. The listener
    /// stays readable then, so poll(2) on it would return at once.
    accept_failed: bool,
    /// Requests to unmount that the daemon has to answer.
    pending_unmounts: Vec<(ClientId, UnmountRequest)>,
    next_id: ClientId,
}

/// Which clients get a lease. It only becomes stricter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Admission {
    #[default]
    Open,
    /// Clients that have a lease, for example for a process that they start.
    HoldersOnly,
    Closed,
}

/// Answers requests that are not about leases.
pub(crate) trait Responder {
    fn stats(&self) -> String;

    fn health(&self) -> Health;

    /// What the library of `run --direct` needs.
    fn direct(&mut self) -> DirectAnswer<'_>;
}

impl Responder for () {
    fn stats(&self) -> String {
        String::new()
    }

    fn health(&self) -> Health {
        Health::default()
    }

    fn direct(&mut self) -> DirectAnswer<'_> {
        DirectAnswer::Never
    }
}

impl Leases {
    /// No leases yet; clients connect to `listener`.
    pub(crate) fn new(listener: Option<UnixListener>) -> Result<Self> {
        if let Some(listener) = &listener {
            listener.set_nonblocking(true).map_err(failed)?;
        }
        Ok(Self { listener, ..Self::default() })
    }

    /// Grants a lease to the process at the other end of `stream`.
    pub(crate) fn grant_to(&mut self, stream: UnixStream) -> Result<()> {
        stream.set_nonblocking(true).map_err(failed)?;
        let pid = unix_socket::credentials_of_peer(&stream).ok().and_then(|peer| peer.pid);
        self.add(stream, pid, LeaseState::Held);
        Ok(())
    }

    fn add(&mut self, stream: UnixStream, pid: Option<i32>, lease: LeaseState) {
        self.clients.push(Connection::new(self.next_id, stream, pid, lease));
        self.next_id = self.next_id.next();
    }

    /// Grants a lease to `process`, unless it has one; returns whether it is alive.
    pub(crate) fn watch_process(&mut self, process: ProcessId) -> Result<bool> {
        // A script may ask for the same mount many times.
        if self.processes.iter().any(|(watched, _)| *watched == process) {
            return Ok(process.is_alive());
        }
        match process.watch()? {
            Watch::Ended => Ok(false),
            watch => {
                self.processes.push((process, watch));
                Ok(true)
            }
        }
    }

    pub(crate) fn keep_until_unmount(&mut self) {
        self.until_unmount = true;
    }

    /// Whether the mount stays until it is unmounted explicitly, even without leases.
    pub(crate) fn stays_until_unmount(&self) -> bool {
        self.until_unmount
    }

    pub(crate) fn has_lease(&self) -> bool {
        !self.processes.is_empty()
            || self.clients.iter().any(|client| client.lease == LeaseState::Held)
    }

    /// How many requests for a lease were granted so far, including those of clients that had one.
    /// A new one is a sign of use, as a request of the kernel is.
    pub(crate) fn lease_requests_granted(&self) -> u64 {
        self.lease_requests_granted
    }

    /// Whether `receive_requests` has to be called periodically, because poll(2) cannot report
    /// every change.
    pub(crate) fn needs_timer(&self) -> bool {
        self.accept_failed || self.processes.iter().any(|(_, watch)| watch.descriptor().is_none())
    }

    /// Whether a client has returned its lease and waits until the mount is unmounted.
    pub(crate) fn has_leaving_client(&self) -> bool {
        self.clients.iter().any(|client| client.lease == LeaseState::Leaving)
    }

    /// Whether a client with a lease is still connected.
    pub(crate) fn has_connected_holder(&self) -> bool {
        self.clients.iter().any(|client| client.lease == LeaseState::Held && client.is_open)
    }

    /// The mount will be unmounted soon. From now on only clients with a lease get another. Others
    /// wait until it is unmounted, then mount again.
    pub(crate) fn admit_only_holders(&mut self) {
        self.admission = self.admission.max(Admission::HoldersOnly);
    }

    pub(crate) fn admit_none(&mut self) {
        self.admission = Admission::Closed;
    }

    fn admits(&self, client: &Connection) -> bool {
        match self.admission {
            Admission::Open => true,
            Admission::HoldersOnly => client.lease == LeaseState::Held,
            Admission::Closed => false,
        }
    }

    /// Closes all connections after the mount is unmounted, which their clients wait for. Sends
    /// `summary` and `messages` to each client that has returned its lease, and returns whether
    /// there is one. A client that still has a lease gets an empty line, because the daemon prints
    /// the summary.
    pub(crate) fn close(&mut self, summary: &str, messages: &[Message]) -> bool {
        self.admit_none();
        let mut had_leaving_client = false;
        for client in self.clients.iter_mut().filter(|client| client.lease != LeaseState::None) {
            let is_leaving = client.lease == LeaseState::Leaving;
            client.send(&match is_leaving {
                true => {
                    format!("{summary}\n{}\n", serde_json::to_string(messages).unwrap_or_default())
                }
                false => "\n".to_owned(),
            });
            had_leaving_client |= is_leaving;
        }
        self.listener = None;
        self.clients.clear();
        self.processes.clear();
        had_leaving_client
    }

    /// The descriptors to poll, in no particular order.
    pub(crate) fn watched(&self) -> Vec<PollFd<'_>> {
        let listener = self.listener.iter().filter(|_| !self.accept_failed);
        let listener = listener.map(|listener| PollFd::new(listener, PollFlags::IN));
        let clients = self.clients.iter().map(|client| PollFd::new(&client.stream, PollFlags::IN));
        let processes = self.processes.iter().filter_map(|(_, watch)| watch.descriptor());
        listener
            .chain(clients)
            .chain(processes.map(|process| PollFd::new(process, PollFlags::IN)))
            .collect()
    }

    /// Receives all requests and answers them, as `receive_requests` and `answer_requests` do.
    pub(crate) fn serve_requests(&mut self, lingers: bool, responder: &mut dyn Responder) {
        self.receive_requests();
        self.answer_requests(lingers, responder);
    }

    /// Receives requests, and drops the leases of processes that have ended.
    pub(crate) fn receive_requests(&mut self) {
        self.accept();
        self.processes.retain(|(process, watch)| !watch.has_ended(*process));
        self.clients.iter_mut().for_each(Connection::receive);
    }

    /// Answers the requests received so far. `lingers` is whether the mount stays for a while
    /// without leases; `responder` answers what is not about leases.
    pub(crate) fn answer_requests(&mut self, lingers: bool, responder: &mut dyn Responder) {
        for index in 0..self.clients.len() {
            while self.clients[index].is_open
                && let Some(line) = self.clients[index].next_line()
            {
                self.answer(index, &line, responder);
            }
        }
        self.clients.retain(|client| client.is_open);
        self.answer_leaving_clients(lingers);
    }

    fn accept(&mut self) {
        while let Some(accepted) = self.listener.as_ref().map(UnixListener::accept) {
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    let is_transient =
                        matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                    self.accept_failed = !is_transient;
                    return;
                }
            };
            let Ok(peer) = unix_socket::credentials_of_peer(&stream) else {
                continue;
            };
            let is_allowed = peer.is_own() || peer.uid == 0;
            if !is_allowed || stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() >= CLIENTS_MAX {
                let _ = (&stream).write_all(Answer::TooManyClients.encode().as_bytes());
            } else {
                self.add(stream, peer.pid, LeaseState::None);
            }
        }
    }

    fn answer(&mut self, index: usize, line: &str, responder: &mut dyn Responder) {
        let Ok(request) = Request::decode(line) else {
            self.clients[index].is_open = false;
            return;
        };
        let answer = match &request {
            Request::Status => {
                let status = Status { health: responder.health(), ..self.status() };
                let status = serde_json::to_string(&status).unwrap_or_default();
                return self.clients[index].send(&(status + "\n"));
            }
            Request::Health => {
                let health = serde_json::to_string(&responder.health()).unwrap_or_default();
                return self.clients[index].send(&(health + "\n"));
            }
            Request::Stats => {
                failpoint::panic_at("lease");
                return self.clients[index].send(&(responder.stats() + "\n"));
            }
            Request::Direct => {
                let answer = responder.direct();
                let (line, descriptors) = answer.encode();
                return self.clients[index].send_with(&line, descriptors);
            }
            Request::Leave => {
                self.clients[index].lease = LeaseState::Leaving;
                return;
            }
            Request::Unwatch(process) => {
                self.processes.retain(|(watched, _)| watched != process);
                Answer::Done
            }
            Request::Unmount(request) => {
                self.pending_unmounts.push((self.clients[index].id, request.clone()));
                return;
            }
            Request::Hold | Request::Watch(_) | Request::KeepUntilUnmount
                if !self.admits(&self.clients[index]) =>
            {
                Answer::Ending
            }
            Request::Hold => {
                self.clients[index].lease = LeaseState::Held;
                Answer::Done
            }
            Request::Watch(process) => match self.watch_process(*process) {
                Ok(true) => Answer::Done,
                Ok(false) => Answer::NoProcess,
                Err(error) => {
                    crate::log::error(&error);
                    Answer::NoProcess
                }
            },
            Request::KeepUntilUnmount => {
                self.keep_until_unmount();
                Answer::Done
            }
        };
        let is_for_lease =
            matches!(request, Request::Hold | Request::Watch(_) | Request::KeepUntilUnmount);
        self.lease_requests_granted += u64::from(is_for_lease && answer == Answer::Done);
        self.clients[index].send(answer.encode());
    }

    /// Takes the oldest request to unmount that is not answered. The daemon answers it by
    /// `answer_unmount`.
    pub(crate) fn take_unmount_request(&mut self) -> Option<(ClientId, UnmountRequest)> {
        (!self.pending_unmounts.is_empty()).then(|| self.pending_unmounts.remove(0))
    }

    pub(crate) fn answer_unmount(&mut self, client: ClientId, answer: &UnmountAnswer) {
        if let Some(client) = self.clients.iter_mut().find(|candidate| candidate.id == client) {
            client.send(&answer.encode());
        }
    }

    /// Decides about a request of `callers` to unmount. Returns `None` if no other process holds
    /// the mount, so that it can be unmounted. If others hold it, ends the leases of `callers`, and
    /// the promise to keep the mount until it is unmounted; returns the answer.
    ///
    /// A client whose process cannot be identified counts as another holder, because its connection
    /// is open.
    pub(crate) fn release_callers(&mut self, callers: &[ProcessId]) -> Option<UnmountAnswer> {
        let is_caller = |pid: i32| callers.iter().any(|caller| caller.pid() == pid);
        let (own, others): (Vec<_>, Vec<_>) =
            self.status().holders.into_iter().partition(|holder| is_caller(holder.pid));
        let others = match (others.as_slice(), self.count_unidentified()) {
            ([], 0) => return None,
            ([], count) => unidentified(count),
            (others, 0) => HolderStatus::named(others),
            (others, count) => {
                format!("{} and {}", HolderStatus::named(others), unidentified(count))
            }
        };
        if own.is_empty() && !self.until_unmount {
            return Some(UnmountAnswer::Refused(others));
        }
        self.processes.retain(|(process, _)| !callers.contains(process));
        self.until_unmount = false;
        Some(UnmountAnswer::Released(others))
    }

    /// The number of clients with a lease whose process cannot be identified.
    fn count_unidentified(&self) -> usize {
        let clients = self.clients.iter().filter(|client| client.lease == LeaseState::Held);
        clients.filter(|client| client.process().is_none()).count()
    }

    pub(crate) fn listen_at(&mut self, listener: UnixListener) -> Result<()> {
        listener.set_nonblocking(true).map_err(failed)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Answers the clients that have returned their leases, if the mount stays. If it does not,
    /// they wait for the end of their connections.
    fn answer_leaving_clients(&mut self, lingers: bool) {
        let answer = match (self.has_lease() || self.until_unmount, lingers) {
            _ if self.admission == Admission::Closed => return,
            (true, _) => Answer::Held,
            (false, true) => Answer::Lingering,
            (false, false) => return,
        };
        for client in self.clients.iter_mut().filter(|client| client.lease == LeaseState::Leaving) {
            client.lease = LeaseState::None;
            client.send(answer.encode());
        }
    }

    /// The status, without holders that cannot be identified.
    fn status(&self) -> Status {
        let clients = self.clients.iter().filter(|client| client.lease == LeaseState::Held);
        let clients = clients.filter_map(Connection::process);
        let mut holders: Vec<_> = clients
            .chain(self.processes.iter().map(|(process, _)| *process))
            .map(|process| HolderStatus { pid: process.pid(), name: process.name() })
            .collect();
        holders.sort_by_key(|holder| holder.pid);
        holders.dedup();
        Status { holders, until_unmount: self.until_unmount, health: Health::default() }
    }
}

/// How many bytes to read at once; most requests are shorter.
const READ_SIZE: usize = 160;

/// The number of a client, which no other client of the daemon has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientId(u64);

impl ClientId {
    fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Whether the client has a lease of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseState {
    /// It has asked for none, or has returned it and knows that the mount stays.
    None,
    /// It holds the mount as long as the connection is open.
    Held,
    /// It has returned its lease and waits for the answer whether the mount stays, or for the end
    /// of the connection.
    Leaving,
}

#[derive(Debug)]
struct Connection {
    id: ClientId,
    stream: UnixStream,
    /// The process at the other end, if it is known.
    pid: Option<i32>,
    lease: LeaseState,
    is_open: bool,
    /// Bytes received that belong to no answered request.
    received: VecDeque<u8>,
}

impl Connection {
    /// A connection over `stream`, which must not block.
    fn new(id: ClientId, stream: UnixStream, pid: Option<i32>, lease: LeaseState) -> Self {
        Self { id, stream, pid, lease, is_open: true, received: VecDeque::new() }
    }

    /// The process at the other end; `None` if this PID namespace does not show it, or if it has
    /// exited and another process has the connection open.
    fn process(&self) -> Option<ProcessId> {
        ProcessId::of(self.pid?).ok()
    }

    /// Reads all bytes received, and detects the end of the connection.
    fn receive(&mut self) {
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
    fn next_line(&mut self) -> Option<String> {
        let end = self.received.iter().position(|&byte| byte == b'\n')?;
        let line = self.received.drain(..=end).take(end).collect();
        Some(String::from_utf8(line).unwrap_or_default())
    }

    /// Sends `line`. A client that does not read even these few bytes is disconnected.
    fn send(&mut self, line: &str) {
        self.is_open &= self.stream.write_all(line.as_bytes()).is_ok();
    }

    fn send_with(&mut self, line: &str, descriptors: &[BorrowedFd<'_>]) {
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

/// The text for `count` holders that cannot be identified, for example in the outer PID namespace.
fn unidentified(count: usize) -> String {
    format!("{count} {} that cannot be identified", processes(count))
}

fn failed(error: std::io::Error) -> Error {
    Error::io("cannot listen for requests", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_cannot_be_identified_keeps_its_lease() {
        let mut leases = Leases::new(None).unwrap();
        let (_client, daemon) = UnixStream::pair().unwrap();
        leases.grant_to(daemon).unwrap();
        let own = ProcessId::own().unwrap();
        assert_eq!(leases.release_callers(&[own]), None, "the caller is the only holder");
        // As the kernel reports a process of the outer PID namespace.
        leases.clients[0].pid = None;
        let refused = UnmountAnswer::Refused("1 process that cannot be identified".to_owned());
        assert_eq!(leases.release_callers(&[own]), Some(refused));
        leases.watch_process(own).unwrap();
        let released = UnmountAnswer::Released("1 process that cannot be identified".to_owned());
        assert_eq!(leases.release_callers(&[own]), Some(released));
        assert!(leases.has_lease());
    }

    #[test]
    fn counts_only_leases_that_were_granted() {
        let mut leases = Leases::new(None).unwrap();
        let (mut client, daemon) = UnixStream::pair().unwrap();
        leases.grant_to(daemon).unwrap();
        client.write_all(b"hold\nstatus\nkeep\nnumbers\n").unwrap();
        leases.serve_requests(false, &mut ());
        assert_eq!(leases.lease_requests_granted(), 2);
        leases.admit_none();
        client.write_all(b"hold\n").unwrap();
        leases.serve_requests(false, &mut ());
        assert_eq!(leases.lease_requests_granted(), 2);
    }

    /// Like a signal that arrives between the two calls.
    #[test]
    fn a_request_that_was_received_is_answered_by_what_holds_then() {
        let mut leases = Leases::new(None).unwrap();
        let (mut client, daemon) = UnixStream::pair().unwrap();
        daemon.set_nonblocking(true).unwrap();
        leases.add(daemon, None, LeaseState::None);
        client.write_all(b"hold\n").unwrap();
        leases.receive_requests();
        leases.admit_only_holders();
        leases.answer_requests(false, &mut ());
        assert!(!leases.has_lease());
        assert_eq!(leases.lease_requests_granted(), 0);
    }
}
