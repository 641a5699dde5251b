//! The records of inodes (squashfs.rst, section 3.3), in their basic or extended form, and the
//! listings of directories (section 3.5): runs of entries, each after a header.
//!
//! Invariants: the basic form of a record is used whenever it can hold all fields. The inodes of a
//! run are in one metadata block, and their numbers differ from that of the first by at most
//! 32,767. The entries must be sorted by the bytes of their names, as in the catalog.

use super::blocks::Tail;
use super::tables::{BLOCK, Chain, Position};
use crate::codecs::Encoder;
use crate::error::{Error, Kind, Result};
use crate::vfs::FileKind;

/// Means "no fragment" and "no extended attributes".
const NONE: u32 = u32::MAX;

/// The fields that every record begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) permissions: u16,
    /// Indices into the id table.
    pub(super) uid: u16,
    pub(super) gid: u16,
    /// Seconds since 1970.
    pub(super) modified: u32,
    pub(super) number: u32,
    pub(super) links: u32,
    /// Index into the table of extended attributes.
    pub(super) xattr: Option<u32>,
}

/// The fields of a regular file. The sizes of its blocks follow the record.
#[derive(Clone, Copy, Debug)]
pub(super) struct File {
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) sparse: u64,
    pub(super) tail: Option<Tail>,
}

/// The fields of a directory. Its index follows the record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Directory {
    pub(super) block: u32,
    pub(super) offset: u16,
    /// Bytes of the listing, plus three.
    pub(super) size: u32,
    pub(super) parent: u32,
    pub(super) index_count: u16,
}

/// The number of a kind in directory entries and basic records. Extended records add 7.
pub(super) fn kind_number(kind: FileKind) -> u16 {
    match kind {
        FileKind::Directory => 1,
        FileKind::Regular => 2,
        FileKind::Symlink => 3,
        FileKind::BlockDevice => 4,
        FileKind::CharDevice => 5,
        FileKind::Fifo => 6,
        FileKind::Socket => 7,
    }
}

impl Header {
    fn begin(&self, kind: FileKind, is_extended: bool) -> Vec<u8> {
        let mut record = Vec::with_capacity(64);
        record.extend((kind_number(kind) + if is_extended { 7 } else { 0 }).to_le_bytes());
        record.extend(self.permissions.to_le_bytes());
        record.extend(self.uid.to_le_bytes());
        record.extend(self.gid.to_le_bytes());
        record.extend(self.modified.to_le_bytes());
        record.extend(self.number.to_le_bytes());
        record
    }

    fn end_xattr(&self, record: &mut Vec<u8>) {
        if let Some(xattr) = self.xattr {
            record.extend(xattr.to_le_bytes());
        }
    }

    pub(super) fn file(&self, file: &File) -> Vec<u8> {
        let (fragment, offset) = file.tail.map_or((NONE, 0), |tail| (tail.fragment, tail.offset));
        let basic = match (u32::try_from(file.start), u32::try_from(file.size)) {
            (Ok(start), Ok(size)) if self.links == 1 && self.xattr.is_none() => {
                (file.sparse == 0).then_some((start, size))
            }
            _ => None,
        };
        let mut record = self.begin(FileKind::Regular, basic.is_none());
        if let Some((start, size)) = basic {
            for field in [start, fragment, offset, size] {
                record.extend(field.to_le_bytes());
            }
            return record;
        }
        for field in [file.start, file.size, file.sparse] {
            record.extend(field.to_le_bytes());
        }
        for field in [self.links, fragment, offset, self.xattr.unwrap_or(NONE)] {
            record.extend(field.to_le_bytes());
        }
        record
    }

    pub(super) fn directory(&self, directory: &Directory) -> Vec<u8> {
        let basic = u16::try_from(directory.size).ok();
        let basic = basic.filter(|_| self.xattr.is_none() && directory.index_count == 0);
        let mut record = self.begin(FileKind::Directory, basic.is_none());
        if let Some(size) = basic {
            record.extend(directory.block.to_le_bytes());
            record.extend(self.links.to_le_bytes());
            record.extend(size.to_le_bytes());
            record.extend(directory.offset.to_le_bytes());
            record.extend(directory.parent.to_le_bytes());
            return record;
        }
        for field in [self.links, directory.size, directory.block, directory.parent] {
            record.extend(field.to_le_bytes());
        }
        record.extend(directory.index_count.to_le_bytes());
        record.extend(directory.offset.to_le_bytes());
        record.extend(self.xattr.unwrap_or(NONE).to_le_bytes());
        record
    }

    /// A symbolic link; `target` is shorter than 2^32 bytes.
    pub(super) fn symlink(&self, target: &[u8]) -> Vec<u8> {
        let mut record = self.begin(FileKind::Symlink, self.xattr.is_some());
        record.extend(self.links.to_le_bytes());
        record.extend((target.len() as u32).to_le_bytes());
        record.extend_from_slice(target);
        self.end_xattr(&mut record);
        record
    }

    /// A device, with its number in the kernel's 32-bit encoding.
    pub(super) fn device(&self, kind: FileKind, number: u32) -> Vec<u8> {
        let mut record = self.begin(kind, self.xattr.is_some());
        record.extend(self.links.to_le_bytes());
        record.extend(number.to_le_bytes());
        self.end_xattr(&mut record);
        record
    }

    pub(super) fn special(&self, kind: FileKind) -> Vec<u8> {
        let mut record = self.begin(kind, self.xattr.is_some());
        record.extend(self.links.to_le_bytes());
        self.end_xattr(&mut record);
        record
    }
}

const RUN: usize = 256;

/// Bytes of the header of a run.
const RUN_HEADER: usize = 12;

/// Bytes of an entry before its name.
const ENTRY: usize = 8;

/// Maximum entries of an index, whose count has 16 bits.
const INDEX: usize = 60_000;

/// A name and its inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'n> {
    /// 1 to 255 bytes.
    pub(super) name: &'n [u8],
    /// Position of its inode in the inode table.
    pub(super) inode: Position,
    pub(super) number: u32,
    /// As returned by `kind_number`.
    pub(super) kind: u16,
}

/// A listing that was written.
#[derive(Clone, Debug)]
pub(super) struct Listing {
    /// Its position in the directory table.
    pub(super) position: Position,
    /// Bytes before compression.
    pub(super) len: u32,
    /// The index after the inode of the directory, which lets a reader find a name without reading
    /// the whole listing.
    pub(super) index: Vec<u8>,
    pub(super) index_count: u16,
}

/// Writes the listing of `entries`.
///
/// Fails with `InvalidInput` if a listing, or all of them, would take more than 4 GiB.
pub(super) fn write_listing<'n>(
    chain: &mut Chain,
    encoder: &mut Encoder,
    entries: impl Iterator<Item = Entry<'n>>,
) -> Result<Listing> {
    let position = chain.position();
    let mut writer =
        ListingWriter { chain, encoder, start: 0, last: position.block, marks: Vec::new() };
    writer.start = writer.chain.len();
    let mut run = Run::default();
    for entry in entries {
        if !run.takes(&entry)
            || writer.chain.position().offset as usize + RUN_HEADER + run.bytes.len() >= BLOCK
        {
            writer.put(&mut run)?;
        }
        run.add(&entry);
    }
    writer.put(&mut run)?;
    let len = writer.chain.len() - writer.start;
    let len = checked_len(len)?;
    let (index, index_count) = index(&writer.marks);
    Ok(Listing { position, len, index, index_count })
}

/// Checks that a listing of these names is not certain to be too long. It also has headers, whose
/// number depends on the layout.
pub(super) fn check_names<'n>(names: impl Iterator<Item = &'n [u8]>) -> Result<()> {
    checked_len(names.map(|name| (ENTRY + name.len()) as u64).sum()).map(drop)
}

/// The length of a listing as the format stores it, if it is not too long.
fn checked_len(len: u64) -> Result<u32> {
    u32::try_from(len).ok().filter(|&len| len <= u32::MAX - 3).ok_or_else(|| {
        Error::new(
            Kind::InvalidInput,
            "the names in a directory take more than 4 GiB, the limit of SquashFS",
        )
    })
}

/// The start of a run in another metadata block than the run before.
struct Mark {
    offset: u64,
    block: u32,
    name: Vec<u8>,
}

/// The index of a listing: all marks, or every nth of them.
fn index(marks: &[Mark]) -> (Vec<u8>, u16) {
    let step = marks.len().div_ceil(INDEX).max(1);
    let mut bytes = Vec::new();
    let mut count = 0;
    for mark in marks.iter().step_by(step) {
        // The whole listing is shorter than 4 GiB, as `write_listing` checks first.
        bytes.extend((mark.offset as u32).to_le_bytes());
        bytes.extend(mark.block.to_le_bytes());
        bytes.extend((mark.name.len() as u32 - 1).to_le_bytes());
        bytes.extend_from_slice(&mark.name);
        count += 1;
    }
    (bytes, count)
}

struct ListingWriter<'w> {
    chain: &'w mut Chain,
    encoder: &'w mut Encoder,
    /// Offset of the listing in the uncompressed chain.
    start: u64,
    /// The block of the last mark or of the start of the listing.
    last: u64,
    marks: Vec<Mark>,
}

impl ListingWriter<'_> {
    fn put(&mut self, run: &mut Run) -> Result<()> {
        let Some(first) = run.first.take() else { return Ok(()) };
        let position = self.chain.position();
        let block = position.block32("directory")?;
        if position.block != self.last {
            let offset = self.chain.len() - self.start;
            self.marks.push(Mark { offset, block, name: std::mem::take(&mut run.name) });
            self.last = position.block;
        }
        let mut header = [0; RUN_HEADER];
        header[..4].copy_from_slice(&(run.count as u32 - 1).to_le_bytes());
        header[4..8].copy_from_slice(&first.0.block32("inode")?.to_le_bytes());
        header[8..].copy_from_slice(&first.1.to_le_bytes());
        self.chain.put(self.encoder, &header)?;
        self.chain.put(self.encoder, &run.bytes)?;
        run.bytes.clear();
        run.count = 0;
        Ok(())
    }
}

/// Entries that share a header.
#[derive(Default)]
struct Run {
    first: Option<(Position, u32)>,
    name: Vec<u8>,
    count: usize,
    bytes: Vec<u8>,
}

impl Run {
    fn takes(&self, entry: &Entry<'_>) -> bool {
        self.first.is_none_or(|(position, _)| {
            self.count < RUN && position.block == entry.inode.block && self.delta(entry).is_some()
        })
    }

    /// The inode number relative to that of the first entry.
    fn delta(&self, entry: &Entry<'_>) -> Option<i16> {
        let base = self.first.map_or(entry.number, |(_, number)| number);
        i16::try_from(i64::from(entry.number) - i64::from(base)).ok()
    }

    fn add(&mut self, entry: &Entry<'_>) {
        if self.first.is_none() {
            self.first = Some((entry.inode, entry.number));
            self.name = entry.name.to_vec();
        }
        self.count += 1;
        self.bytes.extend(entry.inode.offset.to_le_bytes());
        self.bytes.extend(self.delta(entry).unwrap_or(0).to_le_bytes());
        self.bytes.extend(entry.kind.to_le_bytes());
        // A name is at most 255 bytes long.
        self.bytes.extend((entry.name.len() as u16).saturating_sub(1).to_le_bytes());
        self.bytes.extend_from_slice(entry.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codecs::Method;

    const HEADER: Header = Header {
        permissions: 0o644,
        uid: 1,
        gid: 2,
        modified: 3,
        number: 4,
        links: 1,
        xattr: None,
    };

    fn kind(record: &[u8]) -> u16 {
        u16::from_le_bytes([record[0], record[1]])
    }

    #[test]
    fn a_file_is_extended_only_where_it_must_be() {
        let max = u64::from(u32::MAX);
        let file = File { start: max, size: max, sparse: 0, tail: None };
        let basic = HEADER.file(&file);
        assert_eq!((kind(&basic), basic.len()), (2, 32));
        for (header, file) in [
            (HEADER, File { start: max + 1, ..file }),
            (HEADER, File { size: max + 1, ..file }),
            (HEADER, File { sparse: 1, ..file }),
            (Header { links: 2, ..HEADER }, file),
            (Header { xattr: Some(0), ..HEADER }, file),
        ] {
            let extended = header.file(&file);
            assert_eq!((kind(&extended), extended.len()), (9, 56), "{header:?} {file:?}");
        }
    }

    #[test]
    fn a_directory_is_extended_only_where_it_must_be() {
        let directory = Directory { block: 0, offset: 0, size: 65535, parent: 1, index_count: 0 };
        let basic = HEADER.directory(&directory);
        assert_eq!((kind(&basic), basic.len()), (1, 32));
        for (header, directory) in [
            (HEADER, Directory { size: 65536, ..directory }),
            (HEADER, Directory { index_count: 1, ..directory }),
            (Header { xattr: Some(0), ..HEADER }, directory),
        ] {
            let extended = header.directory(&directory);
            assert_eq!((kind(&extended), extended.len()), (8, 40), "{header:?} {directory:?}");
        }
    }

    #[test]
    fn other_inodes_are_extended_only_for_attributes() {
        let with = Header { xattr: Some(7), links: 9, ..HEADER };
        assert_eq!(kind(&HEADER.symlink(b"x")), 3);
        assert_eq!(kind(&with.symlink(b"x")), 10);
        assert_eq!(with.symlink(b"xyz").len(), 16 + 8 + 3 + 4);
        assert_eq!(kind(&with.device(FileKind::BlockDevice, 1)), 11);
        assert_eq!(kind(&HEADER.device(FileKind::CharDevice, 1)), 5);
        assert_eq!(kind(&with.special(FileKind::Fifo)), 13);
        assert_eq!(kind(&HEADER.special(FileKind::Socket)), 7);
    }

    fn entry(name: &[u8], block: u64, number: u32) -> Entry<'_> {
        Entry { name, inode: Position { block, offset: 5 }, number, kind: 2 }
    }

    /// The headers of a listing: count, block, inode number.
    fn headers(entries: &[Entry<'_>]) -> Vec<(u32, u32, u32)> {
        let mut encoder = Encoder::new(Method::None).unwrap();
        let mut chain = Chain::default();
        let listing = write_listing(&mut chain, &mut encoder, entries.iter().copied()).unwrap();
        let (stored, _) = chain.finish(&mut encoder).unwrap();
        let mut bytes = Vec::new();
        for block in stored.chunks(BLOCK + 2) {
            bytes.extend_from_slice(&block[2..]);
        }
        assert_eq!(bytes.len(), listing.len as usize);
        let field =
            |offset: usize| u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap());
        let (mut offset, mut found) = (0, Vec::new());
        while offset < bytes.len() {
            found.push((field(offset) + 1, field(offset + 4), field(offset + 8)));
            let count = field(offset) + 1;
            offset += RUN_HEADER;
            for _ in 0..count {
                offset +=
                    9 + usize::from(u16::from_le_bytes([bytes[offset + 6], bytes[offset + 7]]));
            }
        }
        found
    }

    #[test]
    fn names_and_entries_take_less_than_4_gib() {
        let longest = [b'x'; 255];
        let fitting = u64::from(u32::MAX - 3) / (ENTRY + longest.len()) as u64;
        let names = |count: u64| (0..count).map(|_| &longest[..]);
        check_names(names(fitting)).unwrap();
        assert_eq!(check_names(names(fitting + 1)).unwrap_err().kind(), Kind::InvalidInput);
        assert_eq!(checked_len((u32::MAX - 3).into()).unwrap(), u32::MAX - 3);
        assert!(checked_len((u32::MAX - 2).into()).is_err());
    }

    #[test]
    fn a_run_has_256_entries_at_most() {
        let many = |count: u32| (0..count).map(|n| entry(b"x", 0, n + 1)).collect::<Vec<_>>();
        assert_eq!(headers(&many(0)), []);
        assert_eq!(headers(&many(256)), [(256, 0, 1)]);
        assert_eq!(headers(&many(257)), [(256, 0, 1), (1, 0, 257)]);
    }

    #[test]
    fn a_run_ends_where_a_number_is_too_far_away_either_way() {
        for (first, second, together) in [
            (1, 32_768, true),
            (1, 32_769, false),
            (32_769, 1, true),
            (32_770, 1, false),
            (u32::MAX, 1, false),
        ] {
            let found = headers(&[entry(b"a", 0, first), entry(b"b", 0, second)]);
            assert_eq!(found.len(), if together { 1 } else { 2 }, "{first} {second}");
        }
    }

    #[test]
    fn a_run_ends_with_the_block_of_its_inodes() {
        let entries = [entry(b"a", 0, 1), entry(b"b", 0, 2), entry(b"c", 8194, 3)];
        assert_eq!(headers(&entries), [(2, 0, 1), (1, 8194, 3)]);
        let mut far = entries;
        far[2].inode.block = 1 << 32;
        let (mut encoder, mut chain) = (Encoder::new(Method::None).unwrap(), Chain::default());
        assert!(write_listing(&mut chain, &mut encoder, far.into_iter()).is_err());
    }

    #[test]
    fn each_block_of_a_long_listing_has_a_mark_and_a_short_one_none() {
        let names: Vec<_> = (0..2000).map(|n| format!("{n:0200}").into_bytes()).collect();
        for (count, marks) in [(0, 0), (30, 0), (2000, 50)] {
            let (mut encoder, mut chain) = (Encoder::new(Method::None).unwrap(), Chain::default());
            let entries = names[..count].iter().map(|name| entry(name, 0, 1));
            let listing = write_listing(&mut chain, &mut encoder, entries).unwrap();
            assert!(listing.index_count.abs_diff(marks) <= 1, "{}", listing.index_count);
            assert_eq!(listing.index.len(), usize::from(listing.index_count) * 212);
        }
    }

    #[test]
    fn a_long_index_skips_marks() {
        let marks: Vec<Mark> =
            (0..200_000).map(|offset| Mark { offset, block: 0, name: b"x".to_vec() }).collect();
        let (bytes, count) = index(&marks);
        assert_eq!((count, bytes.len()), (50_000, 50_000 * 13));
    }
}
