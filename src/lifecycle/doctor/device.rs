//! The state of /dev/fuse, found by opening it as a mount does.
//!
//! Opening it changes nothing: a connection starts only with a mount.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;

use crate::error::reason;
use crate::lifecycle::mount::{device as fuse_device, inherited};

/// The state of /dev/fuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// This user can open it.
    Opens,
    /// It does not exist.
    Missing,
    /// The path is not the FUSE device.
    Other,
    /// Its mode does not allow this user to open it.
    Refused {
        /// Its permission bits.
        mode: u32,
        /// The uid of its owner.
        owner: u32,
    },
    /// The kernel does not allow this process to open it, whatever its mode is: for example, the
    /// device was not added to the container.
    Denied,
    /// The kernel has no FUSE module for it.
    NoModule,
    /// Another error.
    Failed(String),
}

impl Device {
    pub(super) fn probe() -> Self {
        let found = match fs::metadata("/dev/fuse") {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Self::Missing,
            Err(error) => return Self::Failed(reason(error)),
        };
        if !inherited::is_device(found.mode(), found.rdev()) {
            return Self::Other;
        }
        let Err(error) = fuse_device::open_connection() else {
            return Self::Opens;
        };
        match Errno::from_io_error(&error) {
            Some(Errno::ACCESS) => {
                Self::Refused { mode: found.mode() & 0o7777, owner: found.uid() }
            }
            Some(Errno::PERM) => Self::Denied,
            Some(Errno::NODEV | Errno::NXIO) => Self::NoModule,
            _ => Self::Failed(reason(error)),
        }
    }
}
