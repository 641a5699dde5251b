//! Files that have not changed since an earlier image was made: their blocks are copied from it.
//!
//! A file has not changed if the image has a regular file with its path, its size and its
//! modification time in whole seconds, which is how rsync finds changes. A file that was modified
//! in the second in which the image was written, or later, counts as changed.
//!
//! A fragment block holds the ends of several files and is copied whole. If less than half of it
//! belongs to unchanged files, these are compressed again instead.
//!
//! Invariant: what cannot be copied is packed like any other file.

use std::collections::HashMap;
use std::mem::discriminant;
use std::path::Path;

use super::blocks::{Fragment, Fragments, Placement, Tail, UNCOMPRESSED};
use super::geometry::{Compressor, Recipe};
use crate::codecs::Codec;
use crate::error::{Error, Kind, Result};
use crate::formats::{BaseImage, StoredTail};
use crate::pack::Job;
use crate::pack::catalog::{Catalog, InodeId, InodeKind};
use crate::pack::output::Output;
use crate::units::counted;
use crate::vfs::{Attr, FileKind, Ino, Name};

/// Bytes that are copied at once.
const COPY_STEP: u64 = 1 << 20;

/// An earlier image.
pub(crate) struct Base {
    image: BaseImage,
    name: String,
}

/// A file whose contents are copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unchanged {
    /// Where its first block is in the earlier image, or the fragment block of a small file.
    position: u64,
    tail: Option<StoredTail>,
    size: u64,
    pub(super) file: InodeId,
    ino: Ino,
}

impl Unchanged {
    /// Whether both have the same bytes at the same place.
    fn shares_contents_of(&self, other: &Self) -> bool {
        (self.position, self.tail, self.size) == (other.position, other.tail, other.size)
    }

    /// What sorts files by the place of their contents, those that share them next to each other.
    fn order(&self) -> (u64, u32, u64) {
        (self.position, self.tail.map_or(0, |tail| tail.offset), self.size)
    }
}

impl Base {
    /// Opens the image at `path`, which may be a URL.
    pub(crate) fn open(job: &Job<'_>, path: &Path) -> Result<Self> {
        let image = BaseImage::open(path, job.progress)?;
        Ok(Self { image, name: path.display().to_string() })
    }

    /// The recipe of an image that can have its blocks.
    ///
    /// Fails with `InvalidInput` if `recipe` does not allow that, and `Unsupported` if archfs does
    /// not compress as the image is compressed.
    pub(crate) fn fitted(&self, recipe: Recipe) -> Result<Recipe> {
        let name = &self.name;
        let refused = |why: String, hint: &str| {
            Err(Error::new(Kind::InvalidInput, format!("{name}: {why}")).with_hint(hint))
        };
        let (block_size, own) = (self.image.block_size(), self.compressor()?);
        if recipe.block_size.is_some_and(|wanted| wanted != block_size) {
            let why = format!("its blocks have {block_size} bytes, and --update keeps them");
            return refused(why, "leave out --block-size");
        }
        let compressor = recipe.compressor.unwrap_or(own);
        if discriminant(&compressor) != discriminant(&own) {
            let why = format!("its compressor is {}, and --update keeps its blocks", own.name());
            return refused(why, "leave out --compressor and --fast, or leave out --update");
        }
        Ok(Recipe { block_size: Some(block_size), compressor: Some(compressor), ..recipe })
    }

    fn compressor(&self) -> Result<Compressor> {
        match self.image.codec() {
            // Images with uncompressed contents name this one.
            Codec::Gzip if self.image.is_uncompressed() => Ok(Compressor::None),
            Codec::Gzip => Ok(Compressor::Gzip(Compressor::GZIP_LEVEL)),
            Codec::Zstd => Ok(Compressor::Zstd(Compressor::ZSTD_LEVEL)),
            Codec::Xz => Ok(Compressor::Xz),
            Codec::Lz4 => Ok(Compressor::Lz4),
            codec @ (Codec::Lzma | Codec::Lzo) => {
                let (name, codec) = (&self.name, codec.name());
                let why = format!("{name}: its compressor is {codec}, which archfs only reads");
                Err(Error::new(Kind::Unsupported, why).with_hint("leave out --update"))
            }
        }
    }

    /// Those of `files` that have not changed, in the order of their contents in the image.
    ///
    /// Fails with `Interrupted`. A file whose record cannot be read counts as changed.
    pub(super) fn unchanged(
        &self,
        job: &Job<'_>,
        catalog: &Catalog,
        files: &[InodeId],
    ) -> Result<Vec<Unchanged>> {
        job.progress.begin("looking for changes");
        let inos = self.found(job, catalog)?;
        let mut unchanged = Vec::new();
        for &file in files {
            let Some(ino) = inos.get(&file) else { continue };
            job.check()?;
            unchanged.extend(self.located(file, *ino, catalog.inode(file).size()));
        }
        unchanged.sort_unstable_by_key(Unchanged::order);
        // The bytes of each fragment block that belong to unchanged files.
        let mut used: HashMap<u32, u64> = HashMap::new();
        let mut last: Option<&Unchanged> = None;
        for one in &unchanged {
            if let Some(tail) = one.tail
                && !last.is_some_and(|last| last.shares_contents_of(one))
            {
                *used.entry(tail.fragment).or_default() += u64::from(tail.len);
            }
            last = Some(one);
        }
        unchanged.retain(|one| {
            one.tail.is_none_or(|StoredTail { fragment, .. }| {
                let len = self.image.fragment(fragment).map_or(0, |fragment| fragment.len);
                used[&fragment] * 2 >= u64::from(len)
            })
        });
        Ok(unchanged)
    }

    /// The regular files of `catalog` that the image has at the same path with the same size and
    /// time.
    fn found(&self, job: &Job<'_>, catalog: &Catalog) -> Result<HashMap<InodeId, Ino>> {
        let mut found = HashMap::new();
        let mut waiting = vec![(InodeId::ROOT, Ino::ROOT)];
        while let Some((directory, ino)) = waiting.pop() {
            for (name, id) in catalog.entries(directory) {
                job.check()?;
                let Some(name) = Name::parse(name) else { continue };
                let Ok(Some(attr)) = self.image.lookup(ino, name) else { continue };
                match catalog.inode(id).kind {
                    InodeKind::Directory(_) if attr.kind == FileKind::Directory => {
                        waiting.push((id, attr.ino));
                    }
                    InodeKind::File { size, .. } if self.is_same(catalog, id, size, &attr) => {
                        found.insert(id, attr.ino);
                    }
                    _ => {}
                }
            }
        }
        Ok(found)
    }

    fn is_same(&self, catalog: &Catalog, file: InodeId, size: u64, attr: &Attr) -> bool {
        let modified = catalog.inode(file).meta.modified.seconds;
        let is_older = modified < self.image.written();
        let is_equal = (attr.kind, attr.size) == (FileKind::Regular, size);
        is_older && is_equal && attr.modified.seconds == modified
    }

    /// Where the contents of a file are. `None` if nothing of it is stored, or it cannot be read.
    fn located(&self, file: InodeId, ino: Ino, size: u64) -> Option<Unchanged> {
        let contents = self.image.contents(ino).ok()?;
        let tail = contents.tail;
        let position = match (contents.start, tail) {
            (0, None) => return None,
            (0, Some(tail)) => self.image.fragment(tail.fragment).ok()?.range.start,
            (start, _) => start,
        };
        Some(Unchanged { position, tail, size, file, ino })
    }
}

/// Copies contents from an earlier image to a new one.
pub(super) struct Copying<'b> {
    base: &'b Base,
    /// The numbers of fragment blocks in the new image, by those in the earlier one.
    fragments: HashMap<u32, u32>,
    /// The file that was copied last. Others may share its contents.
    last: Option<(Unchanged, Placement)>,
    buffer: Vec<u8>,
    /// The largest fragment block, decompressed bytes.
    pub(super) fragment_max: u32,
    /// How often the earlier image could not be read, and the first error.
    failures: u64,
    failure: Option<Error>,
}

impl<'b> Copying<'b> {
    pub(super) fn new(base: &'b Base) -> Self {
        Self {
            base,
            fragments: HashMap::new(),
            last: None,
            buffer: Vec::new(),
            fragment_max: 0,
            failures: 0,
            failure: None,
        }
    }

    /// The placement of a file whose contents were copied for the file before it.
    pub(super) fn shared(&self, file: &Unchanged) -> Option<Placement> {
        let (last, placement) = self.last.as_ref()?;
        last.shares_contents_of(file).then_some(*placement)
    }

    /// Copies the contents of a file, and appends the sizes of its blocks to `size_fields`.
    /// `None` if the earlier image cannot be read.
    ///
    /// Fails with the errors of writing.
    pub(super) fn copy(
        &mut self,
        file: &Unchanged,
        size_fields: &mut Vec<u32>,
        fragments: &mut Fragments<'_>,
        output: &mut Output,
    ) -> Result<Option<Placement>> {
        let Some(contents) = self.noted(self.base.image.contents(file.ino)) else {
            return Ok(None);
        };
        let mut placement = Placement { size_fields: size_fields.len(), ..Placement::default() };
        if let Some(StoredTail { fragment, offset, .. }) = contents.tail {
            let Some(fragment) = self.fragment(fragment, fragments, output)? else {
                return Ok(None);
            };
            placement.tail = Some(Tail { fragment, offset });
        }
        let start = output.len();
        let stored = contents.size_fields.iter().map(|&field| stored_len(field)).sum::<u64>();
        if !self.copy_range(contents.start, stored, output)? {
            return Ok(None);
        }
        if stored > 0 {
            placement.start = start;
        }
        let block_size = u64::from(self.base.image.block_size());
        for (nth, _) in contents.size_fields.iter().enumerate().filter(|(_, field)| **field == 0) {
            placement.sparse += block_size.min(file.size - nth as u64 * block_size);
        }
        size_fields.extend(contents.size_fields);
        self.last = Some((*file, placement));
        Ok(Some(placement))
    }

    /// The number in the new image of a fragment block, which is copied at its first use.
    fn fragment(
        &mut self,
        number: u32,
        fragments: &mut Fragments<'_>,
        output: &mut Output,
    ) -> Result<Option<u32>> {
        if let Some(&copied) = self.fragments.get(&number) {
            return Ok(Some(copied));
        }
        let Some(stored) = self.noted(self.base.image.fragment(number)) else { return Ok(None) };
        let start = output.len();
        if !self.copy_range(stored.range.start, stored_len(stored.size_field), output)? {
            return Ok(None);
        }
        let fragment = Fragment { start, size_field: stored.size_field, len: stored.len };
        let copied = fragments.add_stored(fragment)?;
        self.fragments.insert(number, copied);
        self.fragment_max = self.fragment_max.max(stored.len);
        Ok(Some(copied))
    }

    /// Copies `len` bytes at `start` of the earlier image. Returns false, and leaves nothing in the
    /// output, if they cannot be read.
    fn copy_range(&mut self, start: u64, len: u64, output: &mut Output) -> Result<bool> {
        let before = output.len();
        let mut done = 0;
        while done < len {
            self.buffer.resize((len - done).min(COPY_STEP) as usize, 0);
            let read = self.base.image.read_stored(&mut self.buffer, start + done);
            if self.noted(read).is_none() {
                output.truncate(before)?;
                return Ok(false);
            }
            output.append(&self.buffer)?;
            done += self.buffer.len() as u64;
        }
        Ok(true)
    }

    /// The value that was read of the earlier image. Keeps the first error.
    fn noted<T>(&mut self, read: Result<T>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(error) => {
                self.failures += 1;
                self.failure.get_or_insert(error);
                None
            }
        }
    }

    /// What to say if some files could not be copied.
    pub(super) fn note(&self) -> Option<String> {
        let error = self.failure.as_ref()?;
        let files = counted(self.failures, "file");
        Some(format!("{files} compressed again, because the earlier image is damaged: {error}"))
    }
}

/// Bytes on disk of the block with this size field.
fn stored_len(size_field: u32) -> u64 {
    u64::from(size_field & !UNCOMPRESSED)
}
