//! A tree shown differently: from a subdirectory, with other owners or permissions, or without some
//! files.
//!
//! Implements `--subdir`, `uid=`, `gid=` and `umask=`, and hides archives that are shown as
//! directories.
//! Invariants: the subdirectory is `Ino::ROOT` of the view, and all other inode numbers keep their
//! meaning; a hidden inode has no name.

use std::collections::HashSet;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::{
    Attr, Cookie, DirEntry, FileKind, Finding, Ino, Location, Name, ReadBytes, Scratch, SeekTarget,
    StoredFile, Totals, Tree, resolve_through,
};
use crate::error::{Error, Kind, Result};
use crate::sync::Arc;

/// How a tree is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewOptions {
    /// The directory that becomes the root: a path in the tree, in bytes.
    pub subdir: Option<Vec<u8>>,
    /// The owner shown for all files.
    pub uid: Option<u32>,
    /// The group shown for all files.
    pub gid: Option<u32>,
    /// The permissions that no file has; each has all others. `None` to show those in the archive.
    pub umask: Option<u16>,
}

/// A tree with another root, other owners, other permissions or fewer files.
pub struct View {
    tree: Arc<dyn Tree>,
    root: Ino,
    uid: Option<u32>,
    gid: Option<u32>,
    /// The permissions of all files.
    permissions: Option<u16>,
    /// Files that are neither listed nor found by name.
    hidden: HashSet<Ino>,
}

impl View {
    /// `tree` without the files `hidden`. If there are none, the tree itself.
    pub fn without(tree: Arc<dyn Tree>, hidden: Vec<Ino>) -> Arc<dyn Tree> {
        if hidden.is_empty() {
            return tree;
        }
        let hidden = hidden.into_iter().collect();
        let (uid, gid, permissions) = (None, None, None);
        Arc::new(Self { tree, root: Ino::ROOT, uid, gid, permissions, hidden })
    }

    /// `tree` as `options` describe. If they change nothing, the tree itself.
    ///
    /// # Errors
    /// `NotFound` or `NotADirectory` for the subdirectory; errors of the tree during its
    /// resolution.
    pub fn apply(tree: Arc<dyn Tree>, options: &ViewOptions) -> Result<Arc<dyn Tree>> {
        if *options == ViewOptions::default() {
            return Ok(tree);
        }
        let ViewOptions { subdir, uid, gid, umask } = options.clone();
        let root = match subdir {
            None => Ino::ROOT,
            Some(path) => {
                let attr = resolve_through(tree.as_ref(), &path)?;
                if attr.kind != FileKind::Directory {
                    let path = String::from_utf8_lossy(&path).into_owned();
                    return Err(Error::new(
                        Kind::NotADirectory,
                        format!("{path}: not a directory in the archive"),
                    ));
                }
                attr.ino
            }
        };
        let permissions = umask.map(|umask| 0o777 & !umask);
        Ok(Arc::new(Self { tree, root, uid, gid, permissions, hidden: HashSet::new() }))
    }

    /// The tree's number for an inode of the view.
    fn inner(&self, ino: Ino) -> Ino {
        if ino == Ino::ROOT { self.root } else { ino }
    }

    /// The view's number for an inode of the tree.
    fn outer(&self, ino: Ino) -> Ino {
        if ino == self.root { Ino::ROOT } else { ino }
    }

    fn show(&self, mut attr: Attr) -> Attr {
        attr.ino = self.outer(attr.ino);
        attr.uid = self.uid.unwrap_or(attr.uid);
        attr.gid = self.gid.unwrap_or(attr.gid);
        attr.permissions = self.permissions.unwrap_or(attr.permissions);
        attr
    }
}

impl Tree for View {
    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.tree.attr(self.inner(ino)).map(|attr| self.show(attr))
    }

    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        let found = self.tree.lookup(self.inner(parent), name)?;
        Ok(found.filter(|attr| !self.hidden.contains(&attr.ino)).map(|attr| self.show(attr)))
    }

    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.tree.read_dir(self.inner(ino), cookie, &mut |mut entry| {
            if self.hidden.contains(&entry.ino) {
                return ControlFlow::Continue(());
            }
            entry.ino = self.outer(entry.ino);
            visit(entry)
        })
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.tree.read_link(self.inner(ino))
    }

    fn read<'s>(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        self.tree.read(self.inner(ino), offset, size, scratch)
    }

    fn seek(&self, ino: Ino, offset: u64, target: SeekTarget) -> Result<u64> {
        self.tree.seek(self.inner(ino), offset, target)
    }

    fn has_xattrs(&self) -> bool {
        self.tree.has_xattrs()
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        self.tree.list_xattrs(self.inner(ino))
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.tree.xattr(self.inner(ino), name)
    }

    fn parent(&self, ino: Ino) -> Result<Option<Ino>> {
        match ino {
            Ino::ROOT => Ok(Some(ino)),
            ino => Ok(self.tree.parent(ino)?.map(|parent| self.outer(parent))),
        }
    }

    fn numbers_end(&self) -> u64 {
        self.tree.numbers_end()
    }

    fn data_offset(&self, ino: Ino) -> Result<u64> {
        self.tree.data_offset(self.inner(ino))
    }

    fn stored_crc32(&self, ino: Ino) -> Result<Option<u32>> {
        self.tree.stored_crc32(self.inner(ino))
    }

    fn stored_files(&self, visit: &mut dyn FnMut(Ino, StoredFile)) -> Result<()> {
        self.tree.stored_files(visit)
    }

    fn audit(&self, found: &mut dyn FnMut(Finding)) {
        self.tree.audit(&mut |mut finding| {
            if let Location::Inode(ino) = &mut finding.location {
                *ino = self.outer(*ino);
            }
            found(finding);
        });
    }

    fn totals(&self) -> Totals {
        self.tree.totals()
    }

    fn release(&self) {
        self.tree.release();
    }
}
