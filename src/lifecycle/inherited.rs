//! Descriptors that a daemon gets from whoever started it and must not keep.
//!
//! Owns closing them: a daemon that kept the writing end of a pipe would let its reader wait for as
//! long as the mount holds. Standard input, output and error are the business of `daemon`.
#![expect(unsafe_code, reason = "closing a descriptor by its number has no safe form")]

use std::fs;
use std::os::fd::RawFd;

/// Closes every descriptor above standard error.
///
/// Call it first of all in a process that was started for one purpose, before it opens anything.
pub(super) fn close_all() {
    let Ok(listing) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<RawFd> = listing
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&descriptor| descriptor > 2)
        .collect();
    // The listing's own descriptor was closed with it; it is in the list, and closing it fails.
    for descriptor in open {
        // SAFETY: no object of this process owns any of these numbers: it has opened nothing yet,
        // and the listing above, the only exception, is gone.
        unsafe { libc::close(descriptor) };
    }
}
