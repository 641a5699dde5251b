//! The rules of how long a mount is served, against everything that can happen in a while.
//!
//! Owns a daemon without a mount, which does what `end_policy` says as `daemon` does, and a world
//! that does to it what it likes: leases, signals, requests, open files, an unmount, time.
//! Invariant: `EndPolicy` is the real one.
//!
//! Time goes in steps of `TRY_AGAIN`, and the daemon looks only when something happens or when
//! `end_policy` told it to: a time that is not told is missed here, too.

use std::env;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::lifecycle::daemon::end_policy::{EndPolicy, Holders, Lifetime, Step, TRY_AGAIN};
use crate::lifecycle::daemon::proof::search::{Model, explore};

/// How long each world lasts, steps of time. `ARCHFS_MODEL_TIME` makes it longer.
const END: u32 = 5;

/// Signals, requests and newcomers there are at most in each.
const SIGNALS: u8 = 2;
const REQUESTS: u8 = 2;
const LEASES: u8 = 3;

/// Steps that the daemon may take at one moment.
const AT_ONCE: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    hold: EndPolicy,
    /// Of the lifetime, steps of time.
    grace: u32,
    linger: u32,
    idle: Option<u32>,
    now: u32,
    /// When the world ends.
    end: u32,
    /// Until when the daemon sleeps, if not for ever.
    until: Option<u32>,
    is_held: bool,
    is_kept: bool,
    /// Whether files are open.
    is_busy: bool,
    is_mounted: bool,
    has_ended: bool,
    requests: u8,
    /// Leases given.
    given: u8,
    signals: u8,
    /// When it was asked to end, and whether so that it has to at once.
    asked: Option<u32>,
    at_once: bool,
    /// Since when nobody holds it; since when no request came; since when no file was open either.
    free_since: Option<u32>,
    last_request: u32,
    idle_since: u32,
    /// When the last lease was given.
    joined: u32,
    /// Whether somebody else unmounted it.
    taken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    TimePasses,
    LeaseBegins,
    LeaseEnds,
    KeptFromNowOn,
    Request,
    FilesOpened,
    FilesClosed,
    Term,
    Int,
    UnmountByOthers,
}

fn at(step: u32) -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now) + TRY_AGAIN * step
}

impl World {
    fn new(grace: u32, linger: u32, idle: Option<u32>, end: u32) -> Self {
        let time = |steps: u32| TRY_AGAIN * steps;
        let lifetime =
            Lifetime { grace: Some(time(grace)), linger: time(linger), idle: idle.map(time) };
        let mut world = Self {
            hold: EndPolicy::new(lifetime, at(0)),
            grace,
            linger,
            idle,
            now: 0,
            end,
            until: None,
            is_held: true,
            is_kept: false,
            is_busy: false,
            is_mounted: true,
            has_ended: false,
            requests: 0,
            given: 0,
            signals: 0,
            asked: None,
            at_once: false,
            free_since: None,
            last_request: 0,
            idle_since: 0,
            joined: 0,
            taken: false,
        };
        world.serve().expect("a mount that was just made");
        world
    }

    /// As `Daemon::serve`, until it waits.
    fn serve(&mut self) -> Result<(), String> {
        for _ in 0..AT_ONCE {
            let held = Holders { by_process: self.is_held, kept: self.is_kept };
            let uses = u64::from(self.requests) + u64::from(self.given);
            match self.hold.next(at(self.now), held, uses) {
                Step::Serve(until) => {
                    self.until = until.map(steps_until);
                    // Without mount and open files the session ends, and the daemon with it.
                    self.has_ended |= !self.is_mounted && !self.is_busy;
                    return Ok(());
                }
                Step::UnmountIfIdle if self.is_busy => self.hold.busy(at(self.now)),
                Step::UnmountIfIdle | Step::Unmount => {
                    self.unmount()?;
                    self.hold.unmounted();
                }
                Step::Exit => {
                    self.unmount()?;
                    self.has_ended = true;
                    return Ok(());
                }
            }
        }
        Err("the daemon does not come to rest".into())
    }

    /// Whether a request may come, which means nothing where no idle time is set.
    fn asks_for_more(&self) -> bool {
        self.idle.is_some() && self.requests < REQUESTS && (self.is_mounted || self.is_busy)
    }

    /// Somebody uses it, or could.
    fn was_used(&mut self) {
        if self.idle.is_some() {
            self.idle_since = self.now;
        }
    }

    /// A lease was given.
    fn was_joined(&mut self) {
        self.free_since = None;
        if self.idle.is_some() {
            (self.given, self.joined) = (self.given + 1, self.now);
            self.was_used();
        }
    }

    /// Checks that there is a reason to.
    fn unmount(&mut self) -> Result<(), String> {
        if !std::mem::replace(&mut self.is_mounted, false) {
            return Ok(());
        }
        let is_due = self.asked.is_some_and(|asked| self.now >= asked + self.grace);
        let was_quiet = self.idle.is_some_and(|idle| self.now >= self.last_request + idle);
        let is_idle = was_quiet && !self.is_busy && self.asked.is_none();
        // Who has just been given a lease has not had the time to ask for anything.
        let is_idle = is_idle && self.idle.is_some_and(|idle| self.now >= self.joined + idle);
        let has_lingered = self.free_since.is_some_and(|since| self.now >= since + self.linger);
        let is_free = !self.is_held && !self.is_kept && (has_lingered || self.asked.is_some());
        let is_kept_and_asked =
            !self.is_held && self.is_kept && self.asked.is_some() && !self.is_busy;
        if is_due || is_idle || is_free || is_kept_and_asked || self.at_once || self.taken {
            return Ok(());
        }
        Err("unmounted without a reason".into())
    }
}

/// The step of time at which `instant` is over.
fn steps_until(instant: Instant) -> u32 {
    let time: Duration = instant.saturating_duration_since(at(0));
    u32::try_from(time.as_nanos().div_ceil(TRY_AGAIN.as_nanos())).expect("few")
}

impl Model for World {
    type Step = Event;

    fn steps(&self) -> Vec<Event> {
        if self.has_ended || self.now == self.end {
            return Vec::new();
        }
        // As `Leases` does, which gives none when the daemon is asked to end or is about to.
        let takes_newcomers = self.is_mounted && self.asked.is_none() && !self.at_once;
        let may = [
            (Event::TimePasses, true),
            (Event::LeaseBegins, takes_newcomers && !self.is_held && self.given < LEASES),
            (Event::LeaseEnds, self.is_held),
            (Event::KeptFromNowOn, takes_newcomers && !self.is_kept),
            (Event::Request, self.asks_for_more()),
            (Event::FilesOpened, self.is_mounted && !self.is_busy),
            (Event::FilesClosed, self.is_busy),
            (Event::Term, self.signals < SIGNALS),
            (Event::Int, self.signals < SIGNALS),
            (Event::UnmountByOthers, self.is_mounted),
        ];
        may.into_iter().filter(|(_, may)| *may).map(|(event, _)| event).collect()
    }

    fn after(&self, event: Event) -> Result<Self, String> {
        let mut next = self.clone();
        let mut wakes = true;
        match event {
            Event::TimePasses => {
                next.now += 1;
                if next.is_busy {
                    next.was_used();
                }
                wakes = next.until.is_some_and(|until| next.now >= until);
            }
            Event::LeaseBegins => {
                next.is_held = true;
                next.was_joined();
            }
            Event::LeaseEnds => next.is_held = false,
            Event::KeptFromNowOn => {
                next.is_kept = true;
                next.was_joined();
            }
            // The kernel is answered by other threads; this one is not woken.
            Event::Request => {
                next.requests += 1;
                (next.last_request, wakes) = (next.now, false);
                next.was_used();
            }
            Event::FilesOpened => (next.is_busy, wakes) = (true, false),
            Event::FilesClosed => {
                next.is_busy = false;
                next.was_used();
                wakes = !next.is_mounted;
            }
            Event::Term => {
                next.signals += 1;
                next.at_once |= next.asked.is_some();
                next.asked.get_or_insert(next.now);
                next.hold.ask(at(next.now));
            }
            Event::Int => {
                next.signals += 1;
                next.at_once = true;
                next.hold.ask_at_once();
            }
            Event::UnmountByOthers => {
                (next.is_mounted, next.taken) = (false, true);
                next.hold.unmounted();
            }
        }
        if !next.is_held && !next.is_kept {
            next.free_since.get_or_insert(next.now);
        }
        if wakes {
            next.serve()?;
        }
        if next.has_ended {
            // How it came to that makes no difference any more.
            next = Self::new(self.grace, self.linger, self.idle, self.end);
            next.has_ended = true;
        }
        Ok(next)
    }

    fn is_over(&self) -> bool {
        self.has_ended || self.now == self.end
    }

    fn is_accident(_: Event) -> bool {
        false
    }

    fn check(&self) -> Result<(), String> {
        if self.has_ended {
            return Ok(());
        }
        if self.at_once {
            return Err("a second signal, or an urgent one, does not end it".into());
        }
        if self.asked.is_some_and(|asked| self.now >= asked + self.grace) {
            return Err("serves on after the grace".into());
        }
        let is_over = |since: u32| self.now >= since + self.linger;
        if self.is_mounted && self.free_since.is_some_and(is_over) {
            return Err("stays mounted although nobody holds it".into());
        }
        if self.is_mounted && self.free_since.is_some() && self.asked.is_some() {
            return Err("lingers although it was asked to end".into());
        }
        // A look at the requests may come as late as just before it would go.
        let is_late = |idle: u32| self.now >= self.idle_since + 2 * idle && !self.is_busy;
        let is_meant_to_stay = self.is_held || self.is_kept;
        if self.is_mounted
            && is_meant_to_stay
            && self.asked.is_none()
            && self.idle.is_some_and(is_late)
        {
            return Err("stays mounted although nobody reads".into());
        }
        if !self.is_mounted && !self.is_busy {
            return Err("lives on with nothing to serve".into());
        }
        Ok(())
    }
}

#[test]
fn every_mount_ends_when_it_shall_and_not_before_whatever_happens() {
    let end = env::var("ARCHFS_MODEL_TIME").map_or(END, |steps| steps.parse().expect("a number"));
    let mut states = 0;
    for (grace, linger, idle) in
        [(3, 0, None), (3, 2, None), (2, 3, None), (2, 0, Some(2)), (1, 3, Some(2)), (0, 0, None)]
    {
        let found = explore(World::new(grace, linger, idle, end));
        states += found.unwrap_or_else(|story| panic!("{grace} {linger} {idle:?}: {story}"));
    }
    println!("{states} states");
}
