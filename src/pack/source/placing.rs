//! What sources report about their files, and how that comes into the catalog.
//!
//! It leaves out excluded files, keeps hard links, moves files as the map says, and chooses the
//! attributes of the root if no single source provides them.
//!
//! Invariant: the result depends only on the sources and their order.

use std::collections::HashMap;

use super::map::PathMap;
use super::selection::{Exclusions, Wanted};
use crate::error::{Error, Kind, Result};
use crate::pack::catalog::{
    Builder, Catalog, Content, ContentId, Inode, InodeId, InodeKind, Meta, Owner, Xattrs,
};
use crate::vfs::{FileKind, Name, Timestamp, joined};

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

pub(super) struct Directory {
    /// Its path in the source, without slashes at the ends; empty for the source itself.
    pub(super) path: Box<[u8]>,
    pub(super) id: FileId,
    pub(super) key: u64,
    pub(super) inode: InodeId,
    pub(super) wanted: Wanted,
}

impl Directory {
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

/// Where a source goes in the catalog.
#[derive(Clone, Copy)]
pub(super) struct Destination<'p> {
    /// The path of the source in the catalog, empty for the root.
    pub(super) path: &'p [u8],
    /// The number of the source, for contents.
    pub(super) source: u32,
    /// Equal device and inode numbers mean the same file in all sources with this number; 0 for
    /// disks.
    pub(super) space: u32,
}

pub(super) struct CatalogFiller<'m> {
    builder: Builder,
    map: Option<&'m mut PathMap>,
    exclusions: Exclusions,
    excluded: u64,
    links: HashMap<(u32, FileId), InodeId>,
    /// The newest time of the entries of the root.
    newest: Timestamp,
    /// The attributes of the root, if a source provides them.
    root: Option<Meta>,
    /// Number of sources that did.
    in_root: usize,
    sources: u32,
}

impl<'m> CatalogFiller<'m> {
    /// An empty catalog. `map` moves files to other paths.
    pub(super) fn new(map: Option<&'m mut PathMap>, exclusions: Exclusions) -> Self {
        Self {
            builder: Builder::new(default_meta(OLDEST)),
            map,
            exclusions,
            excluded: 0,
            links: HashMap::new(),
            newest: OLDEST,
            root: None,
            in_root: 0,
            sources: 0,
        }
    }

    /// The number that the next source of bytes will get.
    pub(super) fn next_source(&self) -> u32 {
        self.sources
    }

    pub(super) fn source(&mut self, content: Box<dyn Content>) {
        self.builder.source(content);
        self.sources += 1;
    }

    /// Whether the file at `path` below `parent`, a directory of the archive, is left out. Counts
    /// it if so.
    pub(super) fn excludes(&mut self, parent: &[u8], path: &[u8], is_directory: bool) -> bool {
        // Usually there are no patterns, and then each file costs no path.
        let excludes = !self.exclusions.is_empty()
            && self.exclusions.excludes(&joined(parent, path), is_directory);
        self.excluded += u64::from(excludes);
        excludes
    }

    /// Number of files and directories that were left out.
    pub(super) fn excluded(&self) -> u64 {
        self.excluded
    }

    /// The directory that holds a source: the one called `name`, or the root. It gets the
    /// attributes of the source.
    pub(super) fn top(&mut self, name: Option<Name<'_>>, found: Found) -> InodeId {
        let meta = self.meta(&found.meta, found.xattrs);
        match name {
            Some(name) => {
                self.newest = later(self.newest, meta.modified);
                self.builder.directory(InodeId::ROOT, name, meta)
            }
            None => {
                self.root = Some(meta);
                self.in_root += 1;
                InodeId::ROOT
            }
        }
    }

    /// Adds a file found in `directory` and returns its inode. `key` is its key in the source of
    /// bytes.
    pub(super) fn add(
        &mut self,
        destination: &Destination<'_>,
        directory: &Directory,
        name: &[u8],
        found: Found,
        key: u64,
    ) -> Result<InodeId> {
        let Some(name) = Name::parse(name) else {
            return Err(Error::new(Kind::InvalidInput, "not a valid name on Linux"));
        };
        let is_directory = matches!(found.kind, FoundKind::Directory { .. });
        let line = match &mut self.map {
            Some(map) => {
                let path = joined(destination.path, &directory.path_of(name.as_bytes()));
                map.line(&path, is_directory)
            }
            None => None,
        };
        if directory.inode == InodeId::ROOT && line.is_none() {
            self.newest = later(self.newest, found.meta.modified);
        }
        if is_directory {
            let meta = self.meta(&found.meta, found.xattrs);
            return Ok(self.builder.directory(directory.inode, name, meta));
        }
        let same = found.linked.then_some((destination.space, found.id));
        if let Some(&inode) = same.and_then(|same| self.links.get(&same)) {
            match (line, &mut self.map) {
                (Some(line), Some(map)) => map.moved(line, inode, found.meta.modified),
                _ => self.builder.link(directory.inode, name, inode),
            }
            return Ok(inode);
        }
        let kind = match &found.kind {
            &FoundKind::File { size, sparse } => {
                let content = ContentId { source: destination.source, key };
                InodeKind::File { size, content, sparse }
            }
            FoundKind::Symlink(target) => InodeKind::Symlink(target),
            &FoundKind::Device { kind, number } => InodeKind::Device { kind, number },
            FoundKind::Fifo | FoundKind::Directory { .. } => InodeKind::Fifo,
            FoundKind::Socket => InodeKind::Socket,
        };
        let meta = self.meta(&found.meta, found.xattrs);
        let inode = Inode { meta, kind };
        let inode = match (line, &mut self.map) {
            (Some(line), Some(map)) => {
                let inode = self.builder.nameless(inode);
                map.moved(line, inode, found.meta.modified);
                inode
            }
            _ => self.builder.add(directory.inode, name, inode),
        };
        if let Some(same) = same {
            self.links.insert(same, inode);
        }
        Ok(inode)
    }

    /// Moves files as the map says and finishes the catalog. The root gets the attributes of its
    /// source if there is only one.
    pub(super) fn finish(mut self, owner: Owner) -> Result<Catalog> {
        self.move_files()?;
        let root =
            self.root.filter(|_| self.in_root == 1).unwrap_or_else(|| default_meta(self.newest));
        self.builder.set_meta(InodeId::ROOT, root);
        self.builder.finish(owner)
    }

    fn move_files(&mut self) -> Result<()> {
        let Some(map) = self.map.take() else {
            return Ok(());
        };
        map.check()?;
        // Directories that no source has are as old as the newest file in them.
        let mut ages: HashMap<InodeId, Timestamp> = HashMap::new();
        for (path, inode, modified) in map.moves() {
            let mut parent = InodeId::ROOT;
            let mut parts = path.split(|&byte| byte == b'/').filter_map(Name::parse).peekable();
            let mut ancestors = Vec::new();
            while let Some(name) = parts.next() {
                if parts.peek().is_none() {
                    self.builder.link(parent, name, inode);
                    break;
                }
                let directory = self.builder.find_directory(parent, name).unwrap_or_else(|| {
                    let directory = self.builder.directory(parent, name, default_meta(OLDEST));
                    ages.insert(directory, OLDEST);
                    directory
                });
                ancestors.push(directory);
                parent = directory;
            }
            for directory in &ancestors {
                if let Some(age) = ages.get_mut(directory) {
                    *age = later(*age, modified);
                }
            }
            // The entry of the root is the file itself or a new directory for it.
            if ancestors.first().is_none_or(|directory| ages.contains_key(directory)) {
                self.newest = later(self.newest, modified);
            }
        }
        for (directory, age) in ages {
            self.builder.set_meta(directory, default_meta(age));
        }
        Ok(())
    }

    fn meta(&mut self, meta: &Meta, xattrs: Vec<(Vec<u8>, Vec<u8>)>) -> Meta {
        Meta { xattrs: self.builder.xattrs(xattrs), ..*meta }
    }
}

/// The time of an empty directory that no source has.
const OLDEST: Timestamp = Timestamp { seconds: 0, nanoseconds: 0 };

/// The attributes of a directory that no source has. Root owns it, so that the archive does not
/// depend on who packs.
fn default_meta(modified: Timestamp) -> Meta {
    Meta { permissions: 0o755, uid: 0, gid: 0, modified, xattrs: None }
}

fn later(a: Timestamp, b: Timestamp) -> Timestamp {
    let order = |time: &Timestamp| (time.seconds, time.nanoseconds);
    if order(&b) > order(&a) { b } else { a }
}
