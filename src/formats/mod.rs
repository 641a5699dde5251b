//! The archive formats: finding out which one a file is, and opening it as a tree.
//!
//! Owns the choice of format; leaves each format to its folder.
//! Invariants: nothing above this layer names a format; no byte of an archive can make code here
//! panic (the lints see to it), and every number it controls has a cap in `limits`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::arithmetic_side_effects,
        clippy::as_conversions
    )
)]

use std::path::Path;

use crate::error::{Error, Kind, Result};
use crate::storage::{FileStorage, Storage, Window};
use crate::sync::Arc;
use crate::vfs::Tree;

mod bytes;
#[cfg_attr(
    not(test),
    expect(dead_code, unused_imports, reason = "the formats that read through it come next")
)]
mod compressed;
mod limits;
mod squashfs;

use squashfs::SquashFs;

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
/// `NotFound`, `IsADirectory` or `Io` where it can not be read; `UnknownFormat`, `Unsupported` or
/// `Corrupt` where it can.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Arc<dyn Tree>> {
    let name = path.display().to_string();
    let file: Arc<dyn Storage> = Arc::new(FileStorage::open(path)?);
    let storage = match options.offset {
        0 => file,
        offset => Arc::new(Window::new(file, offset).map_err(|error| error.within(&name))?),
    };
    let mut head = [0; 96];
    let len = bytes::index(storage.len()).min(head.len());
    let head = head.get_mut(..len).unwrap_or_default();
    storage.read_exact_at(head, 0)?;
    if SquashFs::recognises(head) {
        return Ok(Arc::new(SquashFs::open(&name, storage, options.cache_bytes)?));
    }
    Err(unknown(&name, head, options.offset))
}

/// What to say of a file that is no archive archfs reads: what it seems to be, and what to do.
fn unknown(name: &str, head: &[u8], offset: u64) -> Error {
    let (what, hint) = match head {
        [] if offset == 0 => ("is empty", "was it copied whole?"),
        [] => ("has nothing at that offset", "check --offset"),
        [b'P', b'K', 3 | 5, 4 | 6, ..] => {
            ("a zip archive", "unpack it, then: mksquashfs DIRECTORY data.sqfs -comp zstd")
        }
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] | [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            ("a compressed file", "unpack it, then: mksquashfs DIRECTORY data.sqfs -comp zstd")
        }
        _ => {
            ("not a squashfs image", "if it starts further into the file, say where with --offset")
        }
    };
    Error::new(Kind::UnknownFormat, format!("{name}: {what}")).with_hint(hint)
}
