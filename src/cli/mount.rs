//! `archfs mount`: in the background, for as long as the job needs it.

use std::any::Any;
use std::ffi::OsString;
use std::path::PathBuf;

use super::bar::Bar;
use super::{args, term};
use crate::error::Result;
use crate::lifecycle::{self, Holder, Mounted, ProcessId, Way, Wish};
use crate::log::Verbosity;
use crate::progress::Progress;
use crate::sync::Arc;

/// Mount archives; returns when their files can be read
#[derive(Debug, clap::Args)]
#[command(override_usage = "archfs mount [OPTIONS] ARCHIVE... MOUNTPOINT", after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    mount: args::MountArgs,

    /// Unmount when that process ends [default: the batch job's task, else the calling script]
    #[arg(long, value_name = "PID", conflicts_with = "keep")]
    until_pid: Option<i32>,

    /// Hold until `archfs unmount`
    #[arg(long)]
    keep: bool,

    /// Stay in the foreground; SIGTERM, SIGINT, SIGHUP or `archfs unmount` ends it
    #[arg(long, short)]
    foreground: bool,

    /// Write the line "ready" to this descriptor when files can be read
    #[arg(long, value_name = "N")]
    ready_fd: Option<u32>,

    /// This is the daemon that a launcher waits for
    #[arg(long, hide = true, value_name = "WAY", requires = "foreground")]
    daemon: Option<WayName>,
}

/// How the mount of a daemon comes to be, as its launcher says it.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum WayName {
    Mount,
    Private,
    Handed,
}

const EXAMPLES: &str = "\
In a job script the first two lines are enough; the mount goes when the script ends.

Examples:
  archfs mount data.sqfs /dev/shm/data
  python train.py /dev/shm/data

  archfs mount shard-*.tar extra.sqfs /dev/shm/data          (one tree; later archives win)
  archfs mount --recursive ILSVRC2012_img_train.tar /dev/shm/train
  archfs mount --stage /dev/shm data.sqfs /tmp/data          (copied to this node first)
  archfs mount --keep data.sqfs /tmp/data && ls /tmp/data && archfs unmount /tmp/data";

pub(super) fn run(args: &Args) -> Result<u8> {
    let plan = args.mount.plan()?;
    let quiet = plan.verbosity == Verbosity::Quiet;
    let progress = Arc::new(Progress::default());
    // On a terminal, while opening takes long.
    let bar = || (!quiet).then(|| Bar::watch(&progress));
    if let Some(way) = args.daemon {
        let bar = bar();
        lifecycle::serve_in_background(&plan, way.into(), &progress, || drop(bar))?;
        return Ok(0);
    }
    let wish = match (args.keep, args.until_pid) {
        (true, _) => Wish::Keep,
        (false, Some(pid)) => Wish::UntilPid(pid),
        (false, None) => Wish::Usual,
    };
    if args.foreground {
        // Whoever started it watches it; only a process that was named counts besides.
        let holder = match wish {
            Wish::Usual | Wish::Keep => None,
            Wish::UntilPid(pid) => Some(ProcessId::of(pid)?),
        };
        let bar = bar();
        lifecycle::serve_in_foreground(&plan, holder, args.ready_fd, &progress, || drop(bar))?;
        return Ok(0);
    }
    crate::log::start(plan.verbosity, None)?;
    lifecycle::check_ready(args.ready_fd)?;
    let holder = lifecycle::choose_holder(wish)?;
    let arguments = |way| daemon_arguments(&plan, way);
    let caller = lifecycle::Caller { holder, ready: args.ready_fd };
    let mounted = match lifecycle::mount(&plan, &arguments, caller, &|what| shown(what, quiet))? {
        Ok(mounted) => mounted,
        Err(status) => return Ok(u8::try_from(status).unwrap_or(1)),
    };
    if !quiet {
        tell(args.mount.split_paths()?, mounted, holder);
    }
    Ok(0)
}

/// A bar for a wait, unless nothing is to be said.
pub(super) fn shown(what: &str, quiet: bool) -> Box<dyn Any> {
    Box::new((!quiet).then(|| Bar::wait(what)))
}

fn tell((mountpoint, archives): (&PathBuf, &[PathBuf]), mounted: Mounted, holder: Holder) {
    let what = match archives {
        [one] => one.display().to_string(),
        several => format!("{} archives", several.len()),
    };
    let place = mountpoint.display();
    match mounted {
        Mounted::New => term::tell(&format!("mounted {what} at {place} {holder}")),
        Mounted::Shared(daemon) => {
            term::tell(&format!("sharing {what} at {place} (process {daemon}) {holder}"));
        }
    }
    if mounted != Mounted::New {
        return;
    }
    if in_srun_step() {
        term::tell(
            "started inside an srun step: Slurm ends the daemon with this step, and may leave a dead mount; \
             `srun archfs run` or a step of its own with --foreground does not (docs/SLURM.md)",
        );
    } else if let Some(job) = lifecycle::killed_with() {
        term::tell(&format!(
            "{job}: Slurm kills the daemon at its end, and may leave a dead mount, which the next one clears; \
             `exec archfs run`, or `archfs unmount` in a trap, leaves none (docs/SLURM.md)"
        ));
    }
}

/// How this program has to be called to be the daemon of `plan`.
pub(super) fn daemon_arguments(plan: &lifecycle::MountPlan, way: Way) -> Vec<OsString> {
    let way = match way {
        Way::Mount => "--daemon=mount",
        Way::Private => "--daemon=private",
        Way::Handed => "--daemon=handed",
    };
    let mut arguments = ["mount", "--foreground", way].map(OsString::from).to_vec();
    arguments.extend(args::render(plan));
    arguments
}

impl From<WayName> for Way {
    fn from(name: WayName) -> Self {
        match name {
            WayName::Mount => Self::Mount,
            WayName::Private => Self::Private,
            WayName::Handed => Self::Handed,
        }
    }
}

/// A batch script has a step, too, but its name is no number there.
fn in_srun_step() -> bool {
    std::env::var("SLURM_STEP_ID").is_ok_and(|step| step.parse::<u32>().is_ok())
}
