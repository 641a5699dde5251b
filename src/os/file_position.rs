//! A position in an open file.

use std::fs::File;

use super::memory_file::SharedBits;
use crate::sync::Arc;

/// Where bytes of an archive begin: in this file, at this offset.
#[derive(Clone, Debug)]
pub struct FilePosition {
    /// The open file.
    pub file: Arc<File>,
    /// When the bytes there are those of the archive.
    pub valid: Valid,
    /// Offset in bytes.
    pub offset: u64,
}

/// When the bytes of a file are those of an archive.
#[derive(Clone, Debug)]
pub enum Valid {
    /// As long as the file has these times.
    Unmodified {
        /// Modification time: seconds since 1970 and nanoseconds.
        modified: (i64, u32),
        /// Change time, nanoseconds since 1970.
        changed: u64,
    },
    /// Once they are there. They never change then.
    Filled(Filled),
}

/// Which parts of a file are there.
#[derive(Clone, Debug)]
pub struct Filled {
    /// A bit for each granule. It is set when all bytes of the granule are there.
    pub bits: Arc<SharedBits>,
    /// Size of a granule in bytes.
    pub granule: u64,
}
