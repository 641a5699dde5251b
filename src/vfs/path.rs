//! Paths inside a tree.
//!
//! Owns the walk from the root along names, used where no kernel does it (`ls`, `cat`, `--subdir`).
//! Invariant: `..` goes up lexically and never above the root; the last symbolic link is not followed.

use super::{Attr, FileKind, Ino, Name, Tree};
use crate::error::{Error, Kind, Result};

/// Links followed in one walk before it is taken for a loop (Linux: MAXSYMLINKS).
const MAX_LINKS: u32 = 40;

/// Where a path led.
#[derive(Clone, Copy, Debug)]
pub struct Resolved {
    /// The attributes of what it names.
    pub attr: Attr,
}

/// Walks `path`, taken from the root of `tree`, and follows symbolic links on the way but not at its end.
///
/// # Errors
/// `NotFound`, `NotADirectory`; `InvalidInput` for a loop of links; what the tree reports.
pub fn resolve(tree: &dyn Tree, path: &[u8]) -> Result<Resolved> {
    let mut links = 0;
    // Directories from the root to the present one; `..` pops.
    let mut trail = vec![Ino::ROOT];
    let mut attr = tree.attr(Ino::ROOT)?;
    // Names still to walk, the next one last.
    let mut rest: Vec<Vec<u8>> = split(path);
    while let Some(component) = rest.pop() {
        if component == b".." {
            if trail.len() > 1 {
                trail.pop();
            }
            attr = tree.attr(trail.last().copied().unwrap_or(Ino::ROOT))?;
            continue;
        }
        let here = trail.last().copied().unwrap_or(Ino::ROOT);
        let show = || String::from_utf8_lossy(path).into_owned();
        let name = Name::parse(&component)
            .ok_or_else(|| Error::new(Kind::NotFound, format!("{}: no such path", show())))?;
        attr = tree
            .lookup(here, name)?
            .ok_or_else(|| Error::new(Kind::NotFound, format!("{}: no such path", show())))?;
        match attr.kind {
            FileKind::Directory => trail.push(attr.ino),
            FileKind::Symlink if !rest.is_empty() => {
                links += 1;
                if links > MAX_LINKS {
                    let context = format!("{}: too many symbolic links", show());
                    return Err(Error::new(Kind::InvalidInput, context));
                }
                let target = tree.read_link(attr.ino)?;
                if target.first() == Some(&b'/') {
                    trail.truncate(1);
                }
                rest.extend(split(&target));
            }
            _ if !rest.is_empty() => {
                return Err(Error::new(
                    Kind::NotADirectory,
                    format!("{}: not a directory on the way", show()),
                ));
            }
            _ => {}
        }
    }
    Ok(Resolved { attr })
}

/// The components of `path` without empty ones and `.`, last first.
fn split(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&byte| byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
        .rev()
        .collect()
}
