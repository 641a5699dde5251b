//! Files in memory that another process can map.

use std::fs::File;
use std::io;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

/// An empty file in memory, without a name in any directory.
pub(crate) fn create() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let created = match memfd_create("archfs", flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3.
        Err(Errno::INVAL) => memfd_create("archfs", flags),
        created => created,
    };
    Ok(File::from(created?))
}

/// Fixes the length of `file`, so that no process that maps it gets SIGBUS.
pub(crate) fn seal_length(file: &File) -> io::Result<()> {
    Ok(fcntl_add_seals(file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW)?)
}

/// Fixes the length of `file`, and from Linux 5.1 on lets nothing write to it but mappings that are
/// there already.
pub(crate) fn seal_for_others(file: &File) -> io::Result<()> {
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    match fcntl_add_seals(file, all) {
        Err(Errno::INVAL) => seal_length(file),
        sealed => Ok(sealed?),
    }
}

/// Fixes the length and the contents of `file`.
pub(crate) fn seal(file: &File) -> io::Result<()> {
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    Ok(fcntl_add_seals(file, all)?)
}
