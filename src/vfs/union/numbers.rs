//! Maps inode numbers of a union to inodes of its trees.
//!
//! Each tree gets as many numbers as it says it needs (`Tree::numbers_end`), one tree after
//! another. The merged directories get the numbers after the last tree. So the numbers are as small
//! as possible and fit programs that use 32 bits. The root is 1.
//!
//! A number that is larger than its tree said has the tree's index plus one in the upper 16 bits.

use super::{Inner, Layer};
use crate::error::{Error, Kind, Result};
use crate::vfs::Ino;

/// Bits of an inode number that a tree may use.
pub(super) const INNER_BITS: u32 = 48;

const LIMIT: u64 = 1 << INNER_BITS;

/// The number ranges of all trees.
pub(super) struct Numbers {
    /// The first number of each tree, and then the first number of the merged directories.
    starts: Vec<u64>,
    /// The name of each archive, for errors.
    names: Box<[String]>,
}

/// The object that a number stands for.
pub(super) enum Numbered {
    /// A merged directory, by its index.
    Directory(usize),
    Inner(Inner),
}

impl Numbers {
    pub(super) fn of(layers: &[Layer]) -> Self {
        let mut starts = vec![Ino::ROOT.number()];
        let mut end = Ino::ROOT.number();
        for layer in layers {
            let next = end.checked_add(layer.tree.numbers_end()).filter(|&next| next < LIMIT / 2);
            end = next.unwrap_or(end);
            starts.push(end);
        }
        let names = layers.iter().map(|layer| layer.name.clone()).collect();
        Self { starts, names }
    }

    /// The union's number for an inode of a tree.
    pub(super) fn outer(&self, inner: Inner) -> Result<Ino> {
        let number = inner.ino.number();
        let (start, end) = (self.starts[inner.tree], self.starts[inner.tree + 1]);
        let outer = match start.checked_add(number) {
            Some(outer) if outer < end => outer,
            _ if number < LIMIT => (inner.tree as u64 + 1) << INNER_BITS | number,
            _ => {
                let context = format!("{}: an inode number is too large", self.names[inner.tree]);
                return Err(Error::new(Kind::Unsupported, context)
                    .with_detail(format_args!("inode {number}")));
            }
        };
        Ok(Ino::new(outer).unwrap_or(Ino::ROOT))
    }

    /// The number of the merged directory at `index`.
    pub(super) fn directory(&self, index: usize) -> Result<Ino> {
        let number = match index as u64 {
            0 => Some(Ino::ROOT.number()),
            index => self.directories_start().checked_add(index),
        };
        number.filter(|&number| number < LIMIT).and_then(Ino::new).ok_or_else(|| {
            Error::new(Kind::Unsupported, "too many directories in several archives")
        })
    }

    /// The object that `ino` stands for. `None` if the number is not assigned.
    pub(super) fn numbered(&self, ino: Ino) -> Option<Numbered> {
        let number = ino.number();
        if ino == Ino::ROOT {
            return Some(Numbered::Directory(0));
        }
        if number >= LIMIT {
            let tree = usize::try_from(number >> INNER_BITS).ok()?.checked_sub(1)?;
            let ino = Ino::new(number & (LIMIT - 1))?;
            return (tree + 1 < self.starts.len()).then_some(Numbered::Inner(Inner { tree, ino }));
        }
        if let Some(index) = number.checked_sub(self.directories_start()) {
            let index = usize::try_from(index).ok().filter(|&index| index > 0);
            return index.map(Numbered::Directory);
        }
        // The last tree that starts at or before it. Trees without numbers start where the next one
        // does.
        let tree = self.starts.partition_point(|&start| start <= number).checked_sub(1)?;
        let ino = Ino::new(number - self.starts[tree])?;
        Some(Numbered::Inner(Inner { tree, ino }))
    }

    fn directories_start(&self) -> u64 {
        self.starts.last().copied().unwrap_or(LIMIT)
    }
}
