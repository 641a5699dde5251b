//! Descriptors that a process inherits from its parent.
//!
//! A daemon closes those that it must not keep. If it kept the writing end of a pipe, the reader
//! would wait until the mount ends. Other functions here take a descriptor that was passed on by
//! number. `launcher` handles standard input, output and error.
#![expect(unsafe_code, reason = "a descriptor that is only a number has no safe form")]

use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::fs::{FileType, fstat, major, minor};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd};

use crate::error::{Error, Kind, Result};

/// The number in a path such as `/dev/fd/3`. libfuse 3 and container runtimes use such a path for a
/// connection that is already mounted.
pub(crate) fn number(path: &Path) -> Option<RawFd> {
    path.to_str()?.strip_prefix("/dev/fd/")?.parse().ok().filter(|number| *number >= 0)
}

/// Major and minor number of /dev/fuse (Linux, Documentation/admin-guide/devices.txt).
const DEVICE: (u32, u32) = (10, 229);

/// A duplicate of the FUSE connection that was passed on as descriptor `number`.
///
/// Fails with `NotFound` if it is not open; `InvalidInput` if it is not the FUSE device. On another
/// file the daemon might wait for requests for ever.
pub(crate) fn connection(number: RawFd) -> Result<OwnedFd> {
    let duplicate = duplicate(number)?;
    let is_fuse = fstat(&duplicate).is_ok_and(|found| is_device(found.st_mode, found.st_rdev));
    if !is_fuse {
        let context = format!("/dev/fd/{number}: not a FUSE connection (/dev/fuse)");
        return Err(Error::new(Kind::InvalidInput, context));
    }
    Ok(duplicate)
}

/// Whether a file with this mode and device number is the FUSE device.
pub(crate) fn is_device(mode: u32, device: u64) -> bool {
    FileType::from_raw_mode(mode) == FileType::CharacterDevice
        && (major(device), minor(device)) == DEVICE
}

/// A duplicate of the descriptor `number`, which was inherited.
pub(crate) fn duplicate(number: RawFd) -> Result<OwnedFd> {
    let is_open = fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
    let not_open = || Error::new(Kind::NotFound, format!("/dev/fd/{number}: descriptor not open"));
    if !is_open {
        return Err(not_open());
    }
    // SAFETY: the descriptor is open, as checked above. It was open when this process started, so
    // no object of this process owns it, and none can close it before it is duplicated.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_dupfd_cloexec(borrowed, 3).map_err(|_| not_open())
}

/// Closes the descriptors that this process inherited, except standard input, output and error, and
/// those in `kept`. One that this process opened itself stays: it would be closed on execve(2), so
/// it cannot have been inherited.
pub(crate) fn close_all(kept: &[RawFd]) {
    let Ok(listing) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<RawFd> = listing
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|descriptor| *descriptor > 2 && !kept.contains(descriptor))
        .collect();
    for descriptor in open {
        // SAFETY: the call only reads the flags of the descriptor. For a number that is not open,
        // it returns an error.
        let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(descriptor) });
        if flags.is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC)) {
            // SAFETY: no object of this process owns it, because the standard library and this
            // crate open descriptors that are closed on execve(2).
            unsafe { libc::close(descriptor) };
        }
    }
}
