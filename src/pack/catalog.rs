//! Everything that is to be packed except the bytes of files: names, attributes and links.
//!
//! `source` finds the files, and a `Content` reads their bytes. The catalog merges all sources into
//! one tree and sorts it.
//!
//! Invariants: the entries of a directory ascend by the bytes of their names, each name once.
//! `links` is the number of names of an inode. The order in which a disk lists files has no effect.
//!
//! Memory: the lists of inodes, entries and names are spilled (`spilled`): 68 bytes a file and its
//! name, and 16 more while entries are sorted. In memory are about 150 bytes for each directory, 40
//! for each file with several names, and sets of extended attributes.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, Result};
use crate::spilled::{Spill, Spilled};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InodeKind<'t> {
    /// A directory: the number of its list of entries.
    Directory(u32),
    /// A regular file; `sparse` if it may have holes.
    File {
        size: u64,
        content: ContentId,
        sparse: bool,
    },
    Symlink(&'t [u8]),
    /// A block or character device; `number` is in the kernel's 32-bit encoding.
    Device {
        kind: FileKind,
        number: u32,
    },
    Fifo,
    Socket,
}

/// A file without its names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inode<'t> {
    pub(crate) meta: Meta,
    pub(crate) kind: InodeKind<'t>,
}

impl Inode<'_> {
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

/// An inode in the list.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Row {
    seconds: i64,
    /// The size of a file, the number of a device, or where the target of a link is in `names`.
    value: u64,
    /// The key of the contents of a file, or the length of a target.
    key: u64,
    nanoseconds: u32,
    uid: u32,
    gid: u32,
    /// `NO_XATTRS` if there are none.
    xattrs: u32,
    /// The source of the contents of a file, or the number of the list of entries.
    source: u32,
    permissions: u16,
    kind: u8,
    is_sparse: u8,
}

const NO_XATTRS: u32 = u32::MAX;

/// Values of `Row::kind`.
const DIRECTORY: u8 = 0;
const FILE: u8 = 1;
const SYMLINK: u8 = 2;
const BLOCK_DEVICE: u8 = 3;
const CHAR_DEVICE: u8 = 4;
const FIFO: u8 = 5;
const SOCKET: u8 = 6;

impl Row {
    /// The row of an inode, whose target, if it has one, is at this offset.
    fn new(inode: &Inode<'_>, target_offset: u64) -> Self {
        let Meta { permissions, uid, gid, modified, xattrs } = inode.meta;
        let (kind, value, key, source, is_sparse) = match inode.kind {
            InodeKind::Directory(entries) => (DIRECTORY, 0, 0, entries, false),
            InodeKind::File { size, content, sparse } => {
                (FILE, size, content.key, content.source, sparse)
            }
            InodeKind::Symlink(target) => (SYMLINK, target_offset, target.len() as u64, 0, false),
            InodeKind::Device { kind: FileKind::BlockDevice, number } => {
                (BLOCK_DEVICE, number.into(), 0, 0, false)
            }
            InodeKind::Device { number, .. } => (CHAR_DEVICE, number.into(), 0, 0, false),
            InodeKind::Fifo => (FIFO, 0, 0, 0, false),
            InodeKind::Socket => (SOCKET, 0, 0, 0, false),
        };
        Self {
            seconds: modified.seconds,
            value,
            key,
            nanoseconds: modified.nanoseconds,
            uid,
            gid,
            xattrs: xattrs.unwrap_or(NO_XATTRS),
            source,
            permissions,
            kind,
            is_sparse: is_sparse.into(),
        }
    }

    fn meta(&self) -> Meta {
        let Self { seconds, nanoseconds, permissions, uid, gid, xattrs, .. } = *self;
        Meta {
            permissions,
            uid,
            gid,
            modified: Timestamp { seconds, nanoseconds },
            xattrs: (xattrs != NO_XATTRS).then_some(xattrs),
        }
    }

    fn kind<'t>(&self, names: &'t [u8]) -> InodeKind<'t> {
        // The number of a device has 32 bits.
        let device = |kind| InodeKind::Device { kind, number: self.value as u32 };
        match self.kind {
            DIRECTORY => InodeKind::Directory(self.source),
            FILE => InodeKind::File {
                size: self.value,
                content: ContentId { source: self.source, key: self.key },
                sparse: self.is_sparse != 0,
            },
            SYMLINK => {
                let start = self.value as usize;
                InodeKind::Symlink(&names[start..start + self.key as usize])
            }
            BLOCK_DEVICE => device(FileKind::BlockDevice),
            CHAR_DEVICE => device(FileKind::CharDevice),
            FIFO => InodeKind::Fifo,
            _ => InodeKind::Socket,
        }
    }
}

/// A name in a directory: the number of the directory's list, where the name is in `names`, after a
/// byte with its length, and the inode.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Entry {
    name: u64,
    list: u32,
    inode: u32,
}

impl Entry {
    fn name<'n>(&self, names: &'n [u8]) -> &'n [u8] {
        let start = self.name as usize + 1;
        &names[start..start + usize::from(names[start - 1])]
    }

    fn inode(&self) -> InodeId {
        InodeId(self.inode)
    }
}

/// A finished catalog.
#[derive(Default)]
pub(crate) struct Catalog {
    inodes: Spilled<Row>,
    links: Spilled<u32>,
    /// By list and name.
    entries: Spilled<Entry>,
    /// Where each list of entries begins, and where the last one ends.
    lists: Vec<usize>,
    /// Names of entries and targets of links.
    names: Spilled<u8>,
    xattrs: Vec<Xattrs>,
    contents: Vec<Box<dyn Content>>,
    /// Number of names hidden by the same name in a later source.
    pub(crate) hidden: u64,
    /// The path of one of them, without a leading slash.
    pub(crate) hidden_path: Vec<u8>,
}

impl Catalog {
    pub(crate) fn inode(&self, id: InodeId) -> Inode<'_> {
        let row = &self.inodes[id.index()];
        Inode { meta: row.meta(), kind: row.kind(&self.names) }
    }

    /// Checks that the disk kept what was spilled to it.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { inodes, links, entries, names, .. } = self;
        let checked = inodes.check().and_then(|()| links.check());
        checked.and_then(|()| entries.check()).and_then(|()| names.check()).map_err(lost)?;
        self.contents.iter().try_for_each(|content| content.check_spilled())
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
        self.list(directory).iter().map(|entry| (entry.name(&self.names), entry.inode()))
    }

    /// The entries of a directory; none for other inodes.
    fn list(&self, directory: InodeId) -> &[Entry] {
        let row = &self.inodes[directory.index()];
        match row.kind {
            DIRECTORY => &self.entries[self.range(row.source as usize)],
            _ => &[],
        }
    }

    /// Where a list of entries is.
    fn range(&self, list: usize) -> Range<usize> {
        self.lists[list]..self.lists[list + 1]
    }

    pub(crate) fn xattrs(&self, number: u32) -> &[(Vec<u8>, Vec<u8>)] {
        &self.xattrs[number as usize]
    }

    pub(crate) fn content(&self, id: ContentId) -> &dyn Content {
        self.contents[id.source as usize].as_ref()
    }

    /// The entry of a directory with this index in the order of names.
    pub(crate) fn entry(&self, directory: InodeId, nth: usize) -> Option<(&[u8], InodeId)> {
        let entry = self.list(directory).get(nth)?;
        Some((entry.name(&self.names), entry.inode()))
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
    /// Its entries are in the order in which they were added. It has no lists and no links yet.
    catalog: Catalog,
    /// Number of lists of entries.
    lists: u32,
    /// Directories by parent and name, to merge those of several sources.
    known: HashMap<(InodeId, Box<[u8]>), InodeId>,
    xattr_numbers: HashMap<Xattrs, u32>,
    /// The first error of a list that could not grow, which `finish` returns.
    failure: Option<io::Error>,
}

impl Builder {
    /// An empty root directory with these attributes.
    pub(crate) fn new(root: Meta) -> Self {
        let catalog = Catalog::default();
        let (known, xattr_numbers) = (HashMap::new(), HashMap::new());
        let mut builder = Self { catalog, lists: 1, known, xattr_numbers, failure: None };
        builder.nameless(Inode { meta: root, kind: InodeKind::Directory(0) });
        builder
    }

    /// Keeps the error if a list could not grow.
    fn note(&mut self, grown: io::Result<()>) {
        if let Err(error) = grown {
            self.failure.get_or_insert(error);
        }
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
            self.set_meta(found, meta);
            // Hides whatever another source added under this name in between.
            self.link(parent, name, found);
            return found;
        }
        let list = self.lists;
        self.lists = list.saturating_add(1);
        let id = self.add(parent, name, Inode { meta, kind: InodeKind::Directory(list) });
        self.known.insert(key, id);
        id
    }

    /// The directory `name` in `parent`, if a source added it.
    pub(crate) fn find_directory(&self, parent: InodeId, name: Name<'_>) -> Option<InodeId> {
        self.known.get(&(parent, name.as_bytes().into())).copied()
    }

    /// Replaces the attributes of an inode, for example those of the root.
    pub(crate) fn set_meta(&mut self, id: InodeId, meta: Meta) {
        // A list that could not grow lacks inodes.
        let Some(row) = self.catalog.inodes.get(id.index()) else { return };
        let inode = Inode { meta, kind: row.kind(&self.catalog.names) };
        let row = Row::new(&inode, row.value);
        self.catalog.inodes[id.index()] = row;
    }

    /// Adds a file that is not a directory. It hides an earlier one with the same name.
    pub(crate) fn add(&mut self, parent: InodeId, name: Name<'_>, inode: Inode<'_>) -> InodeId {
        let id = self.nameless(inode);
        self.link(parent, name, id);
        id
    }

    /// Adds a file without a name; `link` names it later.
    pub(crate) fn nameless(&mut self, inode: Inode<'_>) -> InodeId {
        let id = InodeId(number(self.catalog.inodes.len()));
        let offset = self.catalog.names.len() as u64;
        if let InodeKind::Symlink(target) = inode.kind {
            let kept = self.catalog.names.extend_from_slice(target);
            self.note(kept);
        }
        let kept = self.catalog.inodes.push(Row::new(&inode, offset));
        self.note(kept);
        id
    }

    /// Adds a name for an inode.
    pub(crate) fn link(&mut self, parent: InodeId, name: Name<'_>, inode: InodeId) {
        // A list that could not grow lacks inodes.
        let Some(&Row { kind: DIRECTORY, source: list, .. }) =
            self.catalog.inodes.get(parent.index())
        else {
            return;
        };
        let bytes = name.as_bytes();
        let entry = Entry { name: self.catalog.names.len() as u64, list, inode: inode.0 };
        // A name is at most 255 bytes long.
        let kept = self
            .catalog
            .names
            .push(bytes.len() as u8)
            .and_then(|()| self.catalog.names.extend_from_slice(bytes))
            .and_then(|()| self.catalog.entries.push(entry));
        self.note(kept);
    }

    /// Sorts everything. `owner` replaces the owner of all files where it is set.
    ///
    /// Fails with `Io` if there is no room for the lists.
    pub(crate) fn finish(self, owner: Owner) -> Result<Catalog> {
        let Self { mut catalog, lists, known, failure, .. } = self;
        drop(known);
        if let Some(error) = failure {
            return Err(cannot_spill(error));
        }
        let hidden_entry = catalog.sort(lists as usize).map_err(cannot_spill)?;
        catalog.count_links().map_err(cannot_spill)?;
        if owner != Owner::default() {
            for row in &mut *catalog.inodes {
                row.uid = owner.uid.unwrap_or(row.uid);
                row.gid = owner.gid.unwrap_or(row.gid);
            }
        }
        if let Some(entry) = hidden_entry {
            catalog.hidden_path = catalog.path(entry);
        }
        catalog.check()?;
        Ok(catalog)
    }
}

impl Catalog {
    /// Sorts the entries by list and name. Of equal names, the one that was added last stays.
    /// Returns one of those that were hidden.
    fn sort(&mut self, lists: usize) -> io::Result<Option<Entry>> {
        let spill = Spill::default();
        // Where the next entry of each list goes.
        let mut next = vec![0; lists + 1];
        self.entries.iter().for_each(|entry| next[entry.list as usize + 1] += 1);
        (0..lists).for_each(|list| next[list + 1] += next[list]);
        let bounds = next.clone();
        let mut sorted =
            Spilled::filled(Entry { name: 0, list: 0, inode: 0 }, self.entries.len(), &spill)?;
        for &entry in &*self.entries {
            let place = &mut next[entry.list as usize];
            sorted[*place] = entry;
            *place += 1;
        }
        let names: &[u8] = &self.names;
        let mut hidden_entry = None;
        let mut end = 0;
        let entries: &mut [Entry] = &mut sorted;
        for list in 0..lists {
            let range = bounds[list]..bounds[list + 1];
            let start = end;
            self.lists.push(start);
            // Of equal names, the one that was added last is further back in `names`, and comes
            // last. A directory added twice is one inode and hides nothing.
            entries[range.clone()]
                .sort_unstable_by(|a, b| (a.name(names), a.name).cmp(&(b.name(names), b.name)));
            for nth in range {
                let entry = entries[nth];
                if end > start && entries[end - 1].name(names) == entry.name(names) {
                    if entries[end - 1].inode != entry.inode {
                        self.hidden += 1;
                        hidden_entry = hidden_entry.or(Some(entry));
                    }
                    end -= 1;
                }
                entries[end] = entry;
                end += 1;
            }
        }
        self.lists.push(end);
        self.entries = sorted;
        Ok(hidden_entry)
    }

    /// Counts only names that the root leads to.
    fn count_links(&mut self) -> io::Result<()> {
        let mut links = Spilled::filled(0_u32, self.len(), &Spill::default())?;
        links[0] = 1;
        let mut waiting = vec![InodeId::ROOT];
        while let Some(id) = waiting.pop() {
            for entry in self.list(id) {
                links[entry.inode as usize] += 1;
                if self.inodes[entry.inode as usize].kind == DIRECTORY {
                    waiting.push(entry.inode());
                }
            }
        }
        self.links = links;
        Ok(())
    }
}

/// The error of a list of which the disk refused a page.
pub(super) fn lost(error: io::Error) -> Error {
    Error::io("the list of files to pack: $TMPDIR did not keep a part of it", error)
}

/// The error of a list of files that has no room.
pub(super) fn cannot_spill(error: io::Error) -> Error {
    Error::io("the list of files to pack: no room in memory and in $TMPDIR", error)
}

/// The owner of all files; `None` keeps the owner of each file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
}

/// Converts an index to 32 bits. 2^32 inodes would take 300 GB here.
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

    /// Checks that the disk kept what was spilled to it.
    fn check_spilled(&self) -> Result<()> {
        Ok(())
    }
}

impl Catalog {
    /// The path of `entry`. Searches all directories once for each component.
    fn path(&self, entry: Entry) -> Vec<u8> {
        let (mut components, mut list) = (vec![entry.name(&self.names)], entry.list);
        // A path has fewer components than there are directories.
        for _ in 0..self.lists.len() {
            let shows = |entry: &&Entry| {
                let row = &self.inodes[entry.inode as usize];
                (row.kind, row.source) == (DIRECTORY, list)
            };
            let Some(entry) = self.entries[..self.lists[self.lists.len() - 1]].iter().find(shows)
            else {
                break;
            };
            components.push(entry.name(&self.names));
            list = entry.list;
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

    fn fifo() -> Inode<'static> {
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
        let catalog = builder.finish(Owner::default()).unwrap();
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
        let catalog = builder.finish(Owner::default()).unwrap();
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
