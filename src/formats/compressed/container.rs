//! The compressed file formats, in one table.

use super::format::{ChunkFormat, Format, SpoolFormat};
use super::{bzip2, gzip, lz4, lzma, skippable, xz, zstd};
use crate::error::{Error, Kind, Result};
use crate::storage::Storage;

/// A compressed file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    /// RFC 1952, with any number of members.
    Gzip,
    Bzip2,
    /// The .xz format 1.0.4 and later.
    Xz,
    /// RFC 8878, with or without a seek table.
    Zstd,
    /// LZ4 frames, also those of the legacy format.
    Lz4,
    /// .lzma, the predecessor of .xz.
    Lzma,
    /// .lz, with any number of members.
    Lzip,
}

impl Container {
    /// In the order in which a file is compared with them.
    const ALL: [Self; 7] =
        [Self::Gzip, Self::Bzip2, Self::Xz, Self::Zstd, Self::Lz4, Self::Lzip, Self::Lzma];

    /// Its row of the table.
    pub(super) fn format(self) -> &'static Format {
        match self {
            Self::Gzip => &Format {
                name: gzip::NAME,
                suffix: ".gz",
                number: 1,
                recognizes: gzip::recognizes,
                chunks: ChunkFormat::Points,
                spooled: Some(SpoolFormat {
                    reason: "a deflate block of more than 64 MiB",
                    advice: "re-pack it: gzip -dc FILE | gzip > NEW",
                    open: gzip::open,
                }),
            },
            Self::Bzip2 => &Format {
                name: bzip2::NAME,
                suffix: ".bz2",
                number: 2,
                recognizes: bzip2::recognizes,
                chunks: ChunkFormat::Extents(bzip2::BLOCKS),
                spooled: None,
            },
            Self::Xz => &Format {
                name: xz::NAME,
                suffix: ".xz",
                number: 3,
                recognizes: xz::recognizes,
                chunks: ChunkFormat::Extents(xz::BLOCKS),
                spooled: Some(SpoolFormat {
                    reason: "an xz block of more than 64 MiB",
                    advice: "re-pack it for random access: xz -dc FILE | xz -T0 > NEW",
                    open: xz::open,
                }),
            },
            Self::Zstd => &Format {
                name: zstd::NAME,
                suffix: ".zst",
                number: 4,
                recognizes: zstd::recognizes,
                chunks: ChunkFormat::Extents(zstd::FRAMES),
                spooled: Some(SpoolFormat {
                    reason: "a zstd frame of more than 64 MiB",
                    advice: "re-pack it for random access: zstd -dc --long=31 FILE | pzstd > NEW",
                    open: zstd::open,
                }),
            },
            Self::Lz4 => &Format {
                name: lz4::NAME,
                suffix: ".lz4",
                number: 5,
                recognizes: lz4::recognizes,
                chunks: ChunkFormat::Extents(lz4::RUNS),
                spooled: Some(SpoolFormat {
                    reason: "an lz4 frame of linked blocks of more than 64 MiB",
                    advice: "re-pack it for random access: lz4 -dc FILE | lz4 -BI > NEW",
                    open: lz4::open,
                }),
            },
            Self::Lzma => &Format {
                name: lzma::LZMA,
                suffix: ".lzma",
                number: 6,
                recognizes: lzma::recognizes_lzma,
                chunks: ChunkFormat::None,
                spooled: Some(SpoolFormat {
                    reason: "only one part",
                    advice: "re-pack it for random access: xz -dc --format=lzma FILE | xz -T0 > NEW",
                    open: lzma::open_lzma,
                }),
            },
            Self::Lzip => &Format {
                name: lzma::LZIP,
                suffix: ".lz",
                number: 7,
                recognizes: lzma::recognizes_lzip,
                chunks: ChunkFormat::None,
                spooled: Some(SpoolFormat {
                    reason: "only one part",
                    advice: "re-pack it for random access: lzip -dc FILE | xz -T0 > NEW",
                    open: lzma::open_lzip,
                }),
            },
        }
    }

    /// The usual name of the format.
    pub(crate) fn name(self) -> &'static str {
        self.format().name
    }

    /// The file name of what is in a compressed file with the file name `name`: without the suffix.
    pub(crate) fn stem(name: &[u8]) -> Option<&[u8]> {
        let suffix = |container: &Self| container.format().suffix.as_bytes();
        Self::ALL.iter().find_map(|container| name.strip_suffix(suffix(container)))
    }

    /// How a file with a chunk that is too large is decoded.
    ///
    /// # Errors
    /// `InvalidInput` for bzip2, which has no such chunks.
    pub(super) fn spool_format(self) -> Result<&'static SpoolFormat> {
        self.format().spooled.as_ref().ok_or_else(|| {
            let name = self.name();
            let context = format!("{name} has no blocks that are too large to be decoded at once");
            Error::new(Kind::InvalidInput, context)
        })
    }

    /// The container with this number in saved indexes.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|container| container.format().number == number)
    }

    /// Whether a file that starts with `head` seems to be compressed.
    pub(crate) fn is_at_start(head: &[u8]) -> bool {
        skippable::is_at_start(head)
            || Self::ALL.iter().any(|container| (container.format().recognizes)(head))
    }

    /// The container of the file in `storage`, if it is compressed. 18 bytes of its `head` are
    /// enough.
    ///
    /// # Errors
    /// `Truncated`, `UnknownFormat` or `Unsupported` if skippable frames come first and no data of
    /// zstd or lz4 was found after them; `Io`.
    pub(crate) fn of(storage: &dyn Storage, head: &[u8]) -> Result<Option<Self>> {
        let recognized = |head: &[u8]| {
            Self::ALL.into_iter().find(|container| (container.format().recognizes)(head))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Saved indexes hold these numbers.
    #[test]
    fn numbers_of_containers_do_not_change() {
        let numbers = Container::ALL.map(|container| (container.name(), container.format().number));
        assert_eq!(
            numbers,
            [
                ("gzip", 1),
                ("bzip2", 2),
                ("xz", 3),
                ("zstd", 4),
                ("lz4", 5),
                ("lzip", 7),
                ("lzma", 6)
            ]
        );
        for container in Container::ALL {
            assert_eq!(Container::from_number(container.format().number), Some(container));
        }
        assert_eq!((Container::from_number(0), Container::from_number(8)), (None, None));
    }
}
