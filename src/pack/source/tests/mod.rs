//! Tests of sources, compared with find(1), stat(1) and Python's tarfile.
//!
//! A test that must or must not be root runs in a process of its own, or reports that it was
//! skipped.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mkdirat, mknodat, openat, setxattr};

use super::*;
use crate::os::kernel_file;
use crate::pack::Problem;
use crate::pack::catalog::{InodeId, InodeKind};
use crate::progress::Progress;
use crate::sync::{AtomicBool, Ordering};
use crate::vfs::FileKind;

mod archives;
mod disk;
mod selected;

/// Set in a process that runs a single test.
const ALONE: &str = "ARCHFS_TEST_ALONE";

fn attempt(sources: &Sources, threads: usize) -> (Result<Catalog>, Vec<Problem>) {
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let job = Job::new(threads, &progress, &stop);
    let catalog = gather(&job, sources).map(|gathered| gathered.catalog);
    (catalog, job.into_problems())
}

fn gathered(sources: &Sources) -> (Catalog, Vec<Problem>) {
    let (catalog, problems) = attempt(sources, 3);
    (catalog.unwrap(), problems)
}

fn of(paths: &[&Path]) -> Sources {
    let paths = paths.iter().map(|path| path.to_path_buf()).collect();
    Sources { paths, cache_bytes: 16 << 20, ..Sources::default() }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn names(catalog: &Catalog) -> Vec<String> {
    let mut names = Vec::new();
    catalog.walk(&mut |path, _| names.push(text(path)));
    names.remove(0);
    names
}

fn id(catalog: &Catalog, wanted: &str) -> InodeId {
    let mut found = None;
    catalog.walk(&mut |path, id| {
        if path == wanted.as_bytes() {
            found = Some(id);
        }
    });
    found.unwrap_or_else(|| panic!("no {wanted} in {:?}", names(catalog)))
}

fn bytes(catalog: &Catalog, path: &str) -> Result<Vec<u8>> {
    let InodeKind::File { size, content, .. } = catalog.inode(id(catalog, path)).kind else {
        panic!("{path} is no file")
    };
    let mut bytes = vec![0; size as usize];
    catalog.content(content).read(content.key, 0, &mut bytes)?;
    Ok(bytes)
}

/// A whole catalog in the format of `find -printf`, sorted.
fn described(catalog: &Catalog) -> Vec<Vec<u8>> {
    let mut lines = Vec::new();
    catalog.walk(&mut |path, id| {
        let inode = catalog.inode(id);
        let (kind, target) = match &inode.kind {
            InodeKind::Directory(_) => ('d', &b""[..]),
            InodeKind::File { .. } => ('f', &b""[..]),
            InodeKind::Symlink(target) => ('l', target.as_ref()),
            InodeKind::Device { kind: FileKind::BlockDevice, .. } => ('b', &b""[..]),
            InodeKind::Device { .. } => ('c', &b""[..]),
            InodeKind::Fifo => ('p', &b""[..]),
            InodeKind::Socket => ('s', &b""[..]),
        };
        let meta = inode.meta;
        let links = if kind == 'd' { 0 } else { catalog.links(id) };
        let line = format!(
            "\t{kind}\t{:o}\t{}\t{}\t{}.{:09}0\t{}\t{links}\t",
            meta.permissions,
            meta.uid,
            meta.gid,
            meta.modified.seconds,
            meta.modified.nanoseconds,
            inode.size()
        );
        lines.push([path, line.as_bytes(), target].concat());
    });
    lines.sort();
    lines
}

fn find(directory: &Path) -> Vec<Vec<u8>> {
    let line = |size: &str, links: &str| {
        format!("%P\\t%y\\t%m\\t%U\\t%G\\t%T@\\t{size}\\t{links}\\t%l\\0")
    };
    let output = Command::new("find")
        .arg(directory)
        .args(["-type", "f", "-printf", &line("%s", "%n")])
        .args(["-o", "-type", "d", "-printf", &line("0", "0")])
        .args(["-o", "-printf", &line("0", "%n")])
        .output()
        .unwrap();
    assert!(output.status.success());
    let lines = output.stdout.split(|&byte| byte == 0);
    let mut lines: Vec<_> = lines.filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect();
    lines.sort();
    lines
}

/// Fills a directory with every kind of file. Devices only if this is root.
fn zoo(directory: &Path) {
    let path_to = |name: &str| directory.join(name);
    fs::create_dir_all(path_to("a/b/c")).unwrap();
    fs::create_dir(path_to("empty")).unwrap();
    fs::write(path_to("a/one"), "one").unwrap();
    fs::write(path_to("a/b/none"), "").unwrap();
    fs::write(path_to("a/b/c/large"), vec![7; 3_000_000]).unwrap();
    fs::hard_link(path_to("a/one"), path_to("a/b/one again")).unwrap();
    fs::hard_link(path_to("a/one"), path_to("z one")).unwrap();
    fs::write(directory.join(OsStr::from_bytes(b"a/\xff\xfe\n\xe4")), "bytes").unwrap();
    symlink("..", path_to("a/b/loop")).unwrap();
    symlink("no/such", path_to("dangling")).unwrap();
    symlink(OsStr::from_bytes(b"\xff target"), path_to("link")).unwrap();
    fs::hard_link(path_to("link"), path_to("a/same link")).unwrap();
    let mode = Mode::from(0o640);
    mknodat(CWD, path_to("fifo"), FileType::Fifo, mode, 0).unwrap();
    UnixListener::bind(path_to("socket")).unwrap();
    let sparse = File::create(path_to("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    sparse.write_all_at(&[1; 8192], 4 << 20).unwrap();
    fs::set_permissions(path_to("a/b"), Permissions::from_mode(0o2750)).unwrap();
    fs::set_permissions(path_to("z one"), Permissions::from_mode(0o4711)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(path_to("a/b/none"), Some(70_000), Some(123)).unwrap();
        mknodat(CWD, path_to("char"), FileType::CharacterDevice, mode, makedev(259, 0xabcde))
            .unwrap();
        mknodat(CWD, path_to("block"), FileType::BlockDevice, mode, makedev(8, 17)).unwrap();
    } else {
        eprintln!("SKIPPED in part: devices and owners need root");
    }
    let touch = |name: &str, time: &str| {
        let status = Command::new("touch").args(["-h", "-d", time]).arg(path_to(name)).status();
        assert!(status.unwrap().success());
    };
    touch("dangling", "1960-01-02 03:04:05.678901234");
    touch("empty", "2040-05-06 07:08:09.000000001");
}

/// Runs a test of this module in a process of its own; `false` if that is impossible.
fn alone(test: &str, user: Option<u32>) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("pack::source::tests::{test}"), "--exact", "--nocapture"]);
    command.env(ALONE, "1").env("TMPDIR", std::env::temp_dir());
    if let Some(user) = user {
        command.uid(user).gid(user).current_dir("/");
    }
    match command.output() {
        Ok(output) => {
            let shown = text(&output.stdout) + &text(&output.stderr);
            assert!(output.status.success() && shown.contains("1 passed"), "{shown}");
            print!("{shown}");
            true
        }
        Err(error) => {
            eprintln!("SKIPPED: {test} cannot run alone: {error}");
            false
        }
    }
}

#[test]
fn stops_on_interrupt() {
    let work = tempfile::tempdir().unwrap();
    zoo(work.path());
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let job = Job::new(2, &progress, &stop);
    stop.store(true, Ordering::Relaxed);
    let error = gather(&job, &of(&[work.path()])).err().unwrap();
    assert_eq!(error.kind(), Kind::Interrupted);
}

#[test]
fn a_file_costs_less_than_256_bytes() {
    if std::env::var_os(ALONE).is_none() {
        alone("a_file_costs_less_than_256_bytes", None);
        return;
    }
    let memory = Path::new("/dev/shm");
    let Ok(work) = tempfile::tempdir_in(memory) else {
        return eprintln!("SKIPPED: no {}", memory.display());
    };
    const FILES: u64 = 200_000;
    for directory in 0..200 {
        let directory = work.path().join(format!("{}/n{directory:08}", directory % 2));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..FILES / 200 {
            File::create(directory.join(format!("n01440764_{file:05}.JPEG"))).unwrap();
        }
    }
    let kib = |name: &str| kernel_file::own_memory(name).unwrap() / 1024;
    // The first half of the files pays for threads and buffers, the second only for files.
    let mut kept = Vec::new();
    let mut costs = Vec::new();
    for half in ["0", "1"] {
        let (before, start) = (kib("VmRSS"), std::time::Instant::now());
        let (catalog, problems) = gathered(&of(&[&work.path().join(half)]));
        let elapsed = start.elapsed();
        assert_eq!((catalog.len() as u64, problems.len()), (FILES / 2 + 101, 0));
        kept.push(catalog);
        costs.push((kib("VmRSS") - before) * 1024 / (FILES / 2));
        println!("{} files in {elapsed:?}, {:?} bytes each so far", FILES / 2, costs);
    }
    let start = std::time::Instant::now();
    assert_eq!(find(&work.path().join("0")).len() as u64, FILES / 2 + 101);
    println!("find takes {:?}", start.elapsed());
    assert!(costs[1] < 256, "{costs:?}");
}
