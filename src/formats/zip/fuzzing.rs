//! The fuzz target of ZIP archives.

use super::{Zip, ZipOptions};
use crate::cache::Workers;
use crate::formats::compressed::ChunkCache;
use crate::formats::fuzzing::{DirectoryChecks, walk};
use crate::formats::index::Allowance;
use crate::formats::limits::CHUNK_MAX;
use crate::progress::Progress;
use crate::storage::MemStorage;
use crate::sync::Arc;
use crate::vfs::Tree;

/// Memory of the caches, bytes.
const CACHE: u64 = 8 << 20;

/// A whole archive.
pub fn zip(data: &[u8]) {
    let chunks = Arc::new(ChunkCache::new(CACHE, CHUNK_MAX, Arc::<Workers>::default()));
    let options = ZipOptions {
        progress: &Progress::default(),
        partial: true,
        logs_notes: true,
        chunks: &chunks,
        seek_points: &Arc::new(super::LargeMembers::new(CACHE)),
        indexes: &Arc::new(Allowance::new(CACHE)),
    };
    let storage = Arc::new(MemStorage::new(data.to_vec()));
    if let Ok(zip) = Zip::open("archive", storage, &options) {
        walk(&zip, DirectoryChecks::Consistent);
        zip.audit(&mut |_| {});
        let _ = zip.info();
        let _ = zip.stored_files(&mut |_, _| {});
    }
}
