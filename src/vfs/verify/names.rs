//! Looks up every name of a tree as a reader would, and reads everything of the inodes except
//! contents.
//!
//! Invariant: the walk ends, even if a damaged archive has a cycle of directories.

use std::ops::ControlFlow;

use super::super::{
    Attr, Cookie, DirEntry, DirectoryWalk, FileKind, Finding, Ino, Location, Tree, joined,
};
use super::Counts;
use crate::error::Error;

/// A regular file. The sort order is archive order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct File {
    pub(super) data_offset: u64,
    pub(super) ino: Ino,
    pub(super) size: u64,
    /// The checksum of its contents, if `read` does not check it.
    pub(super) crc32: Option<u32>,
}

/// The results of the walk.
pub(super) struct Names<'t> {
    tree: &'t dyn Tree,
    has_xattrs: bool,
    pub(super) files: Vec<File>,
    pub(super) counts: Counts,
    pub(super) findings: Vec<Finding>,
}

impl<'t> Names<'t> {
    /// Walks all of `tree`.
    pub(super) fn of(tree: &'t dyn Tree) -> Self {
        let mut names = Self {
            tree,
            has_xattrs: tree.has_xattrs(),
            files: Vec::new(),
            counts: Counts::default(),
            findings: Vec::new(),
        };
        match tree.attr(Ino::ROOT) {
            Ok(_) => names.attributes(b"", Ino::ROOT),
            Err(error) => names.finding(b"", &error),
        }
        names.directories();
        names
    }

    fn directories(&mut self) {
        let mut directories = DirectoryWalk::from_root();
        while let Some((path, directory)) = directories.next() {
            self.counts.directories += 1;
            let listed = self.tree.read_dir(directory, Cookie::START, &mut |entry| {
                let path = joined(&path, entry.name.as_bytes());
                if let Some(inner) = self.entry(directory, &path, &entry)
                    && !directories.add(path.clone(), inner)
                {
                    self.findings.push(Finding::damage(
                        Location::Path(path),
                        "a directory that contains itself or has two names",
                    ));
                }
                ControlFlow::Continue(())
            });
            if let Err(error) = listed {
                self.finding(&path, &error);
            }
        }
    }

    /// Checks one entry. Returns its inode if it is a directory.
    fn entry(&mut self, directory: Ino, path: &[u8], entry: &DirEntry<'_>) -> Option<Ino> {
        let attr = match self.tree.lookup(directory, entry.name) {
            Ok(Some(attr)) if attr.ino == entry.ino => attr,
            Ok(other) => {
                let what = match other {
                    Some(_) => "listed, but its name leads to another file",
                    None => "listed, but not found by name",
                };
                self.findings.push(Finding::damage(Location::Path(path.to_vec()), what));
                return None;
            }
            Err(error) => {
                self.finding(path, &error);
                return None;
            }
        };
        if attr.kind != entry.kind {
            let what = format!("listed as {}, but it is {}", entry.kind, attr.kind);
            self.findings.push(Finding::damage(Location::Path(path.to_vec()), what));
        }
        self.attributes(path, attr.ino);
        self.count(path, &attr)
    }

    fn count(&mut self, path: &[u8], attr: &Attr) -> Option<Ino> {
        match attr.kind {
            FileKind::Directory => return Some(attr.ino),
            FileKind::Regular => {
                self.counts.files += 1;
                // If the offset is unknown, reading the file reports the error.
                let data_offset = self.tree.data_offset(attr.ino).unwrap_or(0);
                let crc32 = self.tree.stored_crc32(attr.ino).unwrap_or_else(|error| {
                    self.finding(path, &error);
                    None
                });
                self.files.push(File { data_offset, ino: attr.ino, size: attr.size, crc32 });
            }
            FileKind::Symlink => {
                self.counts.links += 1;
                if let Err(error) = self.tree.read_link(attr.ino) {
                    self.finding(path, &error);
                }
            }
            _ => self.counts.others += 1,
        }
        None
    }

    /// Reads all extended attributes.
    fn attributes(&mut self, path: &[u8], ino: Ino) {
        if !self.has_xattrs {
            return;
        }
        let read = self.tree.list_xattrs(ino).and_then(|names| {
            let mut names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
            names.try_for_each(|name| self.tree.xattr(ino, name).map(drop))
        });
        if let Err(error) = read {
            self.finding(path, &error.within("extended attributes"));
        }
    }

    fn finding(&mut self, path: &[u8], error: &Error) {
        self.findings.push(Finding::from_error(Location::Path(path.to_vec()), error));
    }
}

/// Visits the paths and inode numbers of everything that can be listed.
pub(super) fn walk(tree: &dyn Tree, visit: &mut dyn FnMut(&[u8], Ino)) {
    visit(b"", Ino::ROOT);
    let mut directories = DirectoryWalk::from_root();
    while let Some((path, directory)) = directories.next() {
        // The first walk has already reported the error.
        let _ = tree.read_dir(directory, Cookie::START, &mut |entry| {
            let path = joined(&path, entry.name.as_bytes());
            visit(&path, entry.ino);
            if entry.kind == FileKind::Directory {
                directories.add(path, entry.ino);
            }
            ControlFlow::Continue(())
        });
    }
}
