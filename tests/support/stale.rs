//! Keeps apart the tests that leave something stale behind and those that run `gc`.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};

use super::{cache_directory, turn};

/// One test of one user at a time: `gc` of one would clear what another has left behind. A lock on
/// a file, because modules run in processes of their own.
#[must_use]
pub fn one_at_a_time() -> File {
    turn::take();
    let lock = File::create(cache_directory().join("stale.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    lock
}
