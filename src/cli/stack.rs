//! Runs archfs on a larger stack if the stack limit is small (ulimit -s).

use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread;

use rustix::process::{Resource, getrlimit};

use super::exit;
use crate::error::Error;

/// Stack limit below which archfs runs on a thread of its own, bytes. Parsing the arguments needs
/// more than 64 KiB and at most 128 KiB.
const MIN_STACK: u64 = 512 << 10;

/// The stack of that thread, bytes: the common limit.
const STACK_SIZE: usize = 8 << 20;

/// Runs `work` on this thread, or on one with enough stack.
pub(super) fn with_enough(work: impl FnOnce() -> ExitCode + Send) -> ExitCode {
    if getrlimit(Resource::Stack).current.is_none_or(|limit| limit >= MIN_STACK) {
        return work();
    }
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("archfs".into()).stack_size(STACK_SIZE);
        match thread.spawn_scoped(scope, work) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(error) => {
                let error = Error::io("cannot start a thread with a larger stack", error);
                exit::status(Err(error.with_hint("raise the stack limit: ulimit -s 512")))
            }
        }
    })
}
