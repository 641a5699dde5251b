//! `archfs run --or-extract` on a node without FUSE: who shares the files, and when they go.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::mount::is_mounted;
use crate::support::skip::skip;
use crate::support::stage::{Stage, Talker, has_ended, processes_about, said, stage, stage_with};
use crate::support::stale::one_at_a_time;
use crate::support::user::User;
use crate::support::{HIDE_DEVICE, image, run, wait_until};

/// A bash script of the stage, in a mount namespace that `setup` changes first.
fn bash(stage: &Stage, setup: &str, script: &str) -> Command {
    let mut command = Command::new("unshare");
    let script = format!("set -e; {setup}; set +e; cd $WORK; {script}");
    command.args(["-m", "env", "--default-signal", "bash", "-c", &script]);
    command.env("ARCHFS", env!("CARGO_BIN_EXE_archfs")).env("IMAGE", &stage.image);
    command.env("WORK", stage.work.path()).env_remove("SLURM_TASK_PID");
    command.env("SLURM_JOB_ID", stage.work.path());
    command
}

fn output(stage: &Stage, script: &str) -> Output {
    bash(stage, HIDE_DEVICE, script).output().unwrap()
}

/// The directory to extract to.
fn parent(stage: &Stage) -> PathBuf {
    let parent = stage.work.path().join("local");
    let _ = fs::create_dir(&parent);
    parent
}

/// What is extracted, the records of it, and the processes that keep it.
fn left(parent: &Path) -> Vec<String> {
    let names = |directory: &Path| -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect()
    };
    let about = |record: &String| fs::read(record).is_ok_and(|text| contains(&text, parent));
    let uid = rustix::process::geteuid().as_raw();
    let records = names(Path::new(&format!("/tmp/archfs-{uid}")));
    let records = records.into_iter().filter(|name| name.ends_with(".extracted") && about(name));
    let keepers = keepers(parent).into_iter().map(|pid| format!("process {pid}"));
    names(parent).into_iter().chain(records).chain(keepers).collect()
}

fn contains(text: &[u8], parent: &Path) -> bool {
    String::from_utf8_lossy(text).contains(parent.to_str().unwrap())
}

fn keepers(parent: &Path) -> Vec<i32> {
    let of_parent = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| contains(&words, parent))
    };
    processes_about(&["keep-extracted"]).into_iter().filter(of_parent).collect()
}

fn assert_nothing_left(parent: &Path) {
    wait_until("all is removed", || left(parent).is_empty());
}

#[test]
fn the_command_gets_the_files_and_they_are_removed() {
    let Some(stage) = stage() else { return };
    let parent = parent(&stage);
    let script = r#"$ARCHFS run --or-extract local $IMAGE -- sh -c '
        test {} = "$ARCHFS_MOUNTPOINT" && diff -r {} small-source && stat -c %a {}/.. && echo {}; exit 7'"#;
    let output = output(&stage, script);
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    let stdout = String::from_utf8(output.stdout.clone()).unwrap();
    let (mode, path) = stdout.trim().split_once('\n').unwrap();
    assert_eq!(mode, "700");
    assert!(Path::new(path).starts_with(&parent), "{path}");
    for expected in ["/dev/fuse", "extracting to", "extracted 2 files"] {
        assert!(said(&output).contains(expected), "{expected}: {}", said(&output));
    }
    assert_nothing_left(&parent);
}

/// > With `--or-extract`, the layer is above the extracted files.
#[test]
fn a_layer_is_above_the_extracted_files() {
    let Some(stage) = stage() else { return };
    let parent = parent(&stage);
    let script = "$ARCHFS run -q --or-extract local --overlay layer $IMAGE -- \
        sh -c 'echo x > {}/hello; rm -r {}/folder; cat {}/hello; ls {}'; cat layer/upper/hello";
    let output = output(&stage, script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "x\nhello\nx\n", "{}", said(&output));
    assert_nothing_left(&parent);
}

#[test]
fn a_node_that_can_mount_mounts() {
    let Some(stage) = stage() else { return };
    let parent = parent(&stage);
    let script = "$ARCHFS run --or-extract local $IMAGE -- stat -f -c %T {}";
    let output = bash(&stage, "true", script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "fuseblk\n", "{}", said(&output));
    assert_nothing_left(&parent);
    // A device that is there but does not work.
    let broken = "mount --bind /dev/null /dev/fuse";
    let script = "$ARCHFS run --or-extract local $IMAGE -- diff -r {} small-source";
    let output = bash(&stage, broken, script).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("extracting to"), "{}", said(&output));
    assert_nothing_left(&parent);
    // The command could not find the files at a mount point that the user named.
    let script = "$ARCHFS run --or-extract local $IMAGE mount -- true";
    let output = bash(&stage, "true", script).output().unwrap();
    assert_eq!(output.status.code(), Some(122), "{}", said(&output));
    assert!(!is_mounted(&stage.mount_point));
}

#[test]
fn tasks_share_the_files_until_the_last_one_ends() {
    let Some(stage) = stage() else { return };
    let parent = parent(&stage);
    stage.fifo("first");
    stage.fifo("second");
    let script = "$ARCHFS run --or-extract local $IMAGE -- sh -c 'echo > first; read x < second; cat {}/hello; echo {}' &
        $ARCHFS run --or-extract local $IMAGE -- sh -c 'read x < first; echo > second; sleep 0.5; cat {}/hello; echo {}' &
        wait";
    let output = output(&stage, script);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<_> = stdout.lines().collect();
    let [first, path, second, same] = lines[..] else { panic!("{}", said(&output)) };
    assert_eq!([first, second, path], ["hello, world", "hello, world", same]);
    assert_eq!(said(&output).matches("extracted 2 files").count(), 1, "{}", said(&output));
    assert_nothing_left(&parent);
}

/// A command that has started, the directory that it was given, and the PIDs of `run` and of the
/// command.
fn started(stage: &Stage) -> (Talker, PathBuf, Pid, Pid) {
    let script = "$ARCHFS run -q --or-extract local $IMAGE -- sh -c 'echo {} $PPID $$; read x; cat {}/hello'";
    let mut shell = Talker::start(&mut bash(stage, HIDE_DEVICE, script));
    let line = shell.line();
    let words: Vec<_> = line.split(' ').collect();
    let [path, parent, own] = words[..] else { panic!("{line}") };
    let pid = |word: &str| Pid::from_raw(word.parse().unwrap()).unwrap();
    (shell, path.into(), pid(parent), pid(own))
}

#[test]
fn the_command_keeps_its_files_if_run_is_killed() {
    let Some(stage) = stage() else { return };
    let parent = parent(&stage);
    let (mut shell, path, archfs, command) = started(&stage);
    assert_eq!(keepers(&parent).len(), 1);
    kill_process(archfs, Signal::KILL).unwrap();
    wait_until("run has ended", || shell.has_ended());
    assert!(path.join("hello").exists());
    shell.write("\n");
    assert_eq!(shell.line(), "hello, world");
    wait_until("the command has ended", || has_ended(command));
    assert_nothing_left(&parent);
    shell.end();
}

#[test]
fn the_keeper_removes_the_files_of_killed_processes() {
    let Some(stage) = stage() else { return };
    let parent = parent(&stage);
    let (shell, path, archfs, command) = started(&stage);
    // As in a job: first signals to all processes. The keeper survives them. It starts with all
    // signals blocked, so it survives them at its start, too.
    for keeper in keepers(&parent) {
        let status = fs::read_to_string(format!("/proc/{keeper}/status")).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
        assert_ne!(blocked & 1 << (Signal::TERM.as_raw() - 1), 0, "{status}");
        for signal in [Signal::TERM, Signal::USR1, Signal::QUIT] {
            kill_process(Pid::from_raw(keeper).unwrap(), signal).unwrap();
        }
    }
    assert!(path.join("hello").exists());
    for process in [archfs, command] {
        kill_process(process, Signal::KILL).unwrap();
    }
    assert_nothing_left(&parent);
    shell.end();
}

#[test]
fn gc_removes_the_files_if_the_keeper_was_killed_too() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    let parent = parent(&stage);
    let (mut shell, path, archfs, command) = started(&stage);
    let gc = || run(Command::new(env!("CARGO_BIN_EXE_archfs")).arg("gc"));
    gc();
    assert!(path.join("hello").exists(), "it is in use");
    for keeper in keepers(&parent) {
        kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
    }
    for process in [archfs, command] {
        kill_process(process, Signal::KILL).unwrap();
    }
    wait_until("run has ended", || shell.has_ended());
    wait_until("the command has ended", || has_ended(command));
    wait_until("the keeper has ended", || keepers(&parent).is_empty());
    assert!(path.join("hello").exists());
    let said = said(&gc());
    assert!(said.contains("removed extracted files"), "{said}");
    assert_nothing_left(&parent);
    shell.end();
}

#[test]
fn a_next_run_finishes_what_a_killed_one_began() {
    let Some(stage) = stage() else { return };
    let parent = parent(&stage);
    let output = output(
        &stage,
        "$ARCHFS run -q --or-extract local $IMAGE -- sh -c 'cp -a {}/.. copy; echo {}'",
    );
    let files = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    let directory = files.parent().unwrap();
    // What a killed process leaves: locks that nobody holds, and a part of the files.
    run(Command::new("cp").arg("-a").arg(stage.work.path().join("copy")).arg(directory));
    fs::rename(&files, directory.join("files.part")).unwrap();
    fs::write(directory.join("files.part/hello"), "half").unwrap();
    fs::write(directory.join("files.part/other"), "").unwrap();
    let output = self::output(
        &stage,
        "$ARCHFS run --or-extract local $IMAGE -- sh -c 'diff -r {} small-source; echo {}'",
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), files.to_str().unwrap());
    assert_nothing_left(&parent);
}

#[test]
fn what_does_not_fit_or_is_damaged_runs_no_command() {
    let Some(stage) = stage() else { return };
    let parent = parent(&stage);
    let small = format!("{HIDE_DEVICE}; mount -t tmpfs -o size=200k none $WORK/local");
    let script = "$ARCHFS run --or-extract local $IMAGE -- echo started; ls -A local";
    let output = bash(&stage, &small, script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{}", said(&output));
    assert!(said(&output).contains("are free"), "{}", said(&output));
    assert_nothing_left(&parent);

    let tar = stage.work.path().join("damaged.tar.gz");
    run(Command::new("tar")
        .args(["-czf", tar.to_str().unwrap(), "-C"])
        .args([stage.work.path().join("small-source").to_str().unwrap(), "."]));
    let mut bytes = fs::read(&tar).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    fs::write(&tar, bytes).unwrap();
    // A stored member with a wrong checksum.
    let zip = "import zipfile; zipfile.ZipFile('damaged.zip', 'w').write('small-source/hello')";
    run(Command::new("python3").args(["-c", zip]).current_dir(stage.work.path()));
    let zip = stage.work.path().join("damaged.zip");
    let mut bytes = fs::read(&zip).unwrap();
    let hello = bytes.windows(5).position(|found| found == b"world").unwrap();
    bytes[hello] ^= 0x55;
    fs::write(&zip, bytes).unwrap();
    for archive in ["damaged.tar.gz", "damaged.zip"] {
        let script = format!("$ARCHFS run --or-extract local {archive} -- echo started; echo $?");
        let output = self::output(&stage, &script);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "123\n", "{}", said(&output));
        assert_nothing_left(&parent);
    }
}

#[test]
fn only_a_directory_that_others_cannot_replace_is_used() {
    let Some(stage) = stage() else { return };
    let parent = parent(&stage);
    fs::set_permissions(&parent, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let script = "$ARCHFS run --or-extract local $IMAGE -- echo started";
    let output = output(&stage, script);
    assert_eq!(output.status.code(), Some(121), "{}", said(&output));
    assert!(said(&output).contains("other users can replace"), "{}", said(&output));
    fs::set_permissions(&parent, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    let output = self::output(&stage, script);
    assert!(output.status.success(), "{}", said(&output));
    assert_nothing_left(&parent);
    // Two nodes cannot see each other's locks.
    let script = "$ARCHFS run -q --or-extract local $IMAGE -- sh -c 'touch {}/../holders-elsewhere; echo {}'";
    let output = self::output(&stage, script);
    let files = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    let directory = files.parent().unwrap();
    assert!(directory.join("holders-elsewhere").exists() && !files.exists());
    let output = self::output(&stage, "$ARCHFS run --or-extract local $IMAGE -- echo started");
    assert_eq!(output.status.code(), Some(121), "{}", said(&output));
    assert!(said(&output).contains("used by node elsewhere"), "{}", said(&output));
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn an_ordinary_user_removes_directories_without_write_permission() {
    let Some(stage) = stage_with(|work| image::make(work, "varied.sqfs", &closed(), &[])) else {
        return;
    };
    let user = User::new(&stage, 39);
    let setup =
        format!("{HIDE_DEVICE}; mkdir -m 700 $WORK/local; chown {0}:{0} $WORK/local", user.uid);
    let script = format!(
        "setpriv --reuid={0} --regid={0} --clear-groups {1} run --or-extract local $IMAGE -- \
         sh -c 'stat -c %a {{}}/closed; cat {{}}/closed/file; id -u'",
        user.uid,
        user.home.join("archfs").display()
    );
    let output = bash(&stage, &setup, &script).output().unwrap();
    let expected = format!("555\ntext\n{}\n", user.uid);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", said(&output));
    assert_nothing_left(&stage.work.path().join("local"));
}

/// Landlock forbids all mounts, and still allows namespaces. In a user namespace, the owners of
/// other directories are unknown.
#[test]
fn a_user_who_may_only_create_namespaces_extracts() {
    let Some(stage) = stage() else { return };
    let user = User::new(&stage, 41);
    // Forbids to create block devices, which a user may not do anyway (landlock(7)).
    let sandbox = "import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
forbidden = struct.pack('Q', 1 << 11)
rules = libc.syscall(444, forbidden, len(forbidden), 0)
if rules < 0 or libc.syscall(446, rules, 0):
    print('no Landlock:', os.strerror(ctypes.get_errno()))
    sys.exit()
os.execv(sys.argv[1], sys.argv[1:])";
    let setup = format!("mkdir -m 700 $WORK/local; chown {0}:{0} $WORK/local", user.uid);
    let script = format!(
        "setpriv --reuid={0} --regid={0} --clear-groups /usr/bin/python3 -c \"$SANDBOX\" {1} \
         run --or-extract local $IMAGE -- cat {{}}/hello",
        user.uid,
        user.home.join("archfs").display()
    );
    let output = bash(&stage, &setup, &script).env("SANDBOX", sandbox).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if text.starts_with("no Landlock") {
        return skip(&text);
    }
    assert_eq!(text, "hello, world\n", "{}", said(&output));
    // Nothing was wrong, so nothing is called an error.
    assert!(!said(&output).contains("error:"), "{}", said(&output));
    assert!(said(&output).contains("extracting to"), "{}", said(&output));
    assert_nothing_left(&stage.work.path().join("local"));
}

/// A tree with a directory that its owner cannot write to.
fn closed() -> PathBuf {
    static TREE: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    let tree = TREE.get_or_init(|| {
        let tree = crate::support::work_directory();
        let closed = tree.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::write(closed.join("file"), "text\n").unwrap();
        fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
        tree
    });
    tree.path().to_owned()
}
