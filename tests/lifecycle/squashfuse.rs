//! archfs in place of squashfuse: its own test scripts, the calls of Apptainer, and
//! `-o notify_pipe`.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::support::skip::skip;
use crate::support::stage::{
    Stage, Talker, has_ended, processes_about, said, stage, stage_as_user,
};
use crate::support::{skip_without_user_mounts, wait_until, work_directory};

/// `stage_as_user`, with `squashfuse` and `squashfuse_ll` as links to archfs.
fn stage_with_links() -> Option<Stage> {
    let stage = stage_as_user()?;
    for name in ["squashfuse", "squashfuse_ll"] {
        symlink(env!("CARGO_BIN_EXE_archfs"), stage.work.path().join(name)).unwrap();
    }
    fs::create_dir(&stage.mount_point).unwrap();
    Some(stage)
}

/// Prepares a script as `configure` of squashfuse does, with `changes` in addition, and runs it.
fn run_script(name: &str, changes: &[(&str, &str)]) {
    if skip_without_user_mounts() {
        return;
    }
    let work = work_directory();
    let tests = work.path().join("tests");
    fs::create_dir(&tests).unwrap();
    for (file, script) in [("lib.sh.in", "lib.sh"), (name, "script")] {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/squashfuse");
        let mut text = fs::read_to_string(format!("{data}/{file}")).unwrap();
        for (value, replacement) in [
            ("@build_os@", "linux-gnu"),
            ("@sq_fusermount@", "fusermount3"),
            ("@sq_md5sum@", "md5sum"),
            // The test of the formats compares all compressors. Here one is enough.
            ("@sq_mksquashfs_compressors@", "lz4"),
        ] {
            text = text.replace(value, replacement);
        }
        for (old, new) in changes.iter().filter(|_| file == name) {
            assert!(text.contains(old), "{name}: no {old}");
            text = text.replace(old, new);
        }
        fs::write(tests.join(script), text).unwrap();
    }
    let archfs = env!("CARGO_BIN_EXE_archfs");
    symlink(archfs, work.path().join("squashfuse")).unwrap();
    symlink(archfs, work.path().join("squashfuse_ll")).unwrap();
    let list = format!("#!/bin/sh\nexec '{archfs}' ls -aR \"$@\"\n");
    fs::write(work.path().join("squashfuse_ls"), list).unwrap();
    let mut script = Command::new("timeout");
    script.args(["-k", "1", "300", "bash", "-c", "chmod +x squashfuse_ls; exec bash tests/script"]);
    // The script makes its directory in TMPDIR.
    let output = script.current_dir(work.path()).env("TMPDIR", work.path()).output().unwrap();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(output.status.success(), "{name}: {}", all(&output));
    assert!(!mounts.contains(work.path().to_str().unwrap()), "{name}: a mount is left");
}

fn all(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), said(output))
}

#[test]
fn passes_the_smoke_test() {
    run_script("ll-smoke.sh.in", &[]);
}

/// The script uses one pipe again and again. A writer that has written but not yet closed it would
/// be the writer of the next reader, which then reads nothing, so here each call has its own pipe.
#[test]
fn passes_the_test_of_the_named_pipe() {
    let call = "rm -f \"$FIFO\"; mkfifo \"$FIFO\"\n$prog -f ";
    run_script("notify_test.sh", &[("$prog -f ", call)]);
}

#[test]
fn passes_the_test_of_the_list() {
    run_script("ls.sh", &[]);
}

/// The script does not wait until `tail` has opened its file. archfs unmounts so quickly that
/// `tail` often comes too late, so the script waits here.
#[test]
fn passes_the_test_of_unmounting() {
    let wait = "TAIL_PID=$!\nuntil ls -l /proc/$TAIL_PID/fd | grep -q hello; do sleep 0.1; done";
    run_script("umount-test.sh.in", &[("TAIL_PID=$!", wait)]);
}

#[test]
fn a_link_named_squashfuse_behaves_like_it() {
    let Some(stage) = stage_with_links() else { return };
    let output = stage.bash("./squashfuse_ll -s -o ro,nodev $IMAGE mount").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    // It stays when the shell has ended.
    stage.assert_readable();
    assert!(stage.ends(&["unmount", "-u", "-l", "mount"]).status.success());
    assert!(!crate::support::mount::is_mounted(&stage.mount_point));

    // Unmounts itself when it is idle.
    let output = stage.bash("./squashfuse_ll -f -o timeout=1 $IMAGE mount").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    for (words, status) in
        [("-V", 0), ("-h", 0), ("", 2), ("$IMAGE", 2), ("/dev/null mount", 3), ("$IMAGE none", 1)]
    {
        let output = stage.bash(&format!("./squashfuse_ll {words}")).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{words}: {}", said(&output));
    }
    assert!(!stage.work.path().join("none").exists());
}

#[test]
fn a_directory_with_files_is_covered_as_by_squashfuse() {
    let Some(stage) = stage_with_links() else { return };
    let below = stage.mount_point.join("below");
    fs::write(&below, "").unwrap();
    let output = stage.bash("$ARCHFS mount --keep $IMAGE mount").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("the directory is not empty"), "{}", said(&output));
    assert!(said(&output).contains("-o nonempty hides the files"), "{}", said(&output));
    let calls = ["./squashfuse", "./squashfuse_ll -o nonempty", "$ARCHFS mount --keep -o nonempty"];
    for call in calls {
        let output = stage.bash(&format!("{call} $IMAGE mount")).output().unwrap();
        assert!(output.status.success(), "{call}: {}", said(&output));
        stage.assert_readable();
        assert!(!below.exists(), "{call}");
        assert!(stage.ends(&["unmount", "mount"]).status.success(), "{call}");
        assert!(below.exists(), "{call}");
    }
    let run = "$ARCHFS run --private -o nonempty $IMAGE mount -- ls mount";
    let output = stage.bash(run).output().unwrap();
    assert!(all(&output).starts_with("folder\nhello\n"), "{}", all(&output));
    assert!(below.exists());
}

/// > With `umask=`, all files have the same permissions.
#[test]
fn options_of_libfuse_have_an_effect_or_a_note() {
    let Some(stage) = stage_with_links() else { return };
    let script = "./squashfuse -o auto_unmount,remember=9,umask=0137 $IMAGE mount && \
                  stat -c %a mount mount/hello; $ARCHFS unmount mount; rmdir mount; \
                  $ARCHFS mount -v --keep -o auto_unmount,remember=9,umask=0 $IMAGE mount && \
                  stat -c %a mount/hello";
    let output = stage.bash(script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "640\n640\n777\n", "{}", said(&output));
    for option in ["auto_unmount", "remember=9"] {
        let note = format!("note: -o {option} has no effect: ");
        assert_eq!(said(&output).matches(&note).count(), 1, "{}", said(&output));
    }
    // Other modes are another mount.
    let output = stage.mount(&["-o", "umask=077"]);
    assert!(!output.status.success(), "{}", said(&output));
}

/// The calls of Apptainer 1.4 (`internal/pkg/image/driver/imagedriver.go`): it looks for `-o uid=`
/// in the usage, mounts in a user namespace, and passes the image as a descriptor. At the end it
/// sends SIGTERM, and SIGKILL a second later.
#[test]
fn mounts_as_apptainer_does() {
    let Some(stage) = stage_with_links() else { return };
    let usage = stage.bash("./squashfuse_ll 2>&1").output().unwrap();
    assert!(all(&usage).contains("-o uid="), "{}", all(&usage));
    let in_namespace = stage.bash("unshare --user --map-root-user --mount true").output().unwrap();
    if !in_namespace.status.success() {
        return skip("no user namespaces");
    }
    let script = "
        head -c 4096 /dev/zero | cat - $IMAGE > container.sif
        exec 3< container.sif
        ./squashfuse_ll -f -o allow_other,ro,uid=0,gid=0,offset=4096 /proc/self/fd/3 $PWD/mount &
        for _ in $(seq 400); do
            grep -q \" $PWD/mount \" /proc/self/mountinfo && break; sleep 0.025
        done
        stat -c %u:%g mount/hello; cat mount/hello
        kill $!; sleep 1; kill -KILL $! 2> gone && echo killed; wait $!; echo $?
        grep -c \" $PWD/mount \" /proc/self/mountinfo";
    let script = format!("unshare --user --map-root-user --mount bash -c '{script}'");
    let output = stage.bash(&script).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, "0:0\nhello, world\n0\n0\n", "{}", said(&output));
}

#[test]
fn the_reader_of_the_named_pipe_may_come_later() {
    let Some(stage) = stage_with_links() else { return };
    let pipe = stage.fifo("pipe");
    for (call, status) in [
        ("./squashfuse_ll -o notify_pipe=pipe $IMAGE mount", "s"),
        // Shares the mount.
        ("./squashfuse_ll -o notify_pipe=pipe $IMAGE mount", "s"),
        ("$ARCHFS mount --keep -o notify_pipe=pipe $IMAGE mount", "s"),
        ("$ARCHFS mount --keep -o notify_pipe=pipe no.sqfs mount", "f"),
        ("$ARCHFS mount -f -o notify_pipe=pipe no.sqfs mount", "f"),
    ] {
        let before = Instant::now();
        let output = stage.bash(&format!("out=$({call} 2>&1); echo \"$? $out\"")).output().unwrap();
        let text = all(&output);
        assert_eq!(text.starts_with("0 "), status == "s", "{call}: {text}");
        // A caller that waits for the end of the output does not wait for a reader.
        assert!(before.elapsed() < Duration::from_secs(20), "{call}: {text}");
        // The pipe has an end.
        assert_eq!(fs::read_to_string(&pipe).unwrap(), status, "{call}: {text}");
    }
    // Nobody reads this one, and it is removed.
    let output = stage.bash("$ARCHFS mount -o notify_pipe=pipe no.sqfs mount").output().unwrap();
    assert!(!output.status.success());
    let path = pipe.display().to_string();
    let notifies = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|words| String::from_utf8_lossy(&words).contains(&path))
    };
    let notifiers = || processes_about(&["notify"]).into_iter().filter(notifies).count();
    // It may not have become a program of its own yet.
    wait_until("a notifier waits for a reader", || notifiers() == 1);
    fs::remove_file(&pipe).unwrap();
    wait_until("the notifier has ended", || notifiers() == 0);
    assert!(stage.ends(&["unmount", "mount"]).status.success());
}

#[test]
fn a_second_signal_ends_what_the_first_one_detached() {
    let Some(stage) = stage_with_links() else { return };
    let script = "./squashfuse_ll $IMAGE mount 2>&1; exec 7< mount/hello; echo mounted; read; cat <&7; exec cat";
    let mut reader = Talker::start(&mut stage.bash(script));
    reader.line_with("mounted");
    let daemon = stage.daemon();
    let signal = || rustix::process::kill_process(daemon, rustix::process::Signal::TERM).unwrap();
    signal();
    wait_until("unmounted", || !crate::support::mount::is_mounted(&stage.mount_point));
    reader.write("\n");
    assert_eq!(reader.line(), "hello, world");
    assert!(!has_ended(daemon));
    signal();
    wait_until("the daemon has ended", || has_ended(daemon));
    reader.end();
}

#[test]
fn rejects_a_pipe_that_is_none() {
    let Some(stage) = stage() else { return };
    for (words, expected) in [
        ("mount -o notify_pipe=small.sqfs $IMAGE mount", "small.sqfs: not a named pipe"),
        ("mount -o notify_pipe=none $IMAGE mount", "none: no such named pipe"),
        ("run -o notify_pipe=none $IMAGE mount -- true", "-o notify_pipe: only for mount"),
    ] {
        let output = stage.bash(&format!("$ARCHFS {words}")).output().unwrap();
        assert!(!output.status.success() && said(&output).contains(expected), "{}", said(&output));
        assert!(stage.is_gone());
    }
}
