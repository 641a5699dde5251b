//! Decides how long a mount is served.
//!
//! `EndPolicy` does no I/O and reads no clock: it gets events and the time, and returns what to do.
//! `daemon` does it.
//! Invariants: a mount is unmounted soon after its last lease has ended, and a daemon that was
//! asked to end does so within its grace period.
//!
//! | event | result |
//! |---|---|
//! | the last lease ends | after the linger time: unmount, lazily if in use; serve open files |
//! | SIGTERM, SIGHUP while leases are held | serve, at most for the grace; then unmount, exit |
//! | SIGTERM, SIGHUP to a kept mount | unmount when not in use; after the grace lazily; exit |
//! | the same, where signals detach | unmount, lazily if in use; serve open files |
//! | SIGINT, or a second signal | unmount, lazily if in use; exit |
//! | no request or new lease for the idle time | unmount if not in use; else wait as long again |

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How often to retry unmounting a mount that is in use.
pub(crate) const UNMOUNT_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Grace period if the user sets none. Slurm usually sends SIGKILL 30 s after SIGTERM (KillWait).
const DEFAULT_GRACE: Duration = Duration::from_secs(20);

/// How long a mount stays, as set by the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lifetime {
    /// How long to serve after SIGTERM while the mount is in use; `None` for the default.
    pub grace: Option<Duration>,
    /// How long to stay mounted after the last lease has ended.
    pub linger: Duration,
    /// Time without a request until the mount is unmounted; `None` for never.
    pub idle: Option<Duration>,
    /// Whether SIGTERM unmounts at once, lazily, and open files are served until they are closed.
    pub detaches_on_signal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Serve, and check again when something happens, or at this time if there is one.
    Serve(Option<Instant>),
    /// Unmount if the mount is not in use; then call `note_unmounted` or `note_in_use`.
    UnmountIfIdle,
    /// Unmount, lazily if in use, and serve files still open.
    Unmount,
    /// Unmount, lazily if in use, and exit.
    Exit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holders {
    pub(crate) by_process: bool,
    /// Whether the mount stays until it is unmounted, even without leases.
    pub(crate) until_unmount: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EndPolicy {
    lifetime: Lifetime,
    default_grace: Duration,
    /// When the daemon was first asked to end.
    end_requested: Option<Instant>,
    /// Whether a signal has asked to unmount lazily and to serve open files.
    detach_requested: bool,
    end_now: bool,
    is_unmounted: bool,
    /// Since when nothing holds the mount.
    free_since: Option<Instant>,
    /// Start of the idle time, as far as known.
    idle_since: Instant,
    requests: u64,
    /// When to retry unmounting a mount that is in use.
    retry_at: Option<Instant>,
}

impl EndPolicy {
    pub(crate) fn new(lifetime: Lifetime, now: Instant) -> Self {
        Self {
            lifetime,
            default_grace: DEFAULT_GRACE,
            end_requested: None,
            detach_requested: false,
            end_now: false,
            is_unmounted: false,
            free_since: None,
            idle_since: now,
            requests: 0,
            retry_at: None,
        }
    }

    /// Keeps the default grace period below `kill_wait`, the time from SIGTERM to SIGKILL in Slurm.
    pub(crate) fn limit_default_grace(&mut self, kill_wait: Duration) {
        self.default_grace = DEFAULT_GRACE.min(kill_wait.saturating_mul(2) / 3);
    }

    pub(crate) fn grace(&self) -> Duration {
        self.lifetime.grace.unwrap_or(self.default_grace)
    }

    /// When the daemon must have exited, if it was asked to end.
    pub(crate) fn end_by(&self) -> Option<Instant> {
        self.end_requested.map(|end_requested| end_requested + self.grace())
    }

    /// Whether the daemon was asked to end, within the grace period or at once.
    pub(crate) fn is_end_requested(&self) -> bool {
        self.end_requested.is_some() || self.detach_requested || self.end_now
    }

    /// Notes that the daemon was asked to end. The second time it must end at once.
    pub(crate) fn request_end(&mut self, now: Instant) {
        if self.lifetime.detaches_on_signal && !self.detach_requested {
            self.detach_requested = true;
            return;
        }
        self.end_now |= self.end_requested.is_some() || self.detach_requested;
        self.end_requested.get_or_insert(now);
    }

    pub(crate) fn request_end_now(&mut self) {
        self.end_now = true;
    }

    pub(crate) fn note_unmounted(&mut self) {
        self.is_unmounted = true;
    }

    /// Notes that the mount was in use, so that it is not unmounted yet.
    pub(crate) fn note_in_use(&mut self, now: Instant) {
        self.retry_at = Some(now + UNMOUNT_RETRY_INTERVAL);
        self.idle_since = now;
    }

    /// Whether the mount would stay for a while without leases.
    pub(crate) fn lingers(&self) -> bool {
        !self.lifetime.linger.is_zero() && !self.is_end_requested()
    }

    /// Whether the mount ends now or has ended, whether or not it is held.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.is_unmounted
            || self.detach_requested
            || self.end_now
            || self.end_by().is_some_and(|end| now >= end)
    }

    /// What to do at `now`. `requests` counts the requests and the new leases since mounting.
    pub(crate) fn next(&mut self, now: Instant, holders: Holders, requests: u64) -> Step {
        if self.end_now || self.end_by().is_some_and(|end| now >= end) {
            return Step::Exit;
        }
        if self.is_unmounted {
            return Step::Serve(self.end_by());
        }
        if self.detach_requested {
            return Step::Unmount;
        }
        if holders.by_process {
            self.free_since = None;
            return self.serve_or_idle(now, requests);
        }
        match (holders.until_unmount, self.end_requested) {
            (true, None) => self.serve_or_idle(now, requests),
            (true, Some(_)) => self.unmount_when_idle(now),
            (false, _) => self.unmount_after_lingering(now),
        }
    }

    fn unmount_when_idle(&self, now: Instant) -> Step {
        match self.retry_at {
            Some(retry_at) if now < retry_at => {
                Step::Serve([Some(retry_at), self.end_by()].into_iter().flatten().min())
            }
            _ => Step::UnmountIfIdle,
        }
    }

    fn unmount_after_lingering(&mut self, now: Instant) -> Step {
        let since = *self.free_since.get_or_insert(now);
        let deadline = since + self.lifetime.linger;
        if self.end_requested.is_some() || now >= deadline {
            Step::Unmount
        } else {
            Step::Serve(Some(deadline))
        }
    }

    fn serve_or_idle(&mut self, now: Instant, requests: u64) -> Step {
        let Some(idle) = self.lifetime.idle.filter(|_| self.end_requested.is_none()) else {
            return Step::Serve(self.end_by());
        };
        if requests != self.requests {
            self.requests = requests;
            self.idle_since = now;
        }
        let deadline = self.idle_since + idle;
        if now >= deadline { Step::UnmountIfIdle } else { Step::Serve(Some(deadline)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Holders = Holders { by_process: false, until_unmount: false };
    const HELD: Holders = Holders { by_process: true, until_unmount: false };
    const KEPT: Holders = Holders { by_process: false, until_unmount: true };

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn unmounts_when_the_last_lease_ends() {
        let now = Instant::now();
        let mut policy = EndPolicy::new(Lifetime::default(), now);
        assert_eq!(policy.next(now, HELD, 0), Step::Serve(None));
        assert_eq!(policy.next(now, KEPT, 0), Step::Serve(None));
        assert_eq!(policy.next(now, FREE, 0), Step::Unmount);
        policy.note_unmounted();
        assert_eq!(policy.next(now + seconds(999), FREE, 0), Step::Serve(None), "open files");
    }

    #[test]
    fn detaches_on_the_first_signal_and_ends_on_the_second() {
        let now = Instant::now();
        let lifetime = Lifetime { detaches_on_signal: true, ..Lifetime::default() };
        let mut policy = EndPolicy::new(lifetime, now);
        assert_eq!(policy.next(now, KEPT, 0), Step::Serve(None));
        policy.request_end(now);
        assert!(policy.is_over(now));
        assert_eq!(policy.next(now, KEPT, 0), Step::Unmount);
        policy.note_unmounted();
        assert_eq!(policy.next(now + seconds(999), KEPT, 0), Step::Serve(None), "open files");
        policy.request_end(now);
        assert_eq!(policy.next(now, KEPT, 0), Step::Exit);
    }

    #[test]
    fn lingers_until_a_new_lease() {
        let now = Instant::now();
        let lifetime = Lifetime { linger: seconds(5), ..Lifetime::default() };
        let mut policy = EndPolicy::new(lifetime, now);
        assert!(policy.lingers());
        assert_eq!(policy.next(now, FREE, 0), Step::Serve(Some(now + seconds(5))));
        assert_eq!(policy.next(now + seconds(4), HELD, 0), Step::Serve(None));
        let later = now + seconds(100);
        assert_eq!(policy.next(later, FREE, 0), Step::Serve(Some(later + seconds(5))));
        assert_eq!(policy.next(later + seconds(5), FREE, 0), Step::Unmount);
        // A daemon that was asked to end does not linger.
        let mut policy = EndPolicy::new(lifetime, now);
        policy.request_end(now);
        assert!(!policy.lingers());
        assert_eq!(policy.next(now, FREE, 0), Step::Unmount);
    }

    #[test]
    fn serves_for_the_grace_period_while_held() {
        let now = Instant::now();
        let end = now + seconds(20);
        let mut policy = EndPolicy::new(Lifetime::default(), now);
        policy.request_end(now);
        assert_eq!(policy.next(now, HELD, 0), Step::Serve(Some(end)));
        assert_eq!(policy.next(end - seconds(1), FREE, 0), Step::Unmount);
        assert_eq!(policy.next(end - seconds(1), HELD, 0), Step::Serve(Some(end)));
        assert!(!policy.is_over(end - seconds(1)) && policy.is_over(end));
        assert_eq!(policy.next(end, HELD, 0), Step::Exit);
        // After a lazy unmount, open files are served no longer than that either.
        let mut policy = EndPolicy::new(Lifetime::default(), now);
        policy.request_end(now);
        assert_eq!(policy.next(now, FREE, 0), Step::Unmount);
        policy.note_unmounted();
        assert_eq!(policy.next(now, FREE, 0), Step::Serve(Some(end)));
        assert_eq!(policy.next(end, FREE, 0), Step::Exit);
    }

    #[test]
    fn the_default_grace_ends_before_slurm_kills() {
        let now = Instant::now();
        for (kill_wait, grace) in [(30, 20_000), (10, 6_666), (5, 3_333), (600, 20_000), (0, 0)] {
            let mut policy = EndPolicy::new(Lifetime::default(), now);
            policy.request_end(now);
            assert_eq!(policy.next(now, HELD, 0), Step::Serve(Some(now + seconds(20))));
            // Slurm's answer may arrive after the signal.
            policy.limit_default_grace(seconds(kill_wait));
            assert_eq!(policy.grace().as_millis(), grace, "{kill_wait}");
            let end = now + policy.grace();
            assert!(policy.is_over(end) && !policy.is_over(end - Duration::from_millis(1)));
        }
        // A grace period set by the user does not change.
        let lifetime = Lifetime { grace: Some(seconds(60)), ..Lifetime::default() };
        let mut policy = EndPolicy::new(lifetime, now);
        policy.limit_default_grace(seconds(10));
        assert_eq!(policy.grace(), seconds(60));
    }

    #[test]
    fn a_kept_mount_is_unmounted_once_not_in_use() {
        let now = Instant::now();
        let mut policy = EndPolicy::new(Lifetime::default(), now);
        policy.request_end(now);
        assert_eq!(policy.next(now, KEPT, 0), Step::UnmountIfIdle);
        policy.note_in_use(now);
        assert_eq!(policy.next(now, KEPT, 0), Step::Serve(Some(now + UNMOUNT_RETRY_INTERVAL)));
        assert_eq!(policy.next(now + UNMOUNT_RETRY_INTERVAL, KEPT, 0), Step::UnmountIfIdle);
        assert_eq!(policy.next(now + seconds(20), KEPT, 0), Step::Exit);
    }

    #[test]
    fn sigint_or_a_second_signal_ends_it_at_once() {
        let now = Instant::now();
        let mut policy = EndPolicy::new(Lifetime::default(), now);
        policy.request_end(now);
        policy.request_end(now);
        assert_eq!(policy.next(now, HELD, 0), Step::Exit);
        let mut policy = EndPolicy::new(Lifetime::default(), now);
        assert!(!policy.is_over(now));
        policy.request_end_now();
        assert!(policy.is_over(now));
        assert_eq!(policy.next(now, HELD, 0), Step::Exit);
    }

    #[test]
    fn an_idle_mount_is_unmounted_unless_in_use() {
        let now = Instant::now();
        let lifetime = Lifetime { idle: Some(seconds(60)), ..Lifetime::default() };
        let mut policy = EndPolicy::new(lifetime, now);
        assert_eq!(policy.next(now, KEPT, 0), Step::Serve(Some(now + seconds(60))));
        let later = now + seconds(59);
        assert_eq!(policy.next(later, KEPT, 7), Step::Serve(Some(later + seconds(60))));
        let idle_end = later + seconds(60);
        assert_eq!(policy.next(idle_end, KEPT, 7), Step::UnmountIfIdle);
        policy.note_in_use(idle_end);
        assert_eq!(policy.next(idle_end, KEPT, 7), Step::Serve(Some(idle_end + seconds(60))));
        assert_eq!(policy.next(idle_end + seconds(60), HELD, 7), Step::UnmountIfIdle);
    }
}
