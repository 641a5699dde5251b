//! Which paths of a tree to extract. Invariant: every path that was given is in the tree.

use crate::error::{Error, Kind, Result};
use crate::vfs::{Ino, Name, Tree};

/// The paths to extract.
pub(super) struct Selection {
    /// Without empty components; none selects everything.
    paths: Vec<Vec<u8>>,
}

/// Whether a path is extracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selected {
    /// It and everything below it.
    Whole,
    /// It leads to a path that is extracted.
    Parent,
    No,
}

impl Selection {
    /// The selection of `paths` and everything below them, or of all if there are none.
    pub(super) fn of(tree: &dyn Tree, paths: &[Vec<u8>]) -> Result<Self> {
        let mut found = Vec::new();
        for path in paths {
            let parts = path.split(|&byte| byte == b'/');
            let parts: Vec<_> = parts.filter(|part| !part.is_empty() && *part != b".").collect();
            check(tree, &parts).map_err(|error| error.within(String::from_utf8_lossy(path)))?;
            found.push(parts.join(&b'/'));
        }
        Ok(Self { paths: found })
    }

    /// Whether the file or directory at `path`, without a leading slash, is extracted.
    pub(super) fn selects(&self, path: &[u8]) -> Selected {
        if self.paths.is_empty() || self.paths.iter().any(|wanted| is_below(path, wanted)) {
            Selected::Whole
        } else if self.paths.iter().any(|wanted| is_below(wanted, path)) {
            Selected::Parent
        } else {
            Selected::No
        }
    }
}

/// Fails unless there is a path of these names. Symbolic links are not followed, because what they
/// lead to has another path.
fn check(tree: &dyn Tree, names: &[&[u8]]) -> Result<()> {
    let missing = || {
        Error::new(Kind::NotFound, "no such path in the archive")
            .with_hint("run `archfs ls ARCHIVE` to see its paths")
    };
    let mut directory = Ino::ROOT;
    for name in names {
        let name = Name::parse(name).ok_or_else(missing)?;
        let found = tree.lookup(directory, name).map_err(|error| match error.kind() {
            Kind::NotADirectory => missing(),
            _ => error,
        })?;
        directory = found.ok_or_else(missing)?.ino;
    }
    Ok(())
}

/// Whether `path` is `directory` or below it.
fn is_below(path: &[u8], directory: &[u8]) -> bool {
    directory.is_empty()
        || path.strip_prefix(directory).is_some_and(|rest| rest.first().is_none_or(|&b| b == b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_what_is_below_and_on_the_way() {
        let paths = |paths: &[&str]| Selection {
            paths: paths.iter().map(|path| path.as_bytes().to_vec()).collect(),
        };
        let some = paths(&["train/a", "val"]);
        for (path, selected) in [
            ("", Selected::Parent),
            ("train", Selected::Parent),
            ("train/a", Selected::Whole),
            ("train/a/x", Selected::Whole),
            ("train/ab", Selected::No),
            ("train/b", Selected::No),
            ("val/x/y", Selected::Whole),
            ("va", Selected::No),
        ] {
            assert_eq!(some.selects(path.as_bytes()), selected, "{path:?}");
        }
        for all in [paths(&[]), paths(&[""])] {
            assert_eq!(all.selects(b""), Selected::Whole);
            assert_eq!(all.selects(b"a/b"), Selected::Whole);
        }
    }
}
