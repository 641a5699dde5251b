//! Reads the Linux source as Debian ships it (1.3 GB in 80,000 files, xz blocks of 24 MiB) and
//! compares every file with Python's tarfile.
//!
//! Other archives made of it are kept between runs. The slowest ones run only if ARCHFS_LONG_TESTS
//! is set.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use archfs::formats::OpenOptions;
use archfs::vfs::{FileKind, resolve};

use crate::support;
use crate::support::mount::Mounted;
use crate::support::skip::skip;
use crate::support::{pack, run, skip_without_mounts, source, tree, work_directory};

/// The archive, if the package linux-source is installed.
fn shipped() -> Option<PathBuf> {
    let entries = fs::read_dir("/usr/src").into_iter().flatten();
    let mut found: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with("linux-source-") && name.ends_with(".tar.xz")
        })
        .collect();
    found.sort();
    if found.is_empty() {
        let debian = Path::new("/etc/debian_version").exists();
        let must = debian && std::env::var_os("CI").is_some();
        assert!(!must, "CI on Debian must have linux-source: scripts/install-deps test");
        skip("no /usr/src/linux-source-*.tar.xz (Debian: linux-source)");
    }
    found.pop()
}

/// An archive made from the shipped one by a shell line, once.
fn repacked(shipped: &Path, ending: &str, program: &'static str, line: &str) -> Option<PathBuf> {
    if !pack::is_there(program) {
        return None;
    }
    let name = format!("{}.{ending}", shipped.file_stem().unwrap().to_string_lossy());
    Some(source::made_file(&name, |target| {
        let mut shell = Command::new("bash");
        let script = format!("xz -T0 -dc $1 | {line} > $2");
        run(shell.args(["-ec", &script, "bash"]).arg(shipped).arg(target));
    }))
}

/// The lines of tests/python/tar_tree.py: path in hex, then its properties.
fn expected(shipped: &Path) -> BTreeMap<Vec<u8>, String> {
    let name = format!("{}.lines", shipped.file_stem().unwrap().to_string_lossy());
    let lines = source::made_file(&name, |target| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/tar_tree.py");
        let mut python = Command::new("python3");
        python.arg(script).arg(shipped).stdout(Stdio::from(File::create(target).unwrap()));
        assert!(python.status().unwrap().success());
    });
    let text = fs::read_to_string(lines).unwrap();
    let unhex = |text: &str| {
        let digits = (0..text.len()).step_by(2);
        digits.map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    };
    text.lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(path, rest)| (unhex(path), rest.to_owned()))
        .collect()
}

/// Opens `archive` and compares every file with Python's tarfile, without and with an index.
fn assert_same_tree(archive: &Path, expected: &BTreeMap<Vec<u8>, String>) {
    let work = work_directory();
    let name = archive.file_name().unwrap().to_string_lossy().into_owned();
    let options =
        || OpenOptions { index: Some(work.path().join("index")), ..OpenOptions::default() };
    let start = Instant::now();
    let first = tree::open(&[archive.to_owned()], options()).unwrap();
    let opened = start.elapsed();
    let mut found = tree::lines(first.as_ref());
    found.remove(b"/".as_slice());
    eprintln!("{name}: opened in {opened:.1?}, all read after {:.1?}", start.elapsed());
    let other = expected.iter().find(|(path, line)| found.get(*path) != Some(line));
    assert_eq!(other, None, "{name}: not so");
    assert_eq!(found.len(), expected.len(), "{name}");
    drop(first);

    let start = Instant::now();
    let again = tree::open(&[archive.to_owned()], options()).unwrap();
    eprintln!("{name}: opened from its index in {:.1?}", start.elapsed());
    let files: Vec<_> = expected.iter().filter(|(_, line)| line.starts_with('-')).collect();
    for (path, line) in files.iter().step_by(files.len() / 300) {
        let attr = resolve(again.as_ref(), path).unwrap();
        assert_eq!(attr.kind, FileKind::Regular);
        let bytes = tree::contents(again.as_ref(), attr.ino).unwrap();
        let sum = line.split(' ').nth(6).unwrap();
        assert_eq!(crc32fast::hash(&bytes).to_string(), sum, "{}", path.escape_ascii());
    }
}

#[test]
fn every_file_of_the_linux_source_matches_tarfile() {
    let Some(shipped) = shipped() else { return };
    let expected = expected(&shipped);
    assert!(expected.len() > 50_000, "{} files", expected.len());
    assert_same_tree(&shipped, &expected);
    let assert_repacked = |(ending, program, line)| {
        if let Some(archive) = repacked(&shipped, ending, program, line) {
            assert_same_tree(&archive, &expected);
        }
    };
    assert_repacked(("gz", "gzip", "gzip -1 -c"));
    if std::env::var_os("ARCHFS_LONG_TESTS").is_none() {
        eprintln!("SKIPPED: zstd, lz4, bzip2, one block; set ARCHFS_LONG_TESTS=1 to test them");
        return;
    }
    for made in [
        ("zst", "pzstd", "pzstd -q -1 -c"),
        ("lz4", "lz4", "lz4 -q -c"),
        ("bz2", "pbzip2", "pbzip2 -c"),
        ("one-frame.zst", "zstd", "zstd -q -1 -c"),
        ("one-block.xz", "xz", "xz -T1 -0 -c"),
        ("dependent.lz4", "lz4", "lz4 -q -BD -c"),
    ] {
        assert_repacked(made);
    }
}

#[test]
fn a_mount_of_the_linux_source_matches_gnu_tar() {
    let Some(shipped) = shipped().filter(|_| !skip_without_mounts()) else { return };
    let work = work_directory();
    // GNU tar reads the whole archive for this, so a part of the tree is enough.
    let part = "*/Documentation/admin-guide";
    let mut tar = Command::new("tar");
    run(tar.arg("-C").arg(work.path()).args(["--wildcards", "-xpf"]).arg(&shipped).arg(part));
    let top = fs::read_dir(work.path()).unwrap().next().unwrap().unwrap().file_name();
    let index = work.path().join("index").display().to_string();
    let mounted = Mounted::archfs(&shipped, &work.path().join("mount"), &["--index", &index]);
    let below = |root: &Path| root.join(&top).join("Documentation/admin-guide");
    let snapshot =
        |root: &Path| support::snapshot::take(&below(root), support::snapshot::Depth::Everything);
    let (mut extracted, mut shown) = (snapshot(work.path()), snapshot(mounted.path()));
    // GNU tar loses the mtime of a directory that the archive returns to.
    let directories = |node: &&mut support::snapshot::Node| node.mode & 0o170_000 == 0o040_000;
    extracted
        .values_mut()
        .chain(shown.values_mut())
        .filter(directories)
        .for_each(|n| n.seconds = 0);
    assert!(extracted.len() > 300, "{} files", extracted.len());
    support::snapshot::assert_same("admin-guide", &extracted, &shown);
}
