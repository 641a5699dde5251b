//! Memory: free memory, its limits, and the default cache size of a mount.

use rustix::process::{Resource, getrlimit};

use crate::cache;
use crate::os::memory::{self, Headroom};

/// Facts about memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The memory that this process may still allocate.
    pub left: Option<Headroom>,
    /// The cache size in bytes that a mount without --cache would choose now.
    pub cache: u64,
    /// The limit of the address space (ulimit -v) in bytes.
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
