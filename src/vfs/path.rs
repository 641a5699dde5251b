//! Paths inside a tree.
//!
//! Owns how paths are put together, and the walk from the root along names, used where no kernel
//! does it (`ls`, `cat`, `--subdir`).
//! Invariant: neither `..` nor a symbolic link, absolute ones included, leads out of the tree.

use super::{Attr, FileKind, Ino, Name, Tree};
use crate::error::{Error, Kind, Result};

/// Links followed in one walk before it is taken for a loop (Linux: MAXSYMLINKS).
const MAX_LINKS: u32 = 40;

const LOOK: &str = "archfs ls ARCHIVE shows what is in it";

/// The attributes of what `path` names, taken from the root; a symbolic link at its end is not
/// followed.
///
/// # Errors
/// `NotFound`, `NotADirectory`; `InvalidInput` for a loop of links; what the tree reports.
pub fn resolve(tree: &dyn Tree, path: &[u8]) -> Result<Attr> {
    walk(tree, path, LastLink::Keep)
}

/// The same, with a symbolic link at the end followed, inside the tree.
///
/// # Errors
/// As `resolve`.
pub fn resolve_through(tree: &dyn Tree, path: &[u8]) -> Result<Attr> {
    walk(tree, path, LastLink::Follow)
}

/// The path of what has `name` in the folder of path `folder`, which is empty for the root.
pub fn joined(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match folder {
        [] => name.to_vec(),
        folder => [folder, b"/", name].concat(),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LastLink {
    Keep,
    Follow,
}

fn walk(tree: &dyn Tree, path: &[u8], last: LastLink) -> Result<Attr> {
    let error =
        |kind, why: &str| Error::new(kind, format!("{}: {why}", String::from_utf8_lossy(path)));
    let mut links = 0;
    // Folders from the root to the present one; `..` pops, and the root stays.
    let mut trail = vec![tree.attr(Ino::ROOT)?];
    // Names still to walk, the next one last.
    let mut rest = split(path);
    while let Some(component) = rest.pop() {
        if component == b".." {
            trail.truncate(trail.len().saturating_sub(1).max(1));
            continue;
        }
        let here = trail.last().map_or(Ino::ROOT, |folder| folder.ino);
        let missing = || error(Kind::NotFound, "no such path in the archive").with_hint(LOOK);
        let name = Name::parse(&component).ok_or_else(missing)?;
        let attr = tree.lookup(here, name)?.ok_or_else(missing)?;
        match attr.kind {
            FileKind::Directory => trail.push(attr),
            FileKind::Symlink if last == LastLink::Follow || !rest.is_empty() => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(error(Kind::InvalidInput, "too many symbolic links"));
                }
                let target = tree.read_link(attr.ino)?;
                if target.first() == Some(&b'/') {
                    trail.truncate(1);
                }
                rest.extend(split(&target));
            }
            _ if rest.is_empty() => return Ok(attr),
            _ => return Err(error(Kind::NotADirectory, "not a directory on the way")),
        }
    }
    trail.pop().ok_or_else(|| error(Kind::NotFound, "no such path in the archive"))
}

/// The components of `path` without empty ones and `.`, last first.
fn split(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&byte| byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
        .rev()
        .collect()
}
