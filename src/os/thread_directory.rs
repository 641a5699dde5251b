//! A working directory for one thread, for system calls that take a path but no directory. A path
//! through /proc/self/fd takes the kernel three times as long.

#![expect(
    unsafe_code,
    reason = "rustix calls unshare(2) unsafe, because it can unshare descriptors"
)]

use std::cell::{Cell, OnceCell};
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{fchdir, getpid};
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

thread_local! {
    /// The working directory of the process, if this thread can have another one.
    static OF_PROCESS: OnceCell<Option<OwnedFd>> = const { OnceCell::new() };
    /// Whether this thread is in another one.
    static IS_ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// While this exists, relative paths in this thread begin at another directory.
#[derive(Debug)]
pub struct ThreadDirectory {
    /// It belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

impl ThreadDirectory {
    /// Enters `directory`. `None` in the first thread, whose working directory is that of the
    /// process, inside of another one, and if the system refuses, for example because a container
    /// forbids unshare(2).
    pub fn enter(directory: BorrowedFd<'_>) -> Option<Self> {
        if IS_ENTERED.get() {
            return None;
        }
        let can_enter =
            OF_PROCESS.with(|of_process| of_process.get_or_init(leave_process).is_some());
        let is_entered = can_enter && fchdir(directory).is_ok();
        IS_ENTERED.set(is_entered);
        is_entered.then_some(Self { _not_send: PhantomData })
    }
}

impl Drop for ThreadDirectory {
    fn drop(&mut self) {
        OF_PROCESS.with(|of_process| {
            if let Some(Some(of_process)) = of_process.get() {
                let _ = fchdir(of_process);
                IS_ENTERED.set(false);
            }
        });
    }
}

/// Gives this thread a working directory of its own, which is that of the process at first.
fn leave_process() -> Option<OwnedFd> {
    if gettid() == getpid() {
        return None;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let of_process = openat(CWD, ".", flags, Mode::empty()).ok()?;
    // The way back must work.
    fchdir(&of_process).ok()?;
    // SAFETY: only the working directory, the root and the umask are unshared, no descriptors.
    unsafe { unshare_unsafe(UnshareFlags::FS) }.ok()?;
    Some(of_process)
}

#[cfg(test)]
mod tests {
    use std::env::current_dir;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn another_thread_keeps_its_working_directory() {
        let before = current_dir().unwrap();
        let work = tempfile::tempdir().unwrap();
        let path = work.path().canonicalize().unwrap();
        let directory = File::open(&path).unwrap();
        // Until the thread is inside, and until this one has looked.
        let (inside, looked) = (Barrier::new(2), Barrier::new(2));
        let entered = thread::scope(|scope| {
            let enter = || {
                let entered = ThreadDirectory::enter(directory.as_fd());
                let found = current_dir().unwrap();
                let nested = ThreadDirectory::enter(directory.as_fd());
                inside.wait();
                looked.wait();
                assert_eq!(found, if entered.is_some() { &path } else { &before }.as_path());
                assert!(nested.is_none());
                let is_entered = entered.is_some();
                drop(entered);
                assert_eq!(current_dir().unwrap(), before);
                is_entered
            };
            let other = scope.spawn(enter);
            inside.wait();
            let here = current_dir().unwrap();
            looked.wait();
            assert_eq!(here, before);
            other.join().unwrap()
        });
        if !entered {
            println!("skipped in part: this system refuses unshare(2)");
        }
    }
}
