//! Maps each container to its implementation. No other file does.

use std::marker::PhantomData;

use super::container::Container;
use super::format::ContainerFormat;
use super::undivided::Undivided;
use super::{bzip2, gzip, lz4, lzip, lzma, skippable, xz, zstd};

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
    /// The container of a file that starts with `head`. Eighteen bytes are enough.
    pub(crate) fn recognise(head: &[u8]) -> Option<Self> {
        if skippable::is_at_start(head) {
            // It can come first in zstd and lz4 files. pzstd writes them.
            let next = skippable::after(head).and_then(Self::recognise);
            return Some(next.unwrap_or(Self::Zstd));
        }
        Self::ALL.into_iter().find(|container| format(*container).recognises(head))
    }
}
