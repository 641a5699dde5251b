//! How long a mount is served.
//!
//! Owns the rules: what leases, signals, time-outs and the end of the session lead to. Pure: told
//! what happened and what time it is, it says what to do; `daemon` does it.
//! Invariants: a mount goes within moments of its last lease, and a daemon that was asked to end
//! does within its grace.
//!
//! | what happens | what follows |
//! |---|---|
//! | the last lease ends | after the linger time: unmount, lazily if busy; serve files still open |
//! | SIGTERM, SIGHUP while leases are held | serve on, at most for the grace; then unmount, exit |
//! | SIGTERM, SIGHUP to a kept mount | unmount once it is not busy; after the grace lazily, exit |
//! | SIGINT, or a second signal | unmount, lazily if busy; exit |
//! | no request or new lease for the idle time | unmount if not busy, else wait as long again |

use std::time::{Duration, Instant};

/// How often a busy mount that shall go is tried again.
pub(in crate::lifecycle) const TRY_AGAIN: Duration = Duration::from_millis(200);

/// How long to serve on after SIGTERM where the user does not say. Slurm usually leaves 30 s until
/// SIGKILL (KillWait).
const GRACE: Duration = Duration::from_secs(20);

/// How long a mount holds, as the user set it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// How long to serve on after SIGTERM while the mount is in use; `None` for the default.
    pub grace: Option<Duration>,
    /// How long to stay mounted when the last lease has ended.
    pub linger: Duration,
    /// How long without a request until it goes by itself; `None` for never.
    pub idle: Option<Duration>,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) enum Step {
    /// Serve, and look again at that time, if at any, or when something happens.
    Serve(Option<Instant>),
    /// Unmount if nobody uses it, and tell whether that worked.
    UnmountIfIdle,
    /// Unmount, lazily if somebody uses it, and serve files still open.
    Unmount,
    /// Unmount, lazily if somebody uses it, and end.
    Exit,
}

/// Who holds the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) struct Holders {
    /// Whether a process holds a lease.
    pub(in crate::lifecycle) by_process: bool,
    /// Whether it shall hold until somebody unmounts.
    pub(in crate::lifecycle) kept: bool,
}

/// The state of one mount.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::lifecycle) struct EndPolicy {
    lifetime: Lifetime,
    /// The grace where the user does not say.
    default_grace: Duration,
    /// When the daemon was asked to end.
    asked: Option<Instant>,
    at_once: bool,
    unmounted: bool,
    /// Since when nobody holds it.
    free_since: Option<Instant>,
    /// Since when no request came, as far as anybody looked.
    idle_since: Instant,
    requests: u64,
    /// When a busy mount may be tried again.
    try_at: Option<Instant>,
}

impl EndPolicy {
    /// Mounted at `now`.
    pub(in crate::lifecycle) fn new(lifetime: Lifetime, now: Instant) -> Self {
        Self {
            lifetime,
            default_grace: GRACE,
            asked: None,
            at_once: false,
            unmounted: false,
            free_since: None,
            idle_since: now,
            requests: 0,
            try_at: None,
        }
    }

    /// Keeps the default grace below the time that Slurm leaves between SIGTERM and SIGKILL.
    pub(in crate::lifecycle) fn stay_below(&mut self, kill_wait: Duration) {
        self.default_grace = GRACE.min(kill_wait.saturating_mul(2) / 3);
    }

    /// How long it is served after SIGTERM.
    pub(in crate::lifecycle) fn grace(&self) -> Duration {
        self.lifetime.grace.unwrap_or(self.default_grace)
    }

    /// When the daemon must have ended, once it was asked to.
    pub(in crate::lifecycle) fn end_by(&self) -> Option<Instant> {
        self.asked.map(|asked| asked + self.grace())
    }

    /// Whether it was asked to end, within its grace or at once.
    pub(in crate::lifecycle) fn is_asked(&self) -> bool {
        self.asked.is_some() || self.at_once
    }

    /// Somebody asked the daemon to end.
    pub(in crate::lifecycle) fn ask(&mut self, now: Instant) {
        self.at_once |= self.asked.is_some();
        self.asked.get_or_insert(now);
    }

    /// Somebody asked it to end at once.
    pub(in crate::lifecycle) fn ask_at_once(&mut self) {
        self.at_once = true;
    }

    /// It was unmounted.
    pub(in crate::lifecycle) fn unmounted(&mut self) {
        self.unmounted = true;
    }

    /// It was in use, so it is not unmounted yet.
    pub(in crate::lifecycle) fn busy(&mut self, now: Instant) {
        self.try_at = Some(now + TRY_AGAIN);
        self.idle_since = now;
    }

    /// Whether it would stay for a while without leases.
    pub(in crate::lifecycle) fn lingers(&self) -> bool {
        !self.lifetime.linger.is_zero() && self.asked.is_none()
    }

    /// Whether it goes now, or is gone, whoever holds it.
    pub(in crate::lifecycle) fn is_over(&self, now: Instant) -> bool {
        self.unmounted || self.at_once || self.end_by().is_some_and(|end| now >= end)
    }

    /// What to do at `now`, held by `held`, when that many requests came, and leases were given,
    /// since it was mounted.
    pub(in crate::lifecycle) fn next(
        &mut self,
        now: Instant,
        held: Holders,
        requests: u64,
    ) -> Step {
        if self.at_once || self.end_by().is_some_and(|end| now >= end) {
            return Step::Exit;
        }
        if self.unmounted {
            return Step::Serve(self.end_by());
        }
        if held.by_process {
            self.free_since = None;
            return self.serve_or_idle(now, requests);
        }
        match (held.kept, self.asked) {
            (true, None) => self.serve_or_idle(now, requests),
            (true, Some(_)) => self.unmount_when_idle(now),
            (false, _) => self.unmount_after_lingering(now),
        }
    }

    fn unmount_when_idle(&self, now: Instant) -> Step {
        match self.try_at {
            Some(at) if now < at => {
                Step::Serve([Some(at), self.end_by()].into_iter().flatten().min())
            }
            _ => Step::UnmountIfIdle,
        }
    }

    fn unmount_after_lingering(&mut self, now: Instant) -> Step {
        let since = *self.free_since.get_or_insert(now);
        let goes = since + self.lifetime.linger;
        if self.asked.is_some() || now >= goes { Step::Unmount } else { Step::Serve(Some(goes)) }
    }

    fn serve_or_idle(&mut self, now: Instant, requests: u64) -> Step {
        let Some(idle) = self.lifetime.idle.filter(|_| self.asked.is_none()) else {
            return Step::Serve(self.end_by());
        };
        if requests != self.requests {
            self.requests = requests;
            self.idle_since = now;
        }
        let goes = self.idle_since + idle;
        if now >= goes { Step::UnmountIfIdle } else { Step::Serve(Some(goes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Holders = Holders { by_process: false, kept: false };
    const HELD: Holders = Holders { by_process: true, kept: false };
    const KEPT: Holders = Holders { by_process: false, kept: true };

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn goes_with_the_last_lease() {
        let now = Instant::now();
        let mut hold = EndPolicy::new(Lifetime::default(), now);
        assert_eq!(hold.next(now, HELD, 0), Step::Serve(None));
        assert_eq!(hold.next(now, KEPT, 0), Step::Serve(None));
        assert_eq!(hold.next(now, FREE, 0), Step::Unmount);
        hold.unmounted();
        assert_eq!(hold.next(now + seconds(999), FREE, 0), Step::Serve(None), "open files");
    }

    #[test]
    fn lingers_until_somebody_comes_back() {
        let now = Instant::now();
        let lifetime = Lifetime { linger: seconds(5), ..Lifetime::default() };
        let mut hold = EndPolicy::new(lifetime, now);
        assert!(hold.lingers());
        assert_eq!(hold.next(now, FREE, 0), Step::Serve(Some(now + seconds(5))));
        assert_eq!(hold.next(now + seconds(4), HELD, 0), Step::Serve(None));
        let later = now + seconds(100);
        assert_eq!(hold.next(later, FREE, 0), Step::Serve(Some(later + seconds(5))));
        assert_eq!(hold.next(later + seconds(5), FREE, 0), Step::Unmount);
        // Asked to end, there is no time to linger.
        let mut hold = EndPolicy::new(lifetime, now);
        hold.ask(now);
        assert!(!hold.lingers());
        assert_eq!(hold.next(now, FREE, 0), Step::Unmount);
    }

    #[test]
    fn serves_on_for_the_grace_while_held() {
        let now = Instant::now();
        let end = now + seconds(20);
        let mut hold = EndPolicy::new(Lifetime::default(), now);
        hold.ask(now);
        assert_eq!(hold.next(now, HELD, 0), Step::Serve(Some(end)));
        assert_eq!(hold.next(end - seconds(1), FREE, 0), Step::Unmount);
        assert_eq!(hold.next(end - seconds(1), HELD, 0), Step::Serve(Some(end)));
        assert!(!hold.is_over(end - seconds(1)) && hold.is_over(end));
        assert_eq!(hold.next(end, HELD, 0), Step::Exit);
        // After a lazy unmount files stay open no longer than that either.
        let mut hold = EndPolicy::new(Lifetime::default(), now);
        hold.ask(now);
        assert_eq!(hold.next(now, FREE, 0), Step::Unmount);
        hold.unmounted();
        assert_eq!(hold.next(now, FREE, 0), Step::Serve(Some(end)));
        assert_eq!(hold.next(end, FREE, 0), Step::Exit);
    }

    #[test]
    fn the_default_grace_ends_before_slurm_kills() {
        let now = Instant::now();
        for (kill_wait, grace) in [(30, 20_000), (10, 6_666), (5, 3_333), (600, 20_000), (0, 0)] {
            let mut hold = EndPolicy::new(Lifetime::default(), now);
            hold.ask(now);
            assert_eq!(hold.next(now, HELD, 0), Step::Serve(Some(now + seconds(20))));
            // Slurm was asked before, and has answered since.
            hold.stay_below(seconds(kill_wait));
            assert_eq!(hold.grace().as_millis(), grace, "{kill_wait}");
            let end = now + hold.grace();
            assert!(hold.is_over(end) && !hold.is_over(end - Duration::from_millis(1)));
        }
        // The user's own stays.
        let lifetime = Lifetime { grace: Some(seconds(60)), ..Lifetime::default() };
        let mut hold = EndPolicy::new(lifetime, now);
        hold.stay_below(seconds(10));
        assert_eq!(hold.grace(), seconds(60));
    }

    #[test]
    fn a_kept_mount_waits_until_it_is_not_busy() {
        let now = Instant::now();
        let mut hold = EndPolicy::new(Lifetime::default(), now);
        hold.ask(now);
        assert_eq!(hold.next(now, KEPT, 0), Step::UnmountIfIdle);
        hold.busy(now);
        assert_eq!(hold.next(now, KEPT, 0), Step::Serve(Some(now + TRY_AGAIN)));
        assert_eq!(hold.next(now + TRY_AGAIN, KEPT, 0), Step::UnmountIfIdle);
        assert_eq!(hold.next(now + seconds(20), KEPT, 0), Step::Exit);
    }

    #[test]
    fn a_second_signal_or_an_urgent_one_ends_it() {
        let now = Instant::now();
        let mut hold = EndPolicy::new(Lifetime::default(), now);
        hold.ask(now);
        hold.ask(now);
        assert_eq!(hold.next(now, HELD, 0), Step::Exit);
        let mut hold = EndPolicy::new(Lifetime::default(), now);
        assert!(!hold.is_over(now));
        hold.ask_at_once();
        assert!(hold.is_over(now));
        assert_eq!(hold.next(now, HELD, 0), Step::Exit);
    }

    #[test]
    fn an_idle_mount_goes_unless_it_is_in_use() {
        let now = Instant::now();
        let lifetime = Lifetime { idle: Some(seconds(60)), ..Lifetime::default() };
        let mut hold = EndPolicy::new(lifetime, now);
        assert_eq!(hold.next(now, KEPT, 0), Step::Serve(Some(now + seconds(60))));
        let later = now + seconds(59);
        assert_eq!(hold.next(later, KEPT, 7), Step::Serve(Some(later + seconds(60))));
        let quiet = later + seconds(60);
        assert_eq!(hold.next(quiet, KEPT, 7), Step::UnmountIfIdle);
        hold.busy(quiet);
        assert_eq!(hold.next(quiet, KEPT, 7), Step::Serve(Some(quiet + seconds(60))));
        assert_eq!(hold.next(quiet + seconds(60), HELD, 7), Step::UnmountIfIdle);
    }
}
