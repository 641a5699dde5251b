//! Tests that a small index, which is checked as a whole, is rejected if it breaks any rule.

use super::*;
use crate::error;
use crate::formats::index::node::KIND_HARD_LINK;

/// The node at `path`.
fn node_at<'i>(parts: &'i mut IndexParts, path: &str) -> &'i mut Node {
    let mut id = ROOT as usize;
    for name in path.split('/') {
        let Content::Directory { first, count } = parts.nodes[id].content() else {
            panic!("{path}: not in a folder");
        };
        let children = first as usize..(first + count) as usize;
        let names = &parts.names;
        let is_wanted = |&id: &usize| parts.nodes[id].name_in(names) == name.as_bytes();
        id = children.into_iter().find(is_wanted).unwrap();
    }
    &mut parts.nodes[id]
}

/// One rule of an index: its description, how to break it, and text that the error must contain.
type Rule = (&'static str, fn(&mut IndexParts), &'static str);

fn assert_rejected(rules: &[Rule]) {
    for (what, break_it, expected) in rules {
        let mut parts = everything();
        break_it(&mut parts);
        let error = read(parts.written(), ALL).err().expect(what);
        assert_eq!(error.kind(), error::Kind::Corrupt, "{what}");
        assert!(error.to_string().contains(expected), "{what}: {error}");
        // Without the check of the whole index, it must still be safe to use.
        if let Ok(found) = read(parts.written(), NOTHING) {
            let _ = walk(&found.index, false);
        }
    }
}

#[test]
fn refuses_files_that_reach_outside_the_archive() {
    const OUTSIDE: &str = "outside the";
    assert_rejected(&[
        ("past the end", |parts| node_at(parts, "z").content = ARCHIVE - 999, OUTSIDE),
        ("an offset that overflows", |parts| node_at(parts, "z").content = u64::MAX, OUTSIDE),
        ("larger than a file can be", |parts| node_at(parts, "z").size = 1 << 63, "a known type"),
        ("an image past the end", |parts| parts.nested_archives[0].offset = ARCHIVE, OUTSIDE),
        ("an image that overflows", |parts| parts.nested_archives[0].len = u64::MAX, OUTSIDE),
        (
            "an image above the root",
            |parts| parts.nested_archives[0].path = b"../up".to_vec(),
            OUTSIDE,
        ),
        ("an image at no name", |parts| parts.nested_archives[0].path = b"a//b".to_vec(), OUTSIDE),
    ]);
}

#[test]
fn refuses_maps_that_no_sparse_file_has() {
    const NONE: &str = "sparse map is not valid";
    const FILE: &str = "outside its file";
    const ORDER: &str = "out of order";
    assert_rejected(&[
        ("no such map", |parts| node_at(parts, "sparse").content = 2, NONE),
        ("the map of another", |parts| node_at(parts, "sparse").content = 0, NONE),
        ("a segment past the file", |parts| node_at(parts, "sparse").size = 1 << 40, FILE),
        (
            "a segment past the archive",
            |parts| parts.segments[1].archive_offset = ARCHIVE,
            "outside the archive",
        ),
        ("a segment that overflows", |parts| parts.segments[1].offset = u64::MAX, FILE),
        ("an empty segment", |parts| parts.segments[0].len = 0, "it is empty"),
        ("segments that overlap", |parts| parts.segments[1].offset = 511, ORDER),
        ("bytes that are not stored", |parts| parts.maps[0].2 += 1, NONE),
        ("maps out of order", |parts| parts.maps.reverse(), ORDER),
        ("a map past the segments", |parts| parts.maps[1].0 = 5, ORDER),
    ]);
}

#[test]
fn refuses_directories_that_form_no_tree() {
    const PLACE: &str = "not where they should be";
    const LISTING: &str = "not a listing";
    assert_rejected(&[
        ("children of another", |parts| node_at(parts, "folder").content += 1, PLACE),
        (
            "an empty one without a place",
            |parts| node_at(parts, "empty").content = u32::MAX.into(),
            PLACE,
        ),
        ("itself among its children", |parts| parts.nodes[0].content = 0, PLACE),
        ("more than there are", |parts| node_at(parts, "images").size = 9, PLACE),
        ("more than any tree has", |parts| node_at(parts, "folder2").size = 1 << 40, PLACE),
        ("past the last", |parts| parts.nodes.truncate(parts.nodes.len() - 1), PLACE),
        ("names out of order", |parts| parts.nodes.swap(1, 2), LISTING),
        (
            "a name twice",
            |parts| {
                let Node { name, name_len, .. } = parts.nodes[1];
                parts.nodes[2] = Node { name, name_len, ..parts.nodes[2] };
            },
            LISTING,
        ),
        ("a name outside", |parts| parts.nodes[1].name = u32::MAX, "its name is missing"),
        (
            "a name with a slash",
            |parts| {
                let name = node_at(parts, "z").name as usize;
                parts.names[name] = b'/';
            },
            LISTING,
        ),
        ("no nodes", |parts| parts.nodes.clear(), "the root is not a directory"),
        (
            "nothing at all",
            |parts| *parts = IndexParts { archive_len: ARCHIVE, ..IndexParts::default() },
            "the root is not a directory",
        ),
        (
            "a root that is a file",
            |parts| {
                parts.nodes[0].size = 0;
                parts.nodes[0].set(Content::Stored { start: 0 });
            },
            "the root is not a directory",
        ),
        (
            "a directory in another one",
            |parts| node_at(parts, "folder").parent = 1,
            "in another directory",
        ),
        (
            "a directory in two",
            |parts| {
                let inner = *node_at(parts, "folder");
                let outer = node_at(parts, "folder2");
                (outer.content, outer.size) = (inner.content, inner.size);
            },
            "where they should be",
        ),
        (
            "a node in no directory",
            |parts| {
                let last = *parts.nodes.last().unwrap();
                parts.nodes.push(last);
            },
            "in no directory",
        ),
    ]);
}

#[test]
fn refuses_links_to_nothing_and_unknown_kinds() {
    const SHOW: &str = "not of a known type";
    assert_rejected(&[
        ("a link to nothing", |parts| node_at(parts, "hard").content = 1 << 20, "names nothing"),
        ("a link to a directory", |parts| node_at(parts, "hard").content = 0, "names nothing"),
        (
            "a link to itself",
            |parts| {
                let hard =
                    parts.nodes.iter().position(|node| node.mode >> 12 == KIND_HARD_LINK).unwrap();
                parts.nodes[hard].content = hard as u64;
            },
            "names nothing",
        ),
        ("no kind", |parts| node_at(parts, "z").mode = 0o644, SHOW),
        ("an unknown kind", |parts| node_at(parts, "z").mode = 12 << 12, SHOW),
        (
            "a target outside",
            |parts| node_at(parts, "link").content = u64::MAX,
            "target is missing",
        ),
        ("a target too long", |parts| node_at(parts, "link").size = 1 << 30, "target is missing"),
        (
            "a target longer than paths are",
            |parts| {
                parts.names.extend([b'x'; MEMBER_PATH_MAX + 1]);
                let link = node_at(parts, "link");
                (link.content, link.size) = (0, MEMBER_PATH_MAX as u64 + 1);
            },
            "target is missing",
        ),
    ]);
}

#[test]
fn refuses_tables_that_do_not_fit_the_nodes() {
    const ORDER: &str = "out of order";
    const NONE: &str = "attributes in the index are not valid";
    assert_rejected(&[
        ("links out of order", |parts| parts.links.reverse(), ORDER),
        ("a node twice", |parts| parts.links[1].0 = parts.links[0].0, ORDER),
        ("a link of no node", |parts| parts.links[1].0 = 1000, ORDER),
        ("a link with one name", |parts| parts.links[1].1 = 1, ORDER),
        ("attributes out of order", |parts| parts.with_xattrs.reverse(), ORDER),
        ("attributes of no node", |parts| parts.with_xattrs[3].0 = 1000, ORDER),
        ("attributes past the end", |parts| parts.with_xattrs[3].1 = u64::MAX, NONE),
        ("attributes within others", |parts| parts.with_xattrs[3].1 += 4, NONE),
        ("attributes cut off", |parts| parts.xattrs.truncate(parts.xattrs.len() - 1), NONE),
        ("a set of none", |parts| parts.xattrs.extend([0; 4]), NONE),
        ("an attribute without a name", |parts| parts.xattrs[4..8].fill(0), NONE),
        ("a name longer than can be", |parts| parts.xattrs[5] = 1, NONE),
        ("a NUL in a name", |parts| parts.xattrs[8] = 0, NONE),
        ("more than there are", |parts| parts.xattrs[0] = 255, NONE),
    ]);
}
