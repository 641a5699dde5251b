//! Archives that are files of another archive.
//!
//! Owns finding them in a tree, and reading one as storage. Tars within a tar need neither: they
//! are found by the scan, and their bytes lie in the outer archive as they are.
//! Invariant: finding ends, whatever a damaged archive says of its folders.

use std::cell::RefCell;
use std::ops::ControlFlow;

use super::bytes::length;
use super::squashfs::SquashFs;
use super::tar;
use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::{Cookie, FileKind, Folders, Ino, Scratch, Tree, joined};

/// Bytes asked of the tree at once.
const STEP: usize = 1 << 20;

thread_local! {
    /// Memory of the tree's answers; a tree within a tree within a tree needs one for each.
    static SCRATCHES: RefCell<Vec<Scratch>> = const { RefCell::new(Vec::new()) };
}

/// An archive that was found.
pub(super) struct Found {
    /// The folder that shall show it, without a leading slash.
    pub(super) folder: Vec<u8>,
    pub(super) ino: Ino,
    pub(super) size: u64,
}

/// All regular files of `tree` that are archives by name and first bytes, as far as it can be read.
pub(super) fn find(tree: &dyn Tree) -> Vec<Found> {
    let mut found = Vec::new();
    let mut folders = Folders::from_root();
    let mut scratch = Scratch::default();
    while let Some((path, folder)) = folders.next() {
        let mut candidates = Vec::new();
        // What is damaged is no archive to be shown, and no reason to show nothing.
        let listed = tree.read_dir(folder, Cookie::START, &mut |entry| {
            let path = joined(&path, entry.name.as_bytes());
            match entry.kind {
                FileKind::Directory => {
                    folders.add(path, entry.ino);
                }
                FileKind::Regular => {
                    let folder = tar::folder_name(&path).map(<[u8]>::to_vec);
                    candidates.extend(folder.map(|folder| (folder, entry.ino)));
                }
                _ => {}
            }
            ControlFlow::Continue(())
        });
        if let Err(error) = listed {
            log::warn!("{error}; archives in that folder are not looked for");
        }
        for (folder, ino) in candidates {
            let head = tree.read(ino, 0, HEAD, &mut scratch);
            let (Ok(attr), Ok(head)) = (tree.attr(ino), head) else { continue };
            let (size, head) = (attr.size, head.as_slice());
            if recognises(head) {
                found.push(Found { folder, ino, size });
            }
        }
    }
    found
}

/// Bytes of the head of a file that tell whether it is an archive.
pub const HEAD: u32 = 1024;

/// Whether a file of an archive is one that would be shown as a folder: its name says so, and the
/// first bytes of it.
pub fn is_within(path: &[u8], head: &[u8]) -> bool {
    tar::folder_name(path).is_some() && recognises(head)
}

fn recognises(head: &[u8]) -> bool {
    SquashFs::recognises(head) || tar::recognises(head)
}

/// A file of a tree as storage.
pub(super) struct Inside {
    tree: Arc<dyn Tree>,
    ino: Ino,
    len: u64,
}

impl Inside {
    /// The file `ino` of `tree`, which has `len` bytes.
    pub(super) fn new(tree: Arc<dyn Tree>, ino: Ino, len: u64) -> Self {
        Self { tree, ino, len }
    }

    fn read(&self, buffer: &mut [u8], mut offset: u64, scratch: &mut Scratch) -> Result<()> {
        let mut rest = buffer;
        while !rest.is_empty() {
            let size = u32::try_from(rest.len().min(STEP)).unwrap_or(u32::MAX);
            let bytes = self.tree.read(self.ino, offset, size, scratch)?;
            let bytes = bytes.as_slice();
            let missing = rest.len();
            let (target, behind) = rest.split_at_mut_checked(bytes.len()).unwrap_or_default();
            if target.is_empty() {
                return Err(Error::corrupt(format!("ends {missing} bytes early at {offset:#x}")));
            }
            target.copy_from_slice(bytes);
            offset = offset.saturating_add(length(target.len()));
            rest = behind;
        }
        Ok(())
    }
}

impl Storage for Inside {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(length(buffer.len()));
        if end.is_none_or(|end| end > self.len) {
            let wanted = buffer.len();
            return Err(Error::corrupt(format!("{wanted} bytes at {offset:#x} of {}", self.len)));
        }
        let taken = SCRATCHES.with_borrow_mut(Vec::pop);
        let mut scratch = taken.unwrap_or_default();
        let outcome = self.read(buffer, offset, &mut scratch);
        SCRATCHES.with_borrow_mut(|scratches| scratches.push(scratch));
        outcome
    }
}
