//! Paths inside a tree: the inode of a path, for code that cannot leave it to the kernel (`ls`,
//! `cat`, `--subdir`), and the paths of inodes.
//!
//! Invariant: neither `..` nor a symbolic link, even an absolute one, leads out of the tree.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use super::{Attr, Cookie, FileKind, Ino, Name, Tree};
use crate::error::{Error, Kind, Result};

/// Links followed in one resolution before it is considered a loop (Linux: MAXSYMLINKS).
const MAX_LINKS: u32 = 40;

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
        FileKind::Directory => Err(refused(Kind::IsADirectory, "is a directory")),
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
    // Of the last link, and how many names were left after it.
    let mut target: Option<(Vec<u8>, usize)> = None;
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
        let missing = || match &target {
            Some((target, after)) if rest.len() >= *after => {
                let target = String::from_utf8_lossy(target);
                let why = format!("a symbolic link to {target}, which is not in the archive");
                error(Kind::NotFound, &why)
            }
            _ => error(Kind::NotFound, "no such path in the archive"),
        };
        let name = Name::parse(&component).ok_or_else(missing)?;
        let attr = tree.lookup(current, name)?.ok_or_else(missing)?;
        match attr.kind {
            FileKind::Directory => trail.push(attr),
            FileKind::Symlink if last == LastLink::Follow || !rest.is_empty() => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(error(Kind::InvalidInput, "too many symbolic links"));
                }
                let link = tree.read_link(attr.ino)?;
                if link.first() == Some(&b'/') {
                    trail.truncate(1);
                }
                let after = rest.len();
                rest.extend(split(&link));
                target = Some((link, after));
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

/// Directory entries after which a walk gives up.
const ENTRIES_MAX: usize = 4 << 20;

/// Directories that a walk remembers to search later. Others are not searched.
const DIRECTORIES_MAX: usize = 1 << 18;

/// The longest path of a directory that is searched, bytes (PATH_MAX). It stops a walk in a
/// directory that contains itself.
const PATH_MAX: usize = 4096;

/// The path of each of `wanted` that was found by a walk over the directories, without a leading
/// slash: the first one for a file with several names. Directories that cannot be read are skipped.
///
/// Not every format stores the parent of a file, so all directories are searched. That takes about
/// a second for a million files, and is only done to name damaged files.
pub fn paths(tree: &dyn Tree, wanted: &[Ino]) -> HashMap<Ino, Vec<u8>> {
    paths_within(tree, wanted, ENTRIES_MAX)
}

fn paths_within(tree: &dyn Tree, wanted: &[Ino], entries_max: usize) -> HashMap<Ino, Vec<u8>> {
    let mut found = HashMap::new();
    let mut left: HashSet<Ino> = wanted.iter().copied().collect();
    if left.remove(&Ino::ROOT) {
        found.insert(Ino::ROOT, Vec::new());
    }
    let mut directories = vec![(Ino::ROOT, Vec::new())];
    let mut entries = 0_usize;
    while let Some((directory, path)) = directories.pop() {
        if left.is_empty() || entries >= entries_max {
            break;
        }
        // A directory that cannot be read hides its files from every user.
        let _ = tree.read_dir(directory, Cookie::START, &mut |entry| {
            entries = entries.saturating_add(1);
            let name = entry.name.as_bytes();
            if left.remove(&entry.ino) {
                found.insert(entry.ino, joined(&path, name));
            }
            if entry.kind == FileKind::Directory
                && directories.len() < DIRECTORIES_MAX
                && path.len().saturating_add(name.len()) < PATH_MAX
            {
                directories.push((entry.ino, joined(&path, name)));
            }
            match left.is_empty() || entries >= entries_max {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::{DirEntry, ReadBytes, Scratch, SeekTarget, Totals};

    /// Directories with the names and numbers of their entries; all others are files. A directory
    /// without a list cannot be read.
    struct Listings(HashMap<u64, Option<Vec<(&'static str, u64)>>>);

    fn ino(number: u64) -> Ino {
        Ino::new(number).unwrap()
    }

    fn unused<T>() -> Result<T> {
        Err(Error::new(Kind::NotFound, "not needed for paths"))
    }

    impl Tree for Listings {
        fn attr(&self, _: Ino) -> Result<Attr> {
            unused()
        }

        fn lookup(&self, _: Ino, _: Name<'_>) -> Result<Option<Attr>> {
            unused()
        }

        fn read_dir(
            &self,
            directory: Ino,
            _: Cookie,
            visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
        ) -> Result<()> {
            let Some(Some(entries)) = self.0.get(&directory.number()) else { return unused() };
            for &(name, number) in entries {
                let kind = match self.0.contains_key(&number) {
                    true => FileKind::Directory,
                    false => FileKind::Regular,
                };
                let name = Name::parse(name.as_bytes()).unwrap();
                if visit(DirEntry { ino: ino(number), kind, name, next: Cookie::START }).is_break()
                {
                    break;
                }
            }
            Ok(())
        }

        fn read_link(&self, _: Ino) -> Result<Vec<u8>> {
            unused()
        }

        fn read<'s>(&self, _: Ino, _: u64, _: u32, _: &'s mut Scratch) -> Result<ReadBytes<'s>> {
            unused()
        }

        fn seek(&self, _: Ino, _: u64, _: SeekTarget) -> Result<u64> {
            unused()
        }

        fn has_xattrs(&self) -> bool {
            false
        }

        fn list_xattrs(&self, _: Ino) -> Result<Vec<u8>> {
            unused()
        }

        fn xattr(&self, _: Ino, _: &[u8]) -> Result<Vec<u8>> {
            unused()
        }

        fn totals(&self) -> Totals {
            Totals { bytes: 0, inodes: 0, block_size: 0 }
        }

        fn release(&self) {}
    }

    fn shown(tree: &Listings, wanted: &[u64], entries_max: usize) -> Vec<(u64, String)> {
        let wanted: Vec<_> = wanted.iter().map(|&number| ino(number)).collect();
        let found = paths_within(tree, &wanted, entries_max);
        let text = |path: Vec<u8>| String::from_utf8(path).unwrap();
        let mut found: Vec<_> =
            found.into_iter().map(|(ino, path)| (ino.number(), text(path))).collect();
        found.sort();
        found
    }

    #[test]
    fn finds_files_directories_and_the_root_past_unreadable_directories() {
        let root = Ino::ROOT.number();
        let tree = Listings(HashMap::from([
            (root, Some(vec![("bad", 10), ("a", 11), ("file", 20)])),
            (10, None),
            (11, Some(vec![("b", 12), ("link", 20)])),
            (12, Some(vec![("deep", 21)])),
        ]));
        let found = shown(&tree, &[root, 10, 12, 20, 21, 99], usize::MAX);
        let expected = [(root, ""), (10, "bad"), (12, "a/b"), (20, "file"), (21, "a/b/deep")];
        assert_eq!(found, expected.map(|(number, path)| (number, path.to_owned())));
    }

    #[test]
    fn gives_up_after_the_limit_and_in_a_loop() {
        let root = Ino::ROOT.number();
        let names = ["a", "b", "c", "d"];
        let entries = (20..).zip(names).map(|(number, name)| (name, number)).collect();
        let tree = Listings(HashMap::from([(root, Some(entries))]));
        assert_eq!(shown(&tree, &[21, 23], 3), [(21, "b".to_owned())]);
        let tree = Listings(HashMap::from([
            (root, Some(vec![("again", 10)])),
            (10, Some(vec![("x", 10)])),
        ]));
        assert_eq!(shown(&tree, &[99], usize::MAX), []);
    }
}
