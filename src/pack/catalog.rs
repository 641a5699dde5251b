//! Everything that is to be packed except the bytes of files: names, attributes and links.
//!
//! `source` finds the files, and a `Content` reads their bytes. The catalog merges all sources into
//! one tree and sorts it.
//!
//! Invariants: the entries of a directory ascend by the bytes of their names, each name once.
//! `links` is the number of names of an inode. The order in which a disk lists files has no effect.
//!
//! Memory: about 200 bytes a file, including its name and what the sources keep; 260 MB for the 1.3
//! million files of ImageNet.

use std::collections::HashMap;
use std::ops::Range;

use crate::error::Result;
use crate::vfs::{FileKind, Name, Timestamp};

/// The number of an inode in a catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct InodeId(pub(crate) u32);

impl InodeId {
    pub(crate) const ROOT: Self = Self(0);

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Extended attributes, ascending: names with their prefix (`user.x`) and values.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Attributes that every kind of file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Permission, set-id and sticky bits (mode & 07777).
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: Timestamp,
    /// The number of its set of extended attributes (`Catalog::xattrs`), if it has any.
    pub(crate) xattrs: Option<u32>,
}

/// What an inode is, and what only that kind of inode has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InodeKind {
    /// A directory: the number of its list of entries.
    Directory(u32),
    /// A regular file; `sparse` if it may have holes.
    File {
        size: u64,
        content: ContentId,
        sparse: bool,
    },
    Symlink(Box<[u8]>),
    /// A block or character device; `number` is in the kernel's 32-bit encoding.
    Device {
        kind: FileKind,
        number: u32,
    },
    Fifo,
    Socket,
}

/// A file without its names.
#[derive(Clone, Debug)]
pub(crate) struct Inode {
    pub(crate) meta: Meta,
    pub(crate) kind: InodeKind,
}

impl Inode {
    pub(crate) fn file_kind(&self) -> FileKind {
        match self.kind {
            InodeKind::Directory(_) => FileKind::Directory,
            InodeKind::File { .. } => FileKind::Regular,
            InodeKind::Symlink(_) => FileKind::Symlink,
            InodeKind::Device { kind, .. } => kind,
            InodeKind::Fifo => FileKind::Fifo,
            InodeKind::Socket => FileKind::Socket,
        }
    }

    /// Size in bytes of a regular file; 0 for any other kind.
    pub(crate) fn size(&self) -> u64 {
        match self.kind {
            InodeKind::File { size, .. } => size,
            _ => 0,
        }
    }
}

/// A name in a directory: its offset and length in `names`, and its inode.
#[derive(Clone, Copy, Debug)]
struct Entry {
    offset: usize,
    len: u8,
    inode: InodeId,
}

/// A finished catalog.
#[derive(Default)]
pub(crate) struct Catalog {
    inodes: Vec<Inode>,
    links: Vec<u32>,
    directories: Vec<Vec<Entry>>,
    names: Vec<u8>,
    xattrs: Vec<Xattrs>,
    contents: Vec<Box<dyn Content>>,
    /// Number of names hidden by the same name in a later source.
    pub(crate) hidden: u64,
    /// The path of one of them, without a leading slash.
    pub(crate) hidden_path: Vec<u8>,
}

impl Catalog {
    pub(crate) fn inode(&self, id: InodeId) -> &Inode {
        &self.inodes[id.index()]
    }

    /// Number of inodes. Some may have no name (`links` is 0).
    pub(crate) fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Number of names of an inode; 1 for a directory, although stat(2) reports more.
    pub(crate) fn links(&self, id: InodeId) -> u32 {
        self.links[id.index()]
    }

    /// All inodes that have a name, by number.
    pub(crate) fn named(&self) -> impl Iterator<Item = InodeId> {
        let all = (0..self.len()).map(|nth| InodeId(nth as u32));
        all.filter(|&id| self.links(id) > 0)
    }

    /// The entries of a directory by the bytes of their names; empty for other inodes.
    pub(crate) fn entries(
        &self,
        directory: InodeId,
    ) -> impl ExactSizeIterator<Item = (&[u8], InodeId)> {
        let entries = match self.inode(directory).kind {
            InodeKind::Directory(number) => self.directories[number as usize].as_slice(),
            _ => &[],
        };
        entries.iter().map(|entry| (self.name(entry), entry.inode))
    }

    fn name(&self, entry: &Entry) -> &[u8] {
        &self.names[entry.offset..entry.offset + usize::from(entry.len)]
    }

    pub(crate) fn xattrs(&self, number: u32) -> &[(Vec<u8>, Vec<u8>)] {
        &self.xattrs[number as usize]
    }

    pub(crate) fn content(&self, id: ContentId) -> &dyn Content {
        self.contents[id.source as usize].as_ref()
    }

    /// The entry of a directory with this index in the order of names.
    pub(crate) fn entry(&self, directory: InodeId, nth: usize) -> Option<(&[u8], InodeId)> {
        let InodeKind::Directory(number) = self.inode(directory).kind else { return None };
        let entry = self.directories[number as usize].get(nth)?;
        Some((self.name(entry), entry.inode))
    }

    /// The path of a file in its source, for messages.
    pub(crate) fn origin(&self, id: InodeId) -> String {
        match self.inode(id).kind {
            InodeKind::File { content, .. } => self.content(content).origin(content.key),
            _ => String::new(),
        }
    }
}

pub(crate) struct Builder {
    /// The entries of its directories are unsorted, and `links` is empty.
    catalog: Catalog,
    /// Directories by parent and name, to merge those of several sources.
    known: HashMap<(InodeId, Box<[u8]>), InodeId>,
    xattr_numbers: HashMap<Xattrs, u32>,
}

impl Builder {
    /// An empty root directory with these attributes.
    pub(crate) fn new(root: Meta) -> Self {
        let root = Inode { meta: root, kind: InodeKind::Directory(0) };
        let catalog =
            Catalog { inodes: vec![root], directories: vec![Vec::new()], ..Catalog::default() };
        Self { catalog, known: HashMap::new(), xattr_numbers: HashMap::new() }
    }

    /// Adds a source of bytes. Its number is the `source` of its `ContentId`s.
    pub(crate) fn source(&mut self, content: Box<dyn Content>) -> u32 {
        self.catalog.contents.push(content);
        number(self.catalog.contents.len() - 1)
    }

    /// The number of a set of extended attributes, for `Meta`; `None` if the set is empty.
    pub(crate) fn xattrs(&mut self, mut set: Xattrs) -> Option<u32> {
        if set.is_empty() {
            return None;
        }
        set.sort();
        let next = number(self.catalog.xattrs.len());
        let found = *self.xattr_numbers.entry(set.clone()).or_insert(next);
        if found == next {
            self.catalog.xattrs.push(set);
        }
        Some(found)
    }

    /// Adds the directory `name` to `parent`, or replaces the attributes of an existing one.
    pub(crate) fn directory(&mut self, parent: InodeId, name: Name<'_>, meta: Meta) -> InodeId {
        let key = (parent, name.as_bytes().into());
        if let Some(&found) = self.known.get(&key) {
            self.catalog.inodes[found.index()].meta = meta;
            // Hides whatever another source added under this name in between.
            self.link(parent, name, found);
            return found;
        }
        let entries = number(self.catalog.directories.len());
        self.catalog.directories.push(Vec::new());
        let id = self.add(parent, name, Inode { meta, kind: InodeKind::Directory(entries) });
        self.known.insert(key, id);
        id
    }

    /// The directory `name` in `parent`, if a source added it.
    pub(crate) fn find_directory(&self, parent: InodeId, name: Name<'_>) -> Option<InodeId> {
        self.known.get(&(parent, name.as_bytes().into())).copied()
    }

    /// Replaces the attributes of an inode, for example those of the root.
    pub(crate) fn set_meta(&mut self, id: InodeId, meta: Meta) {
        self.catalog.inodes[id.index()].meta = meta;
    }

    /// Adds a file that is not a directory. It hides an earlier one with the same name.
    pub(crate) fn add(&mut self, parent: InodeId, name: Name<'_>, inode: Inode) -> InodeId {
        let id = self.nameless(inode);
        self.link(parent, name, id);
        id
    }

    /// Adds a file without a name; `link` names it later.
    pub(crate) fn nameless(&mut self, inode: Inode) -> InodeId {
        let id = InodeId(number(self.catalog.inodes.len()));
        self.catalog.inodes.push(inode);
        id
    }

    /// Adds a name for an inode.
    pub(crate) fn link(&mut self, parent: InodeId, name: Name<'_>, inode: InodeId) {
        let InodeKind::Directory(entries) = self.catalog.inodes[parent.index()].kind else {
            return;
        };
        let bytes = name.as_bytes();
        // A name is at most 255 bytes long.
        let entry = Entry { offset: self.catalog.names.len(), len: bytes.len() as u8, inode };
        self.catalog.names.extend_from_slice(bytes);
        self.catalog.directories[entries as usize].push(entry);
    }

    /// Sorts everything. `owner` replaces the owner of all files where it is set.
    pub(crate) fn finish(self, owner: Owner) -> Catalog {
        let mut catalog = self.catalog;
        let mut hidden_entry = None;
        let mut directories = std::mem::take(&mut catalog.directories);
        for (number, directory) in directories.iter_mut().enumerate() {
            directory.sort_by(|a, b| catalog.name(a).cmp(catalog.name(b)));
            // The sort is stable, so the last of equal names was added last. A directory added
            // twice is one inode and hides nothing.
            let mut unique: Vec<Entry> = Vec::with_capacity(directory.len());
            for &entry in directory.iter() {
                match unique.last_mut() {
                    Some(last) if catalog.name(last) == catalog.name(&entry) => {
                        if last.inode != entry.inode {
                            catalog.hidden += 1;
                            hidden_entry = hidden_entry.or(Some((number, entry)));
                        }
                        *last = entry;
                    }
                    _ => unique.push(entry),
                }
            }
            *directory = unique;
        }
        catalog.directories = directories;
        // Counts only names that the root leads to.
        let mut links = vec![0_u32; catalog.len()];
        links[0] = 1;
        let mut waiting = vec![InodeId::ROOT];
        while let Some(id) = waiting.pop() {
            for (_, entry) in catalog.entries(id) {
                links[entry.index()] += 1;
                waiting.push(entry);
            }
        }
        catalog.links = links;
        for inode in &mut catalog.inodes {
            inode.meta.uid = owner.uid.unwrap_or(inode.meta.uid);
            inode.meta.gid = owner.gid.unwrap_or(inode.meta.gid);
        }
        if let Some((directory, entry)) = hidden_entry {
            catalog.hidden_path = catalog.path(directory, entry);
        }
        catalog
    }
}

/// The owner of all files; `None` keeps the owner of each file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
}

/// Converts an index to 32 bits. 2^32 inodes would take 300 GB of memory here.
fn number(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32 inodes fit into memory")
}

/// The bytes of one file: the number of its source, and its key in that source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ContentId {
    pub(crate) source: u32,
    pub(crate) key: u64,
}

/// A source of bytes: a directory or an opened archive. A read returns as many bytes as the catalog
/// says, or an error because the file changed. All methods may be called from several threads at
/// once.
pub(crate) trait Content: Send + Sync {
    /// Fills `buffer` with the bytes of the file from `offset`.
    ///
    /// Fails with `Changed` if the file was removed or has another size or time than when it was
    /// listed; `Io`, and the errors of the source.
    fn read(&self, key: u64, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// The next range of stored bytes at or after `offset`; `None` if the rest of the file is a
    /// hole. Called only for files that are `sparse`.
    fn next_data(&self, key: u64, offset: u64) -> Result<Option<Range<u64>>>;

    /// Offset of the bytes in the source. Only the order of these offsets matters. A source returns
    /// 0 for every file if no order is better than that of names.
    fn data_offset(&self, key: u64) -> u64 {
        let _ = key;
        0
    }

    /// The CRC-32 of the file, if its source records one that `read` does not check.
    fn stored_crc32(&self, key: u64) -> Result<Option<u32>> {
        let _ = key;
        Ok(None)
    }

    /// The path of the file in its source, for messages.
    fn origin(&self, key: u64) -> String;
}

impl Catalog {
    /// The path of `entry` in the directory at `number`. Searches all directories once for each
    /// component.
    fn path(&self, mut number: usize, entry: Entry) -> Vec<u8> {
        let is_shown_in = |entry: &Entry, number: usize| match self.inode(entry.inode).kind {
            InodeKind::Directory(entries) => entries as usize == number,
            _ => false,
        };
        let mut components = vec![self.name(&entry)];
        // A path has fewer components than there are directories.
        for _ in 0..self.directories.len() {
            let parent = self.directories.iter().enumerate().find_map(|(parent, entries)| {
                Some((parent, entries.iter().find(|entry| is_shown_in(entry, number))?))
            });
            let Some((parent, entry)) = parent else { break };
            components.push(self.name(entry));
            number = parent;
        }
        components.reverse();
        components.join(&b'/')
    }

    /// Visits everything from the root on, a directory before its entries, in the order of names.
    /// `visit` gets the path without a leading slash (empty for the root) and the inode. An inode
    /// with several names is visited once for each name.
    pub(crate) fn walk(&self, visit: &mut dyn FnMut(&[u8], InodeId)) {
        visit(b"", InodeId::ROOT);
        let mut walk = Walk::new(self);
        while let Some((path, id)) = walk.next() {
            visit(path, id);
        }
    }

    /// Regular files, each once, in the order in which their bytes are written. Directories come in
    /// the order of `walk`; the files of a directory come before its subdirectories. Files in one
    /// directory are sorted by their offset in the archive they come from, otherwise by name.
    pub(crate) fn files(&self) -> Vec<InodeId> {
        let mut order = Vec::new();
        let mut known = vec![false; self.len()];
        self.walk(&mut |_, directory| {
            let start = order.len();
            for (_, id) in self.entries(directory) {
                let is_file = matches!(self.inode(id).kind, InodeKind::File { .. });
                if is_file && !std::mem::replace(&mut known[id.index()], true) {
                    order.push(id);
                }
            }
            order[start..].sort_by_key(|&id| match self.inode(id).kind {
                InodeKind::File { content, .. } => self.content(content).data_offset(content.key),
                _ => 0,
            });
        });
        order
    }
}

/// The remaining entries of a directory.
type Entries<'c> = Box<dyn Iterator<Item = (&'c [u8], InodeId)> + 'c>;

/// A walk, as an iterator that lends its paths.
pub(crate) struct Walk<'c> {
    catalog: &'c Catalog,
    path: Vec<u8>,
    /// Directories with entries left, each with the length of its path. A list and not recursion,
    /// because their depth is unlimited.
    waiting: Vec<(usize, Entries<'c>)>,
}

impl<'c> Walk<'c> {
    /// A walk from the root. The root has no name and is not visited.
    pub(crate) fn new(catalog: &'c Catalog) -> Self {
        let entries: Entries<'c> = Box::new(catalog.entries(InodeId::ROOT));
        Self { catalog, path: Vec::new(), waiting: vec![(0, entries)] }
    }

    /// The next path, without a leading slash, and its inode.
    pub(crate) fn next(&mut self) -> Option<(&[u8], InodeId)> {
        let (name, id) = loop {
            let (len, entries) = self.waiting.last_mut()?;
            self.path.truncate(*len);
            match entries.next() {
                Some(found) => break found,
                None => self.waiting.pop(),
            };
        };
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        if matches!(self.catalog.inode(id).kind, InodeKind::Directory(_)) {
            self.waiting.push((self.path.len(), Box::new(self.catalog.entries(id))));
        }
        Some((&self.path, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: Meta = Meta {
        permissions: 0o755,
        uid: 1,
        gid: 2,
        modified: Timestamp { seconds: 0, nanoseconds: 0 },
        xattrs: None,
    };

    fn name(text: &str) -> Name<'_> {
        Name::parse(text.as_bytes()).unwrap()
    }

    fn fifo() -> Inode {
        Inode { meta: META, kind: InodeKind::Fifo }
    }

    fn paths(catalog: &Catalog) -> Vec<(String, u32)> {
        let mut found = Vec::new();
        catalog.walk(&mut |path, id| found.push((String::from_utf8_lossy(path).into(), id.0)));
        found
    }

    #[test]
    fn sorts_by_name_regardless_of_insertion_order() {
        let mut builder = Builder::new(META);
        let b = builder.directory(InodeId::ROOT, name("b"), META);
        let z = builder.add(b, name("z"), fifo());
        builder.add(b, name("y"), fifo());
        builder.link(InodeId::ROOT, name("a"), z);
        let catalog = builder.finish(Owner::default());
        let found = paths(&catalog);
        let expected = [("", 0), ("a", 2), ("b", 1), ("b/y", 3), ("b/z", 2)];
        assert_eq!(found, expected.map(|(path, id)| (path.to_owned(), id)));
        assert_eq!(catalog.links(z), 2);
    }

    #[test]
    fn later_files_hide_earlier_ones_and_directories_merge() {
        let mut builder = Builder::new(META);
        let first = builder.directory(InodeId::ROOT, name("d"), META);
        let hidden = builder.add(first, name("x"), fifo());
        let second = builder.directory(InodeId::ROOT, name("d"), Meta { uid: 7, ..META });
        assert_eq!(first, second);
        let shown = builder.add(second, name("x"), fifo());
        let catalog = builder.finish(Owner::default());
        assert_eq!(catalog.hidden, 1);
        assert_eq!((catalog.links(hidden), catalog.links(shown)), (0, 1));
        assert_eq!(catalog.inode(first).meta.uid, 7);
        assert_eq!(catalog.links(first), 1);
    }

    #[test]
    fn equal_xattr_sets_share_a_number() {
        let mut builder = Builder::new(META);
        let pair = |name: &[u8]| (name.to_vec(), b"v".to_vec());
        let one = builder.xattrs(vec![pair(b"user.b"), pair(b"user.a")]);
        assert_eq!(one, builder.xattrs(vec![pair(b"user.a"), pair(b"user.b")]));
        assert_ne!(one, builder.xattrs(vec![pair(b"user.a")]));
        assert_eq!(builder.xattrs(Vec::new()), None);
    }
}
