//! Directories on a disk, compared with find(1), the kernel and the files themselves; archives,
//! compared with Python's tarfile and find(1).

use super::*;

#[test]
fn a_directory_matches_find_on_any_number_of_threads() {
    let work = tempfile::tempdir().unwrap();
    zoo(work.path());
    let expected = find(work.path());
    let mut numbers = Vec::new();
    for threads in [1, 2, 16] {
        let (catalog, problems) = attempt(&of(&[work.path()]), threads);
        let catalog = catalog.unwrap();
        assert_eq!(problems, []);
        let found = described(&catalog);
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
fn reads_bytes_holes_and_device_numbers_of_the_disk() {
    let work = tempfile::tempdir().unwrap();
    zoo(work.path());
    let (catalog, _) = gathered(&of(&[work.path()]));
    for name in ["a/one", "a/b/none", "a/b/c/large", "z one", "sparse"] {
        assert!(bytes(&catalog, name).unwrap() == fs::read(work.path().join(name)).unwrap());
    }
    let file = |name: &str| match catalog.inode(id(&catalog, name)).kind {
        InodeKind::File { content, sparse, .. } => (catalog.content(content), content.key, sparse),
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
        let device = |name: &str| match catalog.inode(id(&catalog, name)).kind {
            InodeKind::Device { number, .. } => number,
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
        let (catalog, problems) = gathered(&Sources { as_file: true, ..of(paths) });
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
fn the_latest_large_files_stay_open_between_reads() {
    const MIB: u64 = 1 << 20;
    let work = tempfile::tempdir().unwrap();
    let create = |name: &str, size: u64| {
        let path = work.path().join(name);
        File::create(&path).unwrap().set_len(size).unwrap();
        path
    };
    let small = create("small", MIB);
    let large: Vec<_> = (0..9).map(|nth| create(&format!("large{nth}"), MIB + 1)).collect();
    let (catalog, problems) = gathered(&of(&[work.path()]));
    assert_eq!(problems, []);
    let read = |name: &str| {
        let InodeKind::File { content, .. } = catalog.inode(id(&catalog, name)).kind else {
            panic!("{name} is no file");
        };
        catalog.content(content).read(content.key, 0, &mut [0; 100])
    };
    read("small").unwrap();
    large.iter().enumerate().for_each(|(nth, _)| read(&format!("large{nth}")).unwrap());
    for path in [&small].into_iter().chain(&large) {
        fs::remove_file(path).unwrap();
    }
    for closed in ["small", "large0"] {
        assert_eq!(read(closed).unwrap_err().kind(), Kind::Changed, "{closed}");
    }
    (1..9).for_each(|nth| read(&format!("large{nth}")).unwrap());
}

#[test]
fn a_changed_file_is_reported_and_not_read() {
    let work = tempfile::tempdir().unwrap();
    let path_to = |name: &str| work.path().join(name);
    let all =
        ["shrunk", "grown", "rewritten", "replaced", "gone", "link", "pipe", "folder", "same"];
    for name in all {
        fs::write(path_to(name), vec![5; 5000]).unwrap();
    }
    let (catalog, problems) = gathered(&of(&[work.path()]));
    assert_eq!(problems, []);
    File::options().write(true).open(path_to("shrunk")).unwrap().set_len(10).unwrap();
    File::options().write(true).open(path_to("grown")).unwrap().set_len(5001).unwrap();
    fs::write(path_to("rewritten"), vec![6; 5000]).unwrap();
    let status = Command::new("cp").arg("-p").arg(path_to("same")).arg(path_to("new")).status();
    assert!(status.unwrap().success());
    fs::rename(path_to("new"), path_to("replaced")).unwrap();
    for name in ["gone", "link", "pipe", "folder"] {
        fs::remove_file(path_to(name)).unwrap();
    }
    symlink("same", path_to("link")).unwrap();
    mknodat(CWD, path_to("pipe"), FileType::Fifo, Mode::from(0o600), 0).unwrap();
    fs::create_dir(path_to("folder")).unwrap();
    for name in &all[..all.len() - 1] {
        let error = bytes(&catalog, name).unwrap_err();
        assert_eq!(error.kind(), Kind::Changed, "{name}: {error}");
        let expected = format!("{}: changed while it was read", path_to(name).display());
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(bytes(&catalog, "same").unwrap(), vec![5; 5000]);
}

#[test]
fn unreadable_files_are_named_and_the_rest_is_packed() {
    if rustix::process::geteuid().is_root() {
        // Root can read everything.
        alone("kinds::unreadable_files_are_named_and_the_rest_is_packed", Some(65_534));
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let path_to = |name: &str| work.path().join(name);
    fs::create_dir_all(path_to("shut/below")).unwrap();
    fs::create_dir_all(path_to("blind/below")).unwrap();
    fs::write(path_to("secret"), "x").unwrap();
    fs::write(path_to("public"), "y").unwrap();
    fs::set_permissions(path_to("secret"), Permissions::from_mode(0o0)).unwrap();
    fs::set_permissions(path_to("shut"), Permissions::from_mode(0o0)).unwrap();
    // The directory can be listed, but its entries cannot be examined.
    fs::set_permissions(path_to("blind"), Permissions::from_mode(0o444)).unwrap();
    let (catalog, problems) = gathered(&of(&[work.path()]));
    fs::set_permissions(path_to("shut"), Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(path_to("blind"), Permissions::from_mode(0o700)).unwrap();
    assert_eq!(names(&catalog), ["blind", "public", "secret", "shut"]);
    let origins: Vec<_> = problems.iter().map(|problem| problem.origin.clone()).collect();
    assert_eq!(origins, ["blind/below", "shut"].map(|name| path_to(name).display().to_string()));
    assert!(problems.iter().all(|problem| problem.why.contains("Permission denied")));
    assert_eq!(bytes(&catalog, "public").unwrap(), b"y");
    let error = bytes(&catalog, "secret").unwrap_err();
    assert!(error.to_string().contains("secret: cannot read: Permission denied"), "{error}");
}

#[test]
fn directories_deeper_than_path_max_are_packed() {
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

/// The members of a tar as Python's tarfile lists them, in the format of `described`.
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
fn an_archive_matches_tarfile() {
    let work = tempfile::tempdir().unwrap();
    let zoo_directory = work.path().join("zoo");
    fs::create_dir(&zoo_directory).unwrap();
    zoo(&zoo_directory);
    // A tar cannot hold sockets.
    fs::remove_file(zoo_directory.join("socket")).unwrap();
    for (name, option) in [("t.tar", "--format=pax"), ("t.tar.gz", "-z")] {
        let tar = work.path().join(name);
        let status = Command::new("tar")
            .args([option, "--format=pax", "--sort=name", "-cf"])
            .arg(&tar)
            .arg("-C")
            .arg(&zoo_directory)
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
        assert_eq!(shown(&described(&catalog)), shown(&expected));
        for name in ["a/one", "a/b/c/large", "sparse"] {
            assert!(bytes(&catalog, name).unwrap() == fs::read(zoo_directory.join(name)).unwrap());
        }
        let InodeKind::File { content, .. } = catalog.inode(id(&catalog, "z one")).kind else {
            panic!()
        };
        let origin = catalog.content(content).origin(content.key);
        assert!(origin.starts_with(&format!("{}/", tar.display())), "{origin}");
        // In the order of the archive.
        let offsets = catalog.files().into_iter().map(|id| match catalog.inode(id).kind {
            InodeKind::File { content, .. } => catalog.content(content).data_offset(content.key),
            _ => 0,
        });
        assert!(offsets.clone().any(|offset| offset > 0));
    }
    let tar = work.path().join("sparse.tar");
    let mut command = Command::new("tar");
    command.args(["-S", "-cf"]).arg(&tar).arg("-C").arg(&zoo_directory).args(["sparse", "a"]);
    assert!(command.status().unwrap().success());
    let (catalog, _) = gathered(&of(&[&tar]));
    let InodeKind::File { content, sparse, size } = catalog.inode(id(&catalog, "sparse")).kind
    else {
        panic!("no file")
    };
    assert!(sparse);
    let content_of = catalog.content(content);
    let data = content_of.next_data(content.key, 0).unwrap().unwrap();
    assert_eq!(data, (4 << 20)..(4 << 20) + 8192);
    assert!(content_of.next_data(content.key, data.end).unwrap().is_none_or(|r| r.start == size));
    assert!(bytes(&catalog, "sparse").unwrap() == fs::read(zoo_directory.join("sparse")).unwrap());
}

#[test]
fn an_image_matches_find_on_its_source() {
    let work = tempfile::tempdir().unwrap();
    let (directory, image) = (work.path().join("zoo"), work.path().join("zoo.sqfs"));
    fs::create_dir(&directory).unwrap();
    zoo(&directory);
    let mut command = Command::new("mksquashfs");
    command.arg(&directory).arg(&image).args(["-quiet", "-no-progress"]);
    let Ok(made) = command.output() else {
        return eprintln!("SKIPPED: no mksquashfs");
    };
    assert!(made.status.success(), "{}", text(&made.stderr));
    // Images store whole seconds from 1970 on; mksquashfs splits a symbolic link with two names.
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
    assert_eq!(timeless(described(&catalog)), timeless(find(&directory)));
    for name in ["a/one", "a/b/none", "a/b/c/large", "sparse"] {
        assert!(bytes(&catalog, name).unwrap() == fs::read(directory.join(name)).unwrap());
    }
}

#[test]
fn archives_merge_in_the_root_and_inner_ones_become_directories() {
    let work = tempfile::tempdir().unwrap();
    let path_to = |name: &str| work.path().join(name);
    let tar = |name: &str, files: &[(&str, &str)]| {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::create_dir_all(directory.path().join(name).parent().unwrap()).unwrap();
            if text.starts_with('/') {
                fs::copy(text, directory.path().join(name)).unwrap();
            } else {
                fs::write(directory.path().join(name), text).unwrap();
            }
        }
        let mut command = Command::new("tar");
        command.arg("-cf").arg(path_to(name)).arg("-C").arg(directory.path());
        assert!(command.args(files.iter().map(|(name, _)| name)).status().unwrap().success());
    };
    tar("one.tar", &[("d/x", "1"), ("d/same", "1")]);
    tar("two.tar", &[("d/y", "2"), ("d/same", "2")]);
    let (catalog, _) = gathered(&of(&[&path_to("one.tar"), &path_to("two.tar")]));
    assert_eq!(names(&catalog), ["d", "d/same", "d/x", "d/y"]);
    assert_eq!((bytes(&catalog, "d/same").unwrap(), catalog.hidden), (b"2".to_vec(), 1));
    assert_eq!(catalog.inode(InodeId::ROOT).meta.permissions, 0o755);

    let (one, two) =
        (path_to("one.tar").display().to_string(), path_to("two.tar").display().to_string());
    tar("outer.tar", &[("n01.tar", &one), ("n02.tar", &two)]);
    tar("mixed.tar", &[("n01.tar", &one), ("read.me", "text")]);
    tar("lying.tar", &[("n01.tar", &one), ("n02.tar", "no tar at all")]);
    // An archive of archives becomes directories by default; others only with `recursive`.
    let names_of = |name: &str, recursive: bool| {
        let sources = Sources { recursive, ..of(&[&path_to(name)]) };
        names(&gathered(&sources).0)
    };
    for (name, by_default, recursively) in [
        ("outer.tar", "n02/d/y", "n02/d/y"),
        ("mixed.tar", "n01.tar", "n01/d/x"),
        ("lying.tar", "n01.tar", "n01/d/x"),
    ] {
        for (recursive, expected) in [(false, by_default), (true, recursively)] {
            let found = names_of(name, recursive);
            assert!(found.contains(&expected.to_owned()), "{name}, {recursive}: {found:?}");
        }
    }
    let (catalog, _) = gathered(&of(&[&path_to("outer.tar")]));
    assert_eq!(bytes(&catalog, "n02/d/y").unwrap(), b"2");
    let (whole, _) = gathered(&of(&[&path_to("mixed.tar")]));
    assert!(bytes(&whole, "n01.tar").unwrap() == fs::read(path_to("one.tar")).unwrap());

    // A damaged archive is an error, not a plain file.
    let mut image = fs::read(path_to("one.tar")).unwrap();
    image[..4].copy_from_slice(b"hsqs");
    fs::write(path_to("damaged.sqfs"), image).unwrap();
    assert!(attempt(&of(&[&path_to("damaged.sqfs")]), 1).0.is_err());
}
