//! How much memory the cache may use by default.
//!
//! Owns the share: a quarter of what the job may use, between 64 MiB and 16 GiB. Leaves finding out
//! what that is to `memory`.

use crate::memory;

/// The smallest and the largest default, bytes.
const RANGE: (u64, u64) = (64 << 20, 16 << 30);

/// The default budget, bytes.
pub fn default_bytes() -> u64 {
    share(memory::limit())
}

fn share(available: Option<u64>) -> u64 {
    (available.unwrap_or(0) / 4).clamp(RANGE.0, RANGE.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_quarter_within_the_range() {
        assert_eq!(share(Some(8 << 30)), 2 << 30);
        assert_eq!(share(Some(1 << 20)), 64 << 20);
        assert_eq!(share(Some(1 << 50)), 16 << 30);
        assert_eq!(share(None), 64 << 20);
    }
}
