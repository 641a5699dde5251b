//! Decodes the members of a gzip file in order: header, DEFLATE data, trailer (RFC 1952).
//!
//! A decoder can start at the header of a member, or at a block inside one if it is given the
//! window. Members (of the gzip file, not of a tar) are decoded into one buffer. It holds the
//! window, then the bytes that were decoded since the last `take_output`:
//!
//! ```text
//! 0 .......... window_end .......... new_end .......... len
//!   window                new bytes          free
//!                    ^ member_begin: anywhere from 0 to new_end
//! ```
//!
//! When the buffer is full, `take_output` returns the new bytes and moves the last 32 KiB to the
//! front. `member_begin` is 0 if the current member began before the buffer.
//!
//! Invariant: a block copies only from bytes of its own member, never from the member before it.

use crc32fast::Hasher;

use crate::codecs::{Inflate, Pause};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::Cursor;
use crate::formats::bytes::length;
use crate::formats::limits::{GZIP_FIELD_MAX, GZIP_WINDOW};
use crate::vfs::SharedBytes;

/// Bytes of the file that a `Cursor` reads at a time.
pub(super) const READ_SIZE: usize = 256 << 10;

/// Flags of a header (RFC 1952, 2.3.1).
const HEADER_CRC: u8 = 2;
const EXTRA: u8 = 4;
const NAME: u8 = 8;
const COMMENT: u8 = 16;
const RESERVED: u8 = 0xe0;

/// Why `step` returned.
pub(super) enum Event {
    BufferFull,
    /// A block starts at this bit of the file.
    BlockStart(u64),
    /// A member starts at this bit of the file; its header has been read.
    MemberStart(u64),
    /// A member has ended. Its trailer is correct, if decoding started at its header.
    MemberEnd,
    /// There are no more members.
    End,
}

/// What comes next in the file.
enum State {
    Header,
    Data(Inflate),
    Trailer,
    End,
}

/// A decoder of consecutive members.
pub(super) struct MemberDecoder {
    cursor: Cursor,
    state: State,
    /// The window, up to 32 KiB that were taken before, then bytes that were not taken yet.
    buffer: Vec<u8>,
    /// Where the current member begins in the buffer.
    member_begin: usize,
    /// End of the window, the bytes that `take_output` has returned.
    window_end: usize,
    /// End of the decoded bytes.
    new_end: usize,
    /// Bytes decoded since the start.
    decoded_len: u64,
    /// Bytes decoded up to the end of the last member with a correct checksum.
    verified_len: u64,
    /// Bytes decoded up to the end of the last whole block.
    whole_blocks_len: u64,
    /// Offset of the header of the current member in the file.
    header_at: u64,
    /// Checksum and length of the current member so far. None if decoding started inside it.
    crc_and_len: Option<(Hasher, u64)>,
    /// Whether a member was found. Data after it that is not a member is garbage, not an error.
    found_member: bool,
    trailing_garbage_at: Option<u64>,
}

impl MemberDecoder {
    /// Starts at the header of a member and decodes into `buffer`.
    pub(super) fn new(cursor: Cursor, buffer: Vec<u8>) -> Self {
        Self {
            header_at: cursor.position(),
            cursor,
            state: State::Header,
            buffer,
            member_begin: 0,
            window_end: 0,
            new_end: 0,
            decoded_len: 0,
            verified_len: 0,
            whole_blocks_len: 0,
            crc_and_len: None,
            found_member: false,
            trailing_garbage_at: None,
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
        let mut decoder = Self::new(cursor, buffer);
        let Some(front) = decoder.buffer.get_mut(..window.len()) else {
            return Err(Error::corrupt("a window larger than its chunk"));
        };
        front.copy_from_slice(window);
        (decoder.window_end, decoder.new_end) = (window.len(), window.len());
        (decoder.state, decoder.found_member) = (State::Data(inflate), true);
        Ok(decoder)
    }

    /// Compressed bytes consumed so far.
    pub(super) fn position(&self) -> u64 {
        self.cursor.position()
    }

    pub(super) fn decoded_len(&self) -> u64 {
        self.decoded_len
    }

    /// Decoded bytes that readers may get after damage. If the file ends early, those are the bytes
    /// of whole blocks; after a wrong checksum or a damaged block, those of whole members.
    pub(super) fn usable_len(&self, damage: Kind) -> u64 {
        if damage == Kind::Truncated { self.whole_blocks_len } else { self.verified_len }
    }

    pub(super) fn is_full(&self) -> bool {
        self.new_end >= self.buffer.len()
    }

    /// The bytes that the next block may copy from.
    pub(super) fn window(&self) -> &[u8] {
        let start = self.new_end.saturating_sub(GZIP_WINDOW).max(self.member_begin);
        self.buffer.get(start..self.new_end).unwrap_or_default()
    }

    /// Offset in the file of other data after the last member.
    pub(super) fn trailing_garbage_at(&self) -> Option<u64> {
        self.trailing_garbage_at
    }

    /// Returns the bytes decoded since the last call, and frees their space in the buffer.
    pub(super) fn take_output(&mut self) -> SharedBytes {
        let output = self.buffer.get(self.window_end..self.new_end).unwrap_or_default().into();
        let window_len = self.window().len();
        self.buffer.copy_within(self.new_end.saturating_sub(window_len)..self.new_end, 0);
        (self.member_begin, self.window_end, self.new_end) = (0, window_len, window_len);
        output
    }

    /// The bytes decoded since the last `take_output`, in the buffer itself.
    pub(super) fn into_untaken(mut self) -> Vec<u8> {
        self.buffer.truncate(self.new_end);
        self.buffer.drain(..self.window_end.min(self.new_end));
        self.buffer
    }

    /// Decodes up to the next event.
    pub(super) fn step(&mut self) -> Result<Event> {
        loop {
            let event = match self.state {
                State::Header => self.read_header().map(Some),
                State::Data(_) => self.decode_data(),
                State::Trailer => self.check_trailer().map(Some),
                State::End => Ok(Some(Event::End)),
            };
            if let Some(event) = event? {
                return Ok(event);
            }
        }
    }

    fn read_header(&mut self) -> Result<Event> {
        self.header_at = self.cursor.position();
        let is_member = self.cursor.peek(2)? == [0x1f, 0x8b];
        if !is_member && self.found_member {
            self.state = State::End;
            self.trailing_garbage_at = self.cursor.has_garbage()?.then_some(self.header_at);
            return Ok(Event::End);
        }
        self.skip_header().map_err(|error| self.located(error))?;
        (self.member_begin, self.found_member) = (self.new_end, true);
        self.crc_and_len = Some((Hasher::new(), 0));
        self.state = State::Data(Inflate::new());
        Ok(Event::MemberStart(self.header_at.saturating_mul(8)))
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
        Err(Error::corrupt(format!("a name or comment of more than {GZIP_FIELD_MAX} bytes")))
    }

    /// Decodes until the next event. None at the end of the data.
    fn decode_data(&mut self) -> Result<Option<Event>> {
        while let State::Data(inflate) = &mut self.state {
            let input = self.cursor.fill_buf(1)?;
            let at_eof = input.is_empty();
            let output = self.buffer.get_mut(self.member_begin..).unwrap_or_default();
            let position = self.new_end.saturating_sub(self.member_begin);
            let (consumed, produced, pause) = inflate.step(input, output, position);
            self.accept(produced);
            self.cursor.skip(length(consumed))?;
            match pause.map_err(|error| self.located(error))? {
                Pause::Input if at_eof => return Err(self.located(self.cursor.ends_early())),
                Pause::Input => {}
                Pause::Output => return Ok(Some(Event::BufferFull)),
                Pause::Boundary(bits) => {
                    self.whole_blocks_len = self.decoded_len;
                    let bit = self.cursor.position().saturating_mul(8).saturating_sub(bits.into());
                    return Ok(Some(Event::BlockStart(bit)));
                }
                Pause::End => {
                    self.whole_blocks_len = self.decoded_len;
                    self.state = State::Trailer;
                }
            }
        }
        Ok(None)
    }

    /// Counts `len` new bytes at `new_end` and adds them to the checksum.
    fn accept(&mut self, len: usize) {
        let end = self.new_end.saturating_add(len);
        if let Some((sum, member_len)) = &mut self.crc_and_len {
            sum.update(self.buffer.get(self.new_end..end).unwrap_or_default());
            *member_len = member_len.saturating_add(length(len));
        }
        self.new_end = end;
        self.decoded_len = self.decoded_len.saturating_add(length(len));
    }

    fn check_trailer(&mut self) -> Result<Event> {
        let (crc, size) = (self.cursor.u32(), self.cursor.u32());
        let (crc, size) = (crc.map_err(|e| self.located(e))?, size.map_err(|e| self.located(e))?);
        self.state = State::Header;
        let Some((sum, len)) = self.crc_and_len.take() else {
            return Ok(Event::MemberEnd);
        };
        let computed = sum.finalize();
        if crc != computed {
            let error = format!("checksum {crc:#010x}, but its bytes give {computed:#010x}");
            return Err(self.located(Error::corrupt(error)));
        }
        // ISIZE is the length modulo 2^32.
        if u64::from(size) != len & u64::from(u32::MAX) {
            let error = format!("{size} bytes announced (modulo 2^32), {len} found");
            return Err(self.located(Error::corrupt(error)));
        }
        self.verified_len = self.decoded_len;
        Ok(Event::MemberEnd)
    }

    /// `error` in the current member.
    fn located(&self, error: Error) -> Error {
        let (start, at) = (self.header_at, self.cursor.position());
        error
            .within("gzip member")
            .with_detail(format_args!("gzip member at {start:#x}, read to {at:#x}"))
    }
}
