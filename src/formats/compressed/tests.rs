//! Tests against what the real tools write, and against damage.

use std::collections::VecDeque;
use std::io::Write;
use std::process::{Command, Stdio};

use super::extent::Size;
use super::pipeline::{Arrival, Next, Note, Pipeline, Task, Walk};
use super::seekable::{Chunks, Extent};
use super::survey::Found;
use super::{ChunkCache, Compressed, Container, Seekable, Survey, bzip2, xz};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::Reader;
use crate::formats::limits::XZ_PADDING_MAX;
use crate::storage::{MemStorage, Storage};
use crate::sync::{Arc, AtomicU64, Ordering};

/// Bytes that compress somewhat, with runs and repeats near and far; the same for the same seed.
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

/// What the command line `words` makes of `input`; none, and loudly so, where the tool is missing.
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

/// The same through a file, for what tools do only then (sizes in headers).
fn run_on_file(words: &str, input: &[u8]) -> Option<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("input");
    std::fs::write(&path, input).unwrap();
    run(&format!("{words} {}", path.display()), b"")
}

fn store(bytes: &[u8]) -> Arc<dyn Storage> {
    Arc::new(MemStorage::new(bytes.to_vec()))
}

/// All that a survey delivers, how it ended, and the seek points.
fn survey(encoded: &[u8]) -> (Vec<u8>, Option<Error>, Seekable) {
    let container = Container::recognise(encoded).expect("a container");
    let mut survey = Survey::start("x", store(encoded), container).unwrap();
    let mut bytes = Vec::new();
    let error = loop {
        match survey.next_piece() {
            Ok(Some(piece)) => bytes.extend_from_slice(&piece),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
        assert!(survey.position() <= encoded.len() as u64);
    };
    assert!(survey.next_piece().unwrap().is_none(), "an error is told once");
    let seekable = survey.finish();
    // Of damaged data the part that no checksum vouches for is not to be had again.
    assert!(seekable.len() <= bytes.len() as u64);
    assert!(seekable.len() == bytes.len() as u64 || error.is_some());
    (bytes, error, seekable)
}

fn cache() -> Arc<ChunkCache> {
    Arc::new(ChunkCache::new(64 << 20, 8 << 20, Arc::default()))
}

fn saved(seekable: &Seekable, encoded: &[u8]) -> Seekable {
    let mut bytes = Vec::new();
    seekable.write(&mut bytes);
    let mut reader = Reader::new("index", &bytes);
    let parsed = Seekable::parse(&mut reader, encoded.len() as u64).unwrap();
    assert_eq!(reader.remaining(), 0);
    parsed
}

/// Reads at many offsets, some threads at once, and compares.
fn check_reads(compressed: &Compressed, plain: &[u8], threads: usize, reads: usize) {
    assert_eq!(compressed.len(), plain.len() as u64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut state = 77 + thread as u64;
                for read in 0..reads {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    let start = (state >> 20) as usize % plain.len().max(1);
                    let size = if read % 10 == 0 { 3 << 19 } else { (state >> 50) as usize };
                    let end = (start + size).min(plain.len());
                    let mut buffer = vec![0; end - start];
                    compressed.read_exact_at(&mut buffer, start as u64).unwrap();
                    assert!(buffer == plain[start..end], "{start}..{end} differs");
                }
            });
        }
    });
    let mut buffer = [0; 2];
    let past = compressed.read_exact_at(&mut buffer, (plain.len() as u64).saturating_sub(1));
    assert_eq!(past.unwrap_err().kind(), Kind::Corrupt);
}

/// Holds `encoded` against `plain`: surveyed, read at random, saved and read again.
fn check(what: &str, encoded: Option<Vec<u8>>, plain: &[u8]) -> Option<Seekable> {
    let encoded = encoded?;
    let (bytes, error, seekable) = survey(&encoded);
    assert!(error.is_none(), "{what}: {error:?}");
    assert!(bytes == plain, "{what}: the survey gives other bytes");
    let again = saved(&seekable, &encoded);
    assert_eq!(again.largest_chunk(), seekable.largest_chunk());
    let open = |seekable| Compressed::new("x", store(&encoded), seekable, cache(), 3).unwrap();
    check_reads(&open(saved(&seekable, &encoded)), plain, 1, 60);
    let kept = saved(&seekable, &encoded);
    check_reads(&open(seekable), plain, 8, 63);
    Some(kept)
}

fn count(seekable: &Seekable) -> usize {
    match &seekable.chunks {
        Chunks::Points(points) => points.len(),
        Chunks::Extents(extents) => extents.len(),
        Chunks::Spooled(_) => 0,
    }
}

#[test]
fn a_gzip_file_cut_behind_its_data_is_read_up_to_its_last_byte() {
    let Some(member) = run("gzip -c", b"text") else { return };
    let twice = [&member[..], &member].concat();
    let thrice = [&twice[..], &member].concat();
    // In the trailer of the second member, and in the header of a third.
    let trailer = (1..8).map(|cut| &twice[..twice.len() - cut]);
    for encoded in trailer.chain((2..10).map(|kept| &thrice[..twice.len() + kept])) {
        let (bytes, error, seekable) = survey(encoded);
        assert_eq!(bytes, b"texttext");
        assert_eq!(error.unwrap().kind(), Kind::Truncated);
        assert_eq!(seekable.len(), 8);
        let decoded = Compressed::new("x", store(encoded), seekable, cache(), 3).unwrap();
        check_reads(&decoded, b"texttext", 1, 5);
    }
}

#[test]
fn a_gzip_member_is_read_whole_before_one_whose_header_is_damaged() {
    let Some(member) = run("gzip -c", b"text") else { return };
    let mut twice = [&member[..], &member].concat();
    // Flags that nobody uses.
    twice[member.len() + 3] = 0xff;
    let (bytes, error, seekable) = survey(&twice);
    assert_eq!((&bytes[..], error.unwrap().kind()), (&b"text"[..], Kind::Corrupt));
    let decoded = Compressed::new("x", store(&twice), seekable, cache(), 3).unwrap();
    check_reads(&decoded, b"text", 1, 5);
}

#[test]
fn recognises_containers_by_their_first_bytes() {
    for (tool, container) in [
        ("gzip -c", Container::Gzip),
        ("bzip2 -c", Container::Bzip2),
        ("xz -c", Container::Xz),
        ("zstd -c", Container::Zstd),
        ("lz4 -c", Container::Lz4),
        ("lz4 -l -c", Container::Lz4),
    ] {
        for plain in [&b""[..], b"some text"] {
            if let Some(encoded) = run(tool, plain) {
                assert_eq!(Container::recognise(&encoded), Some(container), "{tool}");
                check(tool, Some(encoded), plain);
            }
        }
    }
    assert_eq!(Container::recognise(b"BZh9, a text"), None);
    assert_eq!(Container::recognise(b""), None);
    assert_eq!(Container::recognise(b"PK\x03\x04"), None);
}

#[test]
fn reads_gzip() {
    let plain = sample(9 << 20, 1);
    for words in ["gzip -1 -c", "gzip -9 -c", "pigz -c", "pigz -i -b 128 -c", "bgzip -c"] {
        let seekable = check(words, run(words, &plain), &plain);
        let Some(seekable) = seekable else { continue };
        let Chunks::Points(points) = &seekable.chunks else { panic!("{words}: no points") };
        let starts: Vec<u64> = points.iter().map(|point| point.decoded).collect();
        let sizes = starts.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
        assert!(sizes.iter().all(|size| *size >= 768 << 10), "{words}: {sizes:?}");
        let small = sizes.iter().filter(|size| **size <= 1 << 20).count();
        assert!(small * 4 >= sizes.len() * 3, "{words}: {sizes:?}");
    }
    // Stored blocks, many members, a header with all fields, zeros at the end.
    let noise: Vec<u8> =
        sample(1 << 20, 2).iter().enumerate().map(|(i, b)| b ^ ((i * i) >> 7) as u8).collect();
    check("noise", run("gzip -1 -c", &noise), &noise);
    let mut members = Vec::new();
    for part in plain.chunks(300_000) {
        members.extend(run("gzip -1 -c", part).unwrap());
    }
    members.extend([0; 1000]);
    check("members", Some(members), &plain);
    let mut fields = vec![0x1f, 0x8b, 8, 2 | 4 | 8 | 16, 0, 0, 0, 0, 0, 3];
    fields.extend(b"\x05\0extraname\0comment\0");
    let sum = crc32fast::hash(&fields).to_le_bytes();
    fields.extend(&sum[..2]);
    fields.extend(&run("gzip -nc", &plain).unwrap()[10..]);
    check("fields", Some(fields.clone()), &plain);
    fields[12] ^= 1;
    assert!(survey(&fields).1.unwrap().to_string().contains("header's checksum"));
    for (name, fits) in [((64 << 10) - 1, true), (64 << 10, false)] {
        let mut long = vec![0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 3];
        long.extend(vec![b'n'; name]);
        long.extend([0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(survey(&long).1.is_none(), fits, "a name of {name} bytes");
    }
}

#[test]
fn thins_gzip_points_out() {
    let plain = sample(40 << 20, 3);
    let encoded = run("gzip -1 -c", &plain).unwrap();
    let mut pass = super::gzip::FirstPass::keeping("x", store(&encoded), 8);
    while !matches!(pass.next().unwrap(), Found::End) {}
    let points = pass.into_points(plain.len() as u64);
    assert!((3..=8).contains(&points.len()), "{}", points.len());
    let len = plain.len() as u64;
    let seekable = Seekable { container: Container::Gzip, len, chunks: Chunks::Points(points) };
    assert!(seekable.largest_chunk() > 4 << 20);
    let again = saved(&seekable, &encoded);
    let compressed = Compressed::new("x", store(&encoded), again, cache(), 0).unwrap();
    check_reads(&compressed, &plain, 2, 10);
}

#[test]
fn reads_bzip2() {
    let plain = sample(4 << 20, 4);
    for words in ["bzip2 -1 -c", "bzip2 -9 -c", "pbzip2 -c", "lbzip2 -c"] {
        check(words, run(words, &plain), &plain);
    }
    let mut streams = run("bzip2 -c", &plain[..2 << 20]).unwrap();
    streams.extend(run("bzip2 -c", b"").unwrap());
    streams.extend(run("bzip2 -1 -c", &plain[2 << 20..]).unwrap());
    streams.extend(b"\0\0\0 garbage");
    let seekable = check("streams", Some(streams), &plain).unwrap();
    assert!(count(&seekable) >= 4);
    let zeros = vec![0; 46 << 20];
    check("zeros", run("bzip2 -c", &zeros), &zeros);
}

/// A walk that cuts every block into pieces, as magic numbers in its data would, and counts the
/// joins: each is decoded once.
struct Cut {
    blocks: bzip2::Blocks,
    pieces: u64,
    waiting: VecDeque<Task>,
    joins: Arc<AtomicU64>,
}

impl Walk for Cut {
    fn next(&mut self) -> Result<Next> {
        if let Some(task) = self.waiting.pop_front() {
            return Ok(Next::Task(task));
        }
        Ok(match self.blocks.next()? {
            Next::Task(task) if task.note == Note::None => {
                let Extent { start, end, .. } = task.extent;
                let place = |piece| start + (end - start) * piece / self.pieces;
                self.waiting.extend((0..self.pieces).map(|piece| {
                    let extent =
                        Extent { start: place(piece), end: place(piece + 1), ..task.extent };
                    Task { extent, size: Size::AtMost(5 << 20), note: Note::None }
                }));
                return self.next();
            }
            next => next,
        })
    }

    fn arrived(&mut self, task: &Task, bytes: &[u8]) -> Result<Arrival> {
        self.blocks.arrived(task, bytes)
    }

    fn join(&self, failed: &Task, next: &Task) -> Option<Task> {
        self.joins.fetch_add(1, Ordering::Relaxed);
        self.blocks.join(failed, next)
    }
}

/// What the pipeline makes of a bzip2 file whose blocks are cut into pieces, and after how many
/// joins.
fn read_cut(encoded: &[u8], pieces: u64) -> (Result<Vec<u8>>, u64) {
    let storage = store(encoded);
    let blocks = bzip2::Blocks::new("x", Arc::clone(&storage));
    let joins = Arc::new(AtomicU64::new(0));
    let walk = Cut { blocks, pieces, waiting: VecDeque::new(), joins: Arc::clone(&joins) };
    let mut pipeline = Pipeline::start(Container::Bzip2, storage, Box::new(walk)).unwrap();
    let mut bytes = Vec::new();
    let outcome = loop {
        match pipeline.next() {
            Ok(Found::Piece(piece)) => bytes.extend_from_slice(&piece),
            Ok(_) => break Ok(bytes),
            Err(error) => break Err(error),
        }
    };
    (outcome, joins.load(Ordering::Relaxed))
}

#[test]
fn bzip2_joins_blocks_that_false_magic_numbers_cut() {
    let plain = sample(3 << 20, 5);
    let Some(encoded) = run("bzip2 -9 -c", &plain) else { return };
    for pieces in [1, 2, 4, 9] {
        let (outcome, joins) = read_cut(&encoded, pieces);
        assert!(outcome.unwrap() == plain, "{pieces} pieces");
        // Some four blocks.
        assert!(joins.is_multiple_of(pieces.max(2) - 1) && joins <= 5 * (pieces - 1), "{joins}");
    }
    // More false magic numbers in one block than chance ever puts there.
    let (outcome, joins) = read_cut(&encoded, 10);
    assert_eq!((outcome.unwrap_err().kind(), joins), (Kind::Corrupt, 8));
}

#[test]
fn bzip2_gives_up_on_a_file_of_magic_numbers() {
    let encoded = [&b"BZh9"[..], &bzip2::BLOCK_MAGIC.repeat(100_000)].concat();
    let (outcome, joins) = read_cut(&encoded, 1);
    assert_eq!((outcome.unwrap_err().kind(), joins), (Kind::Corrupt, 8));
}

#[test]
fn reads_xz() {
    let plain = sample(6 << 20, 6);
    let blocks = check("blocks", run("xz -1 --block-size=1MiB -c", &plain), &plain);
    assert!(blocks.is_none_or(|seekable| count(&seekable) == 6));
    check("threads", run("xz -0 -T2 --block-size=700KiB -c", &plain), &plain);
    check("single", run("xz -0 -c", &plain), &plain);
    for check_type in ["none", "crc32", "sha256"] {
        check(
            check_type,
            run(&format!("xz -0 -C {check_type} -c"), &plain[..99_999]),
            &plain[..99_999],
        );
    }
    check("bcj", run("xz --x86 --lzma2=preset=0 -c", &plain[..99_999]), &plain[..99_999]);
    let mut streams = run("xz -0 --block-size=500KiB -c", &plain[..3 << 20]).unwrap();
    streams.extend([0; 8]);
    streams.extend(run("xz -0 -c", b"").unwrap());
    streams.extend(run("xz -0 -c", &plain[3 << 20..]).unwrap());
    streams.extend([0; 4]);
    let seekable = check("streams", Some(streams.clone()), &plain).unwrap();
    assert_eq!(count(&seekable), 8);
    // What follows hides the index, so it is decoded forward.
    streams.extend(b"garbage");
    let seekable = check("garbage", Some(streams), &plain).unwrap();
    assert!(matches!(seekable.chunks, Chunks::Spooled(_)));
}

#[test]
fn xz_padding_is_read_in_large_steps_and_has_a_limit() {
    let plain = sample(100_000, 16);
    let Some(encoded) = run("xz -0 -c", &plain) else { return };
    let padded = |zeros| MemStorage::new([&encoded[..], &vec![0; zeros]].concat());
    for (zeros, fits) in [(0, true), (4, true), (3 << 20, true), ((3 << 20) + 4, false)] {
        let storage = padded(zeros);
        let outcome = xz::Blocks::within(&storage, xz::Room { padding: 3 << 20, blocks: 99 });
        assert_eq!(outcome.is_ok(), fits, "{zeros}");
        // Steps of 4 bytes to 64 KiB, then one for each 64 KiB; the stream takes a few.
        let reads = 20 + zeros as u64 / (64 << 10);
        assert!(storage.reads() <= reads, "{} reads past {zeros} zeros", storage.reads());
        if let Err(error) = outcome {
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains("ends with zeros"), "{error}");
        }
    }
    // What is not a multiple of four is no padding.
    assert!(xz::Blocks::read(&padded(1001)).is_err());
    // Little padding between many streams is not read in large steps.
    let small = [&run("xz -0 -c", b"").unwrap()[..], &[0; 4]].concat().repeat(1000);
    let storage = MemStorage::new(small.clone());
    xz::Blocks::read(&storage).unwrap();
    assert!(storage.bytes_read() <= 3 * small.len() as u64, "{}", storage.bytes_read());
}

#[test]
fn xz_padding_ends_a_file_read_forward_where_there_is_too_much() {
    use super::forward::Forward;
    let plain = sample(100_000, 19);
    let Some(encoded) = run("xz -0 -c", &plain) else { return };
    let most = usize::try_from(XZ_PADDING_MAX).unwrap();
    for (zeros, streams) in [(most, 2), (most + 4, 1)] {
        let file = [&encoded[..], &vec![0; zeros], &encoded].concat();
        let mut forward =
            Forward::new("x", Arc::new(MemStorage::new(file)), Container::Xz).unwrap();
        let mut decoded = 0;
        while let Some(piece) = forward.next().unwrap() {
            decoded += piece.len();
        }
        assert_eq!(decoded, plain.len() * streams, "past {zeros} zeros");
        assert_eq!(forward.garbage().is_some(), streams == 1, "and that is told");
    }
}

#[test]
fn xz_blocks_of_all_streams_together_have_a_limit() {
    let plain = sample(100_000, 18);
    let Some(stream) = run("xz -0 --block-size=10000 -c", &plain) else { return };
    let empty = run("xz -0 -c", b"").unwrap();
    // Ten blocks in each of two streams, and four streams.
    let file = MemStorage::new([&stream[..], &empty, &stream, &[0; 4], &empty].concat());
    for (blocks, fits) in [(24, true), (23, false), (12, false), (0, false)] {
        let outcome = xz::Blocks::within(&file, xz::Room { padding: 4, blocks });
        assert_eq!(outcome.is_ok(), fits, "{blocks}");
        if let Err(error) = outcome {
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains("too many blocks"), "{error}");
        }
    }
}

#[test]
fn decoding_forward_comes_up_for_air_within_padding() {
    use super::forward::Forward;
    let plain = sample(100_000, 17);
    let Some(encoded) = run("xz -0 -c", &plain) else { return };
    let file = [&encoded[..], &vec![0; 20 << 20], &encoded, &[0; 7]].concat();
    let storage = Arc::new(MemStorage::new(file));
    let mut forward = Forward::new("x", storage.clone(), Container::Xz).unwrap();
    let (mut bytes, mut before) = (Vec::new(), 0);
    while let Some(piece) = forward.next().unwrap() {
        bytes.extend_from_slice(&piece);
        let read = storage.bytes_read();
        assert!(read - before <= 5 << 20, "{} bytes read without a pause", read - before);
        before = read;
    }
    assert!(bytes == plain.repeat(2));
}

#[test]
fn reads_zstd() {
    let plain = sample(9 << 20, 7);
    for words in
        ["zstd -1 -c", "zstd -19 --single-thread --no-check -c", "pzstd -c", "zstd -1 --long=27 -c"]
    {
        check(words, run(words, &plain), &plain);
    }
    check("content size", run_on_file("zstd -1 -c", &plain), &plain);
    let (mut frames, mut entries, mut seekables) = (Vec::new(), Vec::new(), Vec::new());
    for (number, part) in plain.chunks(70_000).enumerate() {
        // Every other one by a stream, which does not tell its size.
        let frame = match number % 2 {
            0 => zstd::bulk::compress(part, 1).unwrap(),
            _ => zstd::stream::encode_all(part, 1).unwrap(),
        };
        entries.extend((frame.len() as u32).to_le_bytes());
        entries.extend((part.len() as u32).to_le_bytes());
        seekables.extend(&frame);
        frames.extend([0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
        frames.extend(frame);
    }
    check("skippable frames", Some(frames), &plain);
    let seekable = check("frames", Some(seekables.clone()), &plain).unwrap();
    assert!((9..=20).contains(&count(&seekable)), "{}", count(&seekable));
    let table = |entries: &[u8]| {
        let mut table = 0x184d_2a5e_u32.to_le_bytes().to_vec();
        table.extend((entries.len() as u32 + 9).to_le_bytes());
        table.extend(entries);
        table.extend((entries.len() as u32 / 8).to_le_bytes());
        table.push(0);
        table.extend(0x8f92_eab1_u32.to_le_bytes());
        table
    };
    let good = [&seekables[..], &table(&entries)].concat();
    let seekable = check("seek table", Some(good), &plain).unwrap();
    assert!((9..=11).contains(&count(&seekable)), "{}", count(&seekable));
    // A table that does not add up is not used; one that lies about sizes is found out.
    let short = [&seekables[..], &table(&entries[8..])].concat();
    check("wrong seek table", Some(short), &plain);
    entries[4] ^= 1;
    let lying = [&seekables[..], &table(&entries)].concat();
    assert!(survey(&lying).1.is_some());
}

#[test]
fn reads_lz4() {
    let plain = sample(9 << 20, 8);
    for words in [
        "lz4 -B4 -c",
        "lz4 -B7 -c",
        "lz4 -B5 -BX -c",
        "lz4 -B4 -BD -c",
        "lz4 -B7 -BD -BX -c",
        "lz4 -l -c",
        "lz4 --no-frame-crc -c",
        "lz4 -9 -c",
    ] {
        let seekable = check(words, run(words, &plain), &plain);
        let least = if words.contains("BD") || words.contains("-l") { 1 } else { 3 };
        assert!(seekable.is_none_or(|seekable| count(&seekable) >= least), "{words}");
    }
    for words in ["lz4 --content-size -c", "lz4 -BD --content-size -c"] {
        check(words, run_on_file(words, &plain), &plain);
    }
    let mut frames = vec![0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    for (number, part) in plain.chunks(1_000_000).enumerate() {
        frames.extend(run(["lz4 -c", "lz4 -l -c", "lz4 -BD -c"][number % 3], part).unwrap());
        frames.extend(run("lz4 -c", b"").unwrap());
    }
    check("frames", Some([&frames[11..], &frames, &[0; 99]].concat()), &plain.repeat(2));
    let noise: Vec<u8> =
        sample(1 << 20, 2).iter().enumerate().map(|(i, b)| b ^ ((i * i) >> 7) as u8).collect();
    // A block may be as large as its frame says, and no larger.
    for (len, fits) in [(64 << 10, true), ((64 << 10) + 1, false)] {
        let mut frame = vec![0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82];
        frame.extend((len as u32 | 1 << 31).to_le_bytes());
        frame.extend(&plain[..len]);
        frame.extend([0; 4]);
        let (bytes, error, _) = survey(&frame);
        assert_eq!((error.is_none(), bytes == plain[..len]), (fits, fits), "{error:?}");
    }
    check("stored", run("lz4 -B4 -BX -c", &noise), &noise);
}

#[test]
fn spools_what_has_a_giant_chunk_and_nothing_else() {
    let large = sample(1 << 20, 9).repeat(65);
    let limit = &large[..64 << 20];
    for words in ["xz -0 -c", "zstd -1 -c", "lz4 -B7 -BD -c"] {
        let seekable = check(words, run(words, &large), &large);
        assert!(seekable.is_none_or(|seekable| matches!(seekable.chunks, Chunks::Spooled(_))));
    }
    if let Some(encoded) = run_on_file("zstd -1 -c", limit) {
        let (bytes, error, seekable) = survey(&encoded);
        assert!(error.is_none() && bytes == limit);
        assert_eq!(count(&seekable), 1, "64 MiB are one chunk");
    }
    // Streamed, a frame may ask for a window of 128 MiB and no more.
    for (log, fits) in [(27, true), (28, false)] {
        let Some(encoded) = run(&format!("zstd -1 --long={log} -c"), &large) else { continue };
        let (bytes, error, _) = survey(&encoded);
        assert_eq!(error.as_ref().map(Error::kind), (!fits).then_some(Kind::Unsupported));
        assert!(if fits { bytes == large } else { bytes.is_empty() });
    }
    // A giant after other frames: what was delivered is not delivered again.
    let first = sample(3 << 20, 10);
    let frames =
        [zstd::encode_all(&first[..], 1).unwrap(), zstd::encode_all(&large[..], 1).unwrap()];
    check("late giant", Some(frames.concat()), &[first, large].concat());
}

#[test]
fn spools_gzip_with_a_giant_block() {
    // Fixed Huffman codes, one block: 'a', then copies of 258 bytes from one byte before.
    let copies = 66 << 12;
    let mut bits = Bits::default();
    bits.put(1, 1);
    bits.put(1, 2);
    bits.code(0x30 + u32::from(b'a'), 8);
    for _ in 0..copies {
        bits.code(0b1100_0101, 8);
        bits.code(0, 5);
    }
    bits.code(0, 7);
    let plain = vec![b'a'; 1 + copies * 258];
    let mut encoded = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    encoded.extend(bits.bytes);
    encoded.extend(crc32fast::hash(&plain).to_le_bytes());
    encoded.extend((plain.len() as u32).to_le_bytes());
    let seekable = check("giant block", Some(encoded), &plain).unwrap();
    assert!(matches!(seekable.chunks, Chunks::Spooled(_)));
}

#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    used: u32,
}

impl Bits {
    fn put(&mut self, value: u32, count: u32) {
        for place in 0..count {
            if self.used.is_multiple_of(8) {
                self.bytes.push(0);
            }
            *self.bytes.last_mut().unwrap() |= ((value >> place & 1) as u8) << (self.used % 8);
            self.used += 1;
        }
    }

    /// A Huffman code, whose highest bit comes first.
    fn code(&mut self, value: u32, count: u32) {
        (0..count).rev().for_each(|place| self.put(value >> place & 1, 1));
    }
}

#[test]
fn the_temporary_file_has_a_limit() {
    use super::spool::{Room, Spool};
    let plain = sample(3 << 20, 11);
    let Some(encoded) = run("zstd -1 -c", &plain) else { return };
    for (limit, fits) in [(3 << 20, true), ((3 << 20) - 1, false)] {
        let file = tempfile::tempfile().unwrap();
        let room = Room { file, directory: std::path::Path::new("/scratch"), limit };
        let spool = Spool::within("x", store(&encoded), Container::Zstd, room).unwrap();
        let mut buffer = vec![0; plain.len()];
        let outcome = spool.read_exact_at(&mut buffer, 0);
        match fits {
            true => assert!(outcome.is_ok() && buffer == plain),
            false => {
                let error = outcome.unwrap_err();
                assert_eq!(error.kind(), Kind::Unsupported);
                assert!(error.to_string().contains("/scratch") && error.hint().is_some());
                spool.read_exact_at(&mut buffer[..1000], 0).unwrap();
            }
        }
    }
}

/// A file of each container with checksums, of some chunks.
fn checked_files(plain: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let tools = [
        "gzip -1 -c",
        "bzip2 -1 -c",
        "xz -0 --block-size=300KiB -c",
        "zstd -1 -c",
        "lz4 -B4 -c",
        "lz4 -B4 -BD -BX -c",
    ];
    tools.iter().filter_map(|tool| Some((*tool, run(tool, plain)?))).collect()
}

#[test]
fn serves_what_comes_before_the_cut() {
    let plain = sample(2 << 20, 12);
    for (tool, encoded) in checked_files(&plain) {
        for tenth in 1..10 {
            let cut = &encoded[..encoded.len() * tenth / 10];
            let (bytes, error, seekable) = survey(cut);
            let error = error.unwrap_or_else(|| panic!("{tool} cut at {tenth}/10: no error"));
            assert!(error.is_damage(), "{tool}: {error}");
            assert!(plain.starts_with(&bytes), "{tool} cut at {tenth}/10");
            // All but what the last chunk holds (a block of bzip2 -1 or of xz, a zstd file).
            let part = plain.len() * tenth / 10;
            let lost = part - part.min(seekable.len() as usize);
            assert!(tool.starts_with("zstd") || lost < 900_000, "{tool} {tenth}: {lost} lost");
            let again = saved(&seekable, cut);
            for seekable in [seekable, again] {
                let compressed = Compressed::new("x", store(cut), seekable, cache(), 0).unwrap();
                let sure = &bytes[..compressed.len() as usize];
                if !sure.is_empty() {
                    check_reads(&compressed, sure, 1, 10);
                }
            }
        }
        for end in [1, 2, 4, 8] {
            let (bytes, error, _) = survey(&encoded[..encoded.len() - end]);
            assert!(error.is_some() && plain.starts_with(&bytes), "{tool} without {end} bytes");
        }
    }
}

#[test]
fn a_flipped_byte_never_goes_unnoticed_nor_gives_other_bytes() {
    let plain = sample(600_000, 13);
    for (tool, encoded) in checked_files(&plain) {
        let mut places: Vec<usize> = (0..40).map(|n| encoded.len() * n / 40 + n).collect();
        places.extend((1..30).chain(encoded.len() - 30..encoded.len()));
        for place in places {
            let mut bad = encoded.clone();
            bad[place] ^= 1 << (place % 8);
            if Container::recognise(&bad).is_none() {
                continue;
            }
            let (bytes, error, seekable) = survey(&bad);
            saved(&seekable, &bad);
            let sure = seekable.len() as usize;
            assert!(bytes[..sure] == plain[..sure], "{tool}: byte {place} flipped, wrong bytes");
            assert!(error.is_some() || bytes == plain, "{tool}: byte {place} flipped, unnoticed");
        }
    }
}

#[test]
fn hostile_seek_points_are_refused_or_harmless() {
    let plain = sample(5 << 18, 14);
    for (tool, encoded) in checked_files(&plain) {
        let (_, _, seekable) = survey(&encoded);
        let mut good = Vec::new();
        seekable.write(&mut good);
        let parse =
            |bytes: &[u8]| Seekable::parse(&mut Reader::new("index", bytes), encoded.len() as u64);
        for len in (0..good.len()).step_by(good.len() / 200 + 1) {
            assert!(parse(&good[..len]).is_err(), "{tool}: {len} bytes");
        }
        let places = (0..120.min(good.len())).chain((120..good.len()).step_by(good.len() / 20 + 1));
        for place in places {
            for flip in [1, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[place] ^= flip;
                let Ok(seekable) = parse(&bad) else { continue };
                let len = seekable.len();
                // Spooled data is decoded anew for each, which the other tests do.
                if matches!(seekable.chunks, Chunks::Spooled(_)) {
                    continue;
                }
                let file = store(&encoded);
                let compressed = Compressed::new("x", file, seekable, cache(), 0).unwrap();
                let _ = compressed.read_exact_at(&mut [0; 10], len.saturating_sub(10));
                let _ = compressed.read_exact_at(&mut [0; 10], len / 2);
            }
        }
    }
    let mut other = Vec::new();
    let len = (64 << 20) + 1;
    for (len, fits) in [(len - 1, true), (len, false)] {
        let extent = Extent { decoded: 0, start: 0, end: 9, detail: 0 };
        let chunks = Chunks::Extents(vec![extent]);
        other.clear();
        Seekable { container: Container::Zstd, len, chunks }.write(&mut other);
        assert_eq!(Seekable::parse(&mut Reader::new("index", &other), 9).is_ok(), fits);
        assert!(Seekable::parse(&mut Reader::new("index", &other), 8).is_err());
    }
}

#[test]
fn reading_in_order_reads_each_compressed_byte_at_most_twice() {
    // A MiB of this takes less in the file than what is read at once.
    let text: Vec<u8> =
        (0..900_000).flat_map(|n| format!("line {} of a text\n", n / 2).into_bytes()).collect();
    for (plain, name) in [(text, "text"), (sample(20 << 20, 15), "sample")] {
        for words in [
            "gzip -6 -c",
            "bzip2 -9 -c",
            "xz -0 --block-size=1MiB -c",
            "zstd -1 -c",
            "pzstd -1 -c",
            "lz4 -B4 -c",
        ] {
            let Some(encoded) = run(words, &plain) else { continue };
            let len = encoded.len() as u64;
            let container = Container::recognise(&encoded).unwrap();
            let storage = Arc::new(MemStorage::new(encoded));
            let mut survey = Survey::start("x", storage.clone(), container).unwrap();
            while survey.next_piece().unwrap().is_some() {}
            let surveyed = storage.bytes_read();
            // A little more: where blocks of bzip2 start is looked up in the file.
            let twice = 2 * len + len / 20 + 4096;
            assert!(surveyed <= twice, "{name}, {words}: {surveyed} of {len} bytes, surveyed");
            let seekable = survey.finish();
            let compressed = Compressed::new("x", storage.clone(), seekable, cache(), 0).unwrap();
            let mut buffer = vec![0; 128 << 10];
            for start in (0..plain.len()).step_by(buffer.len()) {
                let part = buffer.len().min(plain.len() - start);
                compressed.read_exact_at(&mut buffer[..part], start as u64).unwrap();
                assert!(buffer[..part] == plain[start..start + part]);
            }
            let read = storage.bytes_read() - surveyed;
            assert!(read <= twice, "{name}, {words}: {read} of {len} bytes, read in order");
        }
    }
}
