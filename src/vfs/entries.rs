//! All entries of a directory at once, for code that is not asked for them one by one, and whether
//! a root has entries that can be read.

use std::ops::ControlFlow;

use super::{Cookie, FileKind, Ino, Tree};
use crate::error::Result;

/// Most names that `list_root` reads. More would delay the mount of a flat dataset.
const ROOT_NAMES: usize = 10_000;

/// An entry with a name of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// The name in the directory.
    pub name: Vec<u8>,
}

/// The entries of the directory `ino`, without `.` and `..`, in the order of the tree.
pub fn entries(tree: &dyn Tree, ino: Ino) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    tree.read_dir(ino, Cookie::START, &mut |entry| {
        let name = entry.name.as_bytes().to_vec();
        entries.push(Entry { ino: entry.ino, kind: entry.kind, name });
        ControlFlow::Continue(())
    })?;
    Ok(entries)
}

/// Lists the first names of the root. The tables of an image are otherwise read when they are used.
pub fn list_root(tree: &dyn Tree) -> Result<()> {
    let mut names = 0;
    tree.read_dir(Ino::ROOT, Cookie::START, &mut |_| {
        names += 1;
        if names < ROOT_NAMES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
}
