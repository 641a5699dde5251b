//! Tests of what is found, against what find(1), stat(1) and Python's tarfile tell of the same.
//!
//! Owns folders and archives with everything in them that a source may meet. What needs to be root,
//! or must not be, runs in a process of its own or says that it was skipped.

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
use crate::pack::Problem;
use crate::pack::catalog::{InodeId, What};
use crate::progress::Progress;
use crate::sync::{AtomicBool, Ordering};
use crate::vfs::FileKind;

/// Set for a process that runs one test alone.
const ALONE: &str = "ARCHFS_TEST_ALONE";

fn attempt(sources: &Sources, threads: usize) -> (Result<Catalog>, Vec<Problem>) {
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let job = Job::new(threads, &progress, &stop);
    let catalog = gather(&job, sources);
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
    let What::File { size, content, .. } = catalog.inode(id(catalog, path)).what else {
        panic!("{path} is no file")
    };
    let mut bytes = vec![0; size as usize];
    catalog.content(content).read(content.key, 0, &mut bytes)?;
    Ok(bytes)
}

/// All of a catalog as `find -printf` would tell it, sorted.
fn told(catalog: &Catalog) -> Vec<Vec<u8>> {
    let mut lines = Vec::new();
    catalog.walk(&mut |path, id| {
        let inode = catalog.inode(id);
        let (kind, target) = match &inode.what {
            What::Folder(_) => ('d', &b""[..]),
            What::File { .. } => ('f', &b""[..]),
            What::Symlink(target) => ('l', target.as_ref()),
            What::Device { kind: FileKind::BlockDevice, .. } => ('b', &b""[..]),
            What::Device { .. } => ('c', &b""[..]),
            What::Fifo => ('p', &b""[..]),
            What::Socket => ('s', &b""[..]),
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

fn find(folder: &Path) -> Vec<Vec<u8>> {
    let line = |size: &str, links: &str| {
        format!("%P\\t%y\\t%m\\t%U\\t%G\\t%T@\\t{size}\\t{links}\\t%l\\0")
    };
    let output = Command::new("find")
        .arg(folder)
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

/// A folder with all that there may be in one. Devices only where this is root.
fn zoo(folder: &Path) {
    let at = |name: &str| folder.join(name);
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::create_dir(at("empty")).unwrap();
    fs::write(at("a/one"), "one").unwrap();
    fs::write(at("a/b/none"), "").unwrap();
    fs::write(at("a/b/c/large"), vec![7; 3_000_000]).unwrap();
    fs::hard_link(at("a/one"), at("a/b/one again")).unwrap();
    fs::hard_link(at("a/one"), at("z one")).unwrap();
    fs::write(folder.join(OsStr::from_bytes(b"a/\xff\xfe\n\xe4")), "bytes").unwrap();
    symlink("..", at("a/b/loop")).unwrap();
    symlink("no/such", at("dangling")).unwrap();
    symlink(OsStr::from_bytes(b"\xff target"), at("link")).unwrap();
    fs::hard_link(at("link"), at("a/same link")).unwrap();
    let mode = Mode::from(0o640);
    mknodat(CWD, at("fifo"), FileType::Fifo, mode, 0).unwrap();
    UnixListener::bind(at("socket")).unwrap();
    let sparse = File::create(at("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    sparse.write_all_at(&[1; 8192], 4 << 20).unwrap();
    fs::set_permissions(at("a/b"), Permissions::from_mode(0o2750)).unwrap();
    fs::set_permissions(at("z one"), Permissions::from_mode(0o4711)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(at("a/b/none"), Some(70_000), Some(123)).unwrap();
        mknodat(CWD, at("char"), FileType::CharacterDevice, mode, makedev(259, 0xabcde)).unwrap();
        mknodat(CWD, at("block"), FileType::BlockDevice, mode, makedev(8, 17)).unwrap();
    } else {
        eprintln!("SKIPPED in part: devices and owners need root");
    }
    let touch = |name: &str, time: &str| {
        let status = Command::new("touch").args(["-h", "-d", time]).arg(at(name)).status();
        assert!(status.unwrap().success());
    };
    touch("dangling", "1960-01-02 03:04:05.678901234");
    touch("empty", "2040-05-06 07:08:09.000000001");
}

/// Runs a test of this file in a process of its own; `false` where that can not be.
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
            eprintln!("SKIPPED: {test} can not run alone: {error}");
            false
        }
    }
}

#[test]
fn a_folder_is_what_find_tells_of_it_on_any_number_of_threads() {
    let work = tempfile::tempdir().unwrap();
    zoo(work.path());
    let expected = find(work.path());
    let mut numbers = Vec::new();
    for threads in [1, 2, 16] {
        let (catalog, problems) = attempt(&of(&[work.path()]), threads);
        let catalog = catalog.unwrap();
        assert_eq!(problems, []);
        let found = told(&catalog);
        let shown = |lines: &[Vec<u8>]| lines.iter().map(|line| text(line)).collect::<Vec<_>>();
        assert_eq!(shown(&found), shown(&expected));
        assert!(found == expected);
        let mut ids = Vec::new();
        catalog.walk(&mut |path, id| ids.push((path.to_vec(), id)));
        numbers.push(ids);
    }
    assert!(numbers.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn bytes_holes_and_device_numbers_are_those_of_the_disk() {
    let work = tempfile::tempdir().unwrap();
    zoo(work.path());
    let (catalog, _) = gathered(&of(&[work.path()]));
    for name in ["a/one", "a/b/none", "a/b/c/large", "z one", "sparse"] {
        assert!(bytes(&catalog, name).unwrap() == fs::read(work.path().join(name)).unwrap());
    }
    let file = |name: &str| match catalog.inode(id(&catalog, name)).what {
        What::File { content, sparse, .. } => (catalog.content(content), content.key, sparse),
        _ => panic!("{name}"),
    };
    let (content, key, sparse) = file("sparse");
    assert!(sparse);
    let data = (4 << 20)..(4 << 20) + 8192;
    assert_eq!(content.next_data(key, 0).unwrap(), Some(data.clone()));
    assert_eq!(content.next_data(key, data.start + 1).unwrap(), Some(data.start + 1..data.end));
    assert_eq!(content.next_data(key, data.end).unwrap(), None);
    assert_eq!(content.origin(key), work.path().join("sparse").display().to_string());
    assert!(!file("a/b/c/large").2);
    if rustix::process::geteuid().is_root() {
        let device = |name: &str| match catalog.inode(id(&catalog, name)).what {
            What::Device { number, .. } => number,
            _ => panic!("{name}"),
        };
        // linux/kdev_t.h: (minor & 0xff) | (major << 8) | ((minor & ~0xff) << 12).
        assert_eq!(device("char"), 0xde | (259 << 8) | (0xabc00 << 12));
        assert_eq!(device("block"), 17 | (8 << 8));
    }
}

#[test]
fn extended_attributes_are_kept_as_the_kernel_lists_them() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("file");
    fs::write(&path, "x").unwrap();
    let long = vec![9; 3000];
    let set = |name: &str, value: &[u8]| setxattr(&path, name, value, XattrFlags::empty());
    if set("user.short", b"1").is_err() || set("user.long", &long).is_err() {
        return eprintln!("SKIPPED: no extended attributes in {}", work.path().display());
    }
    let mut expected = vec![(b"user.long".to_vec(), long), (b"user.short".to_vec(), b"1".to_vec())];
    if set("trusted.t", b"root's").is_ok() {
        expected.insert(0, (b"trusted.t".to_vec(), b"root's".to_vec()));
    }
    for paths in [&[work.path()][..], &[path.as_path()]] {
        let (catalog, problems) = gathered(&of(paths));
        assert_eq!(problems, []);
        let number = catalog.inode(id(&catalog, "file")).meta.xattrs.unwrap();
        let found: Vec<_> = catalog.xattrs(number).to_vec();
        assert_eq!(
            found.iter().filter(|(name, _)| !name.starts_with(b"security.")).count(),
            expected.len()
        );
        assert!(expected.iter().all(|pair| found.contains(pair)));
    }
}

#[test]
fn a_file_that_is_not_what_it_was_is_told_of_and_not_read() {
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    let all =
        ["shrunk", "grown", "rewritten", "replaced", "gone", "link", "pipe", "folder", "same"];
    for name in all {
        fs::write(at(name), vec![5; 5000]).unwrap();
    }
    let (catalog, problems) = gathered(&of(&[work.path()]));
    assert_eq!(problems, []);
    File::options().write(true).open(at("shrunk")).unwrap().set_len(10).unwrap();
    File::options().write(true).open(at("grown")).unwrap().set_len(5001).unwrap();
    fs::write(at("rewritten"), vec![6; 5000]).unwrap();
    let status = Command::new("cp").arg("-p").arg(at("same")).arg(at("new")).status();
    assert!(status.unwrap().success());
    fs::rename(at("new"), at("replaced")).unwrap();
    for name in ["gone", "link", "pipe", "folder"] {
        fs::remove_file(at(name)).unwrap();
    }
    symlink("same", at("link")).unwrap();
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from(0o600), 0).unwrap();
    fs::create_dir(at("folder")).unwrap();
    for name in &all[..all.len() - 1] {
        let error = bytes(&catalog, name).unwrap_err();
        assert_eq!(error.kind(), Kind::Changed, "{name}: {error}");
        let expected = format!("{}: changed while it was read", at(name).display());
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(bytes(&catalog, "same").unwrap(), vec![5; 5000]);
}

#[test]
fn what_can_not_be_read_is_named_and_the_rest_is_packed() {
    if rustix::process::geteuid().is_root() {
        // Root may read everything.
        alone("what_can_not_be_read_is_named_and_the_rest_is_packed", Some(65_534));
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    fs::create_dir_all(at("shut/below")).unwrap();
    fs::create_dir_all(at("blind/below")).unwrap();
    fs::write(at("secret"), "x").unwrap();
    fs::write(at("public"), "y").unwrap();
    fs::set_permissions(at("secret"), Permissions::from_mode(0o0)).unwrap();
    fs::set_permissions(at("shut"), Permissions::from_mode(0o0)).unwrap();
    // It can be listed, but nothing in it can be looked at.
    fs::set_permissions(at("blind"), Permissions::from_mode(0o444)).unwrap();
    let (catalog, problems) = gathered(&of(&[work.path()]));
    fs::set_permissions(at("shut"), Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(at("blind"), Permissions::from_mode(0o700)).unwrap();
    assert_eq!(names(&catalog), ["blind", "public", "secret", "shut"]);
    let origins: Vec<_> = problems.iter().map(|problem| problem.origin.clone()).collect();
    assert_eq!(origins, ["blind/below", "shut"].map(|name| at(name).display().to_string()));
    assert!(problems.iter().all(|problem| problem.why.contains("Permission denied")));
    assert_eq!(bytes(&catalog, "public").unwrap(), b"y");
    let error = bytes(&catalog, "secret").unwrap_err();
    assert!(error.to_string().contains("secret: can not be read: Permission denied"), "{error}");
}

#[test]
fn folders_deeper_than_any_path_are_packed() {
    let work = tempfile::tempdir().unwrap();
    let name = "d".repeat(200);
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let mut here = openat(CWD, work.path(), flags, Mode::empty()).unwrap();
    for _ in 0..60 {
        mkdirat(&here, &*name, Mode::from(0o755)).unwrap();
        here = openat(&here, &*name, flags, Mode::empty()).unwrap();
    }
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CREATE;
    let file = File::from(openat(&here, "file", flags, Mode::from(0o644)).unwrap());
    file.write_all_at(b"deep", 0).unwrap();
    let (catalog, problems) = gathered(&of(&[work.path()]));
    assert_eq!(problems, []);
    let path = vec![name.as_str(); 60].join("/") + "/file";
    assert_eq!(bytes(&catalog, &path).unwrap(), b"deep");
}

#[test]
fn one_folder_is_the_root_and_several_keep_their_names() {
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    for name in ["train", "val", "more/train"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("train/x"), "first").unwrap();
    fs::write(at("more/train/x"), "second").unwrap();
    fs::write(at("val/y"), "").unwrap();
    fs::write(at("plain"), "plain").unwrap();
    symlink("plain", at("to plain")).unwrap();
    symlink("val", at("to val")).unwrap();
    fs::set_permissions(at("val"), Permissions::from_mode(0o710)).unwrap();
    let shown = |paths: &[&str]| {
        let paths: Vec<_> = paths.iter().map(|path| at(path)).collect();
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
        let modified = fs::metadata(at(name)).unwrap().modified().unwrap();
        modified.duration_since(std::time::UNIX_EPOCH).unwrap()
    });
    let newest = *newest.iter().max().unwrap();
    let expected = (newest.as_secs() as i64, newest.subsec_nanos());
    assert_eq!((root.modified.seconds, root.modified.nanoseconds), expected);
    assert_eq!(names(&shown(&["train/.", "val", "plain"])), ["plain", "val", "val/y", "x"]);
    assert_eq!(names(&shown(&["more/..", "val"])).len(), names(&shown(&["."])).len() + 3);
    let hiding = shown(&["train", "more/train"]);
    assert_eq!((names(&hiding).len(), hiding.hidden()), (2, 1));
    assert_eq!(bytes(&hiding, "train/x").unwrap(), b"second");
    let (missing, _) = attempt(&of(&[&at("missing")]), 1);
    assert_eq!(missing.err().unwrap().kind(), Kind::NotFound);
    assert_eq!(attempt(&of(&[]), 1).0.err().unwrap().kind(), Kind::Usage);
}

#[test]
fn the_archive_that_is_made_is_not_packed_and_other_disks_only_if_wanted() {
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    fs::create_dir(at("below")).unwrap();
    for name in ["out.sqfs", "below/out.sqfs", ".archfs-pack-123"] {
        fs::write(at(name), "x").unwrap();
    }
    let output = Some(at("below/../out.sqfs"));
    let (catalog, _) = gathered(&Sources { output: output.clone(), ..of(&[work.path()]) });
    assert_eq!(names(&catalog), ["below", "below/out.sqfs"]);
    let (itself, _) = attempt(&Sources { output, ..of(&[&at("out.sqfs")]) }, 1);
    assert_eq!(itself.err().unwrap().kind(), Kind::InvalidInput);

    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    if !mounts.contains(" /dev/pts ") {
        return eprintln!("SKIPPED in part: nothing is mounted at /dev/pts");
    }
    let list = |name: &str| {
        fs::write(at(name), "pts\n").unwrap();
        Some(FileList { path: at(name), separator: Separator::Newline })
    };
    let dev = |other_mounts| {
        let list = list("list");
        gathered(&Sources { other_mounts, list, ..of(&[Path::new("/dev")]) }).0
    };
    assert_eq!(names(&dev(OtherMounts::Skip)), ["pts"]);
    assert!(names(&dev(OtherMounts::Enter)).contains(&"pts/ptmx".to_owned()));
}

#[test]
fn a_list_selects_and_what_it_misses_is_named() {
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    fs::create_dir_all(at("in/a/deep/er")).unwrap();
    for name in ["in/a/x", "in/a/y", "in/a/deep/er/z", "in/b"] {
        fs::write(at(name), name).unwrap();
    }
    fs::set_permissions(at("in/a"), Permissions::from_mode(0o705)).unwrap();
    let tar = at("in.tar");
    let status = Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(at("in")).arg(".").status();
    assert!(status.unwrap().success());
    fs::write(at("list"), "a/deep\n./a//y\ngone\ngone/too\nb/below\n").unwrap();
    let list = Some(FileList { path: at("list"), separator: Separator::Newline });
    for source in [at("in"), tar] {
        let (catalog, problems) = gathered(&Sources { list: list.clone(), ..of(&[&source]) });
        assert_eq!(names(&catalog), ["a", "a/deep", "a/deep/er", "a/deep/er/z", "a/y"]);
        assert_eq!(catalog.inode(id(&catalog, "a")).meta.permissions, 0o705);
        assert_eq!(bytes(&catalog, "a/y").unwrap(), b"in/a/y");
        let origins: Vec<_> = problems.iter().map(|problem| problem.origin.clone()).collect();
        let expected = ["b/below", "gone"].map(|name| format!("{}/{name}", source.display()));
        assert_eq!(origins[..2], expected);
    }
    let plain = Sources { list: list.clone(), ..of(&[&at("in/b")]) };
    assert_eq!(attempt(&plain, 1).0.err().unwrap().kind(), Kind::NotADirectory);
    let two = Sources { list, ..of(&[&at("in"), &at("in")]) };
    assert_eq!(attempt(&two, 1).0.err().unwrap().kind(), Kind::Usage);
}

#[test]
fn a_map_moves_files_into_folders_that_are_made_for_them() {
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    fs::create_dir_all(at("val/old")).unwrap();
    for name in ["val/1.JPEG", "val/2.JPEG", "val/3.JPEG", "val/old/4.JPEG", "val/stays"] {
        fs::write(at(name), name).unwrap();
    }
    fs::hard_link(at("val/3.JPEG"), at("val/same")).unwrap();
    let map = |text: &str| {
        fs::write(at("map"), text).unwrap();
        attempt(&Sources { map: Some(at("map")), ..of(&[&at("val")]) }, 2)
    };
    let lines = "1.JPEG\tn01/\n2.JPEG\tn01/\n3.JPEG n02/other\nold/4.JPEG\told/5\n";
    let catalog = map(lines).0.unwrap();
    let expected =
        ["n01", "n01/1.JPEG", "n01/2.JPEG", "n02", "n02/other", "old", "old/5", "same", "stays"];
    assert_eq!(names(&catalog), expected);
    assert_eq!(id(&catalog, "n02/other"), id(&catalog, "same"));
    assert_eq!(catalog.links(id(&catalog, "same")), 2);
    assert_eq!(bytes(&catalog, "n01/2.JPEG").unwrap(), b"val/2.JPEG");
    let folder = catalog.inode(id(&catalog, "n01")).meta;
    assert_eq!(folder.permissions, 0o755);
    assert_eq!(folder.modified, catalog.inode(id(&catalog, "n01/2.JPEG")).meta.modified);

    let error = map("1.JPEG\tstays\n9.JPEG\tn01/\n2.JPEG\tsame/\nold\tnew\n").0.err().unwrap();
    assert_eq!(error.kind(), Kind::InvalidInput);
    let told = error.to_string();
    for line in ["line 1: stays: is there", "line 2: 9.JPEG: no such", "line 3: same: is no folder"]
    {
        assert!(told.contains(line), "{told}");
    }
    assert!(told.contains("line 4: old: is a folder"), "{told}");
}

/// What Python's tarfile tells of a tar, in the words of `told`.
const TARFILE: &str = r#"
import sys, tarfile, decimal, math
out = sys.stdout.buffer
with tarfile.open(sys.argv[1]) as tar:
    seen = {}
    for m in tar:
        name = m.name.removeprefix("./")
        if name == ".": name = ""
        seen[name] = m
    links = {}
    def target(m): return seen[m.linkname.removeprefix("./")] if m.islnk() else m
    for m in seen.values(): links[id(target(m))] = links.get(id(target(m)), 0) + 1
    for name, m in seen.items():
        m = target(m)
        kind = {b"0": "f", b"\0": "f", b"5": "d", b"2": "l", b"3": "c", b"4": "b", b"6": "p"}[m.type]
        time = decimal.Decimal(m.pax_headers.get("mtime", m.mtime))
        second = math.floor(time)
        time = f"{second}.{int((time - second) * 10**9):09}0"
        size = m.size if kind == "f" else 0
        number = 0 if kind == "d" else links[id(m)]
        line = f"\t{kind}\t{m.mode:o}\t{m.uid}\t{m.gid}\t{time}\t{size}\t{number}\t"
        link = m.linkname if kind == "l" else ""
        out.write((name + line + link).encode("utf-8", "surrogateescape") + b"\0")
"#;

#[test]
fn an_archive_is_what_tarfile_tells_of_it() {
    let work = tempfile::tempdir().unwrap();
    let zoo_folder = work.path().join("zoo");
    fs::create_dir(&zoo_folder).unwrap();
    zoo(&zoo_folder);
    // A tar holds no sockets.
    fs::remove_file(zoo_folder.join("socket")).unwrap();
    for (name, option) in [("t.tar", "--format=pax"), ("t.tar.gz", "-z")] {
        let tar = work.path().join(name);
        let status = Command::new("tar")
            .args([option, "--format=pax", "--sort=name", "-cf"])
            .arg(&tar)
            .arg("-C")
            .arg(&zoo_folder)
            .arg(".")
            .status();
        assert!(status.unwrap().success());
        let output = Command::new("python3").args(["-c", TARFILE]).arg(&tar).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let lines = output.stdout.split(|&byte| byte == 0).filter(|line| !line.is_empty());
        let mut expected: Vec<_> = lines.map(<[u8]>::to_vec).collect();
        expected.sort();
        let (catalog, problems) = gathered(&of(&[&tar]));
        assert_eq!(problems, []);
        let shown = |lines: &[Vec<u8>]| lines.iter().map(|line| text(line)).collect::<Vec<_>>();
        assert_eq!(shown(&told(&catalog)), shown(&expected));
        for name in ["a/one", "a/b/c/large", "sparse"] {
            assert!(bytes(&catalog, name).unwrap() == fs::read(zoo_folder.join(name)).unwrap());
        }
        let What::File { content, .. } = catalog.inode(id(&catalog, "z one")).what else {
            panic!()
        };
        let origin = catalog.content(content).origin(content.key);
        assert!(origin.starts_with(&format!("{}/", tar.display())), "{origin}");
        // In the order of the archive.
        let places = catalog.files().into_iter().map(|id| match catalog.inode(id).what {
            What::File { content, .. } => catalog.content(content).place(content.key),
            _ => 0,
        });
        assert!(places.clone().any(|place| place > 0));
    }
    let tar = work.path().join("sparse.tar");
    let mut command = Command::new("tar");
    command.args(["-S", "-cf"]).arg(&tar).arg("-C").arg(&zoo_folder).args(["sparse", "a"]);
    assert!(command.status().unwrap().success());
    let (catalog, _) = gathered(&of(&[&tar]));
    let What::File { content, sparse, size } = catalog.inode(id(&catalog, "sparse")).what else {
        panic!("no file")
    };
    assert!(sparse);
    let content_of = catalog.content(content);
    let data = content_of.next_data(content.key, 0).unwrap().unwrap();
    assert_eq!(data, (4 << 20)..(4 << 20) + 8192);
    assert!(content_of.next_data(content.key, data.end).unwrap().is_none_or(|r| r.start == size));
    assert!(bytes(&catalog, "sparse").unwrap() == fs::read(zoo_folder.join("sparse")).unwrap());
}

#[test]
fn an_image_is_what_find_tells_of_the_folder_it_was_made_of() {
    let work = tempfile::tempdir().unwrap();
    let (folder, image) = (work.path().join("zoo"), work.path().join("zoo.sqfs"));
    fs::create_dir(&folder).unwrap();
    zoo(&folder);
    let mut command = Command::new("mksquashfs");
    command.arg(&folder).arg(&image).args(["-quiet", "-no-progress"]);
    let Ok(made) = command.output() else {
        return eprintln!("SKIPPED: no mksquashfs");
    };
    assert!(made.status.success(), "{}", text(&made.stderr));
    // Images keep seconds, and none before 1970; mksquashfs makes two of a link with two names.
    let timeless = |lines: Vec<Vec<u8>>| {
        let fields = |line: &Vec<u8>| {
            let mut fields: Vec<_> = line.split(|&byte| byte == b'\t').map(text).collect();
            fields.remove(5);
            if fields[1] == "l" {
                fields.remove(6);
            }
            fields
        };
        lines.iter().map(fields).collect::<Vec<_>>()
    };
    let (catalog, problems) = gathered(&of(&[&image]));
    assert_eq!(problems, []);
    assert_eq!(timeless(told(&catalog)), timeless(find(&folder)));
    for name in ["a/one", "a/b/none", "a/b/c/large", "sparse"] {
        assert!(bytes(&catalog, name).unwrap() == fs::read(folder.join(name)).unwrap());
    }
}

#[test]
fn archives_merge_in_the_root_and_those_within_become_folders() {
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    let tar = |name: &str, files: &[(&str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
            if text.starts_with('/') {
                fs::copy(text, folder.path().join(name)).unwrap();
            } else {
                fs::write(folder.path().join(name), text).unwrap();
            }
        }
        let mut command = Command::new("tar");
        command.arg("-cf").arg(at(name)).arg("-C").arg(folder.path());
        assert!(command.args(files.iter().map(|(name, _)| name)).status().unwrap().success());
    };
    tar("one.tar", &[("d/x", "1"), ("d/same", "1")]);
    tar("two.tar", &[("d/y", "2"), ("d/same", "2")]);
    let (catalog, _) = gathered(&of(&[&at("one.tar"), &at("two.tar")]));
    assert_eq!(names(&catalog), ["d", "d/same", "d/x", "d/y"]);
    assert_eq!((bytes(&catalog, "d/same").unwrap(), catalog.hidden()), (b"2".to_vec(), 1));
    assert_eq!(catalog.inode(InodeId::ROOT).meta.permissions, 0o755);

    let (one, two) = (at("one.tar").display().to_string(), at("two.tar").display().to_string());
    tar("outer.tar", &[("n01.tar", &one), ("n02.tar", &two)]);
    tar("mixed.tar", &[("n01.tar", &one), ("read.me", "text")]);
    tar("lying.tar", &[("n01.tar", &one), ("n02.tar", "no tar at all")]);
    // What holds nothing but archives becomes folders unasked, anything else where it is asked for.
    let names_of = |name: &str, recursive: bool| {
        let sources = Sources { recursive, ..of(&[&at(name)]) };
        names(&gathered(&sources).0)
    };
    for (name, unasked, asked) in [
        ("outer.tar", "n02/d/y", "n02/d/y"),
        ("mixed.tar", "n01.tar", "n01/d/x"),
        ("lying.tar", "n01.tar", "n01/d/x"),
    ] {
        for (recursive, expected) in [(false, unasked), (true, asked)] {
            let found = names_of(name, recursive);
            assert!(found.contains(&expected.to_owned()), "{name}, {recursive}: {found:?}");
        }
    }
    let (catalog, _) = gathered(&of(&[&at("outer.tar")]));
    assert_eq!(bytes(&catalog, "n02/d/y").unwrap(), b"2");
    let (whole, _) = gathered(&of(&[&at("mixed.tar")]));
    assert!(bytes(&whole, "n01.tar").unwrap() == fs::read(at("one.tar")).unwrap());

    // Damage in what says that it is an archive is no file like any other.
    let mut image = fs::read(at("one.tar")).unwrap();
    image[..4].copy_from_slice(b"hsqs");
    fs::write(at("damaged.sqfs"), image).unwrap();
    assert!(attempt(&of(&[&at("damaged.sqfs")]), 1).0.is_err());
}

#[test]
fn stops_when_told_to() {
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
    for folder in 0..200 {
        let folder = work.path().join(format!("{}/n{folder:08}", folder % 2));
        fs::create_dir_all(&folder).unwrap();
        for file in 0..FILES / 200 {
            File::create(folder.join(format!("n01440764_{file:05}.JPEG"))).unwrap();
        }
    }
    let kib = |what: &str| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    // The first half pays for threads and what they have in hand, the second for its files alone.
    let mut kept = Vec::new();
    let mut costs = Vec::new();
    for half in ["0", "1"] {
        let (before, begun) = (kib("VmRSS:"), std::time::Instant::now());
        let (catalog, problems) = gathered(&of(&[&work.path().join(half)]));
        let took = begun.elapsed();
        assert_eq!((catalog.len() as u64, problems.len()), (FILES / 2 + 101, 0));
        kept.push(catalog);
        costs.push((kib("VmRSS:") - before) * 1024 / (FILES / 2));
        println!("{} files in {took:?}, {:?} bytes each so far", FILES / 2, costs);
    }
    let begun = std::time::Instant::now();
    assert_eq!(find(&work.path().join("0")).len() as u64, FILES / 2 + 101);
    println!("find takes {:?}", begun.elapsed());
    assert!(costs[1] < 256, "{costs:?}");
}
