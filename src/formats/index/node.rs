//! One name in the tree: what it refers to, its record in an index, and the headers by which it is
//! recognized in its archive.

use std::io::Write;

use crc32fast::Hasher;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::NodeId;
use crate::error::Result;
use crate::formats::bytes::{Reader, index, length};
use crate::vfs::FileKind;

/// Size of a node in an index, bytes.
pub(super) const NODE_LEN: usize = 52;

/// One name in the tree and what it refers to. The fields are ordered without gaps, so that nodes
/// can be kept in a file while the tree is built.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(crate) struct Node {
    pub(crate) seconds: i64,
    /// Size of a file, length of a symbolic link's target, or number of children of a directory.
    pub(crate) size: u64,
    /// By kind: offset in the archive, number of the sparse map, first child, offset of the target
    /// in the names, device number, or the node of a link's target.
    pub(super) content: u64,
    /// Offset of its name in the names.
    pub(super) name: u32,
    /// The parent directory. The root is its own parent. In a pending node: the number of a
    /// `DirectoryId`.
    pub(super) parent: NodeId,
    pub(crate) nanoseconds: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Kind in the upper four bits, permissions in the lower twelve.
    pub(super) mode: u16,
    /// Length of its name in bytes.
    pub(super) name_len: u8,
    /// `Headers` of a file that is stored.
    pub(super) header_blocks: u8,
    pub(super) headers_crc32: u32,
    /// Always 0. Fills the record.
    pub(super) padding: u32,
}

/// What a node refers to, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Stored {
        start: u64,
    },
    /// A file that is stored as it is, after a header of unknown length (ZIP).
    AfterHeader {
        header: u64,
    },
    /// A file or symbolic link whose bytes are described by an entry at this offset (ZIP).
    Described {
        kind: FileKind,
        entry: u64,
    },
    Sparse {
        map: u64,
    },
    Directory {
        first: NodeId,
        count: u32,
    },
    Symlink {
        target: u64,
    },
    Device {
        kind: FileKind,
        number: u32,
    },
    Fifo,
    HardLink {
        target: NodeId,
    },
}

pub(super) const KIND_STORED: u16 = 1;
const KIND_SPARSE: u16 = 2;
const KIND_DIRECTORY: u16 = 3;
const KIND_SYMLINK: u16 = 4;
const KIND_CHAR_DEVICE: u16 = 5;
const KIND_BLOCK_DEVICE: u16 = 6;
const KIND_FIFO: u16 = 7;
pub(super) const KIND_HARD_LINK: u16 = 8;
const KIND_AFTER_HEADER: u16 = 9;
const KIND_DESCRIBED: u16 = 10;
const KIND_DESCRIBED_SYMLINK: u16 = 11;

impl Content {
    fn encode(self) -> (u16, u64) {
        match self {
            Self::Stored { start } => (KIND_STORED, start),
            Self::AfterHeader { header } => (KIND_AFTER_HEADER, header),
            Self::Described { kind: FileKind::Symlink, entry } => (KIND_DESCRIBED_SYMLINK, entry),
            Self::Described { entry, .. } => (KIND_DESCRIBED, entry),
            Self::Sparse { map } => (KIND_SPARSE, map),
            Self::Directory { first, .. } => (KIND_DIRECTORY, u64::from(first)),
            Self::Symlink { target } => (KIND_SYMLINK, target),
            Self::Device { kind: FileKind::BlockDevice, number } => {
                (KIND_BLOCK_DEVICE, u64::from(number))
            }
            Self::Device { number, .. } => (KIND_CHAR_DEVICE, u64::from(number)),
            Self::Fifo => (KIND_FIFO, 0),
            Self::HardLink { target } => (KIND_HARD_LINK, u64::from(target)),
        }
    }
}

impl Node {
    /// The headers before the data of a file that is stored.
    pub(crate) fn headers(&self) -> Headers {
        Headers { blocks: self.header_blocks, crc32: self.headers_crc32 }
    }

    /// Permission, set-id and sticky bits.
    pub(crate) fn permissions(&self) -> u16 {
        self.mode & 0o7777
    }

    /// What it refers to. An unknown kind counts as a stored file.
    pub(crate) fn content(&self) -> Content {
        let id = || NodeId::try_from(self.content).unwrap_or(NodeId::MAX);
        let number = || u32::try_from(self.content).unwrap_or(0);
        match self.mode >> 12 {
            KIND_SPARSE => Content::Sparse { map: self.content },
            KIND_DIRECTORY => {
                Content::Directory { first: id(), count: u32::try_from(self.size).unwrap_or(0) }
            }
            KIND_SYMLINK => Content::Symlink { target: self.content },
            KIND_CHAR_DEVICE => Content::Device { kind: FileKind::CharDevice, number: number() },
            KIND_BLOCK_DEVICE => Content::Device { kind: FileKind::BlockDevice, number: number() },
            KIND_FIFO => Content::Fifo,
            KIND_HARD_LINK => Content::HardLink { target: id() },
            KIND_AFTER_HEADER => Content::AfterHeader { header: self.content },
            KIND_DESCRIBED => Content::Described { kind: FileKind::Regular, entry: self.content },
            KIND_DESCRIBED_SYMLINK => {
                Content::Described { kind: FileKind::Symlink, entry: self.content }
            }
            _ => Content::Stored { start: self.content },
        }
    }

    pub(crate) fn kind(&self) -> FileKind {
        match self.content() {
            Content::Stored { .. }
            | Content::AfterHeader { .. }
            | Content::Sparse { .. }
            | Content::HardLink { .. } => FileKind::Regular,
            Content::Directory { .. } => FileKind::Directory,
            Content::Symlink { .. } => FileKind::Symlink,
            Content::Device { kind, .. } | Content::Described { kind, .. } => kind,
            Content::Fifo => FileKind::Fifo,
        }
    }

    /// Whether an index can hold its kind.
    pub(super) fn is_known(&self) -> bool {
        (KIND_STORED..=KIND_DESCRIBED_SYMLINK).contains(&(self.mode >> 12))
    }

    pub(super) fn set(&mut self, content: Content) {
        let (kind, value) = content.encode();
        self.mode = kind << 12 | self.permissions();
        self.content = value;
    }

    /// The record of this node.
    pub(super) fn to_bytes(self) -> [u8; NODE_LEN] {
        let Self {
            name,
            name_len,
            mode,
            parent,
            nanoseconds,
            seconds,
            uid,
            gid,
            size,
            content,
            header_blocks,
            headers_crc32,
            padding: _,
        } = self;
        let mut bytes = [0; NODE_LEN];
        let mut rest = bytes.as_mut_slice();
        // `rest` has room for all fields.
        let mut put = |field: &[u8]| _ = rest.write_all(field);
        put(&name.to_le_bytes());
        put(&[name_len]);
        put(&mode.to_le_bytes());
        put(&parent.to_le_bytes());
        put(&nanoseconds.to_le_bytes());
        put(&seconds.to_le_bytes());
        put(&uid.to_le_bytes());
        put(&gid.to_le_bytes());
        put(&size.to_le_bytes());
        put(&content.to_le_bytes());
        put(&[header_blocks]);
        put(&headers_crc32.to_le_bytes());
        bytes
    }

    /// Decodes a record.
    pub(super) fn from_bytes(bytes: &[u8; NODE_LEN]) -> Result<Self> {
        let mut reader = Reader::new("node", bytes);
        Ok(Self {
            name: reader.u32()?,
            name_len: reader.array::<1>().map(u8::from_le_bytes)?,
            mode: reader.u16()?,
            parent: reader.u32()?,
            // `timespec` allows no larger value.
            nanoseconds: reader.u32()?.min(999_999_999),
            seconds: reader.array().map(i64::from_le_bytes)?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            size: reader.u64()?,
            content: reader.u64()?,
            header_blocks: reader.array::<1>().map(u8::from_le_bytes)?,
            headers_crc32: reader.u32()?,
            padding: 0,
        })
    }

    /// Its name, in `bytes`, which are all names.
    pub(super) fn name_in<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        let start = index(self.name);
        bytes.get(start..start.saturating_add(usize::from(self.name_len))).unwrap_or_default()
    }
}

/// Size of a block of headers, bytes.
const BLOCK: usize = 512;

/// The blocks before the data of a member. Of more than 255 blocks, only the last ones count.
///
/// An index that was made of another file may name a position at which there is another member. So
/// a node has the CRC-32 of the blocks that end where the data starts: the header with name, size
/// and time, the extensions before it, and the map of a sparse file. One read gets them with the
/// data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers {
    /// Number of blocks. 0 if nothing is known.
    pub(super) blocks: u8,
    pub(super) crc32: u32,
}

impl Headers {
    /// Their length in bytes.
    pub(crate) fn len(self) -> usize {
        usize::from(self.blocks).saturating_mul(BLOCK)
    }

    /// The record in an index.
    pub(super) fn to_bytes(self) -> [u8; 5] {
        let [a, b, c, d] = self.crc32.to_le_bytes();
        [self.blocks, a, b, c, d]
    }

    /// Decodes the record.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let [blocks] = reader.array()?;
        Ok(Self { blocks, crc32: reader.u32()? })
    }

    /// Whether `bytes` are these headers.
    pub(crate) fn are(self, bytes: &[u8]) -> bool {
        bytes.len() == self.len() && crc32fast::hash(bytes) == self.crc32
    }
}

/// Headers that a scan reads one after the other.
pub(crate) struct HeaderRun {
    hasher: Hasher,
    blocks: u8,
    end: u64,
}

impl HeaderRun {
    /// Headers that start at `start`.
    pub(crate) fn new(start: u64) -> Self {
        Self { hasher: Hasher::new(), blocks: 0, end: start }
    }

    /// The offset after the last header.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Appends whole blocks.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.end = self.end.saturating_add(length(bytes.len()));
        let most = usize::from(u8::MAX).saturating_mul(BLOCK);
        let bytes = bytes.get(bytes.len().saturating_sub(most)..).unwrap_or_default();
        let blocks = u8::try_from(bytes.len().div_euclid(BLOCK)).unwrap_or(u8::MAX);
        match self.blocks.checked_add(blocks) {
            Some(sum) => self.blocks = sum,
            None => (self.hasher, self.blocks) = (Hasher::new(), blocks),
        }
        self.hasher.update(bytes);
    }

    /// The headers so far.
    pub(crate) fn headers(&self) -> Headers {
        Headers { blocks: self.blocks, crc32: self.hasher.clone().finalize() }
    }
}
