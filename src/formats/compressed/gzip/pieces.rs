//! The decoded bytes of a gzip file in pieces, from start to end.
//!
//! Invariant: everything decoded before damage is delivered before the error.

use super::super::container::Container;
use super::super::trailing_garbage;
use super::member::{Event, MemberDecoder, READ_SIZE};
use crate::error::{Error, Result};
use crate::formats::cursor::Cursor;
use crate::formats::limits::GZIP_WINDOW;
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::SharedBytes;

/// Decoded bytes delivered at a time.
const OUTPUT_SIZE: usize = 256 << 10;

/// Decodes a gzip file piece by piece.
pub(super) struct Pieces {
    name: String,
    decoder: MemberDecoder,
    /// A decoding error, kept until the bytes decoded before it are delivered.
    damage: Option<Error>,
    ended: bool,
}

impl Pieces {
    pub(super) fn new(name: &str, storage: Arc<dyn Storage>) -> Self {
        let buffer = vec![0; OUTPUT_SIZE.saturating_add(GZIP_WINDOW)];
        let decoder = MemberDecoder::new(Cursor::new(storage, 0, READ_SIZE), buffer);
        Self { name: name.to_owned(), decoder, damage: None, ended: false }
    }

    pub(super) fn decoder(&self) -> &MemberDecoder {
        &self.decoder
    }

    /// Decodes up to the next event. None if a piece must be delivered first, or after the end.
    pub(super) fn step(&mut self) -> Option<Event> {
        if self.damage.is_some() || self.ended || self.decoder.is_full() {
            return None;
        }
        match self.decoder.step() {
            Ok(event) => {
                if matches!(event, Event::End) {
                    self.ended = true;
                    if let Some(at) = self.decoder.trailing_garbage_at() {
                        trailing_garbage::warn(&self.name, Container::Gzip, at);
                    }
                }
                Some(event)
            }
            Err(error) => {
                self.damage = Some(error);
                None
            }
        }
    }

    /// The bytes decoded since the last call. After them the error, if there is one; then `None`.
    pub(super) fn deliver(&mut self) -> Result<Option<SharedBytes>> {
        let piece = self.decoder.take_output();
        if !piece.is_empty() {
            return Ok(Some(piece));
        }
        self.damage.take().map_or(Ok(None), |error| {
            self.ended = true;
            Err(error)
        })
    }
}
