//! `archfs doctor`: runs the checks of `lifecycle::doctor`, and prints them as text or JSON.
//!
//! Scripts rely on the keys of the JSON (docs/CLI.md); the wording of texts and remedies may
//! change.
//!
//! Invariants: the exit status is 0 exactly if some way to mount was tried and works. Every key is
//! present on every node, and `null` if its value is unknown.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;

use super::bar::Bar;
use super::exit;
use super::term;
use crate::error::{Error, Kind, Result};
use crate::lifecycle::Interrupt;
use crate::lifecycle::doctor::{self, Check, CheckState, Failure, Node, Trial, Tried, Verdict};
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
    let trial = Trial::hold(&node.mount_parents);
    drop(bar);
    if let Some(signal) = interrupt.and_then(|interrupt| interrupt.signal()) {
        return Ok(128_u8.saturating_add(signal));
    }
    let verdict = Verdict::of(&node, &trial);
    let text = match args.json {
        true => term::json_line(&Object::of(&node, &trial, &verdict))? + "\n",
        false => {
            verdict.checks.iter().map(lines_of).chain([conclusion(&trial, &verdict)]).collect()
        }
    };
    term::written(std::io::stdout().write_all(text.as_bytes()))?;
    Ok(match trial.works() {
        true => 0,
        false => exit::of(&Error::new(Kind::CannotMount, "")),
    })
}

fn lines_of(check: &Check) -> String {
    let state = match check.state {
        CheckState::Good => "ok",
        CheckState::Note => "warning",
        CheckState::Problem => "error",
    };
    let mut lines = format!("{state:8} {}: {}\n", check.name, printable(&check.text));
    if let Some(remedy) = &check.remedy {
        lines.push_str(&format!("{:8} remedy: {}\n", "", printable(remedy)));
    }
    lines
}

/// Which ways to mount work, why the others fail, and the request to the administrator.
fn conclusion(trial: &Trial, verdict: &Verdict) -> String {
    let ways = [
        ("archfs mount", &trial.mount),
        ("archfs run", &trial.run),
        ("archfs run --private", &trial.run_private),
    ];
    let working: Vec<_> =
        ways.iter().filter(|(_, tried)| tried.is_ok()).map(|(way, _)| *way).collect();
    let mut lines = match working.is_empty() {
        true => "nothing can be mounted here; archfs ls, cat, info, verify, index and pack work\n\
                 in a job, `archfs run --or-extract DIR` extracts the archive instead\n"
            .to_owned(),
        false => format!("works here: {}\n", working.join(", ")),
    };
    // Ways that fail alike share a line.
    let mut failed: Vec<(&Failure, Vec<&str>)> = Vec::new();
    for (way, tried) in ways {
        let Err(failure) = tried else { continue };
        match failed.iter_mut().find(|(other, _)| *other == failure) {
            Some((_, ways)) => ways.push(way),
            None => failed.push((failure, vec![way])),
        }
    }
    for (Failure { said, hint, .. }, ways) in failed {
        let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        let why = printable(&(said.clone() + &hint));
        lines.push_str(&format!("fails: {}: {why}\n", ways.join(", ")));
    }
    if let Some(request) = &verdict.request {
        lines.push_str(&format!("ask the administrator: {request}\n"));
    }
    lines
}

/// The output of `--json`.
#[derive(Serialize)]
struct Object<'a> {
    version: &'static str,
    can_mount: bool,
    works: Ways<'a>,
    checks: BTreeMap<&'static str, &'a Check>,
    numbers: Numbers,
    request: Option<&'a str>,
}

#[derive(Serialize)]
struct Ways<'a> {
    mount: Way<'a>,
    run: Way<'a>,
    run_private: Way<'a>,
}

#[derive(Serialize)]
struct Way<'a> {
    works: bool,
    said: Option<&'a str>,
    hint: Option<&'a str>,
}

/// Bytes and counts.
#[derive(Serialize)]
struct Numbers {
    memory_left: Option<u64>,
    cache: u64,
    processors: usize,
    open_files: Option<u64>,
    threads_left: Option<u64>,
}

impl<'a> Object<'a> {
    fn of(node: &Node, trial: &'a Trial, verdict: &'a Verdict) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            can_mount: trial.works(),
            works: Ways {
                mount: Way::of(&trial.mount),
                run: Way::of(&trial.run),
                run_private: Way::of(&trial.run_private),
            },
            checks: verdict.checks.iter().map(|check| (check.name, check)).collect(),
            numbers: Numbers {
                memory_left: node.memory.left.map(|left| left.bytes),
                cache: node.memory.cache,
                processors: node.processors,
                open_files: node.descriptors.most,
                threads_left: node.processes.left(),
            },
            request: verdict.request.as_deref(),
        }
    }
}

impl<'a> Way<'a> {
    fn of(tried: &'a Tried) -> Self {
        let failure = tried.as_ref().err();
        Self {
            works: tried.is_ok(),
            said: failure.map(|failure| failure.said.as_str()),
            hint: failure.and_then(|failure| failure.hint.as_deref()),
        }
    }
}
