//! The one door to locks, so that tests can swap them for a model checker's.
//!
//! Owns the choice of lock; leaves to each user what its lock guards and in which order locks are
//! taken. Invariant: no other file names `parking_lot` or `std::sync` locks.

pub use parking_lot::{Condvar, Mutex, MutexGuard};
pub use std::sync::OnceLock;
pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub use std::sync::{Arc, Weak};
