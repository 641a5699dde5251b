//! Interesting values for a number in a structure: range limits, neighbors of the old value, steps
//! of whole blocks, one bit, the value of another field.

use super::random::Random;

/// A little-endian number of `width` bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) at: usize,
    pub(crate) width: usize,
}

pub(crate) const fn field(at: usize, width: usize) -> Field {
    Field { at, width }
}

impl Field {
    pub(crate) fn read(self, bytes: &[u8]) -> u64 {
        let mut number = [0; 8];
        number[..self.width].copy_from_slice(&bytes[self.at..self.at + self.width]);
        u64::from_le_bytes(number)
    }

    pub(crate) fn write(self, bytes: &mut [u8], value: u64) {
        let number = value.to_le_bytes();
        bytes[self.at..self.at + self.width].copy_from_slice(&number[..self.width]);
    }
}

/// A value of `bits` bits other than `old`; `other` is the value of another field.
pub(crate) fn interesting(old: u64, bits: u32, other: u64, random: &mut Random) -> u64 {
    let max = u64::MAX >> (64 - bits);
    let step = *random.of_list(&[1, 1, 1, 2, 3, 8, 12, 16, 512, 4096, 8192, 8194]);
    let value = match random.below(12) {
        0 => 0,
        1 => random.below(20) as u64,
        2 => max - random.below(3) as u64,
        3 => (max >> 1) + random.below(2) as u64,
        4 | 5 => old.wrapping_add(step),
        6 | 7 => old.wrapping_sub(step),
        8 => old ^ (1 << random.below(bits as usize)),
        9 => random.below(1 << 17) as u64,
        10 => old.wrapping_mul(2),
        _ => other,
    };
    value & max
}

/// Edits one of `fields`.
pub(crate) fn edit(bytes: &mut [u8], fields: &[Field], random: &mut Random) {
    if fields.is_empty() {
        return;
    }
    let field = *random.of_list(fields);
    let other = random.of_list(fields).read(bytes);
    let old = field.read(bytes);
    let value = interesting(old, field.width as u32 * 8, other, random);
    field.write(bytes, value);
}
