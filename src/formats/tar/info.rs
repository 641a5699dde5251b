//! Statistics for `archfs info`: what a tar contains, and how much must be decompressed to read its
//! files.
//!
//! A chunk that a file needs counts once for that file, with its whole length.

use std::ops::ControlFlow;

use super::Tar;
use crate::error::Result;
use crate::formats::bytes::length;
use crate::formats::index::Content;
use crate::formats::info::{Compressed, Costs, Info, Kinds, Layout, Sizes, TarLayout};
use crate::formats::slow_reads::SlowReads;

impl Tar {
    /// Whether a read decompresses many files. `compressed::first_pass` warns of archives that are
    /// decompressed to a temporary file.
    pub(crate) fn slow_reads(&self) -> Option<SlowReads> {
        let chunks = length(self.compressed.as_ref()?.chunks()?);
        let mean = self.storage.len().checked_div(chunks)?;
        SlowReads::of_parts(mean, chunks, self.index.len().into())
    }

    /// The statistics of this archive.
    pub(in crate::formats) fn info(&self) -> Result<Info> {
        let (mut kinds, mut sizes, mut costs) =
            (Kinds::default(), Sizes::default(), Costs::default());
        let mut holes: u64 = 0;
        for id in 0..self.index.len() {
            let node = self.in_index(self.index.node(id))?;
            match node.content() {
                Content::HardLink { .. } => {
                    kinds.add_name(self.in_index(self.index.resolve_hard_link(id))?.1.kind());
                    continue;
                }
                Content::Stored { start } => {
                    sizes.add(node.size);
                    costs.add(node.size, self.decompressed_len([(start, node.size)]));
                }
                Content::Sparse { map } => {
                    let map = self.in_index(self.index.map(id, &node, map))?;
                    holes = holes.saturating_add(node.size.saturating_sub(map.stored));
                    sizes.add(node.size);
                    let mut parts = Vec::new();
                    self.segments(&map, 0, &mut |part| {
                        parts.push((part.archive_offset, part.len));
                        Ok(ControlFlow::Continue(()))
                    })?;
                    costs.add(node.size, self.decompressed_len(parts));
                }
                _ => {}
            }
            kinds.add(node.kind(), 1);
        }
        let (cost, packed) = costs.finish();
        let compressed = self.compressed.as_ref().map(|storage| Compressed {
            container: storage.container().name(),
            chunks: storage.chunks(),
            largest: storage.largest_chunk(),
        });
        let layout = TarLayout {
            bytes: self.storage.len(),
            compressed,
            holes,
            has_xattrs: self.index.has_xattrs(),
            is_indexed: self.is_saved,
        };
        Ok(Info {
            path: Vec::new(),
            bytes: self
                .compressed
                .as_ref()
                .map_or(self.storage.len(), |storage| storage.encoded_len()),
            kinds,
            sizes,
            cost,
            packed,
            is_environment: false,
            layout: Layout::Tar(layout),
            within: Vec::new(),
        })
    }

    /// Bytes that must be decompressed to read these parts of the tar. Each part is an offset and a
    /// length.
    fn decompressed_len(&self, parts: impl IntoIterator<Item = (u64, u64)>) -> u64 {
        let Some(compressed) = &self.compressed else { return 0 };
        let (mut sum, mut counted_to) = (0_u64, 0);
        for (offset, len) in parts {
            if len == 0 {
                continue;
            }
            let chunks = compressed.covering(offset..offset.saturating_add(len));
            // Parts ascend, so no chunk before the last one can repeat.
            sum = sum.saturating_add(chunks.end.saturating_sub(chunks.start.max(counted_to)));
            counted_to = counted_to.max(chunks.end);
        }
        sum
    }
}
