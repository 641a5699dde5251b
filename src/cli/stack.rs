//! Enough stack where the limit on it is small (ulimit -s).

use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread;

use rustix::process::{Resource, getrlimit};

use super::exit;
use crate::error::Error;

/// Stack below which archfs uses a thread with a stack of its own, bytes. 64 KiB is too little for
/// parsing the arguments, 128 KiB is enough.
const LEAST: u64 = 512 << 10;

/// The stack of that thread, bytes: the usual limit.
const ENOUGH: usize = 8 << 20;

/// Runs `work` on this thread, or on one with enough stack.
pub(super) fn with_enough(work: impl FnOnce() -> ExitCode + Send) -> ExitCode {
    if getrlimit(Resource::Stack).current.is_none_or(|limit| limit >= LEAST) {
        return work();
    }
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("archfs".into()).stack_size(ENOUGH);
        match thread.spawn_scoped(scope, work) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(error) => {
                let error = Error::io("can not start a thread with a larger stack", error);
                exit::status(Err(error.with_hint("raise the stack limit: ulimit -s 512")))
            }
        }
    })
}
