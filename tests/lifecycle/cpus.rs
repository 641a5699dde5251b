//! The CPU cores of the daemon.

use std::fs;
use std::process::Command;

use crate::support::skip::skip_part;
use crate::support::stage::{Stage, stage};
use crate::support::{archfs, run};

/// The CPU cores of a thread, in the list format of cpuset(7); `None` if it has ended.
fn cores(task: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Some(line.unwrap().trim().to_owned())
}

/// The cores of all threads of the daemon, each list once.
fn cores_of_daemon(stage: &Stage) -> Vec<String> {
    let daemon = stage.daemon().as_raw_pid();
    let tasks = fs::read_dir(format!("/proc/{daemon}/task")).unwrap();
    let ids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<_> = ids.filter_map(|id| cores(&format!("{daemon}/task/{id}"))).collect();
    assert!(!found.is_empty(), "the daemon has ended");
    found.sort();
    found.dedup();
    found
}

/// The last core of this process, and all of them.
fn last_and_own() -> (String, String) {
    let own = cores("self").unwrap();
    let last = own.rsplit([',', '-']).next().unwrap().to_owned();
    if last == own {
        skip_part("there is one CPU core, which is used with and without --cpus");
    }
    (last, own)
}

/// All cores that a process here can choose, even if this one is bound to fewer.
fn all() -> String {
    let mut taskset = Command::new("taskset");
    let output =
        run(taskset.args(["-c", "0-1023", "grep", "Cpus_allowed_list", "/proc/self/status"]));
    String::from_utf8(output.stdout).unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn all_threads_of_the_daemon_run_on_the_named_cores() {
    let Some(stage) = stage() else { return };
    let (last, _) = last_and_own();
    let cpus = format!("--cpus={last}");
    run(archfs()
        .args(["mount", "-q", "--keep", &cpus, "small.sqfs", "mount"])
        .current_dir(stage.work.path()));
    stage.assert_readable();
    assert_eq!(cores_of_daemon(&stage), [last]);
}

#[test]
fn a_bound_task_can_let_the_daemon_use_all_cores() {
    let Some(stage) = stage() else { return };
    let (last, _) = last_and_own();
    for (cpus, expected) in [("--cpus=all", &all()), ("--linger=0", &last)] {
        run(Command::new("taskset")
            .args([
                "-c",
                &last,
                env!("CARGO_BIN_EXE_archfs"),
                "mount",
                "-q",
                "--keep",
                cpus,
                "small.sqfs",
                "mount",
            ])
            .current_dir(stage.work.path()));
        assert_eq!(cores_of_daemon(&stage).as_slice(), std::slice::from_ref(expected));
        run(archfs().arg("unmount").arg(stage.work.path().join("mount")));
    }
}

#[test]
fn the_command_keeps_its_cores() {
    let Some(stage) = stage() else { return };
    let (last, own) = last_and_own();
    let output = run(archfs()
        .args(["run", "-q", &format!("--cpus={last}"), "small.sqfs", "mount", "--"])
        .args(["grep", "Cpus_allowed_list", "/proc/self/status"])
        .current_dir(stage.work.path()));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("Cpus_allowed_list:\t{own}\n"));
}

#[test]
fn a_core_that_the_job_does_not_have_is_an_error() {
    let Some(stage) = stage() else { return };
    let output = archfs()
        .args(["mount", "--keep", "--cpus=0,1023", "small.sqfs", "mount"])
        .current_dir(stage.work.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let expected = "archfs: error: CPU cores 0,1023: this job has only ";
    assert!(
        stderr.starts_with(expected) && stderr.contains("hint: name some of these"),
        "{stderr}"
    );
    assert!(stage.is_gone());
}

/// A group with all cores and this test's processes, which is removed at the end.
struct Group(std::path::PathBuf);

impl Group {
    /// `None`, with a message, if this process may not make one.
    fn of_a_job() -> Option<Self> {
        let directory = format!("/sys/fs/cgroup/cpuset/archfs-test-{}", std::process::id());
        let group = Self(directory.into());
        let copied = |name: &str| fs::read(format!("/sys/fs/cgroup/cpuset/{name}"));
        let made = fs::create_dir(&group.0).and_then(|()| {
            fs::write(group.0.join("cpuset.cpus"), copied("cpuset.cpus")?)?;
            fs::write(group.0.join("cpuset.mems"), copied("cpuset.mems")?)
        });
        if let Err(error) = made {
            skip_part(&format!("no control group with cores (cgroup v1, root): {error}"));
            return None;
        }
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// In a batch job whose control group names its cores, the daemon uses all of them.
#[test]
fn in_a_job_the_daemon_uses_the_cores_of_its_control_group() {
    let Some(stage) = stage() else { return };
    let (last, _) = last_and_own();
    let Some(group) = Group::of_a_job() else { return };
    let join = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", group.0.display());
    for (job, is_inside, expected) in
        [("PBS_JOBID", true, &all()), ("PBS_JOBID", false, &last), ("OTHER", true, &last)]
    {
        let join = if is_inside { join.as_str() } else { "exec \"$@\"" };
        run(Command::new("sh")
            .args(["-c", join, "sh", "taskset", "-c", &last])
            .args([env!("CARGO_BIN_EXE_archfs"), "mount", "-q", "--keep", "small.sqfs", "mount"])
            .env(job, "1")
            .current_dir(stage.work.path()));
        assert_eq!(
            cores_of_daemon(&stage).as_slice(),
            std::slice::from_ref(expected),
            "{job}, in the group: {is_inside}"
        );
        run(archfs().arg("unmount").arg(stage.work.path().join("mount")));
    }
}
