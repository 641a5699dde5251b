//! Whether the bytes of a file are where `Tree::stored_files` says.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use archfs::formats::OpenOptions;
use archfs::vfs::{Cookie, FileKind, Ino, StoredFile, Tree};

use crate::support::tree::{contents, open};
use crate::support::{image, run, source, work_directory};

/// What is stored of an archive: files with one part, files with a tail, and other regular files
/// that are not empty.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    whole: usize,
    with_tail: usize,
    others: usize,
}

/// Compares the bytes of each stored file with those that the tree reads.
fn compare(archives: &[PathBuf], options: OpenOptions) -> Found {
    let tree = open(archives, options).unwrap();
    let mut stored = HashMap::new();
    tree.stored_files(&mut |ino, file| assert!(stored.insert(ino, file).is_none())).unwrap();
    let mut found = Found::default();
    for (ino, size) in regular_files(tree.as_ref()) {
        let Some(file) = stored.get(&ino) else {
            found.others += usize::from(size > 0);
            continue;
        };
        assert_eq!(file.size, size);
        assert!(bytes_of(file) == contents(tree.as_ref(), ino).unwrap(), "inode {ino:?}");
        match file.tail {
            None => found.whole += 1,
            Some(_) => found.with_tail += 1,
        }
    }
    found
}

/// The regular files of a tree, and their sizes.
fn regular_files(tree: &dyn Tree) -> HashMap<Ino, u64> {
    let mut files = HashMap::new();
    let mut directories = vec![Ino::ROOT];
    while let Some(directory) = directories.pop() {
        let visited = tree.read_dir(directory, Cookie::START, &mut |entry| {
            match entry.kind {
                FileKind::Directory => directories.push(entry.ino),
                FileKind::Regular => {
                    files.insert(entry.ino, tree.attr(entry.ino).unwrap().size);
                }
                _ => {}
            }
            ControlFlow::Continue(())
        });
        visited.unwrap();
    }
    files
}

fn bytes_of(file: &StoredFile) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.size).unwrap()];
    let head_len = file.tail.as_ref().map_or(file.size, |(head_len, _)| *head_len);
    let (head, rest) = bytes.split_at_mut(usize::try_from(head_len).unwrap());
    file.head.file.read_exact_at(head, file.head.offset).unwrap();
    if let Some((_, tail)) = &file.tail {
        tail.file.read_exact_at(rest, tail.offset).unwrap();
    }
    bytes
}

/// Files that do not compress, with sizes below, at and above one and two blocks of 128 KiB, and
/// one that compresses.
fn make_source(directory: &Path) -> PathBuf {
    let made = directory.join("source");
    std::fs::create_dir_all(made.join("below")).unwrap();
    for (number, len) in [1, 5000, 131_071, 131_072, 131_073, 262_144, 300_000].iter().enumerate() {
        std::fs::write(made.join(format!("noise-{len}")), source::noise(number as u64, *len))
            .unwrap();
    }
    std::fs::write(made.join("below/again"), source::noise(99, 70_000)).unwrap();
    std::fs::hard_link(made.join("below/again"), made.join("link")).unwrap();
    std::fs::write(made.join("zeros"), [0; 200_000]).unwrap();
    std::fs::write(made.join("empty"), "").unwrap();
    made
}

fn make_tar(directory: &Path, name: &str, member: &str) -> PathBuf {
    let archive = directory.join(name);
    run(Command::new("tar").arg("-C").arg(directory).arg("-cf").arg(&archive).arg(member));
    archive
}

#[test]
fn members_of_a_tar_are_stored_whole() {
    let work = work_directory();
    make_source(work.path());
    let tar = make_tar(work.path(), "a.tar", "source");
    let all = Found { whole: 9, with_tail: 0, others: 0 };
    assert_eq!(compare(std::slice::from_ref(&tar), OpenOptions::default()), all);
    // A sparse member is not: its holes are nowhere.
    let sparse = work.path().join("source/sparse");
    std::fs::File::create(&sparse).unwrap().set_len(1 << 20).unwrap();
    let archive = work.path().join("sparse.tar");
    let mut command = Command::new("tar");
    run(command.arg("-C").arg(work.path()).arg("-Scf").arg(&archive).arg("source"));
    let found = compare(&[archive], OpenOptions::default());
    assert!(found.whole >= 8 && found.others >= 1, "{found:?}");
    // Nothing of a compressed tar is.
    run(Command::new("gzip").arg(&tar));
    let found = compare(&[work.path().join("a.tar.gz")], OpenOptions::default());
    assert_eq!(found, Found { whole: 0, with_tail: 0, others: 9 });
}

#[test]
fn files_of_an_image_are_stored_unless_they_compress() {
    let work = work_directory();
    let source = make_source(work.path());
    // One of the nine files with contents compresses.
    let image = image::make(work.path(), "a.sqfs", &source, &["-comp", "zstd"]);
    let found = compare(&[image], OpenOptions::default());
    assert_eq!(found, Found { whole: 8, with_tail: 0, others: 1 });
    // The tails of files of more than a block share a fragment block, some way from their blocks.
    let tails = &["-comp", "zstd", "-always-use-fragments"];
    let found =
        compare(&[image::make(work.path(), "b.sqfs", &source, tails)], OpenOptions::default());
    assert!(found.with_tail >= 1 && found.others >= 1, "{found:?}");
    for options in [
        &["-comp", "zstd", "-noD", "-noF", "-no-sparse"][..],
        &["-comp", "zstd", "-noD", "-noF", "-no-sparse", "-b", "4096"],
        &["-comp", "zstd", "-noD", "-noF", "-no-sparse", "-no-exports"],
        &["-comp", "zstd", "-noD", "-noF", "-no-sparse", "-no-fragments"],
        &["-comp", "zstd", "-noD", "-noF", "-no-sparse", "-always-use-fragments"],
    ] {
        let image = image::make(work.path(), "stored.sqfs", &source, options);
        let found = compare(&[image], OpenOptions::default());
        assert_eq!((found.whole + found.with_tail, found.others), (9, 0), "{options:?}");
    }
}

#[test]
fn archives_in_archives_and_several_archives_are_found_through_them() {
    let work = work_directory();
    let source = make_source(work.path());
    let image = image::make(work.path(), "inner.sqfs", &source, &["-comp", "zstd", "-noD", "-noF"]);
    make_tar(work.path(), "inner.tar", "source");
    let outer = work.path().join("outer.tar");
    let mut command = Command::new("tar");
    run(command
        .arg("-C")
        .arg(work.path())
        .arg("-cf")
        .arg(&outer)
        .args(["inner.sqfs", "inner.tar"]));
    let recursive = OpenOptions { recursive: true, ..OpenOptions::default() };
    let found = compare(std::slice::from_ref(&outer), recursive);
    assert!(found.whole + found.with_tail >= 17, "{found:?}");
    let found = compare(&[image, work.path().join("inner.tar")], OpenOptions::default());
    assert!(found.whole + found.with_tail >= 17, "{found:?}");
}

/// Real archives of all compressors and options.
#[test]
fn all_kinds_of_images_of_all_kinds_of_files() {
    for compressor in ["gzip", "lz4", "zstd"] {
        for options in image::matrix(compressor).iter().step_by(3) {
            let found = compare(&[image::of_varied(options)], OpenOptions::default());
            assert!(found.whole + found.with_tail + found.others > 100, "{options:?}: {found:?}");
        }
    }
}
