//! Faults of archfs itself, made on demand, so that tests see what a mount does then.
//!
//! Owns the variable that names the place of the fault. Invariant: only builds with debug
//! assertions have any of it; a release neither reads the variable nor knows its name.

/// Panics if ARCHFS_PANIC_AT names `place`.
#[cfg(debug_assertions)]
pub fn panic_at(place: &str) {
    use crate::sync::OnceLock;
    static PLACE: OnceLock<Option<String>> = OnceLock::new();
    let chosen = PLACE.get_or_init(|| std::env::var("ARCHFS_PANIC_AT").ok());
    assert!(chosen.as_deref() != Some(place), "injected in {place}");
}

/// Does nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn panic_at(_place: &str) {}
