//! Everything in a catalog, one after the other.
//!
//! Owns the order in which names are met; leaves what becomes of them to whoever walks.
//! Invariant: a folder comes before what is in it, and the names of a folder ascend. An inode with
//! several names is met at each.

use super::catalog::{Catalog, InodeId, What};

/// The entries of a folder that are still to come.
type Entries<'c> = Box<dyn Iterator<Item = (&'c [u8], InodeId)> + 'c>;

/// A walk that waits between two names.
pub(crate) struct Walk<'c> {
    catalog: &'c Catalog,
    path: Vec<u8>,
    /// Folders that are not done, with the length of their path. They wait on a list and not on
    /// the stack, for they may go down as deep as they like.
    waiting: Vec<(usize, Entries<'c>)>,
}

impl<'c> Walk<'c> {
    /// A walk that has met nothing; the root, which has no name, is never met.
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
        if matches!(self.catalog.inode(id).what, What::Folder(_)) {
            self.waiting.push((self.path.len(), Box::new(self.catalog.entries(id))));
        }
        Some((&self.path, id))
    }
}
