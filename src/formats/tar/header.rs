//! One 512-byte header block of a tar archive (POSIX.1-1988 ustar, and GNU and v7 before it).
//!
//! `chain` and `member` combine blocks that belong together (pax records, long names, sparse maps).
//!
//! Invariant: a `Header` has the right checksum, so a tar program wrote its fields.

use crate::error::{Error, Result};
use crate::formats::bytes::length;

/// Size of a block, the unit of a tar archive, bytes.
pub(super) const BLOCK: usize = 512;

/// The same as an offset.
pub(super) const BLOCK_LEN: u64 = 512;

/// One block of a tar archive.
pub(super) type Block = [u8; BLOCK];

/// What a header describes, from its type flag (POSIX.1-2017, pax, "ustar Interchange Format", and
/// letters of GNU tar).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Member(MemberType),
    Extension(ExtensionType),
}

/// The type of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberType {
    /// '0', NUL, '7' and every unknown letter. POSIX says to treat those as regular files.
    Regular,
    /// '1': another name of an earlier member.
    HardLink,
    Symlink,
    CharDevice,
    BlockDevice,
    /// '5', or GNU's 'D': a directory followed by its listing.
    Directory,
    Fifo,
    /// 'S': a sparse file in the old GNU format.
    GnuSparse,
    /// 'V' a volume label, 'M' the rest of a file from another volume, 'N' a list of renamings, 'A'
    /// an access control list of Sun: nothing that can be shown as a file.
    Other,
}

/// The type of a header that extends others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtensionType {
    /// 'L' and 'K': the name of the next member, or the target of its link.
    LongName,
    LongLink,
    /// 'x' and Sun's 'X': records for the next member.
    Pax,
    /// 'g': records for all members that follow.
    PaxGlobal,
}

/// The format of a header, as far as it changes the meaning of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    V7,
    Gnu,
    Ustar,
}

/// A header with the right checksum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header<'b> {
    block: &'b Block,
}

/// What a block contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockKind {
    /// A header.
    Header,
    /// Only zeros: the end mark.
    Zeros,
    /// Anything else.
    Garbage,
}

/// What `block` contains.
pub(super) fn classify(block: &Block) -> BlockKind {
    if Header::parse(block).is_some() {
        return BlockKind::Header;
    }
    if is_zero(block) { BlockKind::Zeros } else { BlockKind::Garbage }
}

/// Whether `block` is all zeros.
pub(super) fn is_zero(block: &Block) -> bool {
    block.iter().fold(0, |all, byte| all | byte) == 0
}

impl<'b> Header<'b> {
    /// `block` as a header, if its checksum is right.
    pub(super) fn parse(block: &'b Block) -> Option<Self> {
        let header = Self { block };
        // Most data fails here, because the field is not a number.
        let stored = number(header.field::<148, 8>()).ok()?;
        let stored = u32::try_from(stored).ok()?;
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
        let whole = sum(block);
        // The checksum field itself counts as eight spaces.
        let field = sum(header.field::<148, 8>());
        let unsigned = whole.saturating_sub(field).saturating_add(256);
        if stored == unsigned && whole != field {
            return Some(header);
        }
        // Some old tars summed signed characters: each byte above 127 counts 256 less.
        let high = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte > 127).count();
        let less = high(block).saturating_sub(high(header.field::<148, 8>())).saturating_mul(256);
        let less = u32::try_from(less).ok()?;
        (less > 0 && unsigned.checked_sub(less) == Some(stored)).then_some(header)
    }

    pub(super) fn dialect(self) -> Dialect {
        match self.field::<257, 8>() {
            b"ustar  \0" => Dialect::Gnu,
            [b'u', b's', b't', b'a', b'r', 0, ..] => Dialect::Ustar,
            _ => Dialect::V7,
        }
    }

    pub(super) fn kind(self) -> Type {
        let member = match self.field::<156, 1>() {
            b"L" => return Type::Extension(ExtensionType::LongName),
            b"K" => return Type::Extension(ExtensionType::LongLink),
            b"x" | b"X" => return Type::Extension(ExtensionType::Pax),
            b"g" => return Type::Extension(ExtensionType::PaxGlobal),
            b"1" => MemberType::HardLink,
            b"2" => MemberType::Symlink,
            b"3" => MemberType::CharDevice,
            b"4" => MemberType::BlockDevice,
            b"5" | b"D" => MemberType::Directory,
            b"6" => MemberType::Fifo,
            b"S" => MemberType::GnuSparse,
            b"V" | b"M" | b"N" | b"A" => MemberType::Other,
            _ => MemberType::Regular,
        };
        Type::Member(member)
    }

    /// Whether the type is that of a plain file, '0' or NUL, and no letter that archfs does not
    /// know.
    pub(super) fn is_plain_file(self) -> bool {
        matches!(self.field::<156, 1>(), b"0" | b"\0")
    }

    /// Whether `size` bytes of data follow. Links, directories and devices may give a size, but GNU
    /// tar and Python do not expect data after them, except GNU's listing of a directory. POSIX
    /// allows data after a hard link (`pax -o linkdata`). Here it counts as damage and is skipped.
    pub(super) fn has_data(self) -> bool {
        match self.kind() {
            Type::Member(MemberType::Directory) => self.field::<156, 1>() == b"D",
            Type::Member(
                MemberType::HardLink
                | MemberType::Symlink
                | MemberType::CharDevice
                | MemberType::BlockDevice
                | MemberType::Fifo,
            ) => false,
            Type::Member(MemberType::Regular | MemberType::GnuSparse | MemberType::Other)
            | Type::Extension(_) => true,
        }
    }

    /// Replaces `out` with the path, including the prefix of ustar.
    pub(super) fn path(self, out: &mut Vec<u8>) {
        out.clear();
        let prefix = until_nul(self.field::<345, 155>());
        if self.dialect() == Dialect::Ustar && !prefix.is_empty() {
            out.extend(prefix);
            out.push(b'/');
        }
        out.extend(until_nul(self.field::<0, 100>()));
    }

    pub(super) fn link(self) -> &'b [u8] {
        until_nul(self.field::<157, 100>())
    }

    /// Permission, set-id and sticky bits.
    pub(super) fn permissions(self) -> u16 {
        let mode = number(self.field::<100, 8>()).unwrap_or(0) & 0o7777;
        u16::try_from(mode).unwrap_or(0)
    }

    pub(super) fn uid(self) -> u32 {
        id_or_nobody(number(self.field::<108, 8>()).unwrap_or(0))
    }

    pub(super) fn gid(self) -> u32 {
        id_or_nobody(number(self.field::<116, 8>()).unwrap_or(0))
    }

    /// Length of the data, bytes, if there is any.
    ///
    /// Fails with `Corrupt` if the field is negative or not a number. Then the next header cannot
    /// be found.
    pub(super) fn size(self) -> Result<u64> {
        let size = number(self.field::<124, 12>());
        size.ok().and_then(|size| u64::try_from(size).ok()).ok_or_else(|| {
            let field = self.field::<124, 12>().escape_ascii();
            Error::corrupt(format!("{field} is not a size"))
        })
    }

    /// Modification time, seconds since 1970.
    pub(super) fn modified(self) -> i64 {
        number(self.field::<136, 12>()).unwrap_or(0)
    }

    /// The device number in the kernel's 32-bit encoding: 12 bits of major, 20 of minor. `None` if
    /// it does not fit.
    pub(super) fn device(self) -> Option<u32> {
        let part = |field, max| {
            let number = u32::try_from(number(field).unwrap_or(0)).ok();
            number.filter(|&number| number <= max)
        };
        let major = part(self.field::<329, 8>(), 0xfff)?;
        let minor = part(self.field::<337, 8>(), 0xf_ffff)?;
        Some((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
    }

    /// What members of type `Other` are, in the plural, if a user may miss them.
    pub(super) fn left_out(self) -> Option<&'static str> {
        match self.field::<156, 1>() {
            b"M" => Some("parts of files that began on another volume"),
            b"N" => Some("lists of new names of an old GNU tar"),
            b"A" => Some("access lists of a Sun tar"),
            _ => None,
        }
    }

    /// Old GNU sparse format: the size of the file with its holes.
    pub(super) fn real_size(self) -> Result<u64> {
        sparse_number(self.field::<483, 12>())
    }

    /// Old GNU sparse format: the first four pieces (offset, length), and whether a block with more
    /// pieces follows.
    pub(super) fn sparse_map(self) -> (&'b [u8], bool) {
        (self.field::<386, 96>(), self.field::<482, 1>() != &[0])
    }

    fn field<const AT: usize, const LEN: usize>(self) -> &'b [u8; LEN] {
        const { assert!(AT + LEN <= BLOCK) };
        // In bounds: asserted at compile time.
        self.block.get(AT..).and_then(<[u8]>::first_chunk).unwrap_or(&[0; LEN])
    }
}

/// The pieces of an old sparse map in `bytes`, up to an empty one. Offset and length take 12 bytes
/// each.
pub(super) fn sparse_pieces(bytes: &[u8]) -> Result<Vec<(u64, u64)>> {
    let (pairs, _) = bytes.as_chunks::<24>();
    let mut pieces = Vec::new();
    for pair in pairs {
        let (offset, len) = pair.split_at(12);
        if len.first() == Some(&0) {
            break;
        }
        pieces.push((sparse_number(offset)?, sparse_number(len)?));
    }
    Ok(pieces)
}

fn sparse_number(field: &[u8]) -> Result<u64> {
    let value = number(field).ok().and_then(|value| u64::try_from(value).ok());
    value.ok_or_else(|| {
        Error::corrupt(format!("sparse map: {} is not a number", field.escape_ascii()))
    })
}

/// The bytes before the first NUL.
pub(super) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Decodes octal digits between spaces and NULs, or GNU's base 256: the first bit is set, then a
/// big-endian number in two's complement. An empty field is 0, because old tars left unused fields
/// empty.
fn number(field: &[u8]) -> std::result::Result<i64, ()> {
    match field.split_first() {
        Some((first, rest)) if first & 0x80 != 0 => {
            let negative = first & 0x40 != 0;
            let start =
                if negative { i64::from(first | 0x80) | !0xff } else { i64::from(first & 0x3f) };
            rest.iter().try_fold(start, |value, &byte| {
                let shifted = value.checked_mul(256).ok_or(())?;
                Ok(shifted | i64::from(byte))
            })
        }
        _ => {
            // Some tars wrote a NUL first if the field before it was too long (GNU tar, list.c).
            let field = field.strip_prefix(b"\0").unwrap_or(field);
            let text = field.trim_ascii_start();
            let digits = text.iter().take_while(|byte| (b'0'..=b'7').contains(byte));
            let count = digits.clone().count();
            let next = text.get(count).copied().unwrap_or(0);
            if next != 0 && next != b' ' {
                return Err(());
            }
            digits.into_iter().try_fold(0_i64, |value, digit| {
                let shifted = value.checked_mul(8).ok_or(())?;
                Ok(shifted | i64::from(digit & 7))
            })
        }
    }
}

/// Parses decimal digits and nothing else.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A user or group ID. If it does not fit in 32 bits, it becomes 65534 (nobody).
pub(super) fn id_or_nobody(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(65_534)
}

/// `len` rounded up to whole blocks.
pub(super) fn padded(len: u64) -> u64 {
    len.checked_next_multiple_of(length(BLOCK)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_octal_numbers_of_old_and_new_tars() {
        for (field, value) in [
            (&b"0000644\0"[..], Ok(0o644)),
            (b"   644 \0", Ok(0o644)),
            (b"644\0junk", Ok(0o644)),
            (b"00000000000 ", Ok(0)),
            (b"\0\0\0\0\0\0\0\0", Ok(0)),
            (b"\x000000005\0", Ok(5)),
            (b"77777777777\0", Ok(0o77_777_777_777)),
            (b"777777777777", Ok(0o777_777_777_777)),
            (b"0000648\0", Err(())),
            (b"x", Err(())),
            (b"-1", Err(())),
        ] {
            assert_eq!(number(field), value, "{}", field.escape_ascii());
        }
    }

    #[test]
    fn reads_base_256_numbers_of_either_sign_up_to_64_bits() {
        for (field, value) in [
            (&b"\x80\0\0\0\0\0\0\x05"[..], Ok(5)),
            (b"\x80\0\0\0\0\x02\0\0\0\0\0\0", Ok(2 << 48)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe", Ok(-2)),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", Ok(i64::MAX)),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", Err(())),
            (b"\xff\xff\xff\xff\x80\0\0\0\0\0\0\0", Ok(i64::MIN)),
            (b"\xff\xff\xff\xff\x7f\0\0\0\0\0\0\0", Err(())),
        ] {
            assert_eq!(number(field), value, "{}", field.escape_ascii());
        }
        assert_eq!((id_or_nobody(-2), id_or_nobody(1 << 32), id_or_nobody(7)), (65_534, 65_534, 7));
    }

    #[test]
    fn accepts_a_header_only_by_its_signed_or_unsigned_sum() {
        let mut block = [0; BLOCK];
        block[..5].copy_from_slice(b"na\xefve");
        let sum = |block: &Block, signed: bool| {
            let mut block = *block;
            block[148..156].fill(b' ');
            let high = block.iter().filter(|byte| **byte > 127).count() as u32;
            block.iter().map(|b| u32::from(*b)).sum::<u32>() - if signed { 256 * high } else { 0 }
        };
        for signed in [false, true] {
            let text = format!("{:06o}\0 ", sum(&block, signed));
            block[148..156].copy_from_slice(text.as_bytes());
            assert_eq!(classify(&block), BlockKind::Header, "{signed}");
        }
        block[3] ^= 1;
        assert_eq!(classify(&block), BlockKind::Garbage);
        assert_eq!(classify(&[0; BLOCK]), BlockKind::Zeros);
        let mut spaces = [0; BLOCK];
        spaces[148..156].copy_from_slice(b"0000400\0");
        assert_eq!(classify(&spaces), BlockKind::Garbage, "the sum of an empty block");
    }
}
