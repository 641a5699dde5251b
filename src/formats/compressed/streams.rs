//! Decodes a file of streams (xz) or frames (zstd) from start to end with a streaming decoder.
//!
//! Invariant: everything decoded before damage is delivered before the error.

use super::format::{Output, PIECE_MAX, Pass, trailing_garbage};
use crate::codecs::Streaming;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::Cursor;
use crate::formats::bytes::length;
use crate::os::memory;
use crate::storage::Storage;
use crate::sync::Arc;

/// Bytes of the file that a `Cursor` reads at a time.
const READ_SIZE: usize = 256 << 10;

/// Most compressed bytes read between two deliveries. Padding and empty streams decode to nothing,
/// and the caller can cancel only between deliveries.
const INPUT_MAX: u64 = 4 << 20;

/// What differs between containers of streams.
pub(super) struct StreamFormat {
    /// The name of the container.
    pub(super) name: &'static str,
    /// Most bytes of zeros between the streams of a file. None if there is no such padding.
    pub(super) padding_max: Option<u64>,
    /// Whether each stream needs a new decoder.
    pub(super) decoder_per_stream: bool,
    /// A decoder that uses at most this many bytes of memory.
    pub(super) decoder: fn(u64) -> Result<Box<dyn Streaming>>,
    /// Whether a stream starts at the cursor.
    pub(super) is_stream: fn(&mut Cursor) -> Result<bool>,
}

/// The streams of a file.
struct Streams {
    name: String,
    format: &'static StreamFormat,
    cursor: Cursor,
    /// Memory limit of the decoder, bytes: half of the memory available at the start.
    memory: u64,
    decoder: Box<dyn Streaming>,
    /// Offset of the current stream. None between streams.
    start: Option<u64>,
    damage: Option<Error>,
    ended: bool,
    trailing_garbage_at: Option<u64>,
    /// Stream padding so far, bytes.
    padding: u64,
    decoded: u64,
    /// Of the decoded bytes, those of streams that ended without an error.
    checked: u64,
}

/// Starts to decode the streams in `storage`; `name` is for messages.
pub(super) fn open(
    format: &'static StreamFormat,
    name: &str,
    storage: Arc<dyn Storage>,
) -> Result<Box<dyn Pass>> {
    let memory = memory::headroom().map_or(u64::MAX, |left| left.bytes / 2);
    Ok(Box::new(Streams {
        name: name.to_owned(),
        format,
        cursor: Cursor::new(storage, 0, READ_SIZE),
        memory,
        decoder: (format.decoder)(memory)?,
        start: None,
        damage: None,
        ended: false,
        trailing_garbage_at: None,
        padding: 0,
        decoded: 0,
        checked: 0,
    }))
}

impl Streams {
    fn step(&mut self, output: &mut [u8]) -> Result<usize> {
        let Some(start) = self.start else {
            self.begin()?;
            return Ok(0);
        };
        let at = self.cursor.position();
        let input = self.cursor.fill_buf(1)?;
        let at_eof = input.is_empty();
        let located = |error: Error| {
            let data = format_args!("{} data", self.format.name);
            error.within(data).with_detail(format_args!("{data} at {start:#x}, read to {at:#x}"))
        };
        let step = self.decoder.step(input, output).map_err(located)?;
        if at_eof && step.produced == 0 && !step.ended {
            return Err(located(self.cursor.ends_early()));
        }
        self.cursor.skip(length(step.consumed))?;
        self.decoded = self.decoded.saturating_add(length(step.produced));
        if step.ended {
            self.start = None;
            self.checked = self.decoded;
        }
        Ok(step.produced)
    }

    /// Starts the next stream, or ends.
    fn begin(&mut self) -> Result<()> {
        let at = self.cursor.position();
        if at > 0
            && let Some(most) = self.format.padding_max
            && self.skip_padding(most)?
        {
            return Ok(());
        }
        if (self.format.is_stream)(&mut self.cursor)? {
            if self.format.decoder_per_stream && at > 0 {
                self.decoder = (self.format.decoder)(self.memory)?;
            }
            self.start = Some(self.cursor.position());
            return Ok(());
        }
        self.ended = true;
        if at == 0 {
            return Err(Error::corrupt(format!("not {} data", self.format.name)));
        }
        self.trailing_garbage_at =
            trailing_garbage(&mut self.cursor, &self.name, self.format.name)?;
        Ok(())
    }

    /// Skips the stream padding that is buffered. Returns whether there was any. Ends the file
    /// after more than `most` bytes.
    fn skip_padding(&mut self, most: u64) -> Result<bool> {
        let words = self.cursor.fill_buf(4)?.chunks_exact(4);
        let zeros = words.take_while(|word| *word == [0; 4]).count();
        let (at, passed) = (self.cursor.position(), length(zeros).saturating_mul(4));
        self.cursor.skip(passed)?;
        self.padding = self.padding.saturating_add(passed);
        if self.padding > most {
            self.ended = true;
            self.trailing_garbage_at = Some(at);
            let name = &self.name;
            let at = crate::log::detail(format_args!(" before {at:#x}"));
            log::warn!("{name}: more than {most} zeros{at}: not read further");
        }
        Ok(zeros > 0)
    }
}

impl Pass for Streams {
    fn next(&mut self) -> Result<Output> {
        let mut piece = vec![0; PIECE_MAX];
        let mut filled = 0_usize;
        let input_limit = self.cursor.position().saturating_add(INPUT_MAX);
        while filled < piece.len() && self.damage.is_none() && !self.ended {
            if self.cursor.position() >= input_limit {
                return Ok(Output::Piece(piece.get(..filled).unwrap_or_default().into()));
            }
            match self.step(piece.get_mut(filled..).unwrap_or_default()) {
                Ok(produced) => filled = filled.saturating_add(produced),
                Err(error) => self.damage = Some(error),
            }
        }
        if let Some(piece) = piece.get(..filled).filter(|piece| !piece.is_empty()) {
            return Ok(Output::Piece(piece.into()));
        }
        self.damage.take().map_or(Ok(Output::End), |error| {
            self.ended = true;
            Err(error)
        })
    }

    fn position(&self) -> u64 {
        self.cursor.position()
    }

    fn trailing_garbage_at(&self) -> Option<u64> {
        self.trailing_garbage_at
    }

    fn usable_len(&self, damage: Kind) -> u64 {
        if damage == Kind::Truncated { self.decoded } else { self.checked }
    }
}
