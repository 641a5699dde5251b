//! `archfs doctor`: can this node mount, and what to do if it cannot?
//!
//! `access`, `resources` and `job` describe what `lifecycle::doctor` found, and `verdict` draws the
//! conclusion.
//!
//! Invariant: the exit status is 0 exactly if some way to mount was tried and works.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

mod access;
mod check;
mod job;
mod json;
mod resources;
mod verdict;

use self::check::Check;
use self::verdict::Verdict;
use super::bar::Bar;
use super::exit;
use super::term;
use crate::error::Result;
use crate::lifecycle::Interrupt;
use crate::lifecycle::doctor::{self, Node, Steps, Trial};
use crate::log::printable;
use crate::progress::Progress;
use crate::sync::Arc;

/// Check whether this node can mount, and what to do if it cannot
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// A part of the trial, in a process of its own
    #[arg(long, hide = true, value_name = "STEP")]
    step: Option<Step>,

    /// The mount point that the step reads
    #[arg(long, hide = true, value_name = "DIRECTORY")]
    mount_point: Option<PathBuf>,
}

/// The parts of a trial that run in a process of their own.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Step {
    /// Enter a namespace.
    Namespace,
    /// List and read the mount of the trial.
    Read,
}

const HELP: &str = "\
Mounts a small archive in each way, and unmounts it. Changes nothing.

Exit status: 0 if some way to mount works, 4 if none does.

Examples:
  archfs doctor
  srun --nodes=1 archfs doctor            (on a compute node)
  archfs doctor --json | jq .works";

/// The command lines of this program for the steps of a trial.
const STEPS: Steps = Steps {
    mount: |archive, mount_point, pid| {
        let pid = pid.to_string();
        arguments(&["mount", "--quiet", "--until-pid", &pid], [archive.into(), mount_point.into()])
    },
    check: |mount_point| {
        arguments(&["doctor", "--step", "read", "--mount-point"], [mount_point.into()])
    },
    unmount: |mount_point| arguments(&["unmount", "--lazy"], [mount_point.into()]),
    run: |archive, mount_point, command| {
        let paths = [archive.into(), mount_point.into(), "--".into()];
        [arguments(&["run", "--quiet"], paths), command].concat()
    },
    run_private: |archive, mount_point, command| {
        let paths = [archive.into(), mount_point.into(), "--".into()];
        [arguments(&["run", "--private", "--quiet"], paths), command].concat()
    },
    namespace: || arguments(&["doctor", "--step", "namespace"], []),
};

fn arguments<const N: usize>(arguments: &[&str], paths: [OsString; N]) -> Vec<OsString> {
    arguments.iter().map(OsString::from).chain(paths).collect()
}

pub(super) fn run(args: &Args) -> Result<u8> {
    crate::log::start_without_warnings();
    match (args.step, &args.mount_point) {
        (Some(Step::Namespace), _) => return doctor::check_namespace().map(|()| 0),
        (Some(Step::Read), Some(mount_point)) => {
            return doctor::check_mount(mount_point).map(|()| 0);
        }
        _ => {}
    }
    // If no thread can be started, the checks report that.
    let interrupt = Interrupt::watch().ok();
    let progress = Arc::new(Progress::default());
    let bar = Bar::watch(&progress);
    progress.begin("checking this node");
    let node = Node::examine();
    progress.begin("mounting");
    let trial = Trial::hold(&node.mount_parents, &STEPS);
    drop(bar);
    if let Some(signal) = interrupt.and_then(|interrupt| interrupt.signal()) {
        return Ok(128_u8.saturating_add(signal));
    }
    let checks = checks(&node, &trial);
    let verdict = Verdict::of(&node, &trial, &checks);
    let text = match args.json {
        true => term::json_for_output(&json::object(&node, &trial, &checks, &verdict)?) + "\n",
        false => checks.iter().map(lines_of).chain([verdict.text()]).collect(),
    };
    term::written(std::io::stdout().write_all(text.as_bytes()))?;
    Ok(verdict.status())
}

/// All checks, the most important ones first.
fn checks(node: &Node, trial: &Trial) -> Vec<Check> {
    let access = access::checks(node, trial);
    access.into_iter().chain(resources::checks(node, trial)).chain(job::checks(node)).collect()
}

fn lines_of(check: &Check) -> String {
    let state = check.state.word();
    let mut lines = format!("{state:8} {}: {}\n", check.name, printable(&check.text));
    if let Some(remedy) = &check.remedy {
        lines.push_str(&format!("{:8} remedy: {}\n", "", printable(remedy)));
    }
    lines
}
