//! A compressed tar from any compressor shows the same tree as the uncompressed tar.
//!
//! Also from a saved index, and to many readers of a mount. tests/cost has large archives
//! (`compressed_tar_cost.rs`, `compressed_tar_spool.rs`), tests/hostile has damaged ones
//! (`compressed_tar_damage.rs`).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use archfs::formats::{IndexPolicy, OpenOptions};

use crate::support;
use crate::support::mount::Mounted;
use crate::support::pack::{self, Packer};
use crate::support::snapshot::{Depth, assert_same, take};
use crate::support::{run, skip_without_mounts, source, tree, work_directory};

/// The tree: properties by path.
type Lines = BTreeMap<Vec<u8>, String>;

/// An uncompressed tar and its tree.
struct Uncompressed {
    tar: PathBuf,
    lines: Lines,
    _work: tempfile::TempDir,
}

impl Uncompressed {
    fn new(options: &[&str]) -> Self {
        let work = work_directory();
        let tar = work.path().join("uncompressed.tar");
        let mut command = Command::new("tar");
        command.arg("-C").arg(source::varied()).args(options).arg("-cf").arg(&tar).arg(".");
        // tar reports that it skips the socket and packs the rest.
        assert!(matches!(command.output().unwrap().status.code(), Some(0 | 2)), "{command:?}");
        let lines = tree::lines(tree::open_one(&tar).as_ref());
        assert!(lines.len() > 3000, "{} files", lines.len());
        Self { tar, lines, _work: work }
    }

    /// The bytes of the tar and its tree, made once for all tests.
    fn gnu() -> &'static (Vec<u8>, Lines) {
        static MADE: OnceLock<(Vec<u8>, Lines)> = OnceLock::new();
        MADE.get_or_init(|| {
            let uncompressed = Self::new(&["--format=gnu", "--sparse"]);
            (fs::read(&uncompressed.tar).unwrap(), uncompressed.lines)
        })
    }
}

fn assert_lines(what: &str, expected: &Lines, found: &Lines) {
    let missing: Vec<_> = expected.keys().filter(|path| !found.contains_key(*path)).collect();
    assert!(missing.is_empty(), "{what}: {} are missing", missing.len());
    for (path, line) in found {
        assert_eq!(expected.get(path), Some(line), "{what}: {}", path.escape_ascii());
    }
}

/// Opens the archive twice; both times it must show `expected`, the second time with the saved
/// index.
fn assert_same_tree(what: &str, archive: &Path, expected: &Lines) {
    let mut index = archive.as_os_str().to_owned();
    index.push(".archfs-index");
    let index = PathBuf::from(index);
    let _ = fs::remove_file(&index);
    assert_lines(what, expected, &tree::lines(tree::open_one(archive).as_ref()));
    let made = fs::metadata(&index).unwrap_or_else(|error| panic!("{what}: no index: {error}"));
    let again = tree::open(&[archive.to_owned()], OpenOptions::default()).unwrap();
    assert_lines(&format!("{what}, from its index"), expected, &tree::lines(again.as_ref()));
    assert_eq!(fs::metadata(&index).unwrap().ino(), made.ino(), "{what}: the index was not used");
}

/// A sound archive gives no messages, whatever its compressor added (pixz: a list of members).
fn assert_no_messages(what: &str, archive: &Path) {
    let output = run(support::archfs().arg("ls").arg(archive));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{what}");
}

/// Sixteen processes read the files of a mount, each in its own order. Of the small files, every
/// twentieth is enough.
fn assert_read_by_many(what: &str, archive: &Path, expected: &Lines) {
    let mut list = String::new();
    let regular = expected.iter().filter(|(_, line)| line.starts_with('-'));
    let (small, others): (Vec<_>, Vec<_>) =
        regular.partition(|(path, _)| path.starts_with(b"many/"));
    for (path, line) in others.into_iter().chain(small.into_iter().step_by(20)) {
        let sum = line.split(' ').nth(6).unwrap();
        writeln!(list, "{sum} {}", tree::hex(path)).unwrap();
    }
    let listed = archive.with_extension("list");
    fs::write(&listed, list).unwrap();
    let mounted = Mounted::archfs(archive, &archive.with_extension("mount"), &[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/read_shuffled.py");
    let mut python = Command::new("python3");
    let output = python.arg(script).arg(mounted.path()).arg(&listed).arg("16").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {stderr}");
    let files: usize = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
    assert!(files > 150, "{what}: {files} files");
}

fn assert_read_as_uncompressed(packers: &[Packer]) {
    let (bytes, expected) = Uncompressed::gnu();
    let work = work_directory();
    let tar = work.path().join("uncompressed.tar");
    fs::write(&tar, bytes).unwrap();
    for (number, packer) in packers.iter().enumerate() {
        let target = work.path().join(format!("{number}.compressed"));
        let Some(archive) = packer.pack(&tar, &target) else { continue };
        assert_same_tree(packer.line, &archive, expected);
        assert_no_messages(packer.line, &archive);
        if !skip_without_mounts() {
            assert_read_by_many(packer.line, &archive, expected);
        }
        fs::remove_file(archive).unwrap();
    }
}

#[test]
fn gzip_of_every_program_shows_the_same_tree() {
    assert_read_as_uncompressed(pack::GZIP);
}

#[test]
fn bzip2_of_every_program_shows_the_same_tree() {
    assert_read_as_uncompressed(pack::BZIP2);
}

#[test]
fn xz_of_every_program_shows_the_same_tree() {
    assert_read_as_uncompressed(pack::XZ);
}

#[test]
fn lzma_and_lzip_show_the_same_tree() {
    let (bytes, expected) = Uncompressed::gnu();
    let work = work_directory();
    let tar = work.path().join("uncompressed.tar");
    fs::write(&tar, bytes).unwrap();
    for packer in pack::LZMA {
        let Some(archive) = packer.pack(&tar, &work.path().join("compressed")) else { continue };
        let output = support::archfs().arg("ls").arg(&archive).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && text.contains("temporary file"), "{text}");
        assert_same_tree(packer.line, &archive, expected);
        fs::remove_file(archive).unwrap();
    }
}

#[test]
fn zstd_of_every_program_shows_the_same_tree() {
    assert_read_as_uncompressed(pack::ZSTD);
}

#[test]
fn lz4_of_every_program_shows_the_same_tree() {
    assert_read_as_uncompressed(pack::LZ4);
}

#[test]
fn seekable_zstd_shows_the_same_tree() {
    let (bytes, expected) = Uncompressed::gnu();
    let work = work_directory();
    let archive = work.path().join("seekable.tar.zst");
    for frame in [64 << 10, 3 << 20] {
        fs::write(&archive, pack::seekable_zstd(bytes, frame)).unwrap();
        assert_same_tree("seekable zstd", &archive, expected);
        if !skip_without_mounts() {
            assert_read_by_many("seekable zstd", &archive, expected);
        }
    }
}

/// The windows of noise do not compress, so there is more than 1 MiB of them.
#[test]
fn many_seek_points_need_no_saved_index() {
    let work = work_directory();
    let files = work.path().join("files");
    fs::create_dir(&files).unwrap();
    let noise = source::noise(5, 48 << 20);
    fs::write(files.join("noise"), &noise).unwrap();
    let archive = work.path().join("noise.tar.gz");
    let script = "tar -C \"$0\" -cf - . | gzip -1 > \"$1\"";
    run(Command::new("bash").args(["-c", script]).arg(&files).arg(&archive));
    let options = OpenOptions { index_policy: IndexPolicy::Ignore, ..OpenOptions::default() };
    let tree = tree::open(std::slice::from_ref(&archive), options).unwrap();
    let ino = archfs::vfs::resolve(tree.as_ref(), b"noise").unwrap().ino;
    assert!(tree::contents(tree.as_ref(), ino).unwrap() == noise);
    let output = run(support::archfs().arg("verify").arg(&archive));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no damage found"), "{output:?}");
}

#[test]
fn every_container_keeps_attributes_and_sparse_files() {
    if skip_without_mounts() {
        return;
    }
    let uncompressed = Uncompressed::new(&[
        "--format=posix",
        "--sparse",
        "--xattrs",
        "--xattrs-include=*",
        "--sort=name",
    ]);
    let work = work_directory();
    let mount_point = work.path().join("mount");
    let expected =
        take(Mounted::archfs(&uncompressed.tar, &mount_point, &[]).path(), Depth::Everything);
    assert!(expected.values().any(|node| node.xattrs.len() > 3));
    for packers in [pack::GZIP, pack::BZIP2, pack::XZ, pack::ZSTD, pack::LZ4] {
        // The last archive has the most streams, members or frames.
        let packer = packers.last().unwrap();
        let Some(archive) = packer.pack(&uncompressed.tar, &work.path().join("compressed")) else {
            continue;
        };
        let _ = fs::remove_file(work.path().join("compressed.archfs-index"));
        assert_same_tree(packer.line, &archive, &uncompressed.lines);
        let found = take(Mounted::archfs(&archive, &mount_point, &[]).path(), Depth::Everything);
        assert_same(packer.line, &expected, &found);
    }
}

/// `zstd --long=31` needs as much memory as the file is long. The zstd command refuses such a frame
/// without that option.
#[test]
fn a_zstd_window_of_more_than_128_mib_is_read() {
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), "first\n").unwrap();
    fs::File::create(source.join("b")).unwrap().set_len(140 << 20).unwrap();
    fs::write(source.join("c"), "last\n").unwrap();
    let archive = work.path().join("long.tar.zst");
    let script = "tar --sort=name -C \"$0\" -c . | zstd -q --long=31 --ultra -1 -o \"$1\" && \
                  ! zstd -qt \"$1\" 2> /dev/null && zstd -qt --long=31 \"$1\"";
    run(Command::new("bash").args(["-c", script]).arg(&source).arg(&archive));
    let output = support::archfs().arg("cat").arg(&archive).args(["a", "c"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "first\nlast\n", "{output:?}");
    // In a job with little memory, the error says what to do.
    let mut limited = Command::new("prlimit");
    limited.args(["--as=250000000", env!("CARGO_BIN_EXE_archfs"), "cat"]).arg(&archive).arg("c");
    let said = limited.output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && text.contains("zstd -dc --long=31"), "{text}");
}
