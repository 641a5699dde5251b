//! The daemon's side of leases: connections, watched processes and answers.
//!
//! Invariants: nothing here blocks, so no client can delay another. Only connections of the user
//! of the mount and of root are accepted.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::event::{PollFd, PollFlags};
use rustix::process::geteuid;

use super::message::{
    Answer, HolderStatus, REQUEST_MAX, Request, Status, UnmountAnswer, UnmountRequest,
};
use crate::error::{Error, Result};
use crate::failpoint;
use crate::os::peer_credentials;
use crate::os::process::{ProcessId, Watch};

/// The maximum number of open connections; others are refused. Each task on the node needs
/// one.
const CLIENTS_MAX: usize = 4096;

/// All leases of a mount.
#[derive(Debug, Default)]
pub(in crate::lifecycle) struct Leases {
    /// `None` if no client can connect: the mount is private, or already unmounted.
    listener: Option<UnixListener>,
    clients: Vec<Connection>,
    processes: Vec<(ProcessId, Watch)>,
    kept: bool,
    /// Leases granted so far, including those granted again to a client that had one.
    granted: u64,
    /// Whether only clients with a lease get another.
    refuses_newcomers: bool,
    is_ending: bool,
    /// Whether accept(2) failed, for example because there are no more descriptors. The listener
    /// stays readable then, so poll(2) on it would return at once.
    accept_failed: bool,
    /// Requests to unmount that the daemon has to answer, with the number of the client.
    pending_unmounts: Vec<(u64, UnmountRequest)>,
    /// The number of the next client.
    next_number: u64,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    stream: UnixStream,
    /// The process at the other end, if it is known.
    pid: Option<i32>,
    /// Bytes received that belong to no answered request.
    received: VecDeque<u8>,
    lease: Lease,
    is_open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    None,
    Held,
    /// The client has returned its lease and waits to be told what happens to the mount.
    Leaving,
}

impl Leases {
    /// No leases yet; clients connect to `listener`.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn new(listener: Option<UnixListener>) -> Result<Self> {
        if let Some(listener) = &listener {
            listener.set_nonblocking(true).map_err(failed)?;
        }
        Ok(Self { listener, ..Self::default() })
    }

    /// Grants a lease to the process at the other end of `stream`.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn grant_to(&mut self, stream: UnixStream) -> Result<()> {
        stream.set_nonblocking(true).map_err(failed)?;
        let pid = peer_credentials::of(&stream).ok().and_then(|peer| peer.pid);
        self.add(stream, pid, Lease::Held);
        Ok(())
    }

    fn add(&mut self, stream: UnixStream, pid: Option<i32>, lease: Lease) {
        let (number, received) = (self.next_number, VecDeque::new());
        self.next_number += 1;
        self.clients.push(Connection { number, stream, pid, received, lease, is_open: true });
    }

    /// Grants a lease to `process`, unless it has one; returns whether it is alive.
    ///
    /// # Errors
    /// `Io` if it cannot be watched.
    pub(in crate::lifecycle) fn watch(&mut self, process: ProcessId) -> Result<bool> {
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

    /// Keeps the mount until it is unmounted explicitly.
    pub(in crate::lifecycle) fn keep(&mut self) {
        self.kept = true;
    }

    /// Whether the mount stays until it is unmounted explicitly.
    pub(in crate::lifecycle) fn is_kept(&self) -> bool {
        self.kept
    }

    /// Whether any process has a lease.
    pub(in crate::lifecycle) fn is_held(&self) -> bool {
        !self.processes.is_empty() || self.clients.iter().any(|client| client.lease == Lease::Held)
    }

    /// The number of leases granted so far. A new one is a sign of use, as a request is.
    pub(in crate::lifecycle) fn given(&self) -> u64 {
        self.granted
    }

    /// Whether `serve_requests` has to be called periodically, because poll(2) cannot report every
    /// change.
    pub(in crate::lifecycle) fn needs_timer(&self) -> bool {
        self.accept_failed || self.processes.iter().any(|(_, watch)| watch.descriptor().is_none())
    }

    /// Whether a client has returned its lease and waits until the mount is unmounted.
    pub(in crate::lifecycle) fn is_awaited(&self) -> bool {
        self.clients.iter().any(|client| client.lease == Lease::Leaving)
    }

    /// Whether a client has not returned its lease and is still connected.
    pub(in crate::lifecycle) fn has_holding_client(&self) -> bool {
        self.clients.iter().any(|client| client.lease == Lease::Held && client.is_open)
    }

    /// The mount will be unmounted soon. From now on only clients with a lease get another, for
    /// example for a process that they start. Others wait until it is unmounted, then mount again.
    pub(in crate::lifecycle) fn refuse_newcomers(&mut self) {
        self.refuses_newcomers = true;
    }

    fn refuses(&self, client: usize) -> bool {
        self.is_ending || (self.refuses_newcomers && self.clients[client].lease != Lease::Held)
    }

    /// Grants no lease from now on.
    pub(in crate::lifecycle) fn refuse_all(&mut self) {
        self.is_ending = true;
    }

    /// Closes all connections after the mount is unmounted, which their clients wait for. Sends
    /// `summary` to each client that has a lease or has returned it; returns whether any has
    /// returned it.
    pub(in crate::lifecycle) fn close(&mut self, summary: &str) -> bool {
        self.refuse_all();
        let mut had_leaver = false;
        for client in self.clients.iter_mut().filter(|client| client.lease != Lease::None) {
            client.send(&format!("{summary}\n"));
            had_leaver |= client.lease == Lease::Leaving;
        }
        self.listener = None;
        self.clients.clear();
        self.processes.clear();
        had_leaver
    }

    /// The descriptors to poll, in no particular order.
    pub(in crate::lifecycle) fn watched(&self) -> Vec<PollFd<'_>> {
        let listener = self.listener.iter().filter(|_| !self.accept_failed);
        let listener = listener.map(|listener| PollFd::new(listener, PollFlags::IN));
        let clients = self.clients.iter().map(|client| PollFd::new(&client.stream, PollFlags::IN));
        let processes = self.processes.iter().filter_map(|(_, watch)| watch.descriptor());
        listener
            .chain(clients)
            .chain(processes.map(|process| PollFd::new(process, PollFlags::IN)))
            .collect()
    }

    /// Answers all requests, and drops the leases of processes that have ended. `lingers` is
    /// whether the mount stays for a while without leases; `numbers` returns the statistics.
    pub(in crate::lifecycle) fn serve_requests(
        &mut self,
        lingers: bool,
        numbers: &dyn Fn() -> String,
    ) {
        self.accept();
        self.processes.retain(|(process, watch)| !watch.has_ended(*process));
        for index in 0..self.clients.len() {
            self.clients[index].receive();
            while let Some(line) = self.clients[index].next_line() {
                self.answer(index, &line, numbers);
            }
        }
        self.clients.retain(|client| client.is_open);
        self.answer_leavers(lingers);
    }

    fn accept(&mut self) {
        while let Some(accepted) = self.listener.as_ref().map(UnixListener::accept) {
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    let is_passing =
                        matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                    self.accept_failed = !is_passing;
                    return;
                }
            };
            let Ok(peer) = peer_credentials::of(&stream) else {
                continue;
            };
            let is_allowed = peer.uid == geteuid().as_raw() || peer.uid == 0;
            if !is_allowed || stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() >= CLIENTS_MAX {
                let _ = (&stream).write_all(Answer::TooManyClients.encode().as_bytes());
            } else {
                self.add(stream, peer.pid, Lease::None);
            }
        }
    }

    fn answer(&mut self, index: usize, line: &str, numbers: &dyn Fn() -> String) {
        let Ok(request) = Request::decode(line) else {
            self.clients[index].is_open = false;
            return;
        };
        let answer = match &request {
            Request::Status => {
                let status = serde_json::to_string(&self.status()).unwrap_or_default();
                return self.clients[index].send(&(status + "\n"));
            }
            Request::Numbers => {
                failpoint::panic_at("lease");
                return self.clients[index].send(&(numbers() + "\n"));
            }
            Request::Leave => {
                self.clients[index].lease = Lease::Leaving;
                return;
            }
            Request::Release(process) => {
                self.processes.retain(|(watched, _)| watched != process);
                Answer::Done
            }
            Request::Unmount(request) => {
                self.pending_unmounts.push((self.clients[index].number, request.clone()));
                return;
            }
            Request::Hold | Request::Watch(_) | Request::Keep if self.refuses(index) => {
                Answer::Ending
            }
            Request::Hold => {
                self.clients[index].lease = Lease::Held;
                Answer::Done
            }
            Request::Watch(process) => match self.watch(*process) {
                Ok(true) => Answer::Done,
                Ok(false) => Answer::NoProcess,
                Err(error) => {
                    crate::log::error(&error);
                    Answer::NoProcess
                }
            },
            Request::Keep => {
                self.keep();
                Answer::Done
            }
        };
        let is_lease = matches!(request, Request::Hold | Request::Watch(_) | Request::Keep);
        self.granted += u64::from(is_lease && answer == Answer::Done);
        self.clients[index].send(answer.encode());
    }

    /// Takes the oldest request to unmount that is not answered, with the number of its client.
    pub(in crate::lifecycle) fn next_unmount(&mut self) -> Option<(u64, UnmountRequest)> {
        (!self.pending_unmounts.is_empty()).then(|| self.pending_unmounts.remove(0))
    }

    /// Answers a request to unmount.
    pub(in crate::lifecycle) fn answer_unmount(&mut self, client: u64, answer: &UnmountAnswer) {
        if let Some(client) = self.clients.iter_mut().find(|candidate| candidate.number == client) {
            client.send(&answer.encode());
        }
    }

    /// If other processes hold the mount, ends the leases of `callers`, and that of `keep`; `None`
    /// if none do. A client whose process cannot be identified counts as another holder, because
    /// its connection is open.
    pub(in crate::lifecycle) fn release_callers(
        &mut self,
        callers: &[ProcessId],
    ) -> Option<UnmountAnswer> {
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
        if own.is_empty() && !self.kept {
            return Some(UnmountAnswer::Refused(others));
        }
        self.processes.retain(|(process, _)| !callers.contains(process));
        self.kept = false;
        Some(UnmountAnswer::Released(others))
    }

    /// The number of clients with a lease whose process cannot be identified.
    fn count_unidentified(&self) -> usize {
        let clients = self.clients.iter().filter(|client| client.lease == Lease::Held);
        clients.filter(|client| client.process().is_none()).count()
    }

    /// Replaces the listener.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn listen_at(&mut self, listener: UnixListener) -> Result<()> {
        listener.set_nonblocking(true).map_err(failed)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// If the mount stays, tells the clients that have returned their leases. If not, they wait for
    /// the end of their connections.
    fn answer_leavers(&mut self, lingers: bool) {
        let answer = match (self.is_held() || self.kept, lingers) {
            _ if self.is_ending => return,
            (true, _) => Answer::Held,
            (false, true) => Answer::Lingering,
            (false, false) => return,
        };
        for client in self.clients.iter_mut().filter(|client| client.lease == Lease::Leaving) {
            client.lease = Lease::None;
            client.send(answer.encode());
        }
    }

    /// Without clients whose process cannot be identified.
    fn status(&self) -> Status {
        let clients = self.clients.iter().filter(|client| client.lease == Lease::Held);
        let clients = clients.filter_map(Connection::process);
        let mut holders: Vec<_> = clients
            .chain(self.processes.iter().map(|(process, _)| *process))
            .map(|process| HolderStatus { pid: process.pid(), name: process.name() })
            .collect();
        holders.sort_by_key(|holder| holder.pid);
        holders.dedup();
        Status { holders, kept: self.kept }
    }
}

impl Connection {
    /// The process at the other end; `None` if this PID namespace does not show it, or if it has
    /// exited and another process has the connection open.
    fn process(&self) -> Option<ProcessId> {
        ProcessId::of(self.pid?).ok()
    }

    /// Reads all bytes received, and detects the end of the connection.
    fn receive(&mut self) {
        let mut bytes = [0; REQUEST_MAX];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return self.is_open = false,
                Ok(count) => self.received.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.is_open = false,
            }
            if self.received.len() > 64 * REQUEST_MAX {
                return self.is_open = false;
            }
        }
    }

    fn next_line(&mut self) -> Option<String> {
        let end = self.received.iter().position(|&byte| byte == b'\n')?;
        let line = self.received.drain(..=end).take(end).collect();
        Some(String::from_utf8(line).unwrap_or_default())
    }

    /// Sends `line`. A client that does not read even these few bytes is disconnected.
    fn send(&mut self, line: &str) {
        self.is_open &= self.stream.write_all(line.as_bytes()).is_ok();
    }
}

/// The text for `count` holders that cannot be identified, for example in the outer PID namespace.
fn unidentified(count: usize) -> String {
    let noun = if count == 1 { "process" } else { "processes" };
    format!("{count} {noun} that cannot be identified")
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
        leases.watch(own).unwrap();
        let released = UnmountAnswer::Released("1 process that cannot be identified".to_owned());
        assert_eq!(leases.release_callers(&[own]), Some(released));
        assert!(leases.is_held());
    }

    #[test]
    fn counts_only_leases_that_were_granted() {
        let mut leases = Leases::new(None).unwrap();
        let (mut client, daemon) = UnixStream::pair().unwrap();
        leases.grant_to(daemon).unwrap();
        client.write_all(b"hold\nstatus\nkeep\nnumbers\n").unwrap();
        leases.serve_requests(false, &String::new);
        assert_eq!(leases.given(), 2);
        leases.refuse_all();
        client.write_all(b"hold\n").unwrap();
        leases.serve_requests(false, &String::new);
        assert_eq!(leases.given(), 2);
    }
}
