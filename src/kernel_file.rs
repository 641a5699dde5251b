//! Files that the kernel writes as they are read, in /proc and /sys.
//!
//! Their length is 0 by stat(2), so the standard library reads such a file in ten calls and more:
//! 32 bytes, then 32, 64 and so on.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// More than most of them hold, bytes.
const USUAL: usize = 4096;

/// All of `path`.
///
/// # Errors
/// The system's.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// All of `path`, which is text.
///
/// # Errors
/// The system's; `InvalidData` where it is not UTF-8.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
