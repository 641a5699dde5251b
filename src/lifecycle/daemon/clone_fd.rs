//! Whether each event loop can have its own FUSE descriptor.
//!
//! fuser fails completely if the kernel refuses to clone a descriptor, so this is checked first.
#![expect(unsafe_code, reason = "no crate offers FUSE_DEV_IOC_CLONE as a safe call")]

use std::fs::File;

use rustix::fd::{AsFd, AsRawFd};
use rustix::ioctl::{Setter, ioctl, opcode};

/// FUSE_DEV_IOC_CLONE of linux/fuse.h: `_IOR(229, 0, uint32_t)`.
const CLONE: u32 = opcode::read::<u32>(229, 0) as u32;

/// Whether the kernel can clone the descriptor `connection`.
pub(crate) fn is_possible(connection: impl AsFd) -> bool {
    let Ok(device) = File::options().read(true).write(true).open("/dev/fuse") else {
        return false;
    };
    let Ok(number) = u32::try_from(connection.as_fd().as_raw_fd()) else {
        return false;
    };
    // SAFETY: the kernel reads one u32, the number of an open descriptor, through the pointer that
    // Setter makes of `number`; it writes nothing, and `device` is an open FUSE device.
    unsafe { ioctl(&device, Setter::<{ CLONE }, u32>::new(number)) }.is_ok()
}
