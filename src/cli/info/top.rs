//! `archfs info --top`: the largest files and directories of an archive.
//!
//! Invariant: each directory is entered once, even if a damaged archive shows it in two locations.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::vec::IntoIter;

use serde::Serialize;

use crate::cli::open_args::OpenArgs;
use crate::cli::term::{hex_if_not_utf8, name_for_output};
use crate::error::Result;
use crate::progress::Progress;
use crate::units::{counted, format_size};
use crate::vfs::{self, Entry, FileKind, Ino, Tree, joined};

/// The largest files and directories, each list from the largest down.
#[derive(Serialize)]
pub(super) struct Top {
    largest_files: Vec<Row>,
    largest_directories: Vec<Row>,
}

/// A file, or a directory with everything below it. The keys of `--json`: scripts rely on them.
#[derive(Serialize)]
struct Row {
    path: String,
    /// The path in hexadecimal digits if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<u64>,
    bytes: u64,
    #[serde(skip)]
    raw_path: Vec<u8>,
}

impl Top {
    /// Finds `count` of each kind in the archive that `open` names.
    pub(super) fn find(open: &OpenArgs, count: usize, progress: &Progress) -> Result<Self> {
        let tree = open.open()?;
        progress.begin("measuring directories");
        progress.expect(tree.totals().inodes);
        let (mut files, mut directories) = (Largest::new(count), Largest::new(count));
        let mut seen = HashSet::from([Ino::ROOT]);
        // The directories from the root down. A list and not recursion, because an archive may be
        // arbitrarily deep.
        let mut stack = vec![Directory::read(tree.as_ref(), open, Ino::ROOT, Vec::new())?];
        while let Some(directory) = stack.last_mut() {
            let Some(Entry { ino, kind, name }) = directory.remaining.next() else {
                let Some(done) = stack.pop() else { break };
                if let Some(parent) = stack.last_mut() {
                    parent.files += done.files;
                    parent.bytes += done.bytes;
                    directories.offer(done.bytes, done.files, done.path);
                }
                continue;
            };
            progress.advance(1);
            let path = joined(&directory.path, &name);
            match kind {
                FileKind::Directory if seen.insert(ino) => {
                    stack.push(Directory::read(tree.as_ref(), open, ino, path)?);
                }
                FileKind::Regular => {
                    let size = tree.attr(ino).map_err(|error| open.located(&path, error))?.size;
                    directory.files += 1;
                    directory.bytes += size;
                    files.offer(size, 1, path);
                }
                _ => {}
            }
        }
        let with_files = |(bytes, files, path)| Row::new(bytes, Some(files), path);
        Ok(Self {
            largest_files: files
                .sorted()
                .map(|(bytes, _, path)| Row::new(bytes, None, path))
                .collect(),
            largest_directories: directories.sorted().map(with_files).collect(),
        })
    }

    /// The lines of the text output.
    pub(super) fn lines(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (title, rows) in [
            ("largest files", &self.largest_files),
            ("largest directories, with everything below them", &self.largest_directories),
        ] {
            text.extend(format!("\n{title}\n").bytes());
            for row in rows {
                let files = match row.files {
                    Some(files) => format!("{:>15}", counted(files, "file")),
                    None => String::new(),
                };
                text.extend(format!("{:>12}{files}  ", format_size(row.bytes)).bytes());
                text.extend(name_for_output(&row.raw_path));
                text.push(b'\n');
            }
        }
        text
    }
}

impl Row {
    fn new(bytes: u64, files: Option<u64>, path: Vec<u8>) -> Self {
        Self {
            path: String::from_utf8_lossy(&path).into_owned(),
            path_hex: hex_if_not_utf8(&path),
            files,
            bytes,
            raw_path: path,
        }
    }
}

/// A directory that is being visited, and what was found below it.
struct Directory {
    path: Vec<u8>,
    remaining: IntoIter<Entry>,
    files: u64,
    bytes: u64,
}

impl Directory {
    fn read(tree: &dyn Tree, open: &OpenArgs, ino: Ino, path: Vec<u8>) -> Result<Self> {
        let entries = vfs::entries(tree, ino).map_err(|error| open.located(&path, error))?;
        Ok(Self { path, remaining: entries.into_iter(), files: 0, bytes: 0 })
    }
}

/// Ordered by size. Of two of one size, the one with the smaller path counts as larger.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    bytes: u64,
    path: Reverse<Vec<u8>>,
    files: u64,
}

/// The largest items offered so far.
struct Largest {
    count: usize,
    /// The smallest is on top.
    kept: BinaryHeap<Reverse<Item>>,
}

impl Largest {
    fn new(count: usize) -> Self {
        Self { count, kept: BinaryHeap::new() }
    }

    fn offer(&mut self, bytes: u64, files: u64, path: Vec<u8>) {
        self.kept.push(Reverse(Item { bytes, path: Reverse(path), files }));
        if self.kept.len() > self.count {
            self.kept.pop();
        }
    }

    /// From the largest down.
    fn sorted(self) -> impl Iterator<Item = (u64, u64, Vec<u8>)> {
        let kept = self.kept.into_sorted_vec().into_iter();
        kept.map(|Reverse(item)| (item.bytes, item.files, item.path.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_largest_and_of_equal_ones_the_first_paths() {
        let mut largest = Largest::new(2);
        for (bytes, path) in [(1, "a"), (3, "c"), (3, "b"), (2, "d"), (3, "e")] {
            largest.offer(bytes, 0, path.into());
        }
        let paths: Vec<_> = largest.sorted().map(|(_, _, path)| path).collect();
        assert_eq!(paths, [b"b", b"c"]);
        let mut none = Largest::new(0);
        none.offer(1, 1, Vec::new());
        assert_eq!(none.sorted().count(), 0);
    }
}
