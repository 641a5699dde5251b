//! Whether a tree is a Python environment, which is packed often and read seldom.

use crate::vfs::{self, Entry, FileKind, Ino, Tree};

/// What conda and venv leave at the top of an environment.
const MARKS: [&str; 2] = ["conda-meta", "pyvenv.cfg"];

/// Most directories at the top of a tree that are looked into.
const DIRECTORIES_MAX: usize = 64;

/// Whether `tree`, or a directory at its top, is a Python environment.
pub(super) fn is_environment(tree: &dyn Tree) -> bool {
    let Ok(top) = vfs::entries(tree, Ino::ROOT) else { return false };
    let directories = top.iter().filter(|entry| entry.kind == FileKind::Directory);
    has_mark(&top)
        || directories.take(DIRECTORIES_MAX).any(|directory| {
            vfs::entries(tree, directory.ino).is_ok_and(|inside| has_mark(&inside))
        })
}

fn has_mark(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| MARKS.iter().any(|mark| entry.name == mark.as_bytes()))
}
