//! Files with chunks that are too large for memory, which are read from a temporary file.
//!
//! Giant chunks of every container, and the limit of the temporary file.

use super::{check, count, first_pass, run, run_on_file, sample, store};
use crate::error::Kind;
use crate::formats::compressed::chunks::Chunks;

#[test]
fn spools_only_files_with_a_giant_chunk() {
    let large = sample(1 << 20, 9).repeat(65);
    let limit = &large[..64 << 20];
    for words in ["xz -0 -c", "zstd -1 -c", "lz4 -B7 -BD -c"] {
        let seek_index = check(words, run(words, &large), &large);
        assert!(seek_index.is_none_or(|seek_index| matches!(seek_index.chunks, Chunks::Spooled)));
    }
    if let Some(encoded) = run_on_file("zstd -1 -c", limit) {
        let (bytes, error, seek_index) = first_pass(&encoded);
        assert!(error.is_none() && bytes == limit);
        assert_eq!(count(&seek_index), 1, "64 MiB are one chunk");
    }
    // Also with a window that the zstd command accepts only with --long.
    for log in [27, 28] {
        let Some(encoded) = run(&format!("zstd -1 --long={log} -c"), &large) else { continue };
        let (bytes, error, _) = first_pass(&encoded);
        assert!(error.is_none() && bytes == large, "{error:?}");
    }
    // A giant after other frames: bytes that were delivered are not delivered again.
    let first = sample(3 << 20, 10);
    let frames =
        [zstd::encode_all(&first[..], 1).unwrap(), zstd::encode_all(&large[..], 1).unwrap()];
    check("late giant", Some(frames.concat()), &[first, large].concat());
}

#[test]
fn spools_gzip_with_a_giant_block() {
    // With the second number, the block ends less than a buffer after the limit.
    for copies in [66 << 12, (64 << 20) / 258 + 10] {
        // Fixed Huffman codes. A block of 'a', then copies of 258 bytes from distance 1.
        let mut bits = Bits::default();
        bits.put(0, 1);
        bits.put(1, 2);
        bits.code(0x30 + u32::from(b'a'), 8);
        for _ in 0..copies {
            bits.code(0b1100_0101, 8);
            bits.code(0, 5);
        }
        bits.code(0, 7);
        // A block of 'a'.
        bits.put(1, 1);
        bits.put(1, 2);
        bits.code(0x30 + u32::from(b'a'), 8);
        bits.code(0, 7);
        let data = vec![b'a'; 1 + copies * 258 + 1];
        let mut encoded = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
        encoded.extend(bits.bytes);
        encoded.extend(crc32fast::hash(&data).to_le_bytes());
        encoded.extend((data.len() as u32).to_le_bytes());
        let seek_index = check("giant block", Some(encoded), &data).unwrap();
        assert!(matches!(seek_index.chunks, Chunks::Spooled), "{copies} copies");
    }
}

#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    used: u32,
}

impl Bits {
    fn put(&mut self, value: u32, count: u32) {
        for bit in 0..count {
            if self.used.is_multiple_of(8) {
                self.bytes.push(0);
            }
            *self.bytes.last_mut().unwrap() |= ((value >> bit & 1) as u8) << (self.used % 8);
            self.used += 1;
        }
    }

    /// Writes a Huffman code, highest bit first.
    fn code(&mut self, value: u32, count: u32) {
        (0..count).rev().for_each(|bit| self.put(value >> bit & 1, 1));
    }
}

#[test]
fn limits_the_temporary_file() {
    use crate::formats::compressed::Container;
    use crate::formats::compressed::spool::{Spool, TemporaryFile};
    use crate::formats::compressed::spool_limit::SpoolLimit;
    let data = sample(3 << 20, 11);
    let Some(encoded) = run("zstd -1 -c", &data) else { return };
    for (limit, fits) in [(3 << 20, true), ((3 << 20) - 1, false)] {
        let file = tempfile::tempfile().unwrap();
        let room = TemporaryFile {
            file,
            directory: std::path::Path::new("/scratch"),
            limit: SpoolLimit::fixed(limit),
        };
        let spool =
            Spool::within("x", store(&encoded), Container::Zstd.spool_format().unwrap(), room)
                .unwrap();
        let mut buffer = vec![0; data.len()];
        let outcome = spool.read_exact_at(&mut buffer, 0);
        match fits {
            true => assert!(outcome.is_ok() && buffer == data),
            false => {
                let error = outcome.unwrap_err();
                assert_eq!(error.kind(), Kind::Unsupported);
                assert!(error.to_string().contains("/scratch") && error.hint().is_some());
                spool.read_exact_at(&mut buffer[..1000], 0).unwrap();
            }
        }
    }
}
