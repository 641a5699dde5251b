//! Descriptors that a process gets from whoever started it.
//!
//! Owns closing those that a daemon must not keep (one that kept the writing end of a pipe would
//! let its reader wait for as long as the mount holds), and taking one that was handed over by
//! number. Standard input, output and error are the business of `launcher`.
#![expect(unsafe_code, reason = "a descriptor that is only a number has no safe form")]

use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::fs::{FileType, fstat, major, minor};
use rustix::io::fcntl_dupfd_cloexec;

use crate::error::{Error, Kind, Result};

/// The number in a path such as `/dev/fd/3`, which is how libfuse 3 and container runtimes name a
/// connection that is mounted already.
pub(in crate::lifecycle) fn number(path: &Path) -> Option<RawFd> {
    path.to_str()?.strip_prefix("/dev/fd/")?.parse().ok().filter(|number| *number >= 0)
}

/// Numbers of the FUSE device, /dev/fuse (Linux, Documentation/admin-guide/devices.txt).
const DEVICE: (u32, u32) = (10, 229);

/// A duplicate of the connection to the kernel that was handed over as descriptor `number`.
///
/// # Errors
/// `NotFound` where it is not open; `InvalidInput` where it is no FUSE device: another would let
/// one wait for requests for ever.
pub(in crate::lifecycle) fn connection(number: RawFd) -> Result<OwnedFd> {
    let duplicate = duplicate(number)?;
    let is_fuse = fstat(&duplicate).is_ok_and(|found| is_device(found.st_mode, found.st_rdev));
    if !is_fuse {
        let context = format!("/dev/fd/{number}: not a connection to FUSE (/dev/fuse)");
        return Err(Error::new(Kind::InvalidInput, context));
    }
    Ok(duplicate)
}

/// Whether a file of that mode and device number is the FUSE device.
pub(in crate::lifecycle) fn is_device(mode: u32, device: u64) -> bool {
    FileType::from_raw_mode(mode) == FileType::CharacterDevice
        && (major(device), minor(device)) == DEVICE
}

/// A duplicate of the descriptor `number`, which was inherited.
///
/// # Errors
/// `NotFound` where it is not open.
pub(in crate::lifecycle) fn duplicate(number: RawFd) -> Result<OwnedFd> {
    let is_open = fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
    let not_open = || {
        Error::new(Kind::NotFound, format!("/dev/fd/{number}: no such descriptor was handed over"))
    };
    if !is_open {
        return Err(not_open());
    }
    // SAFETY: it is open, as was just seen, and was when this process began, so that no object here
    // owns it, which might close it before it is duplicated.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_dupfd_cloexec(borrowed, 3).map_err(|_| not_open())
}

/// Closes every descriptor above standard error but those in `kept`.
///
/// Call it first of all in a process that was started for one purpose, before it opens anything.
pub(in crate::lifecycle) fn close_all(kept: &[RawFd]) {
    let Ok(listing) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<RawFd> = listing
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&descriptor| descriptor > 2 && !kept.contains(&descriptor))
        .collect();
    // The listing's own descriptor was closed with it; it is in the list, and closing it fails.
    for descriptor in open {
        // SAFETY: no object of this process owns any of these numbers: it has opened nothing yet,
        // and the listing above, the only exception, is gone.
        unsafe { libc::close(descriptor) };
    }
}
