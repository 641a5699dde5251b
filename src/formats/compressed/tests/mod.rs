//! Tests with the output of the real tools, and with damage. Shared functions of all containers are
//! here.

mod bzip2;
mod damage;
mod frames;
mod gzip;
mod spool;
mod xz;

use std::io::Write;
use std::process::{Command, Stdio};

use crate::error::{Error, Kind, Result};
use crate::formats::bytes::Reader;
use crate::formats::compressed::{ChunkCache, Compressed, Container, FirstPass, SeekIndex, Spool};
use crate::formats::limits::SKIPPABLE_FIRST_MAX;
use crate::storage::{MemStorage, Storage};
use crate::sync::Arc;

/// Data with runs and near and far repeats, which compresses moderately. The same seed gives the
/// same bytes.
fn sample(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut bytes = Vec::with_capacity(len + 4096);
    while bytes.len() < len {
        match random() % 8 {
            0 => bytes.extend(std::iter::repeat_n(random() as u8, random() % 3000)),
            1 | 2 if bytes.len() > 100 => {
                let start = random() % (bytes.len() - 64);
                let end = (start + random() % 4000).min(bytes.len());
                bytes.extend_from_within(start..end);
            }
            3 => bytes.extend((0..random() % 2000).map(|_| random() as u8)),
            _ => (0..random() % 300).for_each(|_| {
                write!(bytes, "{} ", ["data", "mount", "of", "archive", "file"][random() % 5])
                    .unwrap();
            }),
        }
    }
    bytes.truncate(len);
    bytes
}

/// The output of the command line `words` for `input`. None, with a note on stderr, if the tool is
/// not installed.
fn run(words: &str, input: &[u8]) -> Option<Vec<u8>> {
    let mut words = words.split(' ');
    let tool = words.next().unwrap();
    let child = Command::new(tool)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("SKIPPED: {tool} is not installed, so what it writes is not tested");
        return None;
    };
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input).unwrap());
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{tool} failed");
    Some(output.stdout)
}

/// The same through a file, because some tools write sizes in headers only then.
fn run_on_file(words: &str, input: &[u8]) -> Option<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("input");
    std::fs::write(&path, input).unwrap();
    run(&format!("{words} {}", path.display()), b"")
}

fn store(bytes: &[u8]) -> Arc<dyn Storage> {
    Arc::new(MemStorage::new(bytes.to_vec()))
}

fn recognized(encoded: &[u8]) -> Result<Option<Container>> {
    Container::of(&*store(encoded), encoded)
}

/// Runs a first pass. Returns the bytes, the error, and the seek points.
fn first_pass(encoded: &[u8]) -> (Vec<u8>, Option<Error>, SeekIndex) {
    let (bytes, error, (seek_index, _)) = first_pass_and_spool(encoded);
    (bytes, error, seek_index)
}

/// The same, and the temporary file of the pass.
fn first_pass_and_spool(encoded: &[u8]) -> (Vec<u8>, Option<Error>, (SeekIndex, Option<Spool>)) {
    let container = recognized(encoded).unwrap().expect("a container");
    let mut first_pass = FirstPass::start("x", store(encoded), container, &cache()).unwrap();
    let mut bytes = Vec::new();
    let error = loop {
        match first_pass.next_piece() {
            Ok(Some(piece)) => bytes.extend_from_slice(&piece),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
        assert!(first_pass.position() <= encoded.len() as u64);
    };
    assert!(first_pass.next_piece().unwrap().is_none(), "an error is returned once");
    let (seek_index, spool) = first_pass.finish();
    // Damaged data that no checksum covers must not be readable later.
    assert!(seek_index.len() <= bytes.len() as u64);
    assert!(seek_index.len() == bytes.len() as u64 || error.is_some());
    (bytes, error, (seek_index, spool))
}

fn open(encoded: &[u8], seek_index: SeekIndex, spool: Option<Spool>) -> Arc<Compressed> {
    Compressed::new("x", store(encoded), seek_index, spool, cache(), 3).unwrap()
}

fn cache() -> Arc<ChunkCache> {
    Arc::new(ChunkCache::new(64 << 20, 8 << 20, Arc::default()))
}

fn saved(seek_index: &SeekIndex, encoded: &[u8]) -> SeekIndex {
    let mut bytes = Vec::new();
    seek_index.write(&mut bytes);
    let mut reader = Reader::new("index", &bytes);
    let parsed = SeekIndex::parse(&mut reader, encoded.len() as u64).unwrap();
    assert_eq!(reader.remaining(), 0);
    parsed
}

/// Reads at many offsets, on several threads, and compares the bytes.
fn check_reads(compressed: &Compressed, data: &[u8], threads: usize, reads: usize) {
    assert_eq!(compressed.len(), data.len() as u64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut state = 77 + thread as u64;
                for read in 0..reads {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    let start = (state >> 20) as usize % data.len().max(1);
                    let size = if read % 10 == 0 { 3 << 19 } else { (state >> 50) as usize };
                    let end = (start + size).min(data.len());
                    let mut buffer = vec![0; end - start];
                    compressed.read_exact_at(&mut buffer, start as u64).unwrap();
                    assert!(buffer == data[start..end], "{start}..{end} differs");
                }
            });
        }
    });
    let mut buffer = [0; 2];
    let past_end = compressed.read_exact_at(&mut buffer, (data.len() as u64).saturating_sub(1));
    assert_eq!(past_end.unwrap_err().kind(), Kind::Corrupt);
}

/// Checks that `encoded` decodes to `data`: in the first pass, at random offsets, and after saving
/// the seek points.
fn check(what: &str, encoded: Option<Vec<u8>>, data: &[u8]) -> Option<SeekIndex> {
    let encoded = encoded?;
    let (bytes, error, (seek_index, spool)) = first_pass_and_spool(&encoded);
    assert!(error.is_none(), "{what}: {error:?}");
    assert!(bytes == data, "{what}: the first pass gives other bytes");
    let reloaded = saved(&seek_index, &encoded);
    assert_eq!(reloaded.largest_chunk(), seek_index.largest_chunk());
    check_reads(&open(&encoded, saved(&seek_index, &encoded), None), data, 1, 60);
    let result = saved(&seek_index, &encoded);
    check_reads(&open(&encoded, seek_index, spool), data, 8, 63);
    Some(result)
}

fn count(seek_index: &SeekIndex) -> usize {
    seek_index.chunks.count()
}

#[test]
fn recognizes_containers_by_their_first_bytes() {
    for (tool, container) in [
        ("gzip -c", Container::Gzip),
        ("bzip2 -c", Container::Bzip2),
        ("xz -c", Container::Xz),
        ("zstd -c", Container::Zstd),
        ("lz4 -c", Container::Lz4),
        ("lz4 -l -c", Container::Lz4),
    ] {
        for data in [&b""[..], b"some text"] {
            if let Some(encoded) = run(tool, data) {
                assert_eq!(recognized(&encoded).unwrap(), Some(container), "{tool}");
                check(tool, Some(encoded), data);
            }
        }
    }
    for other in [&b"BZh9, a text"[..], b"", b"PK\x03\x04"] {
        assert_eq!(recognized(other).unwrap(), None);
    }
}

#[test]
fn finds_the_first_frame_after_skippable_ones() {
    let skippable = |number: u8, len: usize| {
        let header = [&[0x50 + number, 0x2a, 0x4d, 0x18], &(len as u32).to_le_bytes()[..]].concat();
        [header, vec![0xff; len]].concat()
    };
    let refused = |encoded: &[u8]| {
        let error = recognized(encoded).unwrap_err();
        (error.kind(), error.to_string())
    };
    for (tool, container) in
        [("zstd -c", Container::Zstd), ("lz4 -c", Container::Lz4), ("lz4 -l -c", Container::Lz4)]
    {
        let Some(encoded) = run(tool, b"some text") else { continue };
        for len in [0, 1, 1016, 4000, 300_000] {
            let file = [skippable(15, len), encoded.clone()].concat();
            assert_eq!(recognized(&file).unwrap(), Some(container), "{tool} after {len} bytes");
            check(tool, Some(file), b"some text");
        }
        let most = (0..SKIPPABLE_FIRST_MAX as u8).flat_map(|n| skippable(n % 16, 4000));
        let most: Vec<u8> = most.collect();
        check(tool, Some([&most[..], &encoded].concat()), b"some text");
        let (kind, text) = refused(&[&most[..], &skippable(0, 4000), &encoded].concat());
        assert_eq!(kind, Kind::Unsupported, "{text}");
        assert!(text.contains("more than 64 skippable frames"), "{text}");
    }
    let frame = skippable(0, 4000);
    let (kind, text) = refused(&frame);
    assert_eq!(kind, Kind::UnknownFormat, "{text}");
    assert!(text.contains("no data after them"), "{text}");
    for cut in [4, 7, 8, 2000, 4007] {
        let (kind, text) = refused(&frame[..cut]);
        assert_eq!(kind, Kind::Truncated, "{cut}: {text}");
    }
    for other in [&b"a text"[..], b"\x1f\x8b\x08", b"\0"] {
        let (kind, text) = refused(&[&frame[..], other].concat());
        assert_eq!(kind, Kind::UnknownFormat, "{text}");
        assert!(text.contains("other data after them"), "{text}");
    }
}

#[test]
fn reading_in_order_reads_each_compressed_byte_at_most_twice() {
    // 1 MiB of this text takes less than one read in the file.
    let text: Vec<u8> =
        (0..900_000).flat_map(|n| format!("line {} of a text\n", n / 2).into_bytes()).collect();
    for (data, name) in [(text, "text"), (sample(20 << 20, 15), "sample")] {
        for words in [
            "gzip -6 -c",
            "bzip2 -9 -c",
            "xz -0 --block-size=1MiB -c",
            "zstd -1 -c",
            "pzstd -1 -c",
            "lz4 -B4 -c",
        ] {
            let Some(encoded) = run(words, &data) else { continue };
            let len = encoded.len() as u64;
            let container = recognized(&encoded).unwrap().unwrap();
            let storage = Arc::new(MemStorage::new(encoded));
            let mut first_pass =
                FirstPass::start("x", storage.clone(), container, &cache()).unwrap();
            while first_pass.next_piece().unwrap().is_some() {}
            let first_read = storage.bytes_read();
            // A little more, because the checksums of bzip2 blocks are read separately.
            let twice = 2 * len + len / 20 + 4096;
            assert!(first_read <= twice, "{name}, {words}: {first_read} of {len} bytes");
            let (seek_index, spool) = first_pass.finish();
            let compressed =
                Compressed::new("x", storage.clone(), seek_index, spool, cache(), 0).unwrap();
            let mut buffer = vec![0; 128 << 10];
            for start in (0..data.len()).step_by(buffer.len()) {
                let part = buffer.len().min(data.len() - start);
                compressed.read_exact_at(&mut buffer[..part], start as u64).unwrap();
                assert!(buffer[..part] == data[start..start + part]);
            }
            let read = storage.bytes_read() - first_read;
            assert!(read <= twice, "{name}, {words}: {read} of {len} bytes, read in order");
        }
    }
}
