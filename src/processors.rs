//! How many CPU cores this process may use.

use std::sync::OnceLock;
use std::thread;

/// CPU cores that this process may use: those of its affinity, as far as its control groups allow.
/// Read once, because each read takes several files of /proc and /sys.
pub fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}
