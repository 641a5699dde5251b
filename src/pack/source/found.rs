//! What a source reports about its files, for the walk.
//!
//! Invariant: a source gives the same answers in any order of calls.

use super::selection::Wanted;
use crate::error::Result;
use crate::pack::catalog::{InodeId, Meta, Xattrs};
use crate::vfs::{FileKind, joined};

/// Whether extended attributes are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrRule {
    /// They are packed, except those that describe how a file system stores the file.
    #[default]
    Pack,
    /// They are left out.
    Omit,
}

/// Identity of a file in its source: device and inode on a disk; in an archive device 0 and the
/// inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) number: u64,
}

/// A directory to be listed.
pub(super) struct Directory {
    /// Its path in the source, without slashes at the ends; empty for the source itself.
    pub(super) path: Box<[u8]>,
    pub(super) id: FileId,
    /// Its key in the source.
    pub(super) key: u64,
    /// Its inode in the catalog.
    pub(super) inode: InodeId,
    pub(super) wanted: Wanted,
}

impl Directory {
    /// The path of the entry `name`.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        joined(&self.path, name)
    }
}

/// A name in a directory, and the inode number if the listing reported it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Listed {
    pub(super) name: Box<[u8]>,
    pub(super) number: Option<u64>,
}

/// A file with everything known about it except its bytes.
pub(super) struct Found {
    pub(super) id: FileId,
    /// Whether it may have other names.
    pub(super) linked: bool,
    /// Attributes without the number of the extended attributes, which is assigned later.
    pub(super) meta: Meta,
    pub(super) xattrs: Xattrs,
    pub(super) kind: FoundKind,
}

/// The kind of a file, with what only that kind has.
pub(super) enum FoundKind {
    /// `entered` is whether the contents are packed. They are not on another file system with
    /// `OtherMounts::Skip`.
    Directory {
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

/// A source of files.
pub(super) trait Source: Sync {
    /// The names in a directory, in any order.
    fn names(&self, directory: &Directory) -> Result<Vec<Listed>>;

    /// The files with these names, one result for each; `None` for a file that is not packed.
    fn examine(&self, directory: &Directory, names: &[Listed]) -> Vec<Result<Option<Found>>>;

    /// The path of a file for messages.
    fn origin(&self, path: &[u8]) -> String;
}

/// A path below `directory` for messages.
pub(super) fn display_path(directory: &[u8], path: &[u8]) -> String {
    let bytes = match directory {
        _ if path.is_empty() => directory.to_vec(),
        _ if directory.ends_with(b"/") => [directory, path].concat(),
        _ => joined(directory, path),
    };
    String::from_utf8_lossy(&bytes).into_owned()
}
