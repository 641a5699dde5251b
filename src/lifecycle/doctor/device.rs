//! /dev/fuse.
//!
//! Owns what is wrong with it, by really opening it as a mount does. Invariant: opening it changes
//! nothing; a connection begins only with a mount.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;

use crate::lifecycle::mount::{device as fuse_device, inherited};

/// How it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// This user can open it.
    Opens,
    /// There is none.
    Missing,
    /// Something else has its name.
    Other,
    /// Its mode and owner keep this user from it.
    Refused {
        /// Permission bits.
        mode: u32,
        /// The user whom it belongs to.
        owner: u32,
    },
    /// The system keeps this process from it, whatever its mode: a container that it was not given
    /// to.
    Denied,
    /// The kernel has no FUSE behind it.
    NoModule,
    /// Something else.
    Failed(String),
}

impl Device {
    pub(super) fn probe() -> Self {
        let found = match fs::metadata("/dev/fuse") {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Self::Missing,
            Err(error) => return Self::Failed(error.to_string()),
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
            _ => Self::Failed(error.to_string()),
        }
    }
}
