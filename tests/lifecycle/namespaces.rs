//! Mounts whose path changes, processes that /proc hides or shows with other PIDs, and users with
//! the right to mount or with a copy of a mount in their own namespace.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::mount::{CleanUp, is_mounted};
use crate::support::skip::skip;
use crate::support::stage::{Talker, has_ended, processes_about, said, stage};
use crate::support::user::{OpenDevice, User};
use crate::support::{skip_without_mounts, wait_until};

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
