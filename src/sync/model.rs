//! Locks and threads for model checking, and how models are run.
//!
//! The models are in modules called `model`, next to the code they check. Invariant: a model's
//! behavior depends only on its schedule, so a failing schedule, which is printed, can be
//! replayed.
//!
//! The problem: a lost wake-up or a check outside a lock shows only in one interleaving among
//! millions, and a test with real threads tries those that the machine happens to produce. The
//! idea: under shuttle all threads of a model run as coroutines of one thread. Whenever one of them
//! uses a lock, a condition variable or an atomic, the checker chooses which one continues. So it
//! can try any interleaving. It also notices when no thread can continue, which is a deadlock or a
//! lost wake-up. There are three ways to choose:
//!
//! - at random;
//! - by priorities that change at a few random points (PCT), which finds bugs that need few
//!   switches at unusual moments;
//! - exhaustively, for the smallest models.
//!
//! Why shuttle and not loom: loom tries every interleaving and every value that a weakly ordered
//! load may see, which takes forever for a cache with three threads. The cost: all atomics behave
//! as if they were `SeqCst`. So the models do not show that `Relaxed` is enough (the alarm of
//! `stats`, the bytes handed out of a block). No modeled code waits for an atomic.
//!
//! There is no time. A wait with a limit randomly either has no limit, or times out after other
//! threads had a chance to run. So the checker finds wake-ups that only the limit would save.
//!
//! `ARCHFS_MODEL_ITERATIONS` is the number of schedules of each kind per model, `ARCHFS_SEED`
//! selects other schedules, and `ARCHFS_MODEL_SCHEDULE` replays one.

use std::env;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};

pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The model's replacement for `std::thread`.
pub mod thread {
    pub use shuttle::thread::*;
    pub use std::thread::available_parallelism;
}

/// Schedules of each kind per model.
const ITERATIONS: usize = 10_000;

/// Context switches that PCT places.
const SWITCHES: usize = 3;

/// Steps after which a model counts as running forever.
const STEPS_MAX: usize = 50_000;

/// The stack of a model thread, in bytes: a panic needs more than shuttle's default.
const STACK: usize = 256 << 10;

/// Runs `model` under random schedules and under PCT.
///
/// # Panics
/// If the model panics under a schedule, which is printed, or if no thread can continue.
pub(crate) fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
    if let Ok(schedule) = env::var("ARCHFS_MODEL_SCHEDULE") {
        run(ReplayScheduler::new_from_encoded(&schedule), model);
        return;
    }
    let (iterations, seed) =
        (number("ARCHFS_MODEL_ITERATIONS", ITERATIONS), number("ARCHFS_SEED", 1));
    run(RandomScheduler::new_from_seed(seed as u64, iterations), model.clone());
    run(PctScheduler::new_from_seed(seed as u64, SWITCHES, iterations), model);
}

/// Runs `model`, which uses no wait with a limit, under every schedule. Returns their number.
///
/// # Panics
/// As `check`; also if there are more than `most` schedules, so that growth of a model is noticed.
pub(crate) fn check_all(most: usize, model: impl Fn() + Send + Sync + 'static) -> usize {
    if let Ok(schedule) = env::var("ARCHFS_MODEL_SCHEDULE") {
        return run(ReplayScheduler::new_from_encoded(&schedule), model);
    }
    let count = run(DfsScheduler::new(Some(most), false), model);
    assert!(count < most, "more than {most} schedules");
    println!("{count} schedules, all there are");
    count
}

/// The number of the first schedule, counted from 1, that fails `model`, and the panic message.
///
/// # Panics
/// If no schedule fails.
pub(crate) fn caught(model: impl Fn() + Send + Sync + Clone + 'static) -> (usize, String) {
    let begun = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&begun);
    let model = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| check(model)));
    let begun = begun.load(Ordering::Relaxed);
    let panic = outcome.expect_err("the checker finds what is wrong");
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
    println!("caught under schedule {begun}: {text:?}");
    (begun, text.unwrap_or_default())
}

fn run(scheduler: impl Scheduler + 'static, model: impl Fn() + Send + Sync + 'static) -> usize {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    // Warnings about orderings weaker than SeqCst, see above.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(model)
}

fn number(variable: &str, default: usize) -> usize {
    env::var(variable).map_or(default, |value| value.parse().expect(variable))
}

/// A lock that panics do not poison, like that of `parking_lot`.
#[derive(Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

/// Holds the lock.
pub struct MutexGuard<'m, T> {
    lock: &'m shuttle::sync::Mutex<T>,
    /// `None` during a wait on a condition variable.
    held: Option<shuttle::sync::MutexGuard<'m, T>>,
}

impl<T> Mutex<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { lock: &self.0, held: Some(held) }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { lock: &self.0, held: Some(held) })
    }

    /// Returns the guarded value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("held but for a wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("held but for a wait")
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(shuttle::sync::Condvar);

/// Whether a wait timed out.
#[derive(Clone, Copy, Debug)]
pub struct WaitTimeoutResult(bool);

impl Condvar {
    /// A condition variable without waiters.
    pub const fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    /// Releases the lock, waits for a notification, and takes the lock again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().expect("held before a wait");
        guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// Like `wait`, with a time-out at a random moment, or never.
    pub fn wait_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        _limit: Duration,
    ) -> WaitTimeoutResult {
        if thread_rng().gen_bool(0.75) {
            self.wait(guard);
            return WaitTimeoutResult(false);
        }
        guard.held = None;
        thread::yield_now();
        guard.held = Some(guard.lock.lock().unwrap_or_else(PoisonError::into_inner));
        WaitTimeoutResult(true)
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl WaitTimeoutResult {
    /// Whether the wait timed out.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}
