//! Which fusermount archfs runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use super::{OTHER, OWNER, Scene, done, out, scene};
use crate::support::stage::{Stage, said};
use crate::support::user::User;

/// Plants a program with the helper's name that belongs to user `id`. Running it creates `ran`
/// beside it.
fn plant(scene: &Scene, id: u32, directory: &str, mode: u32) {
    let directory = match scene.stage.work.path().join(directory) {
        there if there.exists() => there,
        _ => scene.directory_of(id, directory, mode),
    };
    let helper = directory.join("fusermount3");
    let ran = scene.stage.work.path().join("ran");
    fs::write(&helper, format!("#!/bin/sh\n: > {}\nexit 1\n", ran.display())).unwrap();
    std::os::unix::fs::chown(&helper, Some(id), Some(id)).unwrap();
    fs::set_permissions(helper, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a script of the user with no helper in the system directories.
fn without_helper(stage: &Stage, user: &User, script: &str) -> Output {
    let mut command = Command::new("unshare");
    let hide = "for it in /usr/bin /bin /usr/local/bin /usr/sbin; do \
                for name in fusermount3 fusermount; do [ ! -e $it/$name ] || \
                mount --bind /dev/null $it/$name || exit 9; done; done; exec \"$@\"";
    command.args(["--mount", "sh", "-c", hide, "sh"]);
    let inner = user.bash(script);
    command.arg(inner.get_program()).args(inner.get_args()).current_dir(&user.home);
    command.env("ARCHFS", user.home.join("archfs")).env("IMAGE", &stage.image);
    command.output().unwrap()
}

/// > **fusermount** is run only if no user except root and the caller could have replaced it
/// > (docs/CLI.md).
#[test]
fn a_helper_that_others_planted_is_never_run() {
    let Some(scene) = scene() else { return };
    let Scene { owner, stage, .. } = &scene;
    let sticky = scene.sticky();
    let work = stage.work.path();
    let ran = work.join("ran");
    // Everyone can create the mark there.
    fs::set_permissions(work, fs::Permissions::from_mode(0o777)).unwrap();
    plant(&scene, OTHER, "open", 0o777);
    plant(&scene, OWNER, "theirs", 0o777);
    plant(&scene, OTHER, "sticky", 0o1777);
    plant(&scene, OWNER, "own", 0o755);
    done(owner, "cp ../own/fusermount3 .; ln -s $PWD/../theirs link");
    let (here, there) = (work.display(), sticky.display());
    let link = format!("{}/link", owner.home.display());
    let absolute = [format!("{here}/open"), format!("{here}/theirs"), there.to_string(), link];
    let relative = [".", "", "../own", "./link"].map(str::to_owned);
    for directory in relative.iter().chain(&absolute) {
        let path = format!("PATH=\"{directory}:$PATH\"");
        done(owner, &format!("{path} $ARCHFS mount -q --keep $IMAGE mount"));
        assert_eq!(done(owner, "cat mount/hello"), "hello, world\n", "{directory}");
        done(owner, &format!("{path} $ARCHFS unmount mount"));
        assert!(!ran.exists(), "{directory}");
    }
    fs::set_permissions(work, fs::Permissions::from_mode(0o755)).unwrap();
    for directory in &absolute {
        let path = format!("PATH=\"{directory}:$PATH\"");
        let line = format!("{path} $ARCHFS mount -q --keep $IMAGE mount");
        let refused = without_helper(stage, owner, &line);
        assert_eq!(refused.status.code(), Some(4), "{directory}: {}", said(&refused));
        let expected =
            format!("archfs: error: {directory}/fusermount3: not run, because other users may");
        assert!(said(&refused).contains(&expected), "{directory}: {}", said(&refused));
        assert!(!ran.exists() && !owner.mount_point.exists(), "{directory}");
        let line = format!("{path} $ARCHFS run -q $IMAGE mount -- cat mount/hello");
        assert_eq!(out(&without_helper(stage, owner, &line)), "hello, world\n", "{directory}");
        assert!(!ran.exists(), "{directory}");
    }
}

/// > **fusermount** is run only if no user except root and the caller could have replaced it
/// > (docs/CLI.md).
///
/// > For other users fusermount3 does this, with the user's rights.
#[test]
fn the_users_own_helper_is_run_if_there_is_no_other() {
    let Some(scene) = scene() else { return };
    let Scene { owner, stage, .. } = &scene;
    plant(&scene, OWNER, "own", 0o755);
    let helper = stage.work.path().join("own/fusermount3");
    let script =
        "#!/bin/sh\necho \"$FOR_IT\" $(id -u) \"$@\" > $HOME/ran\necho x: y: no >&2\nexit 1\n";
    fs::write(&helper, script).unwrap();
    let line = "HOME=$PWD FOR_IT=found PATH=$PWD/../own:$PATH $ARCHFS mount -q --keep $IMAGE mount";
    let refused = without_helper(stage, owner, line);
    assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
    assert!(said(&refused).contains("mount: cannot mount: y: no"), "{}", said(&refused));
    let ran = fs::read_to_string(owner.home.join("ran")).unwrap();
    let expected = format!("found {OWNER} -o ro,nosuid,nodev,subtype=archfs,fsname=");
    assert!(ran.starts_with(&expected), "{ran}");
    assert!(!Path::new(&owner.mount_point).exists());
}

/// In a user namespace that maps only one user, files of all others, including root, have the same
/// owner.
#[test]
fn in_a_user_namespace_no_helper_of_an_unmapped_user_is_run() {
    let Some(scene) = scene() else { return };
    let owner = &scene.owner;
    let marks = scene.directory_of(OTHER, "marks", 0o777).join("ran");
    let theirs = scene.directory_of(OTHER, "theirs", 0o755);
    let helper = theirs.join("fusermount3");
    fs::write(&helper, format!("#!/bin/sh\n: > {}\nexit 1\n", marks.display())).unwrap();
    std::os::unix::fs::chown(&helper, Some(OTHER), Some(OTHER)).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    for unshare in ["unshare --user --map-current-user", "unshare --user"] {
        let path = format!("PATH={}:$PATH", theirs.display());
        let line = format!("{unshare} env {path} $ARCHFS mount -q --keep $IMAGE mount");
        let refused = owner.runs(&line);
        assert!(!marks.exists(), "{unshare}: {}", said(&refused));
        assert_eq!(refused.status.code(), Some(4), "{unshare}: {}", said(&refused));
        assert!(said(&refused).contains("does not map the owner of"), "{}", said(&refused));
    }
}

#[test]
fn variables_of_the_helper_and_the_loader_change_nothing() {
    let Some(Scene { _device, owner, stage: _stage, .. }) = scene() else { return };
    let odd = "_FUSE_COMMFD=0 _FUSE_COMMFD2=1 LD_LIBRARY_PATH=/nowhere LD_PRELOAD= LD_AUDIT= \
               TMPDIR=nowhere XDG_RUNTIME_DIR=/nowhere XDG_CACHE_HOME=nowhere HOME=nowhere IFS=x \
               ARCHFS_MOUNTPOINT=/nowhere";
    done(&owner, &format!("{odd} $ARCHFS mount -q --keep $IMAGE mount"));
    assert_eq!(done(&owner, "cat mount/hello"), "hello, world\n");
    done(&owner, &format!("{odd} PATH= $ARCHFS unmount mount"));
    assert!(!owner.mount_point.exists());
}

/// Runs a script of the user with the shell program `instead` at all places of the helper, and the
/// helper itself at $REAL. Only the script's namespace sees its mounts.
fn with_helper_instead(stage: &Stage, user: &User, instead: &str, script: &str) -> Output {
    let work = stage.work.path();
    fs::write(work.join("instead"), instead).unwrap();
    let mut command = Command::new("timeout");
    let replace = "cp -p /usr/bin/fusermount3 \"$REAL\" && chmod 755 \"$1\" && \
                   for it in /usr/bin /bin /usr/local/bin /usr/sbin; do \
                   for name in fusermount3 fusermount; do [ ! -e $it/$name ] || \
                   mount --bind \"$1\" $it/$name || exit 9; done; done; \
                   shift; exec \"$@\"";
    command.args(["60", "unshare", "--mount", "sh", "-c", replace, "sh"]).arg(work.join("instead"));
    let inner = user.bash(script);
    command.arg(inner.get_program()).args(inner.get_args()).current_dir(&user.home);
    command.env("ARCHFS", user.home.join("archfs")).env("IMAGE", &stage.image);
    command.env("REAL", work.join("real")).env("HOME", &user.home).output().unwrap()
}

/// Batch systems that find the processes of a job by their parents also send SIGTERM to the helper.
#[test]
fn a_helper_killed_before_unmounting_is_run_again() {
    let Some(scene) = scene() else { return };
    let Scene { owner, stage, .. } = &scene;
    let instead = "#!/bin/sh\n[ \"$1\" != -u ] || ! rm $HOME/end-1 2> /dev/null || kill -TERM $$\n\
                   [ \"$1\" != -u ] || ! rm $HOME/end-2 2> /dev/null || kill -HUP $$\n\
                   exec \"$REAL\" \"$@\"\n";
    // Unmounts both lazily and normally.
    let script = "$ARCHFS mount -q --keep $IMAGE mount && touch end-1 end-2 && \
                  $ARCHFS unmount mount && ! ls -d mount end-* 2> /dev/null && \
                  touch end-1 end-2 && $ARCHFS run -q $IMAGE mount -- cat mount/hello && \
                  ! ls -d mount end-* 2> /dev/null && ! grep $PWD/mount /proc/self/mountinfo";
    let output = with_helper_instead(stage, owner, instead, script);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!((out(&output), said(&output)), ("hello, world\n".into(), String::new()));
}

/// If SIGKILL ends a daemon that unmounts, its helper outlives it. Here it unmounts only when
/// `run` has mounted at the same mount point, unless `run` waits for it.
#[test]
fn the_helper_of_a_killed_daemon_does_not_unmount_the_next_mount() {
    let Some(scene) = scene() else { return };
    let Scene { owner, stage, .. } = &scene;
    let instead = "#!/bin/sh\n[ \"$1\" = -u ] && mkdir $HOME/first 2> /dev/null || \
                   exec \"$REAL\" \"$@\"\n\
                   until [ -e $HOME/go ]; do sleep 0.01; done\n\
                   \"$REAL\" \"$@\"\ntouch $HOME/unmounted\n";
    let script = "wait_for() { until [ -e $1 ]; do sleep 0.01; done; }\n\
                  $ARCHFS mount -q --keep $IMAGE mount || exit 9\n\
                  daemon=$($ARCHFS list --json | grep -o '\"daemon\": *[0-9]*' | grep -o '[0-9]*$')\n\
                  kill -TERM $daemon; wait_for first; kill -KILL $daemon\n\
                  $ARCHFS run -q $IMAGE mount -- sh -c '\n\
                      touch began; until [ -e unmounted ]; do sleep 0.01; done; cat mount/hello' &\n\
                  for i in $(seq 100); do [ -e began ] || sleep 0.01; done\n\
                  touch go; wait $!";
    let output = with_helper_instead(stage, owner, instead, script);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(out(&output), "hello, world\n");
}
