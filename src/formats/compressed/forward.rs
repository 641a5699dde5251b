//! Decodes a compressed file of any container from start to end.
//!
//! Invariant: everything decoded before damage is delivered before the error.

use super::Container;
use super::cursor::Cursor;
use super::first_pass::Found;
use super::gzip::PointFinder;
use super::zstd::{self, is_skippable};
use super::{lz4, xz};
use crate::codecs::{Streaming, xz_stream, zstd_stream};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::length;
use crate::formats::limits::XZ_PADDING_MAX;
use crate::memory;
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::SharedBytes;

/// Bytes read from the file at a time.
const STRIDE: usize = 256 << 10;

/// Decoded bytes delivered at a time.
const PIECE: usize = 256 << 10;

/// Most compressed bytes read between two deliveries. Padding and empty streams decode to nothing,
/// and the caller can cancel only between deliveries.
const INPUT_MAX: u64 = 4 << 20;

pub(super) enum Forward {
    Gzip(Box<PointFinder>),
    Streams(Box<Streams>),
    Lz4(Box<lz4::Forward>),
}

impl Forward {
    pub(super) fn new(name: &str, storage: Arc<dyn Storage>, container: Container) -> Result<Self> {
        Ok(match container {
            Container::Gzip => Self::Gzip(Box::new(PointFinder::forward(name, storage))),
            Container::Xz | Container::Zstd => {
                Self::Streams(Box::new(Streams::new(name, storage, container)?))
            }
            Container::Lz4 => Self::Lz4(Box::new(lz4::Forward::new(name, storage))),
            Container::Bzip2 => {
                let context = "bzip2 has no blocks that are too large to be decoded at once";
                return Err(Error::new(Kind::InvalidInput, context));
            }
        })
    }

    /// Compressed bytes read so far.
    pub(super) fn position(&self) -> u64 {
        match self {
            Self::Gzip(pass) => pass.position(),
            Self::Streams(streams) => streams.cursor.position(),
            Self::Lz4(forward) => forward.position(),
        }
    }

    /// Offset in the file of other data after the end of the container.
    pub(super) fn garbage(&self) -> Option<u64> {
        match self {
            Self::Gzip(pass) => pass.garbage(),
            Self::Streams(streams) => streams.garbage,
            Self::Lz4(forward) => forward.garbage(),
        }
    }

    /// Decoded bytes that count as correct after damage of the kind `damage`.
    pub(super) fn verified_len(&self, damage: Kind) -> u64 {
        match self {
            Self::Gzip(pass) => pass.verified_len(damage),
            Self::Streams(streams) if damage == Kind::Truncated => streams.decoded,
            Self::Streams(streams) => streams.checked,
            Self::Lz4(forward) => forward.verified_len(damage),
        }
    }

    /// The next decoded bytes, which may be empty; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<SharedBytes>> {
        match self {
            Self::Gzip(pass) => match pass.next()? {
                Found::Piece(piece) => Ok(Some(piece)),
                Found::Giant | Found::End => Ok(None),
            },
            Self::Streams(streams) => streams.next(),
            Self::Lz4(forward) => forward.next(),
        }
    }
}

/// The streams of an xz file, or the frames of a zstd file.
pub(super) struct Streams {
    name: String,
    container: Container,
    cursor: Cursor,
    /// Memory limit of the decoder, bytes: half of the memory available at the start.
    memory: u64,
    decoder: Box<dyn Streaming>,
    /// Offset of the current stream. None between streams.
    start: Option<u64>,
    damage: Option<Error>,
    ended: bool,
    garbage: Option<u64>,
    /// Stream padding so far, bytes.
    padding: u64,
    decoded: u64,
    /// Of the decoded bytes, those of streams that ended without an error.
    checked: u64,
}

impl Streams {
    fn new(name: &str, storage: Arc<dyn Storage>, container: Container) -> Result<Self> {
        let memory = memory::headroom().map_or(u64::MAX, |left| left.bytes / 2);
        Ok(Self {
            name: name.to_owned(),
            container,
            cursor: Cursor::new(storage, 0, STRIDE),
            memory,
            decoder: decoder(container, memory)?,
            start: None,
            damage: None,
            ended: false,
            garbage: None,
            padding: 0,
            decoded: 0,
            checked: 0,
        })
    }

    fn next(&mut self) -> Result<Option<SharedBytes>> {
        let mut piece = vec![0; PIECE];
        let mut filled = 0_usize;
        let input_limit = self.cursor.position().saturating_add(INPUT_MAX);
        while filled < piece.len() && self.damage.is_none() && !self.ended {
            if self.cursor.position() >= input_limit {
                return Ok(Some(piece.get(..filled).unwrap_or_default().into()));
            }
            match self.step(piece.get_mut(filled..).unwrap_or_default()) {
                Ok(produced) => filled = filled.saturating_add(produced),
                Err(error) => self.damage = Some(error),
            }
        }
        if let Some(piece) = piece.get(..filled).filter(|piece| !piece.is_empty()) {
            return Ok(Some(piece.into()));
        }
        self.damage.take().map_or(Ok(None), |error| {
            self.ended = true;
            Err(error)
        })
    }

    fn step(&mut self, output: &mut [u8]) -> Result<usize> {
        let Some(start) = self.start else {
            self.begin()?;
            return Ok(0);
        };
        let input = self.cursor.fill_buf(1)?;
        let at_eof = input.is_empty();
        let location = || format!("{} data at {start:#x}", self.container.name());
        let step = self.decoder.step(input, output).map_err(|error| {
            let at = self.cursor.position();
            error.within(format!("{}, near {at:#x}", location()))
        })?;
        if at_eof && step.produced == 0 && !step.ended {
            return Err(self.cursor.ends_early().within(location()));
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
        if self.container == Container::Xz && at > 0 && self.skip_padding()? {
            return Ok(());
        }
        let has_next = match self.container {
            Container::Xz => self.cursor.peek(6)? == xz::HEADER_MAGIC,
            _ => self
                .cursor
                .magic()?
                .is_some_and(|magic| magic == zstd::MAGIC || is_skippable(magic)),
        };
        if has_next {
            if at > 0 && self.container == Container::Xz {
                self.decoder = decoder(self.container, self.memory)?;
            }
            self.start = Some(self.cursor.position());
            return Ok(());
        }
        self.ended = true;
        if at == 0 {
            return Err(Error::corrupt(format!("not {} data", self.container.name())));
        }
        if self.cursor.has_garbage()? {
            self.garbage = Some(at);
            let (name, container) = (&self.name, self.container.name());
            log::warn!("{name}: what follows the {container} data at {at:#x} is ignored");
        }
        Ok(())
    }

    /// Skips the stream padding that is buffered. Returns whether there was any.
    fn skip_padding(&mut self) -> Result<bool> {
        let words = self.cursor.fill_buf(4)?.chunks_exact(4);
        let zeros = words.take_while(|word| *word == [0; 4]).count();
        let (at, passed) = (self.cursor.position(), length(zeros).saturating_mul(4));
        self.cursor.skip(passed)?;
        self.padding = self.padding.saturating_add(passed);
        if self.padding > XZ_PADDING_MAX {
            self.ended = true;
            self.garbage = Some(at);
            let name = &self.name;
            log::warn!("{name}: more than {XZ_PADDING_MAX} zeros before {at:#x}: not read further");
        }
        Ok(zeros > 0)
    }
}

/// A decoder that uses at most `memory` bytes.
fn decoder(container: Container, memory: u64) -> Result<Box<dyn Streaming>> {
    Ok(match container {
        Container::Xz => Box::new(xz_stream(memory)?),
        _ => Box::new(zstd_stream(memory)?),
    })
}
