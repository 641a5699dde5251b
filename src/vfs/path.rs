//! Path resolution inside a tree, for code that cannot leave it to the kernel (`ls`, `cat`,
//! `--subdir`).
//!
//! Invariant: neither `..` nor a symbolic link, even an absolute one, leads out of the tree.

use super::{Attr, FileKind, Ino, Name, Tree};
use crate::error::{Error, Kind, Result};

/// Links followed in one resolution before it is considered a loop (Linux: MAXSYMLINKS).
const MAX_LINKS: u32 = 40;

const LIST_HINT: &str = "run `archfs ls ARCHIVE` to see its paths";

/// The target of a symbolic link as an archive records it.
///
/// # Errors
/// `Corrupt` if no link on Linux can have it: the target would end at a NUL byte.
pub fn link_target(recorded: Vec<u8>) -> Result<Vec<u8>> {
    match recorded.contains(&0) {
        true => Err(Error::corrupt("a NUL byte in the target of a symbolic link")),
        false => Ok(recorded),
    }
}

/// The attributes of `path`, resolved from the root. A symbolic link as the last component is not
/// followed.
///
/// # Errors
/// `NotFound`, `NotADirectory`; `InvalidInput` for a loop of links; errors of the tree.
pub fn resolve(tree: &dyn Tree, path: &[u8]) -> Result<Attr> {
    walk(tree, path, LastLink::Keep)
}

/// Like `resolve`, but follows a symbolic link as the last component, inside the tree.
pub fn resolve_through(tree: &dyn Tree, path: &[u8]) -> Result<Attr> {
    walk(tree, path, LastLink::Follow)
}

/// Like `resolve_through`, for a regular file.
///
/// # Errors
/// As `resolve`; `IsADirectory`, and `InvalidInput` for anything else that is not a regular file.
pub fn resolve_file(tree: &dyn Tree, path: &[u8]) -> Result<Attr> {
    let attr = resolve_through(tree, path)?;
    let refused =
        |kind, what| Error::new(kind, format!("{}: {what}", String::from_utf8_lossy(path)));
    match attr.kind {
        FileKind::Regular => Ok(attr),
        FileKind::Directory => {
            Err(refused(Kind::IsADirectory, "is a directory").with_hint("list it with `archfs ls`"))
        }
        _ => Err(refused(Kind::InvalidInput, "not a regular file")),
    }
}

/// The path of `name` in the directory `directory`, which is empty for the root.
pub fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        [] => name.to_vec(),
        directory => [directory, b"/", name].concat(),
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
    // Directories from the root to the current one. `..` pops; the root stays.
    let mut trail = vec![tree.attr(Ino::ROOT)?];
    // Names still to resolve, the next one last.
    let mut rest = split(path);
    while let Some(component) = rest.pop() {
        if component == b".." {
            trail.truncate(trail.len().saturating_sub(1).max(1));
            continue;
        }
        let current = trail.last().map_or(Ino::ROOT, |directory| directory.ino);
        let missing = || error(Kind::NotFound, "no such path in the archive").with_hint(LIST_HINT);
        let name = Name::parse(&component).ok_or_else(missing)?;
        let attr = tree.lookup(current, name)?.ok_or_else(missing)?;
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
            _ => return Err(error(Kind::NotADirectory, "a parent is not a directory")),
        }
    }
    trail.pop().ok_or_else(|| error(Kind::NotFound, "no such path in the archive"))
}

/// The components of `path` without empty ones and `.`, in reverse order.
fn split(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&byte| byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
        .rev()
        .collect()
}
