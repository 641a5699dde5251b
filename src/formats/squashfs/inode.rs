//! Inodes: their numbers, and the fourteen on-disk records (basic and extended forms of seven
//! kinds; squashfs_fs.h).
//!
//! Problem. A directory names an inode by its reference, the position of its record: 32 bits of
//! block and 16 bits of offset. References are too large for inode numbers. An image of 60,000
//! files has references above 2^34, and a program with a 32-bit st_ino gets EOVERFLOW.
//!
//! Idea. Each record also stores a number, from 1 to the number of inodes, and the export table
//! maps it to the reference. archfs shows the stored numbers, as the kernel's SquashFS does. It
//! keeps nothing in memory: it reads the table through the metadata cache.
//!
//! Stored numbers come from the archive and may be wrong. A stored number is shown only if the
//! export table maps it to that same inode. No two inodes can therefore share a number. FUSE
//! requires that the root has number 1. The root therefore swaps numbers with the inode whose
//! stored number is 1, if the export table confirms the stored number of the root.
//!
//! If there is no export table, or it disagrees, the number is derived from the reference: block
//! times 8 KiB (the size of a metadata block) plus offset. Without a table, these numbers fit in 32
//! bits up to 512 KiB of inode table, about 100,000 files. All hard links of a file have the same
//! reference, so they have the same number in both cases.

use super::SquashFs;
use super::metadata::{Cursor, Metadata, Position, Table};
use super::superblock::Superblock;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{Reader, length};
use crate::formats::limits::{FILE_SIZE_MAX, SQUASHFS_METADATA_MAX, SYMLINK_MAX};
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::{FileKind, Ino};

/// Field value for no fragment, and for no extended attributes.
const NONE: u32 = u32::MAX;

/// The last inode type of the basic form.
const LAST_BASIC: u16 = 7;

/// First number derived from references if there is an export table, above all stored numbers.
const ABOVE_STORED: u64 = 1 << 32;

/// First number derived from references if there is none: after 0, which is invalid, and the root.
const ABOVE_ROOT: u64 = 2;

/// The number of all references past the end of a metadata block, where no record can be. Reading
/// such an inode returns an error.
const NOWHERE: u64 = 1 << 46;

/// The position of an inode's record, in the form that directories store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct InodeRef(u64);

impl InodeRef {
    /// Parses the 64 bits of a reference in the superblock. `None` if more than 48 bits are used.
    pub(super) fn parse(bits: u64) -> Option<Self> {
        (bits >> 48 == 0).then_some(Self(bits))
    }

    /// Its 64 bits.
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// The record at `offset` in the metadata block at offset `block` of the inode table.
    pub(super) fn new(block: u32, offset: u16) -> Self {
        Self((u64::from(block) << 16) | u64::from(offset))
    }

    /// Offset of the record's metadata block in the inode table.
    pub(super) fn block(self) -> u32 {
        let [_, _, a, b, c, d, ..] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// Offset of the record in that block.
    pub(super) fn offset(self) -> u16 {
        let [low, high, ..] = self.0.to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Its position as a detail of an error. The inode table is at `inode_table` of the image.
    pub(super) fn describe(self, inode_table: u64) -> String {
        let Position { block, offset } = self.position(inode_table);
        format!("inode at {block:#x}, byte {offset}")
    }

    fn position(self, inode_table: u64) -> Position {
        let block = inode_table.saturating_add(u64::from(self.block()));
        Position { block, offset: self.offset() }
    }
}

/// A parsed inode. It holds no sentinel values: what is absent is `None`.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    /// The number stored in the record; 1 or more.
    pub(super) number: u32,
    /// Whether the record has the extended form.
    pub(super) is_extended: bool,
    pub(super) permissions: u16,
    /// Indices into the id table.
    pub(super) uid: u16,
    pub(super) gid: u16,
    /// Seconds since 1970.
    pub(super) modified: u32,
    pub(super) nlink: u32,
    /// Index into the table of extended attributes.
    pub(super) xattr: Option<u32>,
    pub(super) body: Body,
}

/// The fields that are specific to a kind of inode.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Directory(DirectoryBody),
    Regular(RegularBody),
    /// The target is the next `len` bytes of the cursor.
    Symlink {
        len: u32,
    },
    Device {
        kind: FileKind,
        /// In the kernel's encoding of 32 bits.
        number: u32,
    },
    Fifo,
    Socket,
}

/// The position of a directory's listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectoryBody {
    /// Offset of its first metadata block in the directory table.
    pub(super) block: u32,
    /// Offset in that block.
    pub(super) offset: u16,
    /// The size shown to users: by the format, 3 more than the length of the listing, for "." and
    /// "..".
    pub(super) size: u32,
    /// Entries of the index, which follows the record.
    pub(super) index_count: u16,
    /// Inode number of the parent directory.
    pub(super) parent: u32,
}

impl DirectoryBody {
    /// Stated length of the listing, bytes. No run starts after it.
    pub(super) fn listing_len(&self) -> u32 {
        self.size.saturating_sub(3)
    }
}

/// The position of a file's contents. The block list follows the record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegularBody {
    /// Offset of the first data block in the image.
    pub(super) start: u64,
    pub(super) size: u64,
    /// Bytes of `size` that are holes.
    pub(super) sparse: u64,
    pub(super) tail: Option<Tail>,
}

/// The last bytes of a file, in a block shared with the tails of other files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    /// Index into the fragment table.
    pub(super) fragment: u32,
    /// Offset in the decompressed fragment block.
    pub(super) offset: u32,
}

impl Inode {
    /// Reads the inode at `reference`. Also returns the cursor after the fixed part of its record.
    /// The caller adds to errors which inode it was.
    ///
    /// Fails with `Corrupt` if there is no inode or its fields contradict each other; `Io`.
    pub(super) fn read(
        metadata: &Metadata,
        inode_table: u64,
        reference: InodeRef,
    ) -> Result<(Self, Cursor<'_>)> {
        let mut cursor = metadata.cursor(reference.position(inode_table))?;
        let inode = Self::parse(&mut cursor)?;
        Ok((inode, cursor))
    }

    /// The kind of file.
    pub(super) fn kind(&self) -> FileKind {
        match self.body {
            Body::Directory(_) => FileKind::Directory,
            Body::Regular(_) => FileKind::Regular,
            Body::Symlink { .. } => FileKind::Symlink,
            Body::Device { kind, .. } => kind,
            Body::Fifo => FileKind::Fifo,
            Body::Socket => FileKind::Socket,
        }
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self> {
        let header: [u8; 16] = cursor.array()?;
        let mut reader = Reader::new("header", &header);
        let kind = reader.u16()?;
        let mode = reader.u16()?;
        let uid = reader.u16()?;
        let gid = reader.u16()?;
        let modified = reader.u32()?;
        let number = reader.u32()?;
        if number == 0 {
            return Err(Error::corrupt("inode number 0"));
        }
        let (nlink, xattr, body) = parse_body(kind, cursor)?;
        let xattr = Some(xattr).filter(|&xattr| xattr != NONE);
        let (permissions, is_extended) = (mode & 0o7777, kind > LAST_BASIC);
        Ok(Self { number, is_extended, permissions, uid, gid, modified, nlink, xattr, body })
    }
}

/// The part after the common header. Returns the link count, the xattr index (`NONE` in basic
/// inodes) and the body.
fn parse_body(kind: u16, cursor: &mut Cursor<'_>) -> Result<(u32, u32, Body)> {
    match kind {
        1 => basic_directory(cursor),
        2 => basic_file(cursor),
        3 => symlink(cursor),
        4 => device(FileKind::BlockDevice, cursor),
        5 => device(FileKind::CharDevice, cursor),
        6 => ipc(Body::Fifo, cursor),
        7 => ipc(Body::Socket, cursor),
        8 => extended_directory(cursor),
        9 => extended_file(cursor),
        10 => extended_symlink(cursor),
        11 => with_xattr(cursor, |cursor| device(FileKind::BlockDevice, cursor)),
        12 => with_xattr(cursor, |cursor| device(FileKind::CharDevice, cursor)),
        13 => with_xattr(cursor, |cursor| ipc(Body::Fifo, cursor)),
        14 => with_xattr(cursor, |cursor| ipc(Body::Socket, cursor)),
        other => Err(Error::corrupt(format!("inode type {other}, valid are 1 to 14"))),
    }
}

/// An extended device, fifo or socket is the basic record followed by an xattr index.
fn with_xattr(
    cursor: &mut Cursor<'_>,
    basic: impl Fn(&mut Cursor<'_>) -> Result<(u32, u32, Body)>,
) -> Result<(u32, u32, Body)> {
    let (nlink, _, body) = basic(cursor)?;
    let xattr = u32::from_le_bytes(cursor.array()?);
    Ok((nlink, xattr, body))
}

fn basic_directory(cursor: &mut Cursor<'_>) -> Result<(u32, u32, Body)> {
    let bytes: [u8; 16] = cursor.array()?;
    let mut reader = Reader::new("directory", &bytes);
    let block = reader.u32()?;
    let nlink = reader.u32()?;
    let size = u32::from(reader.u16()?);
    let offset = reader.u16()?;
    let parent = reader.u32()?;
    let body = DirectoryBody { block, offset, size, index_count: 0, parent };
    Ok((nlink, NONE, Body::Directory(body)))
}

fn extended_directory(cursor: &mut Cursor<'_>) -> Result<(u32, u32, Body)> {
    let bytes: [u8; 24] = cursor.array()?;
    let mut reader = Reader::new("directory", &bytes);
    let nlink = reader.u32()?;
    let size = reader.u32()?;
    let block = reader.u32()?;
    let parent = reader.u32()?;
    let index_count = reader.u16()?;
    let offset = reader.u16()?;
    let xattr = reader.u32()?;
    let body = DirectoryBody { block, offset, size, index_count, parent };
    Ok((nlink, xattr, Body::Directory(body)))
}

fn basic_file(cursor: &mut Cursor<'_>) -> Result<(u32, u32, Body)> {
    let bytes: [u8; 16] = cursor.array()?;
    let mut reader = Reader::new("file", &bytes);
    let start = u64::from(reader.u32()?);
    let tail = tail(reader.u32()?, reader.u32()?);
    let size = u64::from(reader.u32()?);
    Ok((1, NONE, Body::Regular(RegularBody { start, size, sparse: 0, tail })))
}

fn extended_file(cursor: &mut Cursor<'_>) -> Result<(u32, u32, Body)> {
    let bytes: [u8; 40] = cursor.array()?;
    let mut reader = Reader::new("file", &bytes);
    let start = reader.u64()?;
    let size = reader.u64()?;
    let sparse = reader.u64()?;
    let nlink = reader.u32()?;
    let tail = tail(reader.u32()?, reader.u32()?);
    let xattr = reader.u32()?;
    if size > FILE_SIZE_MAX {
        return Err(Error::corrupt(format!("file of {size} bytes, limit {FILE_SIZE_MAX}")));
    }
    Ok((nlink, xattr, Body::Regular(RegularBody { start, size, sparse, tail })))
}

fn tail(fragment: u32, offset: u32) -> Option<Tail> {
    (fragment != NONE).then_some(Tail { fragment, offset })
}

fn symlink(cursor: &mut Cursor<'_>) -> Result<(u32, u32, Body)> {
    let bytes: [u8; 8] = cursor.array()?;
    let mut reader = Reader::new("symbolic link", &bytes);
    let nlink = reader.u32()?;
    let len = reader.u32()?;
    if len > SYMLINK_MAX {
        return Err(Error::corrupt(format!(
            "symbolic link target of {len} bytes, limit {SYMLINK_MAX}"
        )));
    }
    Ok((nlink, NONE, Body::Symlink { len }))
}

/// The xattr index follows the target; a second cursor reads it.
fn extended_symlink(cursor: &mut Cursor<'_>) -> Result<(u32, u32, Body)> {
    let (nlink, _, body) = symlink(cursor)?;
    let mut after_target = cursor.clone();
    if let Body::Symlink { len } = body {
        after_target.skip(u64::from(len))?;
    }
    Ok((nlink, u32::from_le_bytes(after_target.array()?), body))
}

fn device(kind: FileKind, cursor: &mut Cursor<'_>) -> Result<(u32, u32, Body)> {
    let bytes: [u8; 8] = cursor.array()?;
    let mut reader = Reader::new("device", &bytes);
    let nlink = reader.u32()?;
    let number = reader.u32()?;
    Ok((nlink, NONE, Body::Device { kind, number }))
}

fn ipc(body: Body, cursor: &mut Cursor<'_>) -> Result<(u32, u32, Body)> {
    let nlink = u32::from_le_bytes(cursor.array()?);
    Ok((nlink, NONE, body))
}

/// The inode numbers of one image.
pub(super) struct Numbers {
    root: InodeRef,
    /// The stored number of the root, if the export table maps it to the root.
    root_number: Option<u32>,
    /// The reference of each stored number.
    exports: Option<Table<8>>,
}

impl Numbers {
    /// The inode numbers of the image in `storage`, whose root is the inode at `root`.
    pub(super) fn read(
        metadata: &Arc<Metadata>,
        storage: &dyn Storage,
        superblock: &Superblock,
        root: InodeRef,
        inode: &Inode,
    ) -> Result<Self> {
        let (count, end) = (superblock.inode_count, superblock.bytes_used);
        let exports = superblock.export_table.map(|start| {
            let table = Table::read(metadata, storage, "export", start, count, end);
            table.map(Some).or_else(|error| if error.is_damage() { Ok(None) } else { Err(error) })
        });
        let exports = exports.transpose()?.flatten();
        Self { root, root_number: None, exports }.with_root_number(inode.number)
    }

    /// Sets `root_number`, if the root stores `stored`.
    fn with_root_number(self, stored: u32) -> Result<Self> {
        let root_number = match self.exported(stored) {
            Ok(Some(found)) if found == self.root => Some(stored),
            Err(error) if !error.is_damage() => return Err(error),
            _ => None,
        };
        Ok(Self { root_number, ..self })
    }

    /// The reference of the root.
    pub(super) fn root(&self) -> InodeRef {
        self.root
    }

    /// The number of the inode at `reference`. `stored` is its number in a record or entry.
    pub(super) fn ino(&self, reference: InodeRef, stored: u32) -> Result<Ino> {
        if reference == self.root {
            return Ok(Ino::ROOT);
        }
        match self.exported(stored) {
            Ok(Some(found)) if found == reference => {
                let shown = if stored == 1 { self.root_number } else { Some(stored) };
                let ino = shown.and_then(|shown| Ino::new(u64::from(shown)));
                Ok(ino.unwrap_or_else(|| self.derived_ino(reference)))
            }
            Err(error) if !error.is_damage() => Err(error),
            _ => Ok(self.derived_ino(reference)),
        }
    }

    /// The number of the inode whose record stores `stored`, if the export table has it.
    pub(super) fn stored(&self, stored: u32) -> Result<Option<Ino>> {
        match self.exported(stored)? {
            Some(reference) => self.ino(reference, stored).map(Some),
            None => Ok(None),
        }
    }

    /// The reference of the inode with number `ino`.
    ///
    /// Fails with `NotFound` if no inode has this number; `Corrupt` or `Io` if the table cannot be
    /// read.
    pub(super) fn reference(&self, ino: Ino) -> Result<InodeRef> {
        if ino == Ino::ROOT {
            return Ok(self.root);
        }
        let number = ino.number();
        let none = || Error::new(Kind::NotFound, format!("{number} is not an inode of this image"));
        match number.checked_sub(self.derived_start()) {
            Some(derived) => unpack(derived).ok_or_else(none),
            None => {
                let shown = u32::try_from(number).map_err(|_| none())?;
                let stored = if Some(shown) == self.root_number { 1 } else { shown };
                self.exported(stored)?.ok_or_else(none)
            }
        }
    }

    /// One more than the largest inode number, unless the archive contradicts itself.
    pub(super) fn end(&self, inode_table_len: u64) -> u64 {
        match &self.exports {
            Some(exports) => u64::from(exports.count()).saturating_add(1),
            None => inode_table_len.saturating_mul(block_len()).saturating_add(ABOVE_ROOT),
        }
    }

    /// The reference of inode `stored` in the export table; `None` if it is not in the table.
    fn exported(&self, stored: u32) -> Result<Option<InodeRef>> {
        let Some(exports) = &self.exports else {
            return Ok(None);
        };
        match stored.checked_sub(1).filter(|&record_index| record_index < exports.count()) {
            Some(record_index) => {
                let bytes = exports.record(record_index)?;
                Ok(InodeRef::parse(u64::from_le_bytes(bytes)))
            }
            None => Ok(None),
        }
    }

    /// The number derived from a reference.
    fn derived_ino(&self, reference: InodeRef) -> Ino {
        let number = self.derived_start().saturating_add(pack(reference));
        Ino::new(number).unwrap_or(Ino::ROOT)
    }

    fn derived_start(&self) -> u64 {
        if self.exports.is_some() { ABOVE_STORED } else { ABOVE_ROOT }
    }
}

fn block_len() -> u64 {
    length(SQUASHFS_METADATA_MAX)
}

fn pack(reference: InodeRef) -> u64 {
    let offset = u64::from(reference.offset());
    match offset < block_len() {
        true => u64::from(reference.block()).saturating_mul(block_len()).saturating_add(offset),
        false => NOWHERE,
    }
}

fn unpack(number: u64) -> Option<InodeRef> {
    if number == NOWHERE {
        return Some(InodeRef::new(0, u16::MAX));
    }
    let block = u32::try_from(number.checked_div(block_len())?).ok()?;
    let offset = u16::try_from(number.checked_rem(block_len())?).ok()?;
    Some(InodeRef::new(block, offset))
}

impl SquashFs {
    /// Calls `visit` for each inode in the order of the inode table, with the cursor after the
    /// fixed part of its record. Returns the number of inodes. It visits no record twice, and never
    /// more records than the superblock declares, so a scan takes time proportional to the table.
    ///
    /// Fails with `Corrupt` if the table cannot be read to its end; `Io`; the errors of `visit`.
    pub(super) fn scan_inodes<'s>(
        &'s self,
        mut visit: impl FnMut(InodeRef, &Inode, &Cursor<'s>) -> Result<()>,
    ) -> Result<u64> {
        let Superblock { inode_table, directory_table, inode_count, .. } = self.superblock;
        let start = Position { block: inode_table, offset: 0 };
        let mut cursor = self.metadata.cursor(start)?;
        let mut count: u64 = 0;
        while let Some(Position { block, offset }) = cursor.position_before(directory_table)? {
            if count >= u64::from(inode_count) {
                return Err(Error::corrupt(format!("more than the {inode_count} announced")));
            }
            let block = u32::try_from(block.saturating_sub(inode_table));
            let block = block.map_err(|_| Error::corrupt("larger than 4 GiB"))?;
            let reference = InodeRef::new(block, offset);
            let (inode, after_header) = self.inode(reference)?;
            cursor = after_header;
            visit(reference, &inode, &cursor)?;
            self.skip_rest(&inode, &mut cursor)?;
            count = count.saturating_add(1);
        }
        Ok(count)
    }

    /// Skips what follows the fixed part of an inode.
    fn skip_rest(&self, inode: &Inode, cursor: &mut Cursor<'_>) -> Result<()> {
        match &inode.body {
            Body::Regular(body) => cursor.skip(self.blocks.count(body)?.saturating_mul(4)),
            Body::Symlink { len } => {
                let xattr = if inode.is_extended { 4 } else { 0 };
                cursor.skip(u64::from(*len).saturating_add(xattr))
            }
            Body::Directory(body) => {
                for _ in 0..body.index_count {
                    let entry: [u8; 12] = cursor.array()?;
                    let mut reader = Reader::new("directory index", &entry);
                    let (_listing, _block, len) = (reader.u32()?, reader.u32()?, reader.u32()?);
                    cursor.skip(u64::from(len).saturating_add(1))?;
                }
                Ok(())
            }
            Body::Device { .. } | Body::Fifo | Body::Socket => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
