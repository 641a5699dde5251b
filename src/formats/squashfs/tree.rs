//! An image in the words of `vfs`: each operation of `Tree`.
//!
//! Owns what an operation is made of, what must hold between a folder and its entries, and that an
//! error names the archive and the inode that it is about. Leaves the parts to their own files.
//! Invariant: an error about damage says of which inode.

use std::ops::ControlFlow;

use super::directory::{Entry, Found};
use super::inode::{Body, InodeRef};
use super::superblock::Superblock;
use super::{SquashFs, audit};
use crate::error::{Error, Kind, Result};
use crate::vfs::{
    Attr, Cookie, DirEntry, Finding, Ino, Name, ReadBytes, Scratch, SeekTarget, Totals, Tree,
};

impl Tree for SquashFs {
    fn attr(&self, ino: Ino) -> Result<Attr> {
        let attr = self.reference(ino).and_then(|reference| self.attr_of(reference, ino));
        attr.map_err(self.named(ino))
    }

    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        let found = self
            .reference(parent)
            .and_then(|reference| Ok((reference, self.directory(reference)?.find(name)?)));
        let (above, Some(found)) = found.map_err(self.named(parent))? else {
            return Ok(None);
        };
        let ino = self.ino(found.reference, found.number).map_err(self.named(parent))?;
        self.child(above, found, ino).map(Some).map_err(self.named(ino))
    }

    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut sound = Ok(());
        self.reference(ino)
            .and_then(|above| {
                self.directory(above)?.visit(cookie, |entry| {
                    let Entry { reference, number, kind, name, next } = entry;
                    let child = self.check_child(above, reference);
                    match child.and_then(|()| self.ino(reference, number)) {
                        Ok(ino) => visit(DirEntry { ino, kind, name, next }),
                        Err(error) => {
                            sound = Err(error);
                            ControlFlow::Break(())
                        }
                    }
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

    fn parent(&self, ino: Ino) -> Result<Option<Ino>> {
        let parent = self.reference(ino).and_then(|reference| {
            let (inode, _) = self.inode(reference)?;
            match inode.body {
                _ if reference == self.numbers.root() => Ok(Some(Ino::ROOT)),
                Body::Directory(body) => self.numbers.stored(&self.metadata, body.parent),
                _ => Err(Error::new(Kind::NotADirectory, "not a directory")),
            }
        });
        parent.map_err(self.named(ino))
    }

    fn numbers_end(&self) -> u64 {
        let Superblock { inode_table, directory_table, .. } = self.superblock;
        self.numbers.end(directory_table.saturating_sub(inode_table))
    }

    fn data_offset(&self, ino: Ino) -> Result<u64> {
        self.file(ino)
            .and_then(|file| self.data.start(&self.metadata, &file.body))
            .map_err(self.named(ino))
    }

    fn audit(&self, found: &mut dyn FnMut(Finding)) {
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
    /// What an entry of the directory `above` leads to: the inode `ino`, of the kind that the entry
    /// says. Each folder is in one place of a tree: the root in none, and none in itself.
    fn child(&self, above: InodeRef, found: Found, ino: Ino) -> Result<Attr> {
        self.check_child(above, found.reference)?;
        let (attr, kind) = (self.attr_of(found.reference, ino)?, found.kind);
        if attr.kind != kind {
            let context = format!("is {:?}, its entry says {kind:?}", attr.kind);
            return Err(Error::corrupt(context));
        }
        Ok(attr)
    }

    /// Refuses an entry that would make a folder its own ancestor, as far as one step shows it.
    fn check_child(&self, above: InodeRef, child: InodeRef) -> Result<()> {
        match child {
            child if child == self.numbers.root() => Err(Error::corrupt("holds the root")),
            child if child == above => Err(Error::corrupt("holds itself")),
            _ => Ok(()),
        }
    }

    /// Puts the archive's name in front of an error, and behind that, if the archive is at fault,
    /// where the inode is that this is about.
    fn named(&self, ino: Ino) -> impl Fn(Error) -> Error + '_ {
        move |error| {
            let reference = error.is_damage().then(|| self.reference(ino));
            let error = match reference {
                Some(Ok(reference)) => error.within(reference.place(self.superblock.inode_table)),
                _ => error,
            };
            error.within(&self.name)
        }
    }
}
