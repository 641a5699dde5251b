//! A call when the next request comes.
//!
//! Owns whether somebody waits for one; leaves what is called to them. Invariants: while nobody
//! waits, a request pays for one look at a word that nobody writes; a call is made once for each
//! time that the alarm was set.

use std::fmt;

use crate::sync::{AtomicBool, OnceLock, Ordering};

/// What is called.
type Call = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
pub(super) struct Alarm {
    is_set: AtomicBool,
    call: OnceLock<Call>,
}

impl Alarm {
    /// Has `call` made by whoever sets the alarm off. Only the first one counts.
    pub(super) fn connect(&self, call: Call) {
        let _ = self.call.set(call);
    }

    /// Has the next request make the call. One that begins at the same moment may go unnoticed, so
    /// who must know of it looks at the number of requests afterwards.
    pub(super) fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
    }

    /// A request came.
    pub(super) fn notice(&self) {
        if self.is_set.load(Ordering::Relaxed) {
            self.go_off();
        }
    }

    #[cold]
    fn go_off(&self) {
        if self.is_set.swap(false, Ordering::Relaxed)
            && let Some(call) = self.call.get()
        {
            call();
        }
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set.load(Ordering::Relaxed) { "set" } else { "not set" })
    }
}
