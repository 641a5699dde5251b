//! The signal calls that no safe wrapper offers: the mask, ignoring, and sending any number.

#![expect(unsafe_code, reason = "no crate in use offers these as safe calls")]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use rustix::process::Pid;

/// A set of blocked signals.
#[derive(Clone, Copy)]
pub(in crate::lifecycle) struct Mask(libc::sigset_t);

impl Mask {
    /// Unblocks all signals of this thread and of those that it starts later; returns the mask
    /// before.
    pub(in crate::lifecycle) fn clear() -> Self {
        let mut empty = MaybeUninit::uninit();
        let mut before = MaybeUninit::zeroed();
        // SAFETY: both point to sets of this frame. The first is initialized before it is read;
        // zeros are a valid set where the call fails.
        unsafe {
            libc::sigemptyset(empty.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, empty.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }

    /// Starts `command` with this mask; the standard library starts it with an empty one.
    pub(in crate::lifecycle) fn pass_to(self, command: &mut Command) {
        if self.is_empty() {
            return;
        }
        let block = move || {
            // SAFETY: the set is valid, and the old one is not asked for.
            match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) } {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        };
        // SAFETY: between fork and exec it makes one call, which is async-signal-safe, and
        // allocates nothing.
        unsafe { command.pre_exec(block) };
    }

    fn is_empty(self) -> bool {
        // SAFETY: the set is valid; a number that is no signal's is answered with an error.
        (1..=libc::SIGRTMAX()).all(|signal| unsafe { libc::sigismember(&self.0, signal) } != 1)
    }
}

/// Ignores `signal`, as do the programs that this process starts.
pub(in crate::lifecycle) fn ignore(signal: i32) {
    // SAFETY: no code of this process runs on the signal. A number that can not be ignored is
    // answered with an error.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Sends `signal` to `process`, which may have ended.
pub(in crate::lifecycle) fn send(process: Pid, signal: i32) {
    // SAFETY: the call takes no memory of this process.
    unsafe { libc::kill(process.as_raw_nonzero().get(), signal) };
}
