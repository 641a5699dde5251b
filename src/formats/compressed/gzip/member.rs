//! Decodes the members of a gzip file in order: header, DEFLATE data, trailer (RFC 1952).
//!
//! A decoder can start at the header of a member, or at a block inside one if it is given the
//! window. Members are decoded into one buffer. It holds the window, then the bytes that were
//! decoded since the last `take`:
//!
//! ```text
//! 0 ........ taken ........ filled ........ len
//! window     new bytes      free
//! ```
//!
//! When the buffer is full, `take` returns the new bytes and moves the last 32 KiB to the front.
//!
//! Invariant: a block copies only from bytes of its own member, never from the member before it.

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

/// Why `step` returned.
pub(super) enum Event {
    /// The buffer is full.
    Full,
    /// At bit `bit` of the file starts a block, or the header of a member if `at_header` is set.
    Boundary { bit: u64, at_header: bool },
    /// After the last member.
    End,
}

/// What comes next in the file.
enum State {
    Header,
    /// DEFLATE data, or the trailer after it.
    Data(Inflate),
    End,
}

/// A decoder of consecutive members.
pub(super) struct MemberDecoder {
    cursor: Cursor,
    state: State,
    /// The window, up to 32 KiB that were taken before, then bytes that were not taken yet.
    buffer: Vec<u8>,
    /// Position in the buffer of the first byte of the current member.
    history_start: usize,
    /// End of the bytes that `take` has returned: the window.
    taken: usize,
    /// End of the decoded bytes.
    filled: usize,
    /// Bytes decoded since the start.
    decoded: u64,
    /// Bytes decoded up to the end of the last member with a correct checksum.
    checked_len: u64,
    /// Bytes decoded up to the end of the last whole block.
    whole_blocks_len: u64,
    /// Offset of the header of the current member in the file.
    member_start: u64,
    /// Checksum and length of the current member so far. None if decoding started inside it.
    crc_and_len: Option<(Hasher, u64)>,
    /// Whether a member was found. Data after it that is not a member is garbage, not an error.
    found_member: bool,
    /// The name to use in the warning about garbage at the end. None if there is to be no warning.
    warning_name: Option<String>,
    /// Offset of the garbage at the end.
    garbage: Option<u64>,
    /// Whether a header is being read, or could not be read.
    in_header: bool,
}

impl MemberDecoder {
    /// Starts at the header of a member and decodes into `buffer`.
    pub(super) fn new(cursor: Cursor, buffer: Vec<u8>) -> Self {
        Self {
            member_start: cursor.position(),
            cursor,
            state: State::Header,
            buffer,
            history_start: 0,
            taken: 0,
            filled: 0,
            decoded: 0,
            checked_len: 0,
            whole_blocks_len: 0,
            crc_and_len: None,
            found_member: false,
            warning_name: None,
            garbage: None,
            in_header: false,
        }
    }

    /// Starts at a block. `bit` is in the byte that the cursor is at; `window` are the bytes
    /// decoded before it.
    pub(super) fn resume(
        mut cursor: Cursor,
        bit: u64,
        window: &[u8],
        buffer: Vec<u8>,
    ) -> Result<Self> {
        // Bits of this byte that belong to the block before.
        let bits_before = u8::try_from(bit & 7).unwrap_or(0);
        let inflate = match bits_before {
            0 => Inflate::resume(0, 0),
            _ => {
                let [byte] = cursor.array()?;
                Inflate::resume(byte, 8_u8.saturating_sub(bits_before))
            }
        };
        let mut members = Self::new(cursor, buffer);
        let Some(front) = members.buffer.get_mut(..window.len()) else {
            return Err(Error::corrupt("a window larger than its chunk"));
        };
        front.copy_from_slice(window);
        (members.taken, members.filled) = (window.len(), window.len());
        (members.state, members.found_member) = (State::Data(inflate), true);
        Ok(members)
    }

    /// Enables the warning about garbage after the last member of `name`.
    pub(super) fn with_warning(mut self, name: &str) -> Self {
        self.warning_name = Some(name.to_owned());
        self
    }

    pub(super) fn position(&self) -> u64 {
        self.cursor.position()
    }

    pub(super) fn decoded(&self) -> u64 {
        self.decoded
    }

    /// Decoded bytes that count as correct after damage. If the file ends early, those are the
    /// bytes of whole blocks; after a wrong checksum or a damaged block, those of whole members.
    pub(super) fn usable_len(&self, damage: Kind) -> u64 {
        if damage == Kind::Truncated { self.whole_blocks_len } else { self.checked_len }
    }

    pub(super) fn is_full(&self) -> bool {
        self.filled >= self.buffer.len()
    }

    /// Whether the buffer is full and the error is in the header of the next member.
    pub(super) fn is_full_before_header(&self) -> bool {
        self.is_full() && self.in_header
    }

    /// The bytes that the next block may copy from.
    pub(super) fn window(&self) -> &[u8] {
        let start = self.filled.saturating_sub(GZIP_WINDOW).max(self.history_start);
        self.buffer.get(start..self.filled).unwrap_or_default()
    }

    /// Offset in the file of other data after the last member.
    pub(super) fn trailing_garbage_at(&self) -> Option<u64> {
        self.garbage
    }

    /// Returns the bytes decoded since the last call, and frees their space in the buffer.
    pub(super) fn take(&mut self) -> SharedBytes {
        let piece = self.buffer.get(self.taken..self.filled).unwrap_or_default().into();
        let window_len = self.window().len();
        self.buffer.copy_within(self.filled.saturating_sub(window_len)..self.filled, 0);
        (self.history_start, self.taken, self.filled) = (0, window_len, window_len);
        piece
    }

    /// The bytes decoded since the last `take`, in the buffer itself.
    pub(super) fn into_rest(mut self) -> Vec<u8> {
        self.buffer.truncate(self.filled);
        self.buffer.drain(..self.taken.min(self.filled));
        self.buffer
    }

    /// Decodes until the buffer is full, a boundary is reached, or the file ends.
    pub(super) fn step(&mut self) -> Result<Event> {
        match self.state {
            State::Header => self.read_header(),
            State::Data(_) => self.decode_data(),
            State::End => Ok(Event::End),
        }
    }

    fn read_header(&mut self) -> Result<Event> {
        self.member_start = self.cursor.position();
        self.in_header = true;
        let is_member = self.cursor.peek(2)? == [0x1f, 0x8b];
        if !is_member && self.found_member {
            self.state = State::End;
            if self.cursor.has_garbage()?
                && let Some(name) = self.warning_name.take()
            {
                self.garbage = Some(self.member_start);
                let at = crate::log::detail(format_args!(" at {:#x}", self.member_start));
                log::warn!("{name}: bytes after the gzip data{at} are ignored");
            }
            return Ok(Event::End);
        }
        self.skip_header().map_err(|error| error.within(self.location()))?;
        (self.history_start, self.found_member, self.in_header) = (self.filled, true, false);
        self.crc_and_len = Some((Hasher::new(), 0));
        self.state = State::Data(Inflate::new());
        Ok(Event::Boundary { bit: self.member_start.saturating_mul(8), at_header: true })
    }

    fn skip_header(&mut self) -> Result<()> {
        let fixed: [u8; 10] = self.cursor.array()?;
        let [0x1f, 0x8b, 8, flags, ..] = fixed else {
            return Err(Error::corrupt("not a header"));
        };
        if flags & RESERVED != 0 {
            return Err(Error::corrupt(format!("unknown flags {flags:#04x}")));
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

    fn decode_data(&mut self) -> Result<Event> {
        while let State::Data(inflate) = &mut self.state {
            let input = self.cursor.fill_buf(1)?;
            let at_eof = input.is_empty();
            let output = self.buffer.get_mut(self.history_start..).unwrap_or_default();
            let position = self.filled.saturating_sub(self.history_start);
            let (consumed, produced, pause) = inflate.step(input, output, position);
            let end = self.filled.saturating_add(produced);
            if let Some((sum, len)) = &mut self.crc_and_len {
                sum.update(self.buffer.get(self.filled..end).unwrap_or_default());
                *len = len.saturating_add(length(produced));
            }
            self.filled = end;
            self.decoded = self.decoded.saturating_add(length(produced));
            self.cursor.skip(length(consumed))?;
            match pause.map_err(|error| self.damaged(&error))? {
                Pause::Input if at_eof => return Err(self.damaged(&self.cursor.ends_early())),
                Pause::Input => {}
                Pause::Output => return Ok(Event::Full),
                Pause::Boundary(bits) => {
                    self.whole_blocks_len = self.decoded;
                    let bit = self.cursor.position().saturating_mul(8).saturating_sub(bits.into());
                    return Ok(Event::Boundary { bit, at_header: false });
                }
                Pause::End => {
                    self.state = State::Header;
                    self.whole_blocks_len = self.decoded;
                    self.check_trailer()?;
                }
            }
        }
        self.read_header()
    }

    fn check_trailer(&mut self) -> Result<()> {
        let (crc, size) = (self.cursor.u32(), self.cursor.u32());
        let (crc, size) = (crc.map_err(|e| self.damaged(&e))?, size.map_err(|e| self.damaged(&e))?);
        let Some((sum, len)) = self.crc_and_len.take() else {
            return Ok(());
        };
        let computed = sum.finalize();
        if crc != computed {
            let error = format!("checksum {crc:#010x}, but its bytes give {computed:#010x}");
            return Err(self.damaged(&Error::corrupt(error)));
        }
        // ISIZE is the length modulo 2^32.
        if u64::from(size) != len & u64::from(u32::MAX) {
            let error = format!("{size} bytes announced (modulo 2^32), {len} found");
            return Err(self.damaged(&Error::corrupt(error)));
        }
        self.checked_len = self.decoded;
        Ok(())
    }

    fn location(&self) -> String {
        format!("gzip member at {:#x}", self.member_start)
    }

    fn damaged(&self, error: &Error) -> Error {
        let at = self.cursor.position();
        Error::new(error.kind(), format!("{}, at {at:#x}: {error}", self.location()))
    }
}
