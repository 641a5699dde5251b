//! Finds the headers of a sound tar (POSIX ustar, GNU) and edits their fields, usually with a
//! corrected checksum.

use super::damage;
use super::field::interesting;
use super::random::Random;

const BLOCK: usize = 512;

/// Fields with octal numbers: offset, width. The last four belong to GNU sparse files.
const NUMBERS: [(usize, usize); 12] = [
    (100, 8),
    (108, 8),
    (116, 8),
    (124, 12),
    (124, 12),
    (136, 12),
    (329, 8),
    (337, 8),
    (386, 12),
    (398, 12),
    (410, 12),
    (483, 12),
];

/// Fields with text.
const TEXTS: [(usize, usize); 6] =
    [(0, 100), (157, 100), (257, 8), (265, 32), (297, 32), (345, 155)];

const KINDS: &[u8] = b"01234567xgLKSDMVNXAI\0 z";

/// A tar and the offsets of its headers.
#[derive(Clone, Debug)]
pub(crate) struct Headers {
    pub(crate) bytes: Vec<u8>,
    headers: Vec<usize>,
    /// Contents of extension headers: pax records, long names, sparse maps.
    bodies: Vec<(usize, usize)>,
}

impl Headers {
    /// Takes a sound tar.
    pub(crate) fn parse(bytes: Vec<u8>) -> Self {
        let (mut headers, mut bodies) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at + BLOCK <= bytes.len() && bytes[at] != 0 {
            headers.push(at);
            let text = std::str::from_utf8(&bytes[at + 124..at + 135]).expect("digits");
            let len = usize::from_str_radix(text, 8).expect("a size");
            let kind = bytes[at + 156];
            let mut data = at + BLOCK;
            if kind == b'S' && bytes[at + 482] != 0 {
                // A continuation of the map of an old GNU sparse file.
                loop {
                    bodies.push((data, BLOCK));
                    data += BLOCK;
                    if bytes[data - BLOCK + 504] == 0 {
                        break;
                    }
                }
            }
            let name = &bytes[at..at + 100];
            let has_map = name.windows(14).any(|part| part == b"GNUSparseFile.");
            if matches!(kind, b'x' | b'g' | b'L' | b'K') {
                bodies.push((data, len));
            } else if has_map {
                bodies.push((data, BLOCK.min(len)));
            }
            at = data + len.next_multiple_of(BLOCK);
        }
        assert!(headers.len() > 5, "{} headers", headers.len());
        Self { bytes, headers, bodies }
    }

    /// A mutant of the tar; `other` is another tar.
    pub(crate) fn mutant(&self, other: &[u8], random: &mut Random) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        match random.below(10) {
            0..2 => damage::damage(&mut bytes, other, random),
            2 => self.move_blocks(&mut bytes, random),
            _ => {
                for _ in 0..=random.below(3) {
                    if random.once_in(4) && !self.bodies.is_empty() {
                        self.edit_body(&mut bytes, random);
                    } else {
                        self.edit_header(&mut bytes, random);
                    }
                }
            }
        }
        bytes
    }

    /// Drops, repeats or truncates at whole blocks, as tapes and interrupted copies do.
    fn move_blocks(&self, bytes: &mut Vec<u8>, random: &mut Random) {
        let from = *random.of_list(&self.headers);
        let to = *random.of_list(&self.headers);
        match random.below(4) {
            0 => bytes.truncate(from),
            1 => bytes.truncate(from + BLOCK),
            2 => drop(bytes.drain(from.min(to)..from.max(to))),
            _ => {
                let piece = bytes[from.min(to)..from.max(to)].to_vec();
                bytes.extend(piece);
            }
        }
    }

    fn edit_header(&self, bytes: &mut [u8], random: &mut Random) {
        let at = *random.of_list(&self.headers);
        let other = *random.of_list(&self.headers);
        let other = self.bytes[other..other + BLOCK].to_vec();
        let header = &mut bytes[at..at + BLOCK];
        match random.below(10) {
            0..5 => {
                let (start, width) = *random.of_list(&NUMBERS);
                let field = &mut header[start..start + width];
                put_number(field, &other[start..start + width], random);
            }
            5..7 => header[156] = *random.of_list(KINDS),
            7 | 8 => {
                let (start, width) = *random.of_list(&TEXTS);
                put_text(&mut header[start..start + width], &other[start..start + width], random);
            }
            _ => damage::flip(header, random),
        }
        if !random.once_in(8) {
            seal(header);
        }
    }

    /// Changes a digit, a letter or a few bytes of an extension header's contents.
    fn edit_body(&self, bytes: &mut [u8], random: &mut Random) {
        let (at, len) = *random.of_list(&self.bodies);
        let body = &mut bytes[at..at + len];
        if body.is_empty() {
            return;
        }
        let offset = random.below(body.len());
        match random.below(4) {
            0 => damage::flip(body, random),
            1 => body[offset] = *random.of_list(b"0179 =\n/.-\0x"),
            _ => {
                let digit = (offset..body.len()).find(|&at| body[at].is_ascii_digit());
                if let Some(digit) = digit {
                    body[digit] = b'0' + random.below(10) as u8;
                }
            }
        }
    }
}

/// Replaces a number: with octal digits, GNU base 256, or no number at all.
fn put_number(field: &mut [u8], other: &[u8], random: &mut Random) {
    let width = field.len();
    let old = octal(field);
    let bits = (width as u32 - 1) * 3;
    let value = interesting(old, bits, octal(other), random);
    match random.below(12) {
        0 => {
            // Base 256, positive or negative.
            let value = if random.once_in(3) { value.wrapping_neg() } else { value };
            let bytes = value.to_be_bytes();
            let sign = if value >> 63 == 1 { 0xff } else { 0 };
            field.fill(sign);
            let start = width.saturating_sub(8);
            field[start..].copy_from_slice(&bytes[8 - (width - start)..]);
            field[0] |= 0x80;
        }
        1 => field.fill(b' '),
        2 => field.fill(b'7'),
        3 => {
            let at = random.below(width);
            field[at] = *random.of_list(b" \0-+89a_");
        }
        _ => {
            let text = format!("{value:0len$o}\0", len = width - 1);
            field.copy_from_slice(&text.as_bytes()[text.len() - width..]);
        }
    }
}

fn octal(field: &[u8]) -> u64 {
    let digits = field.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number.wrapping_mul(8).wrapping_add(u64::from(digit - b'0')))
}

fn put_text(field: &mut [u8], other: &[u8], random: &mut Random) {
    let at = random.below(field.len());
    match random.below(6) {
        0 => field.copy_from_slice(other),
        1 => field.fill(*random.of_list(b"a/.\0")),
        2 => field[at] = *random.of_list(b"/.\0\n\xff "),
        3 => field[..3]
            .copy_from_slice(*random.of_list(&[b"../", b"//a", b"./.", b"a/b", b"/..", b"\0ab"])),
        4 => damage::flip(field, random),
        _ => {
            let used = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
            if used > 0 {
                field[random.below(used)] ^= 1;
            }
        }
    }
}

/// Corrects the checksum.
fn seal(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}
