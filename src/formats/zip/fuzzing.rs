//! The fuzz target of ZIP archives.

use super::{Zip, ZipOptions};
use crate::cache::Workers;
use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};
use crate::formats::compressed::ChunkCache;
use crate::formats::fuzzing::{DirectoryChecks, walk};
use crate::formats::index::{Allowance, notes};
use crate::formats::limits::CHUNK_MAX;
use crate::progress::Progress;
use crate::storage::{MemStorage, Storage};
use crate::sync::Arc;
use crate::vfs::Tree;

/// Memory of the caches, bytes.
const CACHE: u64 = 8 << 20;

/// A whole archive.
pub fn zip(data: &[u8]) {
    let chunks = Arc::new(ChunkCache::new(CACHE, CHUNK_MAX, Arc::<Workers>::default()));
    let options = ZipOptions {
        names: None,
        progress: &Progress::default(),
        partial: true,
        logged: notes::Logged::All,
        chunks: &chunks,
        seek_points: &Arc::new(super::LargeMembers::new(CACHE)),
        indexes: &Arc::new(Allowance::new(CACHE)),
    };
    // Also with 4 GiB of zeros in the middle, for offsets modulo 4 GiB.
    let apart = Apart { bytes: data.to_vec(), holes: vec![(data.len() / 2, 1 << 32)] };
    let storages: [Arc<dyn Storage>; 2] =
        [Arc::new(MemStorage::new(data.to_vec())), Arc::new(apart)];
    for storage in storages {
        if let Ok(zip) = Zip::open("archive", storage, &options) {
            walk(&zip, DirectoryChecks::Consistent);
            zip.audit(&mut |_| {});
            let _ = zip.info();
            let _ = zip.stored_files(&mut |_, _| {});
        }
    }
}

/// Bytes in memory, with zeros in between.
pub(super) struct Apart {
    pub(super) bytes: Vec<u8>,
    /// Where in the bytes there are zeros, ascending, and how many.
    pub(super) holes: Vec<(usize, u64)>,
}

impl Storage for Apart {
    fn len(&self) -> u64 {
        self.holes.iter().fold(length(self.bytes.len()), |len, hole| len.saturating_add(hole.1))
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        if offset.saturating_add(length(buffer.len())) > self.len() {
            return Err(Error::truncated("a read past the end of the data"));
        }
        buffer.fill(0);
        // Where the bytes between two holes are, and where they would be without holes.
        let (mut at, mut from) = (0_u64, 0_usize);
        let end = (self.bytes.len(), 0);
        for &(to, hole) in self.holes.iter().chain([&end]) {
            let part = self.bytes.get(from..to).unwrap_or_default();
            let skipped = index(at.saturating_sub(offset));
            let target = buffer.get_mut(skipped..).unwrap_or_default();
            let source = part.get(index(offset.saturating_sub(at))..).unwrap_or_default();
            target.iter_mut().zip(source).for_each(|(to, from)| *to = *from);
            at = at.saturating_add(length(part.len())).saturating_add(hole);
            from = to;
        }
        Ok(())
    }
}
