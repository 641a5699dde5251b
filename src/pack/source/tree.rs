//! An archive as a source, read through its tree.
//!
//! Invariant: a walk ends, even if the directories of a damaged archive form a cycle.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::{ControlFlow, Range};

use super::placing::{
    Directory, FileId, Found, FoundKind, Listed, Source, XattrRule, display_path,
};
use crate::error::{Error, Kind, Result};
use crate::pack::catalog::{Content, Meta, Xattrs};
use crate::sync::Arc;
use crate::vfs::{
    self, Attr, Cookie, DirectoryWalk, FileKind, Ino, Name, Scratch, SeekTarget, Tree, joined,
};

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub(super) struct Archive {
    tree: Arc<dyn Tree>,
    /// Its path as the user gave it, for messages.
    display: Vec<u8>,
    xattr_rule: XattrRule,
}

impl Archive {
    /// An archive at the path `display`, read through `tree`.
    pub(super) fn new(tree: Arc<dyn Tree>, display: &[u8], xattr_rule: XattrRule) -> Self {
        Self { tree, display: display.into(), xattr_rule }
    }

    pub(super) fn top(&self) -> Result<Found> {
        self.found(&self.tree.attr(Ino::ROOT)?)
    }

    fn found(&self, attr: &Attr) -> Result<Found> {
        let kind = match attr.kind {
            FileKind::Directory => FoundKind::Directory { entered: true },
            FileKind::Regular => {
                FoundKind::File { size: attr.size, sparse: attr.allocated < attr.size }
            }
            FileKind::Symlink => FoundKind::Symlink(self.tree.read_link(attr.ino)?.into()),
            kind @ (FileKind::BlockDevice | FileKind::CharDevice) => {
                FoundKind::Device { kind, number: attr.device }
            }
            FileKind::Fifo => FoundKind::Fifo,
            FileKind::Socket => FoundKind::Socket,
        };
        Ok(Found {
            id: FileId { device: 0, number: attr.ino.number() },
            linked: attr.nlink > 1,
            meta: Meta {
                permissions: attr.permissions,
                uid: attr.uid,
                gid: attr.gid,
                modified: attr.modified,
                xattrs: None,
            },
            xattrs: self.xattrs(attr.ino)?,
            kind,
        })
    }

    fn xattrs(&self, ino: Ino) -> Result<Xattrs> {
        if self.xattr_rule == XattrRule::Omit || !self.tree.has_xattrs() {
            return Ok(Xattrs::new());
        }
        let names = self.tree.list_xattrs(ino)?;
        let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        names.map(|name| Ok((name.to_vec(), self.tree.xattr(ino, name)?))).collect()
    }

    fn named(&self, key: u64) -> impl Fn(Error) -> Error + '_ {
        move |error| error.within(Content::origin(self, key))
    }

    fn examine_one(&self, directory: Ino, listed: &Listed) -> Result<Option<Found>> {
        let attr = match listed.number.and_then(Ino::new) {
            Some(ino) => Some(self.tree.attr(ino)?),
            None => match Name::parse(&listed.name) {
                Some(name) => self.tree.lookup(directory, name)?,
                None => None,
            },
        };
        let missing = || Error::new(Kind::NotFound, "no such file in the archive");
        self.found(&attr.ok_or_else(missing)?).map(Some)
    }
}

/// An inode number that the tree returned, as an `Ino`.
fn ino(number: u64) -> Result<Ino> {
    Ino::new(number).ok_or_else(|| Error::new(Kind::NotFound, "inode number 0"))
}

impl Source for Archive {
    fn names(&self, directory: &Directory) -> Result<Vec<Listed>> {
        let mut names = Vec::new();
        self.tree.read_dir(ino(directory.id.number)?, Cookie::START, &mut |entry| {
            let number = Some(entry.ino.number());
            names.push(Listed { name: entry.name.as_bytes().into(), number });
            ControlFlow::Continue(())
        })?;
        Ok(names)
    }

    fn examine(&self, directory: &Directory, names: &[Listed]) -> Vec<Result<Option<Found>>> {
        let found = |name| ino(directory.id.number).and_then(|ino| self.examine_one(ino, name));
        names.iter().map(found).collect()
    }

    fn origin(&self, path: &[u8]) -> String {
        display_path(&self.display, path)
    }
}

/// The directories of an archive that the walk has seen.
#[derive(Default)]
pub(super) struct VisitedDirectories(HashSet<u64>);

impl VisitedDirectories {
    pub(super) fn key(&mut self, found: &Found) -> Result<u64> {
        let number = found.id.number;
        let is_directory = matches!(found.kind, FoundKind::Directory { .. });
        if is_directory && (number == Ino::ROOT.number() || !self.0.insert(number)) {
            return Err(Error::corrupt("a directory that contains itself or has two names"));
        }
        Ok(number)
    }
}

impl Content for Archive {
    fn read(&self, key: u64, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let ino = ino(key)?;
        let read = |scratch: &mut Scratch| {
            let (mut rest, mut offset) = (buffer, offset);
            while !rest.is_empty() {
                let piece = vfs::piece_of(rest.len() as u64);
                let bytes = vfs::read_some(self.tree.as_ref(), ino, offset, piece, scratch)?;
                let bytes = bytes.as_slice();
                let (read, unread) = rest.split_at_mut(bytes.len());
                read.copy_from_slice(bytes);
                rest = unread;
                offset += bytes.len() as u64;
            }
            Ok(())
        };
        SCRATCH.with_borrow_mut(read).map_err(self.named(key))
    }

    fn next_data(&self, key: u64, offset: u64) -> Result<Option<Range<u64>>> {
        let ino = ino(key)?;
        let seek = |offset, target| match self.tree.seek(ino, offset, target) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == Kind::PastEnd => Ok(None),
            Err(error) => Err(self.named(key)(error)),
        };
        let Some(start) = seek(offset, SeekTarget::Data)? else { return Ok(None) };
        let end = seek(start, SeekTarget::Hole)?;
        Ok(end.filter(|&end| end > start).map(|end| start..end))
    }

    fn data_offset(&self, key: u64) -> u64 {
        ino(key).and_then(|ino| self.tree.data_offset(ino)).unwrap_or(0)
    }

    fn stored_crc32(&self, key: u64) -> Result<Option<u32>> {
        let checksum = ino(key).and_then(|ino| self.tree.stored_crc32(ino));
        checksum.map_err(self.named(key))
    }

    fn origin(&self, key: u64) -> String {
        // Inodes do not know their names, so search for one. Only messages need it.
        let path = ino(key).ok().and_then(|ino| path_of(self.tree.as_ref(), ino));
        match path {
            Some(path) => display_path(&self.display, &path),
            None => format!("{}: inode {key}", String::from_utf8_lossy(&self.display)),
        }
    }
}

/// The first path that leads to an inode.
fn path_of(tree: &dyn Tree, wanted: Ino) -> Option<Vec<u8>> {
    let mut directories = DirectoryWalk::from_root();
    while let Some((path, directory)) = directories.next() {
        let mut found = None;
        let visit = &mut |entry: vfs::DirEntry<'_>| {
            let path = joined(&path, entry.name.as_bytes());
            if entry.ino == wanted {
                found = Some(path);
                return ControlFlow::Break(());
            }
            if entry.kind == FileKind::Directory {
                directories.add(path, entry.ino);
            }
            ControlFlow::Continue(())
        };
        // Skip directories that cannot be listed.
        let _ = tree.read_dir(directory, Cookie::START, visit);
        if found.is_some() {
            return found;
        }
    }
    None
}
