//! Statistics for `archfs info`.

use super::Zip;
use super::method::Method;
use crate::error::Result;
use crate::formats::index::Content;
use crate::formats::info::{Costs, Info, Kinds, Layout, MethodShare, Sizes, ZipLayout};
use crate::vfs::FileKind;

impl Zip {
    /// The statistics of this archive.
    pub(in crate::formats) fn info(&self) -> Result<Info> {
        let (mut kinds, mut sizes, mut costs) =
            (Kinds::default(), Sizes::default(), Costs::default());
        for id in 0..self.index.len() {
            let node = self.index.named(self.index.node(id))?;
            kinds.add(node.kind(), 1);
            if node.kind() == FileKind::Regular {
                sizes.add(node.size);
                let is_stored = matches!(node.content(), Content::AfterHeader { .. });
                costs.add(node.size, if is_stored { 0 } else { node.size });
            }
        }
        let (cost, packed) = costs.finish();
        let share = |(method, share): (&Method, &super::scan::Share)| MethodShare {
            method: method.name(),
            files: share.files,
            compressed: share.compressed,
            bytes: share.bytes,
        };
        let layout = ZipLayout { methods: self.methods.iter().map(share).collect() };
        Ok(Info {
            path: Vec::new(),
            bytes: self.storage.len(),
            kinds,
            sizes,
            cost,
            packed,
            is_environment: false,
            layout: Layout::Zip(layout),
            within: Vec::new(),
        })
    }
}
