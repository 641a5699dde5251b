//! Signals that ask a long operation in this process to stop.
//!
//! The operation polls a flag. The first signal only sets the flag, so that the operation can clean
//! up. The second signal ends the process as it does by default. The daemon (`signals`) and `run`
//! (`relay`) handle signals in their own way.

use std::io;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Error, Result};
use crate::lifecycle::daemon::signals::is_ignored;
use crate::os::signal;
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering};

/// Whether this process was asked to stop.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    is_requested: Arc<AtomicBool>,
    /// The signal; 0 before the first one.
    signal: Arc<AtomicU64>,
}

impl Interrupt {
    /// Starts to note SIGINT, SIGTERM and SIGHUP, except those that this process was started to
    /// ignore.
    pub fn watch() -> Result<Self> {
        let failed = |error: io::Error| Error::io("signal handlers: cannot be installed", error);
        let handled = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal));
        let mut signals = Signals::new(handled).map_err(failed)?;
        let interrupt = Self::default();
        let shared = interrupt.clone();
        let note_signals = move || {
            for signal in &mut signals {
                if shared.is_requested.load(Ordering::Relaxed) {
                    signal::end_process(signal);
                }
                shared.signal.store(u64::from(signal.unsigned_abs()), Ordering::Relaxed);
                shared.is_requested.store(true, Ordering::Relaxed);
            }
        };
        thread::Builder::new().name("signals".into()).spawn(note_signals).map_err(failed)?;
        Ok(interrupt)
    }

    /// Set when the operation must stop.
    pub fn flag(&self) -> &AtomicBool {
        &self.is_requested
    }

    /// Number of the signal that asked the operation to stop.
    pub fn signal(&self) -> Option<u8> {
        let signal = self.signal.load(Ordering::Relaxed);
        u8::try_from(signal).ok().filter(|&signal| signal > 0)
    }
}
