//! What a source tells of the files in it.
//!
//! Owns the words between a source (a folder on a disk, a tree that an archive is read as) and the
//! walk through it; leaves keeping what was found to `placing`.
//! Invariant: a source answers the same questions the same way, whoever asks in which order.

use super::list::Wanted;
use crate::error::Result;
use crate::pack::catalog::{InodeId, Meta, Xattrs};
use crate::vfs::{FileKind, joined};

/// What a source knows a file by: device and inode on a disk, no device and the inode in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct At {
    pub(super) device: u64,
    pub(super) number: u64,
}

/// A folder that is to be listed.
pub(super) struct Folder {
    /// Where it is in its source, without slashes at the ends; empty for the source itself.
    pub(super) path: Box<[u8]>,
    pub(super) at: At,
    /// What the source keeps it under.
    pub(super) key: u64,
    /// What it is in the catalog.
    pub(super) inode: InodeId,
    pub(super) wanted: Wanted,
}

impl Folder {
    /// The path of what has this name in it.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        joined(&self.path, name)
    }
}

/// A name in a folder, and the inode that the listing told of, if it did.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Listed {
    pub(super) name: Box<[u8]>,
    pub(super) number: Option<u64>,
}

/// A file and all that is known of it but its bytes.
pub(super) struct Found {
    pub(super) at: At,
    /// Whether it may have other names, too.
    pub(super) linked: bool,
    /// Without extended attributes, which have no number yet.
    pub(super) meta: Meta,
    pub(super) xattrs: Xattrs,
    pub(super) seen: Seen,
}

/// What a file is.
pub(super) enum Seen {
    /// Whether what is in it is packed, too: not on another file system, if so told.
    Folder {
        entered: bool,
    },
    File {
        size: u64,
        sparse: bool,
    },
    Symlink(Box<[u8]>),
    Device {
        kind: FileKind,
        number: u32,
    },
    Fifo,
    Socket,
}

/// A place that files come from.
pub(super) trait Source: Sync {
    /// The names in a folder, in any order.
    ///
    /// # Errors
    /// Where it can not be listed.
    fn names(&self, folder: &Folder) -> Result<Vec<Listed>>;

    /// What has these names in a folder, one answer for each; `None` of what is not to be packed.
    fn look(&self, folder: &Folder, names: &[Listed]) -> Vec<Result<Option<Found>>>;

    /// What the file of that path is called, for messages.
    fn origin(&self, path: &[u8]) -> String;
}
