//! Visits everything in a catalog, one name after the other, and puts its files in order.
//!
//! Invariant: a directory comes before its entries, and names in a directory ascend. An inode with
//! several names is visited once for each name.

use super::catalog::{Catalog, InodeId, InodeKind};

impl Catalog {
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
