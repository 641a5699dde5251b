//! Opens archives with the library, without a mount, for tests with hundreds of archives.
//!
//! Prints the same lines as tests/python/tar_tree.py.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use archfs::error::Result;
use archfs::formats::{self, OpenOptions};
use archfs::progress::Progress;
use archfs::sync::Arc;
use archfs::vfs::{Cookie, FileKind, Ino, Scratch, Tree};

/// Opens archives with a cache of 64 MiB, as far as they go.
pub fn open(paths: &[PathBuf], options: OpenOptions) -> Result<Arc<dyn Tree>> {
    let options = OpenOptions { cache_bytes: 64 << 20, partial: true, ..options };
    formats::open(paths, &options, &Progress::default())
}

/// Opens an archive without saving an index.
pub fn open_one(path: &Path) -> Arc<dyn Tree> {
    open(&[path.to_owned()], OpenOptions::default()).unwrap()
}

/// The properties of each path: kind, mode, owner, group, size, mtime in nanoseconds, CRC-32 of the
/// contents, target in hex. The root's path is "/".
pub fn lines(tree: &dyn Tree) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    walk(tree, Ino::ROOT, &mut Vec::new(), &mut found);
    found
}

/// The contents of a file.
pub fn contents(tree: &dyn Tree, ino: Ino) -> Result<Vec<u8>> {
    let size = tree.attr(ino)?.size;
    let mut scratch = Scratch::default();
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size {
        // An odd size, so that reads cross block boundaries.
        let piece = tree.read(ino, bytes.len() as u64, 1_000_003, &mut scratch)?;
        assert!(!piece.as_slice().is_empty(), "ends before its size");
        bytes.extend(piece.as_slice());
    }
    Ok(bytes)
}

fn walk(tree: &dyn Tree, ino: Ino, path: &mut Vec<u8>, found: &mut BTreeMap<Vec<u8>, String>) {
    let attr = tree.attr(ino).unwrap();
    let (letter, size) = match attr.kind {
        FileKind::Regular => ('-', attr.size),
        FileKind::Directory => ('d', 0),
        FileKind::Symlink => ('l', attr.size),
        FileKind::BlockDevice => ('b', 0),
        FileKind::CharDevice => ('c', 0),
        FileKind::Fifo => ('p', 0),
        FileKind::Socket => ('s', 0),
    };
    let time =
        i128::from(attr.modified.seconds) * 1_000_000_000 + i128::from(attr.modified.nanoseconds);
    let sum = match attr.kind {
        FileKind::Regular => crc32fast::hash(&contents(tree, ino).unwrap()),
        _ => 0,
    };
    let target = match attr.kind {
        FileKind::Symlink => hex(&tree.read_link(ino).unwrap()),
        _ => String::new(),
    };
    let shown = if path.is_empty() { b"/".to_vec() } else { path.clone() };
    let (mode, uid, gid) = (attr.permissions, attr.uid, attr.gid);
    found.insert(shown, format!("{letter} {mode} {uid} {gid} {size} {time} {sum} {target}"));
    if attr.kind != FileKind::Directory {
        return;
    }
    let mut entries = Vec::new();
    tree.read_dir(ino, Cookie::START, &mut |entry| {
        entries.push((entry.ino, entry.kind, entry.name.as_bytes().to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    for (ino, kind, name) in entries {
        assert_eq!(tree.attr(ino).unwrap().kind, kind, "{}", name.escape_ascii());
        let before = path.len();
        if before > 0 {
            path.push(b'/');
        }
        path.extend(name);
        walk(tree, ino, path, found);
        path.truncate(before);
    }
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
