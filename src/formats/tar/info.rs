//! What is in a tar, and what reading its files decodes.
//!
//! Owns counting it from the index; leaves what the sums mean to `formats::info`.
//! Invariant: a chunk that a file needs is counted once for that file, and whole.

use std::ops::ControlFlow;

use super::Tar;
use super::index::Content;
use crate::error::Result;
use crate::formats::info::{Compressed, Costs, Info, Kinds, Layout, Sizes, TarLayout};

impl Tar {
    /// What is in it.
    ///
    /// # Errors
    /// `Corrupt`, `Io` where the saved index cannot be read.
    pub(in crate::formats) fn info(&self) -> Result<Info> {
        let (mut kinds, mut sizes, mut costs) =
            (Kinds::default(), Sizes::default(), Costs::default());
        let mut holes: u64 = 0;
        for id in 0..self.index.len() {
            let node = self.by_index(self.index.node(id))?;
            match node.content() {
                Content::Link { .. } => {
                    kinds.add_name(self.by_index(self.index.inode(id))?.1.kind());
                    continue;
                }
                Content::Stored { at } => {
                    sizes.add(node.size);
                    costs.add(node.size, self.decoded([(at, node.size)]));
                }
                Content::Sparse { map } => {
                    let map = self.by_index(self.index.map(id, &node, map))?;
                    holes = holes.saturating_add(node.size.saturating_sub(map.stored));
                    sizes.add(node.size);
                    let mut parts = Vec::new();
                    self.segments(&map, 0, &mut |part| {
                        parts.push((part.at, part.len));
                        Ok(ControlFlow::Continue(()))
                    })?;
                    costs.add(node.size, self.decoded(parts));
                }
                _ => {}
            }
            kinds.add(node.kind(), 1);
        }
        let (cost, packed) = costs.finish();
        let compressed = self.packed.as_ref().map(|packed| Compressed {
            container: packed.container().name(),
            chunks: packed.chunks(),
            largest: packed.largest_chunk(),
        });
        let stored = TarLayout {
            bytes: self.storage.len(),
            compressed,
            holes,
            has_xattrs: self.index.has_xattrs(),
            is_indexed: self.is_kept,
        };
        Ok(Info {
            path: Vec::new(),
            bytes: self.packed.as_ref().map_or(self.storage.len(), |packed| packed.encoded_len()),
            kinds,
            sizes,
            cost,
            packed,
            layout: Layout::Tar(stored),
            within: Vec::new(),
        })
    }

    /// What reading these parts of the tar decodes, bytes; each is a place and a length.
    fn decoded(&self, parts: impl IntoIterator<Item = (u64, u64)>) -> u64 {
        let Some(packed) = &self.packed else { return 0 };
        let (mut sum, mut behind) = (0_u64, 0);
        for (at, len) in parts {
            if len == 0 {
                continue;
            }
            let chunks = packed.covering(at..at.saturating_add(len));
            // The parts of a sparse file follow each other, so a chunk comes again only at once.
            sum = sum.saturating_add(chunks.end.saturating_sub(chunks.start.max(behind)));
            behind = behind.max(chunks.end);
        }
        sum
    }
}
