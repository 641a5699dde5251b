//! Compares concurrent scans of several segments with scans from the first header to the last.
//!
//! The archives are random: extensions, data that looks like headers, global headers, ends in the
//! middle, damage. Some reads fail.

use std::ops::ControlFlow;

use super::chain::Walk;
use super::header::{BLOCK, BLOCK_LEN};
use super::member::Nesting;
use super::scan::{Grain, forward, uncompressed, uncompressed_with_grain};
use super::source::Windowed;
use crate::error::{Error, Kind, Result};
use crate::formats::index::NewTree;
use crate::formats::index::index_parts::IndexParts;
use crate::formats::index::members::Members;
use crate::formats::index::notes::Notes;
use crate::formats::index::{
    Allowance, ArchiveRange, Content, DirectoryId, FinishedTree, Index, in_memory,
};
use crate::formats::limits::NESTING_MAX;
use crate::formats::{IndexPolicy, OpenOptions};
use crate::progress::Progress;
use crate::storage::{MemStorage, Storage};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::vfs::{Finding, Ino, Scratch};

/// Segments of a few members, so that an archive of half a megabyte has a hundred of them.
const FINE: Grain = Grain { sample: 3, per_segment: 2, segment_min: 1 << 10, segment_max: 8 << 10 };

/// Pseudorandom numbers, the same for the same seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

/// One header and its data, padded.
fn member(name: &[u8], kind: u8, link: &[u8], data: &[u8]) -> Vec<u8> {
    let mut header = [0; BLOCK];
    header[..name.len()].copy_from_slice(name);
    header[100..108].copy_from_slice(b"0000644\0");
    header[108..116].copy_from_slice(b"0000007\0");
    header[116..124].copy_from_slice(b"0000010\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
    header[136..148].copy_from_slice(b"00000000001\0");
    header[156] = kind;
    header[157..157 + link.len()].copy_from_slice(link);
    header[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut header);
    let mut bytes = header.to_vec();
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

/// Makes the checksum right.
fn seal(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header[..BLOCK].iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn record(keyword: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {keyword}={value}\n");
    let mut len = rest.len() + 1;
    while format!("{len}{rest}").len() != len {
        len += 1;
    }
    format!("{len}{rest}").into_bytes()
}

/// An archive of about `count` members, with everything that could confuse a scan.
fn archive(random: &mut Random, count: u64, depth: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for nth in 0..count {
        let folder = format!("d{}", random.below(3));
        let name = match random.below(5) {
            // Nested archives are shown here too.
            0 => format!("{folder}/d{}/{}", random.below(3), random.below(4)),
            1 => format!("{folder}/{}", random.below(4)),
            _ => format!("{folder}/{nth:04}-{}", random.below(count)),
        };
        let len = random.below(20 << 10);
        match random.below(40) {
            0..4 => {
                let long = format!("d/{}", "long/".repeat(10 + random.below(30) as usize));
                bytes.extend(member(b"pax", b'x', b"", &record("path", &format!("{long}{nth}"))));
            }
            4..8 => {
                let long = format!("{}{nth}\0", "gnu/".repeat(30 + random.below(90) as usize));
                bytes.extend(member(b"././@LongLink", b'L', b"", long.as_bytes()));
            }
            8 => {
                let text = record("SCHILY.xattr.user.number", &nth.to_string());
                bytes.extend(member(b"pax", b'x', b"", &text));
            }
            _ => {}
        }
        let data = match random.below(40) {
            // Data that looks like an archive, complete or not.
            0..8 if depth < 2 => archive(random, 1 + len / 4096, depth + 1),
            8..11 => member(b"decoy", b'0', b"", b"")[..BLOCK].repeat(1 + len as usize / BLOCK),
            11..13 => [random.bytes(len), member(b"end", b'0', b"", b"x")].concat(),
            13..15 => vec![0; len as usize],
            _ => random.bytes(len),
        };
        match random.below(60) {
            0..2 => bytes.extend(member(name.as_bytes(), b'5', b"", b"")),
            2 => bytes.extend(member(name.as_bytes(), b'2', b"../target", b"")),
            3..5 => bytes.extend(member(name.as_bytes(), b'1', b"d0/0001-1", b"")),
            5 => bytes.extend(member(b"a label", b'V', b"", &data)),
            6 if random.below(4) == 0 => {
                let uid = record("uid", &random.below(3000).to_string());
                bytes.extend(member(b"global", b'g', b"", &uid));
            }
            7 => bytes.extend(member(b"global", b'g', b"", &record("comment", "nothing"))),
            8 => bytes.extend(member(b"global", b'g', b"", &record("uid", ""))),
            50 if random.below(4) == 0 => {
                let name = record("GNU.sparse.name", "of all that follow");
                bytes.extend(member(b"global", b'g', b"", &name));
            }
            9 => bytes.extend([0; 2 * BLOCK]),
            10 => bytes.extend([0; BLOCK].repeat(random.below(40) as usize)),
            // Damage: not a header, an invalid path, invalid records.
            11 => {
                let blocks = random.below(5);
                bytes.extend(random.bytes(BLOCK_LEN * blocks));
            }
            12 => bytes.extend(member(b"pax", b'x', b"", b"not a record")),
            13 => {
                let path = record("path", &"p/".repeat(20_000));
                bytes.extend(member(b"pax", b'x', b"", &path));
                bytes.extend(member(b"short", b'0', b"", &data));
            }
            // Several archives and directories with the same name.
            14..20 => bytes.extend(member(format!("{name}.tar").as_bytes(), b'0', b"", &data)),
            20..24 => {
                let name = format!("{folder}.tar");
                bytes.extend(member(name.as_bytes(), b'0', b"", &data));
            }
            _ => bytes.extend(member(name.as_bytes(), b'0', b"", &data)),
        }
    }
    match random.below(4) {
        0 => bytes.truncate(bytes.len() - random.below(bytes.len() as u64 / 4 + 1) as usize),
        1 => {}
        _ => bytes.extend([0; 2 * BLOCK]),
    }
    if random.below(5) == 0 && !bytes.is_empty() {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 0x55;
    }
    bytes
}

fn random_archive(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    archive(&mut random, 60, 0)
}

/// The index of a tree, for an archive of unlimited length.
fn indexed(finished: FinishedTree) -> Index {
    in_memory(finished, u64::MAX, "index", &Arc::new(Allowance::new(1 << 20))).unwrap()
}

/// The parts of the index of a tree, and its findings.
fn apart(finished: FinishedTree) -> (IndexParts, Vec<Finding>) {
    let findings = finished.findings.clone();
    (IndexParts::of_index(&indexed(finished)).unwrap(), findings)
}

/// The tree of an archive, scanned strictly from header to header.
fn sequential(storage: &dyn Storage, nesting: Nesting) -> Result<FinishedTree> {
    let mut tree = NewTree::default();
    let mut level =
        vec![ArchiveRange { base: DirectoryId::ROOT, depth: 0, start: 0, end: storage.len() }];
    for depth in 0.. {
        let nesting = if depth < NESTING_MAX { nesting } else { Nesting::Ignore };
        let mut inner = Vec::new();
        for archive in level {
            let mut source = Windowed::new(storage, archive.end);
            let mut members = Members::default();
            let mut walk = Walk::new(archive.start, archive.end, nesting);
            let mut notes = Notes::default();
            while walk.step(&mut source, &mut members, &mut notes)? {}
            tree.note(archive.base, notes);
            tree.add(archive, &members, &mut inner)?;
        }
        level = inner;
        if level.is_empty() {
            break;
        }
    }
    tree.finish()
}

#[test]
fn a_scan_in_many_places_finds_what_a_scan_from_the_start_finds() {
    let (mut members, mut noted) = (0, 0);
    for seed in 0..200 {
        let storage = MemStorage::new(random_archive(seed));
        for nesting in [Nesting::Ignore, Nesting::Recognize] {
            let expected = sequential(&storage, nesting).unwrap();
            let found =
                uncompressed_with_grain(&storage, nesting, FINE, &Progress::default()).unwrap();
            assert_eq!(found.notes, expected.notes, "seed {seed}, {nesting:?}");
            members += found.len();
            noted += found.notes.len();
            assert!(apart(found) == apart(expected), "seed {seed}, {nesting:?}: another tree");
        }
    }
    // Otherwise this would compare nothing.
    assert!(members > 10_000 && noted > 100, "{members} members, {noted} notes");
}

/// Everything that an index shows, node by node.
fn shape(index: &Index) -> Vec<String> {
    let shape = (0..index.len()).map(|id| {
        let node = index.node(id).unwrap();
        let mut buffer = [0; 255];
        let name = index.name(&node, &mut buffer).unwrap().escape_ascii();
        let content = match node.content() {
            Content::Symlink { target } => {
                index.target(target, node.size).unwrap().escape_ascii().to_string()
            }
            Content::Sparse { map } => {
                let map = index.map(id, &node, map).unwrap();
                let mut segments = Vec::new();
                let visit = &mut |segment| {
                    segments.push(segment);
                    ControlFlow::Continue(())
                };
                index.segments(&map, 0, visit).unwrap();
                format!("{segments:?}")
            }
            other => format!("{other:?}"),
        };
        let said = (node.permissions(), node.uid, node.gid, node.seconds, node.nanoseconds);
        let mut xattrs = Vec::new();
        let visit = &mut |name: &[u8], value| {
            xattrs.push((name.to_vec(), index.value(value)?));
            Ok(ControlFlow::Continue(()))
        };
        index.xattrs_of(id, visit).unwrap();
        let names = index.link_count(id).unwrap();
        format!("{name} {said:?} {} {content} {xattrs:?} {names}", node.size)
    });
    shape.collect()
}

#[test]
fn a_scan_in_the_order_of_the_bytes_finds_what_a_scan_level_by_level_finds() {
    for seed in 0..200 {
        let storage = MemStorage::new(random_archive(seed));
        let levels = sequential(&storage, Nesting::Recognize).unwrap();
        let mut source = Windowed::new(&storage, u64::MAX);
        let bytes = forward(&mut source, Nesting::Recognize).unwrap();
        let (levels, bytes) = (shape(&indexed(levels)), shape(&indexed(bytes)));
        let differs = levels.iter().zip(&bytes).find(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(levels.len(), bytes.len(), "seed {seed}");
    }
}

/// A file of one byte that belongs to `uid`.
fn owned_file(name: &[u8], uid: u32) -> Vec<u8> {
    let mut file = member(name, b'0', b"", b"x");
    file[108..116].copy_from_slice(format!("{uid:07o}\0").as_bytes());
    seal(&mut file[..BLOCK]);
    file
}

#[test]
fn the_owner_of_an_implied_directory_does_not_depend_on_the_order_of_the_scan() {
    let end = || vec![0; 2 * BLOCK];
    // Both `y/z.tar` and `z.tar` in `y.tar` are shown as `y/z`, and their files imply `y/z/b`.
    let inner = [owned_file(b"b/f", 2), end()].concat();
    let middle = [member(b"z.tar", b'0', b"", &inner), end()].concat();
    let other = [owned_file(b"b/g", 1), end()].concat();
    let outer = [member(b"y.tar", b'0', b"", &middle), member(b"y/z.tar", b'0', b"", &other)];
    let storage = MemStorage::new([outer.concat(), end()].concat());
    let levels = sequential(&storage, Nesting::Recognize).unwrap();
    let mut source = Windowed::new(&storage, u64::MAX);
    let bytes = forward(&mut source, Nesting::Recognize).unwrap();
    let levels = shape(&indexed(levels));
    assert!(levels.iter().any(|node| node.starts_with("b (493, 1, ")), "{levels:?}");
    assert_eq!(shape(&indexed(bytes)), levels);
}

/// Storage whose read number `countdown` fails.
struct Failing<'s> {
    storage: &'s MemStorage,
    countdown: AtomicU64,
}

impl Storage for Failing<'_> {
    fn len(&self) -> u64 {
        self.storage.len()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        if self.countdown.fetch_sub(1, Ordering::Relaxed) == 1 {
            return Err(Error::io("injected fault", std::io::Error::other("no reason")));
        }
        self.storage.read_exact_at(buffer, offset)
    }
}

#[test]
fn a_read_that_fails_gives_an_error_and_never_another_tree() {
    let (mut failed, mut fine) = (0, 0);
    for seed in 0..10 {
        let storage = MemStorage::new(random_archive(seed));
        let nesting = Nesting::Recognize;
        let expected = apart(sequential(&storage, nesting).unwrap());
        storage.fail_next(1);
        let first = uncompressed_with_grain(&storage, nesting, FINE, &Progress::default());
        assert_eq!(first.err().unwrap().kind(), Kind::Io, "seed {seed}");
        let before = storage.reads();
        uncompressed_with_grain(&storage, nesting, FINE, &Progress::default()).unwrap();
        let reads = storage.reads() - before;
        for nth in (1..=reads).step_by(1 + reads as usize / 40) {
            let failing = Failing { storage: &storage, countdown: AtomicU64::new(nth) };
            match uncompressed_with_grain(&failing, nesting, FINE, &Progress::default()) {
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Io, "seed {seed}, read {nth}: {error}");
                    failed += 1;
                }
                // The read was past what turned out to be the end, and not needed.
                Ok(found) => {
                    assert!(apart(found) == expected, "seed {seed}, read {nth}: another tree");
                    fine += 1;
                }
            }
        }
    }
    assert!(failed > 10 * fine && failed > 100, "{failed} failed, {fine} did not");
}

/// An archive as large as the training set of ImageNet that takes no space: a header at each
/// multiple of `STRIDE`, and generated data. It counts bytes and reads, and how many reads run at
/// once. Each read yields, so that others can start before it ends, as on a slow file system.
struct Endless {
    headers: u64,
    bytes: AtomicU64,
    reads: AtomicU64,
    under_way: AtomicU64,
    most: AtomicU64,
}

const STRIDE: u64 = 110 << 10;

impl Storage for Endless {
    fn len(&self) -> u64 {
        self.headers * STRIDE + 2 * BLOCK_LEN
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        let under_way = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(under_way, Ordering::Relaxed);
        for _ in 0..4 {
            std::thread::yield_now();
        }
        let end = (offset + buffer.len() as u64).min(self.headers * STRIDE);
        buffer.fill(if offset < self.headers * STRIDE { b'#' } else { 0 });
        for number in offset.div_ceil(STRIDE)..end.div_ceil(STRIDE) {
            let name = format!("n{:08}/n{number:08}.JPEG", number / 1300);
            let mut header = member(name.as_bytes(), b'0', b"", b"");
            let size = format!("{:011o}\0", STRIDE - BLOCK_LEN - 7);
            header[124..136].copy_from_slice(size.as_bytes());
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            let at = (number * STRIDE - offset) as usize;
            let len = BLOCK.min(buffer.len() - at);
            buffer[at..at + len].copy_from_slice(&header[..len]);
        }
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_large_archive_is_scanned_by_its_headers_with_many_reads_under_way() {
    let [bytes, reads, under_way, most] = Default::default();
    let archive = Endless { headers: 200_000, bytes, reads, under_way, most };
    let index = uncompressed(&archive, Nesting::Ignore, &Progress::default()).unwrap();
    assert_eq!(index.len(), 1 + 200_000 + 200_000_usize.div_ceil(1300));
    assert_eq!(index.notes, [""; 0]);
    let [bytes, reads, most] = [&archive.bytes, &archive.reads, &archive.most]
        .map(|counter| counter.load(Ordering::Relaxed));
    // A header costs a read of 2 KiB, and each segment searches some data for its first header.
    assert!(bytes < archive.len() / 20, "{bytes} bytes read of {}", archive.len());
    assert!(reads < 300_000, "{reads} reads for 200,000 headers");
    assert!(most >= 8, "{most} reads under way at once");
}

#[test]
fn reports_members_that_it_cannot_show_but_no_label() {
    let mut device = member(b"device", b'3', b"", b"");
    device[329..337].copy_from_slice(b"0010000\0");
    device[337..345].copy_from_slice(b"0000001\0");
    seal(&mut device);
    let bytes = [
        member(b"label", b'V', b"", b""),
        member(b"rest", b'M', b"", b"bytes"),
        member(b"names", b'N', b"", b"Rename a to b\n"),
        member(b"acl", b'A', b"", b"user::rw-"),
        device,
        member(b"file", b'0', b"", b"data"),
        vec![0; 2 * BLOCK],
    ];
    let storage = MemStorage::new(bytes.concat());
    let index = uncompressed(&storage, Nesting::Ignore, &Progress::default()).unwrap();
    let expected = [
        "left out 1: access lists of a Sun tar, such as \"acl\"",
        "left out 1: devices with numbers too large for Linux, such as \"device\"",
        "left out 1: lists of new names of an old GNU tar, such as \"names\"",
        "left out 1: parts of files that began on another volume, such as \"rest\"",
    ];
    assert_eq!(index.notes, expected);
    assert_eq!(index.len(), 2, "the root and the file");
}

#[test]
fn a_long_name_ends_at_its_nul_and_not_where_its_size_says() {
    let name = "n".repeat(150);
    let mut long = member(b"././@LongLink", b'L', b"", name.as_bytes());
    long[124..136].copy_from_slice(b"00000000002\0");
    seal(&mut long[..BLOCK]);
    let bytes = [long, member(b"nn", b'0', b"", b"data"), vec![0; 2 * BLOCK]].concat();
    let storage = MemStorage::new(bytes);
    let index = uncompressed(&storage, Nesting::Ignore, &Progress::default()).unwrap();
    let name = crate::vfs::Name::parse(name.as_bytes()).unwrap();
    assert_eq!(index.notes, [""; 0]);
    let found = indexed(index).find(0, (1, 1), name).unwrap();
    assert_eq!(found.map(|(id, _)| id), Some(1));
}

#[test]
fn an_index_of_a_copy_allows_no_direct_reads() {
    let work = tempfile::tempdir().unwrap();
    let [archive, copy] = ["one", "other"].map(|directory| {
        std::fs::create_dir(work.path().join(directory)).unwrap();
        work.path().join(directory).join("data.tar")
    });
    let bytes = [member(b"a", b'0', b"", b"data"), vec![0; 2 * BLOCK]].concat();
    std::fs::write(&archive, &bytes).unwrap();
    std::fs::write(&copy, &bytes).unwrap();
    let time = std::fs::metadata(&archive).unwrap().modified().unwrap();
    std::fs::File::options().write(true).open(&copy).unwrap().set_modified(time).unwrap();
    let direct = |path: &std::path::Path, index_policy| {
        let options = OpenOptions { index_policy, ..OpenOptions::default() };
        let tree = crate::formats::open(&[path.to_owned()], &options, &Progress::default());
        let (tree, mut count) = (tree.unwrap(), 0);
        tree.stored_files(&mut |_, _| count += 1).unwrap();
        let mut scratch = Scratch::default();
        let read = tree.read(Ino::new(2).unwrap(), 0, 9, &mut scratch).unwrap();
        assert_eq!(read.as_slice(), b"data");
        count
    };
    assert_eq!(direct(&archive, IndexPolicy::Save), 1);
    let index = |path: &std::path::Path| path.with_file_name("data.tar.archfs-index");
    std::fs::copy(index(&archive), index(&copy)).unwrap();
    assert_eq!(direct(&archive, IndexPolicy::SaveIfWorthwhile), 1);
    assert_eq!(direct(&copy, IndexPolicy::SaveIfWorthwhile), 0);
    assert_eq!(direct(&copy, IndexPolicy::Save), 1);
    assert_eq!(direct(&copy, IndexPolicy::SaveIfWorthwhile), 1);
}
