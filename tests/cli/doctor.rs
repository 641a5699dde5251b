//! `archfs doctor` names what a node lacks and how to fix it, and leaves nothing behind.
//!
//! Each test makes such a node in its own mount namespace.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::faulty::Faulty;
use crate::support::skip::skip_part;
use crate::support::stage::{Stage, Talker, said, stage};
use crate::support::user::{OpenDevice, User};
use crate::support::{HIDE_DEVICE, archfs, run, wait_until};

/// A UID that no other test uses, with access to the device.
const USER: u32 = 39;

/// An ordinary user on a node that root has changed by a script.
struct Patient {
    user: User,
    stage: Stage,
    // Dropped last.
    _device: OpenDevice,
}

/// `None` if this machine cannot mount.
fn patient() -> Option<Patient> {
    let stage = stage()?;
    let _device = OpenDevice::new();
    Some(Patient { user: User::new(&stage, USER), stage, _device })
}

impl Patient {
    /// A script of the user, after root ran `change` in a private mount namespace. $WORK is a
    /// directory for it.
    fn command(&self, change: &str, script: &str) -> Command {
        let inner = self.user.bash(script);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &format!("set -e; {change}\nexec \"$@\""), "sh"]);
        command.arg(inner.get_program()).args(inner.get_args()).current_dir(&self.user.home);
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("WORK", self.stage.work.path());
        command
    }

    /// The findings of `doctor`.
    fn examined(&self, change: &str, before: &str) -> Found {
        let script = format!("{before} exec $ARCHFS doctor --json");
        Found::of(&self.command(change, &script).output().unwrap(), change)
    }
}

/// The output of `archfs doctor --json`.
struct Found {
    status: Option<i32>,
    json: Value,
}

impl Found {
    fn of(output: &Output, what: &str) -> Self {
        let json = serde_json::from_slice(&output.stdout);
        let json = json.unwrap_or_else(|error| panic!("{what}: {error}: {}", said(output)));
        assert_eq!(said(output), "", "{what}");
        assert_nothing_left();
        Self { status: output.status.code(), json }
    }

    /// Which of mount, run and run --private work.
    fn ways(&self) -> [bool; 3] {
        ["mount", "run", "run_private"].map(|way| {
            let (works, said) =
                (&self.json["works"][way]["works"], &self.json["works"][way]["said"]);
            assert_eq!(works.as_bool().unwrap(), said.is_null(), "{way}: {said}");
            works.as_bool().unwrap()
        })
    }

    fn state(&self, check: &str) -> &str {
        self.json["checks"][check]["state"].as_str().unwrap()
    }

    fn text(&self, check: &str) -> &str {
        self.json["checks"][check]["text"].as_str().unwrap()
    }

    fn assert_ways(&self, ways: [bool; 3]) {
        assert_eq!(self.ways(), ways, "{:#}", self.json);
        let can_mount = ways.contains(&true);
        assert_eq!(self.status, Some(if can_mount { 0 } else { 4 }), "{:#}", self.json);
        assert_eq!(self.json["can_mount"], can_mount);
    }

    /// Checks that `check` has a problem with this text and remedy.
    fn assert_problem(&self, check: &str, words: &str, remedy: &str) {
        let found = &self.json["checks"][check];
        assert_eq!(found["state"], "problem", "{check}: {:#}", self.json);
        assert!(found["text"].as_str().unwrap().contains(words), "{words}: {found:#}");
        assert!(found["remedy"].as_str().unwrap().contains(remedy), "{remedy}: {found:#}");
    }

    fn asks_for(&self, words: &str) {
        let request = self.json["request"].as_str();
        assert!(request.is_some_and(|it| it.contains(words)), "{words}: {:#}", self.json);
    }
}

/// Checks that no mount or directory of a trial is left.
fn assert_nothing_left() {
    wait_until("nothing is left of a trial", || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let directories = ["/dev/shm", "/tmp"].map(|directory| fs::read_dir(directory).unwrap());
        let mut names = directories
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        !mounts.contains("archfs-doctor-") && !names.any(|name| name.starts_with("archfs-doctor-"))
    });
}

#[test]
fn root_can_mount_in_all_ways_and_json_keys_match_the_docs() {
    let Some(_stage) = stage() else { return };
    let _device = OpenDevice::new();
    let found = Found::of(&archfs().args(["doctor", "--json"]).output().unwrap(), "root");
    found.assert_ways([true, true, true]);
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let all = ["can_mount", "checks", "numbers", "request", "version", "works"];
    assert_eq!(keys(&found.json), all);
    let checks = [
        "allow-other",
        "batch",
        "container",
        "device",
        "fusermount",
        "kernel",
        "memory",
        "mounts",
        "namespaces",
        "open-files",
        "places",
        "proc",
        "processors",
        "records",
        "threads",
    ];
    assert_eq!(keys(&found.json["checks"]), checks);
    let numbers = ["cache", "memory_left", "open_files", "processors", "threads_left"];
    assert_eq!(keys(&found.json["numbers"]), numbers);
    let document = fs::read_to_string("docs/CLI.md").unwrap();
    for key in all.iter().chain(&checks).chain(&numbers) {
        assert!(document.contains(&format!("`{key}`")), "docs/CLI.md has no {key}");
    }
    assert!(found.json["request"].is_null());
    assert!(found.json["numbers"]["cache"].as_u64().unwrap() > 0);
}

#[test]
fn the_text_shows_states_remedies_and_a_verdict_last() {
    let Some(patient) = patient() else { return };
    for (change, status, last) in [
        ("", 0, "works here: archfs mount, archfs run, archfs run --private"),
        (HIDE_DEVICE, 4, if is_container() { "fails: " } else { "ask the " }),
    ] {
        let output = patient.command(change, "exec $ARCHFS doctor").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(status), "{text}{}", said(&output));
        assert!(text.lines().last().unwrap().starts_with(last), "{text}");
        let mut lines = text.lines().peekable();
        let mut checks = 0;
        while let Some(line) =
            lines.next_if(|line| !line.starts_with("works") && !line.starts_with("nothing"))
        {
            let (state, rest) = line.split_at(9);
            let state = state.trim_end();
            assert!(["ok", "warning", "error"].contains(&state), "{line}");
            assert!(rest.contains(": "), "{line}");
            checks += 1;
            let remedy = lines.next_if(|line| line.starts_with("         remedy: "));
            assert!(state != "error" || remedy.is_some(), "{line} has no remedy");
        }
        assert_eq!(checks, 15, "{text}");
    }
}

/// Whether the tests run in a container, where the remedy names other people.
fn is_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"].iter().any(|sign| Path::new(sign).exists())
}

/// The remedy for the device on this machine.
fn device_remedy(on_a_node: &str) -> &str {
    if is_container() { "--device /dev/fuse" } else { on_a_node }
}

#[test]
fn an_ordinary_user_can_mount_if_nothing_is_missing() {
    let Some(patient) = patient() else { return };
    let found = patient.examined("", "");
    found.assert_ways([true, true, true]);
    assert_eq!(found.state("fusermount"), "ok");
    assert!(
        found.text("fusermount").contains("version 3")
            || found.text("fusermount").contains("version 2")
    );
    // A user's default options do not affect the trial.
    let found = patient.examined("", "ARCHFS_SUBDIR=none ARCHFS_STAGE=/none ARCHFS_THREADS=x");
    found.assert_ways([true, true, true]);
}

#[test]
fn reports_a_missing_or_closed_device_and_what_to_ask_the_administrator() {
    let Some(patient) = patient() else { return };
    let node = |mode: &str| {
        format!("{HIDE_DEVICE}; mknod -m {mode} /dev/fuse c 10 229; mount -o remount,dev /dev")
    };
    let found = patient.examined(HIDE_DEVICE, "");
    found.assert_ways([false; 3]);
    found.assert_problem("device", "/dev/fuse does not exist", device_remedy("modprobe fuse"));
    if !is_container() {
        found.asks_for("modprobe fuse");
    }

    let found = patient.examined(&node("600"), "");
    found.assert_ways([false; 3]);
    let words = "mode 0600, owner uid 0";
    found.assert_problem("device", words, device_remedy("0666"));
    if !is_container() {
        found.asks_for("0666");
    }

    // The same setup with nothing missing: only the mode makes the difference.
    patient.examined(&node("666"), "").assert_ways([true; 3]);

    let other = format!("{HIDE_DEVICE}; cp -a /dev/null /dev/fuse");
    let found = patient.examined(&other, "");
    found.assert_ways([false; 3]);
    found.assert_problem("device", "not the FUSE device", device_remedy("c 10 229"));
}

#[test]
fn in_a_container_the_remedy_is_about_the_container() {
    let Some(patient) = patient() else { return };
    for (sign, runtime, remedy) in [
        ("APPTAINER_CONTAINER=/a.sif", "apptainer", "exec -B MOUNTPOINT"),
        ("container=podman", "podman", "--cap-add SYS_ADMIN"),
    ] {
        let found = patient.examined(HIDE_DEVICE, sign);
        found.assert_ways([false; 3]);
        found.assert_problem("device", "/dev/fuse does not exist", "--device /dev/fuse");
        found.assert_problem("container", runtime, remedy);
        assert!(found.json["request"].is_null(), "{:#}", found.json);
        assert_eq!(patient.examined("", sign).state("container"), "ok");
    }
}

#[test]
fn run_mounts_without_a_usable_fusermount() {
    let Some(patient) = patient() else { return };
    let bin = "cp -a /usr/bin $WORK/bin; chmod u+s $WORK/bin/fusermount3";
    for (change, before, words, remedy) in [
        (format!("{bin}; rm $WORK/bin/fusermount*"), "", "not found on this node", "fuse3"),
        (format!("{bin}; chmod u-s $WORK/bin/fusermount*"), "", "not set-uid root", "fuse3"),
        (format!("{bin}; echo not a program > $WORK/bin/fusermount3"), "", "does not run", "fuse3"),
        (String::new(), "exec setpriv --no-new-privs", "no_new_privs", "mount outside"),
    ] {
        let change = match change.is_empty() {
            true => change,
            false => format!("{change}; mount --bind $WORK/bin /usr/bin"),
        };
        let script = format!("{before} $ARCHFS doctor --json");
        let output = patient.command(&change, &script).output().unwrap();
        let found = Found::of(&output, words);
        found.assert_ways([false, true, true]);
        found.assert_problem("fusermount", words, remedy);
        assert!(
            found.json["checks"]["fusermount"]["remedy"]
                .as_str()
                .unwrap()
                .starts_with("use `archfs run`")
        );
        match words {
            "no_new_privs" => assert!(found.json["request"].is_null(), "{:#}", found.json),
            _ => found.asks_for("install fuse3"),
        }
        let _ = fs::remove_dir_all(patient.stage.work.path().join("bin"));
    }
    // /usr/bin is copied to a file system mounted nosuid.
    let change = "mkdir $WORK/bin; mount -t tmpfs -o nosuid none $WORK/bin; cp -a /usr/bin/. $WORK/bin; \
                  mount --bind $WORK/bin /usr/bin";
    let found = patient.examined(change, "");
    found.assert_ways([false, true, true]);
    found.assert_problem("fusermount", "nosuid", "without nosuid");
    found.asks_for("without nosuid");
}

#[test]
fn limits_of_this_process_are_no_request_to_the_administrator() {
    let Some(patient) = patient() else { return };
    for before in ["ulimit -u 3;", "ulimit -u 5;", "ulimit -n 20;", "ulimit -v 400000;"] {
        let found = patient.examined("", before);
        assert_ne!(found.state("fusermount"), "problem", "{before} {:#}", found.json);
        assert!(found.json["request"].is_null(), "{before} {:#}", found.json);
    }
    let found = patient.examined("mount -t tmpfs none /proc", "");
    assert_eq!(found.state("proc"), "problem", "{:#}", found.json);
    assert!(found.json["request"].is_null(), "{:#}", found.json);
}

#[test]
fn reports_a_time_out_of_requests() {
    let Some(patient) = patient() else { return };
    if !Path::new("/proc/sys/fs/fuse/max_request_timeout").exists() {
        return skip_part("this kernel has no time-out of FUSE requests");
    }
    let change =
        "echo 90 > $WORK/seconds; mount --bind $WORK/seconds /proc/sys/fs/fuse/max_request_timeout";
    let found = patient.examined(change, "");
    assert_eq!(found.state("kernel"), "note", "{:#}", found.json);
    let text = found.text("kernel");
    assert!(text.ends_with("does not answer a request for 90 s"), "{text}");
    assert_eq!(patient.examined("", "").state("kernel"), "ok");
}

/// Files of this file system can be read but not listed, as on a kernel before 5.1, where ENOSYS
/// from OPENDIR makes a listing fail.
#[test]
fn a_trial_mount_that_cannot_be_listed_fails() {
    let Some(stage) = stage() else { return };
    let file = stage.work.path().join("hello");
    fs::write(&file, "archfs can read this\n").unwrap();
    let mount = Faulty::new(&file, &stage.work.path().join("unlisted"));
    assert_eq!(fs::read(mount.file()).unwrap(), fs::read(&file).unwrap());
    let mount_point = mount.file().parent().unwrap();
    let output = archfs()
        .args(["doctor", "--step", "read", "--mount-point"])
        .arg(mount_point)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let expected = "unlisted: mounted, but cannot be listed: Function not implemented";
    assert!(said(&output).contains(expected), "{}", said(&output));
    // The same file on a file system that can list it.
    let listed = stage.work.path().join("listed");
    fs::create_dir(&listed).unwrap();
    fs::copy(&file, listed.join("hello")).unwrap();
    run(archfs().args(["doctor", "--step", "read", "--mount-point"]).arg(&listed));
}

/// Root of a user namespace cannot make mounts that are visible outside.
#[test]
fn reports_root_without_permission_to_mount() {
    let Some(_stage) = stage() else { return };
    let _device = OpenDevice::new();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", env!("CARGO_BIN_EXE_archfs"), "doctor", "--json"]);
    let found = Found::of(&command.output().unwrap(), "root of a user namespace");
    found.assert_ways([false, true, true]);
    found.assert_problem("fusermount", "does not permit the mount", "use `archfs run`");
    let hint = found.json["works"]["mount"]["hint"].as_str().unwrap();
    assert!(hint.contains("SYS_ADMIN") && !hint.contains("doctor"), "{hint}");
}

#[test]
fn works_with_an_empty_path_variable() {
    let Some(patient) = patient() else { return };
    patient.examined("", "PATH=").assert_ways([true; 3]);
}

/// A user namespace has its own limit on nested user namespaces. Its root is not root outside, so
/// fusermount cannot help either.
#[test]
fn names_the_setting_that_forbids_namespaces() {
    let Some(patient) = patient() else { return };
    let limit = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let map = "echo started >&2; read x; exec sh -c \"$LIMIT\" sh \"$@\"";
    let report = patient.user.home.join("report");
    let inner = patient.user.bash("$ARCHFS doctor --json > report; echo status $? >&2");
    let mut command = Command::new("unshare");
    command.args(["--user", "sh", "-c", map, "sh"]).env("LIMIT", limit);
    command.arg(inner.get_program()).args(inner.get_args()).current_dir(&patient.user.home);
    command.env("ARCHFS", patient.user.home.join("archfs"));
    let mut within = Talker::complaining(command.stdin(Stdio::piped()));
    assert_eq!(within.line(), "started");
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{}/{map}", within.pid()), "0 0 65536").unwrap();
    }
    within.write("go\n");
    let status = within.line_with("status ");
    within.end();
    let json = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let status = status.rsplit(' ').next().unwrap().parse().ok();
    let found = Found { status, json };
    assert_nothing_left();
    found.assert_ways([false; 3]);
    found.assert_problem(
        "namespaces",
        "user.max_user_namespaces is 0",
        "max_user_namespaces=15000",
    );
}

#[test]
fn reports_limits_below_what_a_mount_needs() {
    let Some(patient) = patient() else { return };
    let found = patient.examined("", "ulimit -n 40;");
    assert_eq!(found.state("open-files"), "note", "{:#}", found.json);
    assert!(found.text("open-files").starts_with("40 allowed"), "{:#}", found.json);
    found.assert_ways([true; 3]);
    // With almost no descriptors nothing works. doctor reports that and neither hangs nor crashes.
    let found = patient.examined("", "ulimit -n 9;");
    found.assert_ways([false; 3]);
    let found = patient.examined("", "ulimit -n 20;");
    found.assert_ways([false; 3]);
    found.assert_problem("open-files", "20 allowed", "ulimit -Hn");
    let found = patient.examined("", "ulimit -v 8000000;");
    assert_eq!(found.state("memory"), "note", "{:#}", found.json);
    assert!(found.text("memory").contains("ulimit -v"), "{:#}", found.json);
}

#[test]
fn reports_a_stale_mount_and_the_command_that_clears_it() {
    let Some(patient) = patient() else { return };
    let script = "$ARCHFS mount --keep -q $IMAGE mount && kill -KILL $($ARCHFS list --json | sed 's/.*daemon\":\\([0-9]*\\).*/\\1/')";
    run(&mut patient.user.bash(script));
    let found = patient.examined("", "");
    assert_eq!(found.state("mounts"), "note", "{:#}", found.json);
    assert!(found.text("mounts").contains("mount is stale"), "{:#}", found.json);
    found.assert_ways([true; 3]);
    run(&mut patient.user.bash("$ARCHFS gc -q"));
    assert_eq!(patient.examined("", "").state("mounts"), "ok");
}

#[test]
fn skips_a_directory_without_free_inodes() {
    let Some(patient) = patient() else { return };
    let found = patient.examined("mount -t tmpfs -o ro none /dev/shm", "");
    assert_eq!(found.state("places"), "note", "{:#}", found.json);
    assert!(found.text("places").contains("/dev/shm cannot be written"), "{:#}", found.json);
    found.assert_ways([true; 3]);
    // A directory can be created on a full file system, but records of mounts need space elsewhere.
    let full = "mount -t tmpfs -o size=16k,mode=1777 none /dev/shm; \
                head -c 100000 /dev/zero > /dev/shm/fill 2> /dev/null || true";
    patient.examined(full, "").assert_ways([true; 3]);
    let read_only = "mount --bind /tmp /tmp; mount -o remount,bind,ro /tmp";
    let found = patient.examined(&format!("{full}; {read_only}"), "unset TMPDIR;");
    found.assert_ways([true; 3]);
    assert!(found.text("records").contains("/var/tmp/archfs-"), "{:#}", found.json);
    // /tmp stays visible, because the program is there.
    let nowhere =
        "mount -t tmpfs -o ro none /dev/shm; mount --bind /tmp /tmp; mount -o remount,bind,ro /tmp";
    let found = patient.examined(nowhere, "unset TMPDIR;");
    found.assert_problem("places", "/tmp cannot be written", "TMPDIR");
    found.assert_ways([false; 3]);
}

#[test]
fn reports_a_batch_job() {
    let Some(patient) = patient() else { return };
    let found = patient.examined("", "SLURM_JOB_ID=12 SLURM_STEP_ID=3 SLURM_TASK_PID=$$");
    assert!(found.text("batch").starts_with("Slurm job 12, step 3; archfs unmounts when process "));
    found.assert_ways([true; 3]);
    assert!(patient.examined("", "PBS_JOBID=7.host").text("batch").starts_with("PBS job 7.host"));
}

#[test]
fn a_failed_mount_suggests_archfs_doctor() {
    let Some(patient) = patient() else { return };
    let script = "$ARCHFS mount --keep $IMAGE mount; echo $?";
    let output = patient.command(HIDE_DEVICE, script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "4\n", "{}", said(&output));
    let hint =
        said(&output).lines().find(|line| line.starts_with("archfs: hint: ")).map(str::to_owned);
    assert!(
        hint.is_some_and(
            |hint| hint.ends_with("run `archfs doctor` to see what works on this node")
        ),
        "{}",
        said(&output)
    );
    assert!(!Path::new(&patient.user.mount_point).exists());
}

/// > **Records**: `archfs doctor` names the directory for the records of mounts, and checks that it
/// > can be written.
#[test]
fn names_the_full_file_system_of_the_records() {
    let Some(patient) = patient() else { return };
    // The program and the user's directory are below /tmp, so they are bind-mounted into the new
    // one.
    let change = "mount -t tmpfs -o size=64k,mode=1777 none /mnt
                  mkdir /mnt/${WORK##*/}; mount --bind $WORK /mnt/${WORK##*/}
                  mount -t tmpfs -o size=64k,mode=1777 none /dev/shm
                  mount -t tmpfs -o size=64k,mode=1777 none /var/tmp
                  for each in /mnt /dev/shm /var/tmp; do
                      dd if=/dev/zero of=$each/full bs=4k 2> /dev/null || :
                  done
                  mount --rbind /mnt /tmp";
    let found = patient.examined(change, "unset HOME TMPDIR;");
    found.assert_problem("records", &format!("/tmp/archfs-{USER}"), "free space");
    found.assert_problem("records", "no storage space", "free space");
    let found = patient.examined("", "");
    assert_eq!(found.state("records"), "ok", "{:#}", found.json);
    assert!(found.text("records").contains(&format!("/archfs-{USER}")), "{:#}", found.json);
}

/// > If /tmp is full, the directory is in /dev/shm, /var/tmp, /run/user/UID, $TMPDIR or ~/.cache.
#[test]
fn reports_a_full_tmp_although_mounting_works() {
    let Some(patient) = patient() else { return };
    let fill = "mount -t tmpfs -o size=64k,mode=1777 none /mnt
                mkdir /mnt/${WORK##*/}; mount --bind $WORK /mnt/${WORK##*/}
                dd if=/dev/zero of=/mnt/full bs=4k 2> /dev/null || :
                mount --rbind /mnt /tmp";
    let found = patient.examined(fill, "");
    assert_eq!(found.state("records"), "note", "{:#}", found.json);
    let expected = format!("/dev/shm/archfs-{USER}");
    assert!(found.text("records").contains(&expected), "{:#}", found.json);
    found.assert_ways([true; 3]);
}
