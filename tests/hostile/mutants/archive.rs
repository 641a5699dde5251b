//! Finds the records of a sound ZIP archive and edits their fields.

use super::damage;
use super::field::{Field, edit, field};
use super::random::Random;

/// The fields of an entry of the central directory, of a local header, and of the end record.
const ENTRY: [(usize, usize); 17] = [
    (4, 1),
    (5, 1),
    (8, 2),
    (10, 2),
    (12, 2),
    (14, 2),
    (16, 4),
    (20, 4),
    (24, 4),
    (28, 2),
    (30, 2),
    (32, 2),
    (34, 2),
    (36, 2),
    (38, 2),
    (40, 2),
    (42, 4),
];
const LOCAL: [(usize, usize); 7] = [(6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)];
const END: [(usize, usize); 7] = [(4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)];

/// A ZIP archive and its records.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    pub(crate) bytes: Vec<u8>,
    entries: Vec<Vec<Field>>,
    locals: Vec<Vec<Field>>,
    end: Vec<Field>,
    /// Names and extra fields: offset and length.
    texts: Vec<(usize, usize)>,
    /// Where the central directory starts.
    directory: usize,
}

fn fields(at: usize, layout: &[(usize, usize)]) -> Vec<Field> {
    layout.iter().map(|&(offset, width)| field(at + offset, width)).collect()
}

impl Archive {
    /// Takes a sound archive without a comment.
    pub(crate) fn parse(bytes: Vec<u8>) -> Self {
        let end = bytes.len() - 22;
        assert_eq!(&bytes[end..end + 4], b"PK\x05\x06");
        let number = |at: usize, width: usize| field(at, width).read(&bytes) as usize;
        let (mut at, directory) = (number(end + 16, 4), number(end + 16, 4));
        let (mut entries, mut locals, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        while bytes[at..].starts_with(b"PK\x01\x02") {
            entries.push(fields(at, &ENTRY));
            let local = number(at + 42, 4);
            locals.push(fields(local, &LOCAL));
            texts.push((local + 30, number(local + 26, 2) + number(local + 28, 2)));
            let (name, extra, comment) =
                (number(at + 28, 2), number(at + 30, 2), number(at + 32, 2));
            texts.push((at + 46, name + extra));
            at += 46 + name + extra + comment;
        }
        assert!(entries.len() > 5, "{} entries", entries.len());
        Self { end: fields(end, &END), bytes, entries, locals, texts, directory }
    }

    /// A mutant of the archive; `other` is another one.
    pub(crate) fn mutant(&self, other: &Self, random: &mut Random) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        match random.below(12) {
            0..2 => damage::damage(&mut bytes, &other.bytes, random),
            2 => self.repeat_entry(&mut bytes, random),
            3 => edit(&mut bytes, &self.end, random),
            _ => {
                for _ in 0..=random.below(3) {
                    match random.below(10) {
                        0..5 => edit_one(&mut bytes, &self.entries, random),
                        5..8 => edit_one(&mut bytes, &self.locals, random),
                        8 => self.edit_text(&mut bytes, random),
                        _ => damage::flip(&mut bytes[..self.directory], random),
                    }
                }
            }
        }
        bytes
    }

    /// Changes a byte of a name or of an extra field.
    fn edit_text(&self, bytes: &mut [u8], random: &mut Random) {
        let (start, len) = *random.of_list(&self.texts);
        if len > 0 {
            let at = start + random.below(len);
            bytes[at] = *random.of_list(&[b'/', b'.', b'\\', b'a', 0, 1, 4, 0x75, 0x81, 0xff]);
        }
    }

    /// Copies one entry over another, as far as it fits: two entries for one member.
    fn repeat_entry(&self, bytes: &mut [u8], random: &mut Random) {
        let of = |entry: &Vec<Field>| entry[0].at - 4;
        let (from, to) = (of(random.of_list(&self.entries)), of(random.of_list(&self.entries)));
        let len = 46.min(bytes.len() - from.max(to));
        // Without the lengths of the name and the extra field, which stay.
        bytes.copy_within(from..from + 28.min(len), to);
        bytes.copy_within(from + 34..from + len, to + 34);
    }
}

/// Edits a field of one of `records`.
fn edit_one(bytes: &mut [u8], records: &[Vec<Field>], random: &mut Random) {
    let record: &Vec<Field> = random.of_list(records);
    edit(bytes, record, random);
}
