//! Fuzz targets: one function for each parser that gets untrusted bytes first.
//!
//! Not part of the program: only tests and fuzzing builds have it. `fuzz/` runs the targets.
//!
//! Invariant: a target accepts any bytes and panics if its parser breaks an invariant. Its work is
//! bounded by the number of bytes.

use std::ops::ControlFlow;

use super::bytes::{Reader, length};
use crate::vfs::{Cookie, FileKind, Ino, Name, ReadBytes, Scratch, SeekTarget, Tree};

pub use super::compressed::fuzzing::{compressed, seek_points};
pub use super::squashfs::fuzzing::{directory, inode, metadata, squashfs, superblock, tables};
pub use super::tar::fuzzing::{pax, saved_index, sparse_map, tar, tar_header};
pub use super::zip::fuzzing::zip;

/// A fuzz target.
pub type Door = fn(&[u8]);

/// All targets, by name. The directories in `fuzz/corpus` have the same names.
pub const DOORS: [(&str, Door); 14] = [
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
    ("zip", zip),
];

/// Most files visited by a walk, and most entries looked up in one directory.
const FILES: usize = 100;
const ENTRIES: usize = 64;

/// Length of one read, bytes.
const READ: u32 = 20_000;

/// Whether listing a directory and looking up its names must agree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectoryChecks {
    Consistent,
    /// The index of a large SquashFS directory may lead a lookup elsewhere than a listing.
    MayLie,
}

/// The bytes of `reader` that were not read yet.
pub(super) fn rest<'b>(reader: &mut Reader<'b>) -> &'b [u8] {
    reader.bytes(reader.remaining()).unwrap_or_default()
}

/// Calls every method of `tree`, for up to `FILES` files.
pub(super) fn walk(tree: &dyn Tree, checks: DirectoryChecks) {
    let totals = tree.totals();
    assert!(totals.block_size > 0);
    let mut pending = vec![Ino::ROOT];
    let mut seen = 0;
    while let Some(ino) = pending.pop() {
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
            FileKind::Directory => pending.extend(check_directory(tree, ino, checks)),
            FileKind::Regular => check_file(tree, ino, attr.size),
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

/// Lists a directory from its start and from the middle, and looks up each name. Returns the
/// inodes.
fn check_directory(tree: &dyn Tree, ino: Ino, checks: DirectoryChecks) -> Vec<Ino> {
    let (all, outcome) = listing(tree, ino, Cookie::START);
    assert!(all.iter().zip(all.iter().skip(1)).all(|(a, b)| a.name < b.name), "out of order");
    let consistent = checks == DirectoryChecks::Consistent && outcome;
    if let Some(middle) = all.get(all.len() / 2) {
        let (after, _) = listing(tree, ino, middle.next);
        let expected = &all[all.len() / 2 + 1..];
        assert!(!consistent || all.len() == ENTRIES || after == expected, "another listing");
    }
    for entry in &all {
        let name = Name::parse(&entry.name).expect("a listing shows names");
        let found = tree.lookup(ino, name);
        if consistent {
            let found = found.expect("a sound directory").expect("a name that was listed");
            assert_eq!((found.ino, found.kind), (entry.ino, entry.kind));
        }
    }
    all.into_iter().map(|entry| entry.ino).collect()
}

/// The first entries after `cookie`, and whether the listing had no error.
fn listing(tree: &dyn Tree, ino: Ino, cookie: Cookie) -> (Vec<Listed>, bool) {
    let mut listed = Vec::new();
    let outcome = tree.read_dir(ino, cookie, &mut |entry| {
        let name = entry.name.as_bytes().to_vec();
        listed.push(Listed { name, ino: entry.ino, kind: entry.kind, next: entry.next });
        if listed.len() < ENTRIES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    (listed, outcome.is_ok())
}

/// Reads the start, the end and overlapping parts of a file, and seeks its holes.
fn check_file(tree: &dyn Tree, ino: Ino, size: u64) {
    let mut scratch = Scratch::default();
    let mut read = |offset: u64| {
        let bytes = tree.read(ino, offset, READ, &mut scratch);
        let bytes = bytes.as_ref().map(ReadBytes::as_slice).map(<[u8]>::to_vec).ok()?;
        let expected = size.saturating_sub(offset).min(u64::from(READ));
        assert_eq!(length(bytes.len()), expected, "at {offset} of {size}");
        Some(bytes)
    };
    let half = u64::from(READ) / 2;
    if let (Some(first), Some(second)) = (read(0), read(half)) {
        let overlap = &first[first.len().min(half as usize)..];
        assert!(second.starts_with(overlap), "the same bytes twice");
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

// The damage that tests/hostile/mutants does to whole archives.
#[cfg(test)]
#[path = "../../tests/hostile/mutants/damage.rs"]
mod damage;
#[cfg(test)]
#[path = "../../tests/hostile/mutants/random.rs"]
mod random;

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::Path;
    use std::{env, fs};

    use super::damage::damage;
    use super::random::Random;
    use super::*;

    /// Damaged inputs of each target. Fuzzing finds more: it is guided by coverage.
    const MUTANTS: u64 = 5000;

    /// The inputs in the corpus of the target `name`.
    fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let files = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{directory:?}: {e}"));
        let inputs = files.map(|file| {
            let path = file.unwrap().path();
            (path.display().to_string(), fs::read(&path).unwrap())
        });
        inputs.collect()
    }

    #[test]
    fn every_target_accepts_every_input_of_its_corpus() {
        for (name, target) in DOORS {
            let inputs = corpus(name);
            assert!(inputs.len() >= 3, "{name}: {} inputs", inputs.len());
            for (path, input) in inputs {
                let outcome = catch_unwind(|| target(&input));
                assert!(outcome.is_ok(), "{path}");
            }
        }
    }

    /// `ARCHFS_FUZZ_MUTANTS` sets how many, and `ARCHFS_SEED` which ones.
    #[test]
    fn every_target_accepts_damaged_inputs_of_its_corpus() {
        let number =
            |name, default| env::var(name).map_or(default, |text| text.parse().expect("a number"));
        let (mutants, seed) = (number("ARCHFS_FUZZ_MUTANTS", MUTANTS), number("ARCHFS_SEED", 1));
        for (name, target) in DOORS {
            let inputs = corpus(name);
            for nth in 0..mutants {
                let mut random = Random::of(seed, nth);
                let (path, input) = random.of_list(&inputs);
                let mut bytes = input.clone();
                let (_, other) = random.of_list(&inputs);
                damage(&mut bytes, other, &mut random);
                let outcome = catch_unwind(AssertUnwindSafe(|| target(&bytes)));
                if outcome.is_err() {
                    let kept = env::temp_dir().join(format!("archfs-fuzz-{name}-{seed}-{nth}"));
                    fs::write(&kept, &bytes).unwrap();
                    panic!("{name}: mutant {nth} of {path}; its bytes are in {}", kept.display());
                }
            }
        }
    }

    #[test]
    fn every_target_accepts_empty_input_and_noise() {
        for (_, target) in DOORS {
            target(&[]);
            for len in [1, 7, 96, 512, 2000] {
                target(&vec![0; len]);
                target(&vec![0xff; len]);
            }
        }
    }
}
