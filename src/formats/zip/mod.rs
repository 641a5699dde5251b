//! ZIP archives as a `Tree`.
//!
//! `end` finds the central directory, `entry_walk` reads its entries (`entry`, `extra`,
//! `names`, `dos_time`), and `scan` makes an index of them. Local headers (`local`) are read with
//! the data of their members. `packed` decodes compressed members, by `method`.
//!
//! Invariants: opening reads only the central directory, except for archives of more than 4 GiB
//! without ZIP64 (`member_order`). Stored members are read straight from the
//! archive into the answer, with no lock and no copy in between. The index has the offset of the
//! local header for a stored member, and that of the entry for a compressed one.

use std::ops::{ControlFlow, Range};

use super::bytes::{index, length};
use super::compressed::ChunkCache;
use super::index::{Allowance, Content, Index, Node, NodeId, ino_of, notes, unsaved};
use super::limits::SYMLINK_MAX;
use super::stored_reads::StoredReads;
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::storage::Storage;
use crate::sync::{Arc, Mutex, OnceLock};
use crate::vfs::{
    Attr, Cookie, DirEntry, FileKind, Finding, Ino, Name, ReadBytes, Scratch, SeekTarget,
    StoredFile, Totals, Tree, link_target,
};

mod audit;
mod dos_time;
mod end;
mod entry;
mod entry_walk;
mod extra;
mod framed;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod info;
mod local;
mod lzma;
mod member_order;
mod method;
mod names;
mod overlaps;
mod packed;
mod scan;
mod wraps;

#[cfg(test)]
mod tests;

use end::CentralDirectory;
use entry::{Entry, FIXED, Lengths};
use entry_walk::EntryWalk;
use local::{HeaderLens, Locals, Packed};
use method::Method;
use packed::{Decoder, Described};
use scan::{Methods, Scanned};

pub(super) use end::{has_directory, recognizes};
pub(super) use packed::LargeMembers;

/// How to open an archive.
pub(crate) struct ZipOptions<'o> {
    pub(crate) progress: &'o Progress,
    /// Whether an archive with damaged or unreadable members is opened. Otherwise that is an error.
    pub(crate) partial: bool,
    /// Whether the notes of the index are logged.
    pub(crate) logs_notes: bool,
    /// The cache for decoded members.
    pub(crate) chunks: &'o Arc<ChunkCache>,
    /// Seek points of large members.
    pub(crate) seek_points: &'o Arc<LargeMembers>,
    /// Memory for blocks of indexes.
    pub(crate) indexes: &'o Arc<Allowance>,
}

/// Bytes that hold most entries, with their names and extra fields.
const USUAL_ENTRY: usize = 384;

/// A ZIP archive.
pub(crate) struct Zip {
    /// Its name, for errors.
    name: String,
    storage: Arc<dyn Storage>,
    directory: CentralDirectory,
    index: Index,
    methods: Methods,
    stored: StoredReads,
    locals: Locals,
    header_lens: HeaderLens,
    decoder: Decoder,
    /// The checksums of stored members by local header, made when first asked for.
    checksums: OnceLock<Vec<(u64, u32)>>,
    /// Held while `checksums` are made, so over reads of the archive: the threads that ask at the
    /// same time would otherwise read the directory and take the memory once each. No other lock
    /// is taken before it, and no reader of a mount takes it.
    making_checksums: Mutex<()>,
}

impl Zip {
    /// Opens an archive. `name` is for errors and log messages.
    ///
    /// # Errors
    /// `Truncated` if its end is missing; `Corrupt` if its central directory is damaged or members
    /// overlap; `Unsupported` if it is split, has too many names, or members that archfs cannot
    /// read; `Io`.
    pub(crate) fn open(
        name: &str,
        storage: Arc<dyn Storage>,
        options: &ZipOptions<'_>,
    ) -> Result<Self> {
        Self::open_unnamed(name, storage, options).map_err(|error| error.within(name))
    }

    fn open_unnamed(
        name: &str,
        storage: Arc<dyn Storage>,
        options: &ZipOptions<'_>,
    ) -> Result<Self> {
        let mut directory = CentralDirectory::find(storage.as_ref())?;
        directory.wraps = Arc::new(member_order::find_wraps(&storage, &directory)?);
        let (chunks, large) = (Arc::clone(options.chunks), Arc::clone(options.seek_points));
        let decoder = Decoder::new(Arc::clone(&storage), chunks, large);
        let owner = rustix::process::geteuid().as_raw();
        let owner = (owner, rustix::process::getegid().as_raw());
        let len_of = |described: &Described, size| decoder.len_of(&directory, described, size);
        let with = scan::With { len_of: &len_of, partial: options.partial };
        let scanned = scan::scan(&storage, &directory, owner, with, options.progress)?;
        let Scanned { finished, methods, wraps } = scanned;
        directory.wraps = Arc::new(wraps);
        let index = unsaved(finished, storage.len(), name, options.indexes)?;
        notes::report(name, &index.notes, options.partial, options.logs_notes)?;
        Ok(Self {
            name: name.to_owned(),
            stored: StoredReads::new(Arc::clone(&storage)),
            storage,
            methods,
            locals: Locals::new(directory.clone()),
            directory,
            header_lens: HeaderLens::new(index.len()),
            index,
            decoder,
            checksums: OnceLock::new(),
            making_checksums: Mutex::default(),
        })
    }

    /// The format for a message.
    pub(crate) fn describe(&self) -> String {
        let names: Vec<_> = self.methods.keys().map(|method| method.name()).collect();
        match names.as_slice() {
            [] => "ZIP, empty".to_owned(),
            names => format!("ZIP, {}", names.join(" and ")),
        }
    }

    /// Reads `range` of the stored member whose local header is at `header`.
    fn read_stored<'s>(
        &self,
        (id, node): (NodeId, &Node),
        header: u64,
        range: Range<u64>,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let len = index(range.end.saturating_sub(range.start));
        if len == 0 {
            return Ok(ReadBytes::Scratch(&[]));
        }
        let packed = stored(header, node.size);
        if range.start == 0 && self.header_lens.get(id).is_none() {
            // The header and the data with one read of the archive.
            let buffer_len = len.saturating_add(self.locals.allowance(packed));
            let (buffer, after_reply) = scratch.parts(buffer_len);
            self.stored.read_ahead(ino_of(id), (header, node.size), range.clone());
            let (header_len, data) =
                self.locals.read(self.storage.as_ref(), packed, buffer, len)?;
            self.header_lens.set(id, header_len);
            let start = header.saturating_add(length(header_len));
            self.stored.drop_served(start, range, after_reply);
            return Ok(ReadBytes::Scratch(buffer.get(data).unwrap_or_default()));
        }
        let start = self.start_of(id, packed)?;
        let (answer, after_reply) = scratch.parts(len);
        let file = (start, node.size);
        self.stored.read(ino_of(id), file, range, (&mut *answer, after_reply))?;
        Ok(ReadBytes::Scratch(answer))
    }

    /// Where the data of a stored member starts.
    fn start_of(&self, id: NodeId, packed: Packed) -> Result<u64> {
        let header_len = match self.header_lens.get(id) {
            Some(len) => len,
            None => {
                let len = self.locals.header_len(self.storage.as_ref(), packed)?;
                self.header_lens.set(id, len);
                length(len)
            }
        };
        Ok(packed.header.saturating_add(header_len))
    }

    /// Reads `range` of the member that the entry at `entry` describes.
    fn read_described<'s>(
        &self,
        (id, node): (NodeId, &Node),
        entry: u64,
        range: Range<u64>,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let describe = || self.describe_member(entry, node.size);
        self.decoder.read(&self.locals, (id, node.size), range, scratch, describe)
    }

    /// The member of `size` bytes whose entry is at `at`.
    fn describe_member(&self, at: u64, size: u64) -> Result<Described> {
        self.with_entry(at, |entry| {
            if entry.size != size {
                return Err(Error::corrupt("its entry in the central directory has changed"));
            }
            Ok(Described {
                name: format!("{}: {}", self.name, entry.path().escape_ascii()),
                packed: entry.packed(&self.directory)?,
                crc32: entry.crc32,
            })
        })
    }

    /// Calls `take` with the entry at `at`.
    fn with_entry<T>(&self, at: u64, take: impl FnOnce(Entry<'_>) -> Result<T>) -> Result<T> {
        let mut bytes = [0; USUAL_ENTRY];
        let left = index(self.directory.end.saturating_sub(at));
        let (bytes, _) = bytes.split_at_mut_checked(left.min(USUAL_ENTRY)).unwrap_or_default();
        self.storage.read_exact_at(bytes, at)?;
        let parse = |bytes| {
            let mut entry = Entry::parse(bytes)?;
            entry.resolve(at, &self.directory.wraps);
            take(entry)
        };
        let fixed = bytes.first_chunk::<FIXED>();
        let lengths = fixed.map(Lengths::read).transpose()?;
        match lengths.map_or(0, Lengths::without_comment) {
            len if len <= bytes.len() => parse(bytes),
            len => {
                let mut bytes = vec![0; len];
                self.storage.read_exact_at(&mut bytes, at)?;
                parse(&bytes)
            }
        }
    }

    /// The checksums of stored members, ascending by local header.
    fn checksums(&self) -> Result<&[(u64, u32)]> {
        if let Some(checksums) = self.checksums.get() {
            return Ok(checksums);
        }
        let _making = self.making_checksums.lock();
        if let Some(checksums) = self.checksums.get() {
            return Ok(checksums);
        }
        let mut checksums = Vec::new();
        let mut walk = EntryWalk::new(&self.storage, &self.directory);
        while let Some((_, entry)) = walk.next()? {
            if Method::from_code(entry.method) == Some(Method::Stored)
                && let Ok(header) = entry.header_offset(&self.directory)
            {
                checksums.push((header, entry.crc32));
            }
        }
        checksums.sort_unstable();
        Ok(self.checksums.get_or_init(|| checksums))
    }

    /// Adds the name of the archive to an error.
    fn named(&self) -> impl Fn(Error) -> Error + '_ {
        |error| error.within(&self.name)
    }
}

/// The data of a stored member.
fn stored(header: u64, len: u64) -> Packed {
    Packed { header, method: 0, len }
}

impl Tree for Zip {
    fn attr(&self, ino: Ino) -> Result<Attr> {
        let (id, node) = self.index.node_of(ino)?;
        self.index.named(self.index.attr(id, &node))
    }

    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        let found = self.index.lookup(parent, name)?;
        found.map(|(id, node)| self.index.named(self.index.attr(id, &node))).transpose()
    }

    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.index.read_dir(ino, cookie, visit)
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let (id, node) = self.index.node_of(ino)?;
        match node.content() {
            Content::Described { kind: FileKind::Symlink, entry }
                if node.size <= SYMLINK_MAX.into() =>
            {
                let mut scratch = Scratch::default();
                let target = self.read_described((id, &node), entry, 0..node.size, &mut scratch);
                let target = target.and_then(|target| link_target(target.as_slice().to_vec()));
                target.map_err(self.named())
            }
            _ => Err(Error::new(Kind::InvalidInput, "not a symbolic link")),
        }
    }

    fn read<'s>(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let (id, node) = self.index.node_of(ino)?;
        let end = offset.saturating_add(u64::from(size)).min(node.size);
        let (node, range) = ((id, &node), offset.min(end)..end);
        let outcome = match node.1.content() {
            Content::AfterHeader { header } => self.read_stored(node, header, range, scratch),
            Content::Described { kind: FileKind::Regular, entry } => {
                self.read_described(node, entry, range, scratch)
            }
            Content::Directory { .. } => Err(Error::new(Kind::IsADirectory, "is a directory")),
            _ => Err(Error::new(Kind::InvalidInput, "not a regular file")),
        };
        outcome.map_err(self.named())
    }

    fn seek(&self, ino: Ino, offset: u64, target: SeekTarget) -> Result<u64> {
        let (_, node) = self.index.node_of(ino)?;
        match (node.kind(), target) {
            (FileKind::Regular, _) if offset >= node.size => {
                Err(Error::new(Kind::PastEnd, format!("nothing after byte {offset}")))
            }
            (FileKind::Regular, SeekTarget::Data) => Ok(offset),
            (FileKind::Regular, SeekTarget::Hole) => Ok(node.size),
            _ => Err(Error::new(Kind::InvalidInput, "not a regular file")),
        }
    }

    fn has_xattrs(&self) -> bool {
        false
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        self.index.node_of(ino).map(|_| Vec::new())
    }

    fn xattr(&self, ino: Ino, _name: &[u8]) -> Result<Vec<u8>> {
        self.index.node_of(ino)?;
        Err(Error::new(Kind::NoAttribute, "no such attribute"))
    }

    fn totals(&self) -> Totals {
        Totals { bytes: self.storage.len(), inodes: self.index.len().into(), block_size: 512 }
    }

    fn parent(&self, ino: Ino) -> Result<Option<Ino>> {
        self.index.parent_of(ino).map(Some)
    }

    fn numbers_end(&self) -> u64 {
        u64::from(self.index.len()).saturating_add(1)
    }

    fn data_offset(&self, ino: Ino) -> Result<u64> {
        let (_, node) = self.index.node_of(ino)?;
        match node.content() {
            Content::AfterHeader { header } => Ok(header),
            Content::Described { entry, .. } => {
                self.with_entry(entry, |entry| entry.header_offset(&self.directory))
            }
            _ => Ok(0),
        }
    }

    fn stored_crc32(&self, ino: Ino) -> Result<Option<u32>> {
        let (_, node) = self.index.node_of(ino)?;
        let Content::AfterHeader { header } = node.content() else { return Ok(None) };
        let checksums = self.checksums()?;
        let found = checksums.binary_search_by_key(&header, |&(header, _)| header);
        Ok(found.ok().and_then(|nth| checksums.get(nth)).map(|&(_, crc32)| crc32))
    }

    fn stored_files(&self, visit: &mut dyn FnMut(Ino, StoredFile)) -> Result<()> {
        if self.storage.position(0, 0).is_none() {
            return Ok(());
        }
        for id in 0..self.index.len() {
            let node = self.index.named(self.index.node(id))?;
            let Content::AfterHeader { header } = node.content() else { continue };
            // A member with a damaged header is left to `read`, which returns the error.
            if node.size > 0
                && let Ok(start) = self.start_of(id, stored(header, node.size))
                && let Some(head) = self.storage.position(start, node.size)
            {
                visit(ino_of(id), StoredFile { size: node.size, head, tail: None });
            }
        }
        Ok(())
    }

    fn audit(&self, found: &mut dyn FnMut(Finding)) {
        self.index.findings.iter().cloned().for_each(&mut *found);
        audit::compare(&self.storage, &self.directory, found);
    }

    fn release(&self) {
        self.index.release();
        self.decoder.release();
        self.storage.release();
    }
}
