//! The folders of a tree, each once.
//!
//! Owns what a walk through a tree has to remember: which folders wait to be listed, and which were
//! met. Leaves listing them to whoever walks.
//! Invariant: a walk ends, whatever a damaged archive says of its folders.

use std::collections::HashSet;

use super::Ino;

/// Folders that wait to be listed, as an iterator that more are added to on the way.
pub struct Folders {
    met: HashSet<Ino>,
    waiting: Vec<(Vec<u8>, Ino)>,
}

impl Folders {
    /// A walk from the root, whose path is empty.
    pub fn from_root() -> Self {
        Self { met: HashSet::from([Ino::ROOT]), waiting: vec![(Vec::new(), Ino::ROOT)] }
    }

    /// Lets a folder wait to be listed; false, and nothing done, where it was met before: a damaged
    /// archive may show one in two places, or within itself.
    pub fn add(&mut self, path: Vec<u8>, folder: Ino) -> bool {
        let is_new = self.met.insert(folder);
        if is_new {
            self.waiting.push((path, folder));
        }
        is_new
    }
}

/// Paths from the root, without a leading slash, and numbers.
impl Iterator for Folders {
    type Item = (Vec<u8>, Ino);

    fn next(&mut self) -> Option<Self::Item> {
        self.waiting.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_within_itself_is_listed_once() {
        let mut folders = Folders::from_root();
        let inner = Ino::new(7).unwrap();
        let mut listed = Vec::new();
        while let Some((path, folder)) = folders.next() {
            listed.push((path, folder));
            // Each holds the root and the folder.
            assert!(!folders.add(b"root".to_vec(), Ino::ROOT));
            assert_eq!(folders.add(b"inner".to_vec(), inner), folder == Ino::ROOT);
        }
        assert_eq!(listed, [(Vec::new(), Ino::ROOT), (b"inner".to_vec(), inner)]);
    }
}
