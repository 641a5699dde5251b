//! The options of the compressor, which some images store in a metadata block after the superblock
//! (squashfs_fs.h, and *_wrapper.c of squashfs-tools).
//!
//! They are for display only; decompression needs none of them. Invalid options are shown as none.

use super::SquashFs;
use super::metadata::Position;
use super::superblock;
use crate::codecs::Codec;
use crate::error::Result;
use crate::formats::bytes::{Reader, index, length};

/// Filters of xz, from the lowest bit on.
const XZ_FILTERS: [&str; 6] = ["x86", "powerpc", "ia64", "arm", "armthumb", "sparc"];

/// Algorithms of lzo by number.
const LZO_ALGORITHMS: [&str; 5] =
    ["lzo1x_1", "lzo1x_1_11", "lzo1x_1_12", "lzo1x_1_15", "lzo1x_999"];

impl SquashFs {
    /// The compressor options of the image as arguments of `mksquashfs`, if they are stored.
    pub(super) fn options(&self) -> Option<String> {
        if !self.superblock.has_options {
            return None;
        }
        let start = Position { block: length(superblock::SIZE), offset: 0 };
        let mut cursor = self.metadata.cursor(start).ok()?;
        let bytes = cursor.rest().ok()?;
        options(self.superblock.codec, bytes).ok().flatten()
    }
}

fn options(codec: Codec, bytes: &[u8]) -> Result<Option<String>> {
    let mut reader = Reader::new("compressor options", bytes);
    Ok(match codec {
        Codec::Zstd => Some(format!("level {}", reader.u32()?)),
        Codec::Gzip => {
            let (level, window) = (reader.u32()?, reader.u16()?);
            Some(format!("level {level}, window {window}"))
        }
        Codec::Lz4 => {
            let (_version, flags) = (reader.u32()?, reader.u32()?);
            (flags & 1 != 0).then(|| "hc".to_owned())
        }
        Codec::Xz => {
            let (dictionary, filters) = (reader.u32()?, reader.u32()?);
            let mut text = format!("dict-size {dictionary}");
            for (nth, name) in XZ_FILTERS.iter().enumerate() {
                if filters.checked_shr(u32::try_from(nth).unwrap_or(0)).unwrap_or(0) & 1 != 0 {
                    text.push_str(&format!(", {name}"));
                }
            }
            Some(text)
        }
        Codec::Lzo => {
            let (algorithm, level) = (reader.u32()?, reader.u32()?);
            let name = LZO_ALGORITHMS.get(index(algorithm));
            // Only this algorithm has levels.
            name.map(|name| match algorithm {
                4 => format!("{name}, level {level}"),
                _ => (*name).to_owned(),
            })
        }
        Codec::Lzma => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(codec: Codec, numbers: &[u32]) -> Option<String> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        options(codec, &bytes).ok().flatten()
    }

    #[test]
    fn shows_options_as_they_are_given() {
        for (codec, numbers, text) in [
            (Codec::Zstd, &[19][..], Some("level 19")),
            (Codec::Gzip, &[6, 15], Some("level 6, window 15")),
            (Codec::Lz4, &[1, 1], Some("hc")),
            (Codec::Lz4, &[1, 0], None),
            (Codec::Xz, &[131_072, 5], Some("dict-size 131072, x86, ia64")),
            (Codec::Lzo, &[4, 9], Some("lzo1x_999, level 9")),
            (Codec::Lzo, &[77, 9], None),
            (Codec::Zstd, &[], None),
        ] {
            assert_eq!(shown(codec, numbers).as_deref(), text, "{codec:?} {numbers:?}");
        }
    }
}
