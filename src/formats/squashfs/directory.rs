//! Directories: listing, searching, and places in a listing that survive.
//!
//! Owns the layout of listings and of the directory index; leaves the inodes named to `inode`.
//! Invariant: names come in strictly ascending order of bytes, or the listing is damaged; so no
//! directory shows one name twice.
//!
//! A listing is made of runs: a header (how many entries, which block of the inode table they point
//! into, the inode number they count from), then up to 256 entries. An entry can not be read
//! without its header, so a cookie names the run's header by its place in the listing (32 bits) and
//! the entry by its turn in the run (8 bits). Any cookie can thus be taken up at any time, with
//! nothing kept. A directory larger than one metadata block has an index: first names of blocks
//! with their places, which saves the walk along the chain.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use super::inode::{DirectoryBody, InodeRef};
use super::metadata::{Cursor, Metadata, Position};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::{SQUASHFS_DIR_RUN_MAX, SQUASHFS_METADATA_MAX, SQUASHFS_NAME_MAX};
use crate::vfs::{Cookie, FileKind, Name};

/// Bytes of a run's header and of an entry without its name.
const RUN_HEADER: u32 = 12;
const ENTRY_HEADER: u32 = 8;

/// Names in the index have the limit of the format, one more than Linux shows.
const INDEX_NAME_MAX: usize = 256;

/// A directory, ready to be read.
pub(super) struct Directory<'m> {
    metadata: &'m Metadata,
    table: u64,
    body: DirectoryBody,
    /// Behind the directory's inode, where its index is.
    index: Cursor<'m>,
}

/// One entry of a listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'n> {
    pub(super) reference: InodeRef,
    /// The number that the inode is said to have.
    pub(super) number: u32,
    pub(super) kind: FileKind,
    pub(super) name: Name<'n>,
    /// The place behind it.
    pub(super) next: Cookie,
}

/// What an entry leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) reference: InodeRef,
    pub(super) number: u32,
    pub(super) kind: FileKind,
}

impl<'m> Directory<'m> {
    /// The directory of an inode; `index` is the cursor behind that inode.
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
    /// # Errors
    /// `InvalidInput` for a cookie that names no place of this directory; `Corrupt`; `Io`.
    pub(super) fn visit(
        &self,
        cookie: Cookie,
        visit: impl FnMut(Entry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let place = Place::decode(cookie).filter(|place| place.run <= self.body.listing_len());
        let no_place = || {
            let context = format!("{} is no place in this directory", cookie.0);
            Error::new(Kind::InvalidInput, context)
        };
        let place = place.ok_or_else(no_place)?;
        let nearest = self.nearest_index(|at, _| at <= place.run)?;
        let visited =
            self.open(nearest, place.run).and_then(|listing| listing.visit(place.turn, visit));
        match visited {
            // A position that telldir(3) never returned, and no damage.
            Err(error) if error.kind() == Kind::Corrupt && !self.is_run(place.run) => {
                Err(no_place())
            }
            visited => visited,
        }
    }

    /// Whether a run begins at `run`; also where damage on the way hides that.
    fn is_run(&self, run: u32) -> bool {
        if run == 0 {
            return true;
        }
        let mut reached = 0;
        let mut walk = || -> Result<()> {
            let nearest = self.nearest_index(|at, _| at < run)?;
            let listing = self.open(nearest, nearest.map_or(0, |near| near.listing))?;
            listing.visit(0, |entry| {
                // Behind the last entry of a run lies the next run.
                reached = Place::decode(entry.next).map_or(reached, |place| place.run);
                if reached < run { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
        };
        walk().is_err() || reached == run
    }

    /// What the entry `name` leads to.
    ///
    /// # Errors
    /// `Corrupt` where the listing is damaged on the way to it; `Io`.
    pub(super) fn find(&self, name: Name<'_>) -> Result<Option<Found>> {
        let nearest = self.nearest_index(|_, first| first <= name.as_bytes())?;
        let listing = self.open(nearest, nearest.map_or(0, |near| near.listing))?;
        let mut found = None;
        listing.visit(0, |entry| match entry.name.cmp(&name) {
            Ordering::Less => ControlFlow::Continue(()),
            Ordering::Equal => {
                let Entry { reference, number, kind, .. } = entry;
                found = Some(Found { reference, number, kind });
                ControlFlow::Break(())
            }
            Ordering::Greater => ControlFlow::Break(()),
        })?;
        Ok(found)
    }

    /// Checks that each entry of the index leads to the run that begins with its name.
    ///
    /// # Errors
    /// `Corrupt` where one does not; `Io`.
    pub(super) fn check_index(&self) -> Result<()> {
        let mut entries = Vec::new();
        self.nearest_index(|listing, name| {
            entries.push((listing, name.to_vec()));
            true
        })?;
        for (listing, name) in entries {
            let mut leads = false;
            let place = Place { run: listing, turn: 0 };
            self.visit(place.encode(), |entry| {
                leads = entry.name.as_bytes() == name;
                ControlFlow::Break(())
            })?;
            if !leads {
                return Err(Error::corrupt(format!(
                    "squashfs directory index: at {listing:#x} {} should be",
                    name.escape_ascii()
                )));
            }
        }
        Ok(())
    }

    /// The last entry of the index for which `wanted(place in the listing, first name)` holds.
    fn nearest_index(
        &self,
        mut wanted: impl FnMut(u32, &[u8]) -> bool,
    ) -> Result<Option<NearIndex>> {
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
            nearest = Some(NearIndex { listing, block });
        }
        Ok(nearest)
    }

    /// The listing from the run at `run`, which lies at or behind the place of `nearest`.
    fn open(&self, nearest: Option<NearIndex>, run: u32) -> Result<Listing<'m>> {
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
        // An empty listing may point at a block that does not exist; nothing is read of it.
        let cursor = match run < len {
            true => {
                let mut cursor = self.metadata.cursor(start)?;
                cursor.skip(u64::from(before))?;
                Some(cursor)
            }
            false => None,
        };
        Ok(Listing { cursor, at: run, len })
    }

    fn block(&self, relative: u32) -> u64 {
        self.table.saturating_add(u64::from(relative))
    }
}

/// An entry of the directory index.
#[derive(Clone, Copy)]
struct NearIndex {
    /// Bytes into the listing.
    listing: u32,
    /// The metadata block there, bytes into the directory table.
    block: u32,
}

/// What a format's cookie says: a run by its place in the listing, an entry by its turn in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    run: u32,
    turn: u8,
}

impl Place {
    fn encode(self) -> Cookie {
        let bits = (u64::from(self.run) << 8) | u64::from(self.turn);
        Cookie(bits.saturating_add(Cookie::START.0))
    }

    fn decode(cookie: Cookie) -> Option<Self> {
        let bits = cookie.0.checked_sub(Cookie::START.0)?;
        let [turn, ..] = bits.to_le_bytes();
        Some(Self { run: u32::try_from(bits >> 8).ok()?, turn })
    }
}

/// A listing being read.
struct Listing<'m> {
    cursor: Option<Cursor<'m>>,
    /// Bytes into the listing: at the header of a run.
    at: u32,
    len: u32,
}

impl Listing<'_> {
    /// Visits the entries from turn `skip` of the first run on.
    fn visit(self, skip: u8, mut visit: impl FnMut(Entry<'_>) -> ControlFlow<()>) -> Result<()> {
        let Self { cursor: Some(mut cursor), mut at, len } = self else {
            return Ok(());
        };
        let mut skip = u32::from(skip);
        let mut names = Names::default();
        while at < len {
            let run = at;
            let header: [u8; 12] = cursor.array()?;
            let mut reader = Reader::new("directory header", &header);
            let count = reader.u32()?.saturating_add(1);
            let block = reader.u32()?;
            let base = reader.u32()?;
            at = at.saturating_add(RUN_HEADER);
            if count > SQUASHFS_DIR_RUN_MAX {
                return Err(Error::corrupt(format!(
                    "squashfs directory header with {count} entries, at most \
                     {SQUASHFS_DIR_RUN_MAX} can be"
                )));
            }
            for turn in 0..count {
                at = at.saturating_add(ENTRY_HEADER);
                within(at, len)?;
                let (offset, delta, kind, name_len) = entry_header(cursor.array()?)?;
                at = at.saturating_add(name_len);
                within(at, len)?;
                let name = names.read(&mut cursor, name_len)?;
                if turn < skip {
                    continue;
                }
                let following = turn.saturating_add(1);
                let next = match u8::try_from(following) {
                    Ok(turn) if following < count => Place { run, turn },
                    _ => Place { run: at, turn: 0 },
                };
                let reference = InodeRef::new(block, offset);
                let number = base.wrapping_add_signed(i32::from(delta));
                let entry = Entry { reference, number, kind, name, next: next.encode() };
                if visit(entry).is_break() {
                    return Ok(());
                }
            }
            skip = 0;
        }
        Ok(())
    }
}

/// Checks that an entry that ends at `at` lies within a listing of `len` bytes.
fn within(at: u32, len: u32) -> Result<()> {
    if at > len {
        return Err(Error::corrupt("squashfs directory: an entry past the listing's end"));
    }
    Ok(())
}

/// Offset of the inode in its block, its number less that of the run, kind and length of the name.
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
                "squashfs directory entry of type {other}, can be 1 to 7"
            )));
        }
    };
    let name_len = u32::from(reader.u16()?).saturating_add(1);
    if name_len > SQUASHFS_NAME_MAX {
        return Err(Error::corrupt(format!(
            "squashfs directory entry with a name of {name_len} bytes, at most \
             {SQUASHFS_NAME_MAX} can be"
        )));
    }
    Ok((offset, delta, kind, name_len))
}

/// The name just read and the one before it, to see that they ascend.
struct Names {
    buffers: [[u8; Name::MAX]; 2],
    /// Length of the previous name, 0 before the first.
    previous: usize,
    /// Which buffer holds the previous name.
    turn: bool,
}

impl Default for Names {
    fn default() -> Self {
        Self { buffers: [[0; Name::MAX]; 2], previous: 0, turn: false }
    }
}

impl Names {
    fn read(&mut self, cursor: &mut Cursor<'_>, len: u32) -> Result<Name<'_>> {
        let [first, second] = &mut self.buffers;
        let (previous, current) = if self.turn { (second, first) } else { (first, second) };
        let previous = previous.get(..self.previous).unwrap_or_default();
        let current = current.get_mut(..index(len)).unwrap_or_default();
        cursor.fill(current)?;
        let current = &*current;
        let name = Name::parse(current).ok_or_else(|| {
            Error::corrupt(format!("squashfs directory entry named {}", current.escape_ascii()))
        })?;
        if current <= previous {
            return Err(Error::corrupt(format!(
                "squashfs directory: {} stands behind {}, names must ascend",
                current.escape_ascii(),
                previous.escape_ascii()
            )));
        }
        self.previous = current.len();
        self.turn = !self.turn;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_survive_and_never_meet_the_three_fixed_ones() {
        for run in [0, 1, 12, 8191, u32::MAX] {
            for turn in [0, 1, 255] {
                let place = Place { run, turn };
                assert_eq!(Place::decode(place.encode()), Some(place));
            }
        }
        assert_eq!(Place { run: 0, turn: 0 }.encode(), Cookie::START);
        assert_eq!(Place::decode(Cookie::BEFORE_DOT), None);
        assert_eq!(Place::decode(Cookie::AFTER_DOT), None);
        assert_eq!(Place::decode(Cookie(u64::MAX)), None);
        let largest = Place { run: u32::MAX, turn: 255 }.encode().0;
        assert!(i64::try_from(largest).is_ok(), "off_t is signed");
    }
}
