//! Stale mounts of killed daemons, and daemons that do not answer: `list`, `gc` and later mounts
//! handle both.
//!
//! A user's commands never touch live mounts or those of other users.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, chown};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::faulty::{Fault, Faulty};
use crate::support::mount::{CleanUp, daemon_of as daemon_at, is_mounted, listed, unmount};
use crate::support::stage::{Stage, Stopped, has_ended, said, stage, stop};
use crate::support::stale::one_at_a_time;
use crate::support::user::{OpenDevice, User};
use crate::support::{archfs, run, wait_until};

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn wait_until_dead(mount_point: &Path) {
    wait_until("the mount is dead", || {
        // The kernel's cache would answer stat(2).
        rustix::fs::statvfs(mount_point).is_err_and(|error| error == Errno::NOTCONN)
    });
}

/// Mounts, then kills the daemon.
fn leave_dead(stage: &Stage) {
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let daemon = stage.daemon();
    kill_process(daemon, Signal::KILL).unwrap();
    wait_until_dead(&stage.mount_point);
    // Until then the daemon is only unresponsive.
    wait_until("the daemon has ended", || has_ended(daemon));
}

/// The daemon of the user's mount, from the user's `list`.
fn daemon_of(user: &User) -> Pid {
    let row: serde_json::Value =
        serde_json::from_str(&out(&user.runs("$ARCHFS list --json"))).unwrap();
    assert_eq!(row["mountpoint"], user.mount_point.to_str().unwrap());
    assert_eq!(row["state"], "alive");
    Pid::from_raw(row["daemon"].as_i64().unwrap().try_into().unwrap()).unwrap()
}

#[test]
fn list_shows_a_stale_mount_and_gc_removes_it_with_its_directory() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    for is_there in [false, true] {
        if is_there {
            fs::create_dir(&stage.mount_point).unwrap();
        }
        leave_dead(&stage);
        let row = listed(&stage.mount_point).unwrap();
        assert_eq!((&row["state"], &row["kept"]), (&"dead".into(), &false.into()), "{row}");
        assert_eq!(row["archives"][0], stage.image.to_str().unwrap());
        let table = out(&run(archfs().arg("list")));
        let line = table.lines().find(|line| line.contains(stage.mount_point.to_str().unwrap()));
        assert_eq!(line.unwrap().split_whitespace().nth(1), Some("stale"), "{table}");
        let cleared = said(&run(archfs().arg("gc")));
        let expected = format!("{}: cleared a stale mount", stage.mount_point.display());
        assert!(cleared.contains(&expected), "{cleared}");
        assert_eq!((is_mounted(&stage.mount_point), stage.mount_point.exists()), (false, is_there));
        assert!(listed(&stage.mount_point).is_none());
    }
}

#[test]
fn gc_clears_stacked_stale_mounts_together() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    leave_dead(&stage);
    // Mounts without archfs, as fusermount and mount(8) would.
    let script = "exec 3<>/dev/fuse; mount -i -t fuse.archfs -o \
                  ro,fd=3,rootmode=40000,user_id=0,group_id=0 none mount";
    run(&mut stage.bash(script));
    run(archfs().args(["gc", "-q"]));
    assert!(stage.is_gone());
}

/// > A stale mount, whose daemon was killed, gives ENOTCONN, even for open files. The next `mount`,
/// > `run`, `unmount` or `gc` of its user clears it.
#[test]
fn a_stale_mount_returns_enotconn_until_a_command_of_its_user_clears_it() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    for command in ["mount", "run", "unmount", "gc"] {
        assert!(stage.mount(&["--keep", "-q"]).status.success());
        let open = File::open(stage.mount_point.join("folder/data")).unwrap();
        let daemon = stage.daemon();
        kill_process(daemon, Signal::KILL).unwrap();
        wait_until_dead(&stage.mount_point);
        wait_until("the daemon has ended", || has_ended(daemon));
        let not_connected = |outcome: std::io::Result<()>| {
            assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::ENOTCONN), "{command}");
        };
        let mut bytes = [0; 4096];
        not_connected(open.read_exact_at(&mut bytes, 0));
        not_connected(fs::read(stage.mount_point.join("hello")).map(drop));
        not_connected(
            fs::read_dir(&stage.mount_point).and_then(|mut it| it.next().unwrap().map(drop)),
        );
        match command {
            "mount" => {
                assert!(stage.mount(&["--keep", "-q"]).status.success());
                stage.assert_readable();
                unmount(&stage.mount_point);
            }
            "run" => assert_eq!(out(&stage.run(&["echo", "ran"])), "ran\n"),
            "unmount" => unmount(&stage.mount_point),
            _ => drop(run(archfs().args(["gc", "-q"]))),
        }
        assert!(stage.is_gone(), "{command}");
        // Open files do not come back.
        not_connected(open.read_exact_at(&mut bytes, 8192));
    }
}

/// The archive of a stage on storage that can hang.
///
/// A killed daemon's main thread exits at once, but a thread that waits for the archive's storage
/// exits only when the storage answers. Until then the daemon's files, locks and connections stay
/// open.
struct Hanging<'a> {
    stage: &'a Stage,
    faulty: Faulty,
}

impl<'a> Hanging<'a> {
    fn new(stage: &'a Stage) -> Self {
        Self { stage, faulty: Faulty::new(&stage.image, &stage.work.path().join("storage")) }
    }

    /// `archfs WORDS ARCHIVE MOUNT_POINT MORE`.
    fn asks(&self, words: &[&str], mount_point: &Path, more: &[&str]) -> Command {
        let mut command = archfs();
        command.args(words).arg(self.faulty.file()).arg(mount_point).args(more);
        command
    }

    /// Makes the daemon of the mount wait for its storage.
    fn hang(&self, mount_point: &Path) -> Child {
        let before = self.faulty.reads();
        self.faulty.set(Fault::Hanging);
        let mut reader = Command::new("cat");
        reader.arg(mount_point.join("folder/data")).stdout(Stdio::null()).stderr(Stdio::null());
        let reader = reader.spawn().unwrap();
        wait_until("the daemon reads", || self.faulty.reads() > before);
        reader
    }

    /// Kills `daemon` while it waits for its storage.
    fn kill(&self, daemon: Pid) {
        kill_process(daemon, Signal::KILL).unwrap();
        wait_until("its first thread has ended", || {
            let status = format!("/proc/{}/status", daemon.as_raw_nonzero());
            fs::read_to_string(status).unwrap().contains("State:\tZ")
        });
    }

    /// Waits until `next` has detached the mount of `daemon`, which still exits; then lets both
    /// end, and `next` must succeed.
    fn let_end(&self, daemon: Pid, mut next: Child, mut reader: Child) {
        wait_until("the dead mount is detached", || !is_mounted(&self.stage.mount_point));
        thread::sleep(Duration::from_millis(100));
        assert!(!has_ended(daemon), "it was not hanging");
        self.faulty.set(Fault::None);
        assert!(next.wait().unwrap().success());
        reader.wait().unwrap();
    }
}

#[test]
fn a_stale_mount_is_cleared_while_a_thread_of_its_daemon_still_exits() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    let storage = Hanging::new(&stage);
    for command in ["mount", "run", "unmount", "unmount --held-by", "gc"] {
        run(&mut storage.asks(&["mount", "--keep", "-q"], &stage.mount_point, &[]));
        let daemon = stage.daemon();
        let reader = storage.hang(&stage.mount_point);
        storage.kill(daemon);
        let own = std::process::id().to_string();
        let mut next = archfs();
        match command {
            "mount" => next = storage.asks(&["mount", "-q", "--keep"], &stage.mount_point, &[]),
            "run" => next = storage.asks(&["run", "-q"], &stage.mount_point, &["--", "true"]),
            "unmount" => drop(next.arg("unmount").arg(&stage.mount_point)),
            "gc" => drop(next.args(["gc", "-q"])),
            _ => drop(next.args(["unmount", "--held-by", &own]).arg(&stage.mount_point)),
        }
        storage.let_end(daemon, next.spawn().unwrap(), reader);
        if command == "mount" {
            stage.assert_readable();
            unmount(&stage.mount_point);
        }
        assert!(stage.is_gone(), "{command}");
    }
}

#[test]
fn a_client_clears_the_mount_of_a_daemon_killed_during_its_request() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    let storage = Hanging::new(&stage);
    for command in ["mount", "unmount"] {
        run(&mut storage.asks(&["mount", "--keep", "-q"], &stage.mount_point, &[]));
        let daemon = stage.daemon();
        let reader = storage.hang(&stage.mount_point);
        // It looks alive and does not answer.
        stop(daemon);
        let mut next = archfs();
        match command {
            "mount" => next = storage.asks(&["mount", "-q", "--keep"], &stage.mount_point, &[]),
            _ => drop(next.arg("unmount").arg(&stage.mount_point)),
        }
        let next = next.spawn().unwrap();
        thread::sleep(Duration::from_millis(400));
        assert!(is_mounted(&stage.mount_point));
        storage.kill(daemon);
        storage.let_end(daemon, next, reader);
        if command == "mount" {
            stage.assert_readable();
            unmount(&stage.mount_point);
        }
        assert!(stage.is_gone(), "{command}");
    }
    // One process that held it the whole time.
    let script = "until [ -e go-on ]; do sleep 0.01; done";
    let mut holder = storage.asks(&["run", "-q"], &stage.mount_point, &["--", "sh", "-c", script]);
    let holder = holder.current_dir(stage.work.path()).spawn().unwrap();
    wait_until("it is mounted", || daemon_at(&stage.mount_point).is_some());
    let daemon = stage.daemon();
    let reader = storage.hang(&stage.mount_point);
    storage.kill(daemon);
    File::create(stage.work.path().join("go-on")).unwrap();
    storage.let_end(daemon, holder, reader);
    assert!(stage.is_gone());
}

#[test]
fn gc_detaches_all_stale_mounts_before_it_waits() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    let storage = Hanging::new(&stage);
    let mount_points = ["first", "second", "third"].map(|name| stage.work.path().join(name));
    let _clean_up = mount_points.each_ref().map(|mount_point| CleanUp(mount_point.clone()));
    let daemons = mount_points.each_ref().map(|mount_point| {
        run(&mut storage.asks(&["mount", "--keep", "-q"], mount_point, &[]));
        Pid::from_raw(daemon_at(mount_point).unwrap()).unwrap()
    });
    let readers = mount_points.each_ref().map(|mount_point| {
        // Read-ahead of another daemon must not count as a read by this one.
        thread::sleep(Duration::from_millis(50));
        storage.hang(mount_point)
    });
    for daemon in daemons {
        storage.kill(daemon);
    }
    let before = Instant::now();
    let mut gc = archfs().args(["gc", "-q"]).spawn().unwrap();
    wait_until("all are detached", || {
        !mount_points.iter().any(|mount_point| is_mounted(mount_point))
    });
    // One after the other would take five seconds each.
    assert!(before.elapsed() < Duration::from_secs(9), "{:?}", before.elapsed());
    assert!(!daemons.into_iter().any(has_ended) && gc.try_wait().unwrap().is_none());
    assert!(mount_points.iter().all(|mount_point| mount_point.exists()));
    storage.faulty.set(Fault::None);
    assert!(gc.wait().unwrap().success());
    assert!(!mount_points.iter().any(|mount_point| mount_point.exists()));
    for mut reader in readers {
        reader.wait().unwrap();
    }
}

#[test]
fn the_next_command_cleans_up_after_a_daemon_killed_during_cleanup() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let daemon = stage.daemon();
    stop(daemon);
    run(Command::new("umount").arg("-l").arg(&stage.mount_point));
    let mut unmount = archfs().arg("unmount").arg(&stage.mount_point).spawn().unwrap();
    thread::sleep(Duration::from_millis(200));
    assert!(unmount.try_wait().unwrap().is_none(), "it has not waited");
    kill_process(daemon, Signal::KILL).unwrap();
    assert!(unmount.wait().unwrap().success());
    assert!(stage.is_gone());
    assert!(listed(&stage.mount_point).is_none());
}

#[test]
fn mount_and_run_clear_a_stale_mount_with_a_note() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    let note = format!("{}: clearing a stale mount of ", stage.mount_point.display());
    leave_dead(&stage);
    let output = stage.run(&["cat", stage.mount_point.join("hello").to_str().unwrap()]);
    assert_eq!(out(&output), "hello, world\n");
    assert!(said(&output).contains(&note), "{}", said(&output));
    assert!(stage.is_gone());
    leave_dead(&stage);
    let output = stage.bash("$ARCHFS mount $IMAGE mount && cat mount/hello").output().unwrap();
    assert_eq!(out(&output), "hello, world\n");
    assert!(said(&output).contains(&note), "{}", said(&output));
    wait_until("the mount is gone", || stage.is_gone());
}

/// > A stale mount, whose daemon was killed, gives ENOTCONN, even for open files. The next `mount`,
/// > `run`, `unmount` or `gc` of its user clears it.
///
/// > **`gc`, `unmount`, `list`** act only on mounts of type fuse.archfs of this user, whatever the
/// > records say. Root can also unmount those of other users.
#[test]
fn each_user_clears_only_their_own_stale_mounts() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let (dead, alive) = (User::new(&stage, 34), User::new(&stage, 38));
    for user in [&dead, &alive] {
        let mounted = user.runs("$ARCHFS mount -q --keep $IMAGE mount");
        assert!(mounted.status.success(), "{}", said(&mounted));
    }
    kill_process(daemon_of(&dead), Signal::KILL).unwrap();
    let state = |user: &User| {
        let row: serde_json::Value =
            serde_json::from_str(&out(&user.runs("$ARCHFS list --json"))).unwrap();
        row["state"].as_str().unwrap().to_owned()
    };
    wait_until("the mount is dead", || state(&dead) == "dead");
    // Neither root nor the other user lists or clears it.
    let name = dead.mount_point.to_str().unwrap();
    for output in [run(archfs().args(["list", "--json"])), alive.runs("$ARCHFS list --json")] {
        assert!(!out(&output).contains(name));
    }
    for output in [run(archfs().arg("gc")), alive.runs("$ARCHFS gc")] {
        assert!(!said(&output).contains(name), "{}", said(&output));
    }
    assert!(is_mounted(&dead.mount_point) && state(&dead) == "dead" && dead.registry().exists());
    let cleared = dead.runs("$ARCHFS gc");
    assert!(said(&cleared).contains(": cleared a stale mount"), "{}", said(&cleared));
    assert!(!is_mounted(&dead.mount_point) && !dead.mount_point.exists());
    assert!(!dead.registry().exists(), "nothing else was there");

    // Everything that belongs to the live mount stays.
    assert_eq!(out(&alive.runs("$ARCHFS gc && cat mount/hello")), "hello, world\n");
    assert_eq!(state(&alive), "alive");
    let unmounted = alive.runs("$ARCHFS unmount mount");
    assert!(unmounted.status.success(), "{}", said(&unmounted));
    assert!(!alive.registry().exists());
}

#[test]
fn gc_removes_records_of_mounts_unmounted_by_others() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 39);
    let mounted = user.runs("$ARCHFS mount -q --keep $IMAGE mount");
    assert!(mounted.status.success(), "{}", said(&mounted));
    let daemon = daemon_of(&user);
    kill_process(daemon, Signal::KILL).unwrap();
    wait_until("the daemon has ended", || has_ended(daemon));
    run(Command::new("umount").arg("-l").arg(&user.mount_point));
    assert!(user.registry().exists() && user.mount_point.exists());
    let cleared = user.runs("$ARCHFS gc");
    assert!(cleared.status.success(), "{}", said(&cleared));
    assert!(!user.registry().exists() && !user.mount_point.exists());
}

#[test]
fn gc_leaves_other_directories_and_files_alone() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 13);
    let mounted = user.runs("$ARCHFS mount -q --keep $IMAGE mount");
    assert!(mounted.status.success(), "{}", said(&mounted));
    kill_process(daemon_of(&user), Signal::KILL).unwrap();
    let clear = "until $ARCHFS list | grep -q stale; do :; done; fusermount3 -u mount; rmdir mount";
    assert!(user.runs(clear).status.success());
    // A different, non-empty directory at the path that archfs created.
    fs::create_dir(&user.mount_point).unwrap();
    chown(&user.mount_point, Some(user.uid), Some(user.uid)).unwrap();
    fs::write(user.mount_point.join("precious"), "").unwrap();
    let cleared = user.runs("$ARCHFS gc");
    assert!(cleared.status.success(), "{}", said(&cleared));
    assert!(user.mount_point.join("precious").exists());
    // The last `list` may exit after its line was read; the last process removes the registry.
    wait_until("the registry is removed", || !user.registry().exists());
}

#[test]
fn a_stopped_daemon_blocks_no_other_command() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let daemon = stage.daemon();
    stop(daemon);
    let before = Instant::now();
    let row = listed(&stage.mount_point).unwrap();
    assert_eq!(row["state"], "silent", "{row}");
    assert_eq!(row["daemon"], daemon.as_raw_nonzero().get(), "{row}");
    run(archfs().args(["gc", "-q"]));
    assert!(before.elapsed() < Duration::from_secs(9), "{:?}", before.elapsed());
    assert!(is_mounted(&stage.mount_point), "it is alive");
    kill_process(daemon, Signal::CONT).unwrap();
    stage.assert_readable();
    assert_eq!(listed(&stage.mount_point).unwrap()["state"], "alive");
    // Unmounting does not need the daemon.
    stop(daemon);
    run(archfs().args(["unmount", "--lazy"]).arg(&stage.mount_point));
    assert!(!is_mounted(&stage.mount_point));
    kill_process(daemon, Signal::CONT).unwrap();
    wait_until("the daemon has ended", || has_ended(daemon));
    wait_until("the directory is gone", || stage.is_gone());
}

#[test]
fn a_stopped_daemon_blocks_no_command_once_kernel_caches_expired() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    std::os::unix::fs::symlink("mount/", stage.work.path().join("link")).unwrap();
    assert!(stage.mount(&["--keep", "-q", "--idle-timeout", "2s"]).status.success());
    let daemon = stage.daemon();
    let stopped = Stopped::and_forgotten(&stage);
    for mount_point in ["mount", "link"] {
        let output = stage.ends(&["wait", "--timeout", "1s", mount_point]);
        assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    }
    let output = stage.ends(&["unmount", "mount"]);
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    assert!(said(&output).contains("mount: the daemon does not answer"), "{}", said(&output));
    assert!(said(&output).contains("hint: use --lazy to unmount"), "{}", said(&output));
    assert!(is_mounted(&stage.mount_point));
    let output = stage.ends(&["unmount", "--lazy", "mount"]);
    assert!(output.status.success() && !is_mounted(&stage.mount_point), "{}", said(&output));
    drop(stopped);
    wait_until("the daemon has ended", || has_ended(daemon));
    wait_until("the directory is gone", || stage.is_gone());
}

/// A longer wait would block other commands at the mount point.
#[test]
fn a_stopped_daemon_is_given_up_after_five_seconds() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let stopped = Stopped::new(stage.daemon());
    let before = Instant::now();
    let asks =
        || archfs().args(["mount", "-q"]).args([&stage.image, &stage.mount_point]).spawn().unwrap();
    let mut asking = [asks(), asks()];
    let row = listed(&stage.mount_point).unwrap();
    assert_eq!(row["state"], "silent", "{row}");
    for mount in &mut asking {
        assert_eq!(mount.wait().unwrap().code(), Some(6));
    }
    let elapsed = before.elapsed();
    assert!(elapsed >= Duration::from_secs(5) && elapsed < Duration::from_secs(10), "{elapsed:?}");
    drop(stopped);
    stage.assert_readable();
    unmount(&stage.mount_point);
}

#[test]
fn an_ordinary_user_unmounts_the_mount_of_a_stopped_daemon() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 9);
    let mounted = user.runs("$ARCHFS mount -q --keep --idle-timeout 2s $IMAGE mount");
    assert!(mounted.status.success(), "{}", said(&mounted));
    let daemon = daemon_of(&user);
    let stopped = Stopped::new(daemon);
    wait_until("stat(2) hangs", || user.runs("timeout 0.2 stat mount").status.code() == Some(124));
    let output = user.runs("timeout 30 $ARCHFS unmount mount");
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    let output = user.runs("timeout 30 $ARCHFS unmount --lazy mount");
    assert!(output.status.success() && !is_mounted(&user.mount_point), "{}", said(&output));
    drop(stopped);
    wait_until("the daemon has ended", || has_ended(daemon));
    wait_until("nothing is left", || !user.mount_point.exists() && !user.registry().exists());
}

/// At the end of a job, its user may have as many processes as the system allows.
#[test]
fn a_daemon_that_cannot_start_fusermount_tries_again() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 10);
    let mounted = user.runs("$ARCHFS mount -q --keep $IMAGE mount");
    assert!(mounted.status.success(), "{}", said(&mounted));
    let daemon = daemon_of(&user);
    let limit = |processes: &str| {
        let output = user.runs(&format!("prlimit --pid={daemon} --nproc={processes}:"));
        assert!(output.status.success(), "{}", said(&output));
    };
    limit("1");
    kill_process(daemon, Signal::TERM).unwrap();
    thread::sleep(Duration::from_millis(500));
    assert!(is_mounted(&user.mount_point) && !has_ended(daemon), "it cannot start a process");
    limit("1000");
    wait_until("the daemon has ended", || has_ended(daemon));
    assert!(!is_mounted(&user.mount_point));
    wait_until("nothing is left", || !user.mount_point.exists() && !user.registry().exists());
}
