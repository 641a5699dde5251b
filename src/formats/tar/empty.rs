//! Tells an empty tar, which is only zeros, from disk images and other files that start with zeros.
//!
//! A file that was never written is only zeros as well, so an empty tar is refused unless the user
//! wants what there is of the archive.

use crate::error::{Error, Kind, Result};
use crate::formats::bytes::index;
use crate::formats::limits::TAR_EMPTY_MAX;
use crate::storage::Storage;

/// Whether `storage`, which starts with zeros, is an empty tar.
pub(super) fn is_empty_tar(storage: &dyn Storage) -> Result<bool> {
    if storage.len() > TAR_EMPTY_MAX {
        return Ok(false);
    }
    let mut bytes = vec![0; index(storage.len())];
    storage.read_exact_at(&mut bytes, 0)?;
    Ok(bytes.iter().all(|&byte| byte == 0))
}

/// The error for a file of zeros alone.
pub(super) fn only_zeros() -> Error {
    Error::corrupt("contains only zeros: an empty tar, or a file that was not written")
        .with_hint("copy the archive again, or add --partial to mount an empty directory")
}

/// The error for a file that starts with zeros but is no empty tar.
pub(super) fn no_empty_tar() -> Error {
    Error::new(Kind::UnknownFormat, "begins with zeros, but is not an empty tar")
        .with_hint("mount a disk image with mount -o loop")
}
