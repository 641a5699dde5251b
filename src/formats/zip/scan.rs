//! Reads the central directory and makes the tree of it.
//!
//! Invariant: no two members in the tree share bytes of the archive. An archive in which members
//! share bytes decompresses to a multiple of what its size suggests, and other programs refuse it
//! as a ZIP bomb.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use super::decoder::{Decoder, Described};
use super::directory::{CentralDirectory, SPAN, Wraps, no_zip64};
use super::entry::{Entry, EntryKind, EntryWalk};
use super::extra::DosTime;
use super::method::{Method, most_compressed};
use super::names::WrongNames;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::length;
use crate::formats::index::members::{self, Body, Member, Members, Parts, shown};
use crate::formats::index::{ArchiveRange, DirectoryId, FinishedTree, NewTree};
use crate::formats::limits::{FILE_SIZE_MAX, MEMBER_PATH_MAX, SYMLINK_MAX};
use crate::progress::Progress;
use crate::storage::Storage;
use crate::sync::Arc;
use crate::units::counted;

/// Members to collect before they go into the tree.
const BATCH: usize = 4096;

/// What a central directory has.
pub(super) struct Scanned {
    pub(super) finished: FinishedTree,
    pub(super) methods: Methods,
    /// What the numbers of the entries lack.
    pub(super) wraps: Wraps,
}

/// For each method, the files that use it, and their bytes in the archive and decoded.
pub(super) type Methods = BTreeMap<Method, MethodFiles>;

/// Files with one method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MethodFiles {
    pub(super) files: u64,
    pub(super) compressed: u64,
    pub(super) bytes: u64,
}

/// A scan in progress.
struct Scan<'d> {
    decoder: &'d Decoder,
    wraps: Wraps,
    dos: DosTime,
    /// Who owns members without an owner.
    owner: (u32, u32),
    tree: NewTree,
    members: Members,
    methods: Methods,
    order: Order,
    /// Where the last member ends whose data was decoded for its length.
    decoded_end: u64,
    /// The first member that archfs cannot read, and how many there are.
    unreadable: Option<Error>,
    unreadable_count: u64,
    wrong_names: WrongNames,
}

/// Reads the entries of the archive that `decoder` reads, which is in `storage`. `owner` owns
/// members without an owner.
///
/// Fails with `Corrupt` if the directory is damaged or members overlap; `Unsupported` if there are
/// too many names, or, unless `partial` is set, members that archfs cannot read; `Io`.
pub(super) fn scan(
    storage: &Arc<dyn Storage>,
    decoder: &Decoder,
    owner: (u32, u32),
    partial: bool,
    progress: &Progress,
) -> Result<Scanned> {
    let directory = &decoder.directory;
    let mut scan = Scan {
        decoder,
        wraps: Wraps::clone(&directory.wraps),
        dos: DosTime::new(),
        owner,
        tree: NewTree::default(),
        members: Members::default(),
        methods: Methods::default(),
        order: Order::default(),
        decoded_end: 0,
        unreadable: None,
        unreadable_count: 0,
        wrong_names: WrongNames::default(),
    };
    let mut walk = EntryWalk::new(storage, directory);
    let mut count = 0_u64;
    let mut reported = directory.start;
    while let Some((at, entry)) = walk.next()? {
        count = count.saturating_add(1);
        scan.add(at, &entry)?;
        if scan.members.list().len() >= BATCH {
            scan.flush()?;
            progress.advance(at.saturating_sub(reported));
            reported = at;
        }
    }
    scan.flush()?;
    scan.check_count(count);
    scan.order.check(storage, directory)?;
    scan.finish(partial)
}

impl Scan<'_> {
    fn add(&mut self, at: u64, entry: &Entry<'_>) -> Result<()> {
        let path = entry.path();
        self.wrong_names.add(entry.name());
        if let Some(what) = entry.unreadable() {
            let shown = shown(&path);
            self.tree.notes.skip_unreadable(&what, &path);
            self.unreadable_count = self.unreadable_count.saturating_add(1);
            self.unreadable.get_or_insert_with(|| {
                Error::new(Kind::Unsupported, format!("cannot read {what}, such as \"{shown}\""))
            });
            return Ok(());
        }
        let member = self.with_whole_lens(at, entry).and_then(|entry| self.member(at, &entry));
        match member {
            Ok(Some(member)) => {
                let parts = Parts { path: &path, link: &[], sparse: None, xattrs: Vec::new() };
                self.members.push(member, parts);
            }
            Ok(None) => {
                let what = format!("paths over {MEMBER_PATH_MAX} bytes");
                self.tree.notes.skip(&what, Some(&path));
            }
            Err(error) if !error.is_damage() && error.kind() != Kind::Unsupported => {
                let shown = shown(&path);
                return Err(error.within(format_args!("\"{shown}\"")));
            }
            Err(error) => {
                let shown = shown(&path);
                let named = error.within(format_args!("\"{shown}\""));
                self.tree.notes.loss(&path, &named);
            }
        }
        Ok(())
    }

    /// `entry` with the length of its decoded data, if that is recorded modulo 4 GiB.
    fn with_whole_lens<'e>(&mut self, at: u64, entry: &Entry<'e>) -> Result<Entry<'e>> {
        let mut entry = entry.clone();
        let method = Method::from_code(entry.method);
        if method == Some(Method::Stored) {
            if self.wraps.is_long(at) {
                entry.size = entry.compressed;
                self.wraps.set_lens(at, (entry.compressed, entry.size));
            }
            return Ok(entry);
        }
        let most = Method::Deflate.most_decoded(entry.compressed);
        // Too much data for the recorded length, and enough for one that is 4 GiB longer.
        let is_wrapped = self.wraps.is_long(at)
            || method == Some(Method::Deflate)
                && self.decoder.directory.is_modulo
                && entry.has_short_lens()
                && entry.compressed > most_compressed(entry.size)
                && most >= entry.size.saturating_add(SPAN);
        if is_wrapped {
            let packed = entry.packed(&self.decoder.directory)?;
            // Overlaps are looked for later. Until then, each byte of the archive is decoded at
            // most once, so that opening takes no longer than reading all of it.
            if packed.header < self.decoded_end {
                return Err(no_zip64("members overlap, or are in no order"));
            }
            self.decoded_end = packed.header.saturating_add(packed.len);
            let described = Described { name: shown(&entry.path()), packed, crc32: entry.crc32 };
            entry.size = self.decoder.len_of(&described, entry.size)?;
            self.wraps.set_lens(at, (entry.compressed, entry.size));
        }
        Ok(entry)
    }

    /// The member that `entry` describes. `None` if its path is too long.
    fn member(&mut self, at: u64, entry: &Entry<'_>) -> Result<Option<Member>> {
        let kind = entry.kind();
        let header = entry.header_offset(&self.decoder.directory)?;
        let method = Method::from_code(entry.method).unwrap_or(Method::Stored);
        if entry.size > method.most_decoded(entry.compressed) || entry.size > FILE_SIZE_MAX {
            return Err(Error::corrupt("it announces more bytes than its data can hold")
                .with_detail(format_args!("{} bytes from {}", entry.size, entry.compressed)));
        }
        if method != Method::Stored && entry.compressed > most_compressed(entry.size) {
            return Err(Error::corrupt("its data is longer than any compressor makes it")
                .with_detail(format_args!("{} bytes for {}", entry.compressed, entry.size)));
        }
        if kind == EntryKind::Regular && entry.size == 0 && entry.crc32 != 0 {
            return Err(Error::corrupt("it is empty, but its checksum is not that of nothing"));
        }
        if method == Method::Stored && entry.size != entry.compressed {
            return Err(Error::corrupt("it is stored, but its two lengths differ")
                .with_detail(format_args!("{} and {}", entry.compressed, entry.size)));
        }
        if kind == EntryKind::Symlink && entry.size > u64::from(SYMLINK_MAX) {
            return Err(Error::corrupt("a symbolic link with too long a target"));
        }
        self.order.add(header, header.saturating_add(entry.least_len()));
        if entry.name.len() > MEMBER_PATH_MAX {
            return Ok(None);
        }
        let (uid, gid) = entry.owner().unwrap_or(self.owner);
        let described = Body::Described(at);
        let (kind, size, body) = match kind {
            EntryKind::Directory => (members::Kind::Directory, 0, Body::Device(0)),
            EntryKind::Symlink => (members::Kind::Symlink, entry.size, described),
            EntryKind::Regular => {
                let sum = self.methods.entry(method).or_default();
                sum.files = sum.files.saturating_add(1);
                sum.compressed = sum.compressed.saturating_add(entry.compressed);
                sum.bytes = sum.bytes.saturating_add(entry.size);
                let body = match method {
                    Method::Stored => Body::AfterHeader(header),
                    _ => described,
                };
                (members::Kind::Regular, entry.size, body)
            }
        };
        Ok(Some(Member {
            permissions: entry.permissions(),
            uid,
            gid,
            size,
            modified: entry.modified(&self.dos),
            body,
            ..Member::new(at, kind)
        }))
    }

    /// Adds the members to the tree.
    fn flush(&mut self) -> Result<()> {
        let CentralDirectory { start, end, .. } = self.decoder.directory;
        let archive = ArchiveRange { base: DirectoryId::ROOT, depth: 0, start, end };
        self.tree.add(archive, &self.members, &mut Vec::new())?;
        self.members.clear();
        Ok(())
    }

    fn check_count(&mut self, found: u64) {
        let CentralDirectory { entries, is_modulo, .. } = self.decoder.directory;
        let same = match is_modulo {
            true => found & 0xffff == entries & 0xffff,
            false => found == entries,
        };
        let context =
            format!("the number of entries in its end is {entries}, but there are {found}");
        match (same, found < entries) {
            (true, _) => {}
            (false, true) => self.tree.notes.loss(&[], &Error::corrupt(context)),
            (false, false) => self.tree.notes.unusual(&Error::corrupt(context)),
        }
    }

    fn finish(mut self, partial: bool) -> Result<Scanned> {
        if let Some(error) = self.unreadable.filter(|_| !partial) {
            let count = counted(self.unreadable_count, "member");
            let error = error.with_detail(format_args!("{count} of this and other kinds"));
            // Without regular files, there are no others that --partial would show.
            let hint = if self.methods.is_empty() {
                "unpack it with 7z, then: archfs pack DIRECTORY data.sqfs"
            } else {
                "unpack it with 7z, then: archfs pack DIRECTORY data.sqfs; or add --partial to \
                 mount the other files"
            };
            return Err(error.with_hint(hint));
        }
        if let Some(note) = self.wrong_names.note(self.decoder.directory.names) {
            self.tree.notes.unusual(&note);
        }
        Ok(Scanned { finished: self.tree.finish()?, methods: self.methods, wraps: self.wraps })
    }
}

/// Watches the members of an archive in the order of their entries. In nearly all archives, that is
/// the order of the members: each starts after the one before. Only for other archives, all entries
/// are read again and sorted. The bytes of a member are its data and the fixed part of its local
/// header: how long the rest of the header is only the header knows.
#[derive(Clone, Copy, Debug, Default)]
struct Order {
    end: u64,
    is_broken: bool,
}

impl Order {
    /// Adds a member: its bytes from the local header to the end of its data.
    fn add(&mut self, start: u64, end: u64) {
        self.is_broken |= start < self.end;
        self.end = self.end.max(end);
    }

    /// Checks that no two members share a byte.
    fn check(self, storage: &Arc<dyn Storage>, directory: &CentralDirectory) -> Result<()> {
        if self.is_broken { check_all(storage, directory) } else { Ok(()) }
    }
}

/// The bytes of a member, and a hash of its name, by a random key.
type MemberBytes = (u64, u64, u64);

fn check_all(storage: &Arc<dyn Storage>, directory: &CentralDirectory) -> Result<()> {
    let (mut extents, hasher) = (Vec::new(), RandomState::new());
    let mut walk = EntryWalk::new(storage, directory);
    while let Some((_, entry)) = walk.next()? {
        extents.extend(extent_of(&entry, directory, &hasher));
    }
    extents.sort_unstable();
    // Some programs write an entry twice.
    extents.dedup();
    let mut pairs = extents.windows(2);
    let overlap = pairs.find_map(|pair| match pair {
        [(_, end, _), (start, ..)] if end > start => Some(*start),
        _ => None,
    });
    match overlap {
        None => Ok(()),
        Some(at) => {
            let members = counted(length(extents.len()), "member");
            Err(Error::corrupt("members overlap: a ZIP bomb, or damage")
                .with_detail(format_args!("at {at:#x}, of {members}"))
                .with_hint("copy it again; if that does not help, do not trust it"))
        }
    }
}

/// `None` for a member that is left out.
fn extent_of(
    entry: &Entry<'_>,
    directory: &CentralDirectory,
    hasher: &RandomState,
) -> Option<MemberBytes> {
    let start = entry.header_offset(directory).ok().filter(|_| entry.unreadable().is_none())?;
    Some((start, start.saturating_add(entry.least_len()), hasher.hash_one(entry.name)))
}
