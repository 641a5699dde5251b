//! Inode numbers of a union: which inode of which tree one stands for.
//!
//! Each tree gets as many numbers as it says it has (`Tree::numbers_end`), one tree behind the
//! other, and the merged folders get those behind the last tree. So the numbers of a union are as
//! small as its trees allow, and fit programs with 32 bits for them. The root is 1.
//!
//! A number that is larger than its tree said has the tree's place plus one in the upper 16 bits.

use super::{Inner, Layer};
use crate::error::{Error, Kind, Result};
use crate::vfs::Ino;

/// Bits of an inode number that a tree may use.
pub(super) const INNER_BITS: u32 = 48;

const LIMIT: u64 = 1 << INNER_BITS;

/// The numbers of all trees.
pub(super) struct Numbers {
    /// Where those of each tree begin, and behind the last one, where those of folders do.
    starts: Vec<u64>,
}

/// What a number stands for.
pub(super) enum Numbered {
    /// A merged folder, by its place in their list.
    Folder(usize),
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
        Self { starts }
    }

    /// The number of an inode of a tree.
    ///
    /// # Errors
    /// `Unsupported` where the tree's own number is too large.
    pub(super) fn outer(&self, inner: Inner) -> Result<Ino> {
        let number = inner.ino.number();
        let (start, end) = (self.starts[inner.tree], self.starts[inner.tree + 1]);
        let outer = match start.checked_add(number) {
            Some(outer) if outer < end => outer,
            _ if number < LIMIT => (inner.tree as u64 + 1) << INNER_BITS | number,
            _ => {
                let context = format!("inode {number} of archive {} is too large", inner.tree);
                return Err(Error::new(Kind::Unsupported, context));
            }
        };
        Ok(Ino::new(outer).unwrap_or(Ino::ROOT))
    }

    /// The number of the merged folder at `place`.
    ///
    /// # Errors
    /// `Unsupported` where there are too many.
    pub(super) fn folder(&self, place: usize) -> Result<Ino> {
        let number = match place as u64 {
            0 => Some(Ino::ROOT.number()),
            place => self.folders_start().checked_add(place),
        };
        number
            .filter(|&number| number < LIMIT)
            .and_then(Ino::new)
            .ok_or_else(|| Error::new(Kind::Unsupported, "too many folders in several archives"))
    }

    /// What `ino` stands for, if anything of that number exists.
    pub(super) fn numbered(&self, ino: Ino) -> Option<Numbered> {
        let number = ino.number();
        if ino == Ino::ROOT {
            return Some(Numbered::Folder(0));
        }
        if number >= LIMIT {
            let tree = usize::try_from(number >> INNER_BITS).ok()?.checked_sub(1)?;
            let ino = Ino::new(number & (LIMIT - 1))?;
            return (tree + 1 < self.starts.len()).then_some(Numbered::Inner(Inner { tree, ino }));
        }
        if let Some(place) = number.checked_sub(self.folders_start()) {
            let place = usize::try_from(place).ok().filter(|&place| place > 0);
            return place.map(Numbered::Folder);
        }
        // The last tree that begins there or before; those without numbers begin with their next.
        let tree = self.starts.partition_point(|&start| start <= number).checked_sub(1)?;
        let ino = Ino::new(number - self.starts[tree])?;
        Some(Numbered::Inner(Inner { tree, ino }))
    }

    fn folders_start(&self) -> u64 {
        self.starts.last().copied().unwrap_or(LIMIT)
    }
}
