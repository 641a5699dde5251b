//! Mounts whose path changes, processes that /proc hides or shows with other PIDs, and users with
//! the right to mount or with a copy of a mount in their own namespace.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::mount::{CleanUp, is_mounted};
use crate::support::node;
use crate::support::skip::skip;
use crate::support::stage::{Talker, has_ended, processes_about, said, stage};
use crate::support::user::{OpenDevice, User};
use crate::support::{archfs, skip_without_mounts, wait_until};

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The daemon that was started with `path`, an archive or a mount point.
fn daemon_for(path: &Path) -> Pid {
    let daemons = processes_about(&["--daemon=mount", path.to_str().unwrap()]);
    let [daemon] = daemons[..] else { panic!("{daemons:?}") };
    Pid::from_raw(daemon).unwrap()
}

/// Mounts at `parent/mount` in `home` from a script that `bash` starts, and renames the parent. The
/// mount must end with its holder, and on SIGTERM.
fn renames_the_parent(bash: &dyn Fn(&str) -> Command, home: &Path) {
    let (parent, moved) = (home.join("parent"), home.join("moved").join("mount"));
    let _clean_up = [CleanUp(parent.join("mount")), CleanUp(moved.clone())];
    for (option, ends_by_signal) in [("", false), ("--keep", true)] {
        let script = format!(
            "mkdir parent && $ARCHFS mount -q {option} $IMAGE $PWD/parent/mount && \
             mv parent moved && cat moved/mount/hello && read x"
        );
        let mut holder = Talker::start(&mut bash(&script));
        assert_eq!(holder.line(), "hello, world", "{option}");
        let daemon = daemon_for(&parent.join("mount"));
        assert!(is_mounted(&moved));
        if ends_by_signal {
            kill_process(daemon, Signal::TERM).unwrap();
        }
        holder.write("\n");
        assert_eq!(holder.end(), Some(0), "{option}");
        wait_until("it is unmounted", || !is_mounted(&moved));
        wait_until("its daemon has ended", || has_ended(daemon));
        fs::remove_dir_all(home.join("moved")).unwrap();
    }
}

#[test]
fn root_unmounts_below_a_renamed_directory() {
    let Some(stage) = stage() else { return };
    renames_the_parent(&|script| stage.bash(script), stage.work.path());
}

#[test]
fn an_ordinary_user_unmounts_below_a_renamed_directory() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 13);
    renames_the_parent(&|script| user.bash(script), &user.home);
}

/// If the parent moves into a directory that its owner cannot enter, nothing can detach the mount.
/// Its connection is closed instead, so the daemon exits.
#[test]
fn a_daemon_exits_if_its_mount_cannot_be_detached() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 33);
    let script = "mkdir parent && $ARCHFS mount -q $IMAGE $PWD/parent/mount && echo up && read x";
    let mut holder = Talker::start(&mut user.bash(script));
    assert_eq!(holder.line(), "up");
    let daemon = daemon_for(&user.home.join("parent/mount"));
    let closed = tempfile::tempdir_in(stage.work.path()).unwrap();
    let moved = closed.path().join("parent");
    fs::rename(user.home.join("parent"), &moved).unwrap();
    let _clean_up = CleanUp(moved.join("mount"));
    holder.write("\n");
    assert_eq!(holder.end(), Some(0));
    wait_until("its daemon has ended", || has_ended(daemon));
}

/// `unshare --pid --fork`: PIDs in this namespace name other processes in /proc.
#[test]
fn a_pid_namespace_with_the_outer_proc_keeps_the_mount_for_its_caller() {
    let Some(stage) = stage() else { return };
    let script = "bash -c '$ARCHFS mount $IMAGE mount; echo $?; cat mount/hello' 2> said; \
                  while [ -e mount ]; do sleep 0.01; done; echo gone; \
                  $ARCHFS mount -q --keep $IMAGE mount && $ARCHFS unmount mount; echo $?";
    let inner = stage.bash(script);
    let mut outer = Command::new("timeout");
    outer.args(["-k", "1", "60", "unshare", "--pid", "--fork", "--kill-child"]);
    outer.arg(inner.get_program()).args(inner.get_args()).current_dir(stage.work.path());
    outer.env("ARCHFS", env!("CARGO_BIN_EXE_archfs")).env("IMAGE", &stage.image);
    let output = outer.env_remove("SLURM_TASK_PID").output().unwrap();
    let log = fs::read_to_string(stage.work.path().join("said")).unwrap();
    assert_eq!(out(&output), "0\nhello, world\ngone\n0\n", "{log}{}", said(&output));
    assert!(log.contains(" (?) exits"), "no name of a foreign process: {log}");
    assert!(stage.is_gone());
}

/// With `hidepid=2` a user cannot see /proc/PID of other users' processes.
#[test]
fn a_caller_hidden_by_hidepid_holds_its_mount() {
    if skip_without_mounts() {
        return;
    }
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 38);
    let inner = user.bash("exec $ARCHFS mount -q $IMAGE mount");
    let script = "mount -t proc -o hidepid=2 proc /proc || exit 9; \"$@\"; echo $?; \
                  read x; grep -c fuse.archfs /proc/self/mountinfo; read x";
    let mut root = Command::new("unshare");
    root.args(["--mount", "sh", "-c", script, "sh"]).current_dir(&user.home);
    root.arg(inner.get_program()).args(inner.get_args());
    root.env("ARCHFS", user.home.join("archfs")).env("IMAGE", &stage.image);
    let mut root = Talker::start(root.env_remove("SLURM_TASK_PID"));
    assert_eq!(root.line(), "0");
    let daemon = daemon_for(&stage.image);
    root.write("\n");
    assert_ne!(root.line(), "0");
    assert!(!has_ended(daemon));
    root.write("\n");
    root.end();
    wait_until("its daemon has ended", || has_ended(daemon));
    wait_until("nothing is left", || !user.mount_point.exists() && !user.registry().exists());
}

/// Container runtimes call archfs in a user namespace that maps only the caller, with all
/// capabilities. There the helper of the system has no rights.
///
/// > A process with CAP_SYS_ADMIN mounts and unmounts in the same way.
#[test]
fn a_user_with_the_capability_mounts_without_the_helper() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 13);
    let namespace = "unshare --user --mount --map-current-user --keep-caps";
    if !user.runs(&format!("{namespace} true")).status.success() {
        return skip("no user namespaces");
    }
    let mount = "$ARCHFS mount -v --keep $IMAGE mount && cat mount/hello && $ARCHFS unmount mount";
    let run = "$ARCHFS run -v $IMAGE mount -- cat mount/hello";
    let squashfuse = "ln -s $ARCHFS squashfuse; mkdir mount; ./squashfuse -f -o uid=13,gid=13 $IMAGE mount & \
                      until [ -e mount/hello ]; do :; done; cat mount/hello; kill $!; wait $!";
    for script in [mount, run, squashfuse] {
        let output = user.runs(&format!("{namespace} bash -c '{script}'"));
        let said = said(&output);
        assert_eq!(out(&output), "hello, world\n", "{script}: {said}");
        assert!(output.status.success() && !said.contains("only the command sees"), "{said}");
        assert_eq!(said.contains("mounted directly"), script != squashfuse, "{said}");
    }
    let output = user.runs(&format!("{namespace} $ARCHFS doctor"));
    assert!(out(&output).contains("with CAP_SYS_ADMIN, does not need it"), "{}", out(&output));
    // The same outside of a user namespace.
    let mut ambient = Command::new("setpriv");
    ambient.args(["--reuid=13", "--regid=13", "--clear-groups"]);
    ambient.args(["--inh-caps=+sys_admin", "--ambient-caps=+sys_admin", "bash", "-c"]);
    ambient.args([format!("rmdir mount; {mount}")]).current_dir(&user.home);
    ambient.env("ARCHFS", user.home.join("archfs")).env("IMAGE", &stage.image);
    let output = ambient.output().unwrap();
    assert_eq!(out(&output), "hello, world\n", "{}", said(&output));
    assert!(said(&output).contains("mounted directly"), "{}", said(&output));
    assert!(!user.mount_point.exists());
}

#[test]
fn an_error_of_mounting_names_each_way_and_why_it_failed() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 13);
    if !user.runs("unshare --user true").status.success() {
        return skip("no user namespaces");
    }
    // Without a mount namespace, the capability does not concern the mounts.
    let script = "unshare --user --map-current-user --keep-caps $ARCHFS mount $IMAGE mount";
    let output = user.runs(script);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let said_of_both = said(&output);
    for words in [
        "mount: the kernel does not permit the mount: Operation not permitted; fusermount cannot \
         either: ",
        "not run: this user namespace does not map the owner of",
        "hint: use `archfs run`",
    ] {
        assert!(said_of_both.contains(words), "{words}: {said_of_both}");
    }
    // Without the capability, only the helper can be tried.
    let script = "unshare --user --map-current-user $ARCHFS run $IMAGE mount -- cat mount/hello";
    let output = user.runs(script);
    assert_eq!(out(&output), "hello, world\n", "{}", said(&output));
    let said = said(&output);
    assert!(said.contains("not run: this user namespace does not map"), "{said}");
    assert!(said.contains("; mounting in a namespace that only the command sees"), "{said}");
}

/// The rows of `archfs list --json` whose mount point is `mount_point`.
fn rows_at(mount_point: &Path) -> Vec<Value> {
    let output = archfs().args(["list", "--json"]).output().unwrap();
    let rows = out(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_meant = |row: &Value| row["mountpoint"].as_str() == mount_point.to_str();
    Vec::into_iter(rows).filter(is_meant).collect()
}

/// > A mount namespace that was made during a mount, such as that of a container, keeps a copy of
/// > it. After `unmount`, archfs serves that copy until the last process of the namespace exits.
/// > `archfs list` shows it as detached, with these processes. If archfs made the directory of the
/// > mount point, it removes that directory, and the copies at that path end with it. A copy that
/// > is bound to another path stays.
#[test]
fn a_copy_of_a_mount_in_another_namespace_is_served_and_shown() {
    // Other tests make mount namespaces, and so copies of all mounts that they see.
    let Some(stage) = node::enter().and_then(|()| stage()) else { return };
    let other = stage.work.path().join("other");
    fs::create_dir(&other).unwrap();
    for (is_bound, place) in [(true, &other), (false, &stage.mount_point)] {
        if !is_bound {
            fs::create_dir(place).unwrap();
        }
        assert!(stage.mount(&["--keep"]).status.success());
        let daemon = stage.daemon();
        let script = format!(
            "if {is_bound}; then mount --bind mount other; fi; echo in; read x; cat {0}/hello; \
             cat mount/hello 2> /dev/null; read x; echo out",
            place.display()
        );
        let mut container = Command::new("unshare");
        container.args(["--mount", "--propagation=private", "sh", "-c", &script]);
        let mut container = Talker::start(container.current_dir(stage.work.path()));
        assert_eq!(container.line(), "in");
        let pid = container.pid().as_raw_nonzero().get();

        let output = stage.ends(&["unmount", "mount"]);
        let said = said(&output);
        assert!(output.status.success() && !stage.mount_point.join("hello").exists(), "{said}");
        assert_eq!(stage.mount_point.exists(), !is_bound);
        let words = format!(
            "process {pid} (sh) still has it at {} in another mount namespace",
            place.display()
        );
        assert!(said.contains(&words), "{said}");
        let words = format!("`kill -INT {}` ends it", daemon.as_raw_nonzero());
        assert!(said.contains(&words), "{said}");

        wait_until("it is listed", || !rows_at(&stage.mount_point).is_empty());
        let rows = rows_at(&stage.mount_point);
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(row["state"], "detached");
        assert_eq!(row["daemon"], daemon.as_raw_nonzero().get());
        assert_eq!(row["holders"], serde_json::json!([{"pid": pid, "name": "sh"}]));
        let output = archfs().arg("doctor").output().unwrap();
        let words = format!("{} is unmounted but still served", stage.mount_point.display());
        assert!(out(&output).contains(&words), "{}", out(&output));

        // Its mount point is free, and a mount there concerns only itself.
        assert!(stage.mount(&["--keep"]).status.success());
        assert_eq!(rows_at(&stage.mount_point).len(), 2);
        assert!(stage.ends(&["unmount", "mount"]).status.success());
        container.write("\n");
        assert_eq!(container.line(), "hello, world");
        if !is_bound {
            assert_eq!(container.line(), "hello, world");
        }
        container.write("\n");
        assert_eq!(container.line(), "out");
        assert_eq!(container.end(), Some(0));
        wait_until("its daemon has ended", || has_ended(daemon));
        assert_eq!(rows_at(&stage.mount_point), Vec::<Value>::new());
    }
}

#[test]
fn a_second_place_of_a_mount_is_named_when_the_first_is_unmounted() {
    let Some(stage) = node::enter().and_then(|()| stage()) else { return };
    let script = "mkdir bound && $ARCHFS mount -q --keep $IMAGE mount && mount --bind mount bound && \
                  $ARCHFS unmount mount && cat bound/hello && $ARCHFS unmount bound";
    let _clean_up = CleanUp(stage.work.path().join("bound"));
    let output = stage.bash(script).output().unwrap();
    assert_eq!(out(&output), "hello, world\n", "{}", said(&output));
    let place = stage.work.path().join("bound");
    let words = format!("also mounted at {}", place.display());
    assert!(output.status.success() && said(&output).contains(&words), "{}", said(&output));
    wait_until("no daemon is left", || rows_at(&stage.mount_point).is_empty());
}

#[test]
fn a_process_with_open_files_of_an_unmounted_mount_is_shown_and_the_hint_ends_its_daemon() {
    let Some(stage) = node::enter().and_then(|()| stage()) else { return };
    let script = "$ARCHFS mount -q --keep $IMAGE mount && exec 9<mount/hello && \
                  $ARCHFS unmount --lazy mount && echo up && read x";
    let mut holder = Talker::start(&mut stage.bash(script));
    assert_eq!(holder.line(), "up");
    wait_until("it is listed", || !rows_at(&stage.mount_point).is_empty());
    let rows = rows_at(&stage.mount_point);
    let pid = holder.pid().as_raw_nonzero().get();
    assert_eq!(rows[0]["state"], "detached");
    assert_eq!(rows[0]["holders"][0]["pid"], pid);
    let daemon = rows[0]["daemon"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)).unwrap();
    kill_process(daemon, Signal::INT).unwrap();
    wait_until("its daemon has ended", || has_ended(daemon));
    assert_eq!(rows_at(&stage.mount_point), Vec::<Value>::new());
    holder.write("\n");
    assert_eq!(holder.end(), Some(0));
}

/// If /tmp is private to a job and /dev/shm is not, each job has its own records and does not see
/// the other's mounts. Removing a directory also removes mounts on it in other namespaces.
#[test]
fn one_job_leaves_mount_points_of_another_with_its_own_tmp_alone() {
    let Some(stage) = stage() else { return };
    let shared = tempfile::Builder::new().prefix("archfs-test-").tempdir_in("/dev/shm").unwrap();
    let mount_point = shared.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    let job = || {
        let script = format!(
            "mount -t tmpfs none /tmp && cd / && exec $ARCHFS run -q $IMAGE {0} -- \
             sh -c 'cat {0}/hello; read x; cat {0}/hello'",
            mount_point.display()
        );
        // The files that the job needs are below /tmp.
        let script = format!(
            "mkdir -p /var/tmp/$$ && mount --bind $PWD /var/tmp/$$ && IMAGE=/var/tmp/$$/${{IMAGE##*/}} && \
             trap 'cd / && umount -l /var/tmp/$$ && rmdir /var/tmp/$$' EXIT && ({script})"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", "bash", "-c", &script]);
        command.current_dir(stage.work.path()).env("IMAGE", &stage.image);
        Talker::start(command.env("ARCHFS", env!("CARGO_BIN_EXE_archfs")))
    };
    // The first job creates the directory.
    let [mut first, mut second] = [(); 2].map(|()| {
        let mut job = job();
        assert_eq!(job.line(), "hello, world");
        job
    });
    first.write("\n");
    assert_eq!(first.line(), "hello, world");
    assert_eq!(first.end(), Some(0));
    assert!(mount_point.is_dir(), "the other uses it");
    second.write("\n");
    assert_eq!(second.line(), "hello, world");
    assert_eq!(second.end(), Some(0));
    wait_until("the last one removes it", || !mount_point.exists());
}

/// The leader of the process group is outside of the namespace, where the group has the id 0.
#[test]
fn run_in_a_pid_namespace_waits_for_what_its_command_leaves_running() {
    let Some(stage) = stage() else { return };
    let script = "timeout -k 1 60 unshare --pid --fork --mount-proc --kill-child \
                  $ARCHFS run -q $IMAGE mount -- \
                  bash -c 'exec 3< mount/hello; (sleep 1; cat <&3 > found) &'; echo $?; cat found";
    let output = stage.bash(script).output().unwrap();
    assert_eq!(out(&output), "0\nhello, world\n", "{}", said(&output));
    assert!(stage.is_gone(), "{}", said(&output));
}

/// The record of a daemon killed in another PID namespace names a PID that belongs to another
/// process here.
#[test]
fn a_daemon_killed_in_a_pid_namespace_blocks_no_mount_point() {
    let Some(stage) = stage() else { return };
    let script = "unshare --pid --fork bash -c '$ARCHFS mount -q --keep $IMAGE mount; kill -KILL 1'; \
                  timeout 20 $ARCHFS mount -q --keep $IMAGE mount && cat mount/hello && \
                  $ARCHFS unmount mount";
    let output = stage.bash(script).output().unwrap();
    assert_eq!(out(&output), "hello, world\n", "{}", said(&output));
    assert!(output.status.success() && stage.is_gone(), "{}", said(&output));
}

/// A user's FUSE daemon could serve the directory of root's records and claim that root owns
/// everything in it.
#[test]
fn a_record_directory_on_a_users_fuse_mount_is_skipped() {
    let Some(stage) = stage() else { return };
    // No daemon answers on the descriptor, so a process that accesses the mount hangs.
    let script = "mount -t tmpfs -o mode=1777 none /tmp && mkdir -m 700 /tmp/archfs-0 && \
                  chown 3:3 /tmp/archfs-0 && exec 9<>/dev/fuse && \
                  mount -i -t fuse.odd -o fd=9,rootmode=40000,user_id=3,group_id=3,allow_other none \
                      /tmp/archfs-0 && cd /var/tmp/$$ && \
                  timeout -k 1 20 $ARCHFS gc && timeout -k 1 20 $ARCHFS mount -q --keep $IMAGE mount && \
                  cat mount/hello && timeout -k 1 20 $ARCHFS unmount mount && \
                  umount -l /tmp/archfs-0 && ls /tmp";
    let script = format!(
        "mkdir -p /var/tmp/$$ && mount --bind $PWD /var/tmp/$$ && IMAGE=/var/tmp/$$/${{IMAGE##*/}} && \
         trap 'cd / && umount -l /var/tmp/$$ && rmdir /var/tmp/$$' EXIT && {script}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "bash", "-c", &script]);
    command.current_dir(stage.work.path()).env("IMAGE", &stage.image);
    let output = command.env("ARCHFS", env!("CARGO_BIN_EXE_archfs")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(out(&output), "hello, world\narchfs-0\n", "{}", said(&output));
}
