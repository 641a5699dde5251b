//! Writing an index from its start to its end, with a checksum for each block.

use std::io::{self, Write};

use super::blocks::BLOCK;
use super::file::{Section, Sections, hash_of};
use super::key::Key;
use crate::formats::bytes::length;

/// Bytes that are written at once: some blocks.
const STEP: usize = 16 * BLOCK;

/// An index on its way to `out`, which need not be buffered.
pub(super) struct Output<'o> {
    out: &'o mut dyn Write,
    start: Vec<u8>,
    /// Data that is not written yet: less than `STEP`, from the border of a block on.
    buffer: Vec<u8>,
    sums: Vec<u8>,
    layout: Sections,
    section: Section,
}

impl<'o> Output<'o> {
    /// Begins the index that belongs to `key`.
    ///
    /// # Errors
    /// What `out` reports.
    pub(super) fn new(out: &'o mut dyn Write, key: &Key) -> io::Result<Self> {
        let start = key.encoded();
        out.write_all(&start)?;
        let (buffer, sums) = (Vec::with_capacity(STEP.saturating_mul(2)), Vec::new());
        Ok(Self { out, start, buffer, sums, layout: Sections::default(), section: Section::Nodes })
    }

    /// Goes on with `section`, which must come after those before.
    pub(super) fn begin(&mut self, section: Section) {
        self.section = section;
    }

    /// Adds `bytes` to the section.
    ///
    /// # Errors
    /// What `out` reports.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.layout.grow(self.section, length(bytes.len()));
        // Pieces, so that the buffer stays what it is.
        for piece in bytes.chunks(STEP) {
            self.buffer.extend(piece);
            if self.buffer.len() >= STEP {
                self.flush(STEP)?;
            }
        }
        Ok(())
    }

    /// Writes the first `len` bytes of the buffer, whole blocks but for the last ones.
    fn flush(&mut self, len: usize) -> io::Result<()> {
        let ready = self.buffer.get(..len).unwrap_or_default();
        for block in ready.chunks(BLOCK) {
            self.sums.extend(crc32fast::hash(block).to_le_bytes());
        }
        self.out.write_all(ready)?;
        self.buffer.drain(..len);
        Ok(())
    }

    /// Ends the index of an archive of `decoded_len` bytes.
    ///
    /// # Errors
    /// What `out` reports.
    pub(super) fn finish(mut self, decoded_len: u64) -> io::Result<()> {
        self.flush(self.buffer.len())?;
        let tail = self.layout.tail(decoded_len);
        let hash = hash_of(&self.start, &self.sums, &tail);
        self.out.write_all(&self.sums)?;
        self.out.write_all(&tail)?;
        self.out.write_all(&hash)
    }
}
