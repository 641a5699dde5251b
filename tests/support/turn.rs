//! Keeps the tests of different modules of a test program apart.
//!
//! Cargo runs all tests of a program on threads of one process. Some tests clear all stale mounts
//! of a user, copy the mount table into a namespace, or change /dev/fuse. Other tests of the same
//! module allow for that, but tests of other modules do not. So the modules take turns.
//! scripts/test-programs starts a process for each module, so nothing waits here. Tests that disturb
//! those of other modules also there take a lock on a file (`stale::one_at_a_time`).

use std::cell::RefCell;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

/// The module whose turn it is, and how many of its tests run.
static TURN: Mutex<(String, usize)> = Mutex::new((String::new(), 0));
static IS_OVER: Condvar = Condvar::new();

thread_local! {
    static OWN: RefCell<Option<Running>> = const { RefCell::new(None) };
}

/// A running test. It is dropped when the thread of the test exits.
struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        let mut turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        turn.1 -= 1;
        if turn.1 == 0 {
            IS_OVER.notify_all();
        }
    }
}

/// Waits until no test of another module runs. Those of other modules then wait until this test
/// ends. A test calls this before it takes a lock that tests of several modules take.
pub fn take() {
    let thread = thread::current();
    // The harness names the thread of a test after it. All of `packing` may run together.
    let Some((module, _)) = thread.name().and_then(|name| name.split_once("::")) else { return };
    if env!("CARGO_CRATE_NAME") == "packing" || OWN.with_borrow(Option::is_some) {
        return;
    }
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_others = |turn: &mut (String, usize)| turn.1 > 0 && turn.0 != module;
    let mut turn = IS_OVER.wait_while(turn, is_others).unwrap_or_else(PoisonError::into_inner);
    turn.0 = module.to_owned();
    turn.1 += 1;
    OWN.set(Some(Running));
}
