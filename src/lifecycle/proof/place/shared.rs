//! What the processes share: mount, record, socket, directory and lock, and who has a lease.
//!
//! Owns looking at it and changing it, and tells who undoes what another uses. Leaves the order of
//! that to `steps`.

use super::{Actor, At, Fault, Lock, Occupant, Role, Who, World, bit};

impl World {
    pub(super) fn actor(&mut self, who: Who) -> &mut Actor {
        &mut self.actors[usize::from(who)]
    }

    pub(super) fn at(&self, who: Who) -> At {
        self.actors[usize::from(who)].at
    }

    pub(super) fn is_alive(&self, daemon: Who) -> bool {
        !matches!(self.at(daemon), At::Done | At::Killed | At::Unborn)
    }

    pub(super) fn is_locked(&self) -> bool {
        self.actors.iter().any(|actor| actor.lock == Lock::Held)
    }

    pub(super) fn look(&self) -> Occupant {
        match (self.mount, self.record) {
            (None, Some(daemon)) if self.is_alive(daemon) => Occupant::Leaving(daemon),
            (None, _) => Occupant::Nothing,
            (Some(mount), _) if !self.is_alive(mount) => Occupant::Dead,
            (Some(mount), Some(record)) if mount == record => Occupant::Alive(mount),
            (Some(_), _) => Occupant::Other,
        }
    }

    pub(super) fn open_lock(&mut self, who: Who) {
        self.is_lock_there = true;
        self.actor(who).lock = Lock::Opened;
    }

    /// Whether it has the lock now; not if the file has lost its name, which is let go of then.
    pub(super) fn takes_lock(&mut self, who: Who) -> bool {
        let is_taken = match self.actor(who).lock {
            Lock::Opened => true,
            _ => self.fault == Fault::TakesAnyLock,
        };
        self.actor(who).lock = if is_taken { Lock::Held } else { Lock::None };
        is_taken
    }

    pub(super) fn may_lock(&self, who: Who) -> bool {
        self.actors[usize::from(who)].lock == Lock::Unnamed || !self.is_locked()
    }

    pub(super) fn detach(&mut self, by: Who) -> Result<(), String> {
        let Some(mount) = self.mount.take() else {
            return Ok(());
        };
        let is_asked_for = self.actor(by).role == Role::Unmounter;
        self.was_taken |= is_asked_for && mount != self.first_daemon();
        if mount != by && self.is_alive(mount) && !is_asked_for {
            return Err(format!("{by} takes away the mount of {mount}"));
        }
        Ok(())
    }

    pub(super) fn remove_record(&mut self, by: Who) -> Result<(), String> {
        match self.record.take() {
            Some(other) if other != by && self.is_alive(other) => {
                Err(format!("{by} removes the record of {other}"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn remove_socket(&mut self, by: Who) -> Result<(), String> {
        match self.socket.take() {
            Some(other) if other != by && self.is_alive(other) => {
                Err(format!("{by} removes the socket of {other}"))
            }
            _ => Ok(()),
        }
    }

    /// `MadeDirectory` dropped: with its last use, unless a mount hides it.
    pub(super) fn leave_directory(&mut self, by: Who) {
        self.actor(by).uses_directory = false;
        let is_used = self.actors.iter().any(|actor| actor.uses_directory);
        self.is_directory_there &= is_used || self.mount.is_some();
    }

    pub(super) fn remove_lock(&mut self, by: Who) -> Result<(), String> {
        self.actor(by).lock = Lock::None;
        if self.is_locked() {
            return Err(format!("{by} removes the lock that another has"));
        }
        self.is_lock_there = false;
        for actor in self.actors.iter_mut().filter(|actor| actor.lock == Lock::Opened) {
            actor.lock = Lock::Unnamed;
        }
        Ok(())
    }

    pub(super) fn holders(&self, daemon: Who) -> u16 {
        self.actors[usize::from(daemon)].leases
    }

    pub(super) fn drop_leases_of(&mut self, who: Who) {
        for actor in &mut self.actors {
            actor.leases &= !bit(who);
        }
    }

    /// The process ends, by itself or not: what it has open is closed.
    pub(super) fn end(&mut self, who: Who, at: At) -> At {
        let actor = self.actor(who);
        (actor.at, actor.lock, actor.uses_directory) = (at, Lock::None, false);
        at
    }

    /// A lease on `daemon` is about to be relied on.
    pub(super) fn check_mounted(&self, daemon: Who) -> Result<(), String> {
        if self.mount != Some(daemon) && !self.was_taken {
            return Err(format!("a lease on {daemon}, which has no mount"));
        }
        Ok(())
    }

    /// Whether `who` has something to do now, or waits for others.
    pub(super) fn may_act(&self, who: Who) -> bool {
        match self.at(who) {
            At::Unborn | At::Done | At::Killed => false,
            At::Locks | At::LocksFor(_) => self.may_lock(who),
            At::Asks(daemon) => !self.is_alive(daemon),
            At::Waiting(daemon) => !self.is_alive(daemon) || self.holders(daemon) & bit(who) != 0,
            At::Serves => {
                let is_asked = self.actors.iter().any(|actor| actor.at == At::Asks(who));
                is_asked || self.holders(who) == 0 || self.mount != Some(who)
            }
            At::WaitsCleared(daemon) => !(self.is_alive(daemon) && self.record == Some(daemon)),
            _ => true,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        (self.mount, self.record, self.socket) == (None, None, None)
            && !self.is_lock_there
            && !self.is_directory_there
    }

    /// The same after `gc`, when all others have ended.
    pub(super) fn is_empty_after_gc(&self) -> Result<bool, String> {
        let mut after = self.clone();
        let collector = after.first_daemon() + 2;
        after.actor(collector).at = At::Collects;
        while after.at(collector) != At::Done {
            after.act(collector)?;
        }
        Ok(after.is_empty())
    }
}
