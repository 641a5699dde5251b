//! Writes an index from start to end, with a checksum for each block.

use std::io::{self, Write};

use super::blocks::BLOCK;
use super::key::Key;
use super::sections::{Section, Sections, hash_of};
use crate::formats::bytes::length;

/// Bytes per write: a few blocks.
const STEP: usize = 16 * BLOCK;

/// Writes an index to `out`, which needs no buffer of its own.
pub(super) struct Output<'o> {
    out: &'o mut dyn Write,
    start: Vec<u8>,
    /// Data not written yet: less than `STEP` bytes, starting at a block boundary.
    buffer: Vec<u8>,
    sums: Vec<u8>,
    section_lens: Sections,
    section: Section,
}

impl<'o> Output<'o> {
    /// Starts the index with `key`.
    pub(super) fn new(out: &'o mut dyn Write, key: &Key) -> io::Result<Self> {
        let start = key.encoded();
        out.write_all(&start)?;
        let (buffer, sums) = (Vec::with_capacity(STEP.saturating_mul(2)), Vec::new());
        Ok(Self {
            out,
            start,
            buffer,
            sums,
            section_lens: Sections::default(),
            section: Section::Nodes,
        })
    }

    /// Starts `section`. Sections must come in order.
    pub(super) fn begin(&mut self, section: Section) {
        self.section = section;
    }

    /// Appends `bytes` to the current section.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.section_lens.grow(self.section, length(bytes.len()));
        // Chunks keep the buffer from growing.
        for piece in bytes.chunks(STEP) {
            self.buffer.extend(piece);
            if self.buffer.len() >= STEP {
                self.flush(STEP)?;
            }
        }
        Ok(())
    }

    /// Writes the first `len` bytes of the buffer: whole blocks, except at the end of the data.
    fn flush(&mut self, len: usize) -> io::Result<()> {
        let ready = self.buffer.get(..len).unwrap_or_default();
        for block in ready.chunks(BLOCK) {
            self.sums.extend(crc32fast::hash(block).to_le_bytes());
        }
        self.out.write_all(ready)?;
        self.buffer.drain(..len);
        Ok(())
    }

    /// Finishes the index of an archive of `archive_len` bytes.
    pub(super) fn finish(mut self, archive_len: u64) -> io::Result<()> {
        self.flush(self.buffer.len())?;
        let tail = self.section_lens.tail(archive_len);
        let hash = hash_of(&self.start, &self.sums, &tail);
        self.out.write_all(&self.sums)?;
        self.out.write_all(&tail)?;
        self.out.write_all(&hash)
    }
}
