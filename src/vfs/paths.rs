//! Finds the paths of inodes, by a walk over the directories of a tree.
//!
//! Not every format stores the parent of a file, so all directories are searched. That takes about
//! a second for a million files, and is only done to name damaged files.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use super::{Cookie, FileKind, Ino, Tree, joined};

/// Directory entries after which a walk gives up.
const ENTRIES_MAX: usize = 4 << 20;

/// Directories that a walk remembers to search later. Others are not searched.
const DIRECTORIES_MAX: usize = 1 << 18;

/// The longest path of a directory that is searched, bytes (PATH_MAX). It stops a walk in a
/// directory that contains itself.
const PATH_MAX: usize = 4096;

/// The path of each of `wanted` that was found, without a leading slash: the first one for a file
/// with several names. Directories that cannot be read are skipped.
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
    use crate::error::{Error, Kind, Result};
    use crate::vfs::{Attr, DirEntry, Name, ReadBytes, Scratch, SeekTarget, Totals};

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
