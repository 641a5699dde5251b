//! Archives as sources, compared with Python's tarfile and find(1).

use super::*;

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
    assert_eq!((bytes(&catalog, "d/same").unwrap(), catalog.hidden()), (b"2".to_vec(), 1));
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
