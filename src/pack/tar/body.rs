//! Writes the bytes of one member, piece by piece.
//!
//! Invariant: from `begin` to `end` or `discard` this member is the last one in the output.

use super::header::padding;
use super::holes::Map;
use crate::error::{Error, Kind, Result};
use crate::pack::feed::{Data, Piece};
use crate::pack::output::Output;

/// Zeros that are written at a time.
const ZEROS: &[u8] = &[0; 64 << 10];

/// A member that is being written.
pub(crate) struct Body {
    /// Offset of its header in the archive.
    start: u64,
    /// Bytes of the file written so far, out of `size`.
    written: u64,
    size: u64,
    map: Option<Map>,
}

impl Body {
    /// Writes the header of a file of `size` bytes and its map. Without a map, holes become zeros.
    pub(super) fn sparse(
        output: &mut Output,
        header: &[u8],
        size: u64,
        map: Option<Map>,
    ) -> Result<Self> {
        let start = output.len();
        output.append(header)?;
        if let Some(map) = &map {
            output.append(map.text())?;
        }
        Ok(Self { start, written: 0, size, map })
    }

    /// As `sparse`, for a file that is stored with its holes.
    pub(crate) fn begin(output: &mut Output, header: &[u8], size: u64) -> Result<Self> {
        Self::sparse(output, header, size, None)
    }

    /// Checks that a piece is the next one.
    ///
    /// # Errors
    /// The error of a failed read; `Changed` if the file does not match its header.
    pub(crate) fn expect(&self, piece: Piece) -> Result<Piece> {
        let len = match &piece.data {
            Data::Bytes(bytes) => bytes.len() as u64,
            Data::Hole(len) => *len,
            Data::Failed(_) => 0,
        };
        let end = piece.offset.saturating_add(len);
        let has_unmapped_data = match (&self.map, &piece.data) {
            (Some(map), Data::Bytes(_)) => map.stored_within(piece.offset..end) < len,
            _ => false,
        };
        if piece.offset != self.written || end > self.size || has_unmapped_data {
            return Err(changed());
        }
        match piece.data {
            Data::Failed(error) => Err(error),
            data => Ok(Piece { data, ..piece }),
        }
    }

    /// Writes a piece that `expect` returned.
    pub(crate) fn put(&mut self, output: &mut Output, piece: &Piece) -> Result<()> {
        match (&piece.data, &self.map) {
            (Data::Bytes(bytes), _) => {
                output.append(bytes)?;
                self.written += bytes.len() as u64;
            }
            (Data::Hole(len), map) => {
                let end = self.written + len;
                let stored = map.as_ref().map_or(*len, |map| map.stored_within(self.written..end));
                zeros(output, stored)?;
                self.written = end;
            }
            (Data::Failed(_), _) => {}
        }
        Ok(())
    }

    /// Whether the member is stored without its holes.
    pub(super) fn is_sparse(&self) -> bool {
        self.map.is_some()
    }

    /// Whether all bytes are written.
    pub(crate) fn is_whole(&self) -> bool {
        self.written == self.size
    }

    /// Ends the member.
    pub(crate) fn end(self, output: &mut Output) -> Result<()> {
        let stored = self.map.as_ref().map_or(self.size, Map::stored);
        output.append(padding(stored))
    }

    /// Removes the member from the output.
    pub(crate) fn discard(self, output: &mut Output) -> Result<()> {
        output.truncate(self.start)
    }
}

/// The error for a file that differs from what was listed.
pub(crate) fn changed() -> Error {
    Error::new(Kind::Changed, "changed while it was read")
}

/// Takes the first error of the first file out of `pieces`. Such a file is then known before its
/// header is written.
pub(crate) fn failure(pieces: &mut [Piece]) -> Option<Error> {
    let first = pieces.first()?.file;
    let own_pieces = pieces.iter_mut().take_while(|piece| piece.file == first);
    let failed =
        own_pieces.map(|piece| &mut piece.data).find(|data| matches!(data, Data::Failed(_)))?;
    match std::mem::replace(failed, Data::Hole(0)) {
        Data::Failed(error) => Some(error),
        _ => None,
    }
}

/// Writes the blocks that end an archive, up to a whole record of `tar -b 20`.
pub(crate) fn finish(output: &mut Output) -> Result<()> {
    zeros(output, finished(output.len()) - output.len())
}

/// Total size of an archive whose members take `len` bytes.
pub(crate) fn finished(len: u64) -> u64 {
    (len + 1024).next_multiple_of(10_240)
}

fn zeros(output: &mut Output, mut len: u64) -> Result<()> {
    while len > 0 {
        let step = len.min(ZEROS.len() as u64);
        output.append(&ZEROS[..step as usize])?;
        len -= step;
    }
    Ok(())
}
