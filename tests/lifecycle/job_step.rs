//! `archfs mount --job-step` with a fake srun that, like Slurm, starts tasks that are not its
//! children.
//!
//! tests/slurm/test-jobs and test-all-nodes use the real srun.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use crate::support::mount::{daemon_of, is_mounted, unmount};
use crate::support::{archfs, image, skip_without_user_mounts, wait_until, work_directory};

/// Starts one task, or `-n` tasks, on nodes n0, n1... A line of input goes to all tasks. Fails if a
/// variable is set that would make srun fail. The task on node STUCK does nothing.
const SRUN: &str = r#"#!/bin/sh
if [ -n "$SLURM_EXCLUSIVE" ] || [ "$SLURM_OVERLAP" != 1 ]; then
    echo "srun: error: odd environment" >&2
    exit 1
fi
for word; do case $word in -n*) count=${word#-n} ;; esac; done
while [ "${1#/}" = "$1" ]; do shift; done
mkfifo "$DIRECTORY/out"
task=0
while [ "$task" -lt "$count" ]; do
    mkfifo "$DIRECTORY/in$task"
    ( (SLURMD_NODENAME=n$task && export SLURMD_NODENAME
        [ "$STUCK" != "n$task" ] || set -- sh -c "echo archfs-step $STUCK started; exec cat > /dev/null"
        "$@" < "$DIRECTORY/in$task" 2> "$DIRECTORY/err$task" |
            sed -u "s/^/$task: /" > "$DIRECTORY/out" &) )
    task=$((task + 1))
done
exec 3<&0
( cd "$DIRECTORY" && exec tee in* <&3 > /dev/null ) &
cat "$DIRECTORY/out"
cat "$DIRECTORY"/err* >&2
"#;

struct Job {
    work: tempfile::TempDir,
    image: PathBuf,
    mount_point: PathBuf,
}

impl Job {
    fn new() -> Option<Self> {
        (!skip_without_user_mounts()).then(|| {
            let work = work_directory();
            let srun = work.path().join("bin/srun");
            fs::create_dir(work.path().join("bin")).unwrap();
            fs::write(&srun, SRUN).unwrap();
            fs::set_permissions(&srun, fs::Permissions::from_mode(0o755)).unwrap();
            let image = image::small(work.path());
            let mount_point = work.path().join("mount");
            Self { work, image, mount_point }
        })
    }

    /// `archfs` as in the batch script of a job with `nodes` nodes.
    fn archfs(&self, nodes: usize) -> Command {
        let (own, path) = (self.work.path().join("bin"), std::env::var("PATH").unwrap());
        let path = format!("{}:{path}", own.display());
        let mut command = archfs();
        command
            .env("PATH", path)
            .env("DIRECTORY", self.work.path())
            .env("SLURM_JOB_ID", "12")
            .env("SLURMD_NODENAME", "n0")
            .env("SLURM_JOB_NUM_NODES", nodes.to_string())
            .env("SLURM_EXCLUSIVE", "1");
        command
    }

    fn mount(&self, nodes: usize, options: &[&str], archive: &Path) -> Output {
        let mut command = self.archfs(nodes);
        command.arg("mount").args(options).arg(archive).arg(&self.mount_point).output().unwrap()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_mount_of_a_job_step_outlives_srun() {
    let Some(job) = Job::new() else { return };
    let output = job.mount(1, &["--job-step=always"], &job.image);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("until job 12 ends"), "{}", said(&output));
    assert!(is_mounted(&job.mount_point));
    let daemon = daemon_of(&job.mount_point).unwrap();
    let words = fs::read_to_string(format!("/proc/{daemon}/cmdline")).unwrap();
    assert!(words.contains("--daemon=step"), "{words:?}");
    unmount(&job.mount_point);
}

#[test]
fn a_failed_step_returns_the_message_and_status_of_the_daemon() {
    let Some(job) = Job::new() else { return };
    let output = job.mount(1, &["--job-step=always"], Path::new("/etc/passwd"));
    let without = job.mount(1, &["--job-step=never"], Path::new("/etc/passwd"));
    assert_eq!((output.status.code(), said(&output)), (Some(3), said(&without)));
    assert!(!job.mount_point.exists());
}

#[test]
fn every_failed_node_is_named() {
    let Some(job) = Job::new() else { return };
    let output = job.mount(2, &["--all-nodes"], Path::new("/etc/passwd"));
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let expected = "2 of 2 nodes cannot mount (n0, n1)";
    assert!(said(&output).contains(expected), "{}", said(&output));
}

#[test]
fn a_launcher_that_is_killed_leaves_nothing_mounted() {
    let Some(job) = Job::new() else { return };
    let mut launcher = job
        .archfs(2)
        .args(["mount", "--all-nodes"])
        .args([&job.image, &job.mount_point])
        .env("STUCK", "n1")
        .spawn()
        .unwrap();
    wait_until("the first node is mounted", || is_mounted(&job.mount_point));
    // Until it is ready and waits for the launcher.
    thread::sleep(Duration::from_millis(300));
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    wait_until("the first node is unmounted", || !job.mount_point.exists());
    assert!(!is_mounted(&job.mount_point));
}

#[test]
fn job_step_always_fails_if_srun_fails() {
    let Some(job) = Job::new() else { return };
    fs::write(
        job.work.path().join("bin/srun"),
        "#!/bin/sh\necho 'srun: error: busy' >&2\nexit 1\n",
    )
    .unwrap();
    let output = job.mount(1, &["--job-step=always"], &job.image);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("cannot start a job step: srun: busy"), "{}", said(&output));
    assert!(!job.mount_point.exists());
}

#[test]
fn all_nodes_requires_a_step_and_a_job() {
    let mut command = archfs();
    let output = command.args(["mount", "--all-nodes", "--job-step=never", "a", "b"]).output();
    assert_eq!(output.unwrap().status.code(), Some(2));
    let mut command = archfs();
    let output =
        command.args(["mount", "--all-nodes", "a", "b"]).env_remove("SLURM_JOB_ID").output();
    assert_eq!(output.unwrap().status.code(), Some(4));
}
