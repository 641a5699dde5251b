//! A tree without some of its files: those that are shown in another form.
//!
//! Owns leaving them out of listings and lookups; leaves everything else to the tree inside.
//! Invariant: a hidden inode has no name, so only who kept its number can still ask for it.

use std::collections::HashSet;
use std::ops::ControlFlow;

use super::{Attr, Cookie, DirEntry, Ino, Name, ReadBytes, Scratch, SeekTarget, Totals, Tree};
use crate::error::Result;
use crate::sync::Arc;

/// A tree some of whose files have no name.
pub struct Hide {
    tree: Arc<dyn Tree>,
    hidden: HashSet<Ino>,
}

impl Hide {
    /// `tree` without the files `hidden`; the tree itself where there are none.
    pub fn apply(tree: Arc<dyn Tree>, hidden: Vec<Ino>) -> Arc<dyn Tree> {
        if hidden.is_empty() {
            return tree;
        }
        Arc::new(Self { tree, hidden: hidden.into_iter().collect() })
    }
}

impl Tree for Hide {
    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.tree.attr(ino)
    }

    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        let found = self.tree.lookup(parent, name)?;
        Ok(found.filter(|attr| !self.hidden.contains(&attr.ino)))
    }

    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.tree.read_dir(ino, cookie, &mut |entry| match self.hidden.contains(&entry.ino) {
            true => ControlFlow::Continue(()),
            false => visit(entry),
        })
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.tree.read_link(ino)
    }

    fn read<'s>(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        self.tree.read(ino, offset, size, scratch)
    }

    fn seek(&self, ino: Ino, offset: u64, target: SeekTarget) -> Result<u64> {
        self.tree.seek(ino, offset, target)
    }

    fn has_xattrs(&self) -> bool {
        self.tree.has_xattrs()
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        self.tree.list_xattrs(ino)
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.tree.xattr(ino, name)
    }

    fn totals(&self) -> Totals {
        self.tree.totals()
    }
}
