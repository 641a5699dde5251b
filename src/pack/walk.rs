//! Visits everything in a catalog, one name after the other.
//!
//! Invariant: a directory comes before its entries, and names in a directory ascend. An inode with
//! several names is visited once for each name.

use super::catalog::{Catalog, InodeId, InodeKind};

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
