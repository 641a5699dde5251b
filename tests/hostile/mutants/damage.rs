//! Damage that does not depend on the format: flipped bits, runs of one byte, splices, truncation.

use super::random::Random;

/// Damages `bytes` at one to three offsets. Spliced bytes come from `other` or from `bytes`.
pub(crate) fn damage(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            return;
        }
        match random.below(10) {
            0..4 => flip(bytes, random),
            4..6 => run(bytes, random),
            6..8 => splice(bytes, other, random),
            8 => {
                let count = 1 + random.below(16);
                let at = random.below(bytes.len());
                for byte in bytes.iter_mut().skip(at).take(count) {
                    *byte = random.next() as u8;
                }
            }
            _ => cut(bytes, random),
        }
    }
}

/// Flips one to eight bits.
pub(crate) fn flip(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
    }
}

/// Overwrites some bytes with one value, like a hole in a file.
fn run(bytes: &mut [u8], random: &mut Random) {
    let at = random.below(bytes.len());
    let longest = *random.of_list(&[4, 64, 512, 4096]);
    let len = 1 + random.below(longest);
    let byte = *random.of_list(&[0, 0xff, b' ', b'7']);
    bytes.iter_mut().skip(at).take(len).for_each(|target| *target = byte);
}

/// Copies bytes from elsewhere, overwriting or inserting them.
fn splice(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let source = if random.once_in(3) { other.to_vec() } else { bytes.clone() };
    let longest = *random.of_list(&[8, 96, 512, 4096]);
    let from = random.below(source.len());
    let piece = &source[from..source.len().min(from + 1 + random.below(longest))];
    let at = random.below(bytes.len());
    let end = match random.below(4) {
        0 => at,
        _ => bytes.len().min(at + piece.len()),
    };
    bytes.splice(at..end, piece.iter().copied());
}

/// Drops the end, or some bytes in the middle.
fn cut(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    if random.once_in(2) {
        bytes.truncate(at);
    } else {
        let end = bytes.len().min(at + 1 + random.below(600));
        bytes.drain(at..end);
    }
}
