//! Whether a tree is a Python environment, which is packed often and read seldom.

use std::ops::ControlFlow;

use crate::vfs::{Cookie, FileKind, Ino, Name, Tree};

/// What conda and venv leave at the top of an environment.
const MARKS: [&[u8]; 2] = [b"conda-meta", b"pyvenv.cfg"];

/// Most directories at the top of a tree that are looked into.
const DIRECTORIES_MAX: usize = 64;

/// Whether `tree`, or a directory at its top, is a Python environment.
pub(super) fn is_environment(tree: &dyn Tree) -> bool {
    let mut directories = vec![Ino::ROOT];
    // A damaged listing is no environment; whatever reads it reports the damage.
    _ = tree.read_dir(Ino::ROOT, Cookie::START, &mut |entry| {
        if entry.kind == FileKind::Directory {
            directories.push(entry.ino);
        }
        match directories.len() > DIRECTORIES_MAX {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    directories.into_iter().any(|directory| has_mark(tree, directory))
}

fn has_mark(tree: &dyn Tree, directory: Ino) -> bool {
    let mut names = MARKS.into_iter().filter_map(Name::parse);
    names.any(|name| matches!(tree.lookup(directory, name), Ok(Some(_))))
}
