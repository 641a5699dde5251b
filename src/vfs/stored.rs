//! Files whose bytes an archive stores as they are.

use crate::os::file_position::FilePosition;

/// Where the bytes of a regular file are stored, in one or two parts. Files with holes and
/// compressed bytes have no such description.
#[derive(Clone, Debug)]
pub struct StoredFile {
    /// Size of the file in bytes; not 0.
    pub size: u64,
    /// Where the first part begins.
    pub head: FilePosition,
    /// Length of the first part in bytes, and where the rest is. `None` if there is one part.
    pub tail: Option<(u64, FilePosition)>,
}
