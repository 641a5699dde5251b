//! Directories: listing, lookup, and cookies that stay valid.
//!
//! Invariant: names must be in strictly ascending byte order. Otherwise the listing is damaged. No
//! directory can therefore show a name twice.
//!
//! A listing consists of runs. A run is a header (number of entries, block of the inode table, base
//! inode number) and up to 256 entries. An entry cannot be decoded without its header. A cookie
//! therefore holds the offset of the run's header in the listing (32 bits) and the index of the
//! entry in the run (8 bits). A listing can continue from any cookie at any time, and archfs keeps
//! no state for it. A directory larger than one metadata block has an index: the first name of some
//! blocks with their positions. A lookup starts there instead of at the start of the chain.
//!
//! The stated size of a directory is 3 more than the length of its listing. Without these 3, as in
//! images of squashfs-tools-ng before 1.1.3 and go-diskfs before 1.5.2, the last run still starts
//! before the end that the size implies. The kernel reads such a run whole. archfs does so if the
//! run ends within the stated size.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use super::inode::{DirectoryBody, InodeRef};
use super::metadata::{Cursor, Metadata, Position};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::{SQUASHFS_DIR_RUN_MAX, SQUASHFS_METADATA_MAX, SQUASHFS_NAME_MAX};
use crate::vfs::{Cookie, FileKind, Name};

/// Size of a run's header and of an entry without its name, bytes.
const RUN_HEADER: u32 = 12;
const ENTRY_HEADER: u32 = 8;

/// The format allows names in the index to be one byte longer than Linux shows.
const INDEX_NAME_MAX: usize = 256;

/// A directory to be read.
pub(super) struct Directory<'m> {
    metadata: &'m Metadata,
    table: u64,
    body: DirectoryBody,
    /// A cursor after the directory's inode, at its index.
    index: Cursor<'m>,
}

/// One entry of a listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'n> {
    pub(super) reference: InodeRef,
    /// The inode number according to the entry.
    pub(super) number: u32,
    pub(super) kind: FileKind,
    pub(super) name: Name<'n>,
    /// The position after this entry.
    pub(super) next: Cookie,
    /// Offset in the listing of the byte after this entry.
    pub(super) end: u32,
}

/// The inode that an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryTarget {
    pub(super) reference: InodeRef,
    pub(super) number: u32,
    pub(super) kind: FileKind,
}

impl<'m> Directory<'m> {
    /// The directory of an inode; `index` is the cursor after that inode.
    pub(super) fn new(
        metadata: &'m Metadata,
        table: u64,
        body: DirectoryBody,
        index: Cursor<'m>,
    ) -> Self {
        Self { metadata, table, body, index }
    }

    /// Visits the entries after `cookie` until `visit` breaks.
    ///
    /// Fails with `InvalidInput` if the cookie is not a position in this directory; `Corrupt`;
    /// `Io`.
    pub(super) fn visit(
        &self,
        cookie: Cookie,
        visit: impl FnMut(Entry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let position = EntryPosition::decode(cookie)
            .filter(|position| position.run <= self.body.listing_len());
        let invalid_cookie = || {
            let context = format!("{} is not a position in this directory", cookie.0);
            Error::new(Kind::InvalidInput, context)
        };
        let position = position.ok_or_else(invalid_cookie)?;
        let nearest = self.nearest_index(|listing_offset, _| listing_offset <= position.run)?;
        let visited = self
            .open(nearest, position.run)
            .and_then(|listing| listing.visit(position.entry_index, visit));
        match visited {
            // The cookie is a position that telldir(3) never returned; the directory is not
            // damaged.
            Err(error) if error.kind() == Kind::Corrupt && !self.is_run(position.run) => {
                Err(invalid_cookie())
            }
            visited => visited,
        }
    }

    /// Whether a run starts at `run`. Also true if damage prevents the check.
    fn is_run(&self, run: u32) -> bool {
        if run == 0 {
            return true;
        }
        let mut reached = 0;
        let mut walk = || -> Result<()> {
            let nearest = self.nearest_index(|listing_offset, _| listing_offset < run)?;
            let listing = self.open(nearest, nearest.map_or(0, |near| near.listing))?;
            listing.visit(0, |entry| {
                // The position after the last entry of a run is the next run.
                reached =
                    EntryPosition::decode(entry.next).map_or(reached, |position| position.run);
                if reached < run { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
        };
        walk().is_err() || reached == run
    }

    /// Looks up the entry `name`.
    pub(super) fn find(&self, name: Name<'_>) -> Result<Option<EntryTarget>> {
        let nearest = self.nearest_index(|_, first| first <= name.as_bytes())?;
        let listing = self.open(nearest, nearest.map_or(0, |near| near.listing))?;
        let mut found = None;
        listing.visit(0, |entry| match entry.name.cmp(&name) {
            Ordering::Less => ControlFlow::Continue(()),
            Ordering::Equal => {
                let Entry { reference, number, kind, .. } = entry;
                found = Some(EntryTarget { reference, number, kind });
                ControlFlow::Break(())
            }
            Ordering::Greater => ControlFlow::Break(()),
        })?;
        Ok(found)
    }

    /// Checks that each entry of the index leads to the run that starts with its name.
    pub(super) fn check_index(&self) -> Result<()> {
        let mut entries = Vec::new();
        self.nearest_index(|listing, name| {
            entries.push((listing, name.to_vec()));
            true
        })?;
        for (listing, name) in entries {
            let mut matches = false;
            let position = EntryPosition { run: listing, entry_index: 0 };
            self.visit(position.encode(), |entry| {
                matches = entry.name.as_bytes() == name;
                ControlFlow::Break(())
            })?;
            if !matches {
                let context =
                    format!("damaged directory index: {} is not in place", name.escape_ascii());
                return Err(Error::corrupt(context)
                    .with_detail(format_args!("offset {listing:#x} in the listing")));
            }
        }
        Ok(())
    }

    /// The last entry of the index for which `wanted(offset in the listing, first name)` holds.
    fn nearest_index(
        &self,
        mut wanted: impl FnMut(u32, &[u8]) -> bool,
    ) -> Result<Option<IndexEntry>> {
        let mut nearest = None;
        let mut cursor = self.index.clone();
        let mut buffer = [0; INDEX_NAME_MAX];
        for _ in 0..self.body.index_count {
            let bytes: [u8; 12] = cursor.array()?;
            let mut reader = Reader::new("directory index", &bytes);
            let (listing, block) = (reader.u32()?, reader.u32()?);
            let len = index(reader.u32()?).saturating_add(1);
            let Some(name) = buffer.get_mut(..len) else {
                return Err(Error::corrupt(format!("directory index: name of {len} bytes")));
            };
            cursor.fill(name)?;
            if !wanted(listing, name) {
                break;
            }
            nearest = Some(IndexEntry { listing, block });
        }
        Ok(nearest)
    }

    /// The listing from the run at `run` on, which is at or after the position of `nearest`.
    fn open(&self, nearest: Option<IndexEntry>, run: u32) -> Result<Listing<'m>> {
        let start = match nearest {
            None => Position { block: self.block(self.body.block), offset: self.body.offset },
            Some(near) => {
                let within = u64::from(self.body.offset).saturating_add(u64::from(near.listing));
                let within = within.checked_rem(length(SQUASHFS_METADATA_MAX)).unwrap_or(0);
                let offset = u16::try_from(within).unwrap_or(u16::MAX);
                Position { block: self.block(near.block), offset }
            }
        };
        let before = run.saturating_sub(nearest.map_or(0, |near| near.listing));
        let len = self.body.listing_len();
        // An empty listing may name a block that does not exist. It is not read.
        let cursor = match run < len {
            true => {
                let mut cursor = self.metadata.cursor(start)?;
                cursor.skip(u64::from(before))?;
                Some(cursor)
            }
            false => None,
        };
        Ok(Listing { cursor, listing_offset: run, len, size: self.body.size })
    }

    fn block(&self, relative: u32) -> u64 {
        self.table.saturating_add(u64::from(relative))
    }
}

/// An entry of the directory index.
#[derive(Clone, Copy)]
struct IndexEntry {
    /// Offset in the listing.
    listing: u32,
    /// Offset of the metadata block in the directory table.
    block: u32,
}

/// A decoded cookie: the offset of a run in the listing, and the index of an entry in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntryPosition {
    run: u32,
    entry_index: u8,
}

impl EntryPosition {
    fn encode(self) -> Cookie {
        let bits = (u64::from(self.run) << 8) | u64::from(self.entry_index);
        Cookie(bits.saturating_add(Cookie::START.0))
    }

    fn decode(cookie: Cookie) -> Option<Self> {
        let bits = cookie.0.checked_sub(Cookie::START.0)?;
        let [entry_index, ..] = bits.to_le_bytes();
        Some(Self { run: u32::try_from(bits >> 8).ok()?, entry_index })
    }
}

/// A listing that is being read.
struct Listing<'m> {
    cursor: Option<Cursor<'m>>,
    /// Offset in the listing, at the header of a run.
    listing_offset: u32,
    /// No run starts here or after.
    len: u32,
    /// No entry ends after this.
    size: u32,
}

impl Listing<'_> {
    /// Visits the entries of the first run from index `skip` on, then those of all later runs.
    fn visit(self, skip: u8, mut visit: impl FnMut(Entry<'_>) -> ControlFlow<()>) -> Result<()> {
        let Self { cursor: Some(mut cursor), mut listing_offset, len, size } = self else {
            return Ok(());
        };
        let mut skip = u32::from(skip);
        let mut names = Names::default();
        while listing_offset < len {
            let run = listing_offset;
            let header: [u8; 12] = cursor.array()?;
            let mut reader = Reader::new("directory header", &header);
            let count = reader.u32()?.saturating_add(1);
            let block = reader.u32()?;
            let base = reader.u32()?;
            listing_offset = listing_offset.saturating_add(RUN_HEADER);
            if count > SQUASHFS_DIR_RUN_MAX {
                return Err(Error::corrupt(format!(
                    "directory header with {count} entries, limit \
                     {SQUASHFS_DIR_RUN_MAX}"
                )));
            }
            for entry_index in 0..count {
                let (offset, delta, kind, name_len) = entry_header(cursor.array()?)?;
                let entry_len = ENTRY_HEADER.saturating_add(name_len);
                listing_offset = listing_offset.saturating_add(entry_len);
                if listing_offset > size {
                    let context = "damaged directory: an entry past the end of the listing";
                    return Err(Error::corrupt(context));
                }
                let name = names.read(&mut cursor, name_len)?;
                if entry_index < skip {
                    continue;
                }
                let following = entry_index.saturating_add(1);
                let next = match u8::try_from(following) {
                    Ok(entry_index) if following < count => EntryPosition { run, entry_index },
                    // After the last entry: the stated length, which is a valid position.
                    _ => EntryPosition { run: listing_offset.min(len), entry_index: 0 },
                };
                let reference = InodeRef::new(block, offset);
                let number = base.wrapping_add_signed(i32::from(delta));
                let (next, end) = (next.encode(), listing_offset);
                let entry = Entry { reference, number, kind, name, next, end };
                if visit(entry).is_break() {
                    return Ok(());
                }
            }
            skip = 0;
        }
        Ok(())
    }
}

/// Parses an entry: offset of the inode in its block, inode number relative to the run's, kind, and
/// length of the name.
fn entry_header(bytes: [u8; 8]) -> Result<(u16, i16, FileKind, u32)> {
    let mut reader = Reader::new("directory entry", &bytes);
    let offset = reader.u16()?;
    let delta = reader.i16()?;
    let kind = match reader.u16()? {
        1 => FileKind::Directory,
        2 => FileKind::Regular,
        3 => FileKind::Symlink,
        4 => FileKind::BlockDevice,
        5 => FileKind::CharDevice,
        6 => FileKind::Fifo,
        7 => FileKind::Socket,
        other => {
            return Err(Error::corrupt(format!(
                "damaged directory: an entry of type {other}, valid are 1 to 7"
            )));
        }
    };
    let name_len = u32::from(reader.u16()?).saturating_add(1);
    if name_len > SQUASHFS_NAME_MAX {
        return Err(Error::corrupt(format!(
            "damaged directory: a name of {name_len} bytes, limit {SQUASHFS_NAME_MAX}"
        )));
    }
    Ok((offset, delta, kind, name_len))
}

/// The current and the previous name, to check their order.
struct Names {
    buffers: [[u8; Name::MAX]; 2],
    /// Length of the previous name, 0 before the first.
    previous: usize,
    /// Which buffer holds the previous name.
    swapped: bool,
}

impl Default for Names {
    fn default() -> Self {
        Self { buffers: [[0; Name::MAX]; 2], previous: 0, swapped: false }
    }
}

impl Names {
    fn read(&mut self, cursor: &mut Cursor<'_>, len: u32) -> Result<Name<'_>> {
        let [first, second] = &mut self.buffers;
        let (previous, current) = if self.swapped { (second, first) } else { (first, second) };
        let previous = previous.get(..self.previous).unwrap_or_default();
        let current = current.get_mut(..index(len)).unwrap_or_default();
        cursor.fill(current)?;
        let current = &*current;
        let name = Name::parse(current).ok_or_else(|| {
            Error::corrupt(format!("damaged directory: an entry named {}", current.escape_ascii()))
        })?;
        if current <= previous {
            return Err(Error::corrupt(format!(
                "damaged directory: {} comes after {}, names must ascend",
                current.escape_ascii(),
                previous.escape_ascii()
            )));
        }
        self.previous = current.len();
        self.swapped = !self.swapped;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_round_trip_and_differ_from_the_fixed_ones() {
        for run in [0, 1, 12, 8191, u32::MAX] {
            for entry_index in [0, 1, 255] {
                let position = EntryPosition { run, entry_index };
                assert_eq!(EntryPosition::decode(position.encode()), Some(position));
            }
        }
        assert_eq!(EntryPosition { run: 0, entry_index: 0 }.encode(), Cookie::START);
        assert_eq!(EntryPosition::decode(Cookie::BEFORE_DOT), None);
        assert_eq!(EntryPosition::decode(Cookie::AFTER_DOT), None);
        assert_eq!(EntryPosition::decode(Cookie(u64::MAX)), None);
        let largest = EntryPosition { run: u32::MAX, entry_index: 255 }.encode().0;
        assert!(i64::try_from(largest).is_ok(), "off_t is signed");
    }
}
