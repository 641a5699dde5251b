//! Directories still to visit during a walk through a tree, each of them once.
//!
//! Invariant: a walk ends, even if a damaged archive has a cycle of directories.

use std::collections::HashSet;

use super::Ino;

/// An iterator over directories to list; directories found on the way are added.
pub struct DirectoryWalk {
    seen: HashSet<Ino>,
    waiting: Vec<(Vec<u8>, Ino)>,
}

impl DirectoryWalk {
    /// Starts a walk at the root, whose path is empty.
    pub fn from_root() -> Self {
        Self { seen: HashSet::from([Ino::ROOT]), waiting: vec![(Vec::new(), Ino::ROOT)] }
    }

    /// Queues a directory. Returns false if it was seen before: a damaged archive may show a
    /// directory in two locations, or inside itself.
    pub fn add(&mut self, path: Vec<u8>, ino: Ino) -> bool {
        let is_new = self.seen.insert(ino);
        if is_new {
            self.waiting.push((path, ino));
        }
        is_new
    }
}

/// Yields the path from the root, without a leading slash, and the inode number.
impl Iterator for DirectoryWalk {
    type Item = (Vec<u8>, Ino);

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
