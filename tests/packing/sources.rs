//! What `archfs pack` accepts as input: directories, lists, maps, tars, images, and several of
//! them.

use std::fs;
use std::process::Command;

use super::*;
use crate::support::{image, run, skip_without_mounts, source, work_directory};

/// Makes a tar of the contents of `directory` with GNU tar, sorted by name, with extended
/// attributes.
fn gnu_tar(archive: &Path, directory: &Path) {
    let mut command = Command::new("tar");
    command.arg("-C").arg(directory).args([
        "--sort=name",
        "--format=posix",
        "--xattrs",
        "--sparse",
    ]);
    run(command.arg("-cf").arg(archive).arg("."));
}

#[test]
fn a_tar_compressed_or_not_and_an_image_become_the_same_tree() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = source::varied();
    let expected = take(&tree, Depth::Everything);
    let stored = work.path().join("stored.tar");
    gnu_tar(&stored, &tree);
    let compressed = work.path().join("compressed.tar.gz");
    let script = "gzip -1 < \"$1\" > \"$2\"";
    run(Command::new("sh").args(["-c", script, "sh"]).arg(&stored).arg(&compressed));
    let squashed = image::make(work.path(), "squashed.sqfs", &tree, &["-comp", "gzip"]);
    for source in [&stored, &compressed, &squashed] {
        let made = packed(work.path(), "made.sqfs", source, &[]);
        let mut expected = expected.clone();
        let mut found = by_kernel(&made, work.path());
        if source != &squashed {
            // A tar has no sockets, and GNU tar makes two fifos of one with two names.
            for name in [&b"socket"[..], b"fifo", b"hard-fifo"] {
                expected.remove(name);
            }
            found.remove(&b"fifo"[..]);
            found.remove(&b"hard-fifo"[..]);
        }
        assert_same(text(source), &expected, &found);
        // Pack the tree again.
        let tar = packed(work.path(), "made.tar", &made, &[]);
        let mut back = by_archfs(&tar, work.path());
        for name in [&b"socket"[..], b"fifo", b"hard-fifo", b""] {
            found.remove(name);
            back.remove(name);
        }
        assert_same(&format!("{}, back", text(source)), &found, &back);
    }
}

#[test]
fn a_tar_of_tars_becomes_a_directory_for_each() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let (tree, tars) = (directory(work.path(), "tree"), directory(work.path(), "tars"));
    for class in ["n01440764", "n01443537", "n02391049"] {
        let inner = tree.join(class);
        for number in 0..30 {
            let name = format!("{class}/{class}_{number}.JPEG");
            write_all(&tree, &[(&name, &source::noise(number, 9_000))]);
        }
        let mut command = Command::new("tar");
        command.arg("-C").arg(&inner).args(["--sort=name", "--format=gnu"]).arg("-cf");
        run(command.arg(tars.join(format!("{class}.tar"))).arg("."));
    }
    let outer = work.path().join("ILSVRC2012_img_train.tar");
    run(Command::new("sh")
        .args(["-c", "cd \"$1\" && tar --format=gnu -cf \"$2\" *.tar", "sh"])
        .arg(&tars)
        .arg(&outer));
    // A tar of only archives needs no option.
    let made = packed(work.path(), "imagenet.sqfs", &outer, &[]);
    let expected = contents(&take(&tree, Depth::NoXattrs));
    assert_eq!(expected.len(), 90);
    assert_eq!(contents(&by_kernel(&made, work.path())), expected);
    // If a tar also has other files, its tars become directories only on request.
    write_all(&tars, &[("README", b"three classes")]);
    gnu_tar(&outer, &tars);
    let made = packed(work.path(), "imagenet.sqfs", &outer, &[]);
    let found = by_kernel(&made, work.path());
    assert!(found.contains_key(&b"n01440764.tar"[..]) && !found.contains_key(&b"n01440764"[..]));
    let made = packed(work.path(), "imagenet.sqfs", &outer, &["--recursive"]);
    let found = by_kernel(&made, work.path());
    assert!(found.contains_key(&b"n01440764/n01440764_3.JPEG"[..]));
}

#[test]
fn a_map_moves_files_to_other_directories() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("val_1.JPEG", b"one"), ("val_2.JPEG", b"two"), ("val 3.JPEG", b"three")]);
    let archive = work.path().join("val.tar");
    gnu_tar(&archive, &tree);
    let map = work.path().join("map");
    fs::write(&map, "val_1.JPEG\tn01/\nval_2.JPEG n02/second.JPEG\nval 3.JPEG\tn01/third.JPEG\n")
        .unwrap();
    for from in [&archive, &tree] {
        let made = packed(work.path(), "val.sqfs", from, &["--map", text(&map)]);
        let mut files: Vec<_> = said(&["unsquashfs", "-d", "", "-lc", text(&made)])
            .lines()
            .filter(|line| line.ends_with("JPEG"))
            .map(str::to_owned)
            .collect();
        files.sort();
        assert_eq!(files, ["/n01/third.JPEG", "/n01/val_1.JPEG", "/n02/second.JPEG"]);
        assert_eq!(said(&["unsquashfs", "-cat", text(&made), "n02/second.JPEG"]), "two");
    }
    // A bad line is named in the error.
    for (lines, complaint) in [
        ("val_1.JPEG\ta\nnowhere\tb\n", "nowhere"),
        ("val_1.JPEG\ta\nval_2.JPEG\ta\n", "line 2"),
        ("val_1.JPEG\n", "line 1"),
        ("val_1.JPEG\t../up\n", "line 1"),
    ] {
        fs::write(&map, lines).unwrap();
        let made = work.path().join("never.sqfs");
        let stderr = refused(&["--map", text(&map), text(&tree), text(&made)], 1);
        assert!(stderr.contains(complaint), "{lines:?}: {stderr}");
        assert!(!made.exists());
    }
}

#[test]
fn a_list_selects_files_and_every_missing_one_is_named() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(
        &tree,
        &[("a/1", b"1"), ("a/2", b"2"), ("b/3", b"3"), ("c/d/4", b"4"), ("c/5", b"5")],
    );
    let list = work.path().join("list");
    fs::write(&list, "a/2\nc/d\n").unwrap();
    let made = packed(work.path(), "a.sqfs", &tree, &["--files-from", text(&list)]);
    let listed = said(&["unsquashfs", "-d", "", "-lc", text(&made)]);
    let files: Vec<_> = listed.lines().filter(|line| line.ends_with(char::is_numeric)).collect();
    assert_eq!(files, ["/a/2", "/c/d/4"]);

    fs::write(&list, b"a/2\0c/5\0").unwrap();
    let made = packed(work.path(), "a.tar", &tree, &["--files-from", text(&list), "--null"]);
    let listed = said(&["tar", "-tf", text(&made)]);
    let files: Vec<_> = listed.lines().filter(|line| !line.ends_with('/')).collect();
    assert_eq!(files, ["a/2", "c/5"]);

    fs::write(&list, "a/2\nmissing/1\nb/3\nmissing/2\n").unwrap();
    let made = work.path().join("never.sqfs");
    let stderr = refused(&["--files-from", text(&list), text(&tree), text(&made)], 1);
    assert!(stderr.contains("missing/1") && stderr.contains("missing/2"), "{stderr}");
    assert!(!made.exists());
    let stderr =
        refused(&["--keep-going", "--files-from", text(&list), text(&tree), text(&made)], 1);
    assert!(stderr.contains("missing/1") && made.exists(), "{stderr}");
}

#[test]
fn several_directories_keep_their_names_and_archives_merge() {
    let work = work_directory();
    let (one, two) = (directory(work.path(), "one"), directory(work.path(), "two"));
    write_all(&one, &[("x/1", b"first"), ("x/2", b"second")]);
    write_all(&two, &[("x/2", b"hides"), ("y/3", b"third")]);
    let made = work.path().join("a.tar");
    let list = |made: &Path| {
        let listed = said(&["tar", "-tf", text(made)]);
        let files = listed.lines().filter(|line| !line.ends_with('/'));
        files.map(str::to_owned).collect::<Vec<_>>()
    };
    pack(&["-q", text(&one), text(&two), text(&made)]);
    assert_eq!(list(&made), ["one/x/1", "one/x/2", "two/x/2", "two/y/3"]);
    let inside = |directory: &Path| format!("{}/.", text(directory));
    pack(&["-q", "--force", &inside(&one), &inside(&two), text(&made)]);
    assert_eq!(list(&made), ["x/1", "x/2", "y/3"]);
    let tars = [&one, &two].map(|directory| {
        let archive = directory.with_extension("tar");
        gnu_tar(&archive, directory);
        archive
    });
    let output = pack(&["--force", text(&tars[0]), text(&tars[1]), text(&made)]);
    assert_eq!(list(&made), ["x/1", "x/2", "y/3"]);
    assert_eq!(said(&["tar", "-xOf", text(&made), "x/2"]), "hides");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("1 file"), "tells that one is hidden: {stderr}");
}

#[test]
fn owner_options_apply_to_all_files() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("a/1", b"1")]);
    let made = packed(work.path(), "a.sqfs", &tree, &["--owner", "1234:5678"]);
    let listed = said(&["unsquashfs", "-lln", text(&made)]);
    let lines: Vec<_> = listed.lines().filter(|line| line.contains("squashfs-root")).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line.contains(" 1234/5678 ")), "{listed}");
}

#[test]
fn the_archive_is_not_packed_into_itself() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("a", b"a")]);
    let made = tree.join("made.sqfs");
    pack(&["-q", text(&tree), text(&made)]);
    pack(&["-q", "--force", text(&tree), text(&made)]);
    let listed = said(&["unsquashfs", "-d", "", "-lc", text(&made)]);
    assert!(!listed.contains("made.sqfs"), "{listed}");
}

#[test]
fn standard_input_is_packed_from_a_pipe_or_a_file() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("a/1", &source::noise(1, 300_000)), ("a/2", b"small"), ("b", b"")]);
    let tar = work.path().join("tree.tar");
    gnu_tar(&tar, &tree);
    let expected = sum(&packed(work.path(), "expected.sqfs", &tar, &[]));
    let later = [&[7; 512][..], &fs::read(&tar).unwrap()].concat();
    fs::write(work.path().join("tree.tar.later"), later).unwrap();
    let target = directory(work.path(), "target");
    let made = target.join("made.sqfs");
    let run_with = |script: &str, input: &Path| {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(archfs().get_program()).arg(input).arg(&made);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for script in [
        "cat \"$2\" | \"$1\" pack -qf - \"$3\"",
        "gzip -1 < \"$2\" | \"$1\" pack -qf - \"$3\"",
        "\"$1\" pack -qf - \"$3\" < \"$2\"",
        // A file that something has read from already.
        "{ dd bs=512 count=1 status=none of=/dev/null; \"$1\" pack -qf - \"$3\"; } < \"$2.later\"",
    ] {
        assert_eq!(run_with(script, &tar), (Some(0), String::new()), "{script}");
        assert_eq!(sum(&made), expected, "{script}");
        assert_eq!(names(&target), ["made.sqfs"], "{script}");
    }
    fs::remove_file(&made).unwrap();
    for (script, status, message) in [
        ("echo text | \"$1\" pack - \"$3\"", 3, "standard input: not a SquashFS image"),
        ("\"$1\" pack - \"$3\" < /dev/null", 3, "standard input: is empty"),
        ("head -c 1000 \"$2\" | \"$1\" pack - \"$3\"", 3, "standard input: "),
        ("\"$1\" pack - - \"$3\" < \"$2\"", 2, "only one argument can be -"),
        ("\"$1\" pack --as-file - \"$3\" < \"$2\"", 2, "--as-file"),
        ("\"$1\" pack --map - - \"$3\" < \"$2\"", 2, "only one argument can be -"),
    ] {
        let (code, stderr) = run_with(script, &tar);
        assert_eq!(code, Some(status), "{script}: {stderr}");
        assert!(stderr.contains(message), "{script}: {stderr}");
        assert!(!stderr.contains("add --as-file"), "{script}: {stderr}");
        assert_eq!(names(&target), Vec::<String>::new(), "{script}");
    }
}
