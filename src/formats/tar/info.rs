//! The statistics of a tar, for `archfs info`.

use std::ops::ControlFlow;

use super::{Tar, lone_file};
use crate::error::Result;
use crate::formats::index::Content;
use crate::formats::info;

impl Tar {
    /// The statistics of this archive, for `archfs info`. A chunk that a file needs counts once
    /// for that file, with its whole length.
    pub(crate) fn info(&self) -> Result<info::Info> {
        let (mut kinds, mut sizes, mut costs) =
            (info::Kinds::default(), info::Sizes::default(), info::Costs::default());
        let mut holes: u64 = 0;
        for id in 0..self.index.len() {
            let node = self.index.named(self.index.node(id))?;
            match node.content() {
                Content::HardLink { .. } => {
                    let target = self.index.named(self.index.resolve_hard_link(id))?;
                    kinds.add_name(target.1.kind());
                    continue;
                }
                Content::Stored { start } => {
                    sizes.add(node.size);
                    costs.add(node.size, self.decompressed_len([(start, node.size)]));
                }
                Content::Sparse { map } => {
                    let map = self.index.named(self.index.map(id, &node, map))?;
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
        let compressed = self.members.compressed.as_ref();
        let layout = info::TarLayout {
            bytes: self.storage.len(),
            compressed: compressed.map(|storage| info::Compressed {
                container: storage.container().name(),
                chunks: storage.chunks(),
                largest: storage.largest_chunk(),
            }),
            holes,
            has_xattrs: self.index.has_xattrs(),
            is_indexed: self.members.is_saved,
            is_lone_file: compressed.is_some() && lone_file::is_indexed_by(&self.index),
        };
        let bytes = compressed.map_or(self.storage.len(), |storage| storage.encoded_len());
        Ok(info::Info::new(bytes, (kinds, sizes, costs), info::Layout::Tar(layout)))
    }

    /// Bytes that must be decompressed to read these parts of the tar. Each part is an offset and a
    /// length.
    fn decompressed_len(&self, parts: impl IntoIterator<Item = (u64, u64)>) -> u64 {
        let Some(compressed) = &self.members.compressed else { return 0 };
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
