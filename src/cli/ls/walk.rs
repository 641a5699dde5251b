//! Visits the entries below a directory, each directory before its contents.

use std::ops::ControlFlow;

use crate::cli::open_args::OpenArgs;
use crate::error::Result;
use crate::vfs::{Cookie, FileKind, Ino, Tree, joined};

/// An entry that was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) ino: Ino,
    pub(super) kind: FileKind,
    /// Its path from the root of the archive, without a leading slash.
    pub(super) path: Vec<u8>,
    /// Where in `path` the part begins that is shown: what is below the listed directory.
    pub(super) name_at: usize,
}

impl Found {
    /// The part of the path that is shown.
    pub(super) fn shown(&self) -> &[u8] {
        match self.path.get(self.name_at..) {
            None | Some([]) => b"/",
            Some(shown) => shown,
        }
    }

    /// The last component of the path.
    pub(super) fn name(&self) -> &[u8] {
        self.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
    }

    /// Whether the name begins with a dot.
    pub(super) fn is_hidden(&self) -> bool {
        self.name().starts_with(b".")
    }
}

/// The entries of `directory`, sorted by byte.
pub(super) fn entries(tree: &dyn Tree, open: &OpenArgs, directory: &Found) -> Result<Vec<Found>> {
    let mut entries = Vec::new();
    let listed = tree.read_dir(directory.ino, Cookie::START, &mut |entry| {
        let path = joined(&directory.path, entry.name.as_bytes());
        let name_at = directory.name_at;
        entries.push(Found { ino: entry.ino, kind: entry.kind, path, name_at });
        ControlFlow::Continue(())
    });
    listed.map_err(|error| open.located(&directory.path, error))?;
    Ok(entries)
}

/// Calls `visit` for each entry below `root`, with the state that it returned for the directory of
/// the entry. It does not enter a directory for which `visit` returns `None`.
pub(super) fn walk<S>(
    tree: &dyn Tree,
    open: &OpenArgs,
    root: &Found,
    state: S,
    visit: &mut dyn FnMut(&Found, &S) -> Result<Option<S>>,
) -> Result<()> {
    // The directories from `root` down, each with its remaining entries. A list and not recursion,
    // because an archive may be arbitrarily deep.
    let mut open_directories = vec![(root.ino, entries(tree, open, root)?.into_iter(), state)];
    while let Some((_, remaining, state)) = open_directories.last_mut() {
        let Some(found) = remaining.next() else {
            open_directories.pop();
            continue;
        };
        let Some(below) = visit(&found, state)? else { continue };
        // In a damaged archive a directory may contain itself.
        let is_cycle = || open_directories.iter().any(|(ancestor, ..)| *ancestor == found.ino);
        if found.kind == FileKind::Directory && !is_cycle() {
            let entries = entries(tree, open, &found)?;
            open_directories.push((found.ino, entries.into_iter(), below));
        }
    }
    Ok(())
}
