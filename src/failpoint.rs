//! Faults injected on demand, for tests of how a mount reacts to bugs in archfs.
//!
//! Invariant: only builds with debug assertions contain this. A release build does not read the
//! variable and does not contain its name.

/// Panics if ARCHFS_PANIC_AT names `point`.
#[cfg(debug_assertions)]
pub fn panic_at(point: &str) {
    use crate::sync::OnceLock;
    static PLACE: OnceLock<Option<String>> = OnceLock::new();
    let chosen = PLACE.get_or_init(|| std::env::var("ARCHFS_PANIC_AT").ok());
    assert!(chosen.as_deref() != Some(point), "injected in {point}");
}

/// Does nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn panic_at(_place: &str) {}
