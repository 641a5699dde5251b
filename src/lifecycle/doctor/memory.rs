//! Memory: what is left, what bounds it, what a mount would take.
//!
//! Owns putting together what `memory` and `cache` know. Invariant: the cache told is the one that
//! a mount without --cache would choose now.

use rustix::process::{Resource, getrlimit};

use crate::cache;
use crate::memory::{self, Headroom};

/// What is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What this process may take besides what is taken.
    pub left: Option<Headroom>,
    /// What the cache of a mount would be, bytes.
    pub cache: u64,
    /// A limit of the address space (ulimit -v), bytes.
    pub address_space: Option<u64>,
}

impl Memory {
    pub(super) fn probe() -> Self {
        Self {
            left: memory::headroom(),
            cache: cache::default_bytes(),
            address_space: getrlimit(Resource::As).current,
        }
    }
}
