//! Signal calls without a safe wrapper: masks, actions, and sending one by number.

#![expect(unsafe_code, reason = "no crate in use offers these as safe calls")]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::thread;

use rustix::process::Pid;

/// A set of blocked signals.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

impl Mask {
    /// The mask that blocks `signals`.
    fn of(signals: &[i32]) -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the pointer is to a set in this stack frame, which the first call initializes.
        // For a number that is not a signal, the other calls return an error.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), *signal);
            }
            Self(set.assume_init())
        }
    }

    /// The mask that blocks no signal.
    pub(crate) fn none() -> Self {
        Self::of(&[])
    }

    /// Unblocks all signals in this thread and in those that it starts later; returns the previous
    /// mask.
    pub(crate) fn clear() -> Self {
        Self::none().replace()
    }

    /// Makes this the mask of this thread and of those that it starts later; returns the previous
    /// mask.
    fn replace(self) -> Self {
        let mut before = MaybeUninit::zeroed();
        // SAFETY: both pointers are to sets in this stack frame. If the call fails, zeros are a
        // valid set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, before.as_mut_ptr());
            Self(before.assume_init())
        }
    }

    /// Makes `command` start with this mask; by default it inherits that of the thread that starts
    /// it. That one is not changed, not even for a moment, because the thread could then receive a
    /// signal.
    pub(crate) fn pass_to(self, command: &mut Command) {
        let set_mask = move || {
            // SAFETY: the set is valid, and a null pointer for the old set is allowed.
            match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) } {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        };
        // SAFETY: between fork and exec the closure makes one call, which is async-signal-safe, and
        // allocates nothing.
        unsafe { command.pre_exec(set_mask) };
    }
}

/// Starts a thread that receives the `signals` to this process; this thread, and those that it
/// starts later, have them blocked. So the handlers run in the order in which the signals were
/// sent, or SIGCONT first. Programs inherit the mask (`Mask::pass_to`). Does nothing if no thread
/// can be started.
pub(crate) fn receive_in_one_thread(signals: &[i32]) {
    let wait_for_signals = || {
        Mask::clear();
        loop {
            // SAFETY: the call has no arguments, and returns after a handler.
            unsafe { libc::pause() };
        }
    };
    let before = Mask::of(signals).replace();
    if thread::Builder::new().name("signals".into()).spawn(wait_for_signals).is_err() {
        before.replace();
    }
}

/// Ignores `signal` in this process and in the programs that it starts.
pub(crate) fn ignore(signal: i32) {
    // SAFETY: no handler is installed. For a signal that cannot be ignored, the call returns an
    // error.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Gives `signal` its default action, whatever the program that started this one chose.
pub(crate) fn restore_default(signal: i32) {
    // SAFETY: no handler is installed. For a signal whose action cannot change, the call returns an
    // error.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Sends `signal` to `process`, which may have ended.
pub(crate) fn send(process: Pid, signal: i32) {
    // SAFETY: the call accesses no memory of this process.
    unsafe { libc::kill(process.as_raw_nonzero().get(), signal) };
}
