//! One name of the tree: what it stands for, and its record in an index.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::NodeId;
use crate::error::Result;
use crate::formats::bytes::{Reader, index};
use crate::vfs::FileKind;

/// Bytes of a node in an index.
pub(super) const NODE: usize = 47;

/// One name of the tree and what it stands for. The order of the fields leaves no gaps, so that
/// nodes can be kept in a file while the tree is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::formats::tar) struct Node {
    pub(in crate::formats::tar) seconds: i64,
    /// Bytes of a file or of a link's target; children of a directory.
    pub(in crate::formats::tar) size: u64,
    /// By kind: offset in the archive, number of the sparse map, first child, offset of the target
    /// among the names, device number, or the node that this is another name of.
    pub(super) content: u64,
    /// Where its name is among all names.
    pub(super) name: u32,
    /// The directory that it is in; the root is in itself. Of a member that is not in an index yet
    /// the number of a `Folder`.
    pub(super) parent: NodeId,
    pub(in crate::formats::tar) nanoseconds: u32,
    pub(in crate::formats::tar) uid: u32,
    pub(in crate::formats::tar) gid: u32,
    /// Kind in the upper four bits, permissions in the lower twelve.
    pub(super) mode: u16,
    /// Length of its name in bytes.
    pub(super) name_len: u8,
    /// Always 0; fills the record.
    pub(super) padding: u8,
}

/// What a node is, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::formats::tar) enum Content {
    Stored { at: u64 },
    Sparse { map: u64 },
    Folder { first: NodeId, count: u32 },
    Symlink { target: u64 },
    Device { kind: FileKind, number: u32 },
    Fifo,
    Link { target: NodeId },
}

pub(super) const STORED: u16 = 1;
const SPARSE: u16 = 2;
const FOLDER: u16 = 3;
const SYMLINK: u16 = 4;
const CHAR: u16 = 5;
const BLOCK: u16 = 6;
const FIFO: u16 = 7;
pub(super) const LINK: u16 = 8;

impl Content {
    fn pack(self) -> (u16, u64) {
        match self {
            Self::Stored { at } => (STORED, at),
            Self::Sparse { map } => (SPARSE, map),
            Self::Folder { first, .. } => (FOLDER, u64::from(first)),
            Self::Symlink { target } => (SYMLINK, target),
            Self::Device { kind: FileKind::BlockDevice, number } => (BLOCK, u64::from(number)),
            Self::Device { number, .. } => (CHAR, u64::from(number)),
            Self::Fifo => (FIFO, 0),
            Self::Link { target } => (LINK, u64::from(target)),
        }
    }
}

impl Node {
    /// A node without a name that is nowhere.
    pub(super) fn empty() -> Self {
        Self {
            name: 0,
            name_len: 0,
            mode: 0,
            parent: 0,
            nanoseconds: 0,
            seconds: 0,
            uid: 0,
            gid: 0,
            size: 0,
            content: 0,
            padding: 0,
        }
    }

    /// Permission, set-id and sticky bits.
    pub(in crate::formats::tar) fn permissions(&self) -> u16 {
        self.mode & 0o7777
    }

    /// What it is; a kind that no index holds is taken for a file that is nowhere.
    pub(in crate::formats::tar) fn content(&self) -> Content {
        let id = || NodeId::try_from(self.content).unwrap_or(NodeId::MAX);
        let number = || u32::try_from(self.content).unwrap_or(0);
        match self.mode >> 12 {
            SPARSE => Content::Sparse { map: self.content },
            FOLDER => Content::Folder { first: id(), count: u32::try_from(self.size).unwrap_or(0) },
            SYMLINK => Content::Symlink { target: self.content },
            CHAR => Content::Device { kind: FileKind::CharDevice, number: number() },
            BLOCK => Content::Device { kind: FileKind::BlockDevice, number: number() },
            FIFO => Content::Fifo,
            LINK => Content::Link { target: id() },
            _ => Content::Stored { at: self.content },
        }
    }

    pub(in crate::formats::tar) fn kind(&self) -> FileKind {
        match self.content() {
            Content::Stored { .. } | Content::Sparse { .. } | Content::Link { .. } => {
                FileKind::Regular
            }
            Content::Folder { .. } => FileKind::Directory,
            Content::Symlink { .. } => FileKind::Symlink,
            Content::Device { kind, .. } => kind,
            Content::Fifo => FileKind::Fifo,
        }
    }

    /// Whether its kind is one that an index can hold.
    pub(super) fn is_known(&self) -> bool {
        (STORED..=LINK).contains(&(self.mode >> 12))
    }

    pub(super) fn set(&mut self, content: Content) {
        let (kind, packed) = content.pack();
        self.mode = kind << 12 | self.permissions();
        self.content = packed;
    }

    /// Its record.
    pub(super) fn encoded(&self) -> [u8; NODE] {
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
            padding: _,
        } = self;
        let mut bytes = [0; NODE];
        let mut rest = bytes.as_mut_slice();
        let mut put = |field: &[u8]| {
            if let Some((here, behind)) =
                std::mem::take(&mut rest).split_at_mut_checked(field.len())
            {
                here.copy_from_slice(field);
                rest = behind;
            }
        };
        put(&name.to_le_bytes());
        put(&[*name_len]);
        put(&mode.to_le_bytes());
        put(&parent.to_le_bytes());
        put(&nanoseconds.to_le_bytes());
        put(&seconds.to_le_bytes());
        put(&uid.to_le_bytes());
        put(&gid.to_le_bytes());
        put(&size.to_le_bytes());
        put(&content.to_le_bytes());
        bytes
    }

    /// The node in a record.
    pub(super) fn decoded(bytes: &[u8; NODE]) -> Result<Self> {
        let mut reader = Reader::new("node", bytes);
        Ok(Self {
            name: reader.u32()?,
            name_len: reader.array::<1>().map(u8::from_le_bytes)?,
            mode: reader.u16()?,
            parent: reader.u32()?,
            // More than a second of nanoseconds could not be shown.
            nanoseconds: reader.u32()?.min(999_999_999),
            seconds: reader.array().map(i64::from_le_bytes)?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            size: reader.u64()?,
            content: reader.u64()?,
            padding: 0,
        })
    }

    /// The part of `bytes`, all names, that is its own.
    pub(super) fn name_in<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        let start = index(self.name);
        bytes.get(start..start.saturating_add(usize::from(self.name_len))).unwrap_or_default()
    }
}
