//! `archfs pack` with unreadable files, unwritable output, and signals before it is done.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::support::faulty::Faulty;
use crate::support::mount::CleanUp;
use crate::support::{
    archfs, copy_program, image, run, skip_without_mounts, source, tar, wait_until, work_directory,
};

/// UID of an ordinary user.
const NOBODY: u32 = 65_534;

#[test]
fn unreadable_files_are_named_and_nothing_is_written_unless_errors_are_skipped() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let home = directory(work.path(), "home");
    let tree = directory(&home, "tree");
    write_all(
        &tree,
        &[
            ("good", b"good"),
            ("sub/also", b"good"),
            ("bad-1", &source::noise(1, 3_000_000)),
            ("sub/bad-2", b"closed"),
            ("closed/inside", b"never seen"),
        ],
    );
    // Root could read them.
    for (name, mode) in [("bad-1", 0), ("sub/bad-2", 0), ("closed", 0)] {
        fs::set_permissions(tree.join(name), Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(work.path(), Permissions::from_mode(0o755)).unwrap();
    let program = home.join("archfs");
    copy_program(&program);
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    let attempt = |more: &[&str], made: &Path| {
        let user = format!("--reuid={NOBODY}");
        let mut command = Command::new("setpriv");
        command.args([&user, "--clear-groups", text(&program), "pack"]).args(more);
        let output = command.arg(&tree).arg(made).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        stderr
    };
    for name in ["a.sqfs", "a.tar"] {
        let made = home.join(name);
        let stderr = attempt(&[], &made);
        assert!(stderr.contains("--keep-going"), "{stderr}");
        // A directory that cannot be listed is known before anything is read.
        assert!(stderr.contains(&format!("{}: ", text(&tree.join("closed")))), "{stderr}");
        assert_eq!(names(&home), ["archfs", "tree"]);
        let stderr = attempt(&["--keep-going"], &made);
        for bad in ["bad-1", "sub/bad-2", "closed"] {
            assert!(stderr.contains(&format!("{}: ", text(&tree.join(bad)))), "{bad}: {stderr}");
        }
        let found = by_archfs(&made, work.path());
        let files = contents(&found).into_iter().map(|(path, _)| path);
        assert_eq!(files.collect::<Vec<_>>(), [&b"good"[..], b"sub/also"]);
        if name == "a.sqfs" {
            assert_eq!(by_kernel(&made, work.path()).len(), found.len());
        }
        fs::remove_file(made).unwrap();
    }
}

#[test]
fn a_file_that_changes_while_it_is_packed_is_named() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("steady", b"steady"), ("growing", &source::noise(1, 40 << 20))]);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = OpenOptions::new().append(true).open(tree.join("growing")).unwrap();
            while !stop.load(Ordering::Relaxed) {
                file.write_all(b"more").unwrap();
            }
        });
        for name in ["a.sqfs", "a.tar"] {
            let made = work.path().join(name);
            let stderr = refused(&[text(&tree), text(&made)], 1);
            assert!(stderr.contains("growing: ") && stderr.contains("changed"), "{stderr}");
            assert!(!stderr.contains("steady"), "{stderr}");
            assert!(!made.exists());
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_full_disk_leaves_nothing() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("noise", &source::noise(1, 6 << 20))]);
    let small = directory(work.path(), "small");
    let _unmounted = CleanUp(small.clone());
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(&small));
    for name in ["a.sqfs", "a.tar"] {
        let stderr = refused(&[text(&tree), text(&small.join(name))], 1);
        assert!(stderr.contains(name) && stderr.contains("No space left"), "{stderr}");
        assert!(stderr.contains("hint: "), "{stderr}");
        assert_eq!(names(&small), Vec::<String>::new());
    }
    let free = rustix::fs::statvfs(&small).unwrap();
    assert_eq!(free.f_bfree, free.f_blocks, "room is given back");
    run(Command::new("umount").arg(&small));
}

/// The system kills a program that writes past this limit, unless it handles SIGXFSZ.
#[test]
fn a_file_size_limit_leaves_nothing() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("noise", &source::noise(1, 6 << 20))]);
    for name in ["a.sqfs", "a.tar"] {
        let mut limited = Command::new("bash");
        limited.args(["-c", "ulimit -f 1024; \"$0\" pack -q tree $1; echo $?; ls"]);
        limited.args([env!("CARGO_BIN_EXE_archfs"), name]).current_dir(work.path());
        let output = limited.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "1\ntree\n");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(name) && stderr.contains("File too large"), "{stderr}");
    }
}

#[test]
fn an_existing_file_is_replaced_only_by_force_and_a_complete_archive() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("a", b"a")]);
    for name in ["a.sqfs", "a.tar"] {
        let made = work.path().join(name);
        fs::write(&made, "precious").unwrap();
        let stderr = refused(&[text(&tree), text(&made)], 1);
        assert!(stderr.contains("--force"), "{stderr}");
        let nowhere = tree.join("nowhere");
        refused(&["--force", text(&nowhere), text(&made)], 1);
        assert_eq!(fs::read(&made).unwrap(), b"precious");
        pack(&["-q", "--force", text(&tree), text(&made)]);
        assert_ne!(fs::read(&made).unwrap(), b"precious");
    }
    let stderr = refused(&[text(&tree), "/nowhere/at/all.sqfs"], 1);
    assert!(stderr.contains("/nowhere/at: no such directory"), "{stderr}");
}

#[test]
fn a_signal_leaves_nothing_and_the_next_run_starts_over() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    // Zeros that do not look like a hole on this file system. Reading them takes minutes, so no
    // signal comes too late.
    let endless = work.path().join("endless");
    File::create(&endless).unwrap().set_len(1 << 40).unwrap();
    let source = Faulty::new(&endless, &work.path().join("source"));
    for signal in [Signal::INT, Signal::TERM, Signal::KILL, Signal::HUP] {
        let target = directory(work.path(), "target");
        let made = target.join("a.sqfs");
        let mut child = archfs()
            .args(["pack", "-q", "--as-file", text(source.file()), text(&made)])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        wait_for_output(pid);
        kill_process(pid, signal).unwrap();
        let status = child.wait().unwrap();
        use std::os::unix::process::ExitStatusExt;
        let number = signal.as_raw();
        if signal == Signal::KILL {
            assert_eq!(status.signal(), Some(number));
        } else {
            assert_eq!(status.code(), Some(128 + number), "{signal:?}: {status}");
        }
        assert_eq!(names(&target), Vec::<String>::new(), "{signal:?}");
    }
}

/// Waits until the process has opened its output, so that it could leave a file behind.
fn wait_for_output(pid: Pid) {
    let directory = format!("/proc/{}/fd", pid.as_raw_nonzero());
    wait_until("the process has opened its output", || {
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        let mut targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.any(|path| path.to_string_lossy().contains("/target/"))
    });
}

#[test]
fn damaged_archives_and_other_files_are_distinguished() {
    let work = work_directory();
    let made = work.path().join("made.sqfs");
    let bad = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bad");
    let stderr = refused(&[text(&bad.join("block-size-0.sqfs")), text(&made)], 3);
    assert!(stderr.contains("block-size-0.sqfs"), "{stderr}");
    // A file whose blocks are damaged is named like any other unreadable file.
    let stderr = refused(&[text(&bad.join("block-garbage.sqfs")), text(&made)], 3);
    assert!(stderr.contains("block-garbage.sqfs"), "{stderr}");
    assert!(!made.exists());
    // So is a directory that cannot be listed, including the root.
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("the-name", b"bytes")]);
    let image = image::make(work.path(), "root.sqfs", &tree, &["-noI"]);
    let mut bytes = fs::read(&image).unwrap();
    // The 8 bytes of an entry precede its name, and the 12 bytes of a header precede the first
    // entry. A header begins with the number of its entries minus 1; the limit is 256 entries.
    let at = bytes.windows(8).position(|window| window == b"the-name").unwrap();
    bytes[at - 20..at - 16].copy_from_slice(&256_u32.to_le_bytes());
    fs::write(&image, bytes).unwrap();
    let stderr = refused(&[text(&image), text(&made)], 3);
    assert!(stderr.contains("root.sqfs: ") && stderr.contains("257 entries"), "{stderr}");
    assert!(!made.exists());
    // A file that is not an archive is packed as a file if the user asks for it.
    let plain = work.path().join("notes.txt");
    File::create(&plain).unwrap().write_all(b"just text").unwrap();
    let stderr = refused(&[text(&plain), text(&made)], 3);
    assert!(stderr.contains("add --as-file to pack it as one file"), "{stderr}");
    pack(&["-q", "--as-file", text(&plain), text(&made)]);
    assert_eq!(contents_of(&made, "notes.txt"), "just text");
}

fn contents_of(image: &Path, file: &str) -> String {
    said(&["unsquashfs", "-cat", text(image), file])
}

#[test]
fn missing_parts_of_a_source_archive_are_an_error() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    for number in 0..30 {
        write_all(&tree, &[(&format!("file-{number:02}"), &source::noise(number, 9_000))]);
    }
    let whole = work.path().join("whole.tar");
    run(Command::new("tar").arg("-C").arg(&tree).args(["--sort=name", "-cf"]).arg(&whole).arg("."));
    let bytes = fs::read(&whole).unwrap();
    let mut broken = bytes.clone();
    // The checksum of a header in the middle.
    let at = bytes.windows(9).position(|window| window == b"./file-12").unwrap();
    broken[at + 148] ^= 1;
    let long = [vec![b'n'; 300], b"/leaf".to_vec()].concat();
    let made = work.path().join("made.sqfs");
    for (name, bytes, complaint, status) in [
        ("short.tar", bytes[..150_000].to_vec(), "cut off", 3),
        ("broken.tar", broken, "there is no header", 3),
        ("long.tar", long_member(&long), "left out 1", 1),
    ] {
        let archive = work.path().join(name);
        fs::write(&archive, bytes).unwrap();
        let stderr = refused(&["-q", text(&archive), text(&made)], status);
        let once = |stderr: &str, archive: &str| {
            let is_it = |line: &&str| line.contains(archive) && line.contains(complaint);
            assert_eq!(stderr.lines().filter(is_it).count(), 1, "{archive}: {complaint}: {stderr}");
        };
        once(&stderr, name);
        assert!(!made.exists(), "{name}");
        // Two archives with the same fault in a third one.
        for inner in ["one.tar.gz", "two.tar.gz"] {
            run(Command::new("sh").current_dir(work.path()).args([
                "-c",
                "gzip -c \"$0\" > \"$1\"",
                name,
                inner,
            ]));
        }
        let outer = work.path().join("outer.tar");
        let pair = ["one.tar.gz", "two.tar.gz"];
        run(Command::new("tar").arg("-C").arg(work.path()).arg("-cf").arg(&outer).args(pair));
        let stderr = refused(&["-q", "--nested", text(&outer), text(&made)], status);
        once(&stderr, "outer.tar: one");
        once(&stderr, "outer.tar: two");
        let stderr = refused(&["-q", "--keep-going", "--force", text(&archive), text(&made)], 1);
        assert!(stderr.contains(complaint) && made.exists(), "{name}: {stderr}");
        fs::remove_file(&made).unwrap();
    }
    assert!(!names(work.path()).iter().any(|name| name.ends_with("-index")), "no index is left");
}

#[test]
fn an_unreadable_nested_archive_loses_only_its_own_files() {
    let work = work_directory();
    let inner = directory(work.path(), "inner");
    for number in 0..4 {
        let name = format!("n{number:02}");
        let tree = directory(work.path(), &name);
        write_all(&tree, &[("file", &source::noise(number, 9_000))]);
        packed(&inner, &format!("{name}.sqfs"), &tree, &[]);
    }
    let cut = inner.join("n02.sqfs");
    let len = fs::metadata(&cut).unwrap().len();
    File::options().write(true).open(&cut).unwrap().set_len(len / 2).unwrap();
    // In a tar of only archives they become directories without an option.
    let tar = work.path().join("outer.tar");
    run(Command::new("tar").arg("-C").arg(&inner).args(["--sort=name", "-cf"]).arg(&tar).arg("."));
    let image = packed(work.path(), "outer.sqfs", &inner, &[]);
    let made = work.path().join("made.sqfs");
    for (outer, how) in [(&tar, "--quiet"), (&tar, "--recursive"), (&image, "--recursive")] {
        let words = [how, text(outer), text(&made)];
        let stderr = refused(&words, 3);
        let named = format!("{}: n02: truncated: ", text(outer));
        assert!(
            stderr.contains(&named) && stderr.contains(": at least 1 file could not"),
            "{stderr}"
        );
        assert!(stderr.contains("--keep-going") && !made.exists(), "{stderr}");
        let stderr = refused(&[&["--keep-going"], &words[..]].concat(), 1);
        assert!(stderr.contains(&named) && stderr.contains("made without 1 file"), "{stderr}");
        let listed = said(&["unsquashfs", "-d", "", "-lc", text(&made)]);
        for name in ["n00/file", "n01/file", "n03/file"] {
            assert!(listed.contains(name), "{name}: {listed}");
        }
        assert!(!listed.contains("n02/file"), "{listed}");
        fs::remove_file(&made).unwrap();
    }
    // An archive named on the command line is no part of another, so its error is final.
    for options in [&["-q"][..], &["-q", "--keep-going"]] {
        let stderr = refused(&[options, &[text(&cut), text(&made)]].concat(), 3);
        assert!(stderr.contains("n02.sqfs: truncated: ") && !made.exists(), "{stderr}");
    }
}

/// A tar with one member whose name, from a pax record, no file system accepts.
fn long_member(path: &[u8]) -> Vec<u8> {
    let record = [b" path=".as_slice(), path, b"\n"].concat();
    let len = (0..).find(|len: &usize| len.to_string().len() + record.len() == *len).unwrap();
    let record = [len.to_string().as_bytes(), &record].concat();
    let mut bytes = tar::member("PaxHeader", b'x', "", &record);
    bytes.extend(tar::member("short", b'0', "", b"bytes"));
    bytes.extend(tar::member("other", b'0', "", b"bytes"));
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

#[test]
fn of_many_missing_files_the_first_are_named_and_the_others_counted() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("here", b"bytes")]);
    let list = work.path().join("list");
    let lines: String = (0..50_000).map(|number| format!("none-{number:05}\n")).collect();
    fs::write(&list, lines + "here\n").unwrap();
    let made = work.path().join("made.sqfs");
    let words = ["-T", text(&list), text(&tree), text(&made)];
    let stderr = refused(&words, 1);
    let lines: Vec<_> = stderr.lines().collect();
    assert!(lines.len() < 30, "{stderr}");
    assert!(lines[0].contains("none-00000") && lines[19].contains("none-00019"), "{stderr}");
    assert!(lines[20].ends_with("made.sqfs: and 49980 more errors"), "{stderr}");
    assert!(lines[21].contains("--verbose"), "{stderr}");
    let stderr = refused(&[&["--keep-going", "--verbose"], &words[..]].concat(), 1);
    assert!(stderr.lines().count() > 50_000 && stderr.contains("none-49999: "));
    assert_eq!(contents_of(&made, "here"), "bytes");
}

#[test]
fn an_empty_list_is_refused() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("a", b"a")]);
    let list = work.path().join("list");
    fs::write(&list, "\n").unwrap();
    let made = work.path().join("made.sqfs");
    let stderr = refused(&["--files-from", text(&list), text(&tree), text(&made)], 1);
    assert!(stderr.contains("no paths in the list") && !made.exists(), "{stderr}");
}

#[test]
fn a_sparse_file_with_too_many_blocks_is_refused_without_using_memory() {
    let work = work_directory();
    let tar = work.path().join("data.tar");
    // A map without data, as GNU tar writes it (pax, version 1.0).
    let make = "import sys, tarfile, io
with tarfile.open(sys.argv[1], 'w', format=tarfile.PAX_FORMAT) as tar:
    size = sys.argv[2]
    map = f'1\\n{size}\\n0\\n'.encode().ljust(512, b'\\0')
    info = tarfile.TarInfo('GNUSparseFile.0/huge')
    info.size = len(map)
    info.pax_headers = {'GNU.sparse.major': '1', 'GNU.sparse.minor': '0',
                        'GNU.sparse.name': 'huge', 'GNU.sparse.realsize': size}
    tar.addfile(info, io.BytesIO(map))
    info = tarfile.TarInfo('good')
    info.size = 4
    tar.addfile(info, io.BytesIO(b'good'))";
    let pack = |options: &[&str]| {
        let mut limited = Command::new("prlimit");
        limited.args(["--as=1500000000", env!("CARGO_BIN_EXE_archfs"), "pack", "-q", "--force"]);
        let output = limited.args(options).arg(&tar).arg(work.path().join("made.sqfs")).output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (bits, remedy) in [
        (44, "use --block-size 1M"),
        (46, "use --block-size 1M"),
        (50, "a tar made with --sparse has no such limit"),
    ] {
        let size = (1_u64 << bits).to_string();
        run(Command::new("python3").args(["-c", make]).arg(&tar).arg(size));
        let (status, stderr) = pack(&[]);
        assert_eq!(status, Some(1), "2^{bits}: {stderr}");
        assert!(
            stderr.contains("huge")
                && stderr.contains(&format!("at most 67108864 in a file; {remedy}")),
            "{stderr}"
        );
        assert!(!work.path().join("made.sqfs").exists());
        let (_, stderr) = pack(&["--keep-going"]);
        assert_eq!(contents_of(&work.path().join("made.sqfs"), "good"), "good", "{stderr}");
        fs::remove_file(work.path().join("made.sqfs")).unwrap();
    }
    // Exactly as many as are allowed.
    let size = (1_u64 << 43).to_string();
    run(Command::new("python3").args(["-c", make]).arg(&tar).arg(size));
    let (status, stderr) = pack(&[]);
    assert_eq!(status, Some(0), "{stderr}");
}
