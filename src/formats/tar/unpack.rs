//! A compressed tar on its first pass: decoded from its start to its end while it is scanned.
//!
//! Owns the bytes between the pieces that a survey delivers and the blocks that a scan asks for.
//! Invariant: every byte is decoded once; a request that crosses pieces is put together once.

use super::header::{self, BLOCK};
use super::recognises;
use super::source::Source;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::formats::compressed::{Container, FirstPass, SeekIndex};
use crate::progress::Progress;
use crate::vfs::SharedBytes;

/// A compressed tar, as far as it is decoded.
pub(super) struct Unpacking<'p> {
    first_pass: FirstPass,
    /// The piece at hand, and where in the decoded bytes it begins.
    piece: SharedBytes,
    start: u64,
    /// The last request that crossed pieces, and where it began.
    joined: Vec<u8>,
    joined_at: u64,
    /// Where the decoded bytes end, once they did.
    end: Option<u64>,
    /// Why they ended too early.
    damage: Option<Error>,
    progress: &'p Progress,
    /// Compressed bytes that the progress knows of.
    told: u64,
}

/// What decoding to the end came to.
pub(super) struct Unpacked {
    pub(super) seek_index: SeekIndex,
    /// What ended it too early.
    pub(super) damage: Option<Damage>,
    /// Where in the compressed file something begins that is not of its container.
    pub(super) garbage: Option<u64>,
}

/// Why the decoded bytes ended too early.
pub(super) struct Damage {
    pub(super) error: Error,
    /// Whether more was decoded than there are seek points for: its checksum turned out wrong.
    pub(super) in_doubt: bool,
}

impl<'p> Unpacking<'p> {
    pub(super) fn new(first_pass: FirstPass, progress: &'p Progress) -> Self {
        Self {
            first_pass,
            piece: SharedBytes::from([]),
            start: 0,
            joined: Vec::new(),
            joined_at: 0,
            end: None,
            damage: None,
            progress,
            told: 0,
        }
    }

    /// Whether a tar seems to be what is within, and whether it begins with zeros.
    ///
    /// # Errors
    /// What the survey reports but for damage.
    pub(super) fn looks(&mut self) -> Result<(bool, bool)> {
        for blocks in [2, 1_usize] {
            if let Some(head) = self.bytes(0, BLOCK.saturating_mul(blocks))? {
                let is_zero = head.first_chunk().is_some_and(header::is_zero);
                return Ok((recognises(head), is_zero));
            }
        }
        // Nothing whole came out: the damage says why.
        self.damage.take().map_or(Ok((false, false)), Err)
    }

    /// What the decoded bytes are compressed with, if they are, once `looks` did.
    pub(super) fn container(&self) -> Option<Container> {
        let head = if self.start == 0 { &*self.piece } else { &*self.joined };
        Container::recognise(head)
    }

    /// Decodes what is left, for a tar may end before its file does; returns the seek points, the
    /// damage that ended them, if any did, and whether that leaves in doubt what was scanned.
    ///
    /// # Errors
    /// What the survey reports but for damage.
    pub(super) fn finish(mut self) -> Result<Unpacked> {
        while self.advance()? {}
        let garbage = self.first_pass.garbage();
        let seek_index = self.first_pass.finish();
        let in_doubt = self.end.is_some_and(|end| seek_index.len() < end);
        let damage = self.damage.map(|error| Damage { error, in_doubt });
        Ok(Unpacked { seek_index, damage, garbage })
    }

    /// Goes to the next piece; `false` at the end.
    fn advance(&mut self) -> Result<bool> {
        if self.end.is_some() {
            return Ok(false);
        }
        let behind = self.start.saturating_add(length(self.piece.len()));
        let next = match self.first_pass.next_piece() {
            Err(error) if error.is_damage() => {
                self.damage = Some(error);
                None
            }
            other => other?,
        };
        let position = self.first_pass.position();
        self.progress.advance(position.saturating_sub(self.told));
        self.told = position;
        match next {
            Some(piece) => (self.piece, self.start) = (piece, behind),
            None => self.end = Some(behind),
        }
        Ok(self.end.is_none())
    }

    /// Where the piece at hand ends.
    fn behind(&self) -> u64 {
        self.start.saturating_add(length(self.piece.len()))
    }

    fn within_piece(&self, at: u64, len: usize) -> Option<&[u8]> {
        let from = index(at.checked_sub(self.start)?);
        self.piece.get(from..from.checked_add(len)?)
    }

    fn within_joined(&self, at: u64, len: usize) -> Option<&[u8]> {
        let from = index(at.checked_sub(self.joined_at)?);
        self.joined.get(from..from.checked_add(len)?)
    }

    /// Puts the `len` bytes at `at` together, which begin in the piece at hand; `false` where the
    /// decoded bytes end before they do.
    fn join(&mut self, at: u64, len: usize) -> Result<bool> {
        self.joined_at = at;
        self.joined.clear();
        loop {
            let from =
                index(at.saturating_add(length(self.joined.len())).saturating_sub(self.start));
            let missing = len.saturating_sub(self.joined.len());
            let rest = self.piece.get(from..).unwrap_or_default();
            self.joined.extend(rest.get(..missing.min(rest.len())).unwrap_or_default());
            if self.joined.len() >= len {
                return Ok(true);
            }
            if !self.advance()? {
                return Ok(false);
            }
        }
    }
}

impl Source for Unpacking<'_> {
    fn bytes(&mut self, at: u64, len: usize) -> Result<Option<&[u8]>> {
        if self.within_joined(at, len).is_some() {
            return Ok(self.within_joined(at, len));
        }
        while at >= self.behind() && at.saturating_add(length(len)) > self.behind() {
            if !self.advance()? {
                return Ok(None);
            }
        }
        if at < self.start {
            // Gone: whoever asks backwards would get other bytes than a stored archive gives.
            let context = format!("{at:#x} was asked for when decoding was past it");
            return Err(Error::new(Kind::InvalidInput, context));
        }
        if self.within_piece(at, len).is_some() {
            return Ok(self.within_piece(at, len));
        }
        Ok(if self.join(at, len)? { self.within_joined(at, len) } else { None })
    }

    fn end(&self) -> Option<u64> {
        self.end
    }
}
