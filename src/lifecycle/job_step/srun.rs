//! srun as a child process: its job, options, variables and output, and how to end it without
//! ending the step.
//!
//! srun forks a "shepherd". If srun vanishes, the shepherd asks the controller to send SIGKILL to
//! the step. At the end of a batch script Slurm kills srun and its shepherd one by one. If srun
//! dies first, the daemon gets SIGKILL before SIGTERM, and its mount is stale.
//!
//! So archfs leaves no srun running: it kills the shepherd when the tasks have started, and srun
//! when they keep the mount. The step continues without srun, and Slurm ends it in order: SIGCONT,
//! SIGTERM, and SIGKILL after KillWait.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Error, Kind, Result};
use crate::lifecycle::plan::{DaemonPlan, StepTask};
use crate::os::process;
use crate::os::signal::Mask;

/// How long to wait for a process to end.
const TERM_LIMIT: Duration = Duration::from_secs(2);

/// How often to check whether a process has ended.
const CHECK_AGAIN: Duration = Duration::from_millis(5);

/// The job of the batch script that runs archfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) id: String,
    /// The name of this node in Slurm.
    pub(super) node: String,
    /// The number of nodes of the job.
    pub(super) nodes: usize,
    pub(super) is_het: bool,
}

impl Job {
    /// The job of a batch script with the variables that `lookup` returns.
    pub(super) fn of_batch_script(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let refused = |why: &str| {
            Error::new(Kind::CannotMount, format!("cannot start a job step: {why}"))
                .with_hint("run this command in the batch script of a Slurm job, outside srun")
        };
        let id = lookup("SLURM_JOB_ID").ok_or_else(|| refused("not in a Slurm job"))?;
        if lookup("SLURM_STEP_ID").is_some_and(|step| step.parse::<u32>().is_ok()) {
            return Err(refused("already in a job step"));
        }
        // In a shell of salloc on a login node, the step would mount on another node.
        let node = lookup("SLURMD_NODENAME").ok_or_else(|| refused("not on a compute node"))?;
        let nodes = lookup("SLURM_JOB_NUM_NODES").or_else(|| lookup("SLURM_NNODES"));
        let nodes = nodes.and_then(|count| count.parse().ok()).unwrap_or(1);
        Ok(Self { id, node, nodes, is_het: lookup("SLURM_HET_SIZE").is_some() })
    }

    /// Whether Slurm kills the daemons of this job's script when the script ends. `group` describes
    /// the control group of this process.
    pub(super) fn is_tracked(&self, group: Option<&str>) -> bool {
        group == Some(format!("job {}", self.id).as_str())
    }
}

/// The nodes of the job on which a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// The node of the batch script.
    This,
    /// All nodes.
    All,
}

/// A line of output of srun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Printed {
    Output(String),
    Error(String),
}

/// A running srun.
#[derive(Debug)]
pub(super) struct Srun {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Printed>,
}

impl Srun {
    /// Starts `program ARGUMENTS` as a step of `job`, one task on each of `nodes`.
    pub(super) fn start(
        job: &Job,
        nodes: Nodes,
        program: &OsStr,
        arguments: &[OsString],
    ) -> Result<Self> {
        let mut command = Command::new("srun");
        command.args(options(job, nodes)).arg(program).args(arguments);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(is_removed) {
                command.env_remove(name);
            }
        }
        // A variable instead of --overlap, because an old srun rejects unknown options.
        command.env("SLURM_OVERLAP", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A process group of its own: srun must not get Ctrl-C and other signals to the group of
        // the script, because it would pass them on.
        command.process_group(0).current_dir("/");
        Mask::none().pass_to(&mut command);
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::new(Kind::CannotMount, "srun: not found in PATH"),
            _ => Error::io("cannot start srun", error),
        })?;
        let (sender, lines) = channel();
        if let Some(output) = child.stdout.take() {
            forward(output, sender.clone(), Printed::Output);
        }
        if let Some(errors) = child.stderr.take() {
            forward(errors, sender, Printed::Error);
        }
        Ok(Self { input: child.stdin.take(), child, lines })
    }

    /// The next line; `Disconnected` after the last one.
    pub(super) fn next(&self, limit: Duration) -> std::result::Result<Printed, RecvTimeoutError> {
        self.lines.recv_timeout(limit)
    }

    pub(super) fn send_plan(&mut self, plan: &DaemonPlan<StepTask>) -> Result<()> {
        self.write(|input| plan.write_to(input))
    }

    pub(super) fn send(&mut self, word: &str) -> Result<()> {
        self.write(|input| input.write_all(format!("{word}\n").as_bytes()))
    }

    fn write(&mut self, write: impl FnOnce(&mut ChildStdin) -> io::Result<()>) -> Result<()> {
        let failed = |error| Error::io("srun has exited", error);
        self.input.as_mut().map_or(Ok(()), write).map_err(failed)
    }

    /// Closes the standard input of all tasks.
    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// Kills the shepherd, so that the end of srun does not end the step.
    ///
    /// The shepherd is a process without children that runs the same program as its parent. srun
    /// itself is not, even if the site's srun is a script that runs the real one.
    pub(super) fn kill_shepherd(&self) {
        let found = self.pid().map(descendants).unwrap_or_default();
        let is_parent = |pid: i32| found.iter().any(|other| other.parent == pid);
        let program = |pid: i32| fs::read_link(format!("/proc/{pid}/exe")).ok();
        for Descendant { pid, parent } in &found {
            if !is_parent(*pid) && program(*pid).is_some() && program(*pid) == program(*parent) {
                kill_and_wait(*pid);
            }
        }
    }

    /// Kills the shepherd and then srun; the step continues.
    pub(super) fn leave_step(mut self) {
        self.kill_shepherd();
        // Children before their parents.
        for Descendant { pid, .. } in self.pid().map(descendants).unwrap_or_default().iter().rev() {
            kill_and_wait(*pid);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends srun, and with it the step or, if that has not started, its request to the controller.
    pub(super) fn cancel(mut self) {
        drop(self.input.take());
        if let Some(pid) = self.pid().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        self.reap_within(TERM_LIMIT);
    }

    /// Waits until srun has exited, which it does when all tasks have; kills it after `TERM_LIMIT`.
    pub(super) fn finish(mut self) {
        drop(self.input.take());
        self.reap_within(TERM_LIMIT);
    }

    fn reap_within(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() >= deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(CHECK_AGAIN);
        }
    }

    fn pid(&self) -> Option<i32> {
        i32::try_from(self.child.id()).ok()
    }
}

/// The options of srun. `--exact` is not one of them, because it would bind the daemon to one CPU
/// core.
fn options(job: &Job, nodes: Nodes) -> Vec<OsString> {
    let count = match nodes {
        Nodes::This => 1,
        Nodes::All => job.nodes,
    };
    let mut options: Vec<OsString> = Vec::new();
    if job.is_het {
        options.push("--het-group=0".into());
    }
    options.extend([format!("-N{count}").into(), format!("-n{count}").into()]);
    if nodes == Nodes::This {
        options.push(format!("--nodelist={}", job.node).into());
    }
    let fixed = [
        "--ntasks-per-node=1",
        "--mem=0",
        "--gres=none",
        "--mpi=none",
        "--export=ALL",
        "--chdir=/",
        "--job-name=archfs",
        "--label",
        "--quiet",
        // Without this, the failure of one node would make Slurm kill the daemons of the others.
        "--kill-on-bad-exit=0",
        "--wait=0",
    ];
    options.extend(fixed.map(OsString::from));
    options
}

/// Prefixes of variables that Slurm and MPI launchers set and that srun would read as options.
const REMOVED: [&str; 6] = ["SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SALLOC_", "PMI"];

/// Variables with these prefixes that srun needs to find the controller and the job.
const KEPT: [&str; 2] = ["SLURM_CONF", "SLURM_JOB_ID"];

/// Whether to remove the variable `name` from the environment of srun.
///
/// srun reads options from the environment, but the variables of a batch script describe the whole
/// job: SLURM_EXCLUSIVE, SLURM_MEM_PER_CPU, SLURM_GPUS and a dozen others make the step fail at
/// once.
fn is_removed(name: &str) -> bool {
    !KEPT.contains(&name) && REMOVED.iter().any(|prefix| name.starts_with(prefix))
}

/// Starts a thread that sends each line of `source` to `sender`.
fn forward(
    source: impl Read + Send + 'static,
    sender: Sender<Printed>,
    printed: fn(String) -> Printed,
) {
    let _ = thread::Builder::new().name("srun".into()).spawn(move || {
        let mut source = BufReader::new(source);
        let mut line = Vec::new();
        while source.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
            if sender.send(printed(text)).is_err() {
                return;
            }
            line.clear();
        }
    });
}

/// A child, grandchild and so on of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descendant {
    pid: i32,
    parent: i32,
}

/// The children of `pid`, their children and so on, parents first.
fn descendants(pid: i32) -> Vec<Descendant> {
    let of =
        |parent| process::children(parent).into_iter().map(move |pid| Descendant { pid, parent });
    let mut found: Vec<_> = of(pid).collect();
    let mut next = 0;
    while let Some(child) = found.get(next) {
        let pid = child.pid;
        found.extend(of(pid));
        next += 1;
    }
    found
}

/// Kills a process and waits until it has ended, though its parent may not have reaped it.
fn kill_and_wait(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, Signal::KILL);
    }
    let deadline = Instant::now() + TERM_LIMIT;
    while process::ProcessId::of(pid).is_ok() && Instant::now() < deadline {
        thread::sleep(CHECK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_name_one_node_or_count_all() {
        let job = Job { id: "1".into(), node: "n1".into(), nodes: 4, is_het: true };
        let this = options(&job, Nodes::This);
        assert_eq!(this[..4], ["--het-group=0", "-N1", "-n1", "--nodelist=n1"]);
        let all = options(&Job { is_het: false, ..job }, Nodes::All);
        assert_eq!(all[..3], ["-N4", "-n4", "--ntasks-per-node=1"]);
    }

    #[test]
    fn finds_children_of_children() {
        let mut shell = Command::new("sh")
            .args(["-c", "sh -c 'echo ready; cat; :'; :"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        // The inner shell runs; its cat may start a moment later.
        let pid = i32::try_from(shell.id()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while descendants(pid).len() < 2 {
            assert!(Instant::now() < deadline, "{:?}", descendants(pid));
            thread::yield_now();
        }
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(descendants(pid).is_empty());
    }

    const BATCH: [(&str, &str); 3] =
        [("SLURM_JOB_ID", "12"), ("SLURMD_NODENAME", "n1"), ("SLURM_JOB_NUM_NODES", "4")];

    fn job(more: &[(&str, &str)], without: &str) -> Result<Job> {
        let all = [&BATCH, more].concat();
        Job::of_batch_script(&|name| {
            let found = all.iter().rev().find(|(key, _)| *key == name && name != without);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn removes_all_slurm_variables_except_those_that_find_the_job() {
        for name in [
            "SLURM_EXCLUSIVE",
            "SLURM_MEM_PER_CPU",
            "SLURM_CLUSTERS",
            "SLURM_JOB_ID_OF_OTHERS",
            "SLURMD_NODENAME",
            "SRUN_CPUS_PER_TASK",
            "SBATCH_ACCOUNT",
            "SALLOC_ACCOUNT",
            "PMI_RANK",
            "PMIX_RANK",
        ] {
            assert!(is_removed(name), "{name}");
        }
        for name in ["SLURM_CONF", "SLURM_JOB_ID", "PATH", "ARCHFS_CACHE", "MY_SLURM_FILE"] {
            assert!(!is_removed(name), "{name}");
        }
    }

    #[test]
    fn a_batch_script_on_a_compute_node_has_a_job() {
        let found = job(&[], "").unwrap();
        assert_eq!(found, Job { id: "12".into(), node: "n1".into(), nodes: 4, is_het: false });
        assert!(job(&[("SLURM_STEP_ID", "batch"), ("SLURM_HET_SIZE", "2")], "").unwrap().is_het);
        assert_eq!(job(&[], "SLURM_JOB_NUM_NODES").unwrap().nodes, 1);
    }

    #[test]
    fn steps_login_nodes_and_other_shells_have_no_job() {
        assert!(job(&[("SLURM_STEP_ID", "0")], "").is_err());
        // The interactive step of salloc.
        assert!(job(&[("SLURM_STEP_ID", "4294967290")], "").is_err());
        assert!(job(&[], "SLURMD_NODENAME").is_err());
        assert!(job(&[], "SLURM_JOB_ID").is_err());
    }

    #[test]
    fn is_tracked_only_by_the_control_group_of_its_own_script() {
        let found = job(&[], "").unwrap();
        assert!(found.is_tracked(Some("job 12")));
        assert!(!found.is_tracked(None), "proctrack/linuxproc");
        assert!(!found.is_tracked(Some("job 13")), "variables of another job");
        assert!(!found.is_tracked(Some("step 0 of job 12")));
    }
}
