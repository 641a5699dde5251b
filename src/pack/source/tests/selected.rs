//! Where each of several sources goes, and what lists and maps select and move.

use super::*;

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
    assert_eq!((names(&hiding).len(), hiding.hidden()), (2, 1));
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
