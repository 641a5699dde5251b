//! Tests of the limits on sparse maps and attributes of a whole archive, at and above each limit.

use super::*;
use crate::formats::index::members::Xattrs;
use crate::vfs::FileKind;

/// Builds one file for each of `parts`, with small limits: segments, and bytes of attributes. Also
/// returns the notes.
fn built(
    parts: Vec<(Xattrs, Option<Vec<Segment>>)>,
    limits: (usize, usize),
) -> (IndexParts, Vec<String>) {
    let mut members = Members::default();
    for (number, (xattrs, sparse)) in parts.into_iter().enumerate() {
        let path = format!("f{number}").into_bytes();
        let member = Member { size: 1 << 20, ..Member::new(0, Kind::Regular) };
        members.push(member, Parts { path: &path, link: b"", sparse, xattrs });
    }
    let mut tree = NewTree::with_limits(Spill::default(), limits.0, limits.1);
    tree.add(WHOLE, &members, &mut Vec::new()).unwrap();
    let (finished, allowance) = (tree.finish().unwrap(), Arc::new(Allowance::new(0)));
    let index = in_memory(finished, u64::MAX, "index", &allowance).unwrap();
    let parts = IndexParts::of_index(&index).unwrap();
    let notes = parts.notes.clone();
    (parts, notes)
}

fn xattrs(value: &[u8]) -> Xattrs {
    vec![(b"user.a".to_vec(), value.to_vec())]
}

/// Size of an encoded set of one attribute, with a name of six bytes and a value of three.
const SET: usize = 4 + 4 + 6 + 4 + 3;

#[test]
fn keeps_attributes_up_to_the_limit_and_equal_ones_once() {
    let parts = || [b"one", b"two", b"one"].map(|value| (xattrs(value), None)).to_vec();
    let (index, notes) = built(parts(), (0, 2 * SET));
    assert_eq!((index.with_xattrs.len(), index.xattrs.len()), (3, 2 * SET));
    assert!(notes.is_empty(), "{notes:?}");
    let (index, notes) = built(parts(), (0, 2 * SET - 1));
    assert_eq!((index.with_xattrs.len(), index.xattrs.len()), (2, SET));
    assert_eq!(notes.len(), 1);
    assert!(notes[0].starts_with("left out 1: extended attributes"), "{notes:?}");
    assert!(notes[0].ends_with("such as \"f1\""), "{notes:?}");
}

#[test]
fn keeps_pieces_of_sparse_files_up_to_the_limit() {
    let map = |count: u64| {
        let piece = |number| Segment { offset: number * 10, len: 5, archive_offset: 0 };
        (Xattrs::new(), Some((0..count).map(piece).collect()))
    };
    let parts = || vec![map(3), map(4), map(3), (Xattrs::new(), None)];
    let (index, notes) = built(parts(), (10, 0));
    assert_eq!((index.nodes.len(), index.segments.len(), notes.len()), (5, 10, 0));
    let (index, notes) = built(parts(), (9, 0));
    assert_eq!((index.nodes.len(), index.segments.len()), (4, 7));
    assert!(notes[0].starts_with("left out 1: sparse files"), "{notes:?}");
    assert!(notes[0].ends_with("such as \"f2\""), "{notes:?}");
    assert_eq!(index.nodes.get(1).map(Node::kind), Some(FileKind::Regular));
}

#[test]
fn a_list_is_heavy_by_the_size_of_its_attributes() {
    let mut members = Members::default();
    let mut pushed = 0;
    while !members.is_heavy() {
        let parts = Parts { path: b"f", link: b"", sparse: None, xattrs: xattrs(&[b'v'; 65536]) };
        members.push(Member::new(0, Kind::Regular), parts);
        pushed += 1;
    }
    assert_eq!(pushed, 256);
    members.clear();
    assert!(!members.is_heavy());
}
