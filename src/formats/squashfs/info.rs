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

use super::SquashFs;
use super::blocklist::{Extent, FileRef};
use super::inode::{Body, Inode, InodeRef, RegularBody, Tail};
use super::metadata::Cursor;
use crate::error::Result;
use crate::formats::bytes::{index, length};
use crate::formats::info::{Costs, Fragments, Image, Info, Kinds, Layout, Shares, Sizes};
use crate::formats::slow_reads::SlowReads;
use crate::progress::Progress;
use crate::units::format_size;

impl SquashFs {
    /// Describes the image.
    ///
    /// Fails with `Corrupt` if the inode table or the fragment table cannot be read to its end;
    /// `Io`.
    pub(in crate::formats) fn info(&self, progress: &Progress) -> Result<Info> {
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
            match self.fragments.block(Tail { fragment, offset: 0 }).ok()? {
                Extent::Compressed { .. } => compressed = compressed.saturating_add(1),
                _ => others = others.saturating_add(1),
            }
        }
        (compressed > others).then_some(slow)
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
        let (cost, packed) = costs.finish();
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
        Ok(Info {
            path: Vec::new(),
            bytes: self.whole.len(),
            kinds,
            sizes,
            cost,
            packed,
            is_environment: false,
            layout: Layout::Image(image),
            within: Vec::new(),
        })
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
        let mut extents = self.image.lists.extents(file, 0)?;
        let (mut left, mut decoded, mut uncompressed) = (body.size, 0_u64, 0_u64);
        while let Some(extent) = extents.next()? {
            let len = left.min(block_size);
            left = left.saturating_sub(len);
            let sum = match extent {
                Extent::Hole => &mut self.shares.holes,
                Extent::Uncompressed { .. } => &mut uncompressed,
                Extent::Compressed { .. } => &mut decoded,
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
            let extent = self.image.fragments.block(Tail { fragment, offset: 0 })?;
            let end = group.iter().map(|end| u64::from(end.offset).saturating_add(end.len.into()));
            let decoded = end.max().unwrap_or(0).min(block_size);
            let bytes = group.iter().fold(0, |sum: u64, end| sum.saturating_add(end.len.into()));
            let sum = match extent {
                Extent::Compressed { .. } => {
                    group.iter().for_each(|end| self.costs.add_to(index(end.file), decoded));
                    self.fragments.compressed = self.fragments.compressed.saturating_add(1);
                    &mut self.shares.compressed
                }
                Extent::Uncompressed { .. } | Extent::Hole => &mut self.shares.uncompressed,
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
