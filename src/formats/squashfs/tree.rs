//! Implements the operations of `Tree` for an image.
//!
//! Invariant: an error names the archive, and an error about damage also names the inode.

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
        attr.map_err(self.with_location(ino))
    }

    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        let found = self
            .reference(parent)
            .and_then(|reference| Ok((reference, self.directory(reference)?.find(name)?)));
        let (parent_ref, Some(found)) = found.map_err(self.with_location(parent))? else {
            return Ok(None);
        };
        let ino = self.ino(found.reference, found.number).map_err(self.with_location(parent))?;
        self.child(parent_ref, found, ino).map(Some).map_err(self.with_location(ino))
    }

    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut checked = Ok(());
        self.reference(ino)
            .and_then(|parent_ref| {
                self.directory(parent_ref)?.visit(cookie, |entry| {
                    let Entry { reference, number, kind, name, next } = entry;
                    let child = self.check_child(parent_ref, reference);
                    match child.and_then(|()| self.ino(reference, number)) {
                        Ok(ino) => visit(DirEntry { ino, kind, name, next }),
                        Err(error) => {
                            checked = Err(error);
                            ControlFlow::Break(())
                        }
                    }
                })
            })
            .and(checked)
            .map_err(self.with_location(ino))
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.target(ino).map_err(self.with_location(ino))
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
            .map_err(self.with_location(ino))
    }

    fn seek(&self, ino: Ino, offset: u64, target: SeekTarget) -> Result<u64> {
        self.file(ino)
            .and_then(|file| self.data.seek(&self.metadata, file, offset, target))
            .map_err(self.with_location(ino))
    }

    fn has_xattrs(&self) -> bool {
        self.xattrs.is_some()
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        let listed = self.xattrs_of(ino).and_then(|found| match found {
            Some((xattrs, id)) => xattrs.list(&self.metadata, id),
            None => Ok(Vec::new()),
        });
        listed.map_err(self.with_location(ino))
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let value = self.xattrs_of(ino).and_then(|found| match found {
            Some((xattrs, id)) => xattrs.value(&self.metadata, id, name),
            None => Err(Error::new(Kind::NoAttribute, "no such attribute")),
        });
        value.map_err(self.with_location(ino))
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
        parent.map_err(self.with_location(ino))
    }

    fn numbers_end(&self) -> u64 {
        let Superblock { inode_table, directory_table, .. } = self.superblock;
        self.numbers.end(directory_table.saturating_sub(inode_table))
    }

    fn data_offset(&self, ino: Ino) -> Result<u64> {
        self.file(ino)
            .and_then(|file| self.data.start(&self.metadata, &file.body))
            .map_err(self.with_location(ino))
    }

    fn audit(&self, found: &mut dyn FnMut(Finding)) {
        audit::audit(self, found);
    }

    // The storage is not released here. If it is a file of another archive, that archive is another
    // tree of the mount and is released itself.
    fn release(&self) {
        self.data.release();
        self.metadata.release();
    }
}

impl SquashFs {
    /// The attributes of inode `ino`, which the entry `found` of the directory `parent_ref` names.
    /// Checks that it has the kind of the entry, and that no directory contains the root or itself.
    fn child(&self, parent_ref: InodeRef, found: Found, ino: Ino) -> Result<Attr> {
        self.check_child(parent_ref, found.reference)?;
        let (attr, kind) = (self.attr_of(found.reference, ino)?, found.kind);
        if attr.kind != kind {
            let context = format!("is {:?}, its entry says {kind:?}", attr.kind);
            return Err(Error::corrupt(context));
        }
        Ok(attr)
    }

    /// Rejects an entry that makes a directory its own parent, or the root a child.
    fn check_child(&self, parent_ref: InodeRef, child: InodeRef) -> Result<()> {
        match child {
            child if child == self.numbers.root() => Err(Error::corrupt("holds the root")),
            child if child == parent_ref => Err(Error::corrupt("holds itself")),
            _ => Ok(()),
        }
    }

    /// Returns a function that adds the archive's name to an error. For damage, it also adds the
    /// position of the inode.
    fn with_location(&self, ino: Ino) -> impl Fn(Error) -> Error + '_ {
        move |error| {
            let reference = error.is_damage().then(|| self.reference(ino));
            let error = match reference {
                Some(Ok(reference)) => {
                    error.within(reference.describe(self.superblock.inode_table))
                }
                _ => error,
            };
            error.within(&self.name)
        }
    }
}
