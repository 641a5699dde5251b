//! The statistics of a ZIP archive, for `archfs info`.

use super::Zip;
use crate::error::Result;
use crate::formats::index::Content;
use crate::formats::info;
use crate::vfs::FileKind;

impl Zip {
    /// The statistics of this archive, for `archfs info`.
    pub(crate) fn info(&self) -> Result<info::Info> {
        let (mut kinds, mut sizes, mut costs) =
            (info::Kinds::default(), info::Sizes::default(), info::Costs::default());
        for id in 0..self.index.len() {
            let node = self.index.named(self.index.node(id))?;
            kinds.add(node.kind(), 1);
            if node.kind() == FileKind::Regular {
                sizes.add(node.size);
                let is_stored = matches!(node.content(), Content::AfterHeader { .. });
                costs.add(node.size, if is_stored { 0 } else { node.size });
            }
        }
        let methods = self.members.methods.iter().map(|(method, sum)| info::MethodShare {
            method: method.name(),
            files: sum.files,
            compressed: sum.compressed,
            bytes: sum.bytes,
        });
        let layout = info::Layout::Zip(info::ZipLayout { methods: methods.collect() });
        Ok(info::Info::new(self.storage.len(), (kinds, sizes, costs), layout))
    }
}
