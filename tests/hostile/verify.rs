//! `archfs verify` reports exactly the files that cannot be read.
//!
//! Compares its report, path by path, with reading known paths, because a damaged listing no longer
//! shows them.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use archfs::formats::{self, OpenOptions};
use archfs::progress::Progress;
use archfs::vfs::{self, Counts, FileKind, Finding, Location, Severity, Tree, Verified};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::pack::seekable_zstd;
use crate::support::{archfs, image, run, source, tar, tree, wait_until, work_directory};

fn options() -> OpenOptions {
    OpenOptions { cache_bytes: 64 << 20, ..OpenOptions::default() }
}

/// The report of the library.
fn verify_with(archive: &Path, options: &OpenOptions) -> archfs::error::Result<Verified> {
    formats::verify(&archive.to_owned(), options, 2, &Progress::default())
}

fn verify(archive: &Path) -> archfs::error::Result<Verified> {
    verify_with(archive, &options())
}

/// The report of the program, from its JSON.
fn reported(archive: &Path) -> (Output, Vec<Value>) {
    let output = archfs().args(["verify", "--json"]).arg(archive).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output, rows)
}

/// All paths of a directory without a leading slash; the directory itself is "".
fn paths(root: &Path) -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::from([Vec::new()]);
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            found.insert(path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec());
            if path.symlink_metadata().unwrap().is_dir() {
                waiting.push(path);
            }
        }
    }
    found
}

/// The counts that `find` would give for a directory.
fn counts(root: &Path) -> Counts {
    let mut counts = Counts::default();
    let mut inodes = BTreeSet::new();
    for path in paths(root) {
        let found = root.join(std::ffi::OsStr::from_bytes(&path)).symlink_metadata().unwrap();
        let kind = found.file_type();
        if kind.is_file() {
            counts.files += 1;
            counts.bytes += if inodes.insert(found.ino()) { found.len() } else { 0 };
        } else if kind.is_dir() {
            counts.directories += 1;
        } else if kind.is_symlink() {
            counts.links += 1;
        } else {
            counts.others += 1;
        }
    }
    counts
}

/// Reads `path` without listing its directory.
fn read(tree: &dyn Tree, path: &[u8]) -> archfs::error::Result<()> {
    let attr = vfs::resolve(tree, path)?;
    for name in tree.list_xattrs(attr.ino)?.split(|&byte| byte == 0) {
        if !name.is_empty() {
            tree.xattr(attr.ino, name)?;
        }
    }
    match attr.kind {
        FileKind::Regular => tree::contents(tree, attr.ino).map(drop),
        FileKind::Symlink => tree.read_link(attr.ino).map(drop),
        FileKind::Directory => tree
            .read_dir(attr.ino, vfs::Cookie::START, &mut |_| std::ops::ControlFlow::Continue(())),
        _ => Ok(()),
    }
}

/// The unreadable paths among `paths`; all of them if the archive cannot be opened.
fn unreadable(archive: &Path, paths: &BTreeSet<Vec<u8>>) -> BTreeSet<Vec<u8>> {
    match tree::open(&[archive.to_owned()], OpenOptions::default()) {
        Ok(tree) => {
            let fails = |path: &&Vec<u8>| read(tree.as_ref(), path).is_err();
            paths.iter().filter(fails).cloned().collect()
        }
        Err(_) => paths.clone(),
    }
}

/// The paths that a report calls damaged.
fn damaged(findings: &[Finding]) -> BTreeSet<Vec<u8>> {
    let damaged = findings.iter().filter(|finding| finding.severity == Severity::Damage);
    damaged
        .filter_map(|finding| match &finding.location {
            Location::Path(path) => Some(path.clone()),
            _ => None,
        })
        .collect()
}

/// Whether `path` or a directory above it is in `damaged`.
fn is_covered(path: &[u8], damaged: &BTreeSet<Vec<u8>>) -> bool {
    let above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    damaged.contains(path)
        || damaged.contains(&b""[..])
        || above.map(|(at, _)| &path[..at]).any(|directory| damaged.contains(directory))
}

fn u64_at(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// A tree for damage: files of blocks, of tails and of both, with two names, in directories, with
/// extended attributes. Its text compresses, so that an image stores no byte uncompressed.
fn small_tree(root: &Path) {
    let text = |seed: usize, len: usize| -> Vec<u8> {
        let lines = (0..).map(|line| format!("{} of {seed}: {}\n", line, line * line * seed));
        lines.flat_map(String::into_bytes).take(len).collect()
    };
    for directory in 0..4_usize {
        let path = root.join(format!("folder{directory}/inner"));
        fs::create_dir_all(&path).unwrap();
        for file in 0..30_usize {
            let seed = directory * 100 + file + 1;
            fs::write(path.join(format!("small{file}")), text(seed, 50 + seed * 9)).unwrap();
        }
        fs::write(path.join("../large"), text(directory + 7, 100_000)).unwrap();
        std::os::unix::fs::symlink("inner/small1", path.join("../link")).unwrap();
    }
    fs::hard_link(root.join("folder0/large"), root.join("folder2/hard")).unwrap();
    fs::hard_link(root.join("folder1/inner/small3"), root.join("hard-small")).unwrap();
    let none = rustix::fs::XattrFlags::empty();
    for (file, value) in [("folder0/large", "one"), ("folder3", "two"), ("hard-small", "three")] {
        rustix::fs::setxattr(root.join(file), "user.x", value.as_bytes(), none).unwrap();
    }
}

/// `mount` refuses such an archive without `--partial`, so a job script that verifies it first must
/// not go on.
#[test]
fn an_archive_with_encrypted_members_is_not_called_sound() {
    let work = work_directory();
    let (file, archive) = (work.path().join("a.txt"), work.path().join("all.zip"));
    fs::write(&file, "a secret").unwrap();
    run(Command::new("zip").args(["-qjP", "password"]).arg(&archive).arg(&file));
    let (output, rows) = reported(&archive);
    assert_eq!(output.status.code(), Some(1));
    let last = rows.last().unwrap();
    assert_eq!((&last["status"], &last["unreadable"]), (&"unreadable".into(), &1.into()));
    assert_eq!(rows[0]["what"], "left out 1: encrypted files, such as \"a.txt\"");
    let refused = archfs().arg("mount").arg(&archive).arg(work.path().join("m")).output().unwrap();
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(3));
    assert!(stderr.contains("unpack it with 7z") && !stderr.contains("--partial"), "{stderr}");
}

#[test]
fn sound_images_pass_and_their_contents_are_counted() {
    let work = work_directory();
    let source = source::varied();
    let expected = counts(&source);
    let mut odd = image::COMPRESSORS.map(|name| vec!["-comp", name]).to_vec();
    odd.push(vec!["-comp", "zstd", "-b", "4K", "-no-fragments", "-no-exports"]);
    odd.push(vec!["-comp", "gzip", "-always-use-fragments", "-noI", "-noD", "-noF", "-noX"]);
    odd.push(vec!["-comp", "zstd", "-no-xattrs", "-no-duplicates", "-nopad"]);
    for options in odd {
        let image = image::make(work.path(), "sound.sqfs", &source, &options);
        let Verified { counts, findings } = verify(&image).unwrap();
        assert_eq!(findings, [], "{options:?}");
        assert_eq!(counts, expected, "{options:?}");
    }
    // mksquashfs appends to an existing image, which leaves old directories in it.
    let image = image::make(work.path(), "grown.sqfs", &source, &["-comp", "zstd"]);
    fs::create_dir(work.path().join("more")).unwrap();
    fs::write(work.path().join("more/file"), "more").unwrap();
    for options in [vec![], vec!["-root-becomes", "old"]] {
        let mut command = Command::new("mksquashfs");
        command.arg(work.path().join("more")).arg(&image).args(["-quiet", "-no-progress"]);
        command.args(["-no-recovery"]).args(&options);
        run(&mut command);
        let Verified { findings, .. } = verify(&image).unwrap();
        assert!(findings.iter().all(|finding| finding.severity.is_note()), "{findings:?}");
    }
    let image = image::make(work.path(), "large.sqfs", &source::large(), &["-comp", "lz4"]);
    let Verified { counts: found, findings } = verify(&image).unwrap();
    assert_eq!((findings, found), (vec![], counts(&source::large())));
}

#[test]
fn sound_tars_pass_and_their_contents_are_counted() {
    let work = work_directory();
    let source = source::varied();
    let plain = work.path().join("sound.tar");
    let script = "cd \"$1\" && tar --format=gnu --sparse --xattrs -cf \"$2\" . 2> /dev/null";
    run(Command::new("sh").args(["-c", script, "sh"]).arg(&source).arg(&plain));
    // A tar has no sockets.
    let expected = counts(&source);
    let expected = Counts { others: expected.others - 1, ..expected };
    let bytes = fs::read(&plain).unwrap();
    let compressed = work.path().join("sound.tar.compressed");
    for program in [
        "cat",
        "gzip -1",
        "bzip2 -1",
        "xz -0",
        "xz -0 -T2 --block-size=1MiB",
        "zstd -1",
        "lz4",
        "seekable",
    ] {
        if program == "seekable" {
            fs::write(&compressed, seekable_zstd(&bytes, 300_000)).unwrap();
        } else {
            let script = format!("{program} < \"$1\" > \"$2\"");
            run(Command::new("sh").args(["-c", &script, "sh"]).arg(&plain).arg(&compressed));
        }
        let Verified { counts, findings } = verify(&compressed).unwrap();
        assert_eq!((findings, counts), (vec![], expected), "{program}");
    }
}

#[test]
fn a_damaged_image_reports_exactly_its_unreadable_paths() {
    let work = work_directory();
    let source = work.path().join("source");
    small_tree(&source);
    let known = paths(&source);
    let (mut some, mut all, mut none) = (0, 0, 0);
    // Both compressors have checksums, so every wrong bit is noticed.
    for compressor in ["gzip", "xz"] {
        let options = ["-comp", compressor, "-b", "16K", "-noId"];
        let sound = image::make(work.path(), "sound.sqfs", &source, &options);
        let bytes = fs::read(&sound).unwrap();
        let used = u64_at(&bytes, 40);
        let bad = work.path().join("bad.sqfs");
        for nth in 0..150 {
            let at = 96 + (used - 96) * nth / 150;
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << (nth % 8);
            fs::write(&bad, bytes).unwrap();
            let fails = unreadable(&bad, &known);
            let findings = match verify(&bad) {
                Ok(Verified { findings, .. }) => findings,
                Err(error) => {
                    assert!(error.is_damage() && fails == known, "{at:#x}: {error}");
                    all += 1;
                    continue;
                }
            };
            let paths = damaged(&findings);
            for path in &fails {
                let shown = path.escape_ascii();
                assert!(is_covered(path, &paths), "{at:#x}: {shown} fails: {findings:?}");
            }
            for path in &paths {
                let shown = path.escape_ascii();
                assert!(fails.contains(path), "{at:#x}: {shown} can be read: {findings:?}");
            }
            match (fails.is_empty(), findings.iter().any(|f| f.severity == Severity::Damage)) {
                (true, false) => none += 1,
                _ => some += 1,
            }
        }
    }
    // The unnoticed ones hit a list of positions, or the size before a block of compressor options.
    assert!(some > 200 && all < 60 && none < 40, "{some} some, {all} all, {none} none");
}

#[test]
fn every_name_of_every_file_in_a_damaged_block_is_reported() {
    let work = work_directory();
    let source = work.path().join("source");
    small_tree(&source);
    let sound = image::make(work.path(), "sound.sqfs", &source, &["-comp", "gzip", "-no-exports"]);
    let bytes = fs::read(&sound).unwrap();
    let bad = work.path().join("bad.sqfs");
    let reported_paths = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x55;
        fs::write(&bad, bytes).unwrap();
        damaged(&verify(&bad).unwrap().findings)
    };
    // With blocks of 128 KiB all data is in fragments. The first has the start of the tree.
    let reported_paths = reported_paths(200);
    assert!(reported_paths.len() > 20, "{reported_paths:?}");
    let has = |path: &str| reported_paths.contains(path.as_bytes());
    assert_eq!(has("folder0/large"), has("folder2/hard"));
    assert!(has("folder0/large") || has("folder0/inner/small0"), "{reported_paths:?}");

    let (output, rows) = reported(&bad);
    assert_eq!(output.status.code(), Some(3));
    let (last, findings) = rows.split_last().unwrap();
    let listed: BTreeSet<_> =
        findings.iter().map(|row| row["path"].as_str().unwrap().as_bytes().to_vec()).collect();
    assert_eq!(listed, reported_paths);
    assert_eq!(
        (&last["status"], &last["damaged"]),
        (&"damaged".into(), &reported_paths.len().into())
    );
    let lines = archfs().arg("verify").arg(&bad).output().unwrap();
    assert_eq!(lines.status.code(), Some(3));
    let text = String::from_utf8(lines.stdout).unwrap();
    let listed: BTreeSet<_> =
        text.lines().map(|line| line.split(": ").next().unwrap().as_bytes().to_vec()).collect();
    assert_eq!(listed, reported_paths);
    assert!(text.contains("data block at 0x"), "{text}");
    let stderr = String::from_utf8(lines.stderr).unwrap();
    assert!(stderr.starts_with("archfs: error: ") && stderr.contains(": damaged: "), "{stderr}");
}

#[test]
fn contradicting_tables_are_reported() {
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir_all(source.join("folder")).unwrap();
    for (name, text) in [("a", "one"), ("folder/b", "two")] {
        fs::write(source.join(name), text).unwrap();
    }
    fs::hard_link(source.join("a"), source.join("folder/c")).unwrap();
    // With uncompressed metadata, so that fields can be changed.
    let options = ["-comp", "gzip", "-noI", "-noF", "-noD", "-noX", "-noId"];
    let sound = image::make(work.path(), "sound.sqfs", &source, &options);
    let bytes = fs::read(&sound).unwrap();
    let (inodes, directories) = (u64_at(&bytes, 64) + 2, u64_at(&bytes, 72) + 2);
    let export = u64_at(&bytes, u64_at(&bytes, 88)) + 2;
    let bad = work.path().join("bad.sqfs");
    let finding = |at: usize, bit: u8| {
        let mut bytes = bytes.clone();
        bytes[at] ^= bit;
        fs::write(&bad, bytes).unwrap();
        verify(&bad)
            .map_or_else(|error| error.to_string(), |verified| format!("{:?}", verified.findings))
    };
    assert_eq!(verify(&sound).unwrap().findings, []);
    assert!(finding(4, 1).contains("announced"), "{}", finding(4, 1));
    assert!(finding(export, 1).contains("export table: inode 1"), "{}", finding(export, 1));
    // The first inode is that of "a": an extended inode, because it has two names.
    let number = inodes + 12;
    assert_eq!(bytes[inodes..inodes + 2], [9, 0]);
    let wrong = finding(number, 2);
    assert!(wrong.contains("inode table: number"), "{wrong}");
    let links = finding(inodes + 16 + 24, 1);
    assert!(links.contains("its link count is 3, but the number of its names is 2"), "{links}");
    for path in ["\"a\"", "folder/c"] {
        let path = format!("{:?}", path.trim_matches('"').as_bytes());
        assert!(links.contains(&path), "{links}");
    }
    // In the first header: the base number of its entries.
    let named = finding(directories + 8, 1);
    assert!(named.contains("named as inode"), "{named}");
    // After the padding.
    let mut behind = bytes.clone();
    behind.truncate(u64_at(&bytes, 40));
    behind.extend(b"signature");
    fs::write(&bad, behind).unwrap();
    let findings = verify(&bad).unwrap().findings;
    assert!(
        matches!(findings.as_slice(), [Finding { severity, .. }] if severity.is_note()),
        "{findings:?}"
    );
}

#[test]
fn names_that_are_not_utf_8_are_exact_in_json() {
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir(&source).unwrap();
    let name = std::ffi::OsStr::from_bytes(b"a\xff\nb");
    fs::write(source.join(name), "text ".repeat(10_000)).unwrap();
    let image = image::make(work.path(), "bad.sqfs", &source, &["-comp", "gzip"]);
    let mut bytes = fs::read(&image).unwrap();
    bytes[120] ^= 0x55;
    fs::write(&image, bytes).unwrap();
    let (output, rows) = reported(&image);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(rows[0]["path_hex"], "61ff0a62");
    assert_eq!(rows[0]["path"], "a\u{fffd}\nb");
    assert_eq!(rows[0]["kind"], "damaged");
}

/// Checks that `verify` reports damage of `bytes` in these words and for these paths.
fn assert_finding(name: &str, bytes: &[u8], text: &str, paths: &[&str]) {
    let work = work_directory();
    let archive = work.path().join(name);
    fs::write(&archive, bytes).unwrap();
    let findings = verify(&archive).unwrap().findings;
    let expected: BTreeSet<_> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
    assert_eq!(damaged(&findings), expected, "{name}: {findings:?}");
    let matches =
        |finding: &Finding| finding.severity == Severity::Damage && finding.what.contains(text);
    assert!(findings.iter().any(matches), "{name}: {text}: {findings:?}");
}

#[test]
fn damage_of_a_tar_is_reported_with_its_member_if_known() {
    let file = |name: &str| tar::member(name, b'0', "", &[b'x'; 2000]);
    let end = vec![0; 1024];
    let link = tar::member("folder/link", b'1', "nowhere", b"");
    let link = [file("a"), link, file("b"), end.clone()].concat();
    assert_finding("link.tar", &link, "a hard link to \"nowhere\"", &["folder/link"]);
    let sound = [file("a"), file("./folder/b"), file("c"), end].concat();
    let step = file("a").len();
    assert_finding("cut.tar", &sound[..step + 1000], "cut off", &["folder/b"]);
    assert_finding("header.tar", &sound[..step + 100], "cut off: a header", &[]);
    // Without an end mark, but complete.
    let work = work_directory();
    let archive = work.path().join("mark.tar");
    fs::write(&archive, &sound[..3 * step]).unwrap();
    let findings = verify(&archive).unwrap().findings;
    assert!(findings.iter().all(|finding| finding.severity == Severity::Note), "{findings:?}");
    assert!(findings.iter().any(|finding| finding.what.contains("no end mark")), "{findings:?}");
    run(archfs().args(["pack", "-q"]).arg(&archive).arg(work.path().join("packed.sqfs")));
    let mut header = sound.clone();
    header[step + 3] ^= 1;
    assert_finding("bad.tar", &header, "there is no header", &[]);
    let mut size = sound.clone();
    // Invalid digits, with a checksum that matches.
    size[step + 124..step + 136].fill(b'z');
    size[step + 148..step + 156].fill(b' ');
    let sum: u32 = size[step..step + 512].iter().map(|byte| u32::from(*byte)).sum();
    size[step + 148..step + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    assert_finding("size.tar", &size, "member \"./folder/b\"", &["folder/b"]);
    let garbage = [&sound[..], &[b'g'; 512]].concat();
    assert_finding("behind.tar", &garbage, "is not a tar", &[]);
}

#[test]
fn damage_anywhere_in_a_compressed_tar_is_reported() {
    let work = work_directory();
    let source = work.path().join("source");
    small_tree(&source);
    let plain = work.path().join("plain.tar");
    tar::pack(&plain, &source);
    let compressed = work.path().join("compressed");
    for program in
        ["gzip", "bzip2", "xz -T1", "xz -T2 --block-size=200KiB", "zstd", "lz4", "lz4 -BD"]
    {
        let script = format!("{program} < \"$1\" > \"$2\"");
        run(Command::new("sh").args(["-c", &script, "sh"]).arg(&plain).arg(&compressed));
        let sound = fs::read(&compressed).unwrap();
        let assert_reported = |what: &str, bytes: &[u8]| {
            fs::write(&compressed, bytes).unwrap();
            let is_reported = match verify(&compressed) {
                Ok(Verified { findings, .. }) => {
                    findings.iter().any(|finding| finding.severity == Severity::Damage)
                }
                Err(error) => error.is_damage(),
            };
            assert!(is_reported, "{program}: {what}");
            assert_eq!(reported(&compressed).0.status.code(), Some(3), "{program}: {what}");
        };
        let len = sound.len();
        assert_reported("cut", &sound[..len * 2 / 3]);
        assert_reported("the last byte is missing", &sound[..len - 1]);
        assert_reported("garbage", &[&sound[..], b"garbage"].concat());
        for (what, at) in [("middle", len / 2), ("checksum", len - 2), ("early", len - 6)] {
            // A match may have two sources with the same bytes, so some changes have no effect.
            // Then the compressor itself decompresses to the original.
            let changed = (at..len).map(|at| {
                let mut bytes = sound.clone();
                bytes[at] ^= 0x20;
                bytes
            });
            let damaged = changed.take(10).find(|bytes| !unpacks(program, bytes, &plain));
            assert_reported(what, &damaged.unwrap());
        }
        fs::write(&compressed, &sound).unwrap();
        assert_eq!(verify(&compressed).unwrap().findings, [], "{program}");
    }
}

/// Whether the compressor decompresses `bytes` to the file `plain` without an error.
fn unpacks(program: &str, bytes: &[u8], plain: &Path) -> bool {
    let compressed = plain.with_extension("changed");
    fs::write(&compressed, bytes).unwrap();
    let name = program.split(' ').next().unwrap();
    let output =
        Command::new(name).args(["-dc"]).stdin(fs::File::open(compressed).unwrap()).output();
    let output = output.unwrap();
    output.status.success() && output.stdout == fs::read(plain).unwrap()
}

#[test]
fn verify_compares_a_saved_index_and_writes_none() {
    let work = work_directory();
    let with = |fiftieth: &str| {
        let names: Vec<_> = (0..100).map(|n| format!("f{n:03}")).collect();
        let name = |n: usize| if n == 50 { fiftieth } else { names[n].as_str() };
        tar::of(&(0..100).map(|n| (name(n), &b"data"[..])).collect::<Vec<_>>())
    };
    let archive = work.path().join("data.tar");
    let write = |bytes: &[u8], time: SystemTime| {
        fs::write(&archive, bytes).unwrap();
        fs::File::options().write(true).open(&archive).unwrap().set_modified(time).unwrap();
    };
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    write(&with("f050"), time);
    assert_eq!(verify(&archive).unwrap().findings, []);
    let beside = work.path().join("data.tar.archfs-index");
    assert!(!beside.exists());
    run(archfs().args(["index", "-q"]).arg(&archive));
    assert_eq!(verify(&archive).unwrap().findings, []);
    // Another name in an unsampled member, with the same mtime: a mount uses the index.
    write(&with("f05x"), time);
    let findings = verify(&archive).unwrap().findings;
    assert!(
        matches!(findings.as_slice(), [Finding { severity: Severity::Damage, location: Location::Archive, what }]
            if what.contains("contradicts the archive")),
        "{findings:?}"
    );
    // A mount does not use it, so it does no harm.
    write(&with("f05x"), time + Duration::from_secs(1));
    let findings = verify(&archive).unwrap().findings;
    assert!(
        matches!(findings.as_slice(), [Finding { severity: Severity::LeftOut | Severity::Note, what, .. }]
            if what.contains("the archive has changed since")),
        "{findings:?}"
    );
}

#[test]
fn nested_archives_are_verified_under_their_directories() {
    let work = work_directory();
    let source = work.path().join("source");
    small_tree(&source);
    let image = image::make(work.path(), "inner.sqfs", &source, &["-comp", "gzip"]);
    let sound = fs::read(&image).unwrap();
    let outer = work.path().join("outer.tar");
    let recursive = OpenOptions { recursive: true, ..options() };
    let inner = tar::of(&[("deep", b"data")]);
    let pack = |image: &[u8], inner: &[u8]| {
        let bytes = tar::of(&[("a/inner.sqfs", image), ("b/inner.tar", inner), ("c", b"c")]);
        fs::write(&outer, bytes).unwrap();
    };
    pack(&sound, &inner);
    let Verified { counts: found, findings } = verify_with(&outer, &recursive).unwrap();
    assert_eq!(findings, []);
    let expected = counts(&source);
    assert_eq!((found.files, found.links), (expected.files + 2, expected.links));
    assert_eq!(found.directories, expected.directories + 4, "a, b, inner, and the root");
    let mut bad = sound;
    bad[200] ^= 0x55;
    pack(&bad, &inner[..600]);
    let paths = damaged(&verify_with(&outer, &recursive).unwrap().findings);
    assert!(paths.iter().any(|path| path.starts_with(b"a/inner/folder0/")), "{paths:?}");
    assert!(paths.contains(&b"b/inner"[..]), "{paths:?}");
    bad[28] = 9;
    pack(&bad, &inner);
    let findings = verify_with(&outer, &recursive).unwrap().findings;
    assert_eq!(damaged(&findings), BTreeSet::from([b"a/inner".to_vec()]), "{findings:?}");
}

/// A symbolic link on Linux would end at the NUL, and lead to another file.
#[test]
fn a_nul_in_the_target_of_a_link_is_damage_in_every_format() {
    let work = work_directory();
    let path = |name: &str| work.path().join(name);
    let script = "import io, sys, tarfile, zipfile
with tarfile.open(sys.argv[1], 'w', format=tarfile.PAX_FORMAT) as tar:
    link = tarfile.TarInfo('link')
    link.type, link.linkname, link.pax_headers = tarfile.SYMTYPE, 'one', {'linkpath': 'one\\0two'}
    tar.addfile(link)
with zipfile.ZipFile(sys.argv[2], 'w') as archive:
    link = zipfile.ZipInfo('link')
    link.create_system, link.external_attr = 3, 0o120777 << 16
    archive.writestr(link, b'one\\0two')";
    run(Command::new("python3").args(["-c", script]).args([path("a.tar"), path("a.zip")]));
    fs::create_dir(path("tree")).unwrap();
    std::os::unix::fs::symlink("one-two", path("tree/link")).unwrap();
    let image = image::make(work.path(), "a.sqfs", &path("tree"), &["-noI"]);
    let mut bytes = fs::read(&image).unwrap();
    let at = bytes.windows(7).position(|found| found == b"one-two").unwrap();
    bytes[at + 3] = 0;
    fs::write(&image, bytes).unwrap();
    for archive in ["a.tar", "a.zip", "a.sqfs"].map(path) {
        let what = archive.display();
        let found = verify(&archive).unwrap().findings;
        assert_eq!(damaged(&found), BTreeSet::from([b"link".to_vec()]), "{what}: {found:?}");
        assert_eq!(unreadable(&archive, &damaged(&found)), damaged(&found), "{what}");
        for (command, made) in [("extract", "made"), ("pack", "made.sqfs")] {
            let made = path(made);
            let output = archfs().args([command, "-q"]).arg(&archive).arg(&made).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{what}: {command}: {stderr}");
            assert!(stderr.contains("link: ") && stderr.contains("NUL"), "{command}: {stderr}");
            let _ = fs::remove_dir_all(made);
        }
    }
}

#[test]
fn every_outcome_has_its_exit_status() {
    let work = work_directory();
    let image = image::small(work.path());
    let status = |arguments: &[&str]| {
        let output = archfs().arg("verify").args(arguments).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let image = image.to_str().unwrap();
    let (code, stderr) = status(&[image]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stderr.starts_with("archfs: note: ")
            && stderr.contains(": no damage found: 2 files, 2 directories"),
        "{stderr}"
    );
    assert_eq!(status(&["-q", image]), (0, String::new()));
    let missing = work.path().join("missing").display().to_string();
    let (code, stderr) = status(&[&missing]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("no such file"), "{stderr}");
    assert_eq!(status(&[]).0, 2);
    assert_eq!(status(&["--offset", "9", image, image]).0, 2);
    let text = work.path().join("text");
    fs::write(&text, "no archive").unwrap();
    let text = text.to_str().unwrap();
    let (code, stderr) = status(&[text]);
    assert_eq!(code, 3);
    assert!(stderr.contains("hint: "), "{stderr}");
    // Of several results the worst counts.
    assert_eq!(status(&[image, text, &missing]).0, 3);
    assert_eq!(status(&[image, &missing]).0, 1);
    let (output, rows) = reported(Path::new(text));
    assert_eq!(output.status.code(), Some(3));
    assert_eq!((&rows[0]["path"], &rows[1]["status"]), (&Value::Null, &"damaged".into()));
}

#[test]
fn verify_shows_a_progress_bar_and_ends_at_once_on_a_signal() {
    let work = work_directory();
    // Without the end-of-archive marker, which is a note.
    let archive = tar::slow_archive(work.path(), 20);
    let line = format!("{} verify {}", env!("CARGO_BIN_EXE_archfs"), archive.display());
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env("COLUMNS", "80");
    let mut child = terminal.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = String::new();
    child.stdout.take().unwrap().read_to_string(&mut seen).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{seen:?}");
    assert!(seen.contains("reading contents"), "{seen:?}");
    assert!(seen.contains(": no damage found: 1 file,"), "{seen:?}");

    let archive = tar::slow_archive(work.path(), 200);
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(env!("CARGO_BIN_EXE_archfs")).arg("verify").arg(&archive);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let io = format!("/proc/{}/io", child.id());
    wait_until("it is at work", || {
        let text = fs::read_to_string(&io).unwrap_or_default();
        let read = text.lines().find_map(|line| line.strip_prefix("rchar: "));
        read.is_some_and(|read| read.parse::<u64>().unwrap() > 1 << 20)
    });
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    wait_until("it has ended", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::INT.as_raw()));
}

#[test]
fn memory_does_not_grow_with_the_archive() {
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir(&source).unwrap();
    let script = "seq 1 100000000 | head -c 400000000 | split -b 40000000 - \"$1/part\"";
    run(Command::new("sh").args(["-c", script, "sh"]).arg(&source));
    let image = image::make(work.path(), "large.sqfs", &source, &["-comp", "lz4"]);
    fs::remove_dir_all(&source).unwrap();
    let mut command = archfs();
    command.args(["verify", "-q", "--threads", "2", "--cache", "16M"]).arg(&image);
    let mut child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        // Empty once the process has exited.
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        most = most.max(kib.unwrap_or(0));
        std::thread::yield_now();
    }
    assert!(child.wait().unwrap().success());
    assert!((1024..100 << 10).contains(&most), "{most} KiB, for 400 MB of contents");
}

/// The crate backhand writes such an entry to images without tails.
#[test]
fn an_unused_fragment_of_0_bytes_is_a_note() {
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), b"data").unwrap();
    let image = image::make(work.path(), "image.sqfs", &source, &["-no-fragments", "-nopad"]);
    let mut bytes = fs::read(&image).unwrap();
    let block = bytes.len() as u64;
    // An uncompressed metadata block with one entry: start, size and an unused field, all zero.
    bytes.extend([16, 0x80]);
    bytes.extend([0; 16]);
    let table = bytes.len() as u64;
    bytes.extend(block.to_le_bytes());
    // The superblock: number of fragments, bytes used, start of the fragment table.
    bytes[16..20].copy_from_slice(&1_u32.to_le_bytes());
    let used = bytes.len() as u64;
    bytes[40..48].copy_from_slice(&used.to_le_bytes());
    bytes[80..88].copy_from_slice(&table.to_le_bytes());
    fs::write(&image, bytes).unwrap();
    let (output, rows) = reported(&image);
    assert_eq!(output.status.code(), Some(0), "{rows:?}");
    let notes: Vec<_> = rows.iter().filter_map(|row| row["what"].as_str()).collect();
    assert_eq!(notes, ["fragment blocks that no file uses: 1"], "{rows:?}");
    let again = work.path().join("again.sqfs");
    run(archfs().args(["pack", "-q"]).arg(&image).arg(&again));
    assert_eq!(run(archfs().arg("cat").arg(&again).arg("file")).stdout, b"data");
}
