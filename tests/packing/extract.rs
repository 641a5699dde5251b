//! `archfs extract` writes the same trees as unsquashfs and GNU tar, and nothing outside its directory.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::*;
use crate::support::{copy_program, image, run, source, tar, wait_until, work_directory};

/// The user whose rights are those of nobody else.
const NOBODY: u32 = 65_534;

/// Runs `archfs extract WORDS`, which must end with status `code`, and returns its stderr.
fn extract(code: i32, words: &[&str]) -> String {
    let output = archfs().arg("extract").args(words).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}");
    stderr
}

/// Runs a shell script with $1 and $2, which must succeed.
fn sh(script: &str, first: &Path, second: &Path) -> Output {
    run(Command::new("sh").args(["-ec", script, "sh"]).arg(first).arg(second))
}

/// Makes a tar with everything that GNU tar can keep.
fn gnu_tar(archive: &Path, directory: &Path) {
    let script = "tar -C \"$2\" --sort=name --format=posix --xattrs --acls --sparse -cf \"$1\" .";
    sh(script, archive, directory);
}

/// What `snapshot` leaves out: the nanoseconds of the modification time.
fn nanoseconds(root: &Path, snapshot: &Snapshot) -> Vec<i64> {
    let path = |path: &[u8]| root.join(std::ffi::OsStr::from_bytes(path));
    snapshot.keys().map(|name| fs::symlink_metadata(path(name)).unwrap().mtime_nsec()).collect()
}

/// Blocks of 512 bytes that the file occupies.
fn blocks(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks()
}

#[test]
fn extracts_what_unsquashfs_and_tar_extract() {
    let work = work_directory();
    let tree = source::varied();
    let expected = take(&tree, Depth::Everything);
    let stored = work.path().join("stored.tar");
    gnu_tar(&stored, &tree);
    let compressed = work.path().join("compressed.tar.gz");
    sh("gzip -1 < \"$1\" > \"$2\"", &stored, &compressed);
    let squashed = image::make(work.path(), "squashed.sqfs", &tree, &["-comp", "zstd"]);
    let (by_other, made) = (work.path().join("other"), work.path().join("made"));
    for (archive, other) in [
        (&stored, "mkdir \"$2\"; tar --xattrs --xattrs-include='*' --acls -C \"$2\" -xpf \"$1\""),
        (&compressed, ""),
        (&squashed, "unsquashfs -q -n -d \"$2\" \"$1\" >&2"),
    ] {
        let stderr = extract(0, &[text(archive), text(&made)]);
        // On a busy machine, also how far it is.
        let is_progress = |line: &&str| {
            ["reading names", "extracting"]
                .iter()
                .any(|phase| line.starts_with(&format!("archfs: note: {phase}: ")))
        };
        let lines = stderr.lines().filter(|line| !is_progress(line)).count();
        assert_eq!(lines, 1, "only the summary: {stderr}");
        let found = take(&made, Depth::Everything);
        if !other.is_empty() {
            sh(other, archive, &by_other);
            let others = take(&by_other, Depth::Everything);
            assert_same(&format!("{}: as by others", text(archive)), &others, &found);
            assert_eq!(nanoseconds(&by_other, &others), nanoseconds(&made, &found));
            fs::remove_dir_all(&by_other).unwrap();
        }
        if archive == &squashed {
            assert_same("the source", &expected, &found);
        }
        let sparse = blocks(&made.join("sparse"));
        assert!(sparse <= 3 * 2 * 128, "{}: {sparse} blocks of a sparse file", text(archive));
        assert_eq!(blocks(&made.join("all-hole")), 0);
        fs::remove_dir_all(&made).unwrap();
    }
}

#[test]
fn large_files_are_written_by_all_threads() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    // Three parts and a rest; and a file with data on both sides of the border of two parts.
    fs::write(tree.join("noise"), source::noise(1, (50 << 20) + 77)).unwrap();
    let script = "dd if=/dev/urandom of=\"$1/holes\" bs=1M count=2 seek=15 2>&1;
                  dd if=/dev/urandom of=\"$1/holes\" bs=1M count=1 seek=3000 conv=notrunc 2>&1;
                  truncate -s 5G \"$1/holes\"";
    sh(script, &tree, &tree);
    let expected = take(&tree, Depth::Everything);
    let made = work.path().join("made");
    let tar = work.path().join("data.tar");
    gnu_tar(&tar, &tree);
    for archive in [tar, image::make(work.path(), "data.sqfs", &tree, &["-comp", "lz4"])] {
        for threads in ["1", "7"] {
            extract(0, &["--threads", threads, text(&archive), text(&made)]);
            let found = take(&made, Depth::Everything);
            assert_same(&format!("{threads} threads"), &expected, &found);
            let occupied = blocks(&made.join("holes"));
            assert!(occupied <= 2 * (3 << 10) + 1024, "{occupied} blocks");
            fs::remove_dir_all(&made).unwrap();
        }
    }
}

#[test]
fn several_archives_become_one_tree_and_only_selects() {
    let work = work_directory();
    let (one, two) = (directory(work.path(), "one"), directory(work.path(), "two"));
    write_all(&one, &[("train/a/1", b"1"), ("train/b/2", b"2"), ("val/3", b"3")]);
    write_all(&two, &[("train/b/2", b"later"), ("test/4", b"4")]);
    fs::set_permissions(one.join("train"), fs::Permissions::from_mode(0o750)).unwrap();
    let first = work.path().join("one.tar");
    gnu_tar(&first, &one);
    let second = image::make(work.path(), "two.sqfs", &two, &[]);
    let made = work.path().join("made");
    let files = |made: &Path| -> Vec<String> {
        let found = take(made, Depth::NoXattrs);
        contents(&found).into_iter().map(|(path, _)| String::from_utf8(path).unwrap()).collect()
    };
    extract(0, &[text(&first), text(&second), text(&made)]);
    assert_eq!(files(&made), ["test/4", "train/a/1", "train/b/2", "val/3"]);
    assert_eq!(fs::read(made.join("train/b/2")).unwrap(), b"later");
    fs::remove_dir_all(&made).unwrap();

    extract(0, &["--only", "train/b/", text(&first), "--only=/val/3", text(&made)]);
    assert_eq!(files(&made), ["train/b/2", "val/3"]);
    assert_eq!(names(&made.join("train")), ["b"]);
    assert_eq!(fs::metadata(made.join("train")).unwrap().mode() & 0o7777, 0o750);
    fs::remove_dir_all(&made).unwrap();

    for missing in ["train/c", "train/a/1/x", "../one", "train/../val"] {
        let stderr = extract(1, &["--only", missing, text(&first), text(&made)]);
        assert!(stderr.contains(&format!("{missing}: no such path in the archive")), "{stderr}");
        assert!(!made.exists());
    }
}

#[test]
fn existing_files_stay_or_are_replaced() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("a/1", b"new"), ("a/2", b"new"), ("b", b"new")]);
    symlink("somewhere", tree.join("link")).unwrap();
    let archive = work.path().join("data.tar");
    gnu_tar(&archive, &tree);
    let made = directory(work.path(), "made");
    let victim = work.path().join("victim");
    write_all(&made, &[("a/1", b"old"), ("c", b"old")]);
    write_all(work.path(), &[("victim", b"old")]);
    symlink(&victim, made.join("b")).unwrap();
    symlink("elsewhere", made.join("link")).unwrap();
    fs::set_permissions(&made, fs::Permissions::from_mode(0o711)).unwrap();
    let stderr = extract(1, &[text(&archive), text(&made)]);
    for (path, is_named) in [("a/1", true), ("b", true), ("link", true), ("a/2", false)] {
        let line = format!("{}: already exists", text(&made.join(path)));
        assert_eq!(stderr.contains(&line), is_named, "{path}: {stderr}");
    }
    assert!(stderr.contains("--overwrite"), "{stderr}");
    assert_eq!(fs::read(made.join("a/1")).unwrap(), b"old");
    assert_eq!(fs::read(made.join("a/2")).unwrap(), b"new");

    extract(0, &["--overwrite", text(&archive), text(&made)]);
    assert_eq!(fs::read(made.join("a/1")).unwrap(), b"new");
    assert_eq!(fs::read(made.join("c")).unwrap(), b"old");
    assert_eq!(fs::read(&victim).unwrap(), b"old");
    assert_eq!(fs::read_link(made.join("link")).unwrap(), Path::new("somewhere"));
    assert!(fs::symlink_metadata(made.join("b")).unwrap().is_file());
    // A directory that was there keeps its permissions, so that it is not opened to others.
    assert_eq!(fs::metadata(&made).unwrap().mode() & 0o7777, 0o711);
}

#[test]
fn no_symbolic_link_leads_out_of_the_directory() {
    let work = work_directory();
    let (victim, made) = (directory(work.path(), "victim"), directory(work.path(), "made"));
    let archive = work.path().join("data.tar");
    fs::write(&archive, tar::of(&[("a/b/1", b"1"), ("c", b"c"), ("d/e", b"e")])).unwrap();
    // As another user of the directory could prepare it.
    symlink(&victim, made.join("a")).unwrap();
    fs::create_dir(made.join("d")).unwrap();
    symlink(victim.join("new"), made.join("d/e")).unwrap();
    for options in [&[][..], &["--overwrite"]] {
        let stderr = extract(1, &[options, &[text(&archive), text(&made)]].concat());
        assert!(stderr.contains("made/a: exists and is not a directory"), "{stderr}");
        assert_eq!(names(&victim), [""; 0]);
        assert_eq!(fs::read(made.join("c")).unwrap(), b"c");
    }
    assert_eq!(fs::read(made.join("d/e")).unwrap(), b"e");

    // A link in the archive, and a member below it.
    let link = tar::member("a", b'2', text(&victim), b"");
    let below = tar::member("a/escaped", b'0', "", b"x");
    let end = vec![0; 1024];
    fs::write(&archive, [link, below, end].concat()).unwrap();
    let other = work.path().join("other");
    let output = archfs().args(["extract", text(&archive), text(&other)]).output().unwrap();
    assert!(output.status.code().is_some(), "{output:?}");
    assert_eq!(names(&victim), [""; 0]);
}

#[test]
fn an_ordinary_user_gets_own_files_without_set_uid() {
    let work = work_directory();
    let tree = source::varied();
    let squashed = image::make(work.path(), "data.sqfs", &tree, &["-comp", "gzip"]);
    let home = directory(work.path(), "home");
    let program = home.join("archfs");
    copy_program(&program);
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    for path in [work.path(), &home] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let as_nobody = |words: &[&str]| {
        let (user, group) = (format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"));
        let mut command = Command::new("setpriv");
        run(command.args([&user, &group, "--clear-groups"]).args(words))
    };
    let (made, others) = (home.join("made"), home.join("others"));
    let output = as_nobody(&[text(&program), "extract", text(&squashed), text(&made)]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    for expected in
        ["set-uid or set-gid bit not restored", "device not restored", "attributes not restored"]
    {
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
    as_nobody(&["unsquashfs", "-q", "-n", "-no-exit-code", "-d", text(&others), text(&squashed)]);
    let mut found = take(&made, Depth::Everything);
    let mut expected = take(&others, Depth::Everything);
    // unsquashfs gives a set-uid program of root's to the user who extracts it.
    for name in [&b"text-1"[..], b"text-8192"] {
        let mode = found[name].mode;
        assert_eq!(mode & 0o6000, 0, "{mode:o}");
        let without = expected[name].mode & !0o6000;
        expected.get_mut(name).unwrap().mode = without;
    }
    for tree in [&mut found, &mut expected] {
        assert!(tree.values().all(|node| (node.uid, node.gid) == (NOBODY, NOBODY)));
        assert!(!tree.contains_key(&b"block"[..]));
    }
    assert_same("as by unsquashfs", &expected, &found);
}

#[test]
fn a_damaged_file_is_removed_and_the_others_are_written() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("a", &[b'a'; 300_000]), ("b", b"b"), ("c", &[b'c'; 300_000])]);
    fs::hard_link(tree.join("a"), tree.join("also")).unwrap();
    let options = ["-comp", "gzip", "-no-fragments", "-no-duplicates"];
    let archive = image::make(work.path(), "data.sqfs", &tree, &options);
    let mut bytes = fs::read(&archive).unwrap();
    // The data of the first file follows the superblock.
    bytes[96..120].fill(0xff);
    fs::write(&archive, bytes).unwrap();
    let made = work.path().join("made");
    let stderr = extract(3, &[text(&archive), text(&made)]);
    for name in ["a", "also"] {
        let line = format!("error: {}: ", text(&made.join(name)));
        assert_eq!(stderr.matches(&line).count(), 1, "{stderr}");
    }
    assert_eq!(names(&made), ["b", "c"]);
    assert_eq!(fs::read(made.join("c")).unwrap(), [b'c'; 300_000]);

    // Half an archive is not extracted.
    let whole = work.path().join("whole.tar");
    gnu_tar(&whole, &tree);
    let cut = work.path().join("cut.tar");
    fs::write(&cut, &fs::read(&whole).unwrap()[..400_000]).unwrap();
    let other = work.path().join("other");
    let stderr = extract(3, &[text(&cut), text(&other)]);
    assert!(stderr.contains("--partial") && !other.exists(), "{stderr}");
    extract(3, &["--partial", text(&cut), text(&other)]);
    assert!(!names(&other).is_empty());
    for name in names(&other) {
        assert_eq!(sum(&other.join(&name)), sum(&tree.join(&name)), "{name}");
    }
}

/// A file system in memory of a few MiB, unmounted when it is dropped.
struct Small(PathBuf);

impl Small {
    fn mount(path: PathBuf) -> Self {
        fs::create_dir(&path).unwrap();
        let words = ["-t", "tmpfs", "-o", "size=8M", "small", text(&path)];
        run(Command::new("mount").args(words));
        Self(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn what_does_not_fit_is_refused_or_stops() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    for number in 0..10 {
        let (name, bytes) = (format!("file-{number}"), source::noise(number, 1 << 20));
        write_all(&tree, &[(&name, &bytes)]);
    }
    let archive = work.path().join("data.tar");
    gnu_tar(&archive, &tree);
    let small = Small::mount(work.path().join("small"));
    let target = small.0.join("made");
    let stderr = extract(1, &[text(&archive), text(&target)]);
    assert!(
        stderr.contains("the files take 10485760 bytes (10.0 MiB), but only")
            && stderr.contains("free"),
        "{stderr}"
    );
    assert_eq!(names(&small.0), [""; 0], "nothing is left");
    // Without the check, as when it fills up meanwhile.
    let stderr = extract(1, &["--overwrite", text(&archive), text(&target)]);
    assert!(stderr.contains("No space left on device"), "{stderr}");
    assert_eq!(stderr.lines().filter(|line| line.contains("error: ")).count(), 1, "{stderr}");
    for name in names(&target) {
        assert_eq!(fs::metadata(target.join(&name)).unwrap().len(), 1 << 20, "{name} is complete");
    }
    // What fits is extracted.
    fs::remove_dir_all(&target).unwrap();
    let only: Vec<_> = (0..7).map(|number| format!("--only=file-{number}")).collect();
    let only: Vec<_> = only.iter().map(String::as_str).collect();
    extract(0, &[&only[..], &[text(&archive), text(&target)]].concat());
    assert_eq!(names(&target).len(), 7);
}

#[test]
fn a_signal_stops_it_without_half_a_file() {
    let work = work_directory();
    let archive = tar::slow_archive(work.path(), 4);
    let made = work.path().join("made");
    let mut child = archfs().arg("extract").arg(&archive).arg(&made).spawn().unwrap();
    wait_until("the first file is there", || made.exists() && !names(&made).is_empty());
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn a_tree_deeper_than_a_path_may_be_long_stays_the_same() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    let script = "import os, sys; os.chdir(sys.argv[1])
for depth in range(100):
    name = f'{depth:0100}'
    os.mkdir(name)
    os.chdir(name)
    open('file', 'w').close()";
    run(Command::new("python3").args(["-c", script, text(&tree)]));
    let archive = packed(work.path(), "deep.sqfs", &tree, &[]);
    let made = work.path().join("made");
    extract(0, &[text(&archive), text(&made)]);
    let again = packed(work.path(), "again.sqfs", &made, &[]);
    assert_eq!(sum(&archive), sum(&again));
    run(Command::new("rm").arg("-rf").arg(&tree).arg(&made));
}
