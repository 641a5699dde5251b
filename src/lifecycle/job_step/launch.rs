//! The launcher's side of a step: starts the tasks, waits for their reports, shows their output.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use super::super::registry;
use super::progress::{BEGIN, HOLD, Message, Progress, Reports, without_label};
use super::srun::{Job, Nodes, Printed, Srun};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::plan::{DaemonPlan, StepTask};
use crate::lifecycle::ready::Ready;
use crate::log::{Label, parse_line};

/// How long srun may take to start the tasks, and how long a task may be silent after that. An idle
/// controller answers within 0.3 s.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long the tasks may take to unmount.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(60);

pub(super) enum End {
    Done,
    /// These nodes failed, with the highest exit status.
    Failed(Vec<String>, u8),
    /// No task ran.
    NoStep(String),
}

pub(super) struct Launch {
    srun: Srun,
    expected: usize,
    reports: Reports,
    /// The first error that srun itself printed.
    srun_error: Option<String>,
    hints: HashSet<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitOutcome {
    Reached,
    TimedOut,
    SrunEnded,
}

impl Launch {
    pub(super) fn start(job: &Job, nodes: Nodes, arguments: &[OsString]) -> Result<Self> {
        let program = std::env::current_exe()
            .map_err(|error| Error::io("cannot find the archfs executable", error))?;
        let srun = Srun::start(job, nodes, program.as_os_str(), arguments)?;
        let expected = if nodes == Nodes::All { job.nodes } else { 1 };
        let (reports, hints) = (Reports::new(expected), HashSet::new());
        Ok(Self { srun, expected, reports, srun_error: None, hints })
    }

    pub(super) fn mount(
        mut self,
        mount_point: &Path,
        plan: &DaemonPlan<StepTask>,
        ready: &mut Ready,
    ) -> Result<End> {
        let has_started = |progress| progress == Progress::Started;
        if let Some(why) = self.wait_for_start(has_started) {
            self.srun.cancel();
            return Ok(End::NoStep(why));
        }
        // From now on tasks may have mounted, so the end of srun must not make Slurm kill them.
        self.srun.kill_shepherd();
        self.srun.send_plan(plan)?;
        self.srun.send(BEGIN)?;
        let is_decided = |progress| matches!(progress, Progress::Ready | Progress::Failed(_));
        self.reports.restart_clocks(Instant::now());
        if self.wait(is_decided, None) == WaitOutcome::SrunEnded {
            return self.fail_without_report();
        }
        if let Some((failed, status)) = self.reports.failed() {
            self.unmount_all();
            return Ok(End::Failed(failed, status));
        }
        if std::fs::symlink_metadata(mount_point).is_err()
            || !registry::mount_state(mount_point)?.is_mounted()
        {
            self.unmount_all();
            return Ok(End::NoStep("mounts of job steps are not visible in this script".into()));
        }
        if let Err(error) = ready.announce() {
            self.unmount_all();
            return Err(error);
        }
        self.srun.send(HOLD)?;
        let is_holding = |progress| progress == Progress::Holding;
        let waited = self.wait(is_holding, Some(START_LIMIT));
        if waited != WaitOutcome::Reached {
            self.srun.leave_step();
            let context = match self.reports.behind(is_holding).join(", ") {
                nodes if nodes.is_empty() => "the job step".to_owned(),
                nodes => nodes,
            };
            let context = format!("{context}: stopped answering; the mount may be stale");
            return Err(Error::new(Kind::Io, context).with_hint("run `archfs unmount --all-nodes`"));
        }
        self.srun.leave_step();
        Ok(End::Done)
    }

    pub(super) fn unmount(mut self) -> Result<End> {
        if let Some(why) = self.wait_for_start(|_| true) {
            self.srun.cancel();
            return Ok(End::NoStep(why));
        }
        self.srun.send(BEGIN)?;
        let is_decided = |progress| matches!(progress, Progress::Done | Progress::Failed(_));
        let waited = self.wait(is_decided, Some(UNMOUNT_LIMIT));
        self.srun.close_input();
        self.drain(Duration::from_secs(5));
        let end = match self.reports.failed() {
            Some((failed, status)) => End::Failed(failed, status),
            None if waited == WaitOutcome::Reached => End::Done,
            None => return self.fail_without_report(),
        };
        self.srun.finish();
        Ok(end)
    }

    /// Waits until all tasks have started; returns the reason if they have not.
    fn wait_for_start(&mut self, has_started: impl Fn(Progress) -> bool) -> Option<String> {
        let waited = self.wait(has_started, Some(START_LIMIT));
        let why = match waited {
            WaitOutcome::Reached => return None,
            WaitOutcome::SrunEnded => "srun: exited".to_owned(),
            WaitOutcome::TimedOut => {
                let (count, expected) = (self.reports.count(), self.expected);
                format!("srun: {count} of {expected} tasks started in {} s", START_LIMIT.as_secs())
            }
        };
        Some(self.srun_error.clone().unwrap_or(why))
    }

    /// Reads the output of srun until `is_reached` holds for all nodes, at most for `limit`.
    /// Without a limit, a node that is silent for `START_LIMIT` has failed.
    fn wait(
        &mut self,
        is_reached: impl Fn(Progress) -> bool,
        limit: Option<Duration>,
    ) -> WaitOutcome {
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            if self.reports.all(&is_reached) {
                return WaitOutcome::Reached;
            }
            let now = Instant::now();
            let pause = match deadline {
                Some(deadline) if now >= deadline => return WaitOutcome::TimedOut,
                Some(deadline) => deadline.saturating_duration_since(now),
                None => Duration::from_secs(1),
            };
            match self.srun.next(pause) {
                Ok(printed) => self.process_line(printed),
                Err(RecvTimeoutError::Disconnected) => {
                    return match self.reports.all(&is_reached) {
                        true => WaitOutcome::Reached,
                        false => WaitOutcome::SrunEnded,
                    };
                }
                Err(RecvTimeoutError::Timeout) if deadline.is_none() => {
                    let is_waited_for = |progress| !is_reached(progress);
                    let now = Instant::now();
                    for node in self.reports.give_up_silent(is_waited_for, now, START_LIMIT) {
                        let limit = START_LIMIT.as_secs();
                        log::error!("{node}: the daemon has not answered for {limit} s");
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn process_line(&mut self, printed: Printed) {
        match printed {
            Printed::Output(line) => {
                if let Some(message) = Message::parse(&line) {
                    self.reports.note(message, Instant::now());
                }
            }
            Printed::Error(line) => {
                let text = without_label(&line);
                if text.starts_with("srun: ") || text.starts_with("slurmstepd") {
                    log::info!("{text}");
                    let message = text.split_once("error: ").map_or(text, |(_, message)| message);
                    self.srun_error.get_or_insert_with(|| format!("srun: {message}"));
                } else {
                    self.show(text);
                }
            }
        }
    }

    /// Shows a line of a daemon's standard error, which names its node.
    fn show(&mut self, text: &str) {
        // Several nodes may print the same hint; show it once.
        if let Some((Label::Hint, hint)) = parse_line(text)
            && !self.hints.insert(hint.to_owned())
        {
            return;
        }
        // An error on standard error cannot be reported anywhere.
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    fn unmount_all(mut self) {
        self.srun.close_input();
        self.drain(UNMOUNT_LIMIT);
        self.srun.finish();
    }

    fn drain(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while let Ok(printed) = self.srun.next(deadline.saturating_duration_since(Instant::now())) {
            self.process_line(printed);
        }
    }

    fn fail_without_report(self) -> Result<End> {
        let why = self.srun_error.clone().unwrap_or_else(|| "exited".to_owned());
        let why = why.strip_prefix("srun: ").unwrap_or(&why).to_owned();
        self.unmount_all();
        let context = format!("srun: the job step ended before it reported: {why}");
        Err(Error::new(Kind::Io, context)
            .with_hint("if memory ran out, lower --cache or --threads"))
    }
}
