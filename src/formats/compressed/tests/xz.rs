//! xz: blocks, streams and padding, and their limits, also of files decoded from start to end.
//!
//! A hostile file cannot make reading take memory or time beyond the limits.

use super::{check, count, run, sample};
use crate::error::Kind;
use crate::formats::compressed::chunks::Chunks;
use crate::formats::compressed::format::Output;
use crate::formats::compressed::xz::{self, window as block_window};
use crate::formats::compressed::xz::{Blocks, Remaining};
use crate::formats::limits::XZ_PADDING_MAX;
use crate::storage::{MemStorage, Storage};
use crate::sync::Arc;

#[test]
fn reads_xz() {
    let data = sample(6 << 20, 6);
    let blocks = check("blocks", run("xz -1 --block-size=1MiB -c", &data), &data);
    assert!(blocks.is_none_or(|seek_index| count(&seek_index) == 6));
    check("threads", run("xz -0 -T2 --block-size=700KiB -c", &data), &data);
    check("single", run("xz -0 -c", &data), &data);
    for check_type in ["none", "crc32", "sha256"] {
        check(
            check_type,
            run(&format!("xz -0 -C {check_type} -c"), &data[..99_999]),
            &data[..99_999],
        );
    }
    check("bcj", run("xz --x86 --lzma2=preset=0 -c", &data[..99_999]), &data[..99_999]);
    let mut streams = run("xz -0 --block-size=500KiB -c", &data[..3 << 20]).unwrap();
    streams.extend([0; 8]);
    streams.extend(run("xz -0 -c", b"").unwrap());
    streams.extend(run("xz -0 -c", &data[3 << 20..]).unwrap());
    streams.extend([0; 4]);
    let seek_index = check("streams", Some(streams.clone()), &data).unwrap();
    assert_eq!(count(&seek_index), 8);
    // Data after the last stream hides the index, so the file is spooled.
    streams.extend(b"garbage");
    let seek_index = check("garbage", Some(streams), &data).unwrap();
    assert!(matches!(seek_index.chunks, Chunks::Spooled));
}

#[test]
fn reads_the_window_from_an_xz_block_header() {
    let data = sample(100_000, 17);
    // With threads, xz writes the sizes into block headers. With a BCJ filter, a block has two
    // filters.
    for (options, window) in [
        ("-0", 256 << 10),
        ("-6", 8 << 20),
        ("-0 -T2 --block-size=50KiB", 256 << 10),
        ("--x86 --lzma2=preset=0,dict=96KiB", 96 << 10),
    ] {
        let Some(encoded) = run(&format!("xz {options} -c"), &data) else { return };
        let block = MemStorage::new(encoded);
        assert_eq!(block_window(&block, 12), Some(window), "{options}");
        assert_eq!(block_window(&block, block.len()), None, "past the end");
    }
    assert_eq!(block_window(&MemStorage::new(vec![0xff; 100]), 0), None);
}

#[test]
fn reads_xz_padding_in_large_steps_up_to_a_limit() {
    let data = sample(100_000, 16);
    let Some(encoded) = run("xz -0 -c", &data) else { return };
    let padded = |zeros| MemStorage::new([&encoded[..], &vec![0; zeros]].concat());
    for (zeros, fits) in [(0, true), (4, true), (3 << 20, true), ((3 << 20) + 4, false)] {
        let storage = padded(zeros);
        let outcome = Blocks::within(&storage, Remaining { padding: 3 << 20, blocks: 99 });
        assert_eq!(outcome.is_ok(), fits, "{zeros}");
        // Steps grow from 4 bytes to 64 KiB, then one read per 64 KiB. The stream itself takes a
        // few reads.
        let reads = 20 + zeros as u64 / (64 << 10);
        assert!(storage.reads() <= reads, "{} reads past {zeros} zeros", storage.reads());
        if let Err(error) = outcome {
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains("ends with zeros"), "{error}");
        }
    }
    // Padding is a multiple of four bytes.
    assert!(Blocks::read(&padded(1001)).is_err());
    // Little padding between many streams is not read in large steps.
    let small = [&run("xz -0 -c", b"").unwrap()[..], &[0; 4]].concat().repeat(1000);
    let storage = MemStorage::new(small.clone());
    Blocks::read(&storage).unwrap();
    assert!(storage.bytes_read() <= 3 * small.len() as u64, "{}", storage.bytes_read());
}

#[test]
fn too_much_xz_padding_ends_forward_decoding() {
    let data = sample(100_000, 19);
    let Some(encoded) = run("xz -0 -c", &data) else { return };
    let padding_max = usize::try_from(XZ_PADDING_MAX).unwrap();
    for (zeros, streams) in [(padding_max, 2), (padding_max + 4, 1)] {
        let file = [&encoded[..], &vec![0; zeros], &encoded].concat();
        let mut pass = xz::open("x", Arc::new(MemStorage::new(file))).unwrap();
        let mut decoded = 0;
        while let Output::Piece(piece) = pass.next().unwrap() {
            decoded += piece.len();
        }
        assert_eq!(decoded, data.len() * streams, "past {zeros} zeros");
        assert_eq!(pass.trailing_garbage_at().is_some(), streams == 1, "and that is reported");
    }
}

#[test]
fn limits_the_xz_blocks_of_all_streams_together() {
    let data = sample(100_000, 18);
    let Some(stream) = run("xz -0 --block-size=10000 -c", &data) else { return };
    let empty = run("xz -0 -c", b"").unwrap();
    // Ten blocks in each of two streams, and four streams.
    let file = MemStorage::new([&stream[..], &empty, &stream, &[0; 4], &empty].concat());
    for (blocks, fits) in [(24, true), (23, false), (12, false), (0, false)] {
        let outcome = Blocks::within(&file, Remaining { padding: 4, blocks });
        assert_eq!(outcome.is_ok(), fits, "{blocks}");
        if let Err(error) = outcome {
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains("too many blocks"), "{error}");
        }
    }
}

#[test]
fn forward_decoding_pauses_in_long_padding() {
    let data = sample(100_000, 17);
    let Some(encoded) = run("xz -0 -c", &data) else { return };
    let file = [&encoded[..], &vec![0; 20 << 20], &encoded, &[0; 7]].concat();
    let storage = Arc::new(MemStorage::new(file));
    let mut pass = xz::open("x", storage.clone()).unwrap();
    let (mut bytes, mut before) = (Vec::new(), 0);
    while let Output::Piece(piece) = pass.next().unwrap() {
        bytes.extend_from_slice(&piece);
        let read = storage.bytes_read();
        assert!(read - before <= 5 << 20, "{} bytes read without a pause", read - before);
        before = read;
    }
    assert!(bytes == data.repeat(2));
}
