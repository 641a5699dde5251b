//! Ends requests to servers when nothing waits for their answers any more.
//!
//! The kernel ends a FUSE connection when the mount is unmounted and its last file is closed. A
//! thread that reads from a server that is down would notice that only after a minute, and the
//! daemon would stay as long.

use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::remote;

/// Ends all requests to servers when the kernel ends `connection`, a duplicate of the FUSE
/// connection. Call it when the mount is unmounted: each request of the kernel wakes the thread.
pub(super) fn end_requests_after(connection: OwnedFd) {
    let watch = move || {
        // Without a request, poll(2) reports only that the connection has ended (EPOLLERR).
        let mut watched = [PollFd::new(&connection, PollFlags::empty())];
        while let Err(Errno::INTR) = poll(&mut watched, None) {}
        remote::end();
    };
    if let Err(error) = thread::Builder::new().name("connection".into()).spawn(watch) {
        log::warn!("cannot watch the connection to the kernel: {error}");
    }
}
