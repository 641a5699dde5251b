//! Which paths of a tree to extract, and everything they name: directories, and the other files in
//! the order of the archive.
//!
//! Invariants: a directory comes after the one it is in. The names of one inode are adjacent.

use std::ops::{ControlFlow, Range};

use super::{Failure, Report};
use crate::error::{Error, Kind, Result};
use crate::vfs::{Cookie, DirectoryWalk, FileKind, Finding, Ino, Location, Name, Tree, joined};

/// The size that a file system allocates at least, bytes.
const DISK_BLOCK: u64 = 4096;

/// Index of a directory of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct DirectoryId(u32);

impl DirectoryId {
    pub(super) const ROOT: Self = Self(0);

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

pub(super) struct Directory {
    pub(super) parent: DirectoryId,
    pub(super) ino: Ino,
    name: Range<usize>,
}

/// A name of anything else. The sort order is the order of the archive.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    data_offset: u64,
    pub(super) ino: Ino,
    pub(super) directory: DirectoryId,
    name: usize,
    name_len: u8,
    pub(super) is_regular: bool,
}

pub(super) struct Listing {
    /// The root first.
    pub(super) directories: Vec<Directory>,
    pub(super) entries: Vec<Entry>,
    /// Bytes of all regular files, each once, without holes.
    pub(super) bytes: u64,
    /// The same in blocks of a disk.
    pub(super) bytes_on_disk: u64,
    names: Vec<u8>,
}

impl Listing {
    /// The part of `tree` that `selection` selects. What cannot be read is reported.
    ///
    /// Fails with `Unsupported` for more than 2^32 directories; errors of the root directory;
    /// `Interrupted`.
    pub(super) fn of(tree: &dyn Tree, selection: &Selection, report: &Report<'_>) -> Result<Self> {
        tree.attr(Ino::ROOT)?;
        let root = Directory { parent: DirectoryId::ROOT, ino: Ino::ROOT, name: 0..0 };
        let mut listing = Self {
            directories: vec![root],
            entries: Vec::new(),
            bytes: 0,
            bytes_on_disk: 0,
            names: Vec::new(),
        };
        let mut walk = DirectoryWalk::from_root_at((DirectoryId::ROOT, Vec::new()));
        while let Some(((directory, path), ino)) = walk.next() {
            report.check_stopped()?;
            let mut failure = None;
            let listed = tree.read_dir(ino, Cookie::START, &mut |entry| {
                let path = joined(&path, entry.name.as_bytes());
                let selected = selection.selects(&path);
                if selected == Selected::No {
                    return ControlFlow::Continue(());
                }
                if entry.kind != FileKind::Directory {
                    if selected == Selected::Whole {
                        let is_regular = entry.kind == FileKind::Regular;
                        listing.add_entry(tree, directory, (entry.ino, is_regular), &path);
                    }
                    return ControlFlow::Continue(());
                }
                let Ok(id) = u32::try_from(listing.directories.len()).map(DirectoryId) else {
                    let context = "more than 4,294,967,295 directories";
                    failure = Some(Error::new(Kind::Unsupported, context));
                    return ControlFlow::Break(());
                };
                if walk.add((id, path.clone()), entry.ino) {
                    let name = listing.add_name(entry.name.as_bytes());
                    listing.directories.push(Directory { parent: directory, ino: entry.ino, name });
                } else {
                    let what = "a directory that contains itself or has two names";
                    report.problem(Finding::damage(Location::Path(path), what));
                }
                ControlFlow::Continue(())
            });
            if let Some(error) = failure {
                return Err(error);
            }
            if let Err(error) = listed {
                report.failed(path, &Failure::Tree(error));
            }
        }
        listing.entries.sort_unstable();
        listing.add_sizes(tree);
        Ok(listing)
    }

    fn add_entry(
        &mut self,
        tree: &dyn Tree,
        directory: DirectoryId,
        (ino, is_regular): (Ino, bool),
        path: &[u8],
    ) {
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let range = self.add_name(name);
        // If the offset is unknown, reading the file reports the error.
        let data_offset = if is_regular { tree.data_offset(ino).unwrap_or(0) } else { 0 };
        let (name, name_len) = (range.start, u8::try_from(range.len()).unwrap_or(u8::MAX));
        self.entries.push(Entry { data_offset, ino, directory, name, name_len, is_regular });
    }

    fn add_name(&mut self, name: &[u8]) -> Range<usize> {
        let start = self.names.len();
        self.names.extend_from_slice(name);
        start..self.names.len()
    }

    fn add_sizes(&mut self, tree: &dyn Tree) {
        let mut last = None;
        for entry in self.entries.iter().filter(|entry| entry.is_regular) {
            if last.replace(entry.ino) == Some(entry.ino) {
                continue;
            }
            if let Ok(attr) = tree.attr(entry.ino) {
                let bytes = attr.allocated.min(attr.size);
                self.bytes = self.bytes.saturating_add(bytes);
                let on_disk = bytes.div_ceil(DISK_BLOCK).saturating_mul(DISK_BLOCK);
                self.bytes_on_disk = self.bytes_on_disk.saturating_add(on_disk);
            }
        }
    }

    pub(super) fn name(&self, entry: &Entry) -> &[u8] {
        &self.names[entry.name..entry.name + usize::from(entry.name_len)]
    }

    pub(super) fn directory(&self, id: DirectoryId) -> &Directory {
        &self.directories[id.index()]
    }

    /// The name of a directory; empty for the root.
    pub(super) fn directory_name(&self, id: DirectoryId) -> &[u8] {
        &self.names[self.directory(id).name.clone()]
    }

    /// All directories but the root, each after the one it is in.
    pub(super) fn below_root(&self) -> impl DoubleEndedIterator<Item = DirectoryId> {
        let end = u32::try_from(self.directories.len()).unwrap_or(u32::MAX);
        (1..end).map(DirectoryId)
    }

    /// The path of a directory from the root, without a leading slash.
    pub(super) fn directory_path(&self, id: DirectoryId) -> Vec<u8> {
        let mut names = Vec::new();
        let mut next = id;
        while next != DirectoryId::ROOT {
            names.push(self.directory_name(next));
            next = self.directory(next).parent;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// The path of an entry from the root, without a leading slash.
    pub(super) fn path(&self, entry: &Entry) -> Vec<u8> {
        joined(&self.directory_path(entry.directory), self.name(entry))
    }
}

pub(super) struct Selection {
    /// Without empty components; none selects everything.
    paths: Vec<Vec<u8>>,
}

/// Whether a path is extracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selected {
    /// It and everything below it.
    Whole,
    /// It leads to a path that is extracted.
    Parent,
    No,
}

impl Selection {
    /// The selection of `paths` and everything below them, or of all if there are none.
    pub(super) fn of(tree: &dyn Tree, paths: &[Vec<u8>]) -> Result<Self> {
        let mut found = Vec::new();
        for path in paths {
            let parts = path.split(|&byte| byte == b'/');
            let parts: Vec<_> = parts.filter(|part| !part.is_empty() && *part != b".").collect();
            check(tree, &parts).map_err(|error| error.within(String::from_utf8_lossy(path)))?;
            found.push(parts.join(&b'/'));
        }
        Ok(Self { paths: found })
    }

    /// Whether the file or directory at `path`, without a leading slash, is extracted.
    pub(super) fn selects(&self, path: &[u8]) -> Selected {
        if self.paths.is_empty() || self.paths.iter().any(|wanted| is_below(path, wanted)) {
            Selected::Whole
        } else if self.paths.iter().any(|wanted| is_below(wanted, path)) {
            Selected::Parent
        } else {
            Selected::No
        }
    }
}

/// Fails unless there is a path of these names. Symbolic links are not followed, because what they
/// lead to has another path.
fn check(tree: &dyn Tree, names: &[&[u8]]) -> Result<()> {
    let missing = || Error::new(Kind::NotFound, "no such path in the archive");
    let mut directory = Ino::ROOT;
    for name in names {
        let name = Name::parse(name).ok_or_else(missing)?;
        let found = tree.lookup(directory, name).map_err(|error| match error.kind() {
            Kind::NotADirectory => missing(),
            _ => error,
        })?;
        directory = found.ok_or_else(missing)?.ino;
    }
    Ok(())
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    directory.is_empty()
        || path.strip_prefix(directory).is_some_and(|rest| rest.first().is_none_or(|&b| b == b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_what_is_below_and_on_the_way() {
        let paths = |paths: &[&str]| Selection {
            paths: paths.iter().map(|path| path.as_bytes().to_vec()).collect(),
        };
        let some = paths(&["train/a", "val"]);
        for (path, selected) in [
            ("", Selected::Parent),
            ("train", Selected::Parent),
            ("train/a", Selected::Whole),
            ("train/a/x", Selected::Whole),
            ("train/ab", Selected::No),
            ("train/b", Selected::No),
            ("val/x/y", Selected::Whole),
            ("va", Selected::No),
        ] {
            assert_eq!(some.selects(path.as_bytes()), selected, "{path:?}");
        }
        for all in [paths(&[]), paths(&[""])] {
            assert_eq!(all.selects(b""), Selected::Whole);
            assert_eq!(all.selects(b"a/b"), Selected::Whole);
        }
    }
}
