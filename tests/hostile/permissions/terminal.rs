//! Names with escape sequences are made harmless on a terminal.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::mount::{CleanUp, unmount};
use crate::support::stage::{Stage, stage};
use crate::support::{archfs, image, run};

/// Clears the screen, sets a title, reverses text direction, starts a new line, and is not UTF-8.
const NAMES: [&[u8]; 7] = [
    b"clear\x1b[2J",
    b"title\x1b]0;x\x07",
    b"c1\xc2\x9b31m\x7f",
    b"turned\xe2\x80\xaegpj.exe",
    b"isolated\xe2\x81\xa6x\xe2\x81\xa9",
    b"line\nanother\rback\xe2\x80\xa8",
    b"bytes\xff\xfe\x9b2J",
];

/// The output of a script to a terminal; `$1` is `argument`.
fn at_a_terminal(stage: &Stage, script: &str, argument: &OsStr) -> Vec<u8> {
    // The terminal's shell reads the script from a file, because a command line would need quoting.
    let file = stage.work.path().join("script");
    fs::write(&file, script).unwrap();
    let mut terminal = Command::new("script");
    terminal.args(["-qec", "exec bash ./script \"$ARGUMENT\"", "/dev/null"]).stdin(Stdio::null());
    terminal.current_dir(stage.work.path()).env("SHELL", "/bin/bash").env("ARGUMENT", argument);
    // The color of messages is made by escape sequences.
    terminal.env("NO_COLOR", "1");
    terminal.env("ARCHFS", env!("CARGO_BIN_EXE_archfs")).env_remove("SLURM_TASK_PID");
    terminal.env("IMAGE", &stage.image).output().unwrap().stdout
}

/// The control characters in the output, except for ends of lines.
fn obeyed(written: &[u8]) -> Option<String> {
    let text = match std::str::from_utf8(written) {
        Ok(text) => text.replace("\r\n", ""),
        Err(error) => return Some(error.to_string()),
    };
    let turns = ['\u{202e}', '\u{2066}', '\u{2069}', '\u{2028}'];
    let found = text.chars().find(|c| c.is_control() || turns.contains(c));
    found.map(|c| format!("{:?} in {text:?}", c))
}

fn assert_harmless(stage: &Stage, script: &str, argument: &OsStr, shown: &str) {
    let written = at_a_terminal(stage, script, argument);
    assert_eq!(obeyed(&written), None, "{script} {argument:?}");
    let text = String::from_utf8_lossy(&written);
    assert!(text.contains(shown), "{script} {argument:?}: no {shown:?} in {text}");
}

/// An image with directories of these names, links to them, and a file with all the names.
fn odd_image(directory: &Path) -> PathBuf {
    let source = directory.join("odd");
    fs::create_dir(&source).unwrap();
    for name in NAMES.map(OsStr::from_bytes) {
        fs::create_dir(source.join(name)).unwrap();
        let link = [name.as_bytes(), b"-link"].concat();
        std::os::unix::fs::symlink(name, source.join(OsStr::from_bytes(&link))).unwrap();
    }
    fs::write(source.join("contents"), NAMES.concat()).unwrap();
    image::make(directory, "odd.sqfs", &source, &[])
}

/// > **Terminals**: control characters, changes of direction (such as U+202E) and bytes that are
/// > not UTF-8 in a name never reach a terminal or the log. They are shown as `\u{1b}` or U+FFFD.
///
/// > `archfs ls` into a pipe and `archfs cat` write the bytes unchanged.
#[test]
fn names_are_escaped_on_a_terminal_and_unchanged_in_a_pipe() {
    let Some(stage) = stage() else { return };
    let odd = odd_image(stage.work.path());
    let none = OsStr::new("");
    for line in ["ls odd.sqfs", "ls -lR odd.sqfs"] {
        for shown in ["clear\\u{1b}[2J", "bytes\u{fffd}\u{fffd}"] {
            assert_harmless(&stage, &format!("$ARCHFS {line}"), none, shown);
        }
    }
    // The contents of files are not escaped.
    let cat = "$ARCHFS cat odd.sqfs contents";
    assert_eq!(run(&mut stage.bash(cat)).stdout, NAMES.concat());
    assert_eq!(at_a_terminal(&stage, &format!("stty raw -echo; {cat}"), none), NAMES.concat());
    let piped = run(archfs().arg("ls").arg(&odd)).stdout;
    let expected = NAMES.map(|name| [name, b"\n"].concat());
    for line in expected {
        assert!(piped.windows(line.len()).any(|found| found == line), "{line:?}");
    }
    for name in NAMES.map(OsStr::from_bytes) {
        let shown = String::from_utf8_lossy(&name.as_bytes()[..2]).into_owned();
        let of_archive = "$ARCHFS cat odd.sqfs \"$1\"; $ARCHFS cat odd.sqfs \"$1/none\"; \
                          $ARCHFS ls odd.sqfs \"none$1\"; $ARCHFS cat odd.sqfs \"$1-link\"; \
                          $ARCHFS mount --subdir \"$1-none\" odd.sqfs mount";
        assert_harmless(&stage, of_archive, name, &shown);
        let typed = "$ARCHFS ls \"$1\"; $ARCHFS mount \"$1\" mount; $ARCHFS \"$1\"; \
                     $ARCHFS mount -o \"$1\" odd.sqfs mount; $ARCHFS unmount \"$1\"; \
                     $ARCHFS mount odd.sqfs \"none/$1\"; $ARCHFS index \"$1\"; \
                     $ARCHFS mount --log-file \"none/$1\" odd.sqfs mount; \
                     $ARCHFS mount --stage \"none/$1\" odd.sqfs mount; \
                     $ARCHFS run odd.sqfs mount -- \"./$1\"";
        assert_harmless(&stage, typed, name, &shown);
    }
}

/// > **Terminals**: control characters, changes of direction (such as U+202E) and bytes that are
/// > not UTF-8 in a name never reach a terminal or the log. They are shown as `\u{1b}` or U+FFFD.
/// > In JSON they are written as `\u001b`, with the same value.
#[test]
fn mount_points_archives_and_daemon_messages_are_escaped() {
    let Some(stage) = stage() else { return };
    for name in NAMES.map(OsStr::from_bytes) {
        let archive = stage.work.path().join("archive").join(name);
        fs::create_dir_all(archive.parent().unwrap()).unwrap();
        fs::copy(&stage.image, &archive).unwrap();
        let mount_point = stage.work.path().join(name);
        let _clean_up = CleanUp(mount_point.clone());
        let script = "$ARCHFS mount --keep --log-file log -v \"archive/$1\" \"$1\"; $ARCHFS list; \
                      $ARCHFS list --json; $ARCHFS stats \"$1\"; $ARCHFS stats --json \"$1\"; \
                      $ARCHFS mount $IMAGE \"$1\"; $ARCHFS mount \"archive/$1\" \"$1\"; \
                      (cd \"$1\"; $ARCHFS unmount ../\"$1\"); $ARCHFS unmount \"$1\"; \
                      $ARCHFS gc; cat log";
        let shown = String::from_utf8_lossy(&name.as_bytes()[..2]).into_owned();
        assert_harmless(&stage, script, name, &shown);
        assert!(!mount_point.exists());
        // The decoded JSON has the same value, however it is escaped.
        if let Some(text) = name.to_str() {
            run(archfs().args(["mount", "-q", "--keep"]).arg(&archive).arg(&mount_point));
            let listed = String::from_utf8(run(archfs().args(["list", "--json"])).stdout).unwrap();
            let is_it = |line: &str| {
                let row: serde_json::Value = serde_json::from_str(line).unwrap();
                row["mountpoint"].as_str().is_some_and(|mount_point| mount_point.ends_with(text))
            };
            assert!(listed.lines().any(is_it), "{listed}");
            if text.contains('\u{1b}') {
                assert!(listed.contains("\\u001b"), "{listed}");
            }
            unmount(&mount_point);
        }
        let log = fs::read(stage.work.path().join("log")).unwrap();
        let lines: Vec<_> = log.split(|&byte| byte == b'\n').collect();
        assert_eq!(obeyed(&lines.concat()), None);
        fs::remove_file(stage.work.path().join("log")).unwrap();
    }
}
