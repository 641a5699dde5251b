//! The FUSE device, /dev/fuse.

use std::fs::File;

use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::error::{Error, Kind, Result, reason};

/// Opens a FUSE connection that belongs to no mount yet.
pub(crate) fn open_connection() -> std::io::Result<OwnedFd> {
    File::options().read(true).write(true).open("/dev/fuse").map(OwnedFd::from)
}

/// Like `open_connection`, with an error for the user.
pub(crate) fn open() -> Result<OwnedFd> {
    open_connection().map_err(|error| no_device(Errno::from_io_error(&error).unwrap_or(Errno::IO)))
}

/// The error for a FUSE device that this process cannot open.
pub(crate) fn no_device(error: Errno) -> Error {
    let hint = match error {
        Errno::ACCESS => "ask the administrator to set the mode of /dev/fuse to 0666",
        // A container may have the device but no permission to use it.
        Errno::PERM => "in a container, add --device /dev/fuse",
        _ => "run `modprobe fuse` as root; in a container, add --device /dev/fuse",
    };
    let context = format!("/dev/fuse: cannot open: {}", reason(error));
    Error::new(Kind::CannotMount, context).with_hint(hint)
}
