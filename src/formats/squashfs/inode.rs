//! Inodes: references to them, and the fourteen on-disk records (basic and extended forms of seven
//! kinds; squashfs_fs.h).
//!
//! Invariant: a parsed inode holds no sentinel values; what is absent is `None`.

use super::metadata::{Cursor, Metadata, Position};
use crate::error::{Error, Result};
use crate::formats::bytes::Reader;
use crate::formats::limits::{FILE_SIZE_MAX, SYMLINK_MAX};
use crate::vfs::FileKind;

/// Field value for no fragment, and for no extended attributes.
const NONE: u32 = u32::MAX;

/// The last inode type of the basic form.
const LAST_BASIC: u16 = 7;

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

/// A parsed inode.
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
