//! Where each of several sources goes, what lists and maps select and move, and what all tests of
//! sources need.
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
use crate::os::{kernel_file, unlinked};
use crate::pack::Problem;
use crate::pack::catalog::{InodeId, InodeKind};
use crate::progress::Progress;
use crate::sync::{AtomicBool, Ordering};
use crate::vfs::FileKind;

mod kinds;

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
            InodeKind::Symlink(target) => ('l', *target),
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
fn a_file_costs_less_than_256_bytes_of_which_few_stay_in_memory() {
    if std::env::var_os(ALONE).is_none() {
        alone("a_file_costs_less_than_256_bytes_of_which_few_stay_in_memory", None);
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
    // Pages of lists in files can be written out, unlike anonymous memory.
    let has_spilled = unlinked::has_blocks(&unlinked::create(&std::env::temp_dir()).unwrap());
    // The first half of the files pays for threads and buffers, the second only for files.
    let mut kept = Vec::new();
    let mut costs = Vec::new();
    for half in ["0", "1"] {
        let (before, start) = (["VmRSS", "RssAnon"].map(kib), std::time::Instant::now());
        let (catalog, problems) = gathered(&of(&[&work.path().join(half)]));
        let elapsed = start.elapsed();
        assert_eq!((catalog.len() as u64, problems.len()), (FILES / 2 + 101, 0));
        kept.push(catalog);
        let bytes = |name, before| kib(name).saturating_sub(before) * 1024 / (FILES / 2);
        costs.push(
            ["VmRSS", "RssAnon"]
                .into_iter()
                .zip(before)
                .map(|(name, before)| bytes(name, before))
                .collect::<Vec<_>>(),
        );
        println!("{} files in {elapsed:?}, {:?} bytes each so far", FILES / 2, costs);
    }
    let start = std::time::Instant::now();
    assert_eq!(find(&work.path().join("0")).len() as u64, FILES / 2 + 101);
    println!("find takes {:?}", start.elapsed());
    assert!(costs[1][0] < 256, "{costs:?}");
    assert!(!has_spilled || costs[1][1] < 32, "{costs:?}");
}

#[test]
fn one_directory_is_the_root_and_several_keep_their_names() {
    let work = tempfile::tempdir().unwrap();
    let path_to = |name: &str| work.path().join(name);
    for name in ["train", "val", "more/train"] {
        fs::create_dir_all(path_to(name)).unwrap();
    }
    fs::write(path_to("train/x"), "first").unwrap();
    fs::write(path_to("more/train/x"), "second").unwrap();
    fs::write(path_to("val/y"), "").unwrap();
    fs::write(path_to("plain"), "plain").unwrap();
    symlink("plain", path_to("to plain")).unwrap();
    symlink("val", path_to("to val")).unwrap();
    fs::set_permissions(path_to("val"), Permissions::from_mode(0o710)).unwrap();
    let shown = |paths: &[&str]| {
        let paths: Vec<_> = paths.iter().map(|path| path_to(path)).collect();
        let paths: Vec<_> = paths.iter().map(PathBuf::as_path).collect();
        let (catalog, problems) = gathered(&of(&paths));
        assert_eq!(problems, []);
        catalog
    };
    let val = shown(&["to val"]);
    assert_eq!(names(&val), ["y"]);
    assert_eq!(val.inode(InodeId::ROOT).meta.permissions, 0o710);
    let both = shown(&["train/", "val", "plain", "to plain"]);
    assert_eq!(names(&both), ["plain", "to plain", "train", "train/x", "val", "val/y"]);
    assert_eq!(bytes(&both, "to plain").unwrap(), b"plain");
    let root = both.inode(InodeId::ROOT).meta;
    assert_eq!((root.permissions, root.uid), (0o755, rustix::process::geteuid().as_raw()));
    let newest = ["train", "val", "plain", "to plain"].map(|name| {
        let modified = fs::metadata(path_to(name)).unwrap().modified().unwrap();
        modified.duration_since(std::time::UNIX_EPOCH).unwrap()
    });
    let newest = *newest.iter().max().unwrap();
    let expected = (newest.as_secs() as i64, newest.subsec_nanos());
    assert_eq!((root.modified.seconds, root.modified.nanoseconds), expected);
    assert_eq!(names(&shown(&["train/.", "val", "plain"])), ["plain", "val", "val/y", "x"]);
    assert_eq!(names(&shown(&["more/..", "val"])).len(), names(&shown(&["."])).len() + 3);
    let hiding = shown(&["train", "more/train"]);
    assert_eq!((names(&hiding).len(), hiding.hidden), (2, 1));
    assert_eq!(bytes(&hiding, "train/x").unwrap(), b"second");
    let (missing, _) = attempt(&of(&[&path_to("missing")]), 1);
    assert_eq!(missing.err().unwrap().kind(), Kind::NotFound);
    assert_eq!(attempt(&of(&[]), 1).0.err().unwrap().kind(), Kind::Usage);
}

#[test]
fn the_output_is_not_packed_and_other_mounts_only_if_wanted() {
    let work = tempfile::tempdir().unwrap();
    let path_to = |name: &str| work.path().join(name);
    fs::create_dir(path_to("below")).unwrap();
    for name in ["out.sqfs", "below/out.sqfs", ".archfs-pack-123"] {
        fs::write(path_to(name), "x").unwrap();
    }
    let output = Some(path_to("below/../out.sqfs"));
    let (catalog, _) = gathered(&Sources { output: output.clone(), ..of(&[work.path()]) });
    assert_eq!(names(&catalog), ["below", "below/out.sqfs"]);
    let (itself, _) = attempt(&Sources { output, ..of(&[&path_to("out.sqfs")]) }, 1);
    assert_eq!(itself.err().unwrap().kind(), Kind::InvalidInput);

    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    if !mounts.contains(" /dev/pts ") {
        return eprintln!("SKIPPED in part: nothing is mounted at /dev/pts");
    }
    let dev = |other_mounts, lines: &str| {
        fs::write(path_to("list"), lines).unwrap();
        let list = Some(FileList { path: path_to("list"), separator: Separator::Newline });
        gathered(&Sources { other_mounts, list, ..of(&[Path::new("/dev")]) })
    };
    let (catalog, problems) = dev(OtherMounts::Enter, "pts\n");
    assert!(names(&catalog).contains(&"pts/ptmx".to_owned()));
    assert_eq!(problems, []);
    // What a list names is not left out silently, neither the mount point nor files below it.
    for (lines, origins) in [
        ("pts\n", &["/dev/pts"][..]),
        ("pts/gone\npts/ptmx\n", &["/dev/pts/gone", "/dev/pts/ptmx"]),
    ] {
        let (catalog, problems) = dev(OtherMounts::Skip, lines);
        assert_eq!(names(&catalog), ["pts"]);
        assert!(problems.iter().map(|problem| problem.origin.as_str()).eq(origins.iter().copied()));
        assert!(problems.iter().all(|problem| problem.why.contains("on another file system")));
    }
    // If only a parent is named, the mount point is left out as requested.
    let (catalog, problems) = dev(OtherMounts::Skip, ".\n");
    let found = names(&catalog);
    assert!(found.contains(&"pts".to_owned()) && !found.contains(&"pts/ptmx".to_owned()));
    assert!(!problems.iter().any(|problem| problem.origin.starts_with("/dev/pts")));
}

#[test]
fn a_list_selects_and_reports_missing_paths() {
    let work = tempfile::tempdir().unwrap();
    let path_to = |name: &str| work.path().join(name);
    fs::create_dir_all(path_to("in/a/deep/er")).unwrap();
    for name in ["in/a/x", "in/a/y", "in/a/deep/er/z", "in/b"] {
        fs::write(path_to(name), name).unwrap();
    }
    fs::set_permissions(path_to("in/a"), Permissions::from_mode(0o705)).unwrap();
    let tar = path_to("in.tar");
    let status =
        Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(path_to("in")).arg(".").status();
    assert!(status.unwrap().success());
    fs::write(path_to("list"), "a/deep\n./a//y\ngone\ngone/too\nb/below\n").unwrap();
    let list = Some(FileList { path: path_to("list"), separator: Separator::Newline });
    for source in [path_to("in"), tar] {
        let (catalog, problems) = gathered(&Sources { list: list.clone(), ..of(&[&source]) });
        assert_eq!(names(&catalog), ["a", "a/deep", "a/deep/er", "a/deep/er/z", "a/y"]);
        assert_eq!(catalog.inode(id(&catalog, "a")).meta.permissions, 0o705);
        assert_eq!(bytes(&catalog, "a/y").unwrap(), b"in/a/y");
        let origins: Vec<_> = problems.iter().map(|problem| problem.origin.clone()).collect();
        let expected = ["b/below", "gone"].map(|name| format!("{}/{name}", source.display()));
        assert_eq!(origins[..2], expected);
    }
    let plain = Sources { list: list.clone(), ..of(&[&path_to("in/b")]) };
    assert_eq!(attempt(&plain, 1).0.err().unwrap().kind(), Kind::NotADirectory);
    let two = Sources { list, ..of(&[&path_to("in"), &path_to("in")]) };
    assert_eq!(attempt(&two, 1).0.err().unwrap().kind(), Kind::Usage);
}

#[test]
fn a_map_moves_files_into_new_directories() {
    let work = tempfile::tempdir().unwrap();
    let path_to = |name: &str| work.path().join(name);
    fs::create_dir_all(path_to("val/old")).unwrap();
    for name in ["val/1.JPEG", "val/2.JPEG", "val/3.JPEG", "val/old/4.JPEG", "val/stays"] {
        fs::write(path_to(name), name).unwrap();
    }
    fs::hard_link(path_to("val/3.JPEG"), path_to("val/same")).unwrap();
    let map = |text: &str| {
        fs::write(path_to("map"), text).unwrap();
        attempt(&Sources { map: Some(path_to("map")), ..of(&[&path_to("val")]) }, 2)
    };
    let lines = "1.JPEG\tn01/\n2.JPEG\tn01/\n3.JPEG n02/other\nold/4.JPEG\told/5\n";
    let catalog = map(lines).0.unwrap();
    let expected =
        ["n01", "n01/1.JPEG", "n01/2.JPEG", "n02", "n02/other", "old", "old/5", "same", "stays"];
    assert_eq!(names(&catalog), expected);
    assert_eq!(id(&catalog, "n02/other"), id(&catalog, "same"));
    assert_eq!(catalog.links(id(&catalog, "same")), 2);
    assert_eq!(bytes(&catalog, "n01/2.JPEG").unwrap(), b"val/2.JPEG");
    let directory = catalog.inode(id(&catalog, "n01")).meta;
    assert_eq!(directory.permissions, 0o755);
    assert_eq!(directory.modified, catalog.inode(id(&catalog, "n01/2.JPEG")).meta.modified);

    let error = map("1.JPEG\tstays\n9.JPEG\tn01/\n2.JPEG\tsame/\nold\tnew\n").0.err().unwrap();
    assert_eq!(error.kind(), Kind::InvalidInput);
    let message = error.to_string();
    for line in [
        "line 1: stays: already exists",
        "line 2: 9.JPEG: no such",
        "line 3: same: is not a directory",
    ] {
        assert!(message.contains(line), "{message}");
    }
    assert!(message.contains("line 4: old: is a directory"), "{message}");
}
