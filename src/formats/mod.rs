//! The archive formats: finding out which one a file is, and opening it as a tree.
//!
//! Owns the choice of format; leaves each format to its folder.
//! Invariant: nothing above this layer names a format.

use std::path::Path;

use crate::error::{Error, Kind, Result};
use crate::sync::Arc;
use crate::vfs::Tree;

/// How to open an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Where in the file the archive starts, bytes.
    pub offset: u64,
    /// Memory for decoded blocks, bytes.
    pub cache_bytes: u64,
}

/// Opens the archive at `path` as a tree.
///
/// # Errors
/// `Io` where it can not be read, `UnknownFormat`, `Corrupt`, `Unsupported`.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Arc<dyn Tree>> {
    let _ = options;
    Err(Error::new(
        Kind::UnknownFormat,
        format!("{}: not an archive", path.display()),
    ))
}
