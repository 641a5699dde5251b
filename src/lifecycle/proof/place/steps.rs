//! What each process does, in its order.
//!
//! Owns one step of one process; every arm stands for the functions that its `At` names.

use super::{At, Fault, Lock, Occupant, Role, Who, World, bit, number};

impl World {
    /// What `who` does next.
    pub(super) fn act(&mut self, who: Who) -> Result<(), String> {
        let next = match self.at(who) {
            at @ (At::Opens | At::OpensFor(_) | At::CleansOpening | At::TriesOpening) => {
                self.open_lock(who);
                match at {
                    At::OpensFor(daemon) => At::LocksFor(daemon),
                    At::CleansOpening => At::CleansLocking,
                    At::TriesOpening => At::TriesLocking,
                    _ => At::Locks,
                }
            }
            At::Locks if self.takes_lock(who) => At::Looks,
            At::Locks => At::Opens,
            At::LocksFor(daemon) if self.takes_lock(who) => At::LooksAgain(daemon),
            At::LocksFor(daemon) => At::OpensFor(daemon),
            at @ (At::TriesLocking
            | At::CleansLocking
            | At::CollectsLocking
            | At::CollectsFilesLocking) => self.try_lock(who, at)?,
            At::Looks => match self.look() {
                Occupant::Nothing => At::Launches,
                Occupant::Alive(daemon) if self.socket == Some(daemon) => At::Asks(daemon),
                Occupant::Dead => At::Detaches,
                // Another mount has the place, which is an error and ends it.
                Occupant::Other => self.end(who, At::Done),
                Occupant::Alive(_) | Occupant::Leaving(_) => self.begin_to_wait(who),
            },
            // The connection has ended without an answer.
            At::Asks(_) => self.begin_to_wait(who),
            At::Given(daemon) => {
                if self.at(daemon) != At::Killed {
                    self.check_mounted(daemon)?;
                }
                self.actor(who).lock = Lock::None;
                At::Holds(daemon)
            }
            At::Detaches => {
                self.detach(who)?;
                At::ForgetsDead
            }
            At::ForgetsDead => {
                self.remove_socket(who)?;
                self.remove_record(who)?;
                self.begin_to_wait(who)
            }
            // With the lock it looks again at once, without it has to get it first.
            At::Waits if self.actor(who).lock == Lock::Held => At::Looks,
            At::Waits => At::Opens,
            At::Launches => {
                let daemon = number(usize::from(who) + (self.actors.len() - 3) / 2);
                self.actor(daemon).at = At::Starts;
                self.actor(daemon).lock = Lock::Held;
                if self.fault == Fault::LaunchesWithoutLock {
                    (self.actor(daemon).lock, self.actor(who).lock) = (Lock::None, Lock::None);
                }
                At::Waiting(daemon)
            }
            At::Waiting(daemon) => {
                self.actor(who).lock = Lock::None;
                let is_ready = self.holders(daemon) & bit(who) != 0;
                if is_ready { At::Holds(daemon) } else { At::CleansOpening }
            }
            At::Holds(_) => {
                self.drop_leases_of(who);
                self.end(who, At::Done)
            }
            At::Cleans => match self.look() {
                Occupant::Dead => {
                    self.detach(who)?;
                    At::CleansRecord
                }
                _ => At::Forgets,
            },
            At::CleansRecord => {
                self.remove_socket(who)?;
                self.remove_record(who)?;
                At::Cleans
            }
            At::Forgets => match self.look() {
                Occupant::Nothing => At::ForgetsRecord,
                _ if self.fault == Fault::ForgetsBlindly => At::ForgetsRecord,
                _ => self.after_forgetting(who),
            },
            At::ForgetsRecord => {
                self.remove_socket(who)?;
                self.remove_record(who)?;
                At::ForgetsDirectory
            }
            At::ForgetsDirectory => {
                self.leave_directory(who);
                At::ForgetsLock
            }
            At::ForgetsLock => {
                self.remove_lock(who)?;
                self.after_forgetting(who)
            }
            at => return self.act_as_other(who, at),
        };
        self.actor(who).at = next;
        Ok(())
    }

    /// What only daemons, the script and the collector do.
    pub(super) fn act_as_other(&mut self, who: Who, at: At) -> Result<(), String> {
        let next = match at {
            At::Starts if !self.has_launcher(who) => self.end(who, At::Done),
            At::Starts if self.fault == Fault::SaysReadyFirst => {
                self.say_ready(who)?;
                At::Prepares
            }
            At::Starts => At::Prepares,
            At::Prepares => {
                (self.is_directory_there, self.actor(who).uses_directory) = (true, true);
                At::Attaches
            }
            At::Attaches => {
                if let Some(other) = self.mount.replace(who) {
                    return Err(format!("{who} mounts over the mount of {other}"));
                }
                At::Records
            }
            At::Records => {
                self.remove_record(who)?;
                self.record = Some(who);
                At::Listens
            }
            At::Listens => {
                self.remove_socket(who)?;
                self.socket = Some(who);
                if self.fault == Fault::SaysReadyFirst { At::LetsGo } else { At::SaysReady }
            }
            // What was made is dropped, with the lock held.
            At::SaysReady if !self.has_launcher(who) => At::Unmounts,
            At::SaysReady => {
                self.say_ready(who)?;
                At::LetsGo
            }
            At::LetsGo => {
                self.actor(who).lock = Lock::None;
                At::Serves
            }
            At::Serves => {
                self.answer(who)?;
                let goes = self.holders(who) == 0 || self.mount != Some(who);
                if goes { At::Unmounts } else { At::Serves }
            }
            At::Unmounts => {
                if self.fault == Fault::GivesWhileItEnds {
                    self.give_leases(who);
                }
                if self.mount == Some(who) {
                    self.detach(who)?;
                }
                At::RemovesDirectory
            }
            At::RemovesDirectory => {
                self.leave_directory(who);
                At::RemovesSocket
            }
            At::RemovesSocket if self.fault == Fault::RecordGoesFirst => {
                self.remove_record(who)?;
                At::RemovesRecord
            }
            At::RemovesSocket => {
                self.remove_socket(who)?;
                At::RemovesRecord
            }
            At::RemovesRecord => {
                match self.fault {
                    Fault::RecordGoesFirst => self.remove_socket(who)?,
                    _ => self.remove_record(who)?,
                }
                let has_lock = self.actor(who).lock == Lock::Held;
                if has_lock { At::Closes } else { At::TriesOpening }
            }
            At::Closes => {
                self.actor(who).leases = 0;
                self.end(who, At::Done)
            }
            At::Asked => match self.look() {
                Occupant::Alive(daemon) => At::OpensFor(daemon),
                Occupant::Leaving(daemon) => At::WaitsCleared(daemon),
                Occupant::Other => At::Leaves,
                Occupant::Dead => At::CleansOpening,
                Occupant::Nothing => self.leave(who),
            },
            At::LooksAgain(asked_for) => match self.look() {
                Occupant::Alive(daemon) if daemon != asked_for => self.leave(who),
                Occupant::Alive(_) | Occupant::Other => At::Leaves,
                Occupant::Leaving(daemon) => At::WaitsCleared(daemon),
                Occupant::Dead => {
                    self.actor(who).lock = Lock::None;
                    At::CleansOpening
                }
                Occupant::Nothing => At::Forgets,
            },
            At::Leaves => {
                let asked = self.mount.filter(|daemon| self.socket == Some(*daemon));
                let asked = asked.filter(|daemon| self.is_alive(*daemon));
                let has_others = asked.is_some_and(|asked| self.holders(asked) & !bit(who) != 0);
                match self.mount {
                    Some(daemon) if !has_others => {
                        self.detach(who)?;
                        // Without the lock it had no record to wait for.
                        let has_lock = self.actor(who).lock == Lock::Held;
                        if has_lock { At::WaitsCleared(daemon) } else { self.leave(who) }
                    }
                    _ => self.leave(who),
                }
            }
            At::WaitsCleared(_) if self.actor(who).lock == Lock::Held => At::Forgets,
            At::WaitsCleared(_) => At::CleansOpening,
            At::Collects if self.mount.is_none() && self.record.is_none() => At::CollectsDirectory,
            At::Collects => {
                self.open_lock(who);
                At::CollectsLocking
            }
            At::CollectsDirectory => {
                self.leave_directory(who);
                At::CollectsFiles
            }
            At::CollectsFiles
                if (self.is_lock_there || self.socket.is_some()) && self.record.is_none() =>
            {
                self.open_lock(who);
                At::CollectsFilesLocking
            }
            At::CollectsFiles => At::Done,
            _ => unreachable!("{at:?} is nothing to do"),
        };
        self.actor(who).at = next;
        Ok(())
    }

    /// `PlaceLock::try_acquire`, once the file is open.
    pub(super) fn try_lock(&mut self, who: Who, at: At) -> Result<At, String> {
        let has_lock = self.may_lock(who) && self.takes_lock(who);
        if !has_lock {
            self.actor(who).lock = Lock::None;
        }
        Ok(match (at, has_lock) {
            (At::TriesLocking, true) => At::Forgets,
            (At::TriesLocking, false) => At::Closes,
            (At::CleansLocking, true) | (At::CollectsLocking, true) => At::Cleans,
            (At::CleansLocking, false) => At::CleansOpening,
            // Looked at again: somebody may have mounted meanwhile.
            (At::CollectsFilesLocking, true)
                if self.record.is_some() && self.fault != Fault::CollectsByAnOldLook =>
            {
                self.actor(who).lock = Lock::None;
                At::Done
            }
            (At::CollectsFilesLocking, true) => {
                self.remove_socket(who)?;
                At::ForgetsLock
            }
            (At::CollectsFilesLocking, false) => At::Done,
            _ => At::CollectsDirectory,
        })
    }

    pub(super) fn begin_to_wait(&mut self, who: Who) -> At {
        if self.fault != Fault::WaitsWithTheLock {
            self.actor(who).lock = Lock::None;
        }
        At::Waits
    }

    pub(super) fn after_forgetting(&mut self, who: Who) -> At {
        self.actor(who).lock = Lock::None;
        match self.actor(who).role {
            Role::Daemon(_) => At::Closes,
            Role::Collector => At::CollectsDirectory,
            Role::Newcomer => At::Done,
            Role::Unmounter => {
                self.drop_leases_of(who);
                At::Done
            }
        }
    }

    /// The script ends, and with it its lease.
    pub(super) fn leave(&mut self, who: Who) -> At {
        self.drop_leases_of(who);
        self.end(who, At::Done)
    }

    pub(super) fn has_launcher(&self, daemon: Who) -> bool {
        match self.actors[usize::from(daemon)].role {
            Role::Daemon(Some(launcher)) => self.at(launcher) != At::Killed,
            _ => true,
        }
    }

    pub(super) fn say_ready(&mut self, daemon: Who) -> Result<(), String> {
        if let Role::Daemon(Some(launcher)) = self.actor(daemon).role {
            self.check_mounted(daemon)?;
            self.actor(daemon).leases |= bit(launcher);
        }
        Ok(())
    }

    /// `Leases::attend`: everybody who asks is answered.
    pub(super) fn answer(&mut self, daemon: Who) -> Result<(), String> {
        if self.actor(daemon).is_closed {
            for asking in 0..number(self.actors.len()) {
                if self.at(asking) == At::Asks(daemon) {
                    self.actor(asking).at = self.begin_to_wait(asking);
                }
            }
        } else if self.give_leases(daemon) {
            self.check_mounted(daemon)?;
        }
        Ok(())
    }

    pub(super) fn give_leases(&mut self, daemon: Who) -> bool {
        let mut has_given = false;
        for asking in 0..number(self.actors.len()) {
            if self.at(asking) == At::Asks(daemon) {
                self.actor(asking).at = At::Given(daemon);
                self.actor(daemon).leases |= bit(asking);
                has_given = true;
            }
        }
        has_given
    }
}
