//! `run --overlay`: a layer over the archive that the command may change, as root and as an
//! ordinary user.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::cgroup::{Bound, Group};
use crate::support::stage::{Stage, Talker, has_ended, said, stage};
use crate::support::user::{OpenDevice, User};
use crate::support::{run, wait_until};

pub(super) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `check` as root and as the ordinary user `uid`, with the directory where each works.
pub(super) fn as_both(stage: &Stage, uid: u32, check: impl Fn(&dyn Fn(&str) -> Command, &Path)) {
    check(&|script| stage.bash(script), stage.work.path());
    let _device = OpenDevice::new();
    let user = User::new(stage, uid);
    check(&|script| user.bash(script), &user.home);
    wait_until("nothing is left", || !user.registry().exists());
}

/// What programs do to a directory of files. Prints what they see, which is compared with what they
/// see in a plain directory.
pub(super) const CHANGES: &str = r#"set -e
    cd "$1"
    exec 9< folder/data
    echo new > new; mkdir -p deep/er; echo deeper > deep/er/file
    echo more >> hello
    chmod 640 hello; stat -c '%a %s' hello
    ln hello hard; echo by-hard >> hard; cat hello
    ln -s hello soft; cat soft
    mv new moved; test ! -e new
    # A file of the archive, renamed and removed.
    mv folder/data folder/other; sha256sum < folder/other; rm folder/other
    sha256sum <&9
    test ! -e folder/data
    # A directory that replaces one of the archive does not show what that had.
    rmdir folder; mkdir folder; ls folder; echo again > folder/data
    python3 - <<'END'
import mmap, os
with open("hello", "r+b") as file:
    with mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:5] = b"HELLO"
        mapped.flush()
    os.fsync(file.fileno())
with open("sparse", "wb") as file:
    file.truncate(1 << 20)
os.setxattr("moved", "user.note", b"kept")
print(os.listxattr("moved"), os.getxattr("moved", "user.note"))
try:
    unnamed = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(unnamed, b"unnamed\n")
    os.link(f"/proc/self/fd/{unnamed}", "named", follow_symlinks=True)
except OSError:
    # Overlayfs before Linux 6.1.
    with open("named", "w") as file:
        file.write("unnamed\n")
os.utime("named", (1, 1))
os.chmod("named", 0o600)
END
    find . -mindepth 1 -printf '%P %y %m %n %l\n' | sort
    find . -type f -exec sha256sum {} + | sort
    stat -c %Y named"#;

/// > With `run --overlay`, COMMAND and its children can change files as on a local file system. No
/// > other process sees the changes, and the archives never change.
#[test]
fn a_command_changes_files_as_in_a_plain_directory() {
    let Some(stage) = stage() else { return };
    let archive = fs::read(&stage.image).unwrap();
    as_both(&stage, 2, |bash, work| {
        fs::write(work.join("changes"), CHANGES).unwrap();
        let source = stage.work.path().join("small-source");
        run(&mut bash(&format!("cp -r {} plain", source.display())));
        let expected = run(&mut bash("bash changes plain"));
        for layer in ["tmp", "layer"] {
            let script = format!("$ARCHFS run --overlay {layer} $IMAGE -- bash changes {{}}");
            let output = bash(&script).output().unwrap();
            assert_eq!(text(&output), text(&expected), "{layer}: {}", said(&output));
            assert_eq!(output.status.code(), Some(0), "{layer}");
            assert_eq!(said(&output), "", "{layer}");
        }
        // The next job finds them in a directory, and not in memory. It may mount privately.
        let script = "$ARCHFS run -q --private --overlay layer $IMAGE mount -- cat mount/moved";
        assert_eq!(text(&run(&mut bash(script))), "new\n");
        let script =
            "$ARCHFS run --overlay layer $IMAGE -- diff -r --no-dereference plain {} && echo same";
        let output = bash(script).output().unwrap();
        assert_eq!(text(&output), "same\n", "{}", said(&output));
        let output = bash("$ARCHFS run --overlay tmp $IMAGE -- cat {}/hello").output().unwrap();
        assert_eq!(text(&output), "hello, world\n", "{}", said(&output));
        assert_eq!(fs::metadata(work.join("layer")).unwrap().mode() & 0o7777, 0o700);
        run(&mut bash("rm -r layer"));
    });
    assert_eq!(fs::read(&stage.image).unwrap(), archive);
}

/// > `archfs pack` in COMMAND makes a new archive of both.
#[test]
fn a_new_archive_is_packed_from_both() {
    let Some(stage) = stage() else { return };
    let script = "set -e
        $ARCHFS run --overlay layer $IMAGE -- sh -c 'echo new > {}/new; rm {}/hello'
        $ARCHFS run --overlay layer $IMAGE -- $ARCHFS pack -q --update $IMAGE {} both.sqfs
        unsquashfs -q -n -d unpacked both.sqfs > /dev/null; cat unpacked/new; ls unpacked
        cmp unpacked/folder/data small-source/folder/data";
    let output = stage.bash(script).output().unwrap();
    assert_eq!(text(&output), "new\nfolder\nnew\n", "{}", said(&output));
}

#[test]
fn tasks_share_a_mount_and_have_layers_of_their_own() {
    let Some(stage) = stage() else { return };
    stage.fifo("first");
    stage.fifo("second");
    let script = "export SLURM_JOB_ID=$PWD
        $ARCHFS run --overlay tmp $IMAGE -- sh -c 'echo one > {}/task; echo > first; read x < second; cat {}/task' &
        read x < first
        $ARCHFS run --overlay tmp $IMAGE -- sh -c 'cat {}/task; echo two > {}/task; echo {}; echo > second; cat {}/task'
        wait; $ARCHFS list --json | grep -c $PWD";
    let output = stage.bash(script).output().unwrap();
    let said = said(&output);
    let lines: Vec<_> = text(&output).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 4, "{lines:?} {said}");
    assert!(lines.contains(&"one".into()) && lines.contains(&"two".into()), "{lines:?}");
    assert_eq!(lines[3], "0", "nothing is left: {lines:?}");
}

#[test]
fn the_statuses_are_those_of_the_command() {
    let Some(stage) = stage() else { return };
    as_both(&stage, 4, |bash, _| {
        for (script, status, expected) in [
            ("sh -c 'exit 7'", 7, ""),
            ("sh -c 'kill -TERM $$'", 143, ""),
            // No child, which would use the layer for a moment longer than the shell.
            ("sh -c 'trap \"exit 9\" TERM; kill -TERM $PPID; while :; do :; done'", 9, ""),
            ("archfs-no-such-command", 127, "archfs-no-such-command: command not found"),
            ("/etc/passwd", 126, "/etc/passwd: cannot execute: Permission denied"),
        ] {
            let line = format!("exec $ARCHFS run -q --overlay layer $IMAGE mount -- {script}");
            let output = bash(&line).output().unwrap();
            assert_eq!(output.status.code(), Some(status), "{script}: {}", said(&output));
            assert!(said(&output).contains(expected), "{script}: {}", said(&output));
        }
    });
    assert!(stage.is_gone());
}

/// > One `run` at a time uses a directory: another one fails.
#[test]
fn a_layer_in_use_is_refused() {
    let Some(stage) = stage() else { return };
    let held =
        "exec $ARCHFS run --overlay layer $IMAGE -- sh -c 'echo x > {}/x; echo ready; read x'";
    let mut first = Talker::start(&mut stage.bash(held));
    assert_eq!(first.line(), "ready");
    let second = "$ARCHFS run --overlay layer $IMAGE -- cat {}/x";
    let output = stage.bash(second).output().unwrap();
    assert_eq!(output.status.code(), Some(121), "{}", said(&output));
    let expected = format!(
        "archfs: error: --overlay {}: in use by another job or task\n\
         archfs: hint: name one directory for each task, or use --overlay tmp\n",
        stage.work.path().join("layer").display()
    );
    assert_eq!(said(&output), expected);
    first.write("\n");
    assert_eq!(first.end(), Some(0));
    assert_eq!(text(&run(&mut stage.bash(second))), "x\n");
    // Also if the command closes what it inherited.
    let held = "exec $ARCHFS run --overlay layer $IMAGE -- python3 -c '
import os
os.closerange(3, 256)
print(\"ready\", flush=True)
input()'";
    let mut first = Talker::start(&mut stage.bash(held));
    assert_eq!(first.line(), "ready");
    assert_eq!(said(&stage.bash(second).output().unwrap()), expected);
    first.write("\n");
    assert_eq!(first.end(), Some(0));
}

/// > rename(2) of a directory of the archive fails with EXDEV; mv copies it instead. A write to one
/// > name of a file with several hard links breaks the link: the other names keep the old contents.
#[test]
fn what_differs_from_a_local_file_system() {
    let source = |directory: &Path| {
        let image = crate::support::image::small(directory);
        let source = directory.join("small-source");
        fs::hard_link(source.join("hello"), source.join("again")).unwrap();
        fs::remove_file(image).unwrap();
        crate::support::image::make(directory, "small.sqfs", &source, &["-comp", "zstd"])
    };
    let Some(stage) = crate::support::stage::stage_with(source) else { return };
    let script = "$ARCHFS run --overlay tmp $IMAGE -- sh -c 'cd {}
        python3 -c \"import os; os.rename(\\\"folder\\\", \\\"other\\\")\" 2>&1 | grep -o \"Errno 18\"
        mv folder other; ls other; stat -c %h hello; echo x > hello; cat again'";
    let output = stage.bash(script).output().unwrap();
    assert_eq!(text(&output), "Errno 18\ndata\n2\nhello, world\n", "{}", said(&output));
}

#[test]
fn a_layer_of_another_archive_is_noticed() {
    let Some(stage) = stage() else { return };
    let script = |image: &str| format!("$ARCHFS run --overlay layer {image} -- ls {{}}");
    for (image, is_noticed) in [("$IMAGE", false), ("$IMAGE", false), ("other.tar", true)] {
        run(&mut stage.bash("tar -cf other.tar small-source"));
        let output = stage.bash(&script(image)).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let expected = "layer: made with other archives or options, or they have changed since";
        assert_eq!(said(&output).contains(expected), is_noticed, "{image}: {}", said(&output));
    }
}

#[test]
fn the_layer_has_the_restrictions_of_the_mount() {
    let Some(stage) = stage() else { return };
    let script = "$ARCHFS run --overlay tmp -o noexec $IMAGE -- \
        sh -c 'cp /bin/true {}/true; chmod 755 {}/true; {}/true'";
    let output = stage.bash(script).output().unwrap();
    assert_eq!(output.status.code(), Some(126), "{}", said(&output));
}

/// Where a container maps many users, root in it is no root outside.
#[test]
fn root_of_a_container_removes_directories() {
    let Some(stage) = stage() else { return };
    stage.fifo("mapped");
    for layer in ["tmp", "layer"] {
        let script = format!(
            "unshare --user sh -c 'read x < mapped; exec $ARCHFS run -q --overlay {layer} $IMAGE -- \
                 sh -c \"rm -r {{}}/folder && mkdir {{}}/folder && ls {{}}\"' &
             while [ $(readlink /proc/$!/ns/user) = $(readlink /proc/$$/ns/user) ]; do sleep 0.01; done
             echo 0 0 70000 > /proc/$!/uid_map; echo 0 0 70000 > /proc/$!/gid_map
             echo > mapped; wait"
        );
        let output = stage.bash(&script).output().unwrap();
        assert_eq!(text(&output), "folder\nhello\n", "{layer}: {}", said(&output));
    }
}

/// > If `run` is killed, COMMAND keeps its files and its layer. When COMMAND and its children have
/// > ended, nothing stays mounted.
#[test]
fn a_killed_run_leaves_the_layer_to_its_command() {
    let Some(stage) = stage() else { return };
    let script = "exec $ARCHFS run --overlay layer $IMAGE mount -- \
        sh -c 'echo $$; read x; echo late > mount/late; cat mount/hello; echo end; read x'";
    let mut first = Talker::start(&mut stage.bash(script));
    let command = Pid::from_raw(first.line().parse().unwrap()).unwrap();
    first.signal(Signal::KILL);
    wait_until("run has ended", || first.has_ended());
    first.write("\n");
    assert_eq!(first.line(), "hello, world");
    assert_eq!(first.line(), "end");
    let again = "$ARCHFS run --overlay layer $IMAGE mount -- cat mount/late";
    let output = stage.bash(again).output().unwrap();
    assert!(said(&output).contains("in use by another job"), "{}", said(&output));
    kill_process(command, Signal::KILL).unwrap();
    wait_until("nothing is left", || has_ended(command) && stage.is_gone());
    assert_eq!(text(&run(&mut stage.bash(again))), "late\n");
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains("archfs-overlay"), "{mounts}");
}

/// > A layer in memory takes at most half of the memory that is left when COMMAND starts. A write
/// > that needs more fails with ENOSPC. Tasks that start at the same time each take
/// > half of the same memory.
#[test]
fn a_full_layer_is_an_error_of_the_write() {
    let Some(stage) = stage() else { return };
    let Some(group) = Group::new(Bound::Memory) else { return };
    group.set(256 << 20);
    let image = stage.image.display();
    let script = format!(
        "{} run -q --cache 16M --overlay tmp {image} -- \
         sh -c 'head -c 300M /dev/zero > {{}}/large; echo $?; rm {{}}/large; echo x > {{}}/small; cat {{}}/small {{}}/hello'",
        env!("CARGO_BIN_EXE_archfs")
    );
    let output = group.run(&script);
    assert!(said(&output).contains("No space left on device"), "{}", said(&output));
    assert_eq!(text(&output), "1\nx\nhello, world\n", "{}", said(&output));
}

#[test]
fn what_cannot_hold_a_layer_is_an_error_before_the_command() {
    let Some(stage) = stage() else { return };
    let theirs = stage.work.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::create_dir(stage.work.path().join("open")).unwrap();
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(stage.work.path().join("open"), open).unwrap();
    let (full, sticky) = (stage.work.path().join("full"), stage.work.path().join("sticky"));
    // Overlayfs empties a directory of that name.
    fs::create_dir_all(full.join("work/work")).unwrap();
    fs::write(full.join("work/work/dear"), "x").unwrap();
    fs::create_dir(&sticky).unwrap();
    fs::set_permissions(&sticky, fs::Permissions::from_mode(0o1777)).unwrap();
    std::os::unix::fs::chown(&theirs, Some(7), Some(7)).unwrap();
    for (options, status, expected) in [
        ("--overlay theirs", 124, "theirs: belongs to another user"),
        ("--overlay open", 124, "/open"),
        ("--overlay open/layer", 124, "open/layer: other users can replace "),
        ("--overlay none/layer", 124, "none/layer: no such directory: "),
        ("--overlay full", 124, "full: neither empty nor a layer of archfs"),
        ("--overlay sticky", 124, "sticky: other programs may use it: it has the sticky bit"),
        ("--overlay .", 124, "neither empty nor a layer of archfs"),
        ("--overlay small.sqfs", 124, "small.sqfs: Not a directory"),
        ("--overlay tmp --direct", 122, "'--overlay <DIR|tmp>' cannot be used with '--direct'"),
    ] {
        let script = format!("$ARCHFS run {options} $IMAGE mount -- echo started");
        let output = stage.bash(&script).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{options}: {}", said(&output));
        assert!(said(&output).contains(expected), "{options}: {}", said(&output));
        assert_eq!(text(&output), "", "{options}");
        assert!(stage.is_gone(), "{options}");
    }
    assert_eq!(fs::read(full.join("work/work/dear")).unwrap(), b"x");
    assert_eq!(fs::metadata(&sticky).unwrap().mode() & 0o7777, 0o1777);
    // Overlayfs writes to no other overlay.
    let nested = "$ARCHFS run --overlay tmp $IMAGE -- $ARCHFS run --overlay {}/layer $IMAGE mount -- echo started";
    let output = stage.bash(nested).output().unwrap();
    assert_eq!((output.status.code(), text(&output)), (Some(124), String::new()));
    assert!(said(&output).contains("overlayfs cannot write to overlay"), "{}", said(&output));
}
