//! Indexes in memory and in files: what is written comes back, and nothing hostile gets through.
//!
//! Owns the mutations, the refusing side of each rule of `check`, and the memory of a member. What
//! a program makes of saved indexes is tested in `tests/tar_index.rs`.

use std::collections::HashSet;

use super::super::members::{Body, Inner, Kind, Member, Members, Parts};
use super::super::notes::Notes;
use super::*;
use crate::error::{self, Error};
use crate::formats::limits::TAR_PATH_MAX;
use crate::vfs::Timestamp;

/// Bytes of the archive that the indexes here are of.
const ARCHIVE: u64 = 1 << 20;

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

    fn plain(&mut self, kind: Kind, path: &str, link: &str) {
        let parts = Parts { path: b"", link: b"", sparse: None, xattrs: Vec::new() };
        let body = match kind {
            Kind::Regular | Kind::Archive(_) => Body::Stored(4096),
            _ => Body::Device(0x0102_0304),
        };
        let size = if matches!(body, Body::Stored(_)) { 1000 } else { 0 };
        self.add(kind, path, link, body, (size, parts));
    }

    fn sparse(&mut self, path: &str) {
        let segment = |offset, len, at| Segment { offset, len, at };
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

    fn index(&self) -> Index {
        let (mut builder, mut nested) = (Builder::new(), Vec::new());
        let mut notes = Notes::default();
        let list = self.members.list();
        let whole = Nested { folder: Folder::ROOT, depth: 0, start: 0, end: u64::MAX };
        builder.add(whole, &self.members, list, &mut nested, &mut notes).unwrap();
        let mut index = builder.finish(&mut notes);
        index.notes = vec!["a note".into(), "another, longer note".into()];
        index
    }
}

/// One of everything an index holds, made as a scan makes it.
fn everything() -> IndexFile {
    let mut packer = Packer { members: Members::default() };
    packer.with_xattrs(Kind::Directory, ".", &["user.root"]);
    packer.with_xattrs(Kind::Directory, "folder", &["user.a", "user.bb"]);
    for path in ["folder/file", "folder/deep/er/file", "replaced", "replaced", "z", "folder2/a"] {
        packer.plain(Kind::Regular, path, "");
    }
    packer.sparse("folder/sparse");
    packer.sparse("sparse");
    packer.with_xattrs(Kind::Regular, "attributes", &["user.a", "user.bb"]);
    packer.with_xattrs(Kind::Regular, "attributes2", &["security.other"]);
    packer.plain(Kind::Symlink, "link", "../somewhere/else");
    packer.plain(Kind::HardLink, "folder/hard", "folder/file");
    packer.plain(Kind::HardLink, "hard", "folder/hard");
    packer.plain(Kind::Directory, "empty", "");
    packer.plain(Kind::Fifo, "fifo", "");
    packer.plain(Kind::HardLink, "hard-fifo", "fifo");
    packer.plain(Kind::CharDevice, "char", "");
    packer.plain(Kind::BlockDevice, "block", "");
    packer.plain(Kind::Archive(Inner::SquashFs), "images/one.sqfs", "");
    let key = Key {
        recursive: true,
        len: ARCHIVE,
        modified: (-1, 999_999_999),
        file: FileKey { file_system: 0xef53, inode: 12, changed: (5, 6), owner: 1000 },
        samples: vec![(0, [1; 32]), (512, [2; 32])],
    };
    let seek_points = b"seek points".to_vec();
    IndexFile { key, seek_points, decoded_len: ARCHIVE, index: packer.index() }
}

fn written(file: &IndexFile) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.write(&mut bytes).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> error::Result<IndexFile> {
    IndexFile::read(&mut &*bytes, bytes.len() as u64, &|_| Ok(()))
}

/// Makes the checksum at the end right.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len().saturating_sub(4));
    let sum = crc32fast::hash(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// Uses everything of an index; fails where one thing contradicts another.
fn walk(index: &Index, archive_len: u64) {
    let mut maps = HashSet::new();
    let mut waiting = vec![ROOT];
    let mut seen = 0;
    while let Some(id) = waiting.pop() {
        seen += 1;
        assert!(seen <= index.len(), "a node has two parents");
        let (inode, node) = index.inode(id).expect("a node for each name");
        assert!(index.names_of(inode) > 0);
        assert!(node.nanoseconds < 1_000_000_000);
        assert!(index.xattrs_of(inode).all(|(name, _)| !name.is_empty()));
        match node.content() {
            Content::Stored { at } => assert!(at + node.size <= archive_len),
            Content::Sparse { map } => {
                assert!(inode != id || maps.insert(map), "a map of two files");
                let map = index.map(map);
                assert!(map.iter().all(|s| s.at + s.len <= archive_len && s.end() <= node.size));
                assert!(map.is_sorted_by(|a, b| a.end() <= b.offset));
            }
            Content::Folder { first, count } => {
                assert_eq!(inode, id, "a second name of a folder");
                let children = index.children(first, count);
                assert_eq!((children.len() as u64, node.size), (count.into(), count.into()));
                for (id, child) in (first..).zip(children) {
                    let name = Name::parse(index.name(child)).expect("a name");
                    assert_eq!(index.find(first, count, name), Some(id));
                    waiting.push(id);
                }
            }
            Content::Symlink { target } => {
                assert_eq!(index.target(target, node.size).len() as u64, node.size);
                assert!(node.size <= TAR_PATH_MAX as u64);
            }
            Content::Link { .. } => panic!("a link to a link"),
            Content::Device { .. } | Content::Fifo => {}
        }
    }
    assert_eq!(seen, index.len(), "a node without a parent");
    assert!(index.grafts.iter().all(|graft| graft.at + graft.len <= archive_len));
}

/// Bytes that an index takes, room for more included.
fn bytes_kept(index: &Index) -> usize {
    let Index { nodes, names, segments, maps, links, with_xattrs, xattrs, grafts, notes, .. } =
        index;
    let within = grafts.iter().map(|graft| graft.path.capacity()).sum::<usize>()
        + notes.iter().map(String::capacity).sum::<usize>();
    nodes.capacity() * size_of::<Node>()
        + names.capacity()
        + segments.capacity() * size_of::<Segment>()
        + maps.capacity() * size_of::<u64>()
        + links.capacity() * size_of::<(NodeId, u32)>()
        + with_xattrs.capacity() * size_of::<(NodeId, u64)>()
        + xattrs.capacity()
        + grafts.capacity() * size_of::<Graft>()
        + notes.capacity() * size_of::<String>()
        + within
}

#[test]
fn an_index_of_everything_comes_back_from_its_file() {
    let file = everything();
    let Index { segments, maps, links, with_xattrs, grafts, .. } = &file.index;
    assert_eq!((segments.len(), maps.len(), links.len()), (4, 2, 2));
    assert_eq!((with_xattrs.len(), grafts.len()), (4, 1));
    walk(&file.index, ARCHIVE);
    assert_eq!(read(&written(&file)).unwrap(), file);

    let empty =
        IndexFile { index: Packer { members: Members::default() }.index(), ..IndexFile::default() };
    assert_eq!(read(&written(&empty)).unwrap(), empty);
}

#[test]
fn an_index_cut_anywhere_or_with_any_byte_changed_is_refused() {
    let bytes = written(&everything());
    for len in 0..bytes.len() {
        assert!(read(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
    }
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(read(&bytes).is_err(), "byte {at} of {}", bytes.len());
    }
    assert!(read(&[&bytes[..], b"more"].concat()).is_err());
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
fn what_is_accepted_of_20_000_sealed_mutations_is_safe_to_use() {
    let bytes = written(&everything());
    let mut seeded = Seeded(0x9e37_79b9_7f4a_7c15);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut mutated = bytes.clone();
        for _ in 0..=seeded.next(3) {
            seeded.mutate(&mut mutated);
        }
        let mutated = sealed(mutated);
        match read(&mutated) {
            Ok(file) => {
                accepted += 1;
                walk(&file.index, file.decoded_len);
                let kept = bytes_kept(&file.index) + file.seek_points.capacity();
                assert!(kept < 4 * mutated.len(), "{kept} bytes of {}", mutated.len());
            }
            Err(_) => refused += 1,
        }
    }
    // Both sides were tried: times and owners may be anything, places and counts may not.
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

#[test]
fn counts_beyond_the_end_of_the_file_take_no_memory() {
    let bytes = written(&everything());
    // Wherever a count stands, these claim more than there is.
    for at in 0..bytes.len() - 8 {
        for count in [u64::MAX, 1 << 62, 1 << 40, bytes.len() as u64 + 1] {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            if let Ok(file) = read(&sealed(bytes)) {
                walk(&file.index, file.decoded_len);
            }
        }
    }
}

/// Bytes of the key of `everything`, and of what stands before it.
const KEY_END: usize = 8 + 4 + 4 + 8 + 8 + 4 + 8 + 8 + 8 + 4 + 4 + 4 + 2 * 40;

#[test]
fn a_file_with_a_hole_larger_than_memory_is_refused() {
    let bytes = written(&everything());
    let with_hole = |head: &[u8], seek_points: u64, decoded: u64| {
        let numbers =
            [seek_points.to_le_bytes(), decoded.to_le_bytes(), (1_u64 << 55).to_le_bytes()];
        let head = [head, &numbers.concat()].concat();
        let mut input = std::io::Read::chain(&head[..], std::io::repeat(0));
        IndexFile::read(&mut input, 1 << 62, &|_| Ok(())).unwrap_err().to_string()
    };
    let key = &bytes[..KEY_END];
    let error = with_hole(key, 1 << 61, 0);
    assert!(error.contains("bytes of the index, limit"), "{error}");
    let error = with_hole(key, 0, ARCHIVE);
    assert!(error.contains("longer than the index of such an archive"), "{error}");
    // An archive that is as large as it claims; no node is all zeros.
    let error = with_hole(key, 0, 1 << 58);
    assert!(error.contains("unknown kind 0") || error.contains("no memory"), "{error}");
}

#[test]
fn nothing_behind_a_key_that_is_refused_is_read() {
    let bytes = written(&everything());
    let mut input = &bytes[..KEY_END];
    let refuse = |_: &Key| Err(Error::corrupt("refused"));
    let error = IndexFile::read(&mut input, 1 << 62, &refuse).unwrap_err();
    assert_eq!(error.to_string(), "refused");
    assert!(input.is_empty());
}

/// The node at `path`.
fn at<'i>(index: &'i mut Index, path: &str) -> &'i mut Node {
    let mut id = ROOT;
    for name in path.split('/') {
        let Content::Folder { first, count } = index.node(id).unwrap().content() else {
            panic!("{path}: not in a folder");
        };
        id = index.find(first, count, Name::parse(name.as_bytes()).unwrap()).unwrap();
    }
    &mut index.nodes[id as usize]
}

/// One rule of `check`: how to break it, and the words that tell so.
type Rule = (&'static str, fn(&mut Index), &'static str);

fn assert_refused(rules: &[Rule]) {
    for (what, break_it, words) in rules {
        let mut index = everything().index;
        index.check(ARCHIVE).unwrap();
        break_it(&mut index);
        let error = index.check(ARCHIVE).expect_err(what);
        assert_eq!(error.kind(), error::Kind::Corrupt, "{what}");
        assert!(error.to_string().contains(words), "{what}: {error}");
    }
}

#[test]
fn refuses_files_that_reach_outside_the_archive() {
    const OUTSIDE: &str = "outside the archive";
    assert_refused(&[
        ("past the end", |index| at(index, "z").content = ARCHIVE - 999, OUTSIDE),
        ("an offset that overflows", |index| at(index, "z").content = u64::MAX, OUTSIDE),
        ("larger than a file can be", |index| at(index, "z").size = 1 << 63, "can show"),
        ("an image past the end", |index| index.grafts[0].at = ARCHIVE, OUTSIDE),
        ("an image that overflows", |index| index.grafts[0].len = u64::MAX, OUTSIDE),
        ("an image above the root", |index| index.grafts[0].path = b"../up".to_vec(), OUTSIDE),
        ("an image at no name", |index| index.grafts[0].path = b"a//b".to_vec(), OUTSIDE),
    ]);
}

#[test]
fn refuses_maps_that_no_sparse_file_has() {
    const NONE: &str = "sparse map is none";
    const ORDER: &str = "out of order";
    assert_refused(&[
        ("no such map", |index| at(index, "sparse").content = 2, NONE),
        ("the map of another", |index| at(index, "sparse").content = 0, NONE),
        ("a segment past the file", |index| at(index, "sparse").size = 1 << 40, NONE),
        ("a segment past the archive", |index| index.segments[1].at = ARCHIVE, NONE),
        ("a segment that overflows", |index| index.segments[1].offset = u64::MAX, NONE),
        ("an empty segment", |index| index.segments[0].len = 0, NONE),
        ("segments that overlap", |index| index.segments[1].offset = 511, NONE),
        ("maps out of order", |index| index.maps.reverse(), ORDER),
        ("a map past the segments", |index| index.maps[1] = 5, ORDER),
    ]);
}

#[test]
fn refuses_folders_that_make_no_tree() {
    const PLACE: &str = "not where they should be";
    const LISTING: &str = "no listing";
    assert_refused(&[
        ("children of another", |index| at(index, "folder").content += 1, PLACE),
        (
            "an empty one without a place",
            |index| at(index, "empty").content = u32::MAX.into(),
            PLACE,
        ),
        ("itself among its children", |index| index.nodes[0].content = 0, PLACE),
        ("more than there are", |index| at(index, "images").size = 9, LISTING),
        ("more than any tree has", |index| at(index, "folder2").size = 1 << 40, LISTING),
        ("past the last", |index| index.nodes.truncate(index.nodes.len() - 1), LISTING),
        ("names out of order", |index| index.nodes.swap(1, 2), LISTING),
        ("a name twice", |index| index.nodes[2].name = index.nodes[1].name, LISTING),
        ("a name outside", |index| index.nodes[1].name = u32::MAX, LISTING),
        (
            "a name with a slash",
            |index| {
                let name = at(index, "z").name as usize;
                index.names[name + 1] = b'/';
            },
            LISTING,
        ),
        ("no nodes", |index| index.nodes.clear(), "out of order"),
        ("nothing at all", |index| *index = Index::default(), "the root is no folder"),
        (
            "a root that is a file",
            |index| {
                *index = Index { nodes: index.nodes[..1].to_vec(), ..Index::default() };
                index.nodes[0].size = 0;
                index.nodes[0].set(Content::Stored { at: 0 });
            },
            "the root is no folder",
        ),
        (
            "a node in no folder",
            |index| {
                let last = *index.nodes.last().unwrap();
                index.nodes.push(last);
            },
            "in no folder",
        ),
    ]);
}

#[test]
fn refuses_links_and_kinds_that_there_are_not() {
    const SHOW: &str = "nothing a file system can show";
    assert_refused(&[
        ("a link to nothing", |index| at(index, "hard").content = 1 << 20, "names nothing"),
        ("a link to a folder", |index| at(index, "hard").content = 0, "names nothing"),
        (
            "a link to itself",
            |index| {
                let hard = index.nodes.iter().position(|node| node.mode >> 12 == LINK).unwrap();
                index.nodes[hard].content = hard as u64;
            },
            "names nothing",
        ),
        ("no kind", |index| at(index, "z").mode = 0o644, SHOW),
        ("an unknown kind", |index| at(index, "z").mode = 9 << 12, SHOW),
        ("a target outside", |index| at(index, "link").content = u64::MAX, "target is missing"),
        ("a target too long", |index| at(index, "link").size = 1 << 30, "target is missing"),
        (
            "a target longer than paths are",
            |index| {
                index.names.extend([b'x'; TAR_PATH_MAX + 1]);
                let link = at(index, "link");
                (link.content, link.size) = (0, TAR_PATH_MAX as u64 + 1);
            },
            "target is missing",
        ),
    ]);
}

#[test]
fn refuses_tables_that_do_not_fit_the_nodes() {
    const ORDER: &str = "out of order";
    const NONE: &str = "attributes in the index are none";
    assert_refused(&[
        ("links out of order", |index| index.links.reverse(), ORDER),
        ("a node twice", |index| index.links[1].0 = index.links[0].0, ORDER),
        ("a link of no node", |index| index.links[1].0 = 1000, ORDER),
        ("a link with one name", |index| index.links[1].1 = 1, ORDER),
        ("attributes out of order", |index| index.with_xattrs.reverse(), ORDER),
        ("attributes of no node", |index| index.with_xattrs[3].0 = 1000, ORDER),
        ("attributes past the end", |index| index.with_xattrs[3].1 = u64::MAX, NONE),
        ("attributes within others", |index| index.with_xattrs[3].1 += 4, NONE),
        ("attributes cut off", |index| index.xattrs.truncate(index.xattrs.len() - 1), NONE),
        ("a set of none", |index| index.xattrs.extend([0; 4]), NONE),
        ("an attribute without a name", |index| index.xattrs[4..8].fill(0), NONE),
        ("a name longer than can be", |index| index.xattrs[5] = 1, NONE),
        ("a NUL in a name", |index| index.xattrs[8] = 0, NONE),
        ("more than there are", |index| index.xattrs[0] = 255, NONE),
    ]);
}

#[test]
fn a_member_takes_at_most_100_bytes_beside_its_name() {
    let mut packer = Packer { members: Members::default() };
    let count = 20_000;
    for number in 0..count {
        let path = format!("folder{}/file{number}", number % 100);
        match number % 10 {
            // As many with something to keep besides as few archives have.
            0 => packer.with_xattrs(Kind::Regular, &path, &["user.same", "user.for-all"]),
            1 => packer.plain(Kind::HardLink, &path, "folder0/file0"),
            2 => packer.sparse(&path),
            _ => packer.plain(Kind::Regular, &path, ""),
        }
    }
    let index = packer.index();
    let letters: usize = index.nodes.iter().map(|node| index.name(node).len()).sum();
    assert!(index.len() > count && letters > 8 * count);
    let per_member = (bytes_kept(&index) - letters) as f64 / count as f64;
    assert!(per_member <= 100.0, "{per_member} bytes");

    let file = IndexFile { decoded_len: ARCHIVE, index, ..IndexFile::default() };
    let again = read(&written(&file)).unwrap().index;
    assert!(bytes_kept(&again) <= bytes_kept(&file.index));
}

#[test]
fn plain_members_take_49_bytes_and_their_names() {
    let mut packer = Packer { members: Members::default() };
    for number in 0..10_000 {
        packer.plain(Kind::Regular, &format!("{number:05}"), "");
    }
    let index = packer.index();
    let notes: usize = bytes_kept(&Packer { members: Members::default() }.index());
    assert_eq!(bytes_kept(&index) - notes, 10_000 * (49 + 5));
}
