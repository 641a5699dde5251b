//! srun as a child process: its options, its output, and how to end it without ending the step.
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

use super::environment::{Job, is_removed};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::plan::{DaemonPlan, StepTask};
use crate::os::process;
use crate::os::raw_signals::Mask;

/// How long to wait for a process to end.
const TERM_LIMIT: Duration = Duration::from_secs(2);

/// How often to check whether a process has ended.
const CHECK_AGAIN: Duration = Duration::from_millis(5);

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

    /// Sends the plan to all tasks.
    pub(super) fn send_plan(&mut self, plan: &DaemonPlan<StepTask>) -> Result<()> {
        self.write(|input| plan.write_to(input))
    }

    /// Sends a word to all tasks.
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
    let of = |parent: i32| children(parent).into_iter().map(move |pid| Descendant { pid, parent });
    let mut found: Vec<_> = of(pid).collect();
    let mut next = 0;
    while let Some(child) = found.get(next) {
        let pid = child.pid;
        found.extend(of(pid));
        next += 1;
    }
    found
}

fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists: Option<Vec<String>> =
        tasks.map(|task| fs::read_to_string(task.path().join("children")).ok()).collect();
    match lists {
        Some(lists) => {
            lists.iter().flat_map(|list| list.split_whitespace()).flat_map(str::parse).collect()
        }
        // The kernel has no CONFIG_PROC_CHILDREN.
        None => fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|child| process::stat(*child).is_some_and(|stat| stat.parent == pid))
            .collect(),
    }
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
}
