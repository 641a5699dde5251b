//! The locks and atomics of the crate, so that tests can replace them with a model checker's.
//!
//! Invariants: no other file names `parking_lot` or `std::sync` locks; only unit tests with the
//! feature `model` get replacements.

pub use std::sync::OnceLock;
pub use std::sync::{Arc, Weak};

#[cfg(not(all(test, feature = "model")))]
pub use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(all(test, feature = "model")))]
pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(all(test, feature = "model")))]
pub use std::thread;

#[cfg(all(test, feature = "model"))]
pub(crate) mod model;
#[cfg(all(test, feature = "model"))]
pub use model::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, thread};
