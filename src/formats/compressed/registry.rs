//! Maps each container to its implementation. No other file does.

use std::marker::PhantomData;

use super::container::Container;
use super::format::ContainerFormat;
use super::undivided::Undivided;
use super::{bzip2, gzip, lz4, lzip, lzma, skippable, xz, zstd};
use crate::error::{Error, Kind, Result};
use crate::storage::Storage;

/// The implementation of `container`.
pub(super) fn format(container: Container) -> &'static dyn ContainerFormat {
    match container {
        Container::Gzip => &gzip::Gzip,
        Container::Bzip2 => &bzip2::Bzip2,
        Container::Xz => &xz::Xz,
        Container::Zstd => &zstd::Zstd,
        Container::Lz4 => &lz4::Lz4,
        Container::Lzma => &Undivided::<lzma::Lzma>(PhantomData),
        Container::Lzip => &Undivided::<lzip::Lzip>(PhantomData),
    }
}

impl Container {
    /// The container of the file in `storage`, if it is compressed. 18 bytes of its `head` are
    /// enough.
    ///
    /// # Errors
    /// `Truncated`, `UnknownFormat` or `Unsupported` if skippable frames come first and no data of
    /// zstd or lz4 was found after them; `Io`.
    pub(crate) fn of(storage: &dyn Storage, head: &[u8]) -> Result<Option<Self>> {
        let recognized = |head: &[u8]| {
            Self::ALL.into_iter().find(|container| format(*container).recognizes(head))
        };
        if !skippable::is_at_start(head) {
            return Ok(recognized(head));
        }
        match recognized(&skippable::head_after(storage)?) {
            Some(container @ (Self::Zstd | Self::Lz4)) => Ok(Some(container)),
            _ => {
                let context = "skippable frames of zstd or lz4, and other data after them";
                Err(Error::new(Kind::UnknownFormat, context))
            }
        }
    }
}
