//! Unnamed temporary files, for data that must not outlive the process.
//!
//! Invariant: however the process ends, nothing remains of such a file, and no other user can open
//! it.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, fallocate, fstatfs, fstatvfs};
use rustix::io::Errno;

use super::directory::Directory;
use super::new_file::without_path;

/// Magic numbers of file systems that keep files in memory (linux/magic.h): tmpfs, ramfs.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Magic numbers of file systems whose fallocate(2) allocates blocks: ext4 (shared with ext3, which
/// lacks the call), XFS.
const WITH_BLOCKS: [u64; 2] = [0xef53, 0x5846_5342];

/// Magic numbers of other file systems of this node: Btrfs, F2FS, ZFS, overlayfs.
const ON_THIS_NODE: [u64; 4] = [0x9123_683e, 0xf2f5_2010, 0x2fc1_2fc1, 0x794c_7630];

/// An unlinked file in the directory at `path`, open for reading and writing.
pub fn create(path: &Path) -> io::Result<File> {
    create_in(&Directory::open(path)?)
}

/// Like `create`, in an open directory.
pub fn create_in(directory: &Directory) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL;
    let file = match directory.open_with(".".as_ref(), flags) {
        // The file system or the kernel has no unnamed files.
        Err(error) if is_without_unnamed_files(&error) => {
            tempfile::tempfile_in(directory.path()).map_err(without_path)?
        }
        opened => opened?,
    };
    // It is still visible in /proc, and without O_TMPFILE it had a name for a moment.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

fn is_without_unnamed_files(error: &io::Error) -> bool {
    let without = [Errno::OPNOTSUPP, Errno::ISDIR, Errno::INVAL, Errno::NOENT];
    Errno::from_io_error(error).is_some_and(|error| without.contains(&error))
}

/// Bytes that a user can still write to the file system of `file`. `None` if it has no limit
/// (ramfs).
pub fn free_bytes(file: &File) -> io::Result<Option<u64>> {
    let statistics = fstatvfs(file)?;
    Ok((statistics.f_blocks > 0).then(|| statistics.f_bavail.saturating_mul(statistics.f_frsize)))
}

/// Whether the bytes of `file` are only in memory.
pub fn is_in_memory(file: &File) -> bool {
    is_on(file, &IN_MEMORY)
}

/// Whether the bytes of `file` are on this node for certain.
pub fn is_local(file: &File) -> bool {
    is_in_memory(file) || has_blocks(file) || is_on(file, &ON_THIS_NODE)
}

/// Whether `allocate` reserves real blocks for `file`, so that later writes cannot run out of
/// space.
pub fn has_blocks(file: &File) -> bool {
    is_on(file, &WITH_BLOCKS)
}

/// Whether the file system of `file` has one of these magic numbers.
fn is_on(file: &File, kinds: &[u64]) -> bool {
    // The width of this number depends on the architecture.
    fstatfs(file).is_ok_and(|statistics| kinds.contains(&(statistics.f_type as u64)))
}

/// Reserves space for `len` bytes, so that writing them cannot fail with ENOSPC.
///
/// # Errors
/// `StorageFull` or `QuotaExceeded` if there is not enough space. If the file system cannot reserve
/// space, that is not an error.
pub fn reserve(file: &File, len: u64) -> io::Result<()> {
    match allocate(file, len) {
        // The file system cannot reserve space, or `len` is 0.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Like `reserve`, but fails if the file system cannot do it. Extends the file to `len` bytes.
pub fn allocate(file: &File, len: u64) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, len))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn has_no_name_and_is_private() {
        let work = tempfile::tempdir().unwrap();
        let file = create(work.path()).unwrap();
        reserve(&file, 10_000).unwrap();
        reserve(&file, 0).unwrap();
        let statistics = file.metadata().unwrap();
        assert_eq!((statistics.nlink(), statistics.mode() & 0o7777), (0, 0o600));
        assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0);
        assert!(free_bytes(&file).unwrap().unwrap() > 0);
    }

    #[test]
    fn recognizes_files_in_memory() {
        assert!(is_in_memory(&create(Path::new("/dev/shm")).unwrap()));
        let proc = File::open("/proc/self/stat").unwrap();
        assert!(!is_in_memory(&proc) && !is_local(&proc));
        assert!(is_local(&create(Path::new("/dev/shm")).unwrap()));
        assert!(is_local(&create(&std::env::temp_dir()).unwrap()));
    }

    #[test]
    fn reserving_more_than_the_free_space_fails() {
        let file = create(Path::new("/dev/shm")).unwrap();
        let free = free_bytes(&file).unwrap().unwrap();
        let error = reserve(&file, free.saturating_mul(2)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
