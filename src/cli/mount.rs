//! `archfs mount`: in the background, for as long as the job needs it.

use std::ffi::OsString;

use super::bar::Bar;
use super::{args, term};
use crate::error::Result;
use crate::lifecycle::{self, Holder, ProcessId, Ready, Wish};
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
    #[arg(long, value_name = "PID", conflicts_with_all = ["keep", "holder"])]
    until_pid: Option<i32>,

    /// Hold until `archfs unmount`
    #[arg(long, conflicts_with = "holder")]
    keep: bool,

    /// Stay in the foreground; SIGTERM, SIGINT, SIGHUP or `archfs unmount` ends it
    #[arg(long)]
    foreground: bool,

    /// Write the line "ready" to this descriptor when files can be read
    #[arg(long, value_name = "N")]
    ready_fd: Option<u32>,

    /// This is the daemon that a launcher waits for, and that lives for the process PID:STARTTIME
    #[arg(long, hide = true, value_name = "PID:STARTTIME|nobody", requires = "foreground")]
    holder: Option<String>,
}

const EXAMPLES: &str = "\
In a job script these two lines are enough; the mount goes when the script ends:
  archfs mount data.sqfs /dev/shm/data
  python train.py /dev/shm/data

  archfs mount --keep data.sqfs /tmp/data && ls /tmp/data && archfs unmount /tmp/data";

/// What stands for no process in the hidden option.
const NOBODY: &str = "nobody";

pub(super) fn run(args: &Args) -> Result<u8> {
    let plan = args.mount.plan()?;
    if let Some(holder) = &args.holder {
        let holder = match holder.as_str() {
            NOBODY => None,
            process => Some(process.parse::<ProcessId>()?),
        };
        return serve(&plan, holder, Ready::Launcher).map(|()| 0);
    }
    let ready = args.ready_fd.map_or(Ready::Silent, Ready::Descriptor);
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
        return serve(&plan, holder, ready).map(|()| 0);
    }
    let holder = lifecycle::choose_holder(wish)?;
    if let Err(status) = lifecycle::start(&daemon_arguments(&plan, holder))? {
        return Ok(u8::try_from(status).unwrap_or(1));
    }
    lifecycle::announce(ready)?;
    if !args.mount.quiet {
        let (mountpoint, archives) = args.mount.split_paths()?;
        let mounted = match archives {
            [one] => one.display().to_string(),
            several => format!("{} archives", several.len()),
        };
        term::tell(&format!("mounted {mounted} at {} {holder}", mountpoint.display()));
        if in_srun_step() {
            term::tell("started inside an srun step: Slurm ends the daemon with this step");
        }
    }
    Ok(0)
}

/// Serves, with a bar on a terminal while opening takes long.
fn serve(plan: &lifecycle::MountPlan, holder: Option<ProcessId>, ready: Ready) -> Result<()> {
    let progress = Arc::new(Progress::default());
    let bar = (plan.verbosity != Verbosity::Quiet).then(|| Bar::watch(&progress));
    lifecycle::serve(plan, holder, ready, &progress, || drop(bar))
}

/// How this program has to be called to be the daemon of `plan`.
pub(super) fn daemon_arguments(plan: &lifecycle::MountPlan, holder: Holder) -> Vec<OsString> {
    let holder = match holder {
        Holder::Process(process) => process.to_string(),
        Holder::Nobody(_) => NOBODY.to_owned(),
    };
    let mut arguments =
        vec!["mount".into(), "--foreground".into(), format!("--holder={holder}").into()];
    arguments.extend(args::render(plan));
    arguments
}

/// A batch script has a step, too, but its name is no number there.
fn in_srun_step() -> bool {
    std::env::var("SLURM_STEP_ID").is_ok_and(|step| step.parse::<u32>().is_ok())
}
