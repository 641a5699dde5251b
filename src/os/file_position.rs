//! A position in an open file.

use std::fs::File;

use crate::sync::Arc;

/// Where bytes of an archive begin: in this file, at this offset.
#[derive(Clone, Debug)]
pub struct FilePosition {
    /// The open file.
    pub file: Arc<File>,
    /// Its modification time when the archive was opened, in seconds since 1970 and nanoseconds.
    /// `None` for a copy, which is never written again.
    pub modified: Option<(i64, u32)>,
    /// Offset in bytes.
    pub offset: u64,
}
