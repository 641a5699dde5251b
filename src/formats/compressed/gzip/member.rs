//! Members of a gzip file, one after the other: header, DEFLATE data, trailer (RFC 1952).
//!
//! Owns the buffer that is decoded into, the checks of CRC32 and ISIZE, and what follows the last
//! member; leaves keeping points to the first pass.
//! Invariant: a member copies from its own bytes only, never from those of the member before it.

use crc32fast::Hasher;

use super::super::cursor::Cursor;
use crate::codecs::{Inflate, Pause};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::length;
use crate::formats::limits::{GZIP_FIELD_MAX, GZIP_WINDOW};
use crate::vfs::SharedBytes;

/// Flags of a header (RFC 1952, 2.3.1).
const HEADER_CRC: u8 = 2;
const EXTRA: u8 = 4;
const NAME: u8 = 8;
const COMMENT: u8 = 16;
const RESERVED: u8 = 0xe0;

/// Why decoding paused.
pub(super) enum Paused {
    /// The buffer is full.
    Full,
    /// Before a block that starts at this bit, or before a member whose header does.
    Boundary { bit: u64, member: bool },
    /// After the last member.
    End,
}

enum State {
    Header,
    Data(Inflate),
    End,
}

pub(super) struct Members {
    cursor: Cursor,
    state: State,
    /// Decoded bytes: up to 32 KiB that were taken, and those that were not.
    buffer: Vec<u8>,
    /// Where the bytes of this member start in the buffer.
    base: usize,
    taken: usize,
    filled: usize,
    /// Bytes decoded in all.
    decoded: u64,
    /// Of them, those in members that have ended well, and those in blocks that have ended.
    checked: u64,
    ended: u64,
    /// Where the header of this member lies in the file.
    start: u64,
    /// The checksum and the length of this member, unless decoding started in its middle.
    sum: Option<(Hasher, u64)>,
    /// Whether a member was read: what follows it need not be one.
    seen: bool,
    /// Who to name in the warning of garbage at the end; none where it was given before.
    warned: Option<String>,
    /// Where that garbage begins.
    garbage: Option<u64>,
    /// Whether the header of a member is looked for, or is damaged.
    in_header: bool,
}

impl Members {
    /// Starts at a member; it is decoded into `buffer`, and taken when that is full.
    pub(super) fn new(cursor: Cursor, buffer: Vec<u8>) -> Self {
        Self {
            start: cursor.position(),
            cursor,
            state: State::Header,
            buffer,
            base: 0,
            taken: 0,
            filled: 0,
            decoded: 0,
            checked: 0,
            ended: 0,
            sum: None,
            seen: false,
            warned: None,
            garbage: None,
            in_header: false,
        }
    }

    /// Starts at a block: `bit` lies in the byte the cursor is at, and `window` came before it.
    pub(super) fn resume(
        mut cursor: Cursor,
        bit: u64,
        window: &[u8],
        buffer: Vec<u8>,
    ) -> Result<Self> {
        let used = u8::try_from(bit & 7).unwrap_or(0);
        let inflate = match used {
            0 => Inflate::resume(0, 0),
            _ => {
                let [byte] = cursor.array()?;
                Inflate::resume(byte, 8_u8.saturating_sub(used))
            }
        };
        let mut members = Self::new(cursor, buffer);
        let Some(front) = members.buffer.get_mut(..window.len()) else {
            return Err(Error::corrupt("a window larger than its chunk"));
        };
        front.copy_from_slice(window);
        (members.taken, members.filled) = (window.len(), window.len());
        (members.state, members.seen) = (State::Data(inflate), true);
        Ok(members)
    }

    /// Lets it warn of garbage at the end of `name`.
    pub(super) fn warning(mut self, name: &str) -> Self {
        self.warned = Some(name.to_owned());
        self
    }

    pub(super) fn position(&self) -> u64 {
        self.cursor.position()
    }

    pub(super) fn decoded(&self) -> u64 {
        self.decoded
    }

    /// Decoded bytes that are right for all that is known. Where the file ends early they are those
    /// of whole blocks; where a checksum or a block is wrong, those of whole members.
    pub(super) fn verified_len(&self, damage: Kind) -> u64 {
        if damage == Kind::Truncated { self.ended } else { self.checked }
    }

    pub(super) fn is_full(&self) -> bool {
        self.filled >= self.buffer.len()
    }

    /// Whether what there was room for came before a header that can not be read.
    pub(super) fn is_full_before_header(&self) -> bool {
        self.is_full() && self.in_header
    }

    /// The bytes that the next block may copy from.
    pub(super) fn window(&self) -> &[u8] {
        let start = self.filled.saturating_sub(GZIP_WINDOW).max(self.base);
        self.buffer.get(start..self.filled).unwrap_or_default()
    }

    /// Where something begins that is no member, after the last one.
    pub(super) fn garbage(&self) -> Option<u64> {
        self.garbage
    }

    /// What was decoded since the last call; makes room for as much.
    pub(super) fn take(&mut self) -> SharedBytes {
        let piece = self.buffer.get(self.taken..self.filled).unwrap_or_default().into();
        let kept = self.window().len();
        self.buffer.copy_within(self.filled.saturating_sub(kept)..self.filled, 0);
        (self.base, self.taken, self.filled) = (0, kept, kept);
        piece
    }

    /// The same at the end, in the memory it was decoded into.
    pub(super) fn into_rest(mut self) -> Vec<u8> {
        self.buffer.truncate(self.filled);
        self.buffer.drain(..self.taken.min(self.filled));
        self.buffer
    }

    /// Decodes until there is something to say.
    pub(super) fn step(&mut self) -> Result<Paused> {
        match self.state {
            State::Header => self.header(),
            State::Data(_) => self.data(),
            State::End => Ok(Paused::End),
        }
    }

    fn header(&mut self) -> Result<Paused> {
        self.start = self.cursor.position();
        self.in_header = true;
        let is_member = self.cursor.peek(2)? == [0x1f, 0x8b];
        if !is_member && self.seen {
            self.state = State::End;
            if self.cursor.has_garbage()?
                && let Some(name) = self.warned.take()
            {
                self.garbage = Some(self.start);
                log::warn!("{name}: what follows the gzip data at {:#x} is ignored", self.start);
            }
            return Ok(Paused::End);
        }
        self.skip_header().map_err(|error| error.within(self.place()))?;
        (self.base, self.seen, self.in_header) = (self.filled, true, false);
        self.sum = Some((Hasher::new(), 0));
        self.state = State::Data(Inflate::new());
        Ok(Paused::Boundary { bit: self.start.saturating_mul(8), member: true })
    }

    fn skip_header(&mut self) -> Result<()> {
        let fixed: [u8; 10] = self.cursor.array()?;
        let [0x1f, 0x8b, 8, flags, ..] = fixed else {
            return Err(Error::corrupt("not a header"));
        };
        if flags & RESERVED != 0 {
            return Err(Error::corrupt(format!("flags {flags:#04x} are not in use")));
        }
        let mut sum = Hasher::new();
        sum.update(&fixed);
        if flags & EXTRA != 0 {
            let size: [u8; 2] = self.cursor.array()?;
            let size_field = usize::from(u16::from_le_bytes(size));
            sum.update(&size);
            sum.update(self.cursor.peek(size_field)?);
            self.cursor.skip(length(size_field))?;
        }
        for flag in [NAME, COMMENT] {
            if flags & flag != 0 {
                self.skip_text(&mut sum)?;
            }
        }
        if flags & HEADER_CRC != 0 {
            let [low, high, ..] = sum.finalize().to_le_bytes();
            if self.cursor.array()? != [low, high] {
                return Err(Error::corrupt("its header's checksum is wrong"));
            }
        }
        Ok(())
    }

    fn skip_text(&mut self, sum: &mut Hasher) -> Result<()> {
        for _ in 0..GZIP_FIELD_MAX {
            let byte: [u8; 1] = self.cursor.array()?;
            sum.update(&byte);
            if byte == [0] {
                return Ok(());
            }
        }
        Err(Error::corrupt(format!("a name of more than {GZIP_FIELD_MAX} bytes")))
    }

    fn data(&mut self) -> Result<Paused> {
        while let State::Data(inflate) = &mut self.state {
            let input = self.cursor.at_hand(1)?;
            let is_last = input.is_empty();
            let output = self.buffer.get_mut(self.base..).unwrap_or_default();
            let position = self.filled.saturating_sub(self.base);
            let (consumed, produced, pause) = inflate.step(input, output, position);
            let end = self.filled.saturating_add(produced);
            if let Some((sum, len)) = &mut self.sum {
                sum.update(self.buffer.get(self.filled..end).unwrap_or_default());
                *len = len.saturating_add(length(produced));
            }
            self.filled = end;
            self.decoded = self.decoded.saturating_add(length(produced));
            self.cursor.skip(length(consumed))?;
            match pause.map_err(|error| self.damaged(&error))? {
                Pause::Input if is_last => return Err(self.damaged(&self.cursor.ends_early())),
                Pause::Input => {}
                Pause::Output => return Ok(Paused::Full),
                Pause::Boundary(bits) => {
                    self.ended = self.decoded;
                    let bit = self.cursor.position().saturating_mul(8).saturating_sub(bits.into());
                    return Ok(Paused::Boundary { bit, member: false });
                }
                Pause::End => {
                    self.state = State::Header;
                    self.ended = self.decoded;
                    self.trailer()?;
                }
            }
        }
        self.header()
    }

    fn trailer(&mut self) -> Result<()> {
        let (crc, size) = (self.cursor.u32(), self.cursor.u32());
        let (crc, size) = (crc.map_err(|e| self.damaged(&e))?, size.map_err(|e| self.damaged(&e))?);
        let Some((sum, len)) = self.sum.take() else {
            return Ok(());
        };
        let computed = sum.finalize();
        if crc != computed {
            let error = format!("checksum {crc:#010x}, but its bytes give {computed:#010x}");
            return Err(self.damaged(&Error::corrupt(error)));
        }
        // ISIZE counts modulo 2^32.
        if u64::from(size) != len & u64::from(u32::MAX) {
            let error = format!("{size} bytes announced (modulo 2^32), {len} are there");
            return Err(self.damaged(&Error::corrupt(error)));
        }
        self.checked = self.decoded;
        Ok(())
    }

    fn place(&self) -> String {
        format!("gzip member at {:#x}", self.start)
    }

    fn damaged(&self, error: &Error) -> Error {
        let at = self.cursor.position();
        Error::new(error.kind(), format!("{}, at {at:#x}: {error}", self.place()))
    }
}
