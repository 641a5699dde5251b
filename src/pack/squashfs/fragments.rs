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
    /// The block that is being put together.
    open: Vec<u8>,
    pending: VecDeque<(u32, Pending)>,
    written: Vec<Fragment>,
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
        if !self.open.is_empty() && self.open.len() + bytes.len() > self.capacity {
            self.complete(output)?;
        }
        let number = u32::try_from(self.written.len() + self.pending.len());
        // The last number stands for none.
        let fragment = number.ok().filter(|&number| number < u32::MAX).ok_or_else(|| {
            Error::new(Kind::InvalidInput, "a squashfs image has at most 2^32 - 1 fragment blocks")
        })?;
        let offset = self.open.len() as u32;
        self.open.extend_from_slice(bytes);
        Ok(Tail { fragment, offset })
    }

    /// Writes all that is left; the table.
    ///
    /// # Errors
    /// As `add`.
    pub(super) fn finish(mut self, output: &mut Output) -> Result<Vec<Fragment>> {
        if !self.open.is_empty() {
            self.complete(output)?;
        }
        while !self.pending.is_empty() {
            self.write_first(output)?;
        }
        Ok(self.written)
    }

    fn complete(&mut self, output: &mut Output) -> Result<()> {
        let bytes = std::mem::replace(&mut self.open, Vec::with_capacity(self.capacity));
        let len = bytes.len() as u32;
        self.pending.push_back((len, self.encoders.compress(bytes, self.threads)));
        match self.pending.len() > self.behind {
            true => self.write_first(output),
            false => Ok(()),
        }
    }

    fn write_first(&mut self, output: &mut Output) -> Result<()> {
        let Some((len, pending)) = self.pending.pop_front() else { return Ok(()) };
        let stored = pending.wait()?;
        self.written.push(Fragment { start: output.len(), word: stored.word, len });
        output.append(&stored.bytes)
    }
}
