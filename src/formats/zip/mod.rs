//! ZIP archives as a `Tree`.
//!
//! `directory` finds the central directory, `entry` reads its entries (`extra`), and `scan` makes
//! an index of them. Local headers (`local`) are read with the data of their members. `decoder`
//! decodes compressed members, by `method`.
//!
//! Invariants: opening reads only the central directory, except for archives of more than 4 GiB
//! without ZIP64 (`member_order`). The index has the offset of the local header for a stored
//! member, and that of the entry for a compressed one.

use std::ops::Range;

use super::bytes::{index, length};
use super::compressed::ChunkCache;
use super::index::{
    Acls, Allowance, Content, IndexedTree, MemberReader, Node, NodeId, StoredReads, notes, unsaved,
};
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::storage::Storage;
use crate::sync::{Arc, Mutex, OnceLock};
use crate::vfs::{Finding, ReadBytes, Scratch};

mod audit;
mod decoder;
mod directory;
mod entry;
mod extra;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod info;
mod local;
mod member_order;
mod method;
mod names;
mod scan;

#[cfg(test)]
mod tests;

use decoder::Decoder;
use directory::CentralDirectory;
use entry::EntryWalk;
use local::{HeaderLens, Packed};
use method::Method;
use scan::{Methods, Scanned};

pub(super) use decoder::LargeMembers;
pub(super) use directory::{has_directory, recognizes};
pub use names::NameEncoding;

/// How to open an archive.
pub(crate) struct ZipOptions<'o> {
    pub(crate) progress: &'o Progress,
    /// The encoding of names that are not marked as UTF-8.
    pub(crate) names: Option<NameEncoding>,
    /// Whether an archive with damaged or unreadable members is opened. Otherwise that is an error.
    pub(crate) partial: bool,
    /// Which notes of the index are logged.
    pub(crate) logged: notes::Logged,
    /// The cache for decoded members.
    pub(crate) chunks: &'o Arc<ChunkCache>,
    /// Seek points of large members.
    pub(crate) seek_points: &'o Arc<LargeMembers>,
    /// Memory for blocks of indexes.
    pub(crate) indexes: &'o Arc<Allowance>,
}

/// A ZIP archive.
pub(crate) type Zip = IndexedTree<ZipMembers>;

/// Reads the members of a ZIP archive.
pub(crate) struct ZipMembers {
    methods: Methods,
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
        let &ZipOptions { progress, names, partial, logged, chunks, seek_points, indexes } =
            options;
        let mut directory = CentralDirectory::find(storage.as_ref())?;
        directory.names = names;
        directory.wraps = member_order::find_wraps(&storage, &directory)?;
        let mut decoder = Decoder::new(name, &storage, directory, chunks, seek_points);
        let owner = rustix::process::geteuid().as_raw();
        let owner = (owner, rustix::process::getegid().as_raw());
        let Scanned { finished, methods, wraps } =
            scan::scan(&storage, &decoder, owner, partial, progress)?;
        decoder.directory.wraps = wraps;
        let index = unsaved(finished, storage.len(), name, indexes)?;
        notes::report(name, &index, partial, logged)?;
        Ok(Self {
            name: name.to_owned(),
            stored: StoredReads::new(Arc::clone(&storage)),
            storage,
            // The index has no attributes.
            acls: Acls::Shown,
            members: ZipMembers {
                methods,
                header_lens: HeaderLens::new(index.len()),
                decoder,
                checksums: OnceLock::new(),
                making_checksums: Mutex::default(),
            },
            index,
        })
    }

    /// The format for a message.
    pub(crate) fn describe(&self) -> String {
        let names: Vec<_> = self.members.methods.keys().map(|method| method.name()).collect();
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
        let ZipMembers { header_lens, decoder, .. } = &self.members;
        let packed = stored(header, node.size);
        if range.start == 0 && header_lens.get(id).is_none() {
            // The header and the data with one read of the archive.
            let headers = &decoder.local_headers;
            let (buffer, after_reply) =
                scratch.parts(len.saturating_add(headers.allowance(packed)));
            self.stored.read_ahead(id, (header, node.size), range.clone());
            let (header_len, data) = headers.read_with_data(packed, buffer, len)?;
            header_lens.set(id, header_len);
            let start = header.saturating_add(length(header_len));
            self.stored.drop_served(start, range, after_reply);
            return Ok(ReadBytes::Scratch(buffer.get(data).unwrap_or_default()));
        }
        let start = self.start_of(id, packed)?;
        let (answer, after_reply) = scratch.parts(len);
        self.stored.read(id, (start, node.size), range, (&mut *answer, after_reply))?;
        Ok(ReadBytes::Scratch(answer))
    }

    /// Where the data of a stored member starts.
    fn start_of(&self, id: NodeId, packed: Packed) -> Result<u64> {
        let ZipMembers { header_lens, decoder, .. } = &self.members;
        let header_len = match header_lens.get(id) {
            Some(len) => len,
            None => {
                let len = decoder.local_headers.len_of(packed)?;
                header_lens.set(id, len);
                length(len)
            }
        };
        Ok(packed.header.saturating_add(header_len))
    }

    /// The checksums of stored members, ascending by local header.
    fn checksums(&self) -> Result<&[(u64, u32)]> {
        let ZipMembers { decoder, checksums, making_checksums, .. } = &self.members;
        if let Some(checksums) = checksums.get() {
            return Ok(checksums);
        }
        let _making = making_checksums.lock();
        if let Some(checksums) = checksums.get() {
            return Ok(checksums);
        }
        let mut found = Vec::new();
        let mut walk = EntryWalk::new(&self.storage, &decoder.directory);
        while let Some((_, entry)) = walk.next()? {
            if Method::from_code(entry.method) == Some(Method::Stored)
                && let Ok(header) = entry.header_offset(&decoder.directory)
            {
                found.push((header, entry.crc32));
            }
        }
        found.sort_unstable();
        Ok(checksums.get_or_init(|| found))
    }
}

/// The data of a stored member.
fn stored(header: u64, len: u64) -> Packed {
    Packed { header, method: 0, len }
}

impl MemberReader for ZipMembers {
    fn read<'s>(
        zip: &Zip,
        (id, node): (NodeId, &Node),
        range: Range<u64>,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        match node.content() {
            Content::AfterHeader { header } => zip.read_stored((id, node), header, range, scratch),
            Content::Described { entry, .. } => {
                zip.members.decoder.read((id, node.size), entry, range, scratch)
            }
            _ => Err(Error::new(Kind::InvalidInput, "not a regular file")),
        }
    }

    fn stored_start(zip: &Zip, id: NodeId, node: &Node) -> Option<u64> {
        match node.content() {
            // A member with a damaged header is left to `read`, which returns the error.
            Content::AfterHeader { header } => zip.start_of(id, stored(header, node.size)).ok(),
            _ => None,
        }
    }

    fn described_offset(zip: &Zip, entry: u64) -> Result<u64> {
        let directory = &zip.members.decoder.directory;
        directory.with_entry(zip.storage.as_ref(), entry, |entry| entry.header_offset(directory))
    }

    fn stored_crc32(zip: &Zip, node: &Node) -> Result<Option<u32>> {
        let Content::AfterHeader { header } = node.content() else { return Ok(None) };
        let checksums = zip.checksums()?;
        let found = checksums.binary_search_by_key(&header, |&(header, _)| header);
        Ok(found.ok().and_then(|nth| checksums.get(nth)).map(|&(_, crc32)| crc32))
    }

    fn audit(zip: &Zip, found: &mut dyn FnMut(Finding)) {
        audit::compare(&zip.storage, &zip.members.decoder.directory, found);
    }

    fn release(&self) {
        self.decoder.release();
    }
}
