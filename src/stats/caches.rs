//! What the caches of a mount did.
//!
//! Owns the numbers and whom to ask for them; leaves counting to `cache`.
//! Invariant: a cache that was watched is asked for as long as its mount lasts, so no count is
//! lost.

use std::fmt;
use std::iter::Sum;

use serde::Serialize;

use crate::sync::Arc;

/// What a cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    /// Decoded metadata: inodes, directories, lists of blocks.
    Metadata,
    /// Decoded contents of files: blocks of images, chunks of compressed tars.
    Data,
}

/// What a cache did so far, and what it keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheCounts {
    /// Requests that found their block.
    pub hits: u64,
    /// Requests that loaded it, or failed to.
    pub loads: u64,
    /// Requests that waited for somebody else's load.
    pub waits: u64,
    /// Blocks dropped to make room.
    pub evictions: u64,
    /// What was loaded, decoded bytes.
    pub loaded_bytes: u64,
    /// The memory that what is kept takes now, bytes.
    pub held_bytes: u64,
}

impl CacheCounts {
    /// How many of a thousand requests found their block; `None` where there were none.
    pub fn hits_per_thousand(&self) -> Option<u64> {
        let all = self.hits + self.loads + self.waits;
        self.hits.saturating_mul(1000).checked_div(all)
    }
}

impl Sum for CacheCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, one| Self {
            hits: sum.hits + one.hits,
            loads: sum.loads + one.loads,
            waits: sum.waits + one.waits,
            evictions: sum.evictions + one.evictions,
            loaded_bytes: sum.loaded_bytes + one.loaded_bytes,
            held_bytes: sum.held_bytes + one.held_bytes,
        })
    }
}

/// Tells what one cache did so far.
type Source = Arc<dyn Fn() -> CacheCounts + Send + Sync>;

/// The caches of a mount.
#[derive(Default)]
pub(super) struct Caches(Vec<(CacheKind, Source)>);

impl Caches {
    pub(super) fn push(&mut self, kind: CacheKind, source: Source) {
        self.0.push((kind, source));
    }

    pub(super) fn counts(&self, wanted: CacheKind) -> CacheCounts {
        self.0.iter().filter(|(kind, _)| *kind == wanted).map(|(_, source)| source()).sum()
    }
}

impl fmt::Debug for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} caches", self.0.len())
    }
}
