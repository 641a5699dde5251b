//! What several processes do to each other at one place, in every order, killed anywhere.
//!
//! Owns a model: newcomers, the daemons that they start, one who unmounts, a collector of garbage,
//! and the few things that they share. Leaves the time that a mount holds to `hold`. Invariant: one
//! step here is what a process does between two moments at which others could notice, and names the
//! function that it stands for.
//!
//! A model and not the code: the code is system calls of several processes, and a process that is
//! killed can not be a thread. `tests/killing` kills the real ones at random moments; here it is
//! every moment, and every order, of a copy that is as true as its reader finds it. Whoever changes
//! the order of steps in `join`, `mounted`, `unmount`, `gc` or `registry` changes it here, too.
//!
//! What has to hold:
//!
//! - one daemon mounts at a time, and no process undoes what another that lives still uses;
//! - who is given a lease has a mount that is there and stays while it is held;
//! - from every state all come to their end without a kill, a signal or a limit of time: nobody
//!   waits for somebody who waits for him;
//! - nothing is left if nobody was killed, and after `gc` if somebody was.
//!
//! Faults that once were there, or easily could be, can be put in; each is found.
//!
//! Left out: helpers of fusermount, which may mount after the daemon that asked for it was killed;
//! that a process that is killed closes its files one by one; limits of time; private mounts; the
//! note of a directory that is to be made (`registry/made.rs`).

use super::search::Model;

mod shared;
mod steps;
mod tests;

/// Number of an actor.
type Who = u8;

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Actor {
    role: Role,
    at: At,
    lock: Lock,
    /// Of a daemon: who holds its mount, a bit each.
    leases: u16,
    /// Of a daemon: whether only those who hold it may go on to.
    is_closed: bool,
    /// Of a daemon: whether it takes part in the use of the directory.
    uses_directory: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Newcomer,
    /// Started by that newcomer, or there from the start.
    Daemon(Option<Who>),
    /// A script that holds the first daemon's mount and calls `archfs unmount`.
    Unmounter,
    Collector,
}

/// A descriptor of the file of the place's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lock {
    None,
    Opened,
    /// The file was removed since it was opened.
    Unnamed,
    Held,
}

/// What an actor does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// `PlaceLock::acquire` of a newcomer, opening and locking, then `occupant::look`.
    Opens,
    Locks,
    Looks,
    /// `join::ask_for_lease`; and once the daemon said yes.
    Asks(Who),
    Given(Who),
    /// `unmount::clear` of a dead mount: `attach::detach`, `Record::forget`.
    Detaches,
    ForgetsDead,
    /// `Patience::wait`, which may wake at any time.
    Waits,
    /// `Launched::start`, `Launched::wait_until_ready`.
    Launches,
    Waiting(Who),
    /// Has returned success, and will let go.
    Holds(Who),

    /// A daemon: `open`, `Mountpoint::prepare`, `Attached::new`, `Record::write`,
    /// `Mounted::listen`, `Launcher::ready`, `drop(lock)`, `Daemon::serve`.
    Unborn,
    Starts,
    Prepares,
    Attaches,
    Records,
    Listens,
    SaysReady,
    LetsGo,
    Serves,
    /// `Mounted::clear_up`, part by part, and `Leases::close`.
    Unmounts,
    RemovesDirectory,
    RemovesSocket,
    RemovesRecord,
    TriesOpening,
    TriesLocking,
    Closes,

    /// `unmount::unmount`: looks without and with the lock, `leave_to_others`, `detach`,
    /// `wait_until_cleared`.
    Asked,
    OpensFor(Who),
    LocksFor(Who),
    LooksAgain(Who),
    Leaves,
    WaitsCleared(Who),

    /// `unmount::clear_up` and `clear_dead`.
    CleansOpening,
    CleansLocking,
    Cleans,
    CleansRecord,
    /// `unmount::forget`: a look, then record, directory and lock.
    Forgets,
    ForgetsRecord,
    ForgetsDirectory,
    ForgetsLock,

    /// `gc::gc`: its places, `MadeDirectory::clear_unused`, `Registry::clear_files`.
    Collects,
    CollectsLocking,
    CollectsDirectory,
    CollectsFiles,
    CollectsFilesLocking,

    Done,
    Killed,
}

/// A fault to put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fault {
    None,
    /// Who waits for a mount to end keeps the lock: `unmount` by its holder needs that.
    WaitsWithTheLock,
    /// The record, which tells that the place is free, goes before the socket.
    RecordGoesFirst,
    /// A daemon that has made up its mind gives leases until it has unmounted.
    GivesWhileItEnds,
    /// The launcher lets go of the lock as soon as the daemon runs, and hands over none.
    LaunchesWithoutLock,
    /// It is not looked whether the file that was locked still has its name.
    TakesAnyLock,
    /// `forget` does not look what is at the place.
    ForgetsBlindly,
    /// "ready" is said before anything is mounted.
    SaysReadyFirst,
    /// `gc` removes a socket since there was no record before it had the lock.
    CollectsByAnOldLook,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    actors: Vec<Actor>,
    /// Whose mount is there, whose record, whose socket.
    mount: Option<Who>,
    record: Option<Who>,
    socket: Option<Who>,
    /// Whether the lock's file, and the directory, are there.
    is_lock_there: bool,
    is_directory_there: bool,
    /// Kills that may still come; whether one came; whether a signal may.
    kills: u8,
    was_killed: bool,
    may_signal: bool,
    /// Whether the script took a mount away while it was being made, as it may.
    was_taken: bool,
    fault: Fault,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Acts(Who, #[expect(dead_code, reason = "told in stories")] At),
    /// The archive can not be opened.
    FailsToOpen(Who),
    Killed(Who),
    Term(Who),
}

/// What is at the place (`occupant::look`).
enum Occupant {
    Nothing,
    Alive(Who),
    Dead,
    Leaving(Who),
    Other,
}

impl World {
    fn new(newcomers: u8, kills: u8) -> Self {
        let actor = |role, at| Actor {
            role,
            at,
            lock: Lock::None,
            leases: 0,
            is_closed: false,
            uses_directory: false,
        };
        let mut actors: Vec<_> = (0..newcomers).map(|_| actor(Role::Newcomer, At::Opens)).collect();
        actors.extend((0..newcomers).map(|by| actor(Role::Daemon(Some(by)), At::Unborn)));
        actors.push(actor(Role::Daemon(None), At::Unborn));
        actors.push(actor(Role::Unmounter, At::Done));
        actors.push(actor(Role::Collector, At::Done));
        Self {
            actors,
            mount: None,
            record: None,
            socket: None,
            is_lock_there: false,
            is_directory_there: false,
            kills,
            was_killed: false,
            may_signal: false,
            was_taken: false,
            fault: Fault::None,
        }
    }

    fn first_daemon(&self) -> Who {
        number(self.actors.len() - 3)
    }

    /// There is a mount already; with a script that holds it, or of a daemon that was killed.
    fn with_mount(mut self, at: At) -> Self {
        let (daemon, script) = (self.first_daemon(), self.first_daemon() + 1);
        (self.mount, self.record, self.socket) = (Some(daemon), Some(daemon), Some(daemon));
        (self.is_lock_there, self.is_directory_there) = (true, true);
        self.actor(daemon).at = at;
        if at == At::Killed {
            self.was_killed = true;
            return self;
        }
        self.actor(daemon).uses_directory = true;
        self.actor(daemon).leases = bit(script);
        self.actor(script).at = At::Asked;
        self.may_signal = true;
        self
    }

    fn with_collector(mut self) -> Self {
        let collector = self.first_daemon() + 2;
        self.actor(collector).at = At::Collects;
        self
    }

    fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = fault;
        self
    }
}

impl Model for World {
    type Step = Step;

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for who in 0..number(self.actors.len()) {
            let (at, role) = (self.at(who), self.actors[usize::from(who)].role);
            if self.may_act(who) {
                steps.push(Step::Acts(who, at));
            }
            if matches!(at, At::Done | At::Killed | At::Unborn) {
                continue;
            }
            if self.kills > 0 {
                steps.push(Step::Killed(who));
            }
            if at == At::Starts && role != Role::Daemon(None) {
                steps.push(Step::FailsToOpen(who));
            }
            if at == At::Serves && self.may_signal {
                steps.push(Step::Term(who));
            }
        }
        steps
    }

    fn after(&self, step: Step) -> Result<Self, String> {
        let mut next = self.clone();
        match step {
            Step::Acts(who, _) => next.act(who)?,
            Step::FailsToOpen(who) => _ = next.end(who, At::Done),
            Step::Killed(who) => {
                next.kills -= 1;
                next.was_killed = true;
                next.drop_leases_of(who);
                next.end(who, At::Killed);
            }
            Step::Term(who) => {
                next.may_signal = false;
                next.actor(who).is_closed = true;
            }
        }
        Ok(next)
    }

    fn is_over(&self) -> bool {
        let is_over = |actor: &Actor| matches!(actor.at, At::Done | At::Killed | At::Unborn);
        self.actors.iter().all(is_over)
    }

    fn is_accident(step: Step) -> bool {
        !matches!(step, Step::Acts(..))
    }

    fn check(&self) -> Result<(), String> {
        let mut holders: Vec<_> = (0..number(self.actors.len()))
            .filter(|&who| self.actors[usize::from(who)].lock == Lock::Held)
            // A launcher has it together with its daemon.
            .map(|who| match self.actors[usize::from(who)].role {
                Role::Daemon(Some(launcher)) if self.at(launcher) == At::Waiting(who) => launcher,
                _ => who,
            })
            .collect();
        holders.dedup();
        holders.sort_unstable();
        holders.dedup();
        if holders.len() > 1 {
            return Err(format!("the lock is had by {holders:?}"));
        }
        if !self.is_over() {
            return Ok(());
        }
        if !self.was_killed && !self.is_empty() {
            return Err("something is left although nobody was killed".into());
        }
        if !self.is_empty_after_gc()? {
            return Err("something is left after gc".into());
        }
        Ok(())
    }
}

fn bit(who: Who) -> u16 {
    1 << who
}

fn number(count: usize) -> Who {
    Who::try_from(count).expect("few")
}
