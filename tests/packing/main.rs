//! `archfs pack` writes archives that other programs read; each is compared with its source tree.
//!
//! Tests what docs/PACK.md promises: `images` and `tars` the formats, `sources` the input, `excluded`
//! what is left out, `shards` WebDataset, `update` blocks of an earlier image, `failures` the errors,
//! `extract` the way back.

#[path = "../support/mod.rs"]
mod support;

mod excluded;
mod extract;
mod failures;
mod images;
mod lustre;
mod shards;
mod sources;
mod tars;
mod update;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::archfs;
use support::mount::Mounted;
use support::snapshot::{Depth, Snapshot, assert_same, take};

/// Runs `archfs pack WORDS`, which must succeed.
fn pack(words: &[&str]) -> Output {
    support::run(archfs().arg("pack").args(words))
}

/// Runs `archfs pack WORDS`, which must end with status `code`, and returns its stderr.
fn refused(words: &[&str], code: i32) -> String {
    let output = archfs().arg("pack").args(words).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}");
    stderr
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Packs `source` to `work/name` with these options.
fn packed(work: &Path, name: &str, source: &Path, options: &[&str]) -> PathBuf {
    let archive = work.join(name);
    let words = [options, &["--force", "--quiet", text(source), text(&archive)]].concat();
    pack(&words);
    archive
}

/// The tree of an image on a kernel mount.
fn by_kernel(image: &Path, work: &Path) -> Snapshot {
    let mounted = Mounted::kernel(image, &work.join("kernel")).unwrap();
    take(mounted.path(), Depth::Everything)
}

/// The tree of an archive on an archfs mount.
fn by_archfs(archive: &Path, work: &Path) -> Snapshot {
    let mounted = Mounted::archfs(archive, &work.join("archfs"), &[]);
    take(mounted.path(), Depth::Everything)
}

/// A new, empty directory in `work`.
fn directory(work: &Path, name: &str) -> PathBuf {
    let directory = work.join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    directory
}

/// Writes files with these contents, and their directories.
fn write_all(root: &Path, files: &[(&str, &[u8])]) {
    for (path, bytes) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// The names in a directory, sorted, including hidden ones.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A hash of a file, to compare two files.
fn sum(path: &Path) -> u64 {
    support::snapshot::content(path)
}

/// Paths and contents only, for formats that keep nothing else.
fn contents(snapshot: &Snapshot) -> Vec<(Vec<u8>, u64)> {
    let files = snapshot.iter().filter(|(_, node)| node.mode & 0o170_000 == 0o100_000);
    files.map(|(path, node)| (path.clone(), node.content)).collect()
}

/// Runs a command, which must succeed, and returns its stdout.
fn said(words: &[&str]) -> String {
    let output = support::run(Command::new(words[0]).args(&words[1..]));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Checks that the image shows `expected` on a kernel mount and on an archfs mount.
fn assert_shows(what: &str, image: &Path, expected: &Snapshot, work: &Path) {
    assert_same(&format!("{what}: the kernel"), expected, &by_kernel(image, work));
    assert_same(&format!("{what}: archfs"), expected, &by_archfs(image, work));
}
