//! What is in an image, and what reading its files decodes.
//!
//! Owns counting it from the inodes and their block lists; leaves what the sums mean to
//! `formats::info`. Reads the inode table once and the fragment table, no data.
//! Invariant: plain, compressed and holes add up to the bytes of all files.
//!
//! What a file costs to read. A compressed block costs what it decodes to, a plain one nothing. The
//! block of fragments that a file ends in is decoded as a whole, if it is compressed; how much that
//! gives is written nowhere, but it ends where the last end of a file in it does. So the ends are
//! kept, 16 bytes each, until all inodes were seen, and sorted by their block.

use super::SquashFs;
use super::blocklist::Extent;
use super::inode::{Body, Inode, InodeRef, RegularBody, Tail};
use super::metadata::Cursor;
use crate::error::Result;
use crate::formats::bytes::{index, length};
use crate::formats::info::{Costs, Fragments, Image, Info, Kinds, Layout, Shares, Sizes};
use crate::progress::Progress;

impl SquashFs {
    /// What is in it.
    ///
    /// # Errors
    /// `Corrupt` where the inode table or the fragment table can not be read to its end; `Io`.
    pub(in crate::formats) fn info(&self, progress: &Progress) -> Result<Info> {
        self.counted(progress).map_err(|error| error.within(&self.name))
    }

    fn counted(&self, progress: &Progress) -> Result<Info> {
        let superblock = &self.superblock;
        progress.begin("reading inodes");
        progress.expect(superblock.directory_table.saturating_sub(superblock.inode_table));
        let mut count = Count::new(self);
        let mut told = 0;
        self.scan_inodes(|reference, inode, list| {
            let done = reference.bits() >> 16;
            progress.advance(done.saturating_sub(told));
            told = done;
            let place = || reference.place(superblock.inode_table);
            count.inode(reference, inode, list).map_err(|error| error.within(place()))
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
            layout: Layout::Image(image),
            within: Vec::new(),
        })
    }
}

/// The end of a file in a block of fragments.
struct End {
    fragment: u32,
    /// Bytes into the decoded block.
    offset: u32,
    len: u32,
    /// Its number among the costs.
    file: u32,
}

/// The blocks of a file, which follow each other.
struct Run {
    /// Bytes into the image.
    start: u64,
    /// Bytes of the file that they hold, without holes.
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
        // What writers count as links of a folder is not the same everywhere; it has one name.
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
        let SquashFs { data, metadata, .. } = self.image;
        let lists = data.lists();
        let mut extents = lists.extents(metadata, reference, body, list.clone(), 0)?;
        let (mut left, mut decoded, mut plain) = (body.size, 0_u64, 0_u64);
        while let Some(extent) = extents.next()? {
            let len = left.min(data.block_size());
            left = left.saturating_sub(len);
            let sum = match extent {
                Extent::Hole => &mut self.shares.holes,
                Extent::Uncompressed { .. } => &mut plain,
                Extent::Compressed { .. } => &mut decoded,
            };
            *sum = sum.saturating_add(len);
        }
        self.shares.plain = self.shares.plain.saturating_add(plain);
        self.shares.compressed = self.shares.compressed.saturating_add(decoded);
        let bytes = plain.saturating_add(decoded);
        if bytes > 0 {
            self.runs.push(Run { start: body.start, bytes });
        }
        self.sizes.add(body.size);
        let file = self.costs.add(body.size, decoded);
        if let Some(Tail { fragment, offset }) = body.tail {
            let len = u32::try_from(left).unwrap_or(u32::MAX);
            // No image has more files than its 32 bits of inodes.
            let file = u32::try_from(file).unwrap_or(u32::MAX);
            self.ends.push(End { fragment, offset, len, file });
        }
        Ok(())
    }

    /// Adds what the blocks of fragments cost to the files that end in them.
    fn tails(&mut self) -> Result<()> {
        let SquashFs { data, metadata, .. } = self.image;
        let mut ends = std::mem::take(&mut self.ends);
        ends.sort_unstable_by_key(|end| (end.fragment, end.offset, end.len));
        for group in ends.chunk_by(|a, b| a.fragment == b.fragment) {
            let Some(&End { fragment, .. }) = group.first() else { continue };
            let extent = data.fragment(metadata, Tail { fragment, offset: 0 })?;
            let end = group.iter().map(|end| u64::from(end.offset).saturating_add(end.len.into()));
            let decoded = end.max().unwrap_or(0).min(data.block_size());
            let bytes = group.iter().fold(0, |sum: u64, end| sum.saturating_add(end.len.into()));
            let sum = match extent {
                Extent::Compressed { .. } => {
                    group.iter().for_each(|end| self.costs.more(index(end.file), decoded));
                    self.fragments.compressed = self.fragments.compressed.saturating_add(1);
                    &mut self.shares.compressed
                }
                Extent::Uncompressed { .. } | Extent::Hole => &mut self.shares.plain,
            };
            *sum = sum.saturating_add(bytes);
            self.fragments.used = self.fragments.used.saturating_add(1);
            self.fragments.bytes = self.fragments.bytes.saturating_add(decoded);
            self.fragments.files = self.fragments.files.saturating_add(length(group.len()));
            for same in group.chunk_by(|a, b| a.offset == b.offset) {
                let lens = same.iter().map(|end| u64::from(end.len));
                self.shares.shared = self.shares.shared.saturating_add(all_but_longest(lens));
            }
        }
        Ok(())
    }

    /// Finds files whose blocks are those of others.
    fn runs(&mut self) {
        let mut runs = std::mem::take(&mut self.runs);
        runs.sort_unstable_by_key(|run| run.start);
        for same in runs.chunk_by(|a, b| a.start == b.start) {
            let shared = all_but_longest(same.iter().map(|run| run.bytes));
            self.shares.shared = self.shares.shared.saturating_add(shared);
        }
    }
}

/// The sum of all of them but one of the longest.
fn all_but_longest(lens: impl Iterator<Item = u64>) -> u64 {
    let (sum, longest) =
        lens.fold((0_u64, 0), |(sum, longest), len| (sum.saturating_add(len), len.max(longest)));
    sum.saturating_sub(longest)
}
