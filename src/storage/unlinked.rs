//! Files without a name, for what must not outlive this process.
//!
//! Owns making them and what room there is where they lie. Invariant: whatever becomes of this
//! process, nothing is left of such a file, and no other user could open it meanwhile.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate, fstatfs, fstatvfs};
use rustix::io::Errno;

/// Magic numbers of the file systems whose files are in memory (linux/magic.h): tmpfs, ramfs.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Those of file systems whose fallocate(2) gives a file its blocks: ext4 (and ext3, which has no
/// such call), XFS.
const WITH_BLOCKS: [u64; 2] = [0xef53, 0x5846_5342];

/// An unlinked file in `directory` that can be read and written.
///
/// # Errors
/// What the system says.
pub fn unlinked(directory: &Path) -> io::Result<File> {
    let file = tempfile::tempfile_in(directory)?;
    // It has no name, but /proc shows it; and without O_TMPFILE it had a name for a moment.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Bytes that a user may still write to the file system of `file`; `None` where it has no bound of
/// its own (ramfs).
///
/// # Errors
/// What the system says.
pub fn free_bytes(file: &File) -> io::Result<Option<u64>> {
    let found = fstatvfs(file)?;
    Ok((found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize)))
}

/// Whether the bytes of `file` are in memory and nowhere else.
pub fn is_in_memory(file: &File) -> bool {
    is_on(file, &IN_MEMORY)
}

/// Whether what `allocate` took for `file` is its own, so that writing there never lacks room.
pub(super) fn has_blocks(file: &File) -> bool {
    is_on(file, &WITH_BLOCKS)
}

/// Whether the file system of `file` has one of these magic numbers.
fn is_on(file: &File, kinds: &[u64]) -> bool {
    // The width of the number differs among machines.
    fstatfs(file).is_ok_and(|found| kinds.contains(&(found.f_type as u64)))
}

/// Takes the room for `len` bytes, so that writing them can not fail for want of it.
///
/// # Errors
/// `StorageFull`, `QuotaExceeded` where it is not there; none where the file system can not do it.
pub fn reserve(file: &File, len: u64) -> io::Result<()> {
    match allocate(file, len) {
        // Room can not be taken ahead there, or there is nothing to take.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The same, and an error where the file system can not do it. The file is `len` bytes long then.
pub(super) fn allocate(file: &File, len: u64) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, len))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn has_no_name_and_is_private() {
        let work = tempfile::tempdir().unwrap();
        let file = unlinked(work.path()).unwrap();
        reserve(&file, 10_000).unwrap();
        reserve(&file, 0).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!((found.nlink(), found.mode() & 0o7777), (0, 0o600));
        assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0);
        assert!(free_bytes(&file).unwrap().unwrap() > 0);
    }

    #[test]
    fn knows_which_files_are_in_memory() {
        assert!(is_in_memory(&unlinked(Path::new("/dev/shm")).unwrap()));
        assert!(!is_in_memory(&File::open("/proc/self/stat").unwrap()));
    }

    #[test]
    fn room_that_is_not_there_can_not_be_taken() {
        let file = unlinked(Path::new("/dev/shm")).unwrap();
        let free = free_bytes(&file).unwrap().unwrap();
        let error = reserve(&file, free.saturating_mul(2)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
