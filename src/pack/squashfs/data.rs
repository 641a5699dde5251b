//! The bytes of files: data blocks one after the other, with fragment blocks between them.
//!
//! Invariants: the blocks of a file are contiguous. The layout depends only on the files: several
//! threads compress, but one thread writes in order.

use std::collections::{HashMap, HashSet};
use std::thread;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, Kind, Result};
use crate::pack::catalog::{Catalog, InodeId, cannot_spill, lost};
use crate::pack::feed::{Data as Bytes, Part, Piece, feed};
use crate::pack::output::Output;
use crate::pack::{Job, OnProblem};
use crate::spilled::{Spill, Spilled};
use crate::sync::{AtomicBool, Mutex, Ordering};

use super::Layout;
use super::base::{Base, Copied, Copying, UnchangedFiles};
use super::blocks::{
    BlockEncoder, BlockEncoders, EncodedBlock, Fragment, Fragments, Placement, Tail, is_zero,
};
use super::duplicates::{self, Digest, Key};
use super::geometry::{Geometry, Tails};

/// What is known of the bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileState {
    /// No data yet, or no regular file.
    Unseen,
    Placed(Placement),
    Failed,
}

/// What is known of the bytes of each file, by inode number of the catalog.
pub(super) struct States(Spilled<State>);

/// A `FileState` in the list.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct State {
    /// `Placement::start`, or one of the values below.
    start: u64,
    size_fields: u64,
    sparse: u64,
    /// The tail. There is none if `fragment` is `NO_TAIL`.
    fragment: u32,
    offset: u32,
}

/// Values of `State::start` that are no offset in an image.
const UNSEEN: u64 = u64::MAX;
const FAILED: u64 = u64::MAX - 1;

/// The number that means "no fragment" in an image as well.
const NO_TAIL: u32 = u32::MAX;

impl States {
    fn new(len: usize) -> Result<Self> {
        let unseen = State { start: UNSEEN, size_fields: 0, sparse: 0, fragment: 0, offset: 0 };
        Spilled::filled(unseen, len, &Spill::default()).map(Self).map_err(cannot_spill)
    }

    pub(super) fn get(&self, file: InodeId) -> FileState {
        let State { start, size_fields, sparse, fragment, offset } = self.0[file.index()];
        match start {
            UNSEEN => FileState::Unseen,
            FAILED => FileState::Failed,
            start => FileState::Placed(Placement {
                start,
                size_fields: size_fields as usize,
                sparse,
                tail: (fragment != NO_TAIL).then_some(Tail { fragment, offset }),
            }),
        }
    }

    fn set_placed(&mut self, file: InodeId, placement: &Placement) {
        let Placement { start, size_fields, sparse, tail } = *placement;
        let Tail { fragment, offset } = tail.unwrap_or(Tail { fragment: NO_TAIL, offset: 0 });
        let size_fields = size_fields as u64;
        self.0[file.index()] = State { start, size_fields, sparse, fragment, offset };
    }

    fn set_failed(&mut self, file: InodeId) {
        self.0[file.index()].start = FAILED;
    }

    /// Checks that the disk kept what was spilled to it.
    pub(super) fn check(&self) -> Result<()> {
        self.0.check().map_err(lost)
    }
}

pub(super) struct Data {
    pub(super) states: States,
    /// Sizes of blocks on disk, with a flag for uncompressed ones; 0 is a hole.
    pub(super) size_fields: Vec<u32>,
    pub(super) fragments: Vec<Fragment>,
}

impl Data {
    /// Number of size fields of a file of `size` bytes.
    pub(super) fn size_field_count(placement: &Placement, size: u64, block_size: u32) -> usize {
        let block = u64::from(block_size);
        (if placement.tail.is_some() { size / block } else { size.div_ceil(block) }) as usize
    }
}

/// Maximum blocks of one file: 8 TiB in 128 KiB blocks. Each block takes 4 bytes of memory, even in
/// a hole.
const FILE_BLOCKS_MAX: u64 = 1 << 26;

/// Why `file` cannot be packed in blocks of this size, if it has too many of them.
fn too_many_blocks(catalog: &Catalog, geometry: &Geometry, file: InodeId) -> Option<Error> {
    let count = catalog.inode(file).size().div_ceil(u64::from(geometry.block_size));
    (count > FILE_BLOCKS_MAX).then(|| {
        let remedy = match catalog.inode(file).size().div_ceil(1 << 20) {
            ..=FILE_BLOCKS_MAX => "use --block-size 1M",
            _ => "a tar made with --sparse has no such limit",
        };
        let context = format!(
            "{count} blocks, but an image made here has at most {FILE_BLOCKS_MAX} in a file; {remedy}"
        );
        Error::new(Kind::InvalidInput, context)
    })
}

/// Writes the bytes of `files` to `output`, and counts what was saved. First come those that have
/// not changed since `base`, in its order.
///
/// Fails with `Interrupted`, and the errors of compressing and writing. A file that cannot be read
/// is a problem of `job` and gets the state `Failed`.
pub(super) fn write(
    job: &Job<'_>,
    catalog: &Catalog,
    geometry: &Geometry,
    (files, base): (&[InodeId], Option<&Base>),
    on_problem: OnProblem,
    layout: &mut Layout,
    output: &mut Output,
) -> Result<Data> {
    let mut refused = Vec::new();
    let mut accepted = files.to_vec();
    accepted.retain(|&file| {
        let error = too_many_blocks(catalog, geometry, file);
        if let Some(error) = &error {
            job.problem(catalog.origin(file), error);
            refused.push(file);
        }
        error.is_none()
    });
    let unchanged = match base {
        Some(base) => base.unchanged(job, catalog, &accepted)?,
        None => UnchangedFiles::default(),
    };
    let is_unchanged: HashSet<_> = unchanged.files.iter().map(|one| one.file).collect();
    accepted.retain(|file| !is_unchanged.contains(file));
    drop(is_unchanged);
    let files = &accepted[..];
    let key = Key::random();
    let copies = duplicates::large(job, catalog, files, u64::from(geometry.block_size), key)?;
    job.progress.begin("packing");
    let firsts: Vec<InodeId> =
        files.iter().copied().filter(|file| !copies.contains_key(file)).collect();
    let copied = unchanged.files.iter().map(|one| one.file);
    let sizes = firsts.iter().copied().chain(copied).map(|id| catalog.inode(id).size());
    job.progress.expect(sizes.sum());
    let block_encoders = BlockEncoders::new(*geometry);
    let states = States::new(catalog.len())?;
    thread::scope(|scope| {
        let context = PackContext {
            catalog,
            geometry,
            on_problem,
            key,
            block_encoders: &block_encoders,
            known: Mutex::default(),
            has_failed: AtomicBool::new(false),
        };
        let mut writer = Writer {
            job,
            context: &context,
            output,
            layout,
            fragments: Fragments::new(geometry, &block_encoders, scope, job.threads),
            open: None,
            data: Data { states, size_fields: Vec::new(), fragments: Vec::new() },
        };
        for file in &refused {
            writer.data.states.set_failed(*file);
        }
        if let Some(base) = base {
            let failed = writer.copy_unchanged(base, &unchanged)?;
            writer.run(&failed)?;
        }
        writer.run(&firsts)?;
        // In the order of files, because that of a hash map is random.
        let copied = || files.iter().filter_map(|file| Some((*file, *copies.get(file)?)));
        let mut orphans = Vec::new();
        for (file, first) in copied() {
            match writer.data.states.get(first) {
                FileState::Placed(placement) => writer.copy(file, placement),
                // The first file could be read for the comparison, but not now. Perhaps its copy
                // still can.
                _ => orphans.push(file),
            }
        }
        writer.run(&orphans)?;
        let Writer { fragments, output, layout, mut data, .. } = writer;
        data.fragments = fragments.finish(output)?;
        for fragment in &data.fragments {
            layout.count_block(fragment.size_field);
        }
        layout.fragments = data.fragments.len() as u64;
        Ok(data)
    })
}

/// State shared by the threads.
struct PackContext<'s> {
    catalog: &'s Catalog,
    geometry: &'s Geometry,
    on_problem: OnProblem,
    key: Key,
    block_encoders: &'s BlockEncoders,
    /// The first file with each hash, of files of one batch. It may not be written yet. Guards only
    /// the map; never held with another lock.
    known: Mutex<HashMap<Digest, InodeId>>,
    /// Whether the run has failed. Relaxed: it only saves work.
    has_failed: AtomicBool,
}

/// A part that the threads have encoded.
struct EncodedPart {
    file: InodeId,
    /// The hash if this is the whole file.
    digest: Option<Digest>,
    content: Result<Content>,
}

enum Content {
    Encoded(EncodedFile),
    /// A thread has seen the same bytes before. Compress them only if that file was not placed.
    Seen(Vec<Piece>),
    /// Not compressed, because the run has failed.
    Dropped,
}

/// The blocks of a file, and the part that goes into a fragment block.
#[derive(Default)]
struct EncodedFile {
    blocks: Vec<Block>,
    tail: Option<Vec<u8>>,
}

enum Block {
    /// Length of a hole, bytes.
    Hole(u64),
    Encoded(EncodedBlock),
}

impl PackContext<'_> {
    /// Compresses a part of a file; runs on the threads.
    fn encode_part(&self, Part { file, pieces }: Part) -> EncodedPart {
        let pieces = match pieces {
            Ok(pieces) => pieces,
            Err(error) => {
                if self.on_problem == OnProblem::Abort {
                    self.has_failed.store(true, Ordering::Relaxed);
                }
                return EncodedPart { file, digest: None, content: Err(error) };
            }
        };
        if self.has_failed.load(Ordering::Relaxed) {
            return EncodedPart { file, digest: None, content: Ok(Content::Dropped) };
        }
        let is_whole = !duplicates::is_large(self.catalog, file);
        let is_empty = self.catalog.inode(file).size() == 0;
        let digest = (is_whole && !is_empty).then(|| self.key.digest(&pieces));
        if let Some(digest) = digest {
            let mut known = self.known.lock();
            if known.contains_key(&digest) {
                drop(known);
                return EncodedPart {
                    file,
                    digest: Some(digest),
                    content: Ok(Content::Seen(pieces)),
                };
            }
            known.insert(digest, file);
        }
        EncodedPart { file, digest, content: self.encode(file, &pieces).map(Content::Encoded) }
    }

    fn encode(&self, file: InodeId, pieces: &[Piece]) -> Result<EncodedFile> {
        self.block_encoders.with(|block_encoder| {
            let mut encoded = EncodedFile::default();
            for piece in pieces {
                match &piece.data {
                    Bytes::Bytes(bytes) => {
                        self.encode_bytes(block_encoder, file, bytes, &mut encoded)?;
                    }
                    Bytes::Hole(len) => encoded.blocks.push(Block::Hole(*len)),
                }
            }
            Ok(encoded)
        })
    }

    fn encode_bytes(
        &self,
        block_encoder: &mut BlockEncoder,
        file: InodeId,
        bytes: &[u8],
        encoded: &mut EncodedFile,
    ) -> Result<()> {
        let block_size = self.geometry.block_size as usize;
        let is_small = self.catalog.inode(file).size() < u64::from(self.geometry.block_size);
        for block in bytes.chunks(block_size) {
            let fits_fragment =
                block.len() < block_size && block.len() <= self.geometry.fragment_size as usize;
            let stored = if is_zero(block) {
                Block::Hole(block.len() as u64)
            } else if fits_fragment && (is_small || self.geometry.tails == Tails::All) {
                if self.geometry.tails == Tails::All || block_encoder.is_worth_it(block)? {
                    encoded.tail = Some(block.to_vec());
                    continue;
                }
                Block::Encoded(EncodedBlock::uncompressed(block.to_vec()))
            } else {
                Block::Encoded(block_encoder.encode(block)?)
            };
            encoded.blocks.push(stored);
        }
        Ok(())
    }
}

/// The writer, which runs on one thread and gets the parts in order.
struct Writer<'s, 'o> {
    job: &'s Job<'s>,
    context: &'s PackContext<'s>,
    output: &'o mut Output,
    layout: &'o mut Layout,
    fragments: Fragments<'s>,
    /// The file that is being written, and its placement so far.
    open: Option<(InodeId, Placement)>,
    data: Data,
}

impl Writer<'_, '_> {
    fn run(&mut self, files: &[InodeId]) -> Result<()> {
        let (job, context) = (self.job, self.context);
        let grain = u64::from(context.geometry.block_size);
        let encode = |part| context.encode_part(part);
        let work = |parts: Vec<Part>| parts.into_iter().map(encode).collect::<Vec<_>>();
        let take = |parts: Vec<EncodedPart>| parts.into_iter().try_for_each(|part| self.take(part));
        feed(job, context.catalog, files, grain, work, take)?;
        self.close();
        Ok(())
    }

    /// Copies the contents of files from an earlier image. Returns the files of which it cannot be
    /// read.
    fn copy_unchanged(&mut self, base: &Base, unchanged: &UnchangedFiles) -> Result<Vec<InodeId>> {
        let mut copying = Copying::new(self.job, base, unchanged);
        let mut failed = Vec::new();
        for one in &unchanged.files {
            self.job.check()?;
            let size_fields = &mut self.data.size_fields;
            let first = size_fields.len();
            match copying.copy(one, size_fields, &mut self.fragments, self.output)? {
                Copied::New(placement) => {
                    let stored = size_fields[first..].iter().filter(|size_field| **size_field != 0);
                    stored.for_each(|size_field| self.layout.count_block(*size_field));
                    self.data.states.set_placed(one.file, &placement);
                }
                Copied::Shared(placement) => self.copy(one.file, placement),
                Copied::Unreadable => {
                    failed.push(one.file);
                    continue;
                }
            }
            self.layout.reused += 1;
            self.layout.reused_bytes += self.context.catalog.inode(one.file).size();
        }
        self.layout.read_cost = self.layout.read_cost.max(copying.fragment_max);
        self.layout.notes.extend(copying.notes());
        Ok(failed)
    }

    fn take(&mut self, part: EncodedPart) -> Result<()> {
        let file = part.file;
        if self.open.is_none_or(|(open, _)| open != file) {
            self.close();
        }
        let content = match part.content {
            Ok(_) if self.data.states.get(file) == FileState::Failed => return Ok(()),
            Ok(Content::Dropped) => return Ok(()),
            Ok(content) => content,
            Err(error) => {
                self.fail(file, &error);
                return Ok(());
            }
        };
        let first = part.digest.and_then(|digest| self.context.known.lock().get(&digest).copied());
        if let Some(first) = first
            && let FileState::Placed(placement) = self.data.states.get(first)
        {
            self.copy(file, placement);
            return Ok(());
        }
        let encoded = match content {
            Content::Encoded(encoded) => encoded,
            Content::Seen(pieces) => self.context.encode(file, &pieces)?,
            Content::Dropped => return Ok(()),
        };
        self.add(file, encoded)?;
        // The first file that another thread has seen may have failed.
        if let Some(digest) = part.digest {
            self.context.known.lock().insert(digest, file);
        }
        Ok(())
    }

    /// Writes a part of a file and updates its placement.
    fn add(&mut self, file: InodeId, encoded: EncodedFile) -> Result<()> {
        let (_, mut placement) = self.open.unwrap_or_else(|| {
            (file, Placement { size_fields: self.data.size_fields.len(), ..Placement::default() })
        });
        for block in encoded.blocks {
            match block {
                Block::Hole(len) => {
                    let count = len.div_ceil(u64::from(self.context.geometry.block_size)) as usize;
                    self.data.size_fields.resize(self.data.size_fields.len() + count, 0);
                    placement.sparse += len;
                }
                Block::Encoded(stored) => {
                    if placement.start == 0 {
                        placement.start = self.output.len();
                    }
                    self.data.size_fields.push(stored.size_field);
                    self.layout.count_block(stored.size_field);
                    self.output.append(&stored.bytes)?;
                }
            }
        }
        if let Some(tail) = encoded.tail {
            placement.tail = Some(self.fragments.add(&tail, self.output)?);
        }
        self.open = Some((file, placement));
        Ok(())
    }

    fn close(&mut self) {
        if let Some((file, placement)) = self.open.take() {
            self.data.states.set_placed(file, &placement);
        }
    }

    fn copy(&mut self, file: InodeId, placement: Placement) {
        self.data.states.set_placed(file, &placement);
        self.layout.duplicates += 1;
        self.layout.duplicate_bytes += self.context.catalog.inode(file).size();
    }

    fn fail(&mut self, file: InodeId, error: &Error) {
        self.open = None;
        self.data.states.set_failed(file);
        self.job.problem(self.context.catalog.origin(file), error);
    }
}
