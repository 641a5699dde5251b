//! Several trees as one: directories merge, and the later tree wins if two have a file at one path.
//!
//! Invariant: a lookup asks at most one tree, however many there are.
//!
//! Only directories that several trees share need a listing of their own. Those are merged once, at
//! the start: a sorted list of names, each with the tree it comes from. A directory that only one
//! tree has is left to that tree, with everything below it. So a thousand trees cost memory only
//! for the directories they share: 16 bytes per name, and the name.

use std::ops::ControlFlow;

use super::{
    Attr, Cookie, DirEntry, FileKind, Finding, Ino, Location, Name, ReadBytes, Scratch, SeekTarget,
    StoredFile, Totals, Tree,
};
use crate::error::{Error, Kind, Result};
use crate::sync::Arc;

mod merge;

use merge::Merging;

/// The maximum number of trees: each needs a nonzero number in the upper 16 bits of an inode
/// number.
const TREES_MAX: usize = (1 << 16) - 1;

/// A tree and the directory of the union at which it is shown.
pub struct Layer {
    /// The directory's path, without a leading slash; empty for the root. It is created if missing.
    pub path: Vec<u8>,
    /// The archive's name, for messages.
    pub name: String,
    /// The tree shown there.
    pub tree: Arc<dyn Tree>,
}

/// Several trees as one.
pub struct Union {
    trees: Vec<Arc<dyn Tree>>,
    /// Where each of them is, without a leading slash.
    paths: Vec<Vec<u8>>,
    numbers: Numbers,
    directories: Vec<Merged>,
    names: Vec<u8>,
    hidden: Vec<Hidden>,
    /// The sum over all trees. They do not change, so no request asks them all.
    totals: Totals,
}

/// The files of one archive that another one hides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// The archive whose files are shown.
    pub later: String,
    /// The archive whose files are hidden.
    pub earlier: String,
    /// Number of files and directories that no path leads to.
    pub count: u64,
    /// The path of one of them.
    pub path: Vec<u8>,
}

/// A directory that more than one tree has.
struct Merged {
    /// The inode whose attributes it shows: that of the latest tree, if any tree has one.
    shown: Option<Inner>,
    /// Its entries, sorted by name.
    entries: Box<[Entry]>,
}

struct Entry {
    /// Index of the name in `Union::names`: a length byte, then the name.
    name: usize,
    ino: Ino,
    kind: FileKind,
}

/// An inode of one tree.
#[derive(Clone, Copy, Debug)]
struct Inner {
    tree: usize,
    ino: Ino,
}

impl Union {
    /// The union of `layers`; later layers win.
    ///
    /// # Errors
    /// `Unsupported` for more than 65,535 layers; errors of a tree while a shared directory is
    /// listed.
    pub fn new(layers: &[Layer]) -> Result<Self> {
        if layers.len() > TREES_MAX {
            let context =
                format!("{} archives at one mount point, limit {TREES_MAX}", layers.len());
            return Err(Error::new(Kind::Unsupported, context));
        }
        let trees = layers.iter().map(|layer| Arc::clone(&layer.tree)).collect();
        let Merging { directories, names, hidden, numbers, .. } = Merging::of(layers)?;
        let hidden = hidden.into_iter().map(|((later, earlier), (count, path))| {
            let [later, earlier] = [later, earlier].map(|layer| layers[layer].name.clone());
            Hidden { later, earlier, count, path }
        });
        let hidden = hidden.collect();
        let none = Totals { bytes: 0, inodes: 0, block_size: 512 };
        let totals = layers.iter().map(|layer| layer.tree.totals()).fold(none, |sum, one| Totals {
            bytes: sum.bytes.saturating_add(one.bytes),
            inodes: sum.inodes.saturating_add(one.inodes),
            block_size: sum.block_size.max(one.block_size),
        });
        let paths = layers.iter().map(|layer| layer.path.clone()).collect();
        Ok(Self { trees, paths, numbers, directories, names, hidden, totals })
    }

    /// The files and directories that no path leads to, because a later tree hides them.
    pub fn hidden(&self) -> &[Hidden] {
        &self.hidden
    }

    fn name(&self, at: usize) -> &[u8] {
        merge::name(&self.names, at)
    }

    fn attr_from(&self, tree: usize, mut attr: Attr) -> Result<Attr> {
        attr.ino = self.numbers.outer(Inner { tree, ino: attr.ino })?;
        Ok(attr)
    }

    /// The object that an inode number of the union stands for.
    fn target(&self, ino: Ino) -> Result<Target<'_>> {
        let found = match self.numbers.numbered(ino) {
            Some(Numbered::Directory(index)) => self.directories.get(index).map(Target::Merged),
            Some(Numbered::Inner(Inner { tree, ino })) => Some(Target::Inner(tree, ino)),
            None => None,
        };
        found.ok_or_else(|| {
            Error::new(Kind::NotFound, format!("{} is not an inode here", ino.number()))
        })
    }

    /// The tree and inode that answer for `ino`, if any.
    fn answering(&self, ino: Ino) -> Result<Option<(&dyn Tree, Ino)>> {
        Ok(match self.target(ino)? {
            Target::Inner(tree, ino) => Some((self.trees[tree].as_ref(), ino)),
            Target::Merged(directory) => {
                directory.shown.map(|inner| (self.trees[inner.tree].as_ref(), inner.ino))
            }
        })
    }

    /// The tree and inode that hold the file `ino`.
    fn file(&self, ino: Ino) -> Result<(&dyn Tree, Ino)> {
        match self.target(ino)? {
            Target::Inner(tree, ino) => Ok((self.trees[tree].as_ref(), ino)),
            Target::Merged(_) => Err(Error::new(Kind::IsADirectory, "is a directory")),
        }
    }
}

/// Bits of a union's data offset that hold the offset in its archive.
const OFFSET_BITS: u32 = 48;

enum Target<'u> {
    Merged(&'u Merged),
    Inner(usize, Ino),
}

impl Tree for Union {
    fn attr(&self, ino: Ino) -> Result<Attr> {
        match self.target(ino)? {
            Target::Inner(tree, inner) => self.attr_from(tree, self.trees[tree].attr(inner)?),
            Target::Merged(Merged { shown: Some(inner), .. }) => {
                Ok(Attr { ino, ..self.trees[inner.tree].attr(inner.ino)? })
            }
            Target::Merged(_) => Ok(Attr {
                permissions: 0o755,
                nlink: 2,
                block_size: self.totals.block_size,
                ..Attr::unknown(ino, FileKind::Directory)
            }),
        }
    }

    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        match self.target(parent)? {
            Target::Inner(tree, inner) => {
                let found = self.trees[tree].lookup(inner, name)?;
                found.map(|attr| self.attr_from(tree, attr)).transpose()
            }
            Target::Merged(directory) => {
                let wanted = name.as_bytes();
                let index =
                    directory.entries.binary_search_by(|entry| self.name(entry.name).cmp(wanted));
                index.ok().map(|index| self.attr(directory.entries[index].ino)).transpose()
            }
        }
    }

    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let directory = match self.target(ino)? {
            Target::Merged(directory) => directory,
            Target::Inner(tree, inner) => {
                let mut failed = Ok(());
                self.trees[tree].read_dir(inner, cookie, &mut |mut entry| {
                    match self.numbers.outer(Inner { tree, ino: entry.ino }) {
                        Ok(ino) => entry.ino = ino,
                        Err(error) => {
                            failed = Err(error);
                            return ControlFlow::Break(());
                        }
                    }
                    visit(entry)
                })?;
                return failed;
            }
        };
        let skipped = cookie.entries_before(directory.entries.len())?;
        let rest = directory.entries.get(skipped..).unwrap_or_default();
        for (entry, next) in rest.iter().zip(cookie.0 + 1..) {
            let Some(name) = Name::parse(self.name(entry.name)) else { continue };
            let Entry { ino, kind, .. } = *entry;
            if visit(DirEntry { ino, kind, name, next: Cookie(next) }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let (tree, ino) = self.file(ino)?;
        tree.read_link(ino)
    }

    fn read<'s>(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let (tree, ino) = self.file(ino)?;
        tree.read(ino, offset, size, scratch)
    }

    fn seek(&self, ino: Ino, offset: u64, target: SeekTarget) -> Result<u64> {
        let (tree, ino) = self.file(ino)?;
        tree.seek(ino, offset, target)
    }

    fn has_xattrs(&self) -> bool {
        self.trees.iter().any(|tree| tree.has_xattrs())
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        self.answering(ino)?.map_or(Ok(Vec::new()), |(tree, ino)| tree.list_xattrs(ino))
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let none = || Err(Error::new(Kind::NoAttribute, "no such attribute"));
        self.answering(ino)?.map_or_else(none, |(tree, ino)| tree.xattr(ino, name))
    }

    fn parent(&self, ino: Ino) -> Result<Option<Ino>> {
        if ino == Ino::ROOT {
            return Ok(Some(ino));
        }
        let holds = |directory: &Merged| directory.entries.iter().any(|entry| entry.ino == ino);
        if let Some(index) = self.directories.iter().position(holds) {
            return self.numbers.directory(index).map(Some);
        }
        match self.target(ino)? {
            Target::Merged(_) => Ok(None),
            Target::Inner(tree, inner) => {
                let parent = self.trees[tree].parent(inner)?;
                parent.map(|ino| self.numbers.outer(Inner { tree, ino })).transpose()
            }
        }
    }

    fn numbers_end(&self) -> u64 {
        let last = self.numbers.directory(self.directories.len());
        last.map_or(u64::MAX, Ino::number)
    }

    // The upper bits are the tree, so files of one tree stay together.
    fn data_offset(&self, ino: Ino) -> Result<u64> {
        let (tree, offset) = match self.target(ino)? {
            Target::Inner(tree, ino) => (tree, self.trees[tree].data_offset(ino)?),
            Target::Merged(_) => return Err(Error::new(Kind::IsADirectory, "is a directory")),
        };
        Ok((tree as u64 + 1) << OFFSET_BITS | offset & ((1 << OFFSET_BITS) - 1))
    }

    fn stored_crc32(&self, ino: Ino) -> Result<Option<u32>> {
        match self.target(ino)? {
            Target::Inner(tree, ino) => self.trees[tree].stored_crc32(ino),
            Target::Merged(_) => Ok(None),
        }
    }

    fn stored_files(&self, visit: &mut dyn FnMut(Ino, StoredFile)) -> Result<()> {
        for (nth, tree) in self.trees.iter().enumerate() {
            tree.stored_files(&mut |ino, file| {
                // A number that the union cannot have is reported when it is looked up.
                if let Ok(ino) = self.numbers.outer(Inner { tree: nth, ino }) {
                    visit(ino, file);
                }
            })?;
        }
        Ok(())
    }

    fn audit(&self, found: &mut dyn FnMut(Finding)) {
        for (nth, (tree, path)) in self.trees.iter().zip(&self.paths).enumerate() {
            tree.audit(&mut |mut finding| {
                if let Location::Inode(ino) = &mut finding.location {
                    *ino = self.numbers.outer(Inner { tree: nth, ino: *ino }).unwrap_or(*ino);
                }
                found(finding.below(path));
            });
        }
    }

    fn totals(&self) -> Totals {
        self.totals
    }

    fn release(&self) {
        self.trees.iter().for_each(|tree| tree.release());
    }
}

/// Bits of an inode number that a tree may use.
const INNER_BITS: u32 = 48;

const LIMIT: u64 = 1 << INNER_BITS;

/// Maps inode numbers of a union to inodes of its trees.
///
/// Each tree gets as many numbers as it says it needs (`Tree::numbers_end`), one tree after
/// another. The merged directories get the numbers after the last tree. So the numbers are as small
/// as possible and fit programs that use 32 bits. The root is 1.
///
/// A number that is larger than its tree said has the tree's index plus one in the upper 16 bits.
struct Numbers {
    /// The first number of each tree, and then the first number of the merged directories.
    starts: Vec<u64>,
    /// The name of each archive, for errors.
    names: Box<[String]>,
}

/// The object that a number stands for.
enum Numbered {
    /// A merged directory, by its index.
    Directory(usize),
    Inner(Inner),
}

impl Numbers {
    fn of(layers: &[Layer]) -> Self {
        let mut starts = vec![Ino::ROOT.number()];
        let mut end = Ino::ROOT.number();
        for layer in layers {
            let next = end.checked_add(layer.tree.numbers_end()).filter(|&next| next < LIMIT / 2);
            end = next.unwrap_or(end);
            starts.push(end);
        }
        let names = layers.iter().map(|layer| layer.name.clone()).collect();
        Self { starts, names }
    }

    /// The union's number for an inode of a tree.
    fn outer(&self, inner: Inner) -> Result<Ino> {
        let number = inner.ino.number();
        let (start, end) = (self.starts[inner.tree], self.starts[inner.tree + 1]);
        let outer = match start.checked_add(number) {
            Some(outer) if outer < end => outer,
            _ if number < LIMIT => (inner.tree as u64 + 1) << INNER_BITS | number,
            _ => {
                let context = format!("{}: an inode number is too large", self.names[inner.tree]);
                return Err(Error::new(Kind::Unsupported, context)
                    .with_detail(format_args!("inode {number}")));
            }
        };
        Ok(Ino::new(outer).unwrap_or(Ino::ROOT))
    }

    /// The number of the merged directory at `index`.
    fn directory(&self, index: usize) -> Result<Ino> {
        let number = match index as u64 {
            0 => Some(Ino::ROOT.number()),
            index => self.directories_start().checked_add(index),
        };
        number.filter(|&number| number < LIMIT).and_then(Ino::new).ok_or_else(|| {
            Error::new(Kind::Unsupported, "too many directories in several archives")
        })
    }

    /// The object that `ino` stands for. `None` if the number is not assigned.
    fn numbered(&self, ino: Ino) -> Option<Numbered> {
        let number = ino.number();
        if ino == Ino::ROOT {
            return Some(Numbered::Directory(0));
        }
        if number >= LIMIT {
            let tree = usize::try_from(number >> INNER_BITS).ok()?.checked_sub(1)?;
            let ino = Ino::new(number & (LIMIT - 1))?;
            return (tree + 1 < self.starts.len()).then_some(Numbered::Inner(Inner { tree, ino }));
        }
        if let Some(index) = number.checked_sub(self.directories_start()) {
            let index = usize::try_from(index).ok().filter(|&index| index > 0);
            return index.map(Numbered::Directory);
        }
        // The last tree that starts at or before it. Trees without numbers start where the next one
        // does.
        let tree = self.starts.partition_point(|&start| start <= number).checked_sub(1)?;
        let ino = Ino::new(number - self.starts[tree])?;
        Some(Numbered::Inner(Inner { tree, ino }))
    }

    fn directories_start(&self) -> u64 {
        self.starts.last().copied().unwrap_or(LIMIT)
    }
}

#[cfg(test)]
mod tests;
