//! `mount --overlay`: a layer over the archive that all processes may change, as root and as an
//! ordinary user. fuse-overlayfs serves the mount point.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::overlay::{CHANGES, as_both, text};
use crate::support::mount::is_mounted;
use crate::support::stage::{Talker, has_ended, said, stage};
use crate::support::stale::one_at_a_time;
use crate::support::{run, wait_until};

/// The process of fuse-overlayfs that the daemon at `mount_point` has started.
fn server_of(daemon: i32) -> Pid {
    let children = format!("/proc/{daemon}/task/{daemon}/children");
    let children = fs::read_to_string(children).unwrap();
    let mut children = children.split_whitespace().map(|pid| pid.parse::<i32>().unwrap());
    let is_server = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() == "fuse-overlayfs"
    };
    Pid::from_raw(children.find(is_server).expect("fuse-overlayfs")).unwrap()
}

/// > With `mount --overlay`, all processes that may use the mount can change files. fuse-overlayfs
/// > serves this mount. Link counts can be wrong, and O_TMPFILE fails.
#[test]
fn programs_change_files_as_in_a_plain_directory() {
    let Some(stage) = stage() else { return };
    let archive = fs::read(&stage.image).unwrap();
    as_both(&stage, 39, |bash, work| {
        fs::write(work.join("changes"), CHANGES).unwrap();
        let source = stage.work.path().join("small-source");
        run(&mut bash(&format!("cp -r {} plain", source.display())));
        let expected = run(&mut bash("bash changes plain"));
        for layer in ["tmp", "layer"] {
            let script = format!(
                "$ARCHFS mount -q --overlay {layer} $IMAGE mount && bash changes mount &&
                 diff -r --no-dereference plain mount >&2; $ARCHFS unmount mount"
            );
            let output = bash(&script).output().unwrap();
            // fuse-overlayfs also counts the link of the file that was removed before.
            let links = ("folder/data f 644 2", "folder/data f 644 1");
            let seen = text(&output).replace(links.0, links.1);
            assert_eq!(seen, text(&expected), "{layer}: {}", said(&output));
            assert_eq!((output.status.code(), said(&output)), (Some(0), String::new()), "{layer}");
        }
        // The next mount finds them in a directory. The end of the script ends the mount.
        let script = "$ARCHFS mount -q --overlay layer $IMAGE mount
            diff -r --no-dereference plain mount && ls -R mount > /dev/null && echo same";
        let output = bash(script).output().unwrap();
        assert_eq!((text(&output), said(&output)), ("same\n".into(), String::new()));
        wait_until("the mount has ended", || !is_mounted(&work.join("mount")));
        let unnamed = "python3 -c 'import os; os.open(\"mount\", os.O_TMPFILE | os.O_RDWR)' 2>&1";
        let script = format!(
            "$ARCHFS mount -q --overlay tmp $IMAGE mount && cat mount/hello; {unnamed} | grep -o 95"
        );
        assert_eq!(text(&run(&mut bash(&script))), "hello, world\n95\n");
        wait_until("the mount has ended", || !is_mounted(&work.join("mount")));
        run(&mut bash("rm -r layer"));
    });
    assert_eq!(fs::read(&stage.image).unwrap(), archive);
}

/// > `run --overlay` refuses a layer that `mount --overlay` made, and the reverse.
#[test]
fn a_layer_that_cannot_be_used_is_refused() {
    let Some(stage) = stage() else { return };
    let hidden = "unshare -m sh -c 'mount --bind /dev/null $(which fuse-overlayfs) &&
         exec $ARCHFS mount --overlay tmp $IMAGE mount'";
    let script = format!(
        "echo :first; $ARCHFS mount -q --overlay one $IMAGE mount && touch mount/x
         echo :used; $ARCHFS mount --overlay one $IMAGE other
         echo :shared; $ARCHFS mount --overlay one $IMAGE mount
         echo :differs; $ARCHFS mount $IMAGE mount
         $ARCHFS unmount mount
         echo :kernel; $ARCHFS run --overlay one $IMAGE -- echo started
         $ARCHFS run -q --overlay two $IMAGE -- touch {{}}/x
         echo :fuse; $ARCHFS mount --overlay two $IMAGE mount
         mkdir full; echo x > full/x
         echo :foreign; $ARCHFS mount --overlay full $IMAGE mount
         echo :missing; {hidden}
         mkdir wrong; touch wrong/archfs-layer wrong/upper
         echo :wrong; $ARCHFS mount --overlay wrong $IMAGE mount
         echo :ro; $ARCHFS mount --overlay tmp -o ro $IMAGE mount
         echo :idle; $ARCHFS mount --overlay tmp --idle-timeout 9 $IMAGE mount
         echo :descriptor; $ARCHFS mount --overlay tmp $IMAGE /dev/fd/7 7< /dev/fuse
         echo :statuses; $ARCHFS run -q --overlay three $IMAGE -- true
         $ARCHFS mount -q --overlay three $IMAGE mount && $ARCHFS unmount mount; echo unused $?
         echo x > three/upper/x; $ARCHFS run -q --overlay three $IMAGE -- true; echo other $?"
    );
    let output = run(&mut stage.bash(&format!("exec 2>&1\n{script}\ntrue")));
    let output = text(&output);
    let after = |part: &str| {
        let (_, rest) = output.split_once(&format!(":{part}\n")).unwrap();
        let lines = rest.lines().take_while(|line| !line.starts_with(':'));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(after("first"), "", "{output}");
    assert!(after("used").contains("one: in use by another job or task"), "{output}");
    assert!(after("shared").contains("note: sharing "), "{output}");
    assert!(after("differs").contains("is mounted here with other options"), "{output}");
    assert!(after("kernel").contains("one: made by `archfs mount --overlay`"), "{output}");
    assert!(after("fuse").contains("two: made by `archfs run --overlay`"), "{output}");
    assert!(after("foreign").contains("full: neither empty nor a layer of archfs"), "{output}");
    assert!(after("wrong").contains("wrong: Not a directory"), "{output}");
    assert!(after("ro").contains("--overlay and -o ro contradict each other"), "{output}");
    assert!(after("idle").contains("--overlay and --idle-timeout: "), "{output}");
    assert!(after("missing").contains("fuse-overlayfs not found on this node"), "{output}");
    assert!(after("descriptor").contains("--overlay: needs a directory as the mount"), "{output}");
    assert!(after("statuses").contains("unused 0") && output.contains("other 124"), "{output}");
    assert!(!output.contains("started"), "{output}");
    assert!(stage.is_gone());
}

/// > If the daemon is killed, so is fuse-overlayfs, and the mount is stale.
///
/// > What write(2) has written is in the layer, also if the daemon is killed at once.
#[test]
fn a_killed_daemon_takes_the_program_with_it() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    as_both(&stage, 34, |bash, work| {
        let mount = "$ARCHFS mount -q --keep --overlay layer $IMAGE mount";
        let script = format!(
            "{mount}; daemon=$(pgrep -f -- \"--daemon=mount -- .* $PWD/mount\")
             server=$(pgrep -P $daemon fuse-overlayfs); exec 5> mount/kept; echo kept >&5
             kill -KILL $daemon; while kill -0 $server; do sleep 0.01; done 2> /dev/null
             grep -c $PWD/mount /proc/mounts; {mount} && cat mount/kept; $ARCHFS unmount mount"
        );
        let output = bash(&script).output().unwrap();
        assert_eq!(text(&output), "1\nkept\n", "{}", said(&output));
        assert!(!work.join("mount").exists());
    });
}

/// > If fuse-overlayfs is killed, the mount ends.
#[test]
fn a_killed_program_ends_the_mount() {
    let Some(stage) = stage() else { return };
    run(&mut stage.bash("$ARCHFS mount -q --keep --overlay layer --log-file log $IMAGE mount"));
    let daemon = stage.daemon();
    kill_process(server_of(daemon.as_raw_nonzero().get()), Signal::KILL).unwrap();
    wait_until("the daemon has ended", || has_ended(daemon));
    assert!(stage.is_gone());
    let log = fs::read_to_string(stage.work.path().join("log")).unwrap();
    assert!(log.contains("fuse-overlayfs: signal: 9"), "{log}");
}

/// A batch system sends SIGTERM to all processes of a job. Files that are open stay as they are.
#[test]
fn open_files_can_be_changed_after_the_unmount() {
    let Some(stage) = stage() else { return };
    let script = "$ARCHFS mount -q --keep --overlay layer $IMAGE mount
        exec 5>> mount/hello 6< mount/folder/data; echo ready; read x
        echo late >&5; cmp /dev/fd/6 small-source/folder/data && echo same; read x";
    let mut job = Talker::start(&mut stage.bash(script));
    assert_eq!(job.line(), "ready");
    let daemon = stage.daemon();
    let server = server_of(daemon.as_raw_nonzero().get());
    for signal in [Signal::HUP, Signal::TERM, Signal::INT, Signal::USR1] {
        kill_process(server, signal).unwrap();
    }
    run(&mut stage.bash("$ARCHFS unmount --lazy mount"));
    assert!(!is_mounted(&stage.mount_point));
    job.write("\n");
    assert_eq!(job.line(), "same");
    job.write("\n");
    assert_eq!(job.end(), Some(0));
    wait_until("all have ended", || has_ended(daemon) && has_ended(server) && stage.is_gone());
    let script = "$ARCHFS mount -q --overlay layer $IMAGE mount; cat mount/hello";
    assert_eq!(text(&run(&mut stage.bash(script))), "hello, world\nlate\n");
    wait_until("nothing is left", || stage.is_gone());
}

/// `bash` in a mount namespace of its own, which shares its mounts with new namespaces or not.
fn with_own_mounts(bash: &Command, propagation: &str) -> Command {
    let mut own = Command::new("unshare");
    own.args(["--mount", "--propagation", propagation]);
    own.arg(bash.get_program()).args(bash.get_args());
    bash.get_current_dir().map(|directory| own.current_dir(directory));
    own.envs(bash.get_envs().filter_map(|(name, value)| Some((name, value?))));
    own
}

/// The namespace of one mount does not keep others alive, and not its own.
#[test]
fn a_mount_ends_while_others_with_a_layer_exist() {
    let Some(stage) = stage() else { return };
    as_both(&stage, 38, |bash, work| {
        let script = "mkdir a b c
            $ARCHFS mount -q --keep $IMAGE a; $ARCHFS mount -q --keep --overlay one $IMAGE b
            $ARCHFS mount -q --keep --overlay tmp $IMAGE c
            $ARCHFS unmount a; $ARCHFS unmount b
            $ARCHFS mount -q --overlay one $IMAGE b && echo again
            $ARCHFS unmount b; $ARCHFS unmount c; $ARCHFS list 2> /dev/null | grep $PWD/; rmdir a b c";
        let bash = bash(&format!("exec 2>&1\n{script}"));
        let nothing = "again\n";
        // As with systemd.
        let output = with_own_mounts(&bash, "shared").output().unwrap();
        assert_eq!(text(&output), nothing);
        if work == stage.work.path() {
            // Namespaces of other tests hold no copies of these mounts.
            let output = with_own_mounts(&bash, "private").output().unwrap();
            assert_eq!(text(&output), nothing, "root");
        }
        assert!(!work.join("a").exists());
    });
}

/// fuse-overlayfs takes a colon for the end of a path, and a moved layer is the same one.
#[test]
fn a_layer_may_have_any_name_and_be_moved() {
    let Some(stage) = stage() else { return };
    let script = r#"exec 2>&1
        set -- 'a:b,c \d' $'not\xffutf8' 'mount'
        for layer; do
            $ARCHFS mount -q --overlay "$layer" $IMAGE mo:u,nt && echo "$layer" > mo:u,nt/name
            $ARCHFS unmount mo:u,nt
            mv "$layer" moved
            $ARCHFS mount -q --overlay ./folder/../moved $IMAGE mo:u,nt && cmp mo:u,nt/name <(echo "$layer")
            $ARCHFS unmount mo:u,nt; cat moved/upper/name > /dev/null && rm -r moved
        done; ls"#;
    fs::create_dir(stage.work.path().join("folder")).unwrap();
    let output = stage.bash(script).output().unwrap();
    assert_eq!(text(&output), "folder\nsmall-source\nsmall.sqfs\n");
}

/// What the program says is in the error, and it can be stopped while it says nothing.
#[test]
fn a_program_that_does_not_serve_is_an_error() {
    let Some(stage) = stage() else { return };
    let program = stage.work.path().join("bin/fuse-overlayfs");
    fs::create_dir(program.parent().unwrap()).unwrap();
    let mount = "PATH=$PWD/bin:$PATH $ARCHFS mount --overlay tmp $IMAGE mount";
    for (does, expected) in [
        ("echo fuse-overlayfs: no such option >&2; exit 3", "fuse-overlayfs: no such option; exit"),
        ("exit 0", "fuse-overlayfs: exit status: 0"),
        ("kill -KILL $$", "fuse-overlayfs: signal: 9"),
    ] {
        fs::write(&program, format!("#!/bin/sh\n{does}\n")).unwrap();
        run(Command::new("chmod").arg("755").arg(&program));
        let output = stage.bash(mount).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{}", said(&output));
        assert!(said(&output).contains(expected), "{does}: {}", said(&output));
        assert!(stage.is_gone());
    }
    fs::write(&program, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    let mut starting = stage.bash(&format!("exec 2>&1; {mount}; echo $?"));
    let starting = starting.stdout(Stdio::piped()).spawn().unwrap();
    wait_until("the daemon has mounted", || is_mounted(&stage.mount_point));
    kill_process(stage.daemon(), Signal::TERM).unwrap();
    let output = starting.wait_with_output().unwrap();
    assert!(text(&output).contains("fuse-overlayfs does not answer before the end"));
    assert!(stage.is_gone());
}

/// The options of the mount hold for the layer.
#[test]
fn the_layer_has_the_restrictions_of_the_mount() {
    let Some(stage) = stage() else { return };
    let script = "$ARCHFS mount -q --overlay tmp -o noexec $IMAGE mount
        cp /bin/true mount/true; chmod 755 mount/true; mount/true; echo $?
        setpriv --reuid 50 --clear-groups cat mount/hello || echo private";
    let output = stage.bash(script).output().unwrap();
    assert_eq!(text(&output), "126\nprivate\n", "{}", said(&output));
    wait_until("nothing is left", || stage.is_gone());
    let script = "$ARCHFS mount -q --overlay tmp -o allow_other $IMAGE mount; chmod 755 .
        setpriv --reuid 50 --clear-groups cat mount/hello
        setpriv --reuid 50 --clear-groups sh -c 'echo x > mount/x' || echo refused";
    let output = stage.bash(script).output().unwrap();
    assert_eq!(text(&output), "hello, world\nrefused\n", "{}", said(&output));
    wait_until("nothing is left", || stage.is_gone());
}

/// Where none of the usual directories is empty, the namespace uses the mount point.
#[test]
fn no_empty_directory_is_needed() {
    let Some(stage) = stage() else { return };
    let script = "for each in /mnt /media /srv /opt; do
             [ ! -d $each ] || { mount -t tmpfs full $each && touch $each/file; }
        done
        $ARCHFS mount -q --keep --overlay layer $IMAGE mount && echo x > mount/x && cat mount/x mount/hello
        $ARCHFS unmount mount";
    let bash = stage.bash(script);
    let output = with_own_mounts(&bash, "private").output().unwrap();
    assert_eq!(text(&output), "x\nhello, world\n", "{}", said(&output));
}
