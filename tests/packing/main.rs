//! `archfs pack` writes archives that other programs read; each is compared with its source tree.
//!
//! Tests what docs/PACK.md promises: `images` and `tars` the formats, `sources` the input, `shards`
//! WebDataset, `failures` the errors.

#[path = "../support/mod.rs"]
mod support;

mod failures;
mod images;
mod shards;
mod sources;
mod tars;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::archfs;
use support::mount::Mounted;
use support::snapshot::{Depth, Snapshot, assert_same, take};

/// `archfs pack WORDS`, which must succeed.
fn pack(words: &[&str]) -> Output {
    support::run(archfs().arg("pack").args(words))
}

/// `archfs pack WORDS` with the status `code`; what it says on standard error.
fn refused(words: &[&str], code: i32) -> String {
    let output = archfs().arg("pack").args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
    said
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Makes `work/name` of `source` with these options.
fn packed(work: &Path, name: &str, source: &Path, options: &[&str]) -> PathBuf {
    let archive = work.join(name);
    let words = [options, &["--force", "--quiet", text(source), text(&archive)]].concat();
    pack(&words);
    archive
}

/// What the kernel shows of an image.
fn by_kernel(image: &Path, work: &Path) -> Snapshot {
    let mounted = Mounted::kernel(image, &work.join("kernel")).unwrap();
    take(mounted.path(), Depth::Everything)
}

/// What archfs shows of an archive.
fn by_archfs(archive: &Path, work: &Path) -> Snapshot {
    let mounted = Mounted::archfs(archive, &work.join("archfs"), &[]);
    take(mounted.path(), Depth::Everything)
}

/// A new, empty folder in `work`.
fn folder(work: &Path, name: &str) -> PathBuf {
    let folder = work.join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    folder
}

/// Writes files of these contents, with the folders that they are in.
fn write_all(root: &Path, files: &[(&str, &[u8])]) {
    for (path, bytes) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// The names in a folder, sorted, hidden ones too.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The sum of a file's bytes, to tell whether two are the same.
fn sum(path: &Path) -> u64 {
    support::snapshot::content(path)
}

/// Paths and contents alone: for what keeps nothing else.
fn contents(snapshot: &Snapshot) -> Vec<(Vec<u8>, u64)> {
    let files = snapshot.iter().filter(|(_, node)| node.mode & 0o170_000 == 0o100_000);
    files.map(|(path, node)| (path.clone(), node.content)).collect()
}

/// Runs a command made of words, which must succeed; its standard output.
fn said(words: &[&str]) -> String {
    let output = support::run(Command::new(words[0]).args(&words[1..]));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The image must show `expected` in the kernel and in archfs.
fn assert_shows(what: &str, image: &Path, expected: &Snapshot, work: &Path) {
    assert_same(&format!("{what}: the kernel"), expected, &by_kernel(image, work));
    assert_same(&format!("{what}: archfs"), expected, &by_archfs(image, work));
}
