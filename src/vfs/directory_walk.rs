//! Directories still to visit during a walk through a tree, each of them once.
//!
//! Invariant: a walk ends, even if a damaged archive has a cycle of directories.

use std::collections::HashSet;

use super::Ino;

/// An iterator over directories to list; directories found on the way are added. Each has a `Key`
/// by which the caller knows it: by default its path from the root, without a leading slash.
pub struct DirectoryWalk<Key = Vec<u8>> {
    seen: HashSet<Ino>,
    waiting: Vec<(Key, Ino)>,
}

impl DirectoryWalk {
    /// Starts a walk at the root, whose path is empty.
    pub fn from_root() -> Self {
        Self::from_root_at(Vec::new())
    }
}

impl<Key> DirectoryWalk<Key> {
    /// Starts a walk at the root, whose key is `root`.
    pub fn from_root_at(root: Key) -> Self {
        Self { seen: HashSet::from([Ino::ROOT]), waiting: vec![(root, Ino::ROOT)] }
    }

    /// Queues a directory. Returns false if it was seen before: a damaged archive may show a
    /// directory in two locations, or inside itself.
    pub fn add(&mut self, key: Key, ino: Ino) -> bool {
        let is_new = self.seen.insert(ino);
        if is_new {
            self.waiting.push((key, ino));
        }
        is_new
    }
}

/// Yields the key of a directory and its inode number.
impl<Key> Iterator for DirectoryWalk<Key> {
    type Item = (Key, Ino);

    fn next(&mut self) -> Option<Self::Item> {
        self.waiting.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_inside_itself_is_listed_once() {
        let mut walk = DirectoryWalk::from_root();
        let inner = Ino::new(7).unwrap();
        let mut listed = Vec::new();
        while let Some((path, ino)) = walk.next() {
            listed.push((path, ino));
            // Each of them lists the root and the directory.
            assert!(!walk.add(b"root".to_vec(), Ino::ROOT));
            assert_eq!(walk.add(b"inner".to_vec(), inner), ino == Ino::ROOT);
        }
        assert_eq!(listed, [(Vec::new(), Ino::ROOT), (b"inner".to_vec(), inner)]);
    }
}
