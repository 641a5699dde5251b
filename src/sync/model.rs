//! Locks and threads of a model checker, and how it is run.
//!
//! Owns the stand-ins for what `sync` exports and the choice of schedules; leaves what has to hold
//! to the models, which stand beside what they check in modules called `model`.
//! Invariant: everything that a model does is decided by its schedule, so a failing one, which is
//! printed, can be played again.
//!
//! The problem: a wake-up that is lost or a check outside a lock needs one order of events among
//! millions, and a test with real threads tries those that the machine happens to take. The idea:
//! under shuttle all threads of a model run as coroutines of one, and wherever one of them touches
//! a lock, a condition or an atomic, the checker says who goes on. So it may try any order, and
//! knows when nobody can go on, which is a deadlock or a wake-up that never came. Three ways to
//! choose:
//!
//! - at random;
//! - by priorities that change at a few random places (PCT), which finds what needs few switches at
//!   odd moments;
//! - each order there is, one after the other, for the smallest models.
//!
//! Why shuttle, and not loom: loom tries every order and every value that a weakly ordered load may
//! see, which for a cache with three threads takes for ever. The cost: here atomics are as if all
//! were `SeqCst`, so what rests on `Relaxed` being enough is not shown (the alarm of `stats`, the
//! bytes that were handed out of a block). Nothing that is modelled waits for an atomic.
//!
//! There is no time. A wait with a limit either ends by a wake-up, for which it waits for ever, or
//! by its limit, as soon as others were let go first; a random number chooses. So what only the
//! limit would save is found.
//!
//! `ARCHFS_MODEL_ITERATIONS` is how many schedules of either kind each model gets, `ARCHFS_SEED`
//! chooses others, `ARCHFS_MODEL_SCHEDULE` plays one again.

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

/// What `std::thread` has, of the model.
pub mod thread {
    pub use shuttle::thread::*;
    pub use std::thread::available_parallelism;
}

/// Schedules of either kind for each model.
const ITERATIONS: usize = 10_000;

/// Switches between two tasks that PCT places.
const SWITCHES: usize = 3;

/// Steps after which a model is taken to run for ever.
const STEPS_MAX: usize = 50_000;

/// The stack of a thread of a model, bytes: a panic in it needs more than shuttle's usual.
const STACK: usize = 256 << 10;

/// Runs `model` under random schedules and under PCT.
///
/// # Panics
/// Where the model does under one of them, after printing it; also where no thread can go on.
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

/// Runs `model`, which uses no wait with a limit, under every schedule there is; tells how many.
///
/// # Panics
/// As `check`; also where there are more than `most`, so that a model that has grown is noticed.
pub(crate) fn check_all(most: usize, model: impl Fn() + Send + Sync + 'static) -> usize {
    if let Ok(schedule) = env::var("ARCHFS_MODEL_SCHEDULE") {
        return run(ReplayScheduler::new_from_encoded(&schedule), model);
    }
    let count = run(DfsScheduler::new(Some(most), false), model);
    assert!(count < most, "more than {most} schedules");
    println!("{count} schedules, all there are");
    count
}

/// Under which schedule `model` was found to be wrong, counted from 1, and what was said then.
///
/// # Panics
/// Where it is not found.
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
    // Of orderings weaker than SeqCst, see above.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(model)
}

fn number(variable: &str, default: usize) -> usize {
    env::var(variable).map_or(default, |value| value.parse().expect(variable))
}

/// A lock that no panic poisons, as `parking_lot` has it.
#[derive(Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

/// The lock, held.
pub struct MutexGuard<'m, T> {
    lock: &'m shuttle::sync::Mutex<T>,
    /// `None` while a condition is waited for.
    held: Option<shuttle::sync::MutexGuard<'m, T>>,
}

impl<T> Mutex<T> {
    /// A lock of `value`.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { lock: &self.0, held: Some(held) }
    }

    /// The lock, if nobody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { lock: &self.0, held: Some(held) })
    }

    /// What it guards.
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

/// A condition to wait for.
#[derive(Debug, Default)]
pub struct Condvar(shuttle::sync::Condvar);

/// Whether a wait ended by its limit.
#[derive(Clone, Copy, Debug)]
pub struct WaitTimeoutResult(bool);

impl Condvar {
    /// One that nobody waits for.
    pub const fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    /// Waits without the lock until woken.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().expect("held before a wait");
        guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// The same, for ever or for as long as others take.
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

    /// Wakes any one of those who wait.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl WaitTimeoutResult {
    /// Whether it did.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}
