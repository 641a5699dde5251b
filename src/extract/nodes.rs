//! Symbolic links, devices, pipes and sockets.

use rustix::fs::{Dev, FileType, Mode, OFlags, makedev, mknodat, symlinkat};
use rustix::io::Errno;

use super::target::OpenDirectory;
use crate::vfs::{Attr, Counts, FileKind};

/// Opens the location of a file and nothing behind it.
pub(super) const LOCATION: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Creates anything but a regular file or a directory. `target` is that of a symbolic link.
///
/// Fails with the error of the system; `EPERM` for a device if the user may not create devices.
pub(super) fn create(
    directory: &OpenDirectory<'_>,
    name: &[u8],
    attr: &Attr,
    target: &[u8],
) -> Result<(), Errno> {
    let kind = match attr.kind {
        FileKind::Symlink => return symlinkat(target, directory, name),
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        // An entry of the directory says otherwise.
        FileKind::Regular | FileKind::Directory => return Err(Errno::INVAL),
    };
    let device = if is_device(attr) { device(attr.device) } else { 0 };
    mknodat(directory, name, kind, Mode::RUSR | Mode::WUSR, device)
}

/// Whether it is a device.
pub(super) fn is_device(attr: &Attr) -> bool {
    matches!(attr.kind, FileKind::BlockDevice | FileKind::CharDevice)
}

/// The counts of one of them.
pub(super) fn counts(attr: &Attr) -> Counts {
    match attr.kind {
        FileKind::Symlink => Counts { links: 1, ..Counts::default() },
        _ => Counts { others: 1, ..Counts::default() },
    }
}

/// A device number from the kernel's 32-bit encoding (new_decode_dev in linux/kdev_t.h).
fn device(encoded: u32) -> Dev {
    makedev((encoded & 0x000f_ff00) >> 8, (encoded & 0xff) | ((encoded >> 12) & 0x000f_ff00))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_those_of_the_kernel() {
        for (encoded, major, minor) in
            [(0x0103, 1, 3), (0x0811, 8, 17), (0xabc1_03de, 259, 0x000a_bcde)]
        {
            assert_eq!(device(encoded), makedev(major, minor), "{encoded:#x}");
        }
    }
}
