//! Files that have not changed since an earlier image was made: their blocks are copied from it.
//!
//! A file has not changed if the image has a regular file with its path, its size and its
//! modification time in whole seconds, which is how rsync finds changes. A file that was modified
//! in the second in which the image was created, or later, counts as changed: it may have been
//! modified again in the same second, after it was packed.
//!
//! A fragment block holds the ends of several files and is copied whole. If less than half of it
//! belongs to unchanged files, these are compressed again instead.
//!
//! Invariant: what cannot be copied is packed like any other file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::discriminant;
use std::ops::Range;
use std::path::Path;

use super::blocks::{Fragment, Fragments, Placement, Tail, UNCOMPRESSED};
use super::geometry::{Compressor, Recipe};
use crate::codecs::Codec;
use crate::error::{Error, Kind, Result};
use crate::formats::{BaseImage, StoredContents, StoredTail};
use crate::ordered::try_ordered;
use crate::pack::Job;
use crate::pack::catalog::{Catalog, InodeId, InodeKind};
use crate::pack::output::Output;
use crate::units::counted;
use crate::vfs::{FileKind, Ino, Name};

/// Bytes that are copied at once.
const COPY_STEP: u64 = 1 << 20;

/// Bytes that are read at once where contents follow each other: on far storage, one read takes
/// about as long as another.
const WINDOW: u64 = 4 << 20;

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
    /// Whether both may have the same blocks. Their sizes, and which are holes, can still differ.
    fn is_at_place_of(&self, other: &Self) -> bool {
        (self.position, self.tail, self.size) == (other.position, other.tail, other.size)
    }

    /// What sorts files by the place of their contents, those that share them next to each other.
    fn order(&self) -> (u64, u32, u64) {
        (self.position, self.tail.map_or(0, |tail| tail.offset), self.size)
    }
}

/// The files whose contents are copied.
#[derive(Default)]
pub(super) struct UnchangedFiles {
    /// In the order of their contents in the earlier image.
    pub(super) files: Vec<Unchanged>,
    /// Decompressed bytes of the fragment blocks that are copied.
    fragments: HashMap<u32, u32>,
    failures: Failures,
    /// Files that were modified when the image was created, or later.
    as_new: HashSet<InodeId>,
}

/// How often the earlier image could not be read, and the first error.
#[derive(Default)]
struct Failures {
    count: u64,
    first: Option<Error>,
}

impl Failures {
    /// The value that was read, if it could be.
    ///
    /// Fails with `Unreachable`: the server of an image would not answer the next time either.
    fn noted<T>(&mut self, read: Result<T>) -> Result<Option<T>> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == Kind::Unreachable => Err(error),
            Err(error) => {
                self.count += 1;
                self.first.get_or_insert(error);
                Ok(None)
            }
        }
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
        let compressor = recipe.compressor.unwrap_or(match own {
            Compressor::Zstd(_) => recipe.compressor(),
            own => own,
        });
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

    /// Those of `files` that have not changed.
    ///
    /// Fails with `Interrupted`. A file that the image does not show counts as changed.
    pub(super) fn unchanged(
        &self,
        job: &Job<'_>,
        catalog: &Catalog,
        files: &[InodeId],
    ) -> Result<UnchangedFiles> {
        job.progress.begin("looking for changes");
        let mut unchanged = UnchangedFiles::default();
        let inos = self.found(job, catalog, &mut unchanged)?;
        for &file in files {
            let Some(&Some(ino)) = inos.get(&file) else { continue };
            job.check()?;
            let located = self.located(file, ino, catalog.inode(file).size());
            unchanged.files.extend(unchanged.failures.noted(located)?.flatten());
        }
        unchanged.files.sort_unstable_by_key(Unchanged::order);
        self.choose_fragments(job, &mut unchanged)?;
        Ok(unchanged)
    }

    /// The regular files of `catalog` that the image has at the same path with the same size and
    /// time. `None` for a file whose names are different files in the image.
    fn found(
        &self,
        job: &Job<'_>,
        catalog: &Catalog,
        unchanged: &mut UnchangedFiles,
    ) -> Result<HashMap<InodeId, Option<Ino>>> {
        let mut found: HashMap<InodeId, Option<Ino>> = HashMap::new();
        let mut waiting = vec![(InodeId::ROOT, Ino::ROOT)];
        while let Some((directory, ino)) = waiting.pop() {
            for (name, id) in catalog.entries(directory) {
                job.check()?;
                let Some(name) = Name::parse(name) else { continue };
                let attr = unchanged.failures.noted(self.image.lookup(ino, name))?;
                let Some(attr) = attr.flatten() else { continue };
                let inode = catalog.inode(id);
                let modified = inode.meta.modified.seconds;
                match (inode.kind, attr.kind) {
                    (InodeKind::Directory(_), FileKind::Directory) => waiting.push((id, attr.ino)),
                    (InodeKind::File { size, .. }, FileKind::Regular)
                        if (size, modified) == (attr.size, attr.modified.seconds) =>
                    {
                        if self.image.created().is_some_and(|created| modified >= created) {
                            unchanged.as_new.insert(id);
                            continue;
                        }
                        let known = found.entry(id).or_insert(Some(attr.ino));
                        *known = known.filter(|&known| known == attr.ino);
                    }
                    _ => {}
                }
            }
        }
        Ok(found)
    }

    /// Where the contents of a file are. `None` if nothing of it is stored.
    fn located(&self, file: InodeId, ino: Ino, size: u64) -> Result<Option<Unchanged>> {
        let StoredContents { start, tail, .. } = self.image.contents(ino)?;
        let position = match (start, tail) {
            (0, None) => return Ok(None),
            (0, Some(tail)) => self.image.fragment(tail.fragment)?.range.start,
            (start, _) => start,
        };
        Ok(Some(Unchanged { position, tail, size, file, ino }))
    }

    /// Bytes of a fragment block when it is decompressed, if at least half of them are `used`.
    fn len_if_used(&self, number: u32, used: u64) -> Result<Option<u32>> {
        let fragment = self.image.fragment(number)?;
        let stored_len = fragment.range.end - fragment.range.start;
        // It never gets smaller.
        if used * 2 < stored_len {
            return Ok(None);
        }
        let mut stored = vec![0; stored_len as usize];
        self.image.read_stored(&mut stored, fragment.range.start)?;
        let len = self.image.decoded_len(&fragment, &stored)?;
        Ok((used * 2 >= u64::from(len)).then_some(len))
    }

    /// Chooses the fragment blocks that are copied, and leaves out the files in others.
    fn choose_fragments(&self, job: &Job<'_>, unchanged: &mut UnchangedFiles) -> Result<()> {
        // The bytes of each fragment block that belong to unchanged files, in the order of blocks.
        let mut used: BTreeMap<u32, u64> = BTreeMap::new();
        let mut last: Option<&Unchanged> = None;
        for one in &unchanged.files {
            if let Some(tail) = one.tail
                && !last.is_some_and(|last| last.is_at_place_of(one))
            {
                *used.entry(tail.fragment).or_default() += u64::from(tail.len);
            }
            last = Some(one);
        }
        let used: Vec<_> = used.into_iter().collect();
        let len = |nth: usize| {
            job.check()?;
            let (number, bytes) = used[nth];
            Ok((number, self.len_if_used(number, bytes)))
        };
        let mut lens = Vec::with_capacity(used.len());
        try_ordered(used.len(), job.threads, len, |len| lens.push(len))?;
        for (number, len) in lens {
            if let Some(len) = unchanged.failures.noted(len)?.flatten() {
                unchanged.fragments.insert(number, len);
            }
        }
        let fragments = &unchanged.fragments;
        unchanged.files.retain(|one| {
            one.tail.is_none_or(|StoredTail { fragment, offset, len }| {
                let end = u64::from(offset) + u64::from(len);
                fragments.get(&fragment).is_some_and(|&decoded| end <= u64::from(decoded))
            })
        });
        Ok(())
    }
}

/// A part of the earlier image, as it is stored.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// The bytes of `range` of `image`, which are at most `COPY_STEP`. What follows is read with
    /// them if the last bytes were shortly before.
    fn read(&mut self, image: &BaseImage, range: Range<u64>) -> Result<&[u8]> {
        if range.start < self.start || range.end > self.end() {
            let is_near = (self.start..self.end() + WINDOW).contains(&range.start);
            let len = range.end - range.start;
            let more = if is_near { WINDOW } else { 0 };
            let more = more.min(image.bytes().saturating_sub(range.start)).max(len);
            // Damage or an error behind them does not concern them.
            self.fill(image, range.start, more).or_else(|_| self.fill(image, range.start, len))?;
        }
        let start = (range.start - self.start) as usize;
        Ok(&self.bytes[start..start + (range.end - range.start) as usize])
    }

    fn fill(&mut self, image: &BaseImage, start: u64, len: u64) -> Result<()> {
        self.start = start;
        self.bytes.resize(len as usize, 0);
        image.read_stored(&mut self.bytes, start).inspect_err(|_| self.bytes.clear())
    }
}

/// Copies contents from an earlier image to a new one.
pub(super) struct Copying<'c> {
    job: &'c Job<'c>,
    base: &'c Base,
    unchanged: &'c UnchangedFiles,
    /// The numbers of fragment blocks in the new image, by those in the earlier one.
    fragments: HashMap<u32, u32>,
    /// The file that was copied last. Others may share its contents.
    last: Option<(Unchanged, Placement)>,
    window: Window,
    /// The largest fragment block, decompressed bytes.
    pub(super) fragment_max: u32,
    failures: Failures,
}

/// What became of the contents of a file.
pub(super) enum Copied {
    /// They were copied to this place.
    New(Placement),
    /// Another file has the same ones.
    Shared(Placement),
    /// The earlier image cannot be read.
    Unreadable,
}

impl<'c> Copying<'c> {
    pub(super) fn new(job: &'c Job<'c>, base: &'c Base, unchanged: &'c UnchangedFiles) -> Self {
        Self {
            job,
            base,
            unchanged,
            fragments: HashMap::new(),
            last: None,
            window: Window::default(),
            fragment_max: 0,
            failures: Failures::default(),
        }
    }

    /// Copies the contents of a file, and appends the sizes of its blocks to `size_fields`.
    ///
    /// Fails with `Interrupted`, and the errors of writing.
    pub(super) fn copy(
        &mut self,
        file: &Unchanged,
        size_fields: &mut Vec<u32>,
        fragments: &mut Fragments<'_>,
        output: &mut Output,
    ) -> Result<Copied> {
        let Some(contents) = self.failures.noted(self.base.image.contents(file.ino))? else {
            return Ok(Copied::Unreadable);
        };
        if let Some((last, placement)) = &self.last
            && last.is_at_place_of(file)
            && size_fields[placement.size_fields..] == contents.size_fields
        {
            self.job.progress.advance(file.size);
            return Ok(Copied::Shared(*placement));
        }
        let mut placement = Placement { size_fields: size_fields.len(), ..Placement::default() };
        if let Some(StoredTail { fragment, offset, .. }) = contents.tail {
            let Some(fragment) = self.fragment(fragment, fragments, output)? else {
                return Ok(Copied::Unreadable);
            };
            placement.tail = Some(Tail { fragment, offset });
        }
        let start = output.len();
        let stored = contents.size_fields.iter().map(|&field| stored_len(field)).sum::<u64>();
        if !self.copy_range(contents.start, stored, file.size, output)? {
            return Ok(Copied::Unreadable);
        }
        if stored > 0 {
            placement.start = start;
        }
        let block_size = u64::from(self.base.image.block_size());
        for (nth, _) in contents.size_fields.iter().enumerate().filter(|(_, field)| **field == 0) {
            placement.sparse += block_size.min(file.size.saturating_sub(nth as u64 * block_size));
        }
        size_fields.extend(contents.size_fields);
        self.last = Some((*file, placement));
        Ok(Copied::New(placement))
    }

    /// The number in the new image of a fragment block, which is copied at its first use. `None` if
    /// it cannot be read.
    fn fragment(
        &mut self,
        number: u32,
        fragments: &mut Fragments<'_>,
        output: &mut Output,
    ) -> Result<Option<u32>> {
        if let Some(&copied) = self.fragments.get(&number) {
            return Ok(Some(copied));
        }
        let stored = self.failures.noted(self.base.image.fragment(number))?;
        let (Some(stored), Some(&len)) = (stored, self.unchanged.fragments.get(&number)) else {
            return Ok(None);
        };
        let start = output.len();
        if !self.copy_range(stored.range.start, stored_len(stored.size_field), 0, output)? {
            return Ok(None);
        }
        let copied =
            fragments.add_stored(Fragment { start, size_field: stored.size_field, len })?;
        self.fragments.insert(number, copied);
        self.fragment_max = self.fragment_max.max(len);
        Ok(Some(copied))
    }

    /// Copies `len` bytes at `start` of the earlier image, and reports the progress of a file of
    /// `size` bytes. Returns false, and leaves nothing in the output, if they cannot be read.
    fn copy_range(&mut self, start: u64, len: u64, size: u64, output: &mut Output) -> Result<bool> {
        let (before, progress) = (output.len(), &self.job.progress);
        let (mut done, mut shown) = (0, 0);
        while done < len {
            self.job.check()?;
            let at = start + done;
            let ready = self.window.end().checked_sub(at).filter(|&ready| ready > 0);
            let step = (len - done).min(ready.unwrap_or(COPY_STEP)).min(COPY_STEP);
            let read = self.window.read(&self.base.image, at..at + step);
            let Some(bytes) = self.failures.noted(read)? else {
                output.truncate(before)?;
                // It is packed from its source, which counts it again.
                progress.expect(progress.now().1 + shown);
                return Ok(false);
            };
            output.append(bytes)?;
            done += step;
            let step = step.min(size - shown);
            progress.advance(step);
            shown += step;
        }
        progress.advance(size - shown);
        Ok(true)
    }

    /// What the user should know.
    pub(super) fn notes(&self) -> Vec<String> {
        let name = &self.base.name;
        let [before, now] = [&self.unchanged.failures, &self.failures];
        let unreadable = before.first.as_ref().or(now.first.as_ref()).map(|error| {
            let times = counted(before.count + now.count, "time");
            format!(
                "{name} could not be read {times}, and the sources were packed instead: {error}"
            )
        });
        let as_new = self.unchanged.as_new.len() as u64;
        let as_new = (as_new > 0).then(|| {
            let files = counted(as_new, "file");
            format!("{files} packed again: modified when {name} was created, or later")
        });
        unreadable.into_iter().chain(as_new).collect()
    }
}

/// Bytes on disk of the block with this size field.
fn stored_len(size_field: u32) -> u64 {
    u64::from(size_field & !UNCOMPRESSED)
}
