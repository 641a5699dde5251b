//! What is in an image, and how many bytes are decompressed to read its files.
//!
//! Reads the inode table once and the fragment table, no data. Invariant: uncompressed bytes,
//! compressed bytes and holes add up to the bytes of all files.
//!
//! Cost of reading a file: a compressed block costs its decompressed size, an uncompressed block
//! nothing. The fragment block that holds the tail of a file is decompressed whole, if it is
//! compressed. Its decompressed size is not stored anywhere, but it is the end of the last tail in
//! the block. archfs therefore keeps all tails, 16 bytes each, until it has read all inodes, and
//! sorts them by block.

use super::blocks::{DataBlock, FileRef};
use super::inode::{Body, Inode, InodeRef, RegularBody, Tail};
use super::metadata::{Cursor, Position};
use super::{SquashFs, superblock};
use crate::codecs::Codec;
use crate::error::Result;
use crate::formats::bytes::{Reader, index, length};
use crate::formats::info::SlowReads;
use crate::formats::info::{Costs, Fragments, Image, Info, Kinds, Layout, Shares, Sizes};
use crate::progress::Progress;
use crate::units::format_size;

/// Filters of xz, from the lowest bit on.
const XZ_FILTERS: [&str; 6] = ["x86", "powerpc", "ia64", "arm", "armthumb", "sparc"];

/// Algorithms of lzo by number.
const LZO_ALGORITHMS: [&str; 5] =
    ["lzo1x_1", "lzo1x_1_11", "lzo1x_1_12", "lzo1x_1_15", "lzo1x_999"];

impl SquashFs {
    /// Describes the image.
    ///
    /// Fails with `Corrupt` if the inode table or the fragment table cannot be read to its end;
    /// `Io`.
    pub(crate) fn info(&self, progress: &Progress) -> Result<Info> {
        self.count_inodes(progress).map_err(|error| error.within(&self.name))
    }

    /// The format for a message.
    pub(crate) fn describe(&self) -> String {
        let (codec, block) = (self.superblock.codec.name(), self.superblock.block_size);
        format!("SquashFS image, {codec}, blocks of {}", format_size(block.into()))
    }

    /// Whether a read of a small file decompresses a large fragment block with many others. Looks
    /// at a few of the blocks: what does not compress is stored uncompressed, and costs nothing.
    pub(crate) fn slow_reads(&self) -> Option<SlowReads> {
        const SAMPLES: u32 = 16;
        let count = self.superblock.fragment_count;
        let slow = SlowReads::of_parts(
            self.superblock.block_size.into(),
            count.into(),
            self.superblock.inode_count.into(),
        )?;
        let step = usize::try_from(count.div_ceil(SAMPLES)).unwrap_or(usize::MAX);
        let samples = (0..count).step_by(step.max(1));
        let (mut compressed, mut others) = (0_u32, 0_u32);
        for fragment in samples {
            // Damage is reported when it is read.
            match self.blocks.fragment_of(Tail { fragment, offset: 0 }).ok()? {
                DataBlock::Compressed { .. } => compressed = compressed.saturating_add(1),
                _ => others = others.saturating_add(1),
            }
        }
        (compressed > others).then_some(slow)
    }

    /// The compressor options of the image as arguments of `mksquashfs`, if they are stored.
    fn options(&self) -> Option<String> {
        if !self.superblock.has_options {
            return None;
        }
        let start = Position { block: length(superblock::SIZE), offset: 0 };
        let mut cursor = self.metadata.cursor(start).ok()?;
        let bytes = cursor.rest().ok()?;
        options(self.superblock.codec, bytes).ok().flatten()
    }

    fn count_inodes(&self, progress: &Progress) -> Result<Info> {
        let superblock = &self.superblock;
        progress.begin("reading inodes");
        progress.expect(superblock.directory_table.saturating_sub(superblock.inode_table));
        let mut count = Count::new(self);
        let mut reported = 0;
        self.scan_inodes(|reference, inode, list| {
            let done = reference.bits() >> 16;
            progress.advance(done.saturating_sub(reported));
            reported = done;
            let location = || reference.describe(superblock.inode_table);
            count.inode(reference, inode, list).map_err(|error| error.with_detail(location()))
        })
        .map_err(|error| error.within("inode table"))?;
        count.tails()?;
        count.runs();
        let Count { kinds, sizes, costs, shares, fragments, .. } = count;
        let image = Image {
            compressor: superblock.codec.name(),
            options: self.options(),
            block_size: superblock.block_size,
            bytes: superblock.bytes_used,
            tables: superblock.bytes_used.saturating_sub(superblock.inode_table),
            shares,
            fragments,
            xattrs: self.xattrs.as_ref().map(|xattrs| xattrs.count()),
            is_exportable: superblock.export_table.is_some(),
            owners: superblock.id_count,
        };
        Ok(Info::new(self.whole.len(), (kinds, sizes, costs), Layout::Image(image)))
    }
}

/// The tail of a file in a fragment block.
struct End {
    fragment: u32,
    /// Offset in the decompressed block.
    offset: u32,
    len: u32,
    /// Number of the file in `costs`.
    file: u32,
}

/// The contiguous blocks of a file.
struct Run {
    /// Offset in the image.
    start: u64,
    /// Bytes of the file in them, without holes.
    bytes: u64,
}

struct Count<'i> {
    image: &'i SquashFs,
    kinds: Kinds,
    sizes: Sizes,
    costs: Costs,
    shares: Shares,
    fragments: Fragments,
    ends: Vec<End>,
    runs: Vec<Run>,
}

impl<'i> Count<'i> {
    fn new(image: &'i SquashFs) -> Self {
        let fragments =
            Fragments { blocks: image.superblock.fragment_count, ..Fragments::default() };
        Self {
            image,
            kinds: Kinds::default(),
            sizes: Sizes::default(),
            costs: Costs::default(),
            shares: Shares::default(),
            fragments,
            ends: Vec::new(),
            runs: Vec::new(),
        }
    }

    fn inode(&mut self, reference: InodeRef, inode: &Inode, list: &Cursor<'_>) -> Result<()> {
        // Writers count the links of a directory differently. It always has one name.
        let names = match inode.body {
            Body::Directory(_) => 1,
            _ => u64::from(inode.nlink),
        };
        self.kinds.add(inode.kind(), names);
        match &inode.body {
            Body::Regular(body) => self.file(reference, body, list),
            _ => Ok(()),
        }
    }

    fn file(&mut self, reference: InodeRef, body: &RegularBody, list: &Cursor<'_>) -> Result<()> {
        let file = FileRef { inode: reference, body: *body, list: list.clone() };
        let block_size = u64::from(self.image.superblock.block_size);
        let mut list = self.image.blocks.list(file, 0)?;
        let (mut left, mut decoded, mut uncompressed) = (body.size, 0_u64, 0_u64);
        while let Some(block) = list.next()? {
            let len = left.min(block_size);
            left = left.saturating_sub(len);
            let sum = match block {
                DataBlock::Hole => &mut self.shares.holes,
                DataBlock::Uncompressed { .. } => &mut uncompressed,
                DataBlock::Compressed { .. } => &mut decoded,
            };
            *sum = sum.saturating_add(len);
        }
        self.shares.uncompressed = self.shares.uncompressed.saturating_add(uncompressed);
        self.shares.compressed = self.shares.compressed.saturating_add(decoded);
        let bytes = uncompressed.saturating_add(decoded);
        if bytes > 0 {
            self.runs.push(Run { start: body.start, bytes });
        }
        self.sizes.add(body.size);
        let file = self.costs.add(body.size, decoded);
        if let Some(Tail { fragment, offset }) = body.tail {
            let len = u32::try_from(left).unwrap_or(u32::MAX);
            // An image has at most 2^32 inodes.
            let file = u32::try_from(file).unwrap_or(u32::MAX);
            self.ends.push(End { fragment, offset, len, file });
        }
        Ok(())
    }

    /// Adds the cost of the fragment blocks to the files that have tails in them.
    fn tails(&mut self) -> Result<()> {
        let block_size = u64::from(self.image.superblock.block_size);
        let mut ends = std::mem::take(&mut self.ends);
        ends.sort_unstable_by_key(|end| (end.fragment, end.offset, end.len));
        for group in ends.chunk_by(|a, b| a.fragment == b.fragment) {
            let Some(&End { fragment, .. }) = group.first() else { continue };
            let extent = self.image.blocks.fragment_of(Tail { fragment, offset: 0 })?;
            let end = group.iter().map(|end| u64::from(end.offset).saturating_add(end.len.into()));
            let decoded = end.max().unwrap_or(0).min(block_size);
            let bytes = group.iter().fold(0, |sum: u64, end| sum.saturating_add(end.len.into()));
            let sum = match extent {
                DataBlock::Compressed { .. } => {
                    group.iter().for_each(|end| self.costs.add_to(index(end.file), decoded));
                    self.fragments.compressed = self.fragments.compressed.saturating_add(1);
                    &mut self.shares.compressed
                }
                DataBlock::Uncompressed { .. } | DataBlock::Hole => &mut self.shares.uncompressed,
            };
            *sum = sum.saturating_add(bytes);
            self.fragments.used = self.fragments.used.saturating_add(1);
            self.fragments.bytes = self.fragments.bytes.saturating_add(decoded);
            self.fragments.files = self.fragments.files.saturating_add(length(group.len()));
            for duplicates in group.chunk_by(|a, b| a.offset == b.offset) {
                let lens = duplicates.iter().map(|end| u64::from(end.len));
                self.shares.shared = self.shares.shared.saturating_add(all_but_longest(lens));
            }
        }
        Ok(())
    }

    /// Finds files that share their blocks.
    fn runs(&mut self) {
        let mut runs = std::mem::take(&mut self.runs);
        runs.sort_unstable_by_key(|run| run.start);
        for duplicates in runs.chunk_by(|a, b| a.start == b.start) {
            let shared = all_but_longest(duplicates.iter().map(|run| run.bytes));
            self.shares.shared = self.shares.shared.saturating_add(shared);
        }
    }
}

/// The sum without one of the largest.
fn all_but_longest(lens: impl Iterator<Item = u64>) -> u64 {
    let (sum, longest) =
        lens.fold((0_u64, 0), |(sum, longest), len| (sum.saturating_add(len), len.max(longest)));
    sum.saturating_sub(longest)
}

/// The options of a compressor, as some images store them in a metadata block after the superblock
/// (squashfs_fs.h, and *_wrapper.c of squashfs-tools). They are for display only; decompression
/// needs none of them. Invalid options are shown as none.
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
