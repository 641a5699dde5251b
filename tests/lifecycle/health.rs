//! What users learn of a mount that cannot read its archive: from `run`, `list` and `stats`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use rustix::process::{Signal, kill_process};

use crate::support::faulty::{Fault, Faulty};
use crate::support::mount::{Mounted, listed};
use crate::support::stage::{Stage, said, stage, stage_with, stop};
use crate::support::stale::one_at_a_time;
use crate::support::{archfs, image, run, skip_without_mounts, tar, wait_until, work_directory};

fn messages(image: &Path) -> [String; 2] {
    let image = image.display();
    [
        format!("error: {image}: dir/file: damaged data block (zstd)"),
        format!("hint: run `archfs verify {image}` to list all damaged files"),
    ]
}

fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn run_prints_why_reads_failed_once() {
    let Some(stage) = stage_with(image::damaged) else { return };
    let Stage { image, mount_point, work, .. } = &stage;
    let [error, hint] = messages(image).map(|line| format!("archfs: {line}"));
    let read = "cat \"$0\"/dir/file \"$0\"/dir/file > /dev/null; true";
    let mut command = archfs();
    command.arg("run").args([image, mount_point]);
    command.args(["--", "sh", "-c", read]).arg(mount_point);
    // Standard error is a pipe, which the daemon closes.
    let output = command.output().unwrap();
    let text = said(&output);
    let own: Vec<_> = text.lines().filter(|line| line.starts_with("archfs")).collect();
    assert_eq!(own, [&error, &hint], "{text}");
    // If it is a file, the daemon has printed them.
    let file = work.path().join("stderr");
    command.stderr(File::create(&file).unwrap()).status().unwrap();
    let text = fs::read_to_string(file).unwrap();
    assert_eq!(text.matches(&hint).count(), 1, "{text}");
    assert_eq!(text.matches(&format!("{error}\n")).count(), 2, "{text}");
}

#[test]
fn run_prints_why_reads_fail_while_the_command_runs() {
    let Some(stage) = stage_with(image::damaged) else { return };
    let Stage { image, mount_point, .. } = &stage;
    let mut command = archfs();
    command.arg("run").args([image, mount_point]);
    command
        .args(["--", "sh", "-c", "cat \"$0\"/dir/file 2> /dev/null; read line"])
        .arg(mount_point);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let mut stderr = BufReader::new(running.stderr.take().unwrap());
    for expected in messages(image) {
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert_eq!(line, format!("archfs: {expected}\n"));
    }
    drop(running.stdin.take());
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    running.wait().unwrap();
}

#[test]
fn list_and_stats_show_why_reads_of_a_background_mount_failed() {
    let Some(stage) = stage_with(image::damaged) else { return };
    let [error, _] = messages(&stage.image);
    let mount_point = &stage.mount_point;
    let now = || printed(&run(Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ~"])));
    let before = now().replace("~\n", "");
    stage.mount(&["--keep", "-q"]);
    fs::read(mount_point.join("dir/file")).unwrap_err();
    // The path of the file is searched after the answer.
    wait_until("the daemon knows the path", || {
        let listed = listed(mount_point).unwrap();
        let kept = listed["messages"][0].as_str().map(str::to_owned);
        kept.is_some_and(|kept| kept.ends_with(&format!("Z {error}")))
    });
    let kept = listed(mount_point).unwrap()["messages"][0].as_str().unwrap().to_owned();
    // Times of this form are in the order of their texts.
    assert!(*before <= *kept && *kept < *now(), "{before}: {kept}");
    let remark = format!("\n{}: {kept}\n", mount_point.display());
    assert!(printed(&run(archfs().arg("list"))).contains(&remark));
    let text = printed(&run(archfs().arg("stats").arg(mount_point)));
    assert!(text.contains("  faults      ") && text.ends_with(&format!("\n  {kept}\n")), "{text}");
    // The daemon that has kept them ends.
    let output = run(archfs().arg("unmount").arg(mount_point));
    let [error, hint] = messages(&stage.image).map(|line| format!("archfs: {line}\n"));
    assert_eq!(said(&output), error + &hint);
}

#[test]
fn requests_that_wait_for_storage_are_counted_before_they_end() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archive = work.path().join("data.tar");
    fs::write(&archive, tar::of(&[("file", &[7; 4 << 20])])).unwrap();
    let storage = Faulty::new(&archive, &work.path().join("storage"));
    let mounted = Mounted::archfs(storage.file(), &work.path().join("mount"), &[]);
    let blocked = || listed(mounted.path()).unwrap()["blocked"]["requests"].clone();
    assert_eq!(blocked(), 0);
    let file = File::open(mounted.path().join("file")).unwrap();
    storage.set(Fault::Hanging);
    thread::scope(|scope| {
        // Far from what was read to open the archive.
        let reader = scope.spawn(|| file.read_exact_at(&mut [0; 4096], 2 << 20));
        wait_until("a request has waited for a second", || blocked() == 1);
        let text = printed(&run(archfs().arg("stats").arg(mounted.path())));
        assert!(
            text.contains("1 request has waited ") && text.contains(" s for an answer."),
            "{text}"
        );
        let text = printed(&run(archfs().arg("list")));
        let remark = format!("\n{}: 1 request has waited ", mounted.path().display());
        assert!(text.contains(&remark), "{text}");
        storage.set(Fault::None);
        reader.join().unwrap().unwrap();
    });
    assert_eq!(blocked(), 0);
}

#[test]
fn stats_names_mounts_that_have_no_counters() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    stage.mount(&["--keep", "-q"]);
    let daemon = stage.daemon();
    stop(daemon);
    let output = archfs().arg("stats").output().unwrap();
    let line =
        format!("{}: its daemon does not answer; it may be stopped", stage.mount_point.display());
    assert!(said(&output).contains(&line), "{}", said(&output));
    kill_process(daemon, Signal::KILL).unwrap();
    wait_until("the mount is stale", || {
        let output = archfs().arg("stats").output().unwrap();
        let line = format!("{}: a stale mount: its daemon has ended", stage.mount_point.display());
        said(&output).contains(&line)
    });
    run(archfs().arg("gc"));
}
