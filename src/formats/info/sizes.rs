//! A histogram of file sizes.
//!
//! Class n holds the sizes with n binary digits; class 0 holds empty files.
//!
//! Invariant: every file is in one class. Sums saturate at 2^64 - 1.

use crate::formats::bytes::index;

/// Number of classes: one for empty files, and one for each number of digits.
const CLASSES: usize = 65;

/// Files counted by size.
#[derive(Clone, Debug)]
pub struct Sizes {
    files: [u64; CLASSES],
    bytes: [u64; CLASSES],
    largest: u64,
}

impl Sizes {
    /// Counts a file of `size` bytes.
    pub(crate) fn add(&mut self, size: u64) {
        let class = index(u64::BITS.saturating_sub(size.leading_zeros()));
        if let (Some(files), Some(bytes)) = (self.files.get_mut(class), self.bytes.get_mut(class)) {
            *files = files.saturating_add(1);
            *bytes = bytes.saturating_add(size);
        }
        self.largest = self.largest.max(size);
    }

    /// For each class: the number of binary digits, the number of files, and their bytes. A size of
    /// `n` digits is at least 2^(n-1) and less than 2^n.
    pub fn classes(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        let sums = self.files.iter().zip(&self.bytes);
        (0..).zip(sums).map(|(digits, (&files, &bytes))| (digits, files, bytes))
    }

    /// Number of files.
    pub fn files(&self) -> u64 {
        self.files.iter().fold(0, |sum, files| sum.saturating_add(*files))
    }

    /// Size of all files together, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Mean size of a file, bytes.
    pub fn mean(&self) -> u64 {
        self.bytes().checked_div(self.files()).unwrap_or(0)
    }

    /// Size of the largest file, bytes.
    pub fn largest(&self) -> u64 {
        self.largest
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Self { files: [0; CLASSES], bytes: [0; CLASSES], largest: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_is_in_the_class_of_its_digits() {
        let mut sizes = Sizes::default();
        for size in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX] {
            sizes.add(size);
        }
        let found: Vec<_> = sizes.classes().filter(|&(_, files, _)| files > 0).collect();
        assert_eq!(
            found,
            [
                (0, 1, 0),
                (1, 1, 1),
                (2, 2, 5),
                (3, 1, 4),
                (10, 1, 1023),
                (11, 1, 1024),
                (64, 1, u64::MAX)
            ]
        );
        assert_eq!((sizes.files(), sizes.bytes(), sizes.largest()), (8, u64::MAX, u64::MAX));
    }

    #[test]
    fn the_mean_of_nothing_is_nothing() {
        assert_eq!(Sizes::default().mean(), 0);
    }
}
