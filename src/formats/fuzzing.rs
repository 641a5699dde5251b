//! The doors for fuzzing: one function for each parser that meets bytes of an archive first.
//!
//! Owns the list of them and the walk through a whole tree; leaves each door to the folder of the
//! parser it leads to, and running them to `fuzz/`. Is not part of the program: only tests and
//! fuzzing builds have it.
//! Invariant: a door takes any bytes, panics where an invariant of its parser is broken, and does
//! work that is bounded by the length of the bytes.

use std::ops::ControlFlow;

use super::bytes::{Reader, length};
use crate::vfs::{Cookie, FileKind, Ino, Name, ReadBytes, Scratch, SeekTarget, Tree};

pub use super::compressed::fuzzing::{compressed, seek_points};
pub use super::squashfs::fuzzing::{directory, inode, metadata, squashfs, superblock, tables};
pub use super::tar::fuzzing::{pax, saved_index, sparse_map, tar, tar_header};

/// A door.
pub type Door = fn(&[u8]);

/// All doors by the names of the fuzz targets and of their folders in `fuzz/corpus`.
pub const DOORS: [(&str, Door); 13] = [
    ("superblock", superblock),
    ("inode", inode),
    ("directory", directory),
    ("tables", tables),
    ("metadata", metadata),
    ("tar_header", tar_header),
    ("pax", pax),
    ("sparse_map", sparse_map),
    ("saved_index", saved_index),
    ("seek_points", seek_points),
    ("compressed", compressed),
    ("squashfs", squashfs),
    ("tar", tar),
];

/// Files that a walk looks at, and entries of one folder that it looks up.
const FILES: usize = 100;
const ENTRIES: usize = 64;

/// Bytes that one read of a walk asks for.
const READ: u32 = 20_000;

/// Whether a folder answers the same whichever way it is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Folders {
    Consistent,
    /// The index of a large SquashFS directory may send a search elsewhere than a listing goes.
    MayLie,
}

/// What is left of `reader`.
pub(super) fn rest<'b>(reader: &mut Reader<'b>) -> &'b [u8] {
    reader.bytes(reader.remaining()).unwrap_or_default()
}

/// Asks `tree` for everything that it shows, up to `FILES` files.
pub(super) fn walk(tree: &dyn Tree, folders: Folders) {
    let totals = tree.totals();
    assert!(totals.block_size > 0);
    let mut due = vec![Ino::ROOT];
    let mut seen = 0;
    while let Some(ino) = due.pop() {
        seen += 1;
        if seen > FILES {
            break;
        }
        let Ok(attr) = tree.attr(ino) else { continue };
        assert_eq!(attr.ino, ino);
        assert_eq!(attr.permissions & !0o7777, 0);
        assert!(attr.modified.nanoseconds < 1_000_000_000);
        assert!(attr.size <= i64::MAX.unsigned_abs(), "{} bytes", attr.size);
        match attr.kind {
            FileKind::Directory => due.extend(folder(tree, ino, folders)),
            FileKind::Regular => file(tree, ino, attr.size),
            FileKind::Symlink => {
                if let Ok(target) = tree.read_link(ino) {
                    assert_eq!(length(target.len()), attr.size);
                }
            }
            _ => assert!(tree.read(ino, 0, 1, &mut Scratch::default()).is_err()),
        }
        if attr.kind != FileKind::Directory {
            assert!(tree.read_dir(ino, Cookie::START, &mut |_| ControlFlow::Break(())).is_err());
        }
        attributes(tree, ino);
    }
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    name: Vec<u8>,
    ino: Ino,
    kind: FileKind,
    next: Cookie,
}

/// Lists a folder, from its start and from the middle, and looks each name up; returns the inodes.
fn folder(tree: &dyn Tree, ino: Ino, folders: Folders) -> Vec<Ino> {
    let (all, outcome) = listing(tree, ino, Cookie::START);
    assert!(all.iter().zip(all.iter().skip(1)).all(|(a, b)| a.name < b.name), "out of order");
    let consistent = folders == Folders::Consistent && outcome;
    if let Some(middle) = all.get(all.len() / 2) {
        let (behind, _) = listing(tree, ino, middle.next);
        let expected = &all[all.len() / 2 + 1..];
        assert!(!consistent || all.len() == ENTRIES || behind == expected, "another listing");
    }
    for entry in &all {
        let name = Name::parse(&entry.name).expect("a listing shows names");
        let found = tree.lookup(ino, name);
        if consistent {
            let found = found.expect("a sound folder").expect("a name that was listed");
            assert_eq!((found.ino, found.kind), (entry.ino, entry.kind));
        }
    }
    all.into_iter().map(|entry| entry.ino).collect()
}

/// The first entries behind `cookie`, and whether nothing was wrong with them.
fn listing(tree: &dyn Tree, ino: Ino, cookie: Cookie) -> (Vec<Listed>, bool) {
    let mut listed = Vec::new();
    let outcome = tree.read_dir(ino, cookie, &mut |entry| {
        let name = entry.name.as_bytes().to_vec();
        listed.push(Listed { name, ino: entry.ino, kind: entry.kind, next: entry.next });
        if listed.len() < ENTRIES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    (listed, outcome.is_ok())
}

/// Reads the start, the end and a part of both of a file, and looks for its holes.
fn file(tree: &dyn Tree, ino: Ino, size: u64) {
    let mut scratch = Scratch::default();
    let mut read = |offset: u64| {
        let answer = tree.read(ino, offset, READ, &mut scratch);
        let answer = answer.as_ref().map(ReadBytes::as_slice).map(<[u8]>::to_vec).ok()?;
        let expected = size.saturating_sub(offset).min(u64::from(READ));
        assert_eq!(length(answer.len()), expected, "at {offset} of {size}");
        Some(answer)
    };
    let half = u64::from(READ) / 2;
    if let (Some(first), Some(second)) = (read(0), read(half)) {
        let both = &first[first.len().min(half as usize)..];
        assert!(second.starts_with(both), "the same bytes twice");
    }
    read(size.saturating_sub(half));
    read(size);
    for target in [SeekTarget::Data, SeekTarget::Hole] {
        for offset in [0, 1, size / 2, size.saturating_sub(1), size] {
            if let Ok(found) = tree.seek(ino, offset, target) {
                assert!((offset..=size).contains(&found), "{found} from {offset} of {size}");
                assert!(target == SeekTarget::Hole || found < size, "data behind the end");
            }
        }
    }
}

fn attributes(tree: &dyn Tree, ino: Ino) {
    let Ok(names) = tree.list_xattrs(ino) else { return };
    assert!(names.is_empty() || tree.has_xattrs());
    assert!(names.last().is_none_or(|&byte| byte == 0));
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()).take(ENTRIES) {
        if let Ok(value) = tree.xattr(ino, name) {
            assert!(value.len() <= 64 << 10);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The inputs kept for the target `name`.
    fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{folder:?}: {e}"));
        let inputs = files.map(|file| {
            let path = file.unwrap().path();
            (path.display().to_string(), std::fs::read(&path).unwrap())
        });
        inputs.collect()
    }

    #[test]
    fn every_door_takes_every_input_that_fuzzing_kept() {
        for (name, door) in DOORS {
            let inputs = corpus(name);
            assert!(inputs.len() >= 3, "{name}: {} inputs", inputs.len());
            for (path, input) in inputs {
                let outcome = std::panic::catch_unwind(|| door(&input));
                assert!(outcome.is_ok(), "{path}");
            }
        }
    }

    #[test]
    fn every_door_takes_nothing_and_noise() {
        for (_, door) in DOORS {
            door(&[]);
            for len in [1, 7, 96, 512, 2000] {
                door(&vec![0; len]);
                door(&vec![0xff; len]);
            }
        }
    }
}
