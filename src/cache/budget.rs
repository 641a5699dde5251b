//! How much memory the cache may use by default.
//!
//! Owns the share: a quarter of what the job may use, at most 16 GiB; an eighth where that is so
//! little that what the cache does not count is more than another quarter. Leaves finding out what
//! the job may use to `memory`.

use crate::memory;

/// The largest default, bytes.
const MOST: u64 = 16 << 30;

/// The default where nothing is known, and the least that a job with room for it gets, bytes.
const USUAL: u64 = 64 << 20;

/// The least there is, bytes: with less every block would be decoded for each read of it.
const LEAST: u64 = 4 << 20;

/// The default budget, bytes.
pub fn default_bytes() -> u64 {
    share(memory::limit())
}

fn share(available: Option<u64>) -> u64 {
    match available {
        None => USUAL,
        Some(bytes) if bytes / 4 >= USUAL => (bytes / 4).min(MOST),
        Some(bytes) => (bytes / 8).max(LEAST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_quarter_or_of_little_an_eighth() {
        assert_eq!(share(Some(8 << 30)), 2 << 30);
        assert_eq!(share(Some(256 << 20)), 64 << 20);
        assert_eq!(share(Some((256 << 20) - 8)), (32 << 20) - 1);
        assert_eq!(share(Some(64 << 20)), 8 << 20);
        assert_eq!(share(Some(1 << 20)), 4 << 20);
        assert_eq!(share(Some(1 << 50)), 16 << 30);
        assert_eq!(share(None), 64 << 20);
    }
}
