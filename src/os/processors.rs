//! The number of CPU cores this process may use.

use std::sync::OnceLock;
use std::thread;

/// The number of CPU cores this process may use, limited by its CPU affinity and control groups.
/// Computed once, because it reads several files of /proc and /sys.
pub fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}
