//! The compressed file formats, and what a saved index depends on for each of them.

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

/// What the chunks of a container start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkStart {
    /// A position inside a stream, with the window before it.
    Point,
    /// A part of the file that can be decoded independently.
    Extent,
}

/// The unit of offsets in a compressed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Bits,
    Bytes,
}

/// What holds for all files of a container.
struct Facts {
    name: &'static str,
    /// Its number in saved indexes.
    code: u8,
    chunks: ChunkStart,
    unit: Unit,
    has_giants: bool,
}

impl Container {
    pub(super) const ALL: [Self; 7] =
        [Self::Gzip, Self::Bzip2, Self::Xz, Self::Zstd, Self::Lz4, Self::Lzip, Self::Lzma];

    fn facts(self) -> Facts {
        use {ChunkStart::*, Unit::*};
        let facts =
            |name, code, chunks, unit, has_giants| Facts { name, code, chunks, unit, has_giants };
        match self {
            Self::Gzip => facts("gzip", 1, Point, Bits, true),
            Self::Bzip2 => facts("bzip2", 2, Extent, Bits, false),
            Self::Xz => facts("xz", 3, Extent, Bytes, true),
            Self::Zstd => facts("zstd", 4, Extent, Bytes, true),
            Self::Lz4 => facts("lz4", 5, Extent, Bytes, true),
            Self::Lzma => facts("lzma", 6, Extent, Bytes, true),
            Self::Lzip => facts("lzip", 7, Extent, Bytes, true),
        }
    }

    /// The usual name of the format.
    pub(crate) fn name(self) -> &'static str {
        self.facts().name
    }

    /// Its number in saved indexes.
    pub(super) fn code(self) -> u8 {
        self.facts().code
    }

    /// The container with the number `code`.
    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|container| container.code() == code)
    }

    pub(super) fn chunk_start(self) -> ChunkStart {
        self.facts().chunks
    }

    /// The unit of the offsets of its chunks in the file.
    pub(super) fn unit(self) -> Unit {
        self.facts().unit
    }

    /// Whether a chunk can be too large to be decoded at once.
    pub(super) fn has_giants(self) -> bool {
        self.facts().has_giants
    }
}

impl Unit {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bits => "bits",
            Self::Bytes => "bytes",
        }
    }

    /// The offset of byte `byte`.
    pub(super) fn of_byte(self, byte: u64) -> u64 {
        match self {
            Self::Bits => byte.saturating_mul(8),
            Self::Bytes => byte,
        }
    }

    /// The byte that holds `offset`.
    pub(super) fn byte(self, offset: u64) -> u64 {
        match self {
            Self::Bits => offset >> 3,
            Self::Bytes => offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Saved indexes hold these numbers.
    #[test]
    fn numbers_of_containers_do_not_change() {
        let codes = Container::ALL.map(|container| (container.name(), container.code()));
        assert_eq!(
            codes,
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
            assert_eq!(Container::from_code(container.code()), Some(container));
        }
        assert_eq!((Container::from_code(0), Container::from_code(8)), (None, None));
    }
}
