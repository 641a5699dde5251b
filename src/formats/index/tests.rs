//! Tests of indexes in memory and in files: they survive a round trip, and hostile ones are
//! rejected or harmless.
//!
//! `refused` tests the rules of `check`. `tests/reading/tar_index.rs` tests saved indexes
//! as a user meets them.

use std::collections::HashSet;
use std::ops::ControlFlow;

use super::blocks::BLOCK;
use super::index_parts::{IndexParts, read, sealed, without_sums};
use super::layout::{START, TAIL};
use super::members::{Body, Inner, Kind, Member, Members, Parts, Segment};
use super::*;
use crate::formats::limits::{MEMBER_SEGMENTS_MAX, MEMBER_XATTRS_MAX};
use crate::spilled::Spill;
use crate::storage::{Faults, FaultyStorage, InMemory, MemStorage, Storage};
use crate::sync::Arc;
use crate::vfs::Timestamp;

mod caps;
mod refused;

/// Length of the archive that these indexes belong to, bytes.
const ARCHIVE: u64 = 1 << 20;

/// All of an archive.
const WHOLE: ArchiveRange =
    ArchiveRange { base: DirectoryId::ROOT, depth: 0, start: 0, end: u64::MAX };

struct Packer {
    members: Members,
}

impl Packer {
    fn add(&mut self, kind: Kind, path: &str, link: &str, body: Body, parts: (u64, Parts<'_>)) {
        let (size, parts) = parts;
        let member = Member {
            permissions: 0o640,
            uid: 1,
            gid: 4_000_000_000,
            size,
            modified: Timestamp { seconds: -5, nanoseconds: 999_999_999 },
            body,
            ..Member::new(0, kind)
        };
        let (path, link) = (path.as_bytes(), link.as_bytes());
        self.members.push(member, Parts { path, link, ..parts });
    }

    fn simple(&mut self, kind: Kind, path: &str, link: &str) {
        let parts = Parts { path: b"", link: b"", sparse: None, xattrs: Vec::new() };
        let body = match kind {
            Kind::Regular | Kind::Archive(_) => Body::Stored(4096),
            _ => Body::Device(0x0102_0304),
        };
        let size = if matches!(body, Body::Stored(_)) { 1000 } else { 0 };
        self.add(kind, path, link, body, (size, parts));
    }

    fn sparse(&mut self, path: &str) {
        let segment = |offset, len, archive_offset| Segment { offset, len, archive_offset };
        let map = vec![segment(0, 512, 8192), segment(1 << 40, 100, 8704)];
        let parts = Parts { path: b"", link: b"", sparse: Some(map), xattrs: Vec::new() };
        self.add(Kind::Regular, path, "", Body::Device(0), ((1 << 40) + 4096, parts));
    }

    fn with_xattrs(&mut self, kind: Kind, path: &str, names: &[&str]) {
        let pair = |name: &&str| (name.as_bytes().to_vec(), b"value\0".repeat(name.len()));
        let xattrs = names.iter().map(pair).collect();
        let parts = Parts { path: b"", link: b"", sparse: None, xattrs };
        self.add(kind, path, "", Body::Stored(0), (10, parts));
    }

    fn finished(&self, spill: Spill) -> FinishedTree {
        let mut tree = NewTree::with_limits(spill, MEMBER_SEGMENTS_MAX, MEMBER_XATTRS_MAX);
        tree.add(WHOLE, &self.members, &mut Vec::new()).unwrap();
        let mut finished = tree.finish().unwrap();
        finished.notes = vec!["a note".into(), "another, longer note".into()];
        finished
    }

    /// The parts of the index, for an archive of `ARCHIVE` bytes.
    fn parts(&self) -> IndexParts {
        self.parts_made(Spill::default())
    }

    fn parts_made(&self, spill: Spill) -> IndexParts {
        let allowance = Arc::new(Allowance::new(0));
        let finished = self.finished(spill);
        IndexParts::of_index(&in_memory(finished, ARCHIVE, "index", &allowance).unwrap()).unwrap()
    }
}

/// One of everything that an index can hold, built as a scan builds it.
fn everything() -> IndexParts {
    everything_made(Spill::default())
}

fn everything_made(spill: Spill) -> IndexParts {
    let mut packer = Packer { members: Members::default() };
    packer.with_xattrs(Kind::Directory, ".", &["user.root"]);
    packer.with_xattrs(Kind::Directory, "folder", &["user.a", "user.bb"]);
    for path in ["folder/file", "folder/deep/er/file", "replaced", "replaced", "z", "folder2/a"] {
        packer.simple(Kind::Regular, path, "");
    }
    packer.sparse("folder/sparse");
    packer.sparse("sparse");
    packer.with_xattrs(Kind::Regular, "attributes", &["user.a", "user.bb"]);
    packer.with_xattrs(Kind::Regular, "attributes2", &["security.other"]);
    packer.simple(Kind::Symlink, "link", "../somewhere/else");
    packer.simple(Kind::HardLink, "folder/hard", "folder/file");
    packer.simple(Kind::HardLink, "hard", "folder/hard");
    packer.simple(Kind::Directory, "empty", "");
    packer.simple(Kind::Fifo, "fifo", "");
    packer.simple(Kind::HardLink, "hard-fifo", "fifo");
    packer.simple(Kind::CharDevice, "char", "");
    packer.simple(Kind::BlockDevice, "block", "");
    packer.simple(Kind::Archive(Inner::Separate), "images/one.sqfs", "");
    let key = Key {
        recursive: true,
        len: ARCHIVE,
        modified: (-1, 999_999_999),
        file: FileKey { file_system: 0xef53, inode: 12, changed: (5, 6), owner: 1000 },
        samples: vec![(0, [1; 32]), (512, [2; 32])],
    };
    let seek_points = b"seek points".to_vec();
    IndexParts { key, seek_points, ..packer.parts_made(spill) }
}

#[test]
fn a_tree_made_in_files_is_the_one_made_in_memory() {
    let directory = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    assert_eq!(everything_made(Spill::new(directory, 0)), everything());
}

/// Limits up to which data is checked as a whole, bytes: always, or never.
const ALL: u64 = u64::MAX;
const NOTHING: u64 = 0;

/// Uses everything in an index, and panics on a contradiction. An index that was not checked as a
/// whole may report damage, and may hide some of its nodes.
fn walk(index: &Index, is_checked: bool) -> Result<()> {
    let mut maps = HashSet::new();
    let mut waiting = vec![ROOT];
    let mut seen = 0;
    let (mut buffer, mut failed) = ([0; 255], Ok(()));
    while let Some(id) = waiting.pop() {
        seen += 1;
        assert!(seen <= index.len(), "a node has two parents");
        let outcome = walk_node(index, id, &mut maps, &mut waiting, &mut buffer, is_checked);
        assert!(!is_checked || outcome.is_ok(), "{outcome:?}");
        failed = failed.and(outcome);
    }
    assert!(!is_checked || seen == index.len(), "a node without a parent");
    assert!(
        index
            .nested_archives
            .iter()
            .all(|nested_archive| nested_archive.offset + nested_archive.len <= index.archive_len)
    );
    failed
}

fn walk_node(
    index: &Index,
    id: NodeId,
    maps: &mut HashSet<u64>,
    waiting: &mut Vec<NodeId>,
    buffer: &mut NameBuffer,
    is_checked: bool,
) -> Result<()> {
    let archive_len = index.archive_len;
    let (inode, node) = index.resolve_hard_link(id)?;
    assert!(index.link_count(inode)? > 0);
    assert!(node.nanoseconds < 1_000_000_000);
    index.xattrs_of(inode, &mut |name, value| {
        assert!(!name.is_empty());
        index.value(value)?;
        Ok(ControlFlow::Continue(()))
    })?;
    match node.content() {
        Content::Stored { start } => assert!(start + node.size <= archive_len),
        Content::Sparse { map: number } => {
            let map = index.map(inode, &node, number)?;
            assert!(inode != id || maps.insert(number), "a map of two files");
            let mut previous_end = 0;
            index.segments(&map, 0, &mut |segment| {
                assert!(
                    segment.archive_offset + segment.len <= archive_len
                        && segment.end() <= node.size
                );
                assert!(previous_end <= segment.offset);
                previous_end = segment.end();
                ControlFlow::Continue(())
            })?;
        }
        Content::Directory { first, count } => {
            assert_eq!(inode, id, "a second name of a folder");
            assert_eq!(node.size, u64::from(count));
            for child in first..first + count {
                let (own_node, found) = index.child(id, child)?;
                waiting.push(child);
                let Some(name) = Name::parse(index.name(&own_node, buffer)?) else {
                    assert!(!is_checked);
                    continue;
                };
                let by_name = index.find(id, (first, count), name)?;
                assert!(!is_checked || by_name == Some(found));
            }
        }
        Content::Symlink { target } => {
            assert_eq!(index.target(target, node.size)?.len() as u64, node.size);
            assert!(node.size <= MEMBER_PATH_MAX as u64);
        }
        Content::HardLink { .. } => panic!("a link to a link"),
        Content::Described { entry, .. } => assert!(entry < index.archive_len),
        Content::AfterHeader { header } => assert!(header + node.size <= index.archive_len),
        Content::Device { .. } | Content::Fifo => {}
    }
    Ok(())
}

#[test]
fn an_index_of_everything_survives_a_round_trip() {
    let parts = everything();
    let IndexParts { segments, maps, links, with_xattrs, nested_archives, .. } = &parts;
    assert_eq!((segments.len(), maps.len(), links.len()), (4, 2, 2));
    assert_eq!((with_xattrs.len(), nested_archives.len()), (4, 1));
    for small in [ALL, NOTHING] {
        let found = read(parts.written(), small).unwrap();
        walk(&found.index, true).unwrap();
        assert_eq!(IndexParts::of(&found).unwrap(), parts);
    }
    let empty = Packer { members: Members::default() }.parts();
    assert_eq!(IndexParts::of(&read(empty.written(), ALL).unwrap()).unwrap(), empty);
}

#[test]
fn an_index_cut_anywhere_or_with_any_byte_changed_is_refused() {
    let bytes = everything().written();
    for len in 0..bytes.len() {
        for small in [ALL, NOTHING] {
            assert!(read(bytes[..len].to_vec(), small).is_err(), "{len} of {}", bytes.len());
        }
    }
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(read(bytes.clone(), ALL).is_err(), "byte {at} of {}", bytes.len());
        // Without the check of the whole index, the error comes when the damaged part is used.
        let lazily = read(bytes.clone(), NOTHING).and_then(|found| walk(&found.index, false));
        assert!(lazily.is_err(), "byte {at} of {}", bytes.len());
    }
    for small in [ALL, NOTHING] {
        assert!(read([&bytes[..], b"more"].concat(), small).is_err());
    }
}

#[test]
fn sealing_restores_the_checksums() {
    let bytes = everything().written();
    assert_eq!(sealed(&without_sums(&bytes)), bytes);
}

/// xorshift64.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        let at = self.next(bytes.len());
        let numbers = [0, 1, u64::MAX, i64::MAX as u64, bytes.len() as u64, self.next(200) as u64];
        let number = numbers[self.next(numbers.len())].to_le_bytes();
        let other = self.next(bytes.len());
        let len = self.next(100).min(bytes.len() - at).min(bytes.len() - other);
        match self.next(7) {
            0 | 1 => bytes[at] ^= 1 << self.next(8),
            2 => bytes[at..].iter_mut().zip(&number[..4]).for_each(|(old, new)| *old = *new),
            3 => bytes[at..].iter_mut().zip(&number).for_each(|(old, new)| *old = *new),
            4 => bytes.truncate(at.max(8)),
            5 => bytes.copy_within(other..other + len, at),
            _ => drop(bytes.splice(at..at + len, number)),
        }
    }
}

#[test]
fn sealed_mutations_that_are_accepted_are_safe_to_use() {
    let bytes = without_sums(&everything().written());
    let mut seeded = Seeded(0x9e37_79b9_7f4a_7c15);
    let (mut accepted, mut refused, mut opened) = (0, 0, 0);
    for _ in 0..20_000 {
        let mut mutated = bytes.clone();
        for _ in 0..=seeded.next(3) {
            seeded.mutate(&mut mutated);
        }
        let mutated = sealed(&mutated);
        match read(mutated.clone(), ALL) {
            Ok(file) => {
                accepted += 1;
                walk(&file.index, true).unwrap();
            }
            Err(_) => refused += 1,
        }
        // Whatever the index says, the walk ends, and no file reaches outside the archive.
        if let Ok(file) = read(mutated, NOTHING) {
            opened += 1;
            let _ = walk(&file.index, false);
        }
    }
    // Each outcome occurs: times and owners may have any value, offsets and counts may not.
    let all = (accepted, refused, opened);
    assert!(accepted > 1000 && refused > 1000 && opened > accepted + 500, "{all:?}");
}

#[test]
fn counts_beyond_the_end_of_the_file_take_no_memory() {
    let bytes = without_sums(&everything().written());
    // Wherever a count is, one of these values exceeds what the file holds.
    for at in 0..bytes.len() - 8 {
        for count in [u64::MAX, 1 << 62, 1 << 40, bytes.len() as u64 + 1] {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            let bytes = sealed(&bytes);
            if let Ok(file) = read(bytes.clone(), ALL) {
                walk(&file.index, true).unwrap();
            }
            if let Ok(file) = read(bytes, NOTHING) {
                let _ = walk(&file.index, false);
            }
        }
    }
}

/// A file that is all zeros, except its first and its last bytes.
struct WithHole {
    start: Vec<u8>,
    end: Vec<u8>,
    len: u64,
}

impl Storage for WithHole {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        for (at, byte) in (offset..).zip(buffer) {
            let end = self.len - self.end.len() as u64;
            let (part, from) = if at < end { (&self.start, 0) } else { (&self.end, end) };
            *byte = part.get((at - from) as usize).copied().unwrap_or(0);
        }
        Ok(())
    }
}

#[test]
fn a_file_with_a_hole_larger_than_memory_is_refused() {
    let with_hole = |len: u64, decoded: u64, data: u64| {
        let parts = everything();
        let mut end = parts.written().split_off(parts.written().len() - TAIL);
        end[..8].copy_from_slice(&decoded.to_le_bytes());
        end[16..24].copy_from_slice(&data.to_le_bytes());
        let allowance = Arc::new(Allowance::new(0));
        let file = WithHole { start: parts.key.encoded(), end, len };
        let options = IndexOptions::new("index", &allowance);
        IndexFile::open(Arc::new(file), &options, &|_| Ok(())).err().unwrap().to_string()
    };
    let error = with_hole(1 << 55, ARCHIVE, 1 << 55);
    assert!(error.contains("longer than the index of such an archive"), "{error}");
    let error = with_hole(1 << 55, 1 << 58, 1 << 55);
    assert!(error.contains("longer than the index of such an archive"), "{error}");
    let error = with_hole(1 << 30, 1 << 58, 1 << 30);
    assert!(error.contains("do not make up the file"), "{error}");
}

#[test]
fn reads_nothing_after_a_rejected_key() {
    let bytes = everything().written();
    let start = everything().key.encoded().len() as u64;
    let file = Arc::new(MemStorage::new(bytes));
    let refuse = |_: &Key| Err(Error::corrupt("refused"));
    let allowance = Arc::new(Allowance::new(0));
    let options = IndexOptions::new("index", &allowance);
    let error = IndexFile::open(file.clone(), &options, &refuse).err().unwrap();
    assert_eq!(error.to_string(), "refused");
    assert_eq!(file.bytes_read(), start);
}

#[test]
fn a_large_index_is_read_on_demand_and_released() {
    let mut packer = Packer { members: Members::default() };
    for number in 0..20_000 {
        packer.simple(Kind::Regular, &format!("folder{}/file{number:05}", number % 100), "");
    }
    let bytes = packer.parts().written();
    let whole = bytes.len() as u64;
    let file = Arc::new(MemStorage::new(bytes));
    let allowance = Arc::new(Allowance::new(64 << 20));
    let options = IndexOptions { small: NOTHING, ..IndexOptions::new("index", &allowance) };
    let index = IndexFile::open(file.clone(), &options, &|_| Ok(())).unwrap().index;
    let look_up = || {
        let root = index.node(ROOT).unwrap();
        let Content::Directory { first, count } = root.content() else { panic!("no directory") };
        index.find(ROOT, (first, count), Name::parse(b"folder42").unwrap()).unwrap().unwrap()
    };
    let found = look_up();
    assert!(file.bytes_read() < whole / 8, "{} bytes of {whole}", file.bytes_read());
    let before = file.reads();
    assert_eq!(look_up(), found);
    assert_eq!(file.reads(), before, "what was read once is read again");
    index.release();
    assert_eq!(look_up(), found);
    assert!(file.reads() > before, "nothing was released");
}

#[test]
fn blocks_beyond_the_allowance_are_dropped_and_read_again() {
    let mut packer = Packer { members: Members::default() };
    for number in 0..20_000 {
        packer.simple(Kind::Regular, &format!("{number:05}"), "");
    }
    let bytes = packer.parts().written();
    for (blocks, again) in [(1000, false), (20, true)] {
        let file = Arc::new(MemStorage::new(bytes.clone()));
        let allowance = Arc::new(Allowance::new(blocks * BLOCK as u64));
        let options = IndexOptions { small: NOTHING, ..IndexOptions::new("index", &allowance) };
        let index = IndexFile::open(file.clone(), &options, &|_| Ok(())).unwrap().index;
        walk(&index, true).unwrap();
        let before = file.reads();
        walk(&index, true).unwrap();
        assert_eq!(file.reads() > before, again, "{blocks} blocks allowed");
        assert!(allowance.held() as u64 <= blocks, "{} blocks held", allowance.held());
        drop(index);
        assert_eq!(allowance.held(), 0);
    }
}

#[test]
fn a_file_that_changes_under_the_reader_gives_errors_and_never_other_bytes() {
    let mut packer = Packer { members: Members::default() };
    for number in 0..20_000 {
        packer.simple(Kind::Regular, &format!("{number:05}"), "");
    }
    let bytes = packer.parts().written();
    let file = Arc::new(FaultyStorage::new(Arc::new(InMemory::new(bytes)), 1));
    let allowance = Arc::new(Allowance::new(1 << 20));
    let options = IndexOptions { small: NOTHING, ..IndexOptions::new("index", &allowance) };
    let index = IndexFile::open(file.clone(), &options, &|_| Ok(())).unwrap().index;
    let sizes = |id| index.node(id).map(|node| (node.size, node.content()));
    let right: Vec<_> = (1..20_000).map(|id| sizes(id).unwrap()).collect();
    index.release();
    file.set(Faults { changed: 3, failing: 5, short: 5, ..Faults::default() });
    let (mut same, mut failed) = (0, 0);
    for (id, right) in (1..20_000).zip(&right) {
        match sizes(id) {
            Ok(found) => {
                assert_eq!(found, *right, "node {id}");
                same += 1;
            }
            Err(_) => failed += 1,
        }
    }
    assert!(same > 1000 && failed > 20, "{same} right, {failed} failed");
    // No error is cached.
    file.set(Faults::default());
    assert!((1..20_000).zip(&right).all(|(id, right)| sizes(id).unwrap() == *right));
}

#[test]
fn a_member_takes_at_most_100_bytes_beside_its_name() {
    let mut packer = Packer { members: Members::default() };
    let count = 20_000;
    for number in 0..count {
        let path = format!("folder{}/file{number}", number % 100);
        match number % 10 {
            // More attributes, links and maps than most archives have.
            0 => packer.with_xattrs(Kind::Regular, &path, &["user.same", "user.for-all"]),
            1 => packer.simple(Kind::HardLink, &path, "folder0/file0"),
            2 => packer.sparse(&path),
            _ => packer.simple(Kind::Regular, &path, ""),
        }
    }
    let parts = packer.parts();
    let letters: usize = parts.nodes.iter().map(|node| usize::from(node.name_len)).sum();
    assert!(parts.nodes.len() > count && letters > 8 * count);
    let per_member = (parts.written().len() - letters) as f64 / count as f64;
    assert!(per_member <= 100.0, "{per_member} bytes");
}

#[test]
fn simple_members_take_52_bytes_and_their_names() {
    let mut packer = Packer { members: Members::default() };
    for number in 0..10_000 {
        packer.simple(Kind::Regular, &format!("{number:05}"), "");
    }
    let empty = Packer { members: Members::default() }.parts().written().len();
    let sums = 4 * (10_000 * (52 + 5)) / BLOCK;
    let found = packer.parts().written().len() - empty;
    assert!((found - 10_000 * (52 + 5)).abs_diff(sums) <= 8, "{found} bytes");
}

#[test]
fn the_estimate_covers_every_section_of_an_index() {
    let count = 1000;
    let filled = |kind: &str| {
        let mut packer = Packer { members: Members::default() };
        for number in 0..count {
            let path = format!("{number:05}");
            match kind {
                "sparse files" => packer.sparse(&path),
                "attributes" => packer.with_xattrs(Kind::Regular, &path, &["user.same"]),
                "images" => {
                    let path = format!("images of one directory/{path}.sqfs");
                    packer.simple(Kind::Archive(Inner::Separate), &path, "");
                }
                "links" => {
                    packer.simple(Kind::Regular, &path, "");
                    packer.simple(Kind::HardLink, &format!("other {path}"), &path);
                }
                _ => packer.simple(Kind::Regular, &path, ""),
            }
        }
        let mut finished = packer.finished(Spill::default());
        match kind {
            "notes" => finished.notes = vec!["a note".into(); count],
            "seek points" => finished.seek_points = vec![0; 2 << 20],
            _ => {}
        }
        finished
    };
    for kind in ["files", "sparse files", "attributes", "images", "links", "notes", "seek points"] {
        let finished = filled(kind);
        let (mut bytes, key) = (Vec::new(), Key::default());
        finished.write(&key, ARCHIVE, &mut bytes).unwrap();
        let sums = 4 * bytes.len().div_ceil(BLOCK);
        let (estimate, data) = (finished.estimate(), (bytes.len() - START - TAIL - sums) as u64);
        assert!(estimate >= data, "{kind}: {estimate} of {data} bytes");
        assert!(estimate <= data + data / 10, "{kind}: {estimate} of {data} bytes");
    }
}

#[test]
fn a_second_batch_leaves_the_root_as_its_member_describes_it() {
    let mut tree = NewTree::default();
    for (kind, path, uid) in [(Kind::Directory, "./", 5), (Kind::Regular, "file", 9)] {
        let mut members = Members::default();
        let parts = Parts { path: path.as_bytes(), link: b"", sparse: None, xattrs: Vec::new() };
        members.push(Member { permissions: 0o700, uid, ..Member::new(0, kind) }, parts);
        tree.add(WHOLE, &members, &mut Vec::new()).unwrap();
    }
    let allowance = Arc::new(Allowance::new(0));
    let finished = tree.finish().unwrap();
    let root = in_memory(finished, ARCHIVE, "index", &allowance).unwrap().node(ROOT).unwrap();
    assert_eq!((root.permissions(), root.uid), (0o700, 5));
}

#[test]
fn a_hard_link_to_a_later_link_is_shown_if_that_one_has_a_target() {
    let mut packer = Packer { members: Members::default() };
    packer.simple(Kind::HardLink, "a", "b");
    packer.simple(Kind::HardLink, "b", "c");
    packer.simple(Kind::Regular, "c", "");
    // Links to each other have no target, and neither has a link to one of them.
    packer.simple(Kind::HardLink, "x", "y");
    packer.simple(Kind::HardLink, "y", "x");
    packer.simple(Kind::HardLink, "z", "y");
    let IndexParts { nodes, links, .. } = packer.parts();
    let contents: Vec<_> = nodes.iter().skip(1).map(Node::content).collect();
    let link = Content::HardLink { target: 3 };
    assert_eq!(contents, [link, link, Content::Stored { start: 4096 }]);
    assert_eq!(links, [(3, 3)]);
}
