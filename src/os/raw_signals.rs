//! Signal calls without a safe wrapper: the mask, ignoring a signal, and sending one by number.

#![expect(unsafe_code, reason = "no crate in use offers these as safe calls")]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use rustix::process::Pid;

/// A set of blocked signals.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

impl Mask {
    /// Unblocks all signals in this thread and in those that it starts later; returns the previous
    /// mask.
    pub(crate) fn clear() -> Self {
        let mut empty = MaybeUninit::uninit();
        let mut before = MaybeUninit::zeroed();
        // SAFETY: both pointers are to sets in this stack frame. The first set is initialized
        // before it is read. If the second call fails, zeros are a valid set.
        unsafe {
            libc::sigemptyset(empty.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, empty.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }

    /// Makes `command` start with this mask; by default the standard library uses an empty one.
    pub(crate) fn pass_to(self, command: &mut Command) {
        if self.is_empty() {
            return;
        }
        let block = move || {
            // SAFETY: the set is valid, and a null pointer for the old set is allowed.
            match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) } {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        };
        // SAFETY: between fork and exec the closure makes one call, which is async-signal-safe, and
        // allocates nothing.
        unsafe { command.pre_exec(block) };
    }

    fn is_empty(self) -> bool {
        // SAFETY: the set is valid. For a number that is not a signal, the call returns an error.
        (1..=libc::SIGRTMAX()).all(|signal| unsafe { libc::sigismember(&self.0, signal) } != 1)
    }
}

/// Ignores `signal` in this process and in the programs that it starts.
pub(crate) fn ignore(signal: i32) {
    // SAFETY: no handler is installed. For a signal that cannot be ignored, the call returns an
    // error.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Sends `signal` to `process`, which may have ended.
pub(crate) fn send(process: Pid, signal: i32) {
    // SAFETY: the call accesses no memory of this process.
    unsafe { libc::kill(process.as_raw_nonzero().get(), signal) };
}
