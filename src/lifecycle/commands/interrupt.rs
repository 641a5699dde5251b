//! Signals that ask a piece of work in this process to stop.
//!
//! Owns hearing of them; leaves stopping to the work, which looks at a flag. The daemon and `run`
//! have ways of their own (`signals`, `child`).
//! Invariant: the first signal only sets the flag, so that the work can clean up; a second one ends
//! the process as if nobody listened.

use std::io;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::error::{Error, Result};
use crate::lifecycle::daemon::signals::is_ignored;
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering};

/// Whether this process was asked to stop.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
    /// The signal, 0 before there was one.
    signal: Arc<AtomicU64>,
}

impl Interrupt {
    /// From now on SIGINT, SIGTERM and SIGHUP are noted, but for those that this process was
    /// started to ignore.
    ///
    /// # Errors
    /// `Io` where the system refuses.
    pub fn watch() -> Result<Self> {
        let failed = |error: io::Error| Error::io("can not watch for signals", error);
        let heeded = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal));
        let mut signals = Signals::new(heeded).map_err(failed)?;
        let interrupt = Self::default();
        let noted = interrupt.clone();
        let listen = move || {
            for signal in &mut signals {
                if noted.asked.load(Ordering::Relaxed) {
                    // It does not come back from that.
                    let _ = emulate_default_handler(signal);
                }
                noted.signal.store(u64::from(signal.unsigned_abs()), Ordering::Relaxed);
                noted.asked.store(true, Ordering::Relaxed);
            }
        };
        thread::Builder::new().name("signals".into()).spawn(listen).map_err(failed)?;
        Ok(interrupt)
    }

    /// Set when the work is to stop.
    pub fn flag(&self) -> &AtomicBool {
        &self.asked
    }

    /// The number of the signal that asked for it.
    pub fn signal(&self) -> Option<u8> {
        let signal = self.signal.load(Ordering::Relaxed);
        u8::try_from(signal).ok().filter(|&signal| signal > 0)
    }
}
