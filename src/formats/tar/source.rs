//! Where a scan reads headers from: an archive that can be read at any offset, or a stream that is
//! decompressed from start to end.
//!
//! Invariant: a scan reads only forward, and what it read stays available until the next read.
//!
//! How much to read at once? Reading the data of a member only to discard it costs its length.
//! Reading each header alone costs a call, which is a round trip on a parallel file system. So the
//! window grows while the next header is close (small members). It becomes small again when the
//! data in between would cost more than a call.

use super::header;
use super::{HEAD, recognizes};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::formats::compressed::{Container, FirstPass, SeekIndex, Spool};
use crate::progress::Progress;
use crate::storage::{InMemory, Storage};
use crate::sync::{AtomicU64, Ordering};
use crate::vfs::SharedBytes;

/// The smallest read, bytes: a pax header, its body and the member's own header.
const WINDOW_MIN: usize = 2 << 10;

/// The largest read, bytes.
const WINDOW_MAX: usize = 1 << 20;

/// Data up to this length is read rather than skipped, bytes.
const READ_THROUGH: u64 = 16 << 10;

/// Bytes of an archive, read in ascending order.
pub(super) trait Source {
    /// The `len` bytes at `offset`, or `None` if the archive ends before they do.
    fn bytes(&mut self, offset: u64, len: usize) -> Result<Option<&[u8]>>;

    /// The end of the archive, once it is known.
    fn end(&self) -> Option<u64>;
}

/// The `len` bytes at `offset`, or `None` if they reach past `end` or past the archive.
pub(super) fn before(
    source: &mut dyn Source,
    offset: u64,
    len: usize,
    end: u64,
) -> Result<Option<&[u8]>> {
    if offset.checked_add(length(len)).is_none_or(|bytes_end| bytes_end > end) {
        return Ok(None);
    }
    source.bytes(offset, len)
}

/// An archive that can be read at any offset, with a buffer.
pub(super) struct Windowed<'s> {
    storage: &'s dyn Storage,
    end: u64,
    buffer: Vec<u8>,
    /// Number of valid bytes in the buffer, and the offset of the first in the archive.
    filled: usize,
    start: u64,
    window: usize,
}

impl<'s> Windowed<'s> {
    /// Reads the bytes of `storage` before `end`.
    pub(super) fn new(storage: &'s dyn Storage, end: u64) -> Self {
        let end = end.min(storage.len());
        Self { storage, end, buffer: Vec::new(), filled: 0, start: 0, window: WINDOW_MIN }
    }

    fn refill(&mut self, offset: u64, len: usize) -> Result<()> {
        let gap = offset.saturating_sub(self.start.saturating_add(length(self.filled)));
        self.window = match gap {
            0..=READ_THROUGH => self.window.saturating_mul(2).min(WINDOW_MAX),
            _ => WINDOW_MIN,
        };
        let left = index(self.end.saturating_sub(offset));
        let wanted = self.window.max(len).min(left);
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        // If the read fails, the buffer is invalid.
        self.filled = 0;
        self.storage.read_exact_at(self.buffer.get_mut(..wanted).unwrap_or_default(), offset)?;
        (self.start, self.filled) = (offset, wanted);
        Ok(())
    }
}

impl Source for Windowed<'_> {
    fn bytes(&mut self, offset: u64, len: usize) -> Result<Option<&[u8]>> {
        if offset.checked_add(length(len)).is_none_or(|end| end > self.end) {
            return Ok(None);
        }
        let filled_end = self.start.saturating_add(length(self.filled));
        if offset < self.start || offset.saturating_add(length(len)) > filled_end {
            self.refill(offset, len)?;
        }
        let from = index(offset.saturating_sub(self.start));
        Ok(self.buffer.get(from..from.saturating_add(len)))
    }

    fn end(&self) -> Option<u64> {
        Some(self.end)
    }
}

/// A compressed tar during its first pass, which decompresses every byte once. Turns the pieces of
/// a `FirstPass` into the blocks that a scan asks for.
pub(super) struct Unpacking<'p> {
    first_pass: FirstPass,
    /// The current piece, and its offset in the decompressed bytes.
    piece: SharedBytes,
    start: u64,
    /// The last request that crossed pieces, and its offset.
    joined: Vec<u8>,
    joined_start: u64,
    /// The end of the decompressed bytes, once it is reached.
    end: Option<u64>,
    /// The error that ended them early.
    damage: Option<Error>,
    progress: &'p Progress,
    /// Compressed bytes that were already reported as progress.
    reported: u64,
    /// Bytes that may still be decompressed; `None` for any number.
    most: Option<&'p AtomicU64>,
}

/// The result of decompressing the whole file.
pub(super) struct Unpacked {
    pub(super) seek_index: SeekIndex,
    /// The temporary file it was decompressed into, if there is one.
    pub(super) spool: Option<Spool>,
    /// The error that ended it early.
    pub(super) damage: Option<Damage>,
    /// Offset in the compressed file where data starts that does not belong to the container.
    pub(super) garbage: Option<u64>,
}

/// Why the decompressed bytes ended early.
pub(super) struct Damage {
    pub(super) error: Error,
    /// Whether more bytes were decompressed than have seek points. Their checksum was wrong.
    pub(super) in_doubt: bool,
}

impl<'p> Unpacking<'p> {
    pub(super) fn new(
        first_pass: FirstPass,
        progress: &'p Progress,
        most: Option<&'p AtomicU64>,
    ) -> Self {
        Self {
            first_pass,
            piece: SharedBytes::from([]),
            start: 0,
            joined: Vec::new(),
            joined_start: 0,
            end: None,
            damage: None,
            progress,
            reported: 0,
            most,
        }
    }

    /// Whether the content looks like a tar, and whether it starts with zeros.
    pub(super) fn probe(&mut self) -> Result<(bool, bool)> {
        // If there are fewer bytes, all of them were joined.
        let is_short = self.bytes(0, HEAD)?.is_none();
        let found = self.within_piece(0, HEAD).or(self.within_joined(0, HEAD));
        let head = if is_short { &self.joined } else { found.unwrap_or_default() };
        if let Some(first) = head.first_chunk() {
            return Ok((recognizes(head), header::is_zero(first)));
        }
        // Not even one block was decompressed. Any damage is the reason.
        self.damage.take().map_or(Ok((false, false)), Err)
    }

    /// The compression of the content, if it is compressed again. Call `probe` first.
    pub(super) fn container(&self) -> Option<Container> {
        let head = if self.start == 0 { &*self.piece } else { &*self.joined };
        let head = head.get(..HEAD).unwrap_or(head);
        // Frames that are skipped further than that are no container that a hint could name.
        Container::of(&InMemory::new(head.to_vec()), head).ok().flatten()
    }

    /// Decompresses the rest, because a tar may end before its file does. Returns the seek points.
    /// If damage ended them, also returns whether it puts the scanned members in doubt.
    pub(super) fn finish(mut self) -> Result<Unpacked> {
        while self.advance()? {}
        let garbage = self.first_pass.trailing_garbage_at();
        let (seek_index, spool) = self.first_pass.finish();
        let in_doubt = self.end.is_some_and(|end| seek_index.len() < end);
        let damage = self.damage.map(|error| Damage { error, in_doubt });
        Ok(Unpacked { seek_index, spool, damage, garbage })
    }

    /// Moves to the next piece. Returns `false` at the end.
    fn advance(&mut self) -> Result<bool> {
        if self.end.is_some() {
            return Ok(false);
        }
        let piece_end = self.start.saturating_add(length(self.piece.len()));
        let next = match self.first_pass.next_piece() {
            Err(error) if error.is_damage() => {
                self.damage = Some(error);
                None
            }
            other => other?,
        };
        let position = self.first_pass.position();
        self.progress.advance(position.saturating_sub(self.reported));
        self.reported = position;
        if let (Some(most), Some(piece)) = (self.most, &next) {
            let take = |left: u64| left.checked_sub(length(piece.len()));
            if most.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
                let context =
                    "the compressed tars in the archives of this mount are too large together";
                return Err(Error::new(Kind::Unsupported, context).with_hint(
                    "perhaps a decompression bomb: if you trust it, extract this tar and mount it \
                     by itself",
                ));
            }
        }
        match next {
            Some(piece) => (self.piece, self.start) = (piece, piece_end),
            None => self.end = Some(piece_end),
        }
        Ok(self.end.is_none())
    }

    /// The end of the current piece.
    fn piece_end(&self) -> u64 {
        self.start.saturating_add(length(self.piece.len()))
    }

    fn within_piece(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let from = index(offset.checked_sub(self.start)?);
        self.piece.get(from..from.checked_add(len)?)
    }

    fn within_joined(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let from = index(offset.checked_sub(self.joined_start)?);
        self.joined.get(from..from.checked_add(len)?)
    }

    /// Joins the `len` bytes at `offset`, which start in the current piece. Returns `false` if the
    /// decompressed bytes end before that.
    fn join(&mut self, offset: u64, len: usize) -> Result<bool> {
        self.joined_start = offset;
        self.joined.clear();
        loop {
            let from =
                index(offset.saturating_add(length(self.joined.len())).saturating_sub(self.start));
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
        while at >= self.piece_end() && at.saturating_add(length(len)) > self.piece_end() {
            if !self.advance()? {
                return Ok(None);
            }
        }
        if at < self.start {
            // Already dropped. `None` would wrongly mean the end of the archive.
            let context = "bytes were requested after decompression had passed them";
            return Err(Error::new(Kind::InvalidInput, context)
                .with_detail(format_args!("bytes at {at:#x}")));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemStorage;

    #[test]
    fn reads_many_small_members_in_few_reads_and_little_of_large_ones() {
        let storage = MemStorage::new(vec![7; 64 << 20]);
        let mut source = Windowed::new(&storage, u64::MAX);
        for offset in (0..16 << 20).step_by(1024) {
            assert_eq!(source.bytes(offset, 512).unwrap(), Some(&[7; 512][..]));
        }
        assert!(storage.reads() < 40, "{} reads of 16 MiB", storage.reads());
        let before = storage.bytes_read();
        for offset in (16 << 20..64 << 20).step_by(100 << 10) {
            source.bytes(offset, 512).unwrap();
        }
        let read = storage.bytes_read() - before;
        assert!(read < 5 << 20, "{read} bytes of 48 MiB, whose headers are 0.25 MiB");
    }

    #[test]
    fn ends_at_its_limit() {
        let storage = MemStorage::new(vec![7; 1000]);
        let mut source = Windowed::new(&storage, 900);
        assert!(source.bytes(388, 512).unwrap().is_some());
        assert!(source.bytes(389, 512).unwrap().is_none());
        assert!(source.bytes(u64::MAX, 512).unwrap().is_none());
        assert_eq!(source.end(), Some(900));
        assert_eq!(Windowed::new(&storage, 2000).end(), Some(1000));
    }
}
