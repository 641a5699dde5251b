//! Checksums of a copy that outlives its mount, so that the next mount need not fetch it again.
//!
//! A kept copy may be damaged: its daemon was killed in the middle of a write, the node lost power
//! before all was on the disk, or the disk is bad. So each granule has a checksum in a file beside
//! the copy, which is written after the granule. The next mount believes a granule only after it
//! has compared it, once. A granule without the right checksum is fetched.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::granules::GRANULE;

/// What a granule has that is not there.
const NONE: u64 = 0;

/// Bytes of the file before the checksums.
const HEADER: u64 = 64;

/// Start of the file, with the version of its format.
const MAGIC: [u8; 16] = *b"archfs stage 001";

/// The checksums of the granules of a copy.
#[derive(Debug)]
pub(super) struct Checksums {
    file: File,
}

impl Checksums {
    /// Those in `file`, for a copy of `len` bytes of what `identity` identifies. If the file is for
    /// another one, no granule is there.
    pub(super) fn of(file: File, identity: &[u8; 32], len: u64) -> io::Result<Self> {
        let mut header = [0; HEADER as usize];
        header[..16].copy_from_slice(&MAGIC);
        header[16..48].copy_from_slice(identity);
        header[48..56].copy_from_slice(&len.to_le_bytes());
        header[56..].copy_from_slice(&GRANULE.to_le_bytes());
        let mut found = [0; HEADER as usize];
        let is_same = file.read_exact_at(&mut found, 0).is_ok() && found == header;
        if !is_same {
            file.set_len(0)?;
            file.write_all_at(&header, 0)?;
        }
        // Holes are zeros.
        file.set_len(HEADER + len.div_ceil(GRANULE) * size_of::<u64>() as u64)?;
        Ok(Self { file })
    }

    /// Reads `range` of `copy` into `buffer`, which is as long. Returns the parts of the range that
    /// are not there, or are damaged. The range consists of whole granules, except at its end.
    pub(super) fn recover(
        &self,
        copy: &File,
        range: &Range<u64>,
        buffer: &mut [u8],
    ) -> Vec<Range<u64>> {
        let all = vec![range.clone()];
        let Ok(expected) = self.read(range) else { return all };
        if expected.iter().all(|sum| *sum == NONE)
            || copy.read_exact_at(buffer, range.start).is_err()
        {
            return all;
        }
        let mut missing: Vec<Range<u64>> = Vec::new();
        for ((number, bytes), expected) in granules(range, buffer).zip(expected) {
            if expected == checksum(number, bytes) {
                continue;
            }
            let start = number * GRANULE;
            let end = start + bytes.len() as u64;
            match missing.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => missing.push(start..end),
            }
        }
        missing
    }

    /// Notes that the copy has `bytes` in `range`. If that fails, they are fetched again next time.
    pub(super) fn note(&self, range: &Range<u64>, bytes: &[u8]) {
        let sums: Vec<u8> = granules(range, bytes)
            .flat_map(|(number, bytes)| checksum(number, bytes).to_le_bytes())
            .collect();
        let _ = self.file.write_all_at(&sums, offset(range));
    }

    fn read(&self, range: &Range<u64>) -> io::Result<Vec<u64>> {
        let count = (range.end.div_ceil(GRANULE) - range.start / GRANULE) as usize;
        let mut bytes = vec![0; count * size_of::<u64>()];
        self.file.read_exact_at(&mut bytes, offset(range))?;
        let (sums, _) = bytes.as_chunks::<8>();
        Ok(sums.iter().map(|sum| u64::from_le_bytes(*sum)).collect())
    }
}

/// Where the checksum of the first granule of `range` is.
fn offset(range: &Range<u64>) -> u64 {
    HEADER + range.start / GRANULE * size_of::<u64>() as u64
}

/// The granules of `range`, whose bytes are `bytes`: their numbers, and their bytes.
fn granules<'b>(range: &Range<u64>, bytes: &'b [u8]) -> impl Iterator<Item = (u64, &'b [u8])> {
    (range.start / GRANULE..).zip(bytes.chunks(GRANULE as usize))
}

/// The checksum of a granule. Its number counts, so that no granule passes for another one.
fn checksum(number: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, number).max(NONE + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 10 * GRANULE + 100;

    fn files() -> (File, File) {
        (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap())
    }

    fn bytes(range: &Range<u64>) -> Vec<u8> {
        range.clone().map(|at| (at % 251) as u8 ^ (at >> 14) as u8).collect()
    }

    #[test]
    fn only_granules_with_the_right_checksum_are_believed() {
        let (copy, file) = files();
        let sums = Checksums::of(file.try_clone().unwrap(), &[1; 32], LEN).unwrap();
        let add = |range: Range<u64>| {
            copy.write_all_at(&bytes(&range), range.start).unwrap();
            sums.note(&range, &bytes(&range));
        };
        add(0..2 * GRANULE);
        add(4 * GRANULE..LEN);
        let sums = Checksums::of(file.try_clone().unwrap(), &[1; 32], LEN).unwrap();
        let recover = |range: &Range<u64>| {
            let mut found = vec![0; (range.end - range.start) as usize];
            let missing = sums.recover(&copy, range, &mut found);
            for (at, byte) in range.clone().zip(&found) {
                let is_missing = missing.iter().any(|range| range.contains(&at));
                assert!(is_missing || *byte == bytes(&(at..at + 1))[0], "{at}");
            }
            missing
        };
        let granules = |range: Range<u64>| range.start * GRANULE..range.end * GRANULE;
        assert_eq!(recover(&(0..LEN)), [granules(2..4)]);
        assert_eq!(recover(&granules(2..4)), [granules(2..4)]);
        assert_eq!(recover(&(10 * GRANULE..LEN)), []);
        // Damaged, exchanged, written without a checksum, and cut off.
        copy.write_all_at(b"x", GRANULE + 7).unwrap();
        copy.write_all_at(&bytes(&granules(5..6)), 6 * GRANULE).unwrap();
        copy.write_all_at(&bytes(&granules(2..3)), 2 * GRANULE).unwrap();
        assert_eq!(recover(&(0..LEN)), [granules(1..4), granules(6..7)]);
        copy.set_len(LEN - 1).unwrap();
        let end = 9 * GRANULE..LEN;
        assert_eq!(recover(&end), std::slice::from_ref(&end));
    }

    #[test]
    fn checksums_of_another_copy_are_not_believed() {
        let (copy, file) = files();
        let range = 0..LEN;
        copy.write_all_at(&bytes(&range), 0).unwrap();
        let open = |identity: u8, len| {
            Checksums::of(file.try_clone().unwrap(), &[identity; 32], len).unwrap()
        };
        let missing =
            |sums: &Checksums| sums.recover(&copy, &(0..GRANULE), &mut [0; GRANULE as usize]).len();
        open(1, LEN).note(&range, &bytes(&range));
        assert_eq!(missing(&open(1, LEN)), 0);
        assert_eq!(missing(&open(1, LEN + 1)), 1);
        open(1, LEN).note(&range, &bytes(&range));
        assert_eq!(missing(&open(2, LEN)), 1);
        assert_eq!(missing(&open(1, LEN)), 1, "they are gone");
        file.set_len(100).unwrap();
        assert_eq!(missing(&open(1, LEN)), 1, "cut off");
    }
}
