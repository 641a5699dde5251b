//! The daemon's side: connections, processes that are watched, and the answers.
//!
//! Owns what is polled for and what was said so far. Invariants: nothing here waits, so no client
//! can hold up another; only the user of the mount and root are listened to.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::message::{
    Answer, HolderStatus, REQUEST_MAX, Request, Status, UnmountAnswer, UnmountRequest,
};
use crate::error::{Error, Result};
use crate::failpoint;
use crate::lifecycle::system::process::{ProcessId, Watch};

/// Connections at a time; more are turned away. A task of a node needs one.
const CLIENTS_MAX: usize = 4096;

/// All leases of a mount.
#[derive(Debug, Default)]
pub(in crate::lifecycle) struct Leases {
    /// `None` where nobody can ask: a private mount, or one that is on its way out.
    listener: Option<UnixListener>,
    clients: Vec<Client>,
    processes: Vec<(ProcessId, Watch)>,
    kept: bool,
    /// Leases that were given, also again to one who had one.
    given: u64,
    /// Whether only those who hold it already may go on to.
    is_closed: bool,
    is_ending: bool,
    /// Whether no connection could be taken, for want of descriptors, say. The listener stays
    /// readable then, and polling for it would never wait.
    is_full: bool,
    /// Requests to unmount that the daemon has to answer, by the number of the client.
    unmounts: Vec<(u64, UnmountRequest)>,
    /// The number of the next client.
    next: u64,
}

#[derive(Debug)]
struct Client {
    number: u64,
    stream: UnixStream,
    /// Of the process at the other end, if it can be told.
    pid: Option<i32>,
    /// What it said so far, less what was answered.
    said: VecDeque<u8>,
    lease: Lease,
    is_open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    None,
    Held,
    /// It gave its lease back, and waits for what becomes of the mount.
    Leaving,
}

impl Leases {
    /// Nobody's yet.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn new(listener: Option<UnixListener>) -> Result<Self> {
        if let Some(listener) = &listener {
            listener.set_nonblocking(true).map_err(failed)?;
        }
        Ok(Self { listener, ..Self::default() })
    }

    /// Gives a lease to whoever is at the other end of `stream`.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn give_to(&mut self, stream: UnixStream) -> Result<()> {
        stream.set_nonblocking(true).map_err(failed)?;
        let pid = socket_peercred(&stream).ok().map(|peer| peer.pid.as_raw_nonzero().get());
        self.add(stream, pid, Lease::Held);
        Ok(())
    }

    fn add(&mut self, stream: UnixStream, pid: Option<i32>, lease: Lease) {
        let (number, said) = (self.next, VecDeque::new());
        self.next += 1;
        self.clients.push(Client { number, stream, pid, said, lease, is_open: true });
    }

    /// Gives a lease to `process`, unless it has one; tells whether it lives.
    ///
    /// # Errors
    /// `Io` where it can not be watched.
    pub(in crate::lifecycle) fn watch(&mut self, process: ProcessId) -> Result<bool> {
        // A script may ask for its mount again and again.
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

    /// Holds until somebody unmounts.
    pub(in crate::lifecycle) fn keep(&mut self) {
        self.kept = true;
    }

    /// Whether it shall hold until somebody unmounts.
    pub(in crate::lifecycle) fn is_kept(&self) -> bool {
        self.kept
    }

    /// Whether a process holds a lease.
    pub(in crate::lifecycle) fn is_held(&self) -> bool {
        !self.processes.is_empty() || self.clients.iter().any(|client| client.lease == Lease::Held)
    }

    /// How often somebody was given a lease: a sign of use, like a request.
    pub(in crate::lifecycle) fn given(&self) -> u64 {
        self.given
    }

    /// Whether something has to be asked for now and then, since it can not be polled for.
    pub(in crate::lifecycle) fn has_to_ask(&self) -> bool {
        self.is_full || self.processes.iter().any(|(_, watch)| watch.descriptor().is_none())
    }

    /// Whether somebody gave back a lease and waits for the end of the mount.
    pub(in crate::lifecycle) fn is_awaited(&self) -> bool {
        self.clients.iter().any(|client| client.lease == Lease::Leaving)
    }

    /// The mount goes within a while: a lease is given only to those who have one, for a process
    /// that they start, say. Others wait until it is gone, and mount anew.
    pub(in crate::lifecycle) fn close_to_newcomers(&mut self) {
        self.is_closed = true;
    }

    fn refuses(&self, client: usize) -> bool {
        self.is_ending || (self.is_closed && self.clients[client].lease != Lease::Held)
    }

    /// No lease is given from now on.
    pub(in crate::lifecycle) fn begin_to_end(&mut self) {
        self.is_ending = true;
    }

    /// The mount is gone: ends all connections, whose other ends wait for that. Those who have a
    /// lease get a line with `summary`; tells whether any of them had given it back. Who detaches a
    /// private mount and then gives back its lease may come too late to be heard.
    pub(in crate::lifecycle) fn close(&mut self, summary: &str) -> bool {
        self.begin_to_end();
        let mut has_told = false;
        for client in self.clients.iter_mut().filter(|client| client.lease != Lease::None) {
            client.say(&format!("{summary}\n"));
            has_told |= client.lease == Lease::Leaving;
        }
        self.listener = None;
        self.clients.clear();
        self.processes.clear();
        has_told
    }

    /// What to poll for, in an order of its own.
    pub(in crate::lifecycle) fn watched(&self) -> Vec<PollFd<'_>> {
        let listener = self.listener.iter().filter(|_| !self.is_full);
        let listener = listener.map(|listener| PollFd::new(listener, PollFlags::IN));
        let clients = self.clients.iter().map(|client| PollFd::new(&client.stream, PollFlags::IN));
        let processes = self.processes.iter().filter_map(|(_, watch)| watch.descriptor());
        listener
            .chain(clients)
            .chain(processes.map(|process| PollFd::new(process, PollFlags::IN)))
            .collect()
    }

    /// Answers everybody who said something, and drops the leases of those who are gone. `lingers`
    /// tells whether the mount stays for a while without leases; `numbers` are given to those who
    /// ask.
    pub(in crate::lifecycle) fn attend(&mut self, lingers: bool, numbers: &dyn Fn() -> String) {
        self.accept();
        self.processes.retain(|(process, watch)| !watch.has_ended(*process));
        for at in 0..self.clients.len() {
            self.clients[at].listen();
            while let Some(line) = self.clients[at].next_line() {
                self.answer(at, &line, numbers);
            }
        }
        self.clients.retain(|client| client.is_open);
        self.tell_leavers(lingers);
    }

    fn accept(&mut self) {
        while let Some(accepted) = self.listener.as_ref().map(UnixListener::accept) {
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    let is_passing =
                        matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                    self.is_full = !is_passing;
                    return;
                }
            };
            let peer = socket_peercred(&stream).ok();
            let is_allowed = peer.is_some_and(|peer| peer.uid == geteuid() || peer.uid.is_root());
            if !is_allowed || self.clients.len() >= CLIENTS_MAX {
                continue;
            }
            if stream.set_nonblocking(true).is_ok() {
                self.add(stream, peer.map(|peer| peer.pid.as_raw_nonzero().get()), Lease::None);
            }
        }
    }

    fn answer(&mut self, at: usize, line: &str, numbers: &dyn Fn() -> String) {
        let Ok(request) = Request::decode(line) else {
            self.clients[at].is_open = false;
            return;
        };
        let answer = match &request {
            Request::Status => {
                let status = serde_json::to_string(&self.status()).unwrap_or_default();
                return self.clients[at].say(&(status + "\n"));
            }
            Request::Numbers => {
                failpoint::panic_at("lease");
                return self.clients[at].say(&(numbers() + "\n"));
            }
            Request::Leave => {
                self.clients[at].lease = Lease::Leaving;
                return;
            }
            Request::Release(process) => {
                self.processes.retain(|(watched, _)| watched != process);
                Answer::Done
            }
            Request::Unmount(request) => {
                self.unmounts.push((self.clients[at].number, request.clone()));
                return;
            }
            Request::Hold | Request::Watch(_) | Request::Keep if self.refuses(at) => Answer::Ending,
            Request::Hold => {
                self.clients[at].lease = Lease::Held;
                Answer::Done
            }
            Request::Watch(process) => match self.watch(*process) {
                Ok(true) => Answer::Done,
                Ok(false) => Answer::NoProcess,
                Err(error) => {
                    log::error!("{error}");
                    Answer::NoProcess
                }
            },
            Request::Keep => {
                self.keep();
                Answer::Done
            }
        };
        let is_lease = matches!(request, Request::Hold | Request::Watch(_) | Request::Keep);
        self.given += u64::from(is_lease && answer == Answer::Done);
        self.clients[at].say(answer.encode());
    }

    /// The oldest request to unmount that was not answered, with the number of its client.
    pub(in crate::lifecycle) fn next_unmount(&mut self) -> Option<(u64, UnmountRequest)> {
        (!self.unmounts.is_empty()).then(|| self.unmounts.remove(0))
    }

    /// Answers a request to unmount.
    pub(in crate::lifecycle) fn answer_unmount(&mut self, client: u64, answer: &UnmountAnswer) {
        if let Some(client) = self.clients.iter_mut().find(|one| one.number == client) {
            client.say(&answer.encode());
        }
    }

    /// Ends the leases of `callers`, and that of `keep`, where other processes hold the mount;
    /// `None` where none do.
    pub(in crate::lifecycle) fn leave_to_others(
        &mut self,
        callers: &[ProcessId],
    ) -> Option<UnmountAnswer> {
        let is_caller = |pid: i32| callers.iter().any(|caller| caller.pid() == pid);
        let (own, others): (Vec<_>, Vec<_>) =
            self.status().holders.into_iter().partition(|holder| is_caller(holder.pid));
        if others.is_empty() {
            return None;
        }
        let others = HolderStatus::named(&others);
        if own.is_empty() && !self.kept {
            return Some(UnmountAnswer::Refused(others));
        }
        self.processes.retain(|(process, _)| !callers.contains(process));
        self.kept = false;
        Some(UnmountAnswer::Released(others))
    }

    /// Listens at `listener` instead.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn listen_at(&mut self, listener: UnixListener) -> Result<()> {
        listener.set_nonblocking(true).map_err(failed)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Those who left hear that the mount stays; if it does not, they wait for their connection to
    /// end.
    fn tell_leavers(&mut self, lingers: bool) {
        let answer = match (self.is_held() || self.kept, lingers) {
            _ if self.is_ending => return,
            (true, _) => Answer::Held,
            (false, true) => Answer::Lingering,
            (false, false) => return,
        };
        for client in self.clients.iter_mut().filter(|client| client.lease == Lease::Leaving) {
            client.lease = Lease::None;
            client.say(answer.encode());
        }
    }

    fn status(&self) -> Status {
        let clients = self.clients.iter().filter(|client| client.lease == Lease::Held);
        let clients = clients.filter_map(|client| ProcessId::of(client.pid?).ok());
        let mut holders: Vec<_> = clients
            .chain(self.processes.iter().map(|(process, _)| *process))
            .map(|process| HolderStatus { pid: process.pid(), name: process.name() })
            .collect();
        holders.sort_by_key(|holder| holder.pid);
        holders.dedup();
        Status { holders, kept: self.kept }
    }
}

impl Client {
    /// Takes what came, and notes if that was the last.
    fn listen(&mut self) {
        let mut bytes = [0; REQUEST_MAX];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return self.is_open = false,
                Ok(count) => self.said.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.is_open = false,
            }
            if self.said.len() > 64 * REQUEST_MAX {
                return self.is_open = false;
            }
        }
    }

    fn next_line(&mut self) -> Option<String> {
        let end = self.said.iter().position(|&byte| byte == b'\n')?;
        let line = self.said.drain(..=end).take(end).collect();
        Some(String::from_utf8(line).unwrap_or_default())
    }

    /// A client that does not take so little has only itself to blame.
    fn say(&mut self, line: &str) {
        self.is_open &= self.stream.write_all(line.as_bytes()).is_ok();
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("can not listen for who needs the mount", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_leases_that_it_gave_and_nothing_else() {
        let mut leases = Leases::new(None).unwrap();
        let (mut client, daemon) = UnixStream::pair().unwrap();
        leases.give_to(daemon).unwrap();
        client.write_all(b"hold\nstatus\nkeep\nnumbers\n").unwrap();
        leases.attend(false, &String::new);
        assert_eq!(leases.given(), 2);
        leases.begin_to_end();
        client.write_all(b"hold\n").unwrap();
        leases.attend(false, &String::new);
        assert_eq!(leases.given(), 2);
    }
}
