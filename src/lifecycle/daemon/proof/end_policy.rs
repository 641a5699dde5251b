//! Checks `EndPolicy` against every sequence of events in a short time.
//!
//! `World` is a daemon without a mount, which obeys `EndPolicy` as `Daemon::serve` does. Leases,
//! signals, requests, open files, unmounts and time change in every possible order. `EndPolicy` is
//! the real one.
//!
//! Time passes in steps of `UNMOUNT_RETRY_INTERVAL`. The daemon runs only when something happens or
//! at the time that `EndPolicy` returned. So the check also finds a time that `EndPolicy` fails to
//! return.

use std::env;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::lifecycle::daemon::end_policy::{
    EndPolicy, Holders, Lifetime, Step, UNMOUNT_RETRY_INTERVAL,
};
use crate::lifecycle::daemon::proof::{Model, explore};

/// How long each world lasts, steps of time. `ARCHFS_MODEL_TIME` makes it longer.
const END: u32 = 5;

/// Most signals, requests and leases in each world.
const SIGNALS: u8 = 2;
const REQUESTS: u8 = 2;
const LEASES: u8 = 3;

/// Steps of the daemon before time must pass.
const STEPS_AT_ONCE: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    policy: EndPolicy,
    /// The lifetime, steps of time.
    grace: u32,
    linger: u32,
    idle: Option<u32>,
    now: u32,
    /// When the world ends.
    end: u32,
    /// When the daemon wakes up; `None` if only an event wakes it.
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
    /// When the daemon was asked to end, and whether it must end at once.
    end_requested: Option<u32>,
    end_now: bool,
    /// Since when nothing holds the mount; the last request; since when it is not in use.
    free_since: Option<u32>,
    last_request: u32,
    idle_since: u32,
    /// When the last lease was given.
    last_lease: u32,
    /// Whether another process unmounted it.
    unmounted_by_others: bool,
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

fn instant_of(step: u32) -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now) + UNMOUNT_RETRY_INTERVAL * step
}

impl World {
    fn new(grace: u32, linger: u32, idle: Option<u32>, end: u32) -> Self {
        let time = |steps: u32| UNMOUNT_RETRY_INTERVAL * steps;
        let lifetime = Lifetime {
            grace: Some(time(grace)),
            linger: time(linger),
            idle: idle.map(time),
            detaches_on_signal: false,
        };
        let mut world = Self {
            policy: EndPolicy::new(lifetime, instant_of(0)),
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
            end_requested: None,
            end_now: false,
            free_since: None,
            last_request: 0,
            idle_since: 0,
            last_lease: 0,
            unmounted_by_others: false,
        };
        world.serve().expect("a mount that was just made");
        world
    }

    /// Like `Daemon::serve`, until it waits.
    fn serve(&mut self) -> Result<(), String> {
        for _ in 0..STEPS_AT_ONCE {
            let holders = Holders { by_process: self.is_held, until_unmount: self.is_kept };
            let uses = u64::from(self.requests) + u64::from(self.given);
            match self.policy.next(instant_of(self.now), holders, uses) {
                Step::Serve(until) => {
                    self.until = until.map(steps_until);
                    // Without a mount and open files the session ends, and the daemon with it.
                    self.has_ended |= !self.is_mounted && !self.is_busy;
                    return Ok(());
                }
                Step::UnmountIfIdle if self.is_busy => {
                    self.policy.note_in_use(instant_of(self.now));
                }
                Step::UnmountIfIdle | Step::Unmount => {
                    self.unmount()?;
                    self.policy.note_unmounted();
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

    /// Whether a request may come. Without an idle time requests make no difference.
    fn may_request(&self) -> bool {
        self.idle.is_some() && self.requests < REQUESTS && (self.is_mounted || self.is_busy)
    }

    /// Notes that the mount is or may be in use.
    fn note_use(&mut self) {
        if self.idle.is_some() {
            self.idle_since = self.now;
        }
    }

    /// Notes that a lease was given.
    fn note_lease(&mut self) {
        self.free_since = None;
        if self.idle.is_some() {
            (self.given, self.last_lease) = (self.given + 1, self.now);
            self.note_use();
        }
    }

    /// Unmounts, and checks that there is a reason to.
    fn unmount(&mut self) -> Result<(), String> {
        if !std::mem::replace(&mut self.is_mounted, false) {
            return Ok(());
        }
        let is_due =
            self.end_requested.is_some_and(|end_requested| self.now >= end_requested + self.grace);
        let has_no_requests = self.idle.is_some_and(|idle| self.now >= self.last_request + idle);
        let is_idle = has_no_requests && !self.is_busy && self.end_requested.is_none();
        // A new holder may not have sent its first request.
        let is_idle = is_idle && self.idle.is_some_and(|idle| self.now >= self.last_lease + idle);
        let has_lingered = self.free_since.is_some_and(|since| self.now >= since + self.linger);
        let is_free =
            !self.is_held && !self.is_kept && (has_lingered || self.end_requested.is_some());
        let is_kept_and_ending =
            !self.is_held && self.is_kept && self.end_requested.is_some() && !self.is_busy;
        if is_due
            || is_idle
            || is_free
            || is_kept_and_ending
            || self.end_now
            || self.unmounted_by_others
        {
            return Ok(());
        }
        Err("unmounted without a reason".into())
    }
}

/// The first step of time at or after `instant`.
fn steps_until(instant: Instant) -> u32 {
    let time: Duration = instant.saturating_duration_since(instant_of(0));
    u32::try_from(time.as_nanos().div_ceil(UNMOUNT_RETRY_INTERVAL.as_nanos())).expect("few")
}

impl Model for World {
    type Step = Event;

    fn steps(&self) -> Vec<Event> {
        if self.has_ended || self.now == self.end {
            return Vec::new();
        }
        // Like `Leases`, which gives no lease once the daemon was asked to end or is about to end.
        let takes_newcomers = self.is_mounted && self.end_requested.is_none() && !self.end_now;
        let possible = [
            (Event::TimePasses, true),
            (Event::LeaseBegins, takes_newcomers && !self.is_held && self.given < LEASES),
            (Event::LeaseEnds, self.is_held),
            (Event::KeptFromNowOn, takes_newcomers && !self.is_kept),
            (Event::Request, self.may_request()),
            (Event::FilesOpened, self.is_mounted && !self.is_busy),
            (Event::FilesClosed, self.is_busy),
            (Event::Term, self.signals < SIGNALS),
            (Event::Int, self.signals < SIGNALS),
            (Event::UnmountByOthers, self.is_mounted),
        ];
        possible.into_iter().filter(|(_, possible)| *possible).map(|(event, _)| event).collect()
    }

    fn after(&self, event: Event) -> Result<Self, String> {
        let mut next = self.clone();
        let mut wakes = true;
        match event {
            Event::TimePasses => {
                next.now += 1;
                if next.is_busy {
                    next.note_use();
                }
                wakes = next.until.is_some_and(|until| next.now >= until);
            }
            Event::LeaseBegins => {
                next.is_held = true;
                next.note_lease();
            }
            Event::LeaseEnds => next.is_held = false,
            Event::KeptFromNowOn => {
                next.is_kept = true;
                next.note_lease();
            }
            // Other threads answer the kernel. This one is not woken.
            Event::Request => {
                next.requests += 1;
                (next.last_request, wakes) = (next.now, false);
                next.note_use();
            }
            Event::FilesOpened => (next.is_busy, wakes) = (true, false),
            Event::FilesClosed => {
                next.is_busy = false;
                next.note_use();
                wakes = !next.is_mounted;
            }
            Event::Term => {
                next.signals += 1;
                next.end_now |= next.end_requested.is_some();
                next.end_requested.get_or_insert(next.now);
                next.policy.request_end(instant_of(next.now));
            }
            Event::Int => {
                next.signals += 1;
                next.end_now = true;
                next.policy.request_end_now();
            }
            Event::UnmountByOthers => {
                (next.is_mounted, next.unmounted_by_others) = (false, true);
                next.policy.note_unmounted();
            }
        }
        if !next.is_held && !next.is_kept {
            next.free_since.get_or_insert(next.now);
        }
        if wakes {
            next.serve()?;
        }
        if next.has_ended {
            // All worlds that have ended count as one state.
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
        if self.end_now {
            return Err("a second signal, or an urgent one, does not end it".into());
        }
        if self.end_requested.is_some_and(|end_requested| self.now >= end_requested + self.grace) {
            return Err("serves on after the grace".into());
        }
        let is_over = |since: u32| self.now >= since + self.linger;
        if self.is_mounted && self.free_since.is_some_and(is_over) {
            return Err("stays mounted without a holder".into());
        }
        if self.is_mounted && self.free_since.is_some() && self.end_requested.is_some() {
            return Err("lingers after an end request".into());
        }
        // The daemon may notice a request up to one idle time later.
        let is_late = |idle: u32| self.now >= self.idle_since + 2 * idle && !self.is_busy;
        let is_meant_to_stay = self.is_held || self.is_kept;
        if self.is_mounted
            && is_meant_to_stay
            && self.end_requested.is_none()
            && self.idle.is_some_and(is_late)
        {
            return Err("stays mounted without a read".into());
        }
        if !self.is_mounted && !self.is_busy {
            return Err("the daemon runs without a mount".into());
        }
        Ok(())
    }
}

#[test]
fn every_mount_ends_on_time_and_not_before() {
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
