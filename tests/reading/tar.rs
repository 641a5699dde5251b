//! Compares tars with what GNU tar extracts and Python's tarfile reads.
//!
//! Covers every GNU tar format and sparse version, bsdtar, Python and its own test archive, odd
//! paths, appended and concatenated archives, and damage. `tar_index.rs` covers saved indexes,
//! `many.rs` nested and merged archives.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use archfs::formats::OpenOptions;
use archfs::vfs::{FileKind, resolve};
use rustix::fs::{SeekFrom, seek};

use crate::support;
use crate::support::mount::Mounted;
use crate::support::skip::skip;
use crate::support::snapshot::{Depth, assert_same, take};
use crate::support::tar::member;
use crate::support::{run, skip_without_mounts, source, tree, work_directory};

/// Packs `directory` with GNU tar, which skips what its format does not support and reports it.
fn gnu_tar(archive: &Path, directory: &Path, options: &[&str]) {
    let mut command = Command::new("tar");
    command.arg("-C").arg(directory).args(options).arg("-cf").arg(archive).arg(".");
    let status = command.output().unwrap().status;
    assert!(matches!(status.code(), Some(0 | 2)), "{command:?}: {status}");
}

/// Extracts an archive with GNU tar into a new directory.
fn extracted(archive: &Path, directory: &Path) -> PathBuf {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir(directory).unwrap();
    let mut command = Command::new("tar");
    command.args(["--xattrs", "--xattrs-include=*", "--numeric-owner", "-S"]);
    run(command.arg("-xpf").arg(archive).arg("-C").arg(directory));
    directory.to_owned()
}

/// The lines for an archive from Python's tarfile.
fn python_lines(archive: &Path) -> BTreeMap<Vec<u8>, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/tar_tree.py");
    let output = run(Command::new("python3").arg(script).arg(archive));
    let text = String::from_utf8(output.stdout).unwrap();
    let unhex = |text: &str| -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect()
    };
    text.lines()
        .map(|line| {
            let (path, rest) = line.split_once(' ').unwrap();
            let path = if path == "/" { b"/".to_vec() } else { unhex(path) };
            (path, rest.to_owned())
        })
        .collect()
}

/// Compares with tarfile, except for directories that have no member, which only archfs shows.
fn assert_as_python(what: &str, archive: &Path) {
    let found = tree::lines(tree::open_one(archive).as_ref());
    let expected = python_lines(archive);
    for (path, line) in &expected {
        let shown = path.escape_ascii();
        assert_eq!(found.get(path), Some(line), "{what}: {shown}");
    }
    for (path, line) in found.iter().filter(|(path, _)| !expected.contains_key(*path)) {
        let below = [path.as_slice(), b"/"].concat();
        let implied = path == b"/" || expected.keys().any(|other| other.starts_with(&below));
        assert!(line.starts_with("d ") && implied, "{what}: {} is too many", path.escape_ascii());
    }
}

/// Checks that a mounted archive shows what GNU tar extracts.
fn assert_as_extracted(what: &str, archive: &Path, work: &Path) {
    let mut expected = take(&extracted(archive, &work.join("extracted")), Depth::Everything);
    assert!(expected.len() > 1, "{what}: nothing was extracted");
    let mounted = Mounted::archfs(archive, &work.join("mount"), &[]);
    let mut found = take(mounted.path(), Depth::Everything);
    if what.starts_with("bsdtar") {
        // bsdtar packs a directory, others, then the contents of the first. GNU tar loses the mtime
        // of a directory that it returns to.
        let directories = |node: &&mut support::snapshot::Node| node.mode & 0o170_000 == 0o040_000;
        expected
            .values_mut()
            .chain(found.values_mut())
            .filter(directories)
            .for_each(|n| n.seconds = 0);
    }
    assert_same(what, &expected, &found);
}

#[test]
fn every_gnu_tar_format_shows_what_gnu_tar_extracts() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archive = work.path().join("archive.tar");
    for format in ["v7", "oldgnu", "gnu", "ustar", "posix"] {
        gnu_tar(&archive, &source::varied(), &[&format!("--format={format}")]);
        assert_as_extracted(format, &archive, work.path());
        assert_as_python(format, &archive);
    }
    for options in [
        &["--format=posix", "--xattrs", "--xattrs-include=*"][..],
        &["--format=gnu", "--sparse"],
        &["--format=oldgnu", "--sparse"],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--sparse", "--sparse-version=1.0", "--xattrs", "--xattrs-include=*"],
        &["--format=gnu", "--blocking-factor=1"],
        &["--format=gnu", "--blocking-factor=2000", "--sort=name"],
    ] {
        let what = options.join(" ");
        gnu_tar(&archive, &source::varied(), options);
        assert_as_extracted(&what, &archive, work.path());
        assert_as_python(&what, &archive);
    }
}

#[test]
fn archives_of_bsdtar_show_what_gnu_tar_extracts() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archive = work.path().join("archive.tar");
    for format in ["ustar", "pax", "gnutar", "v7"] {
        let mut command = Command::new("bsdtar");
        command.arg("-C").arg(source::varied()).arg("--format").arg(format);
        // It fails on names that the format does not support, and packs the rest.
        let status = command.arg("-cf").arg(&archive).arg(".").output().unwrap().status;
        assert!(status.code().is_some_and(|code| code < 2), "{format}: {status}");
        if format != "pax" {
            // GNU tar and Python do not support libarchive's other encoding of extended attributes.
            assert_as_python(format, &archive);
        }
        // It writes a link to a pipe that v7 does not support, on which GNU tar fails.
        if format != "v7" {
            assert_as_extracted(&format!("bsdtar {format}"), &archive, work.path());
        }
    }
}

#[test]
fn archives_of_python_show_what_python_reads_and_gnu_tar_extracts() {
    let work = work_directory();
    let archive = work.path().join("archive.tar");
    // Prints the paths that the format does not support.
    let program = "import os, sys, tarfile\n\
        top = os.fsencode(sys.argv[2])\n\
        with tarfile.open(sys.argv[1], 'w', format=getattr(tarfile, sys.argv[3])) as archive:\n\
        \x20   for directory, directories, files in os.walk(top):\n\
        \x20       for path in [directory] + [os.path.join(directory, n) for n in files + directories]:\n\
        \x20           is_link = os.path.islink(path)\n\
        \x20           if path != directory and os.path.isdir(path) and not is_link:\n\
        \x20               continue\n\
        \x20           name = b'.' + path[len(top):]\n\
        \x20           try:\n\
        \x20               archive.add(os.fsdecode(path), os.fsdecode(name), recursive=False)\n\
        \x20           except ValueError:\n\
        \x20               print(os.fsdecode(name))\n";
    for (format, least) in [("GNU_FORMAT", 3000), ("PAX_FORMAT", 3000), ("USTAR_FORMAT", 1000)] {
        let mut python = Command::new("python3");
        let python = python.args(["-c", program]).arg(&archive).arg(source::varied()).arg(format);
        let left_out = String::from_utf8(run(python).stdout).unwrap();
        for path in left_out.lines() {
            let (_, name) = path.rsplit_once('/').unwrap();
            let is_too_much = name.len() > 100 || name == "link-long";
            assert!(format == "USTAR_FORMAT" && is_too_much, "{format}: {path} is left out");
        }
        let shown = python_lines(&archive).len();
        assert!(shown >= least, "{format}: {shown} members");
        assert_as_python(format, &archive);
        if !skip_without_mounts() {
            assert_as_extracted(&format!("Python {format}"), &archive, work.path());
        }
    }
}

#[test]
fn pythons_test_archive_matches_tarfile() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/tar_tree.py");
    let output = run(Command::new("python3").arg(script).arg("--find"));
    let path = String::from_utf8(output.stdout).unwrap();
    if path.is_empty() {
        skip("this Python came without test/testtar.tar");
        assert!(std::env::var_os("CI").is_none(), "CI must have Python's test archive");
        return;
    }
    let archive = Path::new(path.trim_end());
    assert_as_python("testtar.tar", archive);
}

#[test]
fn a_sparse_file_of_5_gib_keeps_its_size_data_and_holes() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archive = work.path().join("archive.tar");
    let tree = source::large();
    for options in [
        &["--format=gnu"][..],
        &["--format=posix", "--sparse-version=0.0"],
        &["--format=posix", "--sparse-version=0.1"],
        &["--format=posix", "--sparse-version=1.0"],
    ] {
        let what = options.join(" ");
        let options = [options, &["--sparse", "--exclude=hundred-thousand"]].concat();
        gnu_tar(&archive, &tree, &options);
        let mounted = Mounted::archfs(&archive, &work.path().join("mount"), &[]);
        let [ours, theirs] =
            [mounted.path(), &tree].map(|root| File::open(root.join("sparse-5g")).unwrap());
        let found = ours.metadata().unwrap();
        assert_eq!(found.len(), 5 << 30, "{what}");
        assert!(found.blocks() * 512 < 1 << 20, "{what}: {} blocks", found.blocks());
        let mut at = 0;
        let mut pieces = 0;
        while let Ok(start) = seek(&ours, SeekFrom::Data(at)) {
            let end = seek(&ours, SeekFrom::Hole(start)).unwrap();
            assert!(start >= at && end > start && end <= 5 << 30, "{what}: {at} {start} {end}");
            pieces += 1;
            at = end;
        }
        assert_eq!(pieces, 4, "{what}");
        assert_eq!(seek(&ours, SeekFrom::Hole(1 << 30)).unwrap(), 1 << 30);
        let mut buffers = [vec![0; 1 << 20], vec![0; 1 << 20]];
        for offset in [0, 1, (3 << 30) - 5, (4 << 30) - 4096, (5 << 30) - (1 << 20), 2 << 30] {
            let [a, b] = &mut buffers;
            ours.read_exact_at(a, offset).unwrap();
            theirs.read_exact_at(b, offset).unwrap();
            assert!(a == b, "{what}: other bytes within 1 MiB of {offset}");
        }
    }
}

/// The data ranges of a file, from SEEK_DATA and SEEK_HOLE.
fn pieces(file: &File) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        at = seek(file, SeekFrom::Hole(start)).unwrap();
        found.push((start, at));
    }
    found
}

/// > **lseek** with SEEK_DATA and SEEK_HOLE finds the holes that the archive records: in an image
/// > in units of its block size, in a tar as they were packed.
#[test]
fn a_sparse_file_of_20_gib_uses_base_256_offsets() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let directory = work.path().join("directory");
    fs::create_dir(&directory).unwrap();
    let source = File::create_new(directory.join("sparse")).unwrap();
    // Octal numbers end at 8 GiB.
    let len = 20 << 30;
    source.set_len(len).unwrap();
    let starts = [0, 9 << 30, 19 << 30];
    for (seed, start) in (1..).zip(starts) {
        source.write_all_at(&source::noise(seed, 100_000), start).unwrap();
    }
    let source = File::open(directory.join("sparse")).unwrap();
    let archive = work.path().join("archive.tar");
    for (options, has_base_256) in [
        (&["--format=gnu"][..], true),
        (&["--format=oldgnu"], true),
        (&["--format=posix", "--sparse-version=0.0"], false),
        (&["--format=posix", "--sparse-version=0.1"], false),
        (&["--format=posix", "--sparse-version=1.0"], false),
    ] {
        let what = options.join(" ");
        let mut tar = Command::new("tar");
        let tar =
            tar.arg("-C").arg(&directory).args(options).args(["--sparse", "-cf"]).arg(&archive);
        run(tar.arg("sparse"));
        let packed = fs::read(&archive).unwrap();
        assert!(packed.len() < 1 << 20, "{what}: {} bytes", packed.len());
        // Old GNU headers store the size including holes here.
        assert_eq!(packed[483] == 0x80, has_base_256, "{what}");
        let listed = run(Command::new("tar").arg("-tvf").arg(&archive)).stdout;
        let listed = String::from_utf8(listed).unwrap();
        assert_eq!(listed.split_whitespace().nth(2), Some(len.to_string().as_str()), "{what}");

        let mounted = Mounted::archfs(&archive, &work.path().join("mount"), &[]);
        let ours = File::open(mounted.path().join("sparse")).unwrap();
        let found = ours.metadata().unwrap();
        assert_eq!(found.len(), len, "{what}");
        assert!(found.blocks() * 512 < 1 << 20, "{what}: {} blocks", found.blocks());
        let known = pieces(&ours);
        assert_eq!(known, pieces(&source), "{what}");
        assert_eq!(known.iter().map(|(start, _)| *start).collect::<Vec<_>>(), starts, "{what}");
        let mut buffers = [vec![1; 300_000], vec![2; 300_000]];
        for offset in starts.into_iter().chain([(9 << 30) - 150_000, len - 300_000, 8 << 30]) {
            let [a, b] = &mut buffers;
            ours.read_exact_at(a, offset).unwrap();
            source.read_exact_at(b, offset).unwrap();
            assert!(a == b, "{what}: other bytes within 300,000 of {offset}");
        }
    }
}

#[test]
fn a_file_over_8_gib_uses_a_base_256_size() {
    // Octal sizes end at 8 GiB. The archive itself is sparse, so the zeros are never written.
    let work = work_directory();
    let big = work.path().join("big");
    File::create(&big).unwrap().set_len(9 << 30).unwrap();
    fs::write(work.path().join("small"), "behind").unwrap();
    let archive = work.path().join("archive.tar");
    for format in ["gnu", "posix"] {
        let header_only = work.path().join("head");
        let mut command = Command::new("sh");
        // The first blocks of the archive, a hole of the length of the data, then the small file.
        let script = format!(
            "cd \"$1\" && tar --format={format} -cf - big | head -c 10240 > head && \
             tar --format={format} -cf tail small"
        );
        command.args(["-c", &script, "sh"]).arg(work.path());
        command.output().unwrap();
        let head = fs::read(&header_only).unwrap();
        let headers = if format == "gnu" { 512 } else { 1536 };
        let out = File::create(&archive).unwrap();
        out.write_all_at(&head[..headers], 0).unwrap();
        let tail = fs::read(work.path().join("tail")).unwrap();
        out.write_all_at(&tail, headers as u64 + (9 << 30)).unwrap();
        let tree = tree::open_one(&archive);
        let found = resolve(tree.as_ref(), b"big").unwrap();
        assert_eq!(found.size, 9 << 30, "{format}");
        let small = resolve(tree.as_ref(), b"small").unwrap();
        assert_eq!(tree::contents(tree.as_ref(), small.ino).unwrap(), b"behind", "{format}");
    }
}

#[test]
fn appended_updated_and_concatenated_archives_show_the_latest() {
    let work = work_directory();
    let directory = work.path().join("directory");
    fs::create_dir_all(directory.join("sub")).unwrap();
    let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
    write("a", "old");
    write("sub/b", "old");
    fs::hard_link(directory.join("a"), directory.join("hard")).unwrap();
    let archive = work.path().join("archive.tar");
    gnu_tar(&archive, &directory, &["--sort=name"]);
    // The file was replaced; its other name must keep the old contents.
    fs::remove_file(directory.join("a")).unwrap();
    write("a", "new and longer");
    write("sub/c", "added");
    run(Command::new("tar")
        .arg("-C")
        .arg(&directory)
        .arg("-rf")
        .arg(&archive)
        .args(["./a", "./sub/c"]));
    assert_as_python("appended", &archive);
    let tree = tree::open_one(&archive);
    let read = |path: &str| {
        let attr = resolve(tree.as_ref(), path.as_bytes()).unwrap();
        (tree::contents(tree.as_ref(), attr.ino).unwrap(), attr.nlink)
    };
    assert_eq!(read("a"), (b"new and longer".to_vec(), 1));
    assert_eq!(read("hard"), (b"old".to_vec(), 1));

    let second = work.path().join("second.tar");
    write("sub/b", "from the second");
    gnu_tar(&second, &directory, &[]);
    let both = work.path().join("both.tar");
    fs::write(&both, [fs::read(&archive).unwrap(), fs::read(&second).unwrap()].concat()).unwrap();
    assert_as_python("concatenated", &both);
    assert_eq!(tree::lines(tree::open_one(&both).as_ref()).len(), 6);
}

/// Makes a tar by hand: name, type, link target, data.
fn by_hand(path: &Path, members: &[(&str, u8, &str, &str)]) {
    let members = members.iter();
    let members =
        members.map(|(name, kind, link, data)| member(name, *kind, link, data.as_bytes()));
    write_members(path, &members.collect::<Vec<_>>());
}

fn write_members(path: &Path, members: &[Vec<u8>]) {
    fs::write(path, [members.concat(), vec![0; 1024]].concat()).unwrap();
}

/// A pax header with these records.
fn pax(kind: u8, records: &[(&str, &str)]) -> Vec<u8> {
    let record = |(keyword, value): &(&str, &str)| {
        let body = format!(" {keyword}={value}\n");
        let mut len = body.len();
        while len != body.len() + len.to_string().len() {
            len = body.len() + len.to_string().len();
        }
        format!("{len}{body}")
    };
    member("pax", kind, "", records.iter().map(record).collect::<String>().as_bytes())
}

/// The paths of a tree.
fn paths(archive: &Path) -> Vec<String> {
    let lines = tree::lines(tree::open_one(archive).as_ref());
    lines.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

#[test]
fn no_member_escapes_the_mount_and_odd_paths_are_normalized() {
    let work = work_directory();
    let archive = work.path().join("odd.tar");
    by_hand(
        &archive,
        &[
            ("../../up", b'0', "", "1"),
            ("/absolute", b'0', "", "2"),
            ("a/./b//c/../d", b'0', "", "3"),
            ("./", b'5', "", ""),
            ("..", b'5', "", ""),
            ("link", b'2', "/etc", ""),
            ("link/passwd", b'0', "", "4"),
            ("hard", b'1', "../../etc/passwd", ""),
            ("hard-up", b'1', "/../up", ""),
            ("file", b'0', "", "5"),
            ("file/below", b'0', "", "6"),
            ("nul-name", b'0', "", "7"),
        ],
    );
    let tree = tree::open_one(&archive);
    let lines = tree::lines(tree.as_ref());
    let paths: Vec<_> = lines.keys().map(|path| String::from_utf8_lossy(path)).collect();
    let expected = [
        "/",
        "a",
        "a/b",
        "a/b/d",
        "absolute",
        "file",
        "file/below",
        "hard-up",
        "link",
        "link/passwd",
        "nul-name",
        "up",
    ];
    assert_eq!(paths, expected);
    let attr = |path: &str| resolve(tree.as_ref(), path.as_bytes()).unwrap();
    assert_eq!(attr("link").kind, FileKind::Directory, "not a way to the machine's /etc");
    assert_eq!(attr("up").ino, attr("hard-up").ino);
    assert_eq!(attr("up").nlink, 2);
}

#[test]
fn a_truncated_archive_serves_its_intact_files_and_reports_the_rest() {
    let work = work_directory();
    let archive = work.path().join("whole.tar");
    let directory = work.path().join("directory");
    fs::create_dir(&directory).unwrap();
    for number in 0..20 {
        fs::write(directory.join(format!("f{number:02}")), source::noise(number, 700)).unwrap();
    }
    gnu_tar(&archive, &directory, &["--sort=name", "--format=gnu"]);
    let bytes = fs::read(&archive).unwrap();
    let whole = tree::lines(tree::open_one(&archive).as_ref());
    let cut = work.path().join("cut.tar");
    // The root's header, then a header and two blocks for each file.
    for len in (1024..512 + 20 * 1536).step_by(512 - 100) {
        fs::write(&cut, &bytes[..len]).unwrap();
        let found = tree::lines(tree::open_one(&cut).as_ref());
        let files = (len - 512) / 1536 + usize::from((len - 512) % 1536 >= 512 + 700);
        assert_eq!(found.len(), files + 1, "{len} bytes");
        assert!(found.iter().all(|(path, line)| whole.get(path) == Some(line)), "{len} bytes");
        let stderr = support::archfs().arg("ls").arg(&cut).output().unwrap();
        let stderr = String::from_utf8(stderr.stderr).unwrap();
        let missing = "missing";
        let no_mark = "no end mark";
        assert!(stderr.contains(missing) || stderr.contains(no_mark), "{len} bytes: {stderr}");
        if (len - 512) % 1536 > 512 && (len - 512) % 1536 < 512 + 700 {
            assert!(
                stderr.contains(&format!("f{files:02}\" and everything after")),
                "{len}: {stderr}"
            );
        }
    }
}

#[test]
fn a_damaged_header_loses_only_its_member() {
    let work = work_directory();
    let archive = work.path().join("archive.tar");
    let directory = work.path().join("directory");
    fs::create_dir(&directory).unwrap();
    for number in 0..20 {
        fs::write(directory.join(format!("f{number:02}")), source::noise(number, 700)).unwrap();
    }
    gnu_tar(&archive, &directory, &["--sort=name", "--format=gnu"]);
    let whole = tree::lines(tree::open_one(&archive).as_ref());
    let mut bytes = fs::read(&archive).unwrap();
    bytes[512 + 5 * 1536 + 3] ^= 0x40;
    bytes.extend(b"trailing garbage".repeat(100));
    let damaged = work.path().join("damaged.tar");
    fs::write(&damaged, bytes).unwrap();
    let found = tree::lines(tree::open_one(&damaged).as_ref());
    let missing: Vec<_> = whole.keys().filter(|path| !found.contains_key(*path)).collect();
    assert_eq!(missing, [b"f05"]);
    assert!(found.iter().all(|(path, line)| whole.get(path) == Some(line)));
    // GNU tar also continues after it.
    let mut list = Command::new("tar");
    let listed = list.arg("-tf").arg(&damaged).output().unwrap().stdout;
    assert_eq!(listed.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()).count(), found.len());
    let stderr = support::archfs().arg("ls").arg(&damaged).output().unwrap();
    let stderr = String::from_utf8(stderr.stderr).unwrap();
    assert!(stderr.contains("there is no header"), "{stderr}");
    assert!(stderr.contains("not a tar: ignored"), "{stderr}");
}

#[test]
fn an_empty_archive_is_an_empty_directory() {
    let work = work_directory();
    let archive = work.path().join("empty.tar");
    run(Command::new("tar").arg("-cf").arg(&archive).args(["-T", "/dev/null"]));
    assert_eq!(tree::lines(tree::open_one(&archive).as_ref()).len(), 1);
}

#[test]
fn a_tar_at_an_offset_is_found_there() {
    let work = work_directory();
    let archive = work.path().join("archive.tar");
    by_hand(&archive, &[("x", b'0', "", "data")]);
    let inside = work.path().join("inside");
    fs::write(&inside, [vec![b'#'; 777], fs::read(&archive).unwrap()].concat()).unwrap();
    let options = OpenOptions { offset: 777, ..OpenOptions::default() };
    let tree = tree::open(&[inside], options).unwrap();
    let x = resolve(tree.as_ref(), b"x").unwrap();
    assert_eq!(tree::contents(tree.as_ref(), x.ino).unwrap(), b"data");
}

#[test]
fn a_hundred_thousand_members_are_scanned_in_parallel() {
    let work = work_directory();
    let archive = work.path().join("archive.tar");
    // Members whose data looks like headers, to fool a scan that starts in the middle.
    let decoy = work.path().join("decoy.tar");
    by_hand(&decoy, &[("decoy", b'0', "", "x"), ("decoy2", b'0', "", "y")]);
    let decoy = fs::read(&decoy).unwrap();
    let decoy = &decoy[..2048];
    let directory = work.path().join("directory");
    fs::create_dir(&directory).unwrap();
    for number in 0..30_000_u64 {
        let len = (number * 7919 % 5000) as usize;
        let data = if number % 3 == 0 { decoy.to_vec() } else { source::noise(number, len) };
        fs::write(directory.join(format!("{number:05}")), data).unwrap();
    }
    gnu_tar(&archive, &directory, &["--format=gnu"]);
    assert!(fs::metadata(&archive).unwrap().len() > 50 << 20);
    assert_as_python("decoys", &archive);
}

#[test]
fn a_trailing_slash_does_not_change_the_kind_of_a_member() {
    let work = work_directory();
    let archive = work.path().join("slashes.tar");
    by_hand(
        &archive,
        &[("link/", b'2', "target", ""), ("pipe//", b'6', "", ""), ("a/b/.", b'0', "", "x")],
    );
    assert_eq!(paths(&archive), ["/", "a", "a/b", "link", "pipe"]);
    let tree = tree::open_one(&archive);
    let kind = |path: &[u8]| resolve(tree.as_ref(), path).unwrap().kind;
    assert_eq!(kind(b"link"), FileKind::Symlink);
    assert_eq!(kind(b"pipe"), FileKind::Fifo);
    assert_eq!(kind(b"a/b"), FileKind::Regular);
}

#[test]
fn a_sparse_file_without_pieces_is_one_hole() {
    let work = work_directory();
    let archive = work.path().join("hole.tar");
    let words = [("GNU.sparse.size", "3000"), ("GNU.sparse.numblocks", "0")];
    write_members(&archive, &[pax(b'x', &words), member("hole", b'0', "", b"")]);
    let tree = tree::open_one(&archive);
    let hole = resolve(tree.as_ref(), b"hole").unwrap();
    assert_eq!(tree::contents(tree.as_ref(), hole.ino).unwrap(), [0; 3000]);
    assert_eq!(hole.allocated, 0);
}

#[test]
fn global_pax_records_set_only_owners_and_times() {
    let work = work_directory();
    let archive = work.path().join("global.tar");
    let value = "v".repeat(60_000);
    let records = [
        ("uid", "77"),
        ("mtime", "5.5"),
        ("path", "everybody"),
        ("GNU.sparse.name", "nobody"),
        ("SCHILY.xattr.user.large", value.as_str()),
    ];
    let members = (0..2000).map(|number| member(&format!("f{number}"), b'0', "", b""));
    write_members(&archive, &[vec![pax(b'g', &records)], members.collect()].concat());
    let tree = tree::open_one(&archive);
    let last = resolve(tree.as_ref(), b"f1999").unwrap();
    assert_eq!((last.uid, last.modified.seconds, last.modified.nanoseconds), (77, 5, 500_000_000));
    assert!(!tree.has_xattrs());
    assert_eq!(paths(&archive).len(), 2001);
}

#[test]
fn a_pax_path_wins_over_a_gnu_long_name_in_any_order() {
    let work = work_directory();
    let archive = work.path().join("names.tar");
    let said = |keyword, value| pax(b'x', &[(keyword, value)]);
    let long = |kind, name: &str| member("././@LongLink", kind, "", format!("{name}\0").as_bytes());
    let path = || said("path", "pax");
    let target = || said("linkpath", "pax-target");
    let (name, link) = (|| long(b'L', "long"), || long(b'K', "long-target"));
    let both = || pax(b'x', &[("path", "pax"), ("linkpath", "pax-target")]);
    // tarfile uses whichever comes first, GNU tar prefers pax.
    for (what, extensions, names, is_as_python) in [
        ("x L", vec![path(), name()], ["pax", "target"], true),
        ("L x", vec![name(), path()], ["pax", "target"], false),
        ("L x L", vec![name(), path(), name()], ["pax", "target"], false),
        ("x K", vec![target(), link()], ["link", "pax-target"], true),
        ("K x", vec![link(), target()], ["link", "pax-target"], false),
        ("x L K", vec![both(), name(), link()], ["pax", "pax-target"], true),
        ("K L x", vec![link(), name(), both()], ["pax", "pax-target"], false),
        ("x of a path, K", vec![path(), link()], ["pax", "long-target"], true),
        ("K, x of a path", vec![link(), path()], ["pax", "long-target"], true),
        ("x of a target, L", vec![target(), name()], ["long", "pax-target"], true),
        (
            "x of an owner, L K",
            vec![said("uid", "7"), name(), link()],
            ["long", "long-target"],
            true,
        ),
    ] {
        write_members(&archive, &[extensions, vec![member("link", b'2', "target", b"")]].concat());
        let tree = tree::open_one(&archive);
        let [path, target] = names;
        assert_eq!(paths(&archive), ["/", path], "{what}");
        let attr = resolve(tree.as_ref(), path.as_bytes()).unwrap();
        assert_eq!(tree.read_link(attr.ino).unwrap(), target.as_bytes(), "{what}");
        let theirs = extracted(&archive, &work.path().join("extracted"));
        let theirs: Vec<_> = fs::read_dir(theirs).unwrap().map(|entry| entry.unwrap()).collect();
        assert_eq!(theirs.len(), 1, "{what}");
        assert_eq!(theirs[0].file_name(), path, "{what}");
        assert_eq!(fs::read_link(theirs[0].path()).unwrap(), Path::new(target), "{what}");
        if is_as_python {
            assert_as_python(what, &archive);
        }
    }
}

#[test]
fn extension_headers_are_read_up_to_the_limit() {
    let work = work_directory();
    let archive = work.path().join("extensions.tar");
    for (count, shown) in [(64, true), (65, false)] {
        let mut members = vec![pax(b'x', &[("comment", "nothing")]); count - 1];
        members.push(pax(b'x', &[("path", "renamed")]));
        members.push(member("plain", b'0', "", b""));
        write_members(&archive, &members);
        assert_eq!(paths(&archive).contains(&"renamed".to_owned()), shown, "{count}");
    }
}

#[test]
fn directories_are_shown_down_to_the_depth_limit() {
    let work = work_directory();
    let archive = work.path().join("deep.tar");
    for (depth, count) in [(1024, 1026), (1025, 1)] {
        let path = format!("{}file", "d/".repeat(depth));
        write_members(&archive, &[pax(b'x', &[("path", &path)]), member("x", b'0', "", b"")]);
        assert_eq!(paths(&archive).len(), count, "{depth} directories");
    }
}

#[test]
fn a_damaged_sparse_map_reads_alike_with_and_without_compression() {
    let work = work_directory();
    let archive = work.path().join("map.tar");
    // Blocks of an old sparse map, each announcing another, up to where a stream is decoded in
    // another chunk. There a valid header follows instead of a map block.
    let mut head = member("sparse", b'S', "", b"");
    head[386] = 0;
    head[482] = 1;
    let resum = |block: &mut [u8]| {
        block[148..156].fill(b' ');
        let sum: u32 = block[..512].iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    };
    resum(&mut head);
    let mut empty = vec![0; 512];
    empty[12] = b'0';
    empty[504] = 1;
    let mut blocks = vec![head];
    blocks.extend(vec![empty; 2112]);
    let mut victim = member("", b'0', "", b"a secret, or not");
    victim[504] = 1;
    resum(&mut victim);
    blocks.push(victim);
    blocks.push(vec![b'x'; 512]);
    blocks.push(member("after", b'0', "", b"behind it"));
    write_members(&archive, &blocks);
    let packed = work.path().join("map.tar.gz");
    run(Command::new("sh")
        .args(["-c", "gzip -c \"$1\" > \"$2\"", "sh"])
        .arg(&archive)
        .arg(&packed));
    let [stored, compressed] =
        [&archive, &packed].map(|path| tree::lines(tree::open_one(path).as_ref()));
    assert_eq!(stored, compressed);
    assert!(stored.contains_key(&b"after"[..]), "{stored:?}");
}

#[test]
fn ten_thousand_directories_read_alike_with_and_without_compression() {
    let work = work_directory();
    let archive = work.path().join("directories.tar");
    let directories = (0..10_000).map(|number| member(&format!("{number:05}/"), b'5', "", b""));
    write_members(&archive, &directories.collect::<Vec<_>>());
    let expected = tree::lines(tree::open_one(&archive).as_ref());
    assert_eq!(expected.len(), 10_001);
    // bzip2 blocks do not end at tar block boundaries.
    run(Command::new("bzip2").arg("-1k").arg(&archive));
    let found = tree::lines(tree::open_one(&work.path().join("directories.tar.bz2")).as_ref());
    assert_eq!(found, expected);
}

/// A tar of v7 may give a directory the size of its listing, but has no data for it (libarchive's
/// test_compat_tar_directory_1.tar).
#[test]
fn an_old_directory_with_a_size_has_no_data() {
    let work = work_directory();
    for kind in [0, b'0'] {
        let mut bytes = member("dir/", kind, "", &[b'x'; 600])[..512].to_vec();
        bytes.extend(member("dir/file", b'0', "", b"data"));
        bytes.extend([0; 1024]);
        let archive = work.path().join("old.tar");
        fs::write(&archive, bytes).unwrap();
        let out = extracted(&archive, &work.path().join("out"));
        let listed = run(support::archfs().args(["ls", "-R"]).arg(&archive)).stdout;
        assert_eq!(String::from_utf8_lossy(&listed), "dir\ndir/file\n", "{kind}");
        assert_eq!(fs::read(out.join("dir/file")).unwrap(), b"data", "GNU tar agrees");
        let verified = support::archfs().arg("verify").arg(&archive).output().unwrap();
        assert!(verified.status.success(), "{verified:?}");
    }
}

/// A second pax header before a member replaces the first one, as in GNU tar and bsdtar; Python
/// merges them.
#[test]
fn a_later_pax_header_replaces_an_earlier_one() {
    let work = work_directory();
    let pax = |records: &str| member("x", b'x', "", records.as_bytes());
    let mut bytes = [
        pax("14 path=first\n14 mtime=1000\n"),
        pax("14 mtime=2000\n"),
        member("second", b'0', "", b"data"),
    ]
    .concat();
    bytes.extend([0; 1024]);
    let archive = work.path().join("two.tar");
    fs::write(&archive, bytes).unwrap();
    let out = extracted(&archive, &work.path().join("out"));
    assert_eq!(out.join("second").metadata().unwrap().mtime(), 2000, "GNU tar agrees");
    let listed = run(support::archfs().args(["ls", "--json"]).arg(&archive)).stdout;
    let row: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!((&row["path"], &row["modified_seconds"]), (&"second".into(), &2000.into()));
}

#[test]
fn shows_the_selinux_context_that_gnu_tar_stores() {
    let work = work_directory();
    let context = "system_u:object_r:etc_t:s0";
    let record = format!("RHT.security.selinux={context}\n");
    // The length counts its own two digits and the space.
    let record = format!("{} {record}", record.len() + 3);
    let mut bytes =
        [member("x", b'x', "", record.as_bytes()), member("file", b'0', "", b"")].concat();
    bytes.extend([0; 1024]);
    let archive = work.path().join("selinux.tar");
    fs::write(&archive, bytes).unwrap();
    let tree = tree::open_one(&archive);
    let ino = resolve(tree.as_ref(), b"file").unwrap().ino;
    assert_eq!(tree.list_xattrs(ino).unwrap(), b"security.selinux\0");
    assert_eq!(tree.xattr(ino, b"security.selinux").unwrap(), format!("{context}\0").as_bytes());
}
