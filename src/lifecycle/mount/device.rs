//! The FUSE device, /dev/fuse.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use rustix::fd::OwnedFd;
use rustix::fs::{Access, FileType, access, major, minor};
use rustix::io::Errno;

use crate::error::{Error, Kind, Result, reason};

/// Its major and minor number (Linux, Documentation/admin-guide/devices.txt).
const NUMBERS: (u32, u32) = (10, 229);

/// Opens a FUSE connection that belongs to no mount yet.
pub(crate) fn open_connection() -> std::io::Result<OwnedFd> {
    File::options().read(true).write(true).open("/dev/fuse").map(OwnedFd::from)
}

/// Like `open_connection`, with an error for the user.
pub(crate) fn open() -> Result<OwnedFd> {
    open_connection().map_err(|error| no_device(Errno::from_io_error(&error).unwrap_or(Errno::IO)))
}

/// The error for a FUSE device that this process cannot open.
fn no_device(error: Errno) -> Error {
    let hint = match error {
        Errno::ACCESS => "ask the administrator to set the mode of /dev/fuse to 0666",
        // A container may have the device but no permission to use it.
        Errno::PERM => "in a container, add --device /dev/fuse",
        _ => "run `modprobe fuse` as root; in a container, add --device /dev/fuse",
    };
    let context = format!("/dev/fuse: cannot open: {}", reason(error));
    let without = "without it, `archfs run --or-extract DIR` unpacks the archive";
    Error::new(Kind::CannotMount, context).with_hint(format!("{hint}; {without}"))
}

/// Checks the device before fusermount does, whose message about it is terse.
///
/// Fails with `CannotMount` if this user may not open /dev/fuse, or it is another file.
pub(crate) fn check() -> Result<()> {
    access("/dev/fuse", Access::READ_OK | Access::WRITE_OK).map_err(no_device)?;
    match fs::metadata("/dev/fuse") {
        Ok(found) if !is_fuse(found.mode(), found.rdev()) => {
            Err(Error::new(Kind::CannotMount, "/dev/fuse: not the FUSE device")
                .with_hint("in a container, add --device /dev/fuse"))
        }
        _ => Ok(()),
    }
}

/// Whether a file with this mode and device number is the FUSE device.
pub(crate) fn is_fuse(mode: u32, device: u64) -> bool {
    FileType::from_raw_mode(mode) == FileType::CharacterDevice
        && (major(device), minor(device)) == NUMBERS
}
