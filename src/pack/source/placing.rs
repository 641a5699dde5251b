//! Adds the files of all sources to the catalog.
//!
//! It keeps hard links, moves files as the map says, and chooses the attributes of the root if no
//! single source provides them.
//!
//! Invariant: the result depends only on the sources and their order.

use std::collections::HashMap;

use super::found::{At, Folder, Found, Seen};
use super::map::Map;
use crate::error::{Error, Kind, Result};
use crate::pack::catalog::{Builder, Catalog, Inode, InodeId, Meta, Owner, What};
use crate::pack::content::{Content, ContentId};
use crate::vfs::{Name, Timestamp, joined};

/// Where a source goes in the catalog.
#[derive(Clone, Copy)]
pub(super) struct Place<'p> {
    /// The path of the source in the catalog, empty for the root.
    pub(super) above: &'p [u8],
    /// The number of the source, for contents.
    pub(super) source: u32,
    /// Equal device and inode numbers mean the same file in all sources with this number; 0 for
    /// disks.
    pub(super) space: u32,
}

/// A catalog that is being filled.
pub(super) struct Placing<'m> {
    builder: Builder,
    map: Option<&'m mut Map>,
    /// Files that may have several names.
    links: HashMap<(u32, At), InodeId>,
    /// The newest time of the entries of the root.
    newest: Timestamp,
    /// The attributes of the root, if a source provides them.
    root: Option<Meta>,
    sources: u32,
}

impl<'m> Placing<'m> {
    /// An empty catalog. `map` moves files to other paths.
    pub(super) fn new(map: Option<&'m mut Map>) -> Self {
        Self {
            builder: Builder::new(made(OLDEST)),
            map,
            links: HashMap::new(),
            newest: OLDEST,
            root: None,
            sources: 0,
        }
    }

    /// The number that the next source of bytes will get.
    pub(super) fn next_source(&self) -> u32 {
        self.sources
    }

    /// Adds a source of bytes.
    pub(super) fn source(&mut self, content: Box<dyn Content>) {
        self.builder.source(content);
        self.sources += 1;
    }

    /// The directory that holds a source: the one called `name`, or the root. It gets the
    /// attributes of the source.
    pub(super) fn top(&mut self, name: Option<Name<'_>>, found: Found) -> InodeId {
        let meta = self.meta(&found.meta, found.xattrs);
        match name {
            Some(name) => {
                self.newest = later(self.newest, meta.modified);
                self.builder.folder(InodeId::ROOT, name, meta)
            }
            None => {
                self.root = Some(meta);
                InodeId::ROOT
            }
        }
    }

    /// Adds a file found in `directory` and returns its inode. `key` is its key in the source of
    /// bytes.
    ///
    /// # Errors
    /// `InvalidInput` if its name is invalid.
    pub(super) fn place(
        &mut self,
        place: &Place<'_>,
        folder: &Folder,
        name: &[u8],
        found: Found,
        key: u64,
    ) -> Result<InodeId> {
        let Some(name) = Name::parse(name) else {
            return Err(Error::new(Kind::InvalidInput, "its name is none that Linux can show"));
        };
        let is_folder = matches!(found.seen, Seen::Folder { .. });
        let line = match &mut self.map {
            Some(map) => {
                let path = joined(place.above, &folder.path_of(name.as_bytes()));
                map.line(&path, is_folder)
            }
            None => None,
        };
        if folder.inode == InodeId::ROOT && line.is_none() {
            self.newest = later(self.newest, found.meta.modified);
        }
        if is_folder {
            let meta = self.meta(&found.meta, found.xattrs);
            return Ok(self.builder.folder(folder.inode, name, meta));
        }
        let same = found.linked.then_some((place.space, found.at));
        if let Some(&inode) = same.and_then(|same| self.links.get(&same)) {
            match (line, &mut self.map) {
                (Some(line), Some(map)) => map.moved(line, inode, found.meta.modified),
                _ => self.builder.link(folder.inode, name, inode),
            }
            return Ok(inode);
        }
        let what = match found.seen {
            Seen::File { size, sparse } => {
                let content = ContentId { source: place.source, key };
                What::File { size, content, sparse }
            }
            Seen::Symlink(target) => What::Symlink(target),
            Seen::Device { kind, number } => What::Device { kind, number },
            Seen::Fifo | Seen::Folder { .. } => What::Fifo,
            Seen::Socket => What::Socket,
        };
        let meta = self.meta(&found.meta, found.xattrs);
        let inode = Inode { meta, what };
        let inode = match (line, &mut self.map) {
            (Some(line), Some(map)) => {
                let inode = self.builder.nameless(inode);
                map.moved(line, inode, found.meta.modified);
                inode
            }
            _ => self.builder.add(folder.inode, name, inode),
        };
        if let Some(same) = same {
            self.links.insert(same, inode);
        }
        Ok(inode)
    }

    /// Moves files as the map says and finishes the catalog. The root gets the attributes of its
    /// source if there is only one.
    ///
    /// # Errors
    /// `InvalidInput` if the map does not match the files.
    pub(super) fn finish(mut self, alone: bool, owner: Owner) -> Result<Catalog> {
        self.move_files()?;
        let root = self.root.filter(|_| alone).unwrap_or_else(|| made(self.newest));
        self.builder.set_meta(InodeId::ROOT, root);
        Ok(self.builder.finish(owner))
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
            let mut above = Vec::new();
            while let Some(name) = parts.next() {
                if parts.peek().is_none() {
                    self.builder.link(parent, name, inode);
                    break;
                }
                let folder = self.builder.find_folder(parent, name).unwrap_or_else(|| {
                    let folder = self.builder.folder(parent, name, made(OLDEST));
                    ages.insert(folder, OLDEST);
                    folder
                });
                above.push(folder);
                parent = folder;
            }
            for folder in &above {
                if let Some(age) = ages.get_mut(folder) {
                    *age = later(*age, modified);
                }
            }
            // The entry of the root is the file itself or a new directory for it.
            if above.first().is_none_or(|folder| ages.contains_key(folder)) {
                self.newest = later(self.newest, modified);
            }
        }
        for (folder, age) in ages {
            self.builder.set_meta(folder, made(age));
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
fn made(modified: Timestamp) -> Meta {
    Meta { permissions: 0o755, uid: 0, gid: 0, modified, xattrs: None }
}

fn later(a: Timestamp, b: Timestamp) -> Timestamp {
    let order = |time: &Timestamp| (time.seconds, time.nanoseconds);
    if order(&b) > order(&a) { b } else { a }
}
