//! Finds files with the same bytes, which are stored once.
//!
//! Invariant: two files are equal only if all their bytes and holes are, as far as 128 bits of
//! BLAKE3 can tell under a secret key.
//!
//! With a plain hash, an attacker could create two files with the same hash and have one shown as
//! the other. The bytes would have to be compared as well, which means reading files again from
//! anywhere on the disk. BLAKE3 makes this unnecessary, and it is as fast as the disk. The key
//! differs from run to run. No hash is written, so the archive does not depend on the key.
//!
//! A file that fits in one batch is hashed where it is compressed. The first blocks of a larger
//! file would be written before its hash is known. So larger files with equal sizes are read twice.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use blake3::Hasher;

use crate::error::Result;
use crate::pack::Job;
use crate::pack::catalog::{Catalog, InodeId};
use crate::pack::feed::{BATCH, Data, Part, Piece, feed};

pub(super) type Digest = [u8; 16];

/// The key of this run.
#[derive(Clone, Copy)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// A secret key. The standard library seeds its hash maps from the system.
    pub(super) fn random() -> Self {
        let mut key = [0; 32];
        for (nth, part) in key.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&RandomState::new().hash_one(nth).to_le_bytes());
        }
        Self(key)
    }

    /// The hash of `pieces`, which are all of a file or its part of a batch.
    pub(super) fn digest(&self, pieces: &[Piece]) -> Digest {
        let mut hasher = Hasher::new_keyed(&self.0);
        for piece in pieces {
            let kind = match &piece.data {
                Data::Bytes(_) => 1,
                Data::Hole(_) => 2,
            };
            hasher.update(&[kind]);
            hasher.update(&piece.offset.to_le_bytes());
            hasher.update(&piece.data.len().to_le_bytes());
            if let Data::Bytes(bytes) = &piece.data {
                hasher.update(bytes);
            }
        }
        short(&hasher)
    }

    fn hasher(&self) -> Hasher {
        Hasher::new_keyed(&self.0)
    }
}

fn short(hasher: &Hasher) -> Digest {
    let mut digest = [0; 16];
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    digest
}

/// Whether a file takes several batches.
pub(super) fn is_large(catalog: &Catalog, file: InodeId) -> bool {
    catalog.inode(file).size() > BATCH
}

/// Maps each large file of `files` that is a copy to the first file with its bytes.
///
/// Fails with `Interrupted`. A file that cannot be read is no duplicate; the error is reported when
/// it is packed.
pub(super) fn large(
    job: &Job<'_>,
    catalog: &Catalog,
    files: &[InodeId],
    grain: u64,
    key: Key,
) -> Result<HashMap<InodeId, InodeId>> {
    let size = |id: InodeId| catalog.inode(id).size();
    let mut counts: HashMap<u64, u32> = HashMap::new();
    let large = || files.iter().copied().filter(|&id| is_large(catalog, id));
    large().for_each(|id| *counts.entry(size(id)).or_default() += 1);
    let candidates: Vec<InodeId> = large().filter(|&id| counts[&size(id)] > 1).collect();
    let mut hashed = Hashed { key, open: None, firsts: HashMap::new(), copies: HashMap::new() };
    if candidates.is_empty() {
        return Ok(hashed.copies);
    }
    job.progress.begin("comparing files");
    job.progress.expect(candidates.iter().map(|&id| size(id)).sum());
    let digest = |part: Part| (part.file, part.pieces.ok().map(|pieces| key.digest(&pieces)));
    let work = |parts: Vec<Part>| parts.into_iter().map(digest).collect::<Vec<_>>();
    let take = |parts: Vec<(InodeId, Option<Digest>)>| {
        parts.into_iter().for_each(|(file, digest)| hashed.add(file, digest));
        Ok(())
    };
    feed(job, catalog, &candidates, grain, work, take)?;
    hashed.close();
    Ok(hashed.copies)
}

struct Hashed {
    key: Key,
    /// The current file; no hasher if one of its batches could not be read.
    open: Option<(InodeId, Option<Hasher>)>,
    firsts: HashMap<Digest, InodeId>,
    copies: HashMap<InodeId, InodeId>,
}

impl Hashed {
    fn add(&mut self, file: InodeId, digest: Option<Digest>) {
        if self.open.as_ref().is_none_or(|(open, _)| *open != file) {
            self.close();
            self.open = Some((file, Some(self.key.hasher())));
        }
        if let Some((_, hasher)) = &mut self.open {
            match (digest, hasher.as_mut()) {
                (Some(digest), Some(hasher)) => drop(hasher.update(&digest)),
                _ => *hasher = None,
            }
        }
    }

    fn close(&mut self) {
        if let Some((file, Some(hasher))) = self.open.take() {
            let first = *self.firsts.entry(short(&hasher)).or_insert(file);
            if first != file {
                self.copies.insert(file, first);
            }
        }
    }
}
