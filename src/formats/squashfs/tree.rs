//! An image in the words of `vfs`: each operation of `Tree`.
//!
//! Owns what an operation is made of, what must hold between a folder and its entries, and that an
//! error names the archive and the inode that it is about. Leaves the parts to their own files.
//! Invariant: an error about damage says of which inode.

use std::ops::ControlFlow;

use super::directory::Entry;
use super::inode::InodeRef;
use super::{SquashFs, audit};
use crate::error::{Error, Kind, Result};
use crate::vfs::{
    Attr, Cookie, DirEntry, Fault, FileKind, Ino, Name, ReadBytes, Scratch, SeekTarget, Totals,
    Tree,
};

impl Tree for SquashFs {
    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.reference(ino).and_then(|reference| self.attr_of(reference)).map_err(self.named(ino))
    }

    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        let found = self.directory(parent).and_then(|directory| directory.find(name));
        let Some((reference, kind)) = found.map_err(self.named(parent))? else {
            return Ok(None);
        };
        let child = self.child(parent, reference, kind);
        child.map(Some).map_err(self.named(reference.ino(self.root)))
    }

    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut sound = Ok(());
        self.directory(ino)
            .and_then(|directory| {
                directory.visit(cookie, |entry| {
                    let child = entry.reference.ino(self.root);
                    sound = check_child(ino, child);
                    if sound.is_err() {
                        return ControlFlow::Break(());
                    }
                    let Entry { kind, name, next, .. } = entry;
                    visit(DirEntry { ino: child, kind, name, next })
                })
            })
            .and(sound)
            .map_err(self.named(ino))
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.target(ino).map_err(self.named(ino))
    }

    fn read<'s>(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        self.file(ino)
            .and_then(|file| {
                self.read_ahead(&file, offset..offset.saturating_add(u64::from(size)));
                self.data.read(&self.metadata, file, offset, size, scratch)
            })
            .map_err(self.named(ino))
    }

    fn seek(&self, ino: Ino, offset: u64, target: SeekTarget) -> Result<u64> {
        self.file(ino)
            .and_then(|file| self.data.seek(&self.metadata, file, offset, target))
            .map_err(self.named(ino))
    }

    fn has_xattrs(&self) -> bool {
        self.xattrs.is_some()
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        let listed = self.xattrs_of(ino).and_then(|found| match found {
            Some((xattrs, id)) => xattrs.list(&self.metadata, id),
            None => Ok(Vec::new()),
        });
        listed.map_err(self.named(ino))
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let value = self.xattrs_of(ino).and_then(|found| match found {
            Some((xattrs, id)) => xattrs.value(&self.metadata, id, name),
            None => Err(Error::new(Kind::NoAttribute, "no such attribute")),
        });
        value.map_err(self.named(ino))
    }

    fn totals(&self) -> Totals {
        Totals {
            bytes: self.superblock.bytes_used,
            inodes: u64::from(self.superblock.inode_count),
            block_size: self.superblock.block_size,
        }
    }

    fn place(&self, ino: Ino) -> Result<u64> {
        self.file(ino)
            .and_then(|file| self.data.start(&self.metadata, &file.body))
            .map_err(self.named(ino))
    }

    fn audit(&self, found: &mut dyn FnMut(Fault)) {
        audit::audit(self, found);
    }

    // Not its storage: where that is a file of another archive, that is a tree of its own beside
    // this one, and is asked itself.
    fn release(&self) {
        self.data.release();
        self.metadata.release();
    }
}

impl SquashFs {
    /// What the entry of `parent` leads to that says it is of that `kind`. Each folder is in one
    /// place of a tree: the root in none, and none in itself.
    fn child(&self, parent: Ino, reference: InodeRef, kind: FileKind) -> Result<Attr> {
        check_child(parent, reference.ino(self.root))?;
        let attr = self.attr_of(reference)?;
        if attr.kind != kind {
            let context = format!("is {:?}, its entry says {kind:?}", attr.kind);
            return Err(Error::corrupt(context));
        }
        Ok(attr)
    }

    /// Puts the archive's name in front of an error, and behind that, if the archive is at fault,
    /// where the inode is that this is about.
    fn named(&self, ino: Ino) -> impl Fn(Error) -> Error + '_ {
        move |error| {
            let reference = InodeRef::from_ino(ino, self.root).filter(|_| error.is_damage());
            let error = match reference {
                Some(reference) => error.within(reference.place(self.superblock.inode_table)),
                None => error,
            };
            error.within(&self.name)
        }
    }
}

/// Refuses an entry that would make a folder its own ancestor, as far as one step shows it.
fn check_child(parent: Ino, child: Ino) -> Result<()> {
    match child {
        Ino::ROOT => Err(Error::corrupt("holds the root")),
        child if child == parent => Err(Error::corrupt("holds itself")),
        _ => Ok(()),
    }
}
