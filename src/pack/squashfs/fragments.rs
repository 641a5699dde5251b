//! Fragment blocks: small files, and ends of files, several to a block.
//!
//! Owns putting them together and the order in which they are written; leaves compressing them to
//! `encoders`.
//! Invariant: where a fragment block lies depends on what was added, not on which thread was
//! faster: block n is written when block n + `behind` is complete, or at the end.

use std::collections::VecDeque;

use crate::error::{Error, Kind, Result};
use crate::pack::output::Output;

use super::encoders::{Encoders, Pending};
use super::layout::Geometry;

/// Bytes of fragment blocks that may wait to be compressed: they keep many threads busy.
const WAITING: u32 = 32 << 20;

/// Blocks that are filled side by side: a file that does not fit into one any more fits into
/// another, so that they are full to 97 % and not to 86 % (the Linux source).
const OPEN: usize = 8;

/// Where a fragment block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fragment {
    pub(super) start: u64,
    /// Its size as it is stored, with the mark of a plain one.
    pub(super) word: u32,
    /// Bytes that it decodes to.
    pub(super) len: u32,
}

/// A place in a fragment block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) fragment: u32,
    pub(super) offset: u32,
}

/// The fragment blocks of an image.
pub(super) struct Fragments<'f> {
    encoders: &'f Encoders<'f>,
    threads: usize,
    capacity: usize,
    /// Blocks that wait before the first of them must be written.
    behind: usize,
    /// The blocks that are being put together, the oldest first.
    open: Vec<Open>,
    pending: VecDeque<(Open, Pending)>,
    /// By number; those that are not written yet are empty.
    written: Vec<Fragment>,
}

/// A block, or what it was before it was given away.
struct Open {
    number: u32,
    bytes: Vec<u8>,
    len: u32,
}

impl<'f> Fragments<'f> {
    /// None yet; `threads` of `encoders` are there.
    pub(super) fn new(geometry: &Geometry, encoders: &'f Encoders<'f>, threads: usize) -> Self {
        Self {
            encoders,
            threads,
            capacity: geometry.fragment_size as usize,
            behind: (WAITING / geometry.fragment_size.max(1)).clamp(32, 1024) as usize,
            open: Vec::new(),
            pending: VecDeque::new(),
            written: Vec::new(),
        }
    }

    /// Adds `bytes`, no more than a fragment block holds. May write an earlier block, so nobody
    /// may be in the middle of a file.
    ///
    /// # Errors
    /// `InvalidInput` where there are 2^32 of them; what compressing and writing report.
    pub(super) fn add(&mut self, bytes: &[u8], output: &mut Output) -> Result<Tail> {
        let room = |open: &Open| open.bytes.len() + bytes.len() <= self.capacity;
        let nth = match self.open.iter().position(room) {
            Some(nth) => nth,
            None => self.another(output)?,
        };
        let open = &mut self.open[nth];
        let offset = open.bytes.len() as u32;
        open.bytes.extend_from_slice(bytes);
        Ok(Tail { fragment: open.number, offset })
    }

    /// Opens one more block, instead of the fullest if there are enough; where it is among them.
    fn another(&mut self, output: &mut Output) -> Result<usize> {
        if self.open.len() == OPEN {
            let fullest = (0..OPEN).max_by_key(|&nth| (self.open[nth].bytes.len(), OPEN - nth));
            self.complete(fullest.unwrap_or(0), output)?;
        }
        // The last number stands for none.
        let number = u32::try_from(self.written.len()).ok().filter(|&number| number < u32::MAX);
        let number = number.ok_or_else(|| {
            Error::new(Kind::InvalidInput, "a squashfs image has at most 2^32 - 1 fragment blocks")
        })?;
        self.written.push(Fragment { start: 0, word: 0, len: 0 });
        self.open.push(Open { number, bytes: Vec::with_capacity(self.capacity), len: 0 });
        Ok(self.open.len() - 1)
    }

    /// Writes all that is left; the table.
    ///
    /// # Errors
    /// As `add`.
    pub(super) fn finish(mut self, output: &mut Output) -> Result<Vec<Fragment>> {
        while !self.open.is_empty() {
            self.complete(0, output)?;
        }
        while !self.pending.is_empty() {
            self.write_first(output)?;
        }
        Ok(self.written)
    }

    fn complete(&mut self, nth: usize, output: &mut Output) -> Result<()> {
        let mut block = self.open.remove(nth);
        let bytes = std::mem::take(&mut block.bytes);
        block.len = bytes.len() as u32;
        self.pending.push_back((block, self.encoders.compress(bytes, self.threads)));
        match self.pending.len() > self.behind {
            true => self.write_first(output),
            false => Ok(()),
        }
    }

    fn write_first(&mut self, output: &mut Output) -> Result<()> {
        let Some((Open { number, len, .. }, pending)) = self.pending.pop_front() else {
            return Ok(());
        };
        let stored = pending.wait()?;
        self.written[number as usize] = Fragment { start: output.len(), word: stored.word, len };
        output.append(&stored.bytes)
    }
}
