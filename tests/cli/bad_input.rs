//! Commands reject files that are not archives, or are damaged: one line on stderr, the right exit
//! status, nothing mounted.
//!
//! Also covers `ls` and `cat`, which need no mount. Messages and exit statuses are those of
//! docs/CLI.md.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support;
use crate::support::mount::{CleanUp, unmount};
use crate::support::{archfs, image, run, skip_without_user_mounts, work_directory};

fn mount(image: &Path, mount_point: &Path) -> Output {
    archfs().args(["mount", "--keep"]).arg(image).arg(mount_point).output().unwrap()
}

/// A work directory, a mount point in it, and a guard that unmounts it first.
fn stage() -> Option<(CleanUp, tempfile::TempDir, PathBuf)> {
    if skip_without_user_mounts() {
        return None;
    }
    let work = work_directory();
    let mount_point = work.path().join("mount");
    Some((CleanUp(mount_point.clone()), work, mount_point))
}

/// Checks that a mount fails with that status and text, on one line and perhaps a hint.
fn refuses(image: &Path, mount_point: &Path, status: i32, text: &str) {
    let output = mount(image, mount_point);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    assert!(stderr.contains(text), "{stderr}, not {text}");
    let mut lines = stderr.lines();
    assert!(lines.next().unwrap().starts_with("archfs: error: "), "{stderr}");
    assert!(lines.next().is_none_or(|line| line.starts_with("archfs: hint: ")), "{stderr}");
    assert!(lines.next().is_none(), "{stderr}");
    assert!(!support::mount::is_mounted(mount_point), "{stderr}");
}

#[test]
fn files_that_are_not_archives_exit_with_status_3() {
    let Some((_clean_up, work, mount_point)) = stage() else { return };
    let file = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = work.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    refuses(&file("empty", b""), &mount_point, 3, "empty: is empty");
    refuses(&file("text", b"hello"), &mount_point, 3, "not a SquashFS image, tar or ZIP archive");
    refuses(&file("page", b"\n  <!DOCTYPE html>\n"), &mount_point, 3, "page: a web page");
    refuses(&file("zip", b"PK\x03\x04rest of it"), &mount_point, 3, "a ZIP archive");
    refuses(&file("h5", b"\x89HDF\r\n\x1a\nrest"), &mount_point, 3, "h5: an HDF5 file");
    refuses(&file("gz", b"\x1f\x8b\x08rest of it"), &mount_point, 3, "gz: ");
    // Images of file systems begin with zeros too; a tar of only zeros is empty.
    let disk = [vec![0; 32 << 10], b"\x01CD001".to_vec(), vec![7; 4096]].concat();
    refuses(&file("disk", &disk), &mount_point, 3, "disk: an ISO 9660 image");
    let ext4 = file("ext4", &vec![0; 1 << 20]);
    run(Command::new("mkfs.ext4").arg("-q").arg(&ext4).env("PATH", "/usr/sbin:/sbin"));
    refuses(&ext4, &mount_point, 3, "ext4: an ext2, ext3 or ext4 file system");
    refuses(
        &ext4,
        &mount_point,
        3,
        &format!("hint: `fuse2fs -o ro {} DIRECTORY` mounts it", ext4.display()),
    );
    refuses(&file("zeros", &vec![0; 2 << 20]), &mount_point, 3, "begins with zeros");
    refuses(&work.path().join("missing"), &mount_point, 1, "missing: no such file");
    refuses(
        &work.path().join("shard-*.tar"),
        &mount_point,
        1,
        "hint: check the pattern: no file matches it",
    );
    refuses(Path::new("ftp://host/a.tar"), &mount_point, 1, "hint: archfs reads https://");
    refuses(work.path(), &mount_point, 1, "is a directory, not an archive");
    refuses(Path::new("/dev/null"), &mount_point, 3, "neither a file nor a block device");
    assert!(!mount_point.exists(), "no mount point was left");
}

#[test]
fn a_damaged_superblock_exits_with_status_3() {
    let Some((_clean_up, work, mount_point)) = stage() else { return };
    let sound = fs::read(image::small(work.path())).unwrap();
    let with = |at: usize, bytes: &[u8]| -> PathBuf {
        let mut image = sound.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        let path = work.path().join("damaged.sqfs");
        fs::write(&path, image).unwrap();
        path
    };
    refuses(&with(20, &[9]), &mount_point, 3, "compressor number 9");
    refuses(&with(28, &[3]), &mount_point, 3, "SquashFS 3.0; archfs reads only 4.0");
    refuses(&with(12, &[0; 4]), &mount_point, 3, "block size 0");
    refuses(&with(64, &[0xff; 8]), &mount_point, 3, "the inode table is outside the image");
    refuses(&with(32, &[0xff; 8]), &mount_point, 3, "root inode");
    refuses(&with(40, &[0xff; 8]), &mount_point, 3, "truncated");
}

#[test]
fn a_truncated_image_exits_with_status_3() {
    let Some((_clean_up, work, mount_point)) = stage() else { return };
    let sound = fs::read(image::small(work.path())).unwrap();
    let used = u64::from_le_bytes(sound[40..48].try_into().unwrap()) as usize;
    let path = work.path().join("truncated.sqfs");
    for len in [5, 95, 96, 97, 4096, used / 2, used - 1] {
        fs::write(&path, &sound[..len]).unwrap();
        refuses(&path, &mount_point, 3, "truncated.sqfs: truncated: ");
    }
    // The padding after the image may be missing.
    fs::write(&path, &sound[..used]).unwrap();
    assert!(mount(&path, &mount_point).status.success());
    unmount(&mount_point);
}

#[test]
fn a_bad_mount_point_exits_with_status_1() {
    if skip_without_user_mounts() {
        return;
    }
    let work = work_directory();
    let image = image::small(work.path());
    refuses(&image, work.path(), 1, "the directory is not empty");
    refuses(&image, &image, 1, "not a directory");
    refuses(&image, &work.path().join("no/such"), 1, "no such directory");
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    assert!(mount(&image, &mount_point).status.success());
    // The same image would join the mount.
    let other = work.path().join("other.sqfs");
    fs::copy(&image, &other).unwrap();
    let output = mount(&other, &mount_point);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("small.sqfs (fuse.archfs) is mounted here"), "{stderr}");
    assert!(mount_point.join("hello").exists(), "the mount that was there still works");
    unmount(&mount_point);
}

#[test]
fn usage_errors_exit_with_status_2() {
    let status = |arguments: &[&str]| archfs().args(arguments).output().unwrap().status.code();
    assert_eq!(status(&[]), Some(2));
    assert_eq!(status(&["fly"]), Some(2));
    assert_eq!(status(&["mount", "only-one"]), Some(2));
    assert_eq!(status(&["mount", "-o", "rw", "a", "b"]), Some(2));
    assert_eq!(status(&["mount", "--cache", "lots", "a", "b"]), Some(2));
    assert_eq!(status(&["mount", "--threads", "0", "a", "b"]), Some(2));
    assert_eq!(status(&["mount", "--idle-timeout", "0", "a", "b"]), Some(2));
    assert_eq!(status(&["mount", "--keep", "--until-pid", "1", "a", "b"]), Some(2));
    assert_eq!(status(&["mount", "--offset", "1", "a", "b", "c"]), Some(2));
    assert_eq!(status(&["mount", "--index", "i", "a", "b", "c"]), Some(2));
    for arguments in [&["mount", "only-one"][..], &["mount", "--cache", "lots", "a", "b"], &["fly"]]
    {
        let stderr = archfs().args(arguments).output().unwrap().stderr;
        let stderr = String::from_utf8(stderr).unwrap();
        let lines: Vec<_> = stderr.lines().collect();
        assert!(lines.len() == 2 && lines[0].starts_with("archfs: error: "), "{stderr}");
        assert!(lines[1].starts_with("archfs: hint: "), "{stderr}");
    }
    for (option, value, what, hint) in [
        ("--cache", "1x", "\"1x\" is not a size", "give a whole number"),
        ("--grace", "5q", "\"5q\" is not a time", "give a whole number"),
        ("--threads", "0", "\"0\" is not a number of threads", "give a number from 1 to 1024"),
        ("--cpus", "3-1", "\"3-1\" is not a list of CPU cores", "give numbers and ranges"),
        ("--together-bandwidth", "0%", "\"0%\" is not a bandwidth", "give percent of the link"),
        ("--together-bandwidth", "101%", "\"101%\" is not a bandwidth", "give percent of the link"),
        ("--together-bandwidth", "0", "\"0\" is not a bandwidth", "give percent of the link"),
        ("--archive-cache", "no", "\"no\" is not a valid value", "give one of: auto, keep, drop"),
    ] {
        let output = archfs().args(["mount", option, value, "a", "b"]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let expected = format!("archfs: error: {option}: {what}\narchfs: hint: {hint}");
        assert!(stderr.starts_with(&expected), "{stderr}");
    }
    assert_eq!(status(&["--help"]), Some(0));
    assert_eq!(status(&["mount", "--help"]), Some(0));
    assert_eq!(status(&["--version"]), Some(0));
}

#[test]
fn ls_and_cat_read_an_archive_without_mounting() {
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir_all(source.join("folder/inner")).unwrap();
    fs::write(source.join("folder/file"), "contents\n").unwrap();
    fs::write(source.join("evil\x1b[2J"), "").unwrap();
    std::os::unix::fs::symlink("folder/file", source.join("link")).unwrap();
    std::os::unix::fs::symlink("../../../etc/passwd", source.join("out")).unwrap();
    let image = image::make(work.path(), "data.sqfs", &source, &["-comp", "zstd"]);
    let call = |arguments: &[&str]| {
        let mut command = archfs();
        command.arg(arguments[0]).arg(&image).args(&arguments[1..]).output().unwrap()
    };
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text(&call(&["ls"])), "evil\x1b[2J\nfolder\nlink\nout\n");
    assert_eq!(text(&call(&["ls", "folder"])), "file\ninner\n");
    assert_eq!(text(&call(&["ls", "-R", "folder/"])), "file\ninner\n");
    let long = text(&call(&["ls", "-l", "link"]));
    assert!(
        long.starts_with("lrwxrwxrwx   1 ") && long.ends_with(" link -> folder/file\n"),
        "{long}"
    );
    assert_eq!(text(&call(&["cat", "folder/file", "/link"])), "contents\ncontents\n");
    // A pattern stands for the files that it matches.
    assert_eq!(text(&call(&["cat", "f*/*", "[l]ink"])), "contents\ncontents\n");
    for (pattern, what) in
        [("none*", "nothing in the archive matches"), ("o*", "which is not in the archive")]
    {
        let output = call(&["cat", pattern]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(what), "{pattern}: {said}");
    }
    let said = String::from_utf8(call(&["cat", "folder"]).stderr).unwrap();
    let hint = format!("archfs: hint: to list it: archfs ls {} folder\n", image.display());
    assert!(said.ends_with(&hint), "{said}");
    for (arguments, status) in [
        (&["cat", "missing"][..], 1),
        (&["cat", "folder"], 1),
        (&["cat", "out"], 1),
        (&["ls", "folder/file/x"], 1),
    ] {
        assert_eq!(call(arguments).status.code(), Some(status), "{arguments:?}");
    }
    // The other files are written all the same.
    let output = call(&["cat", "missing", "none*", "folder/file", "out", "link"]);
    assert_eq!((text(&output).as_str(), output.status.code()), ("contents\ncontents\n", Some(1)));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.matches("archfs: error: ").count(), 3, "{said}");
    let many: Vec<_> = (0..12).map(|number| format!("missing{number}")).collect();
    let words: Vec<_> = ["cat"].into_iter().chain(many.iter().map(String::as_str)).collect();
    let said = String::from_utf8(call(&words).stderr).unwrap();
    assert!(said.ends_with("archfs: error: 2 more files could not be read\n"), "{said}");
    let not_one = archfs().args(["ls", "/etc/passwd"]).output().unwrap();
    assert_eq!(not_one.status.code(), Some(3));

    // `cat` succeeds if its reader closes the pipe early.
    let big = source.join("big");
    fs::write(&big, vec![b'x'; 4 << 20]).unwrap();
    let image = image::make(work.path(), "big.sqfs", &source, &["-comp", "zstd"]);
    let mut cat = archfs();
    cat.arg("cat").arg(&image).arg("big").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut cat = cat.spawn().unwrap();
    let mut head = Command::new("head");
    head.args(["-c", "10"]).stdin(cat.stdout.take().unwrap());
    assert_eq!(run(&mut head).stdout, b"xxxxxxxxxx");
    // `head` has the read end open too.
    drop(head);
    let output = cat.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
}

#[test]
fn a_cache_larger_than_the_memory_is_reduced_with_a_warning() {
    let Some((_clean_up, work, mount_point)) = stage() else { return };
    let image = image::small(work.path());
    let (archive, source) = (image.to_str().unwrap(), work.path().join("small-source"));
    let packed = work.path().join("packed.sqfs");
    let commands = [
        vec!["verify", archive],
        vec!["pack", "--force", source.to_str().unwrap(), packed.to_str().unwrap()],
        vec!["run", archive, mount_point.to_str().unwrap()],
    ];
    for words in commands {
        for (cache, warnings) in [("400T", 1), ("64M", 0)] {
            let mut command = archfs();
            command.arg(words[0]).args(["--cache", cache]).args(&words[1..]);
            if words[0] == "run" {
                command.args(["--", "true"]);
            }
            let output = run(&mut command);
            let said = String::from_utf8(output.stderr).unwrap();
            let warning = "archfs: warning: --cache 400.0 TiB: ";
            assert_eq!(said.matches(warning).count(), warnings, "{words:?} {cache}: {said}");
        }
    }
}
