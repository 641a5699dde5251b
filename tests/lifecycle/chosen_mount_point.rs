//! `archfs run` without a mount point: which one it chooses, and who shares it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::image;
use crate::support::mount::is_mounted;
use crate::support::stage::{Stage, Stopped, said, stage, stage_as_user};

/// `archfs run` with these words, in a job of its own if `job` is set.
fn run(stage: &Stage, job: &str, words: &str) -> Output {
    let mut command = stage.bash(&format!("exec $ARCHFS run {words}"));
    command.env_remove("TMPDIR").env("SLURM_JOB_ID", job);
    command.output().unwrap()
}

/// The mount point that a command was given, which is unmounted and removed.
fn chosen(output: &Output) -> PathBuf {
    assert!(output.status.success(), "{}", said(output));
    let path = PathBuf::from(String::from_utf8(output.stdout.clone()).unwrap().trim());
    assert!(!is_mounted(&path) && fs::symlink_metadata(&path).is_err(), "{}", path.display());
    path
}

/// A job ID that no other test has.
fn job(stage: &Stage) -> String {
    stage.work.path().display().to_string()
}

#[test]
fn the_command_gets_the_mount_point() {
    let Some(stage) = stage_as_user() else { return };
    let script =
        r#"$IMAGE -- sh -c 'test {} = "$ARCHFS_MOUNTPOINT" && cmp {}/hello hello && echo {}'"#;
    fs::write(stage.work.path().join("hello"), "hello, world\n").unwrap();
    let path = chosen(&run(&stage, &job(&stage), script));
    assert_eq!(path.parent(), Some(Path::new("/dev/shm")));

    let output = run(&stage, &job(&stage), "--no-replace $IMAGE -- echo {}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "{}\n");
    // Who names a mount point may mean something else by it.
    let output = run(&stage, &job(&stage), "$IMAGE mount -- echo {}/{}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "{}/{}\n");
}

#[test]
fn tasks_with_the_same_archives_share_a_mount() {
    let Some(stage) = stage_as_user() else { return };
    // Each waits until the other has mounted, so that both see both holders.
    stage.fifo("first");
    stage.fifo("second");
    let script = "$ARCHFS run $IMAGE -- sh -c 'echo > first; read x < second; $ARCHFS list | grep -c \"^{} \"; echo {}' &
        $ARCHFS run ./link -- sh -c 'read x < first; echo > second; $ARCHFS list | grep -c \"^{} \"; echo {}'
        wait";
    std::os::unix::fs::symlink(&stage.image, stage.work.path().join("link")).unwrap();
    let output = stage.bash(script).env("SLURM_JOB_ID", job(&stage)).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: BTreeSet<&str> = text.lines().collect();
    assert_eq!((text.lines().count(), lines.len()), (4, 2), "{text}");
    assert!(lines.contains("1"), "{text}");
}

#[test]
fn other_views_archives_and_jobs_have_mounts_of_their_own() {
    let Some(stage) = stage_as_user() else { return };
    let other = stage.work.path().join("other.sqfs");
    fs::copy(&stage.image, &other).unwrap();
    let job = job(&stage);
    let words =
        ["$IMAGE", "other.sqfs", "$IMAGE other.sqfs", "--subdir folder $IMAGE", "-o uid=7 $IMAGE"];
    let choose = |job: &str, words| chosen(&run(&stage, job, &format!("{words} -- echo {{}}")));
    let mut found: BTreeSet<PathBuf> = words.iter().map(|words| choose(&job, *words)).collect();
    assert_eq!(found.len(), words.len());
    assert!(!found.insert(choose(&job, "--cache 8M $IMAGE")), "the same view");
    assert!(found.insert(choose("1", "$IMAGE")), "another job");
    // An archive that was rewritten shows something else.
    let file = fs::File::options().write(true).open(&stage.image).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert!(found.insert(choose(&job, "$IMAGE")), "another version");
}

#[test]
fn a_directory_of_another_user_is_passed_over() {
    let Some(stage) = stage() else { return };
    let job = job(&stage);
    let first = chosen(&run(&stage, &job, "$IMAGE -- echo {}"));
    fs::create_dir(&first).unwrap();
    chown(&first, Some(65_534), None).unwrap();
    let second = run(&stage, &job, "$IMAGE -- echo {}");
    fs::remove_dir(&first).unwrap();
    assert_eq!(chosen(&second), Path::new("/tmp").join(first.file_name().unwrap()));

    // This user's own is used, and stays.
    fs::create_dir(&first).unwrap();
    fs::set_permissions(&first, fs::Permissions::from_mode(0o700)).unwrap();
    let output = run(&stage, &job, "$IMAGE -- echo {}");
    fs::remove_dir(&first).unwrap();
    assert_eq!(chosen(&output), first);
}

#[test]
fn the_last_path_is_an_archive_if_it_is_a_file() {
    let Some(stage) = stage_as_user() else { return };
    image::small(stage.work.path());
    fs::create_dir(stage.work.path().join("empty")).unwrap();
    for (words, status, message) in [
        ("empty", 122, "empty: is a directory, not an archive"),
        ("missing.sqfs", 121, "missing.sqfs: no such file"),
    ] {
        let output = run(&stage, &job(&stage), &format!("{words} -- echo started"));
        assert_eq!(output.status.code(), Some(status), "{}", said(&output));
        assert!(said(&output).contains(message), "{}", said(&output));
        assert!(output.stdout.is_empty());
    }
    let output = run(&stage, &job(&stage), "$IMAGE empty -- printenv ARCHFS_MOUNTPOINT");
    assert!(String::from_utf8_lossy(&output.stdout).trim().ends_with("/empty"));
}

#[test]
fn a_mount_point_that_hangs_is_not_asked_whether_it_is_an_archive() {
    let Some(stage) = stage_as_user() else { return };
    let other = stage.work.path().join("other.sqfs");
    fs::copy(&stage.image, &other).unwrap();
    assert!(stage.mount(&["--keep", "--idle-timeout=1s"]).status.success());
    let stopped = Stopped::and_forgotten(&stage);
    let output =
        stage.bash("exec timeout 10 $ARCHFS run other.sqfs mount -- true").output().unwrap();
    assert_eq!(output.status.code(), Some(121), "{}", said(&output));
    assert!(said(&output).contains("is mounted here"), "{}", said(&output));
    drop(stopped);
    stage.ends(&["unmount", "mount"]);
}
