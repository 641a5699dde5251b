//! `archfs mount`: mounts in the background for as long as the job needs it.

use std::any::Any;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use super::args::{LIFETIME, SLURM};
use super::bar::Bar;
use super::{args, term};
use crate::batch_job;
use crate::error::{Error, Kind, Result};
use crate::lifecycle::{
    self, Holder, HolderChoice, JobStepChoice, MountOutcome, MountPlan, Nodes, ProcessId, Ready,
    StepOutcome,
};
use crate::log::Verbosity;
use crate::progress::Progress;
use crate::sync::Arc;

/// Mount archives; returns when their files can be read
#[derive(Debug, clap::Args)]
#[command(override_usage = "archfs mount [OPTIONS] ARCHIVE... MOUNTPOINT", after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    mount: args::MountArgs,

    /// Unmount when process PID exits [default: the batch script, else the calling process]
    #[arg(help_heading = LIFETIME, hide_short_help = true, long, value_name = "PID", conflicts_with = "keep")]
    until_pid: Option<i32>,

    /// Stay mounted until `archfs unmount`
    #[arg(help_heading = LIFETIME, long)]
    keep: bool,

    /// Stay in the foreground until SIGTERM, SIGINT, SIGHUP or `archfs unmount`
    #[arg(help_heading = LIFETIME, hide_short_help = true, long, short)]
    foreground: bool,

    /// Write the line "ready" to this descriptor when files can be read
    #[arg(help_heading = LIFETIME, hide_short_help = true, long, value_name = "N")]
    ready_fd: Option<u32>,

    /// Run the daemon as a step of the Slurm job, so that Slurm ends it in order [default: in a
    /// batch script, where Slurm tracks processes by control groups]
    #[arg(
        help_heading = SLURM,
        hide_short_help = true,
        long,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true,
        env = "ARCHFS_JOB_STEP"
    )]
    job_step: JobStepName,

    /// Mount on every node of the Slurm job; return when all mounts can be read
    #[arg(help_heading = SLURM, long, conflicts_with_all = ["foreground", "until_pid"])]
    all_nodes: bool,

    /// mount(8) calls, or another program that takes archfs for a mount helper
    #[arg(long, hide = true, conflicts_with_all = ["until_pid", "all_nodes"])]
    mount_helper: bool,
}

/// When the daemon runs as a job step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum JobStepName {
    Auto,
    Always,
    Never,
}

const EXAMPLES: &str = "\
In a job script the first two lines are enough. archfs unmounts when the script ends.

Examples:
  P=/dev/shm/$USER-$SLURM_JOB_ID                   (a mount point for this job)
  archfs mount data.sqfs $P && python train.py $P

  archfs mount shard-*.tar extra.sqfs $P           (one tree; later ones win)
  archfs mount --nested ILSVRC2012_img_train.tar $P
  archfs mount --stage /dev/shm data.sqfs $P       (copied to this node)
  archfs mount --all-nodes data.sqfs $P            (on all nodes of a Slurm job)
  archfs mount --keep data.sqfs $P && ls $P && archfs unmount $P";

pub(super) fn run(args: &Args) -> Result<u8> {
    let mut ready = Ready::new(args.ready_fd, args.mount.notify_pipe()?);
    let mounted = ready.check().and_then(|()| mount(args, &mut ready));
    if !matches!(mounted, Ok(0)) {
        // The user sees the error of the mount.
        let _ = ready.report_failure();
    }
    mounted
}

/// Mounts in the mode that the arguments choose, and returns the exit status.
fn mount(args: &Args, ready: &mut Ready) -> Result<u8> {
    let mut plan = args.mount.plan()?;
    if plan.overlay.is_some() && plan.lifetime.idle.is_some() {
        let context = "--overlay and --idle-timeout: reads and writes of the layer would not count";
        return Err(Error::new(Kind::Usage, context).with_hint("leave one of them out"));
    }
    if args.all_nodes {
        plan.together = args.mount.together(plan.nodes > 1)?;
    }
    if args.mount.is_squashfuse && is_missing(&plan.mount_point) {
        let context = format!("{}: no such directory", plan.mount_point.display());
        return Err(Error::new(Kind::NotFound, context));
    }
    if args.foreground {
        return serve_in_foreground(args, &plan, ready);
    }
    launch(args, plan, ready)
}

fn serve_in_foreground(args: &Args, plan: &MountPlan, ready: &mut Ready) -> Result<u8> {
    // The caller watches a foreground process, so only `--until-pid` names a holder.
    let holder = args.until_pid.map(ProcessId::of).transpose()?;
    lifecycle::receive_while_opening();
    let progress = Arc::new(Progress::default());
    let bar = opening_bar(plan, &progress);
    let is_seen = plan.verbosity != Verbosity::Quiet && io::stderr().is_terminal();
    let mount_point = plan.mount_point.display();
    lifecycle::serve_in_foreground(plan, holder, ready, &progress, || {
        drop(bar);
        if is_seen {
            term::print_note(&format!("{mount_point}: mounted in the foreground; Ctrl-C unmounts"));
        }
    })?;
    Ok(0)
}

/// Mounts by a job step, or starts a daemon in the background.
fn launch(args: &Args, plan: MountPlan, ready: &mut Ready) -> Result<u8> {
    crate::log::start(plan.verbosity, None);
    let holder_choice = match (args.keep || args.mount_helper, args.until_pid) {
        (true, _) => HolderChoice::Keep,
        (false, Some(pid)) => HolderChoice::UntilPid(pid),
        (false, None) => HolderChoice::Default,
    };
    let holder = lifecycle::choose_holder(holder_choice)?;
    let plan = lifecycle::resolve_descriptors(plan)?;
    let warning = match mount_by_step(args, &plan, ready)? {
        StepMount::Exit(status) => return Ok(status),
        StepMount::NoStep(warning) => warning,
    };
    let is_warned = warning.is_some();
    if let Some(why) = warning {
        crate::log::warn(
            format_args!(
                "{}: {why}: Slurm kills the daemon when the script ends, which may leave a stale mount",
                plan.mount_point.display()
            ),
            "use `exec archfs run`",
        );
    }
    let quiet = plan.verbosity == Verbosity::Quiet;
    let caller = lifecycle::Caller { holder, ready };
    let mounted = lifecycle::mount(&plan, caller, &|message| wait_bar(message, quiet))?;
    // mount(8) prints nothing on success.
    if !quiet && !args.mount_helper {
        // A user who names a holder knows the choices, and a job script was written once for all of
        // its jobs.
        let is_asked = holder_choice == HolderChoice::Default && io::stderr().is_terminal();
        let hint = holder.hint().filter(|_| is_asked);
        report_mounted(args.mount.split_paths()?, mounted, (holder, hint), is_warned);
        if std::env::current_dir().is_ok_and(|current| current.starts_with(&plan.mount_point)) {
            // The working directory of a process stays the directory below the mount.
            term::print_note("the shell's working directory is the mount point");
            term::print_hint("run `cd .` in it to see the files");
        }
    }
    Ok(0)
}

fn is_missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// The result of mounting by a job step.
enum StepMount {
    /// The step has mounted or failed, with this exit status.
    Exit(u8),
    /// There is no step. The reason is given if the user should know it.
    NoStep(Option<String>),
}

/// Mounts by a job step, if there can be one.
fn mount_by_step(args: &Args, plan: &MountPlan, ready: &mut Ready) -> Result<StepMount> {
    if args.mount_helper {
        return Ok(StepMount::NoStep(None));
    }
    let choice = match (args.all_nodes, args.job_step) {
        (true, JobStepName::Never) => {
            let context = "--all-nodes needs a job step, but --job-step is never";
            return Err(Error::new(Kind::Usage, context));
        }
        (true, _) | (false, JobStepName::Always) => JobStepChoice::Always,
        (false, JobStepName::Auto) => JobStepChoice::Auto,
        (false, JobStepName::Never) => return Ok(StepMount::NoStep(None)),
    };
    let nodes = if args.all_nodes { Nodes::All } else { Nodes::This };
    let (mount_point, archives) = args.mount.split_paths()?;
    let archives_text = describe_archives(archives);
    let mount_point = mount_point.display();
    match lifecycle::mount_by_step(plan, (choice, nodes), args.until_pid, ready)? {
        StepOutcome::NoStep(why) => {
            Ok(StepMount::NoStep(why.map(|why| format!("no job step: {why}"))))
        }
        StepOutcome::Failed { status, failed, nodes } => {
            if args.all_nodes {
                let (count, names) = (failed.len(), failed.join(", "));
                term::print_error(&format!(
                    "{mount_point}: {count} of {nodes} nodes cannot mount ({names}); the others were unmounted"
                ));
            }
            Ok(StepMount::Exit(status))
        }
        StepOutcome::OnNodes { job, nodes } => {
            if plan.verbosity != Verbosity::Quiet {
                let until = match args.until_pid {
                    Some(pid) => format!("until process {pid} or job {job} ends"),
                    None => format!("until job {job} ends"),
                };
                let on = match args.all_nodes {
                    true if nodes == 1 => " on 1 node".to_owned(),
                    true => format!(" on {nodes} nodes"),
                    false => String::new(),
                };
                term::print_note(&format!("mounted {archives_text} at {mount_point}{on} {until}"));
            }
            Ok(StepMount::Exit(0))
        }
    }
}

fn describe_archives(archives: &[PathBuf]) -> String {
    match archives {
        [one] => one.display().to_string(),
        several => format!("{} archives", several.len()),
    }
}

/// A bar that a terminal shows if opening takes long, unless archfs is quiet.
pub(super) fn opening_bar(plan: &MountPlan, progress: &Arc<Progress>) -> Option<Bar> {
    (plan.verbosity != Verbosity::Quiet).then(|| Bar::watch(progress))
}

/// A bar for a wait, unless archfs is quiet.
pub(super) fn wait_bar(message: &str, quiet: bool) -> Box<dyn Any> {
    Box::new((!quiet).then(|| Bar::wait(message)))
}

fn report_mounted(
    (mount_point, archives): (&PathBuf, &[PathBuf]),
    mounted: MountOutcome,
    (holder, hint): (Holder, Option<&str>),
    is_warned: bool,
) {
    let archives_text = describe_archives(archives);
    let mount_point = mount_point.display();
    match mounted {
        MountOutcome::New => {
            term::print_note(&format!("mounted {archives_text} at {mount_point} {holder}"));
        }
        MountOutcome::Shared(daemon) => {
            term::print_note(&format!(
                "sharing {archives_text} at {mount_point} (daemon {daemon}) {holder}"
            ));
        }
    }
    if let Some(hint) = hint {
        term::print_hint(hint);
    }
    if mounted != MountOutcome::New {
        return;
    }
    if in_srun_step() {
        term::print_note(&format!(
            "{mount_point}: Slurm ends the daemon with this srun step, which may leave a stale mount"
        ));
        term::print_hint(
            "use `srun archfs run`, or `srun archfs mount --foreground` as a step (docs/SLURM.md)",
        );
    } else if let Some(job) = batch_job::killed_with().filter(|_| !is_warned) {
        term::print_note(&format!(
            "{mount_point}: Slurm kills the daemon when {job} ends, which may leave a stale mount"
        ));
        term::print_hint("use `exec archfs run`, or `archfs unmount` in a trap (docs/SLURM.md)");
    }
}

/// A batch script is a step as well, but its step id is not a number.
fn in_srun_step() -> bool {
    std::env::var("SLURM_STEP_ID").is_ok_and(|step| step.parse::<u32>().is_ok())
}
