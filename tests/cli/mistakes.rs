//! Mistakes that people make on the command line: what is said, and the exit status.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::mount::{CleanUp, daemon_of, listed};
use crate::support::stale::one_at_a_time;
use crate::support::{archfs, image, run, skip_without_user_mounts, wait_until, work_directory};

/// A command line, its exit status, and the error and the hint that it prints.
type Mistake = (&'static [&'static str], i32, &'static str, &'static str);

const USAGE_OF_RUN: &str = "archfs run [OPTIONS] ARCHIVE... [MOUNTPOINT] -- COMMAND [ARG]...";

const MISTAKES: [Mistake; 49] = [
    // Options that only change what another option does.
    (
        &["mount", "--stage-wait", "data.sqfs", "m"],
        2,
        "--stage-wait has no effect without --stage DIR",
        "add --stage DIR, or leave it out",
    ),
    (
        &["run", "--stage-keep=1G", "data.sqfs", "--", "true"],
        122,
        "--stage-keep has no effect without --stage DIR",
        "add --stage DIR, or leave it out",
    ),
    // In the wrong order.
    (
        &["mount", "empty", "data.sqfs"],
        2,
        "empty is a directory, and WORK/data.sqfs is a file: the archive comes first",
        "write WORK/data.sqfs empty",
    ),
    (
        &["run", "empty", "data.sqfs", "--", "true"],
        122,
        "empty is a directory, and data.sqfs is a file: the archive comes first",
        "write data.sqfs empty",
    ),
    (
        &["mount", "new", "data.sqfs"],
        2,
        "new does not exist, and WORK/data.sqfs is a file: the archive comes first",
        "write WORK/data.sqfs new",
    ),
    // Several archives of `run`, of which one is mistyped.
    (
        &["run", "date.sqfs", "data.sqfs", "--", "true"],
        121,
        "WORK/date.sqfs: no such file",
        "a similar file exists: WORK/data.sqfs",
    ),
    // No `--`, or nothing after it.
    (
        &["run", "data.sqfs", "m", "python", "a.py"],
        122,
        "no command: write -- before it",
        USAGE_OF_RUN,
    ),
    (&["run", "data.sqfs", "--"], 122, "no command after --", USAGE_OF_RUN),
    (
        &["run", "data.sqfs", "python", "a.py", "--epochs", "3"],
        122,
        "unexpected argument '--epochs', and no -- before the command",
        USAGE_OF_RUN,
    ),
    (
        &["run", "data.sqfs", "python", "a.py", "--stag", "x"],
        122,
        "unexpected argument '--stag', and no -- before the command",
        "archfs run [OPTIONS] ARCHIVE... [MOUNTPOINT] -- COMMAND [ARG]... (a similar option: --stage)",
    ),
    // A variable that is not set.
    (&["mount", "data.sqfs", ""], 2, "one of the words is empty", "is a variable not set?"),
    (&["run", "", "--", "true"], 122, "one of the words is empty", "is a variable not set?"),
    // Options that are nearly right, or those of nobody.
    (
        &["mount", "--threds=4", "data.sqfs", "m"],
        2,
        "unexpected argument '--threds' found",
        "a similar argument exists: '--threads'",
    ),
    (
        &["mount", "--read-only", "data.sqfs", "m"],
        2,
        "unexpected argument '--read-only' found",
        "leave it out: mounts are read-only",
    ),
    (
        &["mount", "--private", "data.sqfs", "m"],
        2,
        "--private: only for `archfs run`",
        "archfs run [OPTIONS] ARCHIVE... [MOUNTPOINT] -- COMMAND [ARG]...",
    ),
    (&["notfy"], 2, "unrecognized subcommand 'notfy'", "archfs <COMMAND>"),
    (&["verfy"], 2, "unrecognized subcommand 'verfy'", "a similar subcommand exists: 'verify'"),
    (&["doctor", "foo"], 2, "unexpected argument 'foo' found", "archfs doctor [OPTIONS]"),
    (&["mount", "data.sqfs"], 2, "no mount point", "archfs mount data.sqfs MOUNTPOINT"),
    // Something is missing, or in the words of another program.
    (
        &["data.sqfs"],
        2,
        "data.sqfs: no command before it",
        "archfs run data.sqfs -- COMMAND, or archfs mount data.sqfs DIR",
    ),
    (&["unpack", "data.sqfs"], 2, "unrecognized subcommand 'unpack'", "archfs extract ARCHIVE DIR"),
    (&["create"], 2, "unrecognized subcommand 'create'", "archfs pack DIR ARCHIVE"),
    (&["version"], 2, "unrecognized subcommand 'version'", "archfs --version"),
    (&["extract", "data.sqfs"], 2, "no directory to extract to", "archfs extract data.sqfs data"),
    (&["pack", "empty"], 2, "no name for the archive", "archfs pack empty empty.sqfs"),
    (
        &["pack", "new.sqfs"],
        2,
        "nothing to pack: no directory is named",
        "archfs pack DIR new.sqfs",
    ),
    // Names that are nearly right.
    (
        &["mount", "date.sqfs", "m"],
        1,
        "WORK/date.sqfs: no such file",
        "a similar file exists: WORK/data.sqfs",
    ),
    (
        &["run", "data.sqf", "--", "true"],
        121,
        "WORK/data.sqf: no such file",
        "a similar file exists: WORK/data.sqfs",
    ),
    (&["info", "dat.sqfs"], 1, "dat.sqfs: no such file", "a similar file exists: data.sqfs"),
    (
        &["run", "data.sqfs:/dir", "--", "true"],
        121,
        "WORK/data.sqfs:/dir: no such file",
        "to mount a directory of the archive: --subdir dir WORK/data.sqfs",
    ),
    (
        &["mount", "ftp://host/data.sqfs", "m"],
        1,
        "ftp://host/data.sqfs: no such file",
        "archfs reads https://, http:// and s3://, not ftp://",
    ),
    (
        &["info", "http:/host/data.sqfs"],
        1,
        "http:/host/data.sqfs: no such file",
        "write two slashes: http://",
    ),
    (
        &["cat", "data.sqfs", "none"],
        1,
        "data.sqfs: none: no such path in the archive",
        "to see its paths: archfs ls data.sqfs",
    ),
    (
        &["mount", "--subdir=none", "data.sqfs", "m"],
        1,
        "WORK/data.sqfs: none: no such path in the archive",
        "to see its paths: archfs ls WORK/data.sqfs",
    ),
    (
        &["mount", "--cache=abc", "data.sqfs", "m"],
        2,
        "--cache: \"abc\" is not a size",
        "give a whole number, with K, M, G or T if it is not in bytes: 512M",
    ),
    // Options of mksquashfs.
    (
        &["pack", "empty", "x.sqfs", "-comp", "zstd"],
        2,
        "-comp: an option of mksquashfs",
        "write --compressor NAME",
    ),
    (
        &["pack", "empty", "x.sqfs", "-noappend"],
        2,
        "-noappend: an option of mksquashfs",
        "write --force",
    ),
    (
        &["pack", "empty", "x.sqfs", "-all-root"],
        2,
        "-all-root: an option of mksquashfs",
        "write --owner 0:0",
    ),
    // Places where nothing can be mounted.
    (
        &["mount", "data.sqfs", "/proc"],
        1,
        "/proc: proc (proc) is mounted here",
        "choose another mount point",
    ),
    (
        &["mount", "data.sqfs", "full"],
        1,
        "WORK/full: the directory is not empty",
        "use an empty directory, or a name that does not exist yet; -o nonempty hides the files",
    ),
    (
        &["mount", "data.sqfs", "data.txt"],
        1,
        "WORK/data.txt: not a directory",
        "use an empty directory, or a name that does not exist yet",
    ),
    // Archives that are not there.
    (
        &["mount", "data.sqfs", "other.sqfs"],
        1,
        "WORK/other.sqfs: no such archive",
        "the last path is the mount point, a directory",
    ),
    (
        &["mount", "data.sqfs", "other.tar.gz"],
        1,
        "WORK/other.tar.gz: no such archive",
        "the last path is the mount point, a directory",
    ),
    (
        &["run", "data.sqfs", "other.zip", "--", "true"],
        121,
        "WORK/other.zip: no such archive",
        "the last path is the mount point, a directory",
    ),
    (
        &["run", "empty", "--", "true"],
        122,
        "empty: is a directory, not an archive",
        "name an archive before it, or pack it: archfs pack DIRECTORY data.sqfs; --nested shows the archives in it",
    ),
    (
        &["mount", "empty", "m"],
        1,
        "WORK/empty: is a directory, not an archive",
        "pack it first: archfs pack DIRECTORY data.sqfs",
    ),
    // Mounts that are not there.
    (
        &["unmount", "full"],
        5,
        "WORK/full: not mounted",
        "run `archfs list` to see your mounts on this node",
    ),
    (
        &["stats", "full"],
        5,
        "WORK/full: not an archfs mount of yours",
        "run `archfs list` to see your mounts on this node",
    ),
    (
        &["wait", "--timeout=1s", "full"],
        6,
        "full: not mounted before the timeout",
        "run `archfs list` to see your mounts on this node",
    ),
];

#[test]
fn mistakes_are_named() {
    if skip_without_user_mounts() {
        return;
    }
    let work = work_directory();
    fs::rename(image::small(work.path()), work.path().join("data.sqfs")).unwrap();
    for directory in ["empty", "full"] {
        fs::create_dir(work.path().join(directory)).unwrap();
    }
    fs::write(work.path().join("full/file"), "").unwrap();
    fs::write(work.path().join("data.txt"), "").unwrap();
    for (words, status, error, hint) in MISTAKES {
        let output = archfs().args(words).current_dir(&work).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let expected = format!("archfs: error: {error}\narchfs: hint: {hint}\n");
        let place = work.path().display().to_string();
        assert_eq!(stderr, expected.replace("WORK", &place), "{words:?}");
        assert_eq!(output.status.code(), Some(status), "{words:?}");
    }
    assert!(!work.path().join("m").exists() && !work.path().join("x.sqfs").exists());
}

#[test]
fn a_mistake_in_a_variable_names_the_variable() {
    let mut command = archfs();
    command.env("ARCHFS_CACHE", "abc").args(["mount", "a.sqfs", "m"]);
    let stderr = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(stderr.starts_with("archfs: error: ARCHFS_CACHE: \"abc\" is not a size\n"), "{stderr}");
}

#[test]
fn a_mount_in_use_names_the_processes() {
    if skip_without_user_mounts() {
        return;
    }
    let work = work_directory();
    let (image, mount_point) = (image::small(work.path()), work.path().join("mount"));
    let _clean_up = CleanUp(mount_point.clone());
    run(archfs().args(["mount", "--keep", "-q"]).args([&image, &mount_point]));
    let mut user =
        Command::new("cat").current_dir(&mount_point).stdin(Stdio::piped()).spawn().unwrap();
    let output = archfs().arg("unmount").arg(&mount_point).output().unwrap();
    drop(user.stdin.take());
    user.wait().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let expected = format!("{}: in use by process {} (cat)\n", mount_point.display(), user.id());
    assert!(stderr.contains(&expected), "{stderr}");
}

#[test]
fn a_stale_mount_is_called_stale() {
    let _one = one_at_a_time();
    if skip_without_user_mounts() {
        return;
    }
    let work = work_directory();
    let (image, mount_point) = (image::small(work.path()), work.path().join("mount"));
    let _clean_up = CleanUp(mount_point.clone());
    let mounted =
        archfs().args(["mount", "--quiet", "--keep"]).arg(&image).arg(&mount_point).output();
    assert!(mounted.unwrap().status.success());
    let daemon = Pid::from_raw(daemon_of(&mount_point).unwrap()).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    wait_until("it is listed as stale", || {
        listed(&mount_point).is_some_and(|found| found["state"] == "dead")
    });
    for (words, status) in [(&["stats"][..], 5), (&["wait", "--timeout=1s"], 6)] {
        let output = archfs().args(words).arg(&mount_point).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let path = mount_point.display();
        let expected = format!(
            "archfs: error: {path}: a stale mount: its daemon has ended\n\
             archfs: hint: clear it: archfs unmount {path}\n"
        );
        assert_eq!((stderr, output.status.code()), (expected, Some(status)), "{words:?}");
    }
}
