//! Directories on a disk, compared with find(1), the kernel and the files themselves.

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
        alone("disk::unreadable_files_are_named_and_the_rest_is_packed", Some(65_534));
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
