//! `archfs unmount`: unmounts live and stale mounts.

use std::ffi::OsString;
use std::path::PathBuf;

use super::bar::Bar;
use super::{exit, term};
use crate::error::{Error, Result};
use crate::lifecycle::{self, Detach, Task, Unmounted};
use crate::log::{Label, Verbosity};

/// Unmount; also clears stale mounts
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  archfs unmount /dev/shm/$USER-data
  archfs unmount --lazy /dev/shm/$USER-data        (even with open files)
  archfs unmount --all-nodes /dev/shm/$USER-data   (on all nodes of a Slurm job)")]
pub(super) struct Args {
    /// Mount points
    #[arg(required = true, value_name = "MOUNTPOINT")]
    mountpoints: Vec<PathBuf>,

    /// Unmount even if the mount is in use: the name is gone at once, open files stay readable
    /// until they are closed
    #[arg(long, short = 'z', visible_short_alias = 'l')]
    lazy: bool,

    /// As fusermount has it, whose scripts may call archfs
    #[arg(short = 'u', hide = true)]
    _unmount: bool,

    /// Release the lease of `mount --until-pid PID`, as if process PID had ended: unmounts, lazily
    /// if in use, unless there are other holders
    #[arg(long, value_name = "PID", conflicts_with = "lazy")]
    held_by: Option<i32>,

    /// Undo `mount --all-nodes`: unmount on every node of the Slurm job
    #[arg(long, conflicts_with = "held_by")]
    all_nodes: bool,

    /// This is a task of the step that unmounts
    #[arg(long, hide = true, conflicts_with = "all_nodes")]
    step_task: bool,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    crate::log::start(Verbosity::Default, None);
    if args.all_nodes {
        return unmount_on_all_nodes(args);
    }
    if args.step_task {
        let task = Task::own();
        if !task.begin_to_unmount() {
            return Ok(0);
        }
        let status = unmount_all(args);
        if status == 0 {
            task.finish();
        } else {
            task.fail(status);
        }
        return Ok(0);
    }
    Ok(unmount_all(args))
}

fn unmount_on_all_nodes(args: &Args) -> Result<u8> {
    let mut arguments = ["unmount", "--step-task"].map(OsString::from).to_vec();
    if args.lazy {
        arguments.push("--lazy".into());
    }
    arguments.push("--".into());
    for mountpoint in &args.mountpoints {
        let absolute = std::path::absolute(mountpoint)
            .map_err(|error| Error::io(format!("{}: invalid path", mountpoint.display()), error))?;
        arguments.push(absolute.into());
    }
    let Some((failed, status)) = lifecycle::unmount_by_step(&arguments)? else {
        return Ok(0);
    };
    term::print_error(&format!("not unmounted on {}", failed.join(", ")));
    Ok(status)
}

/// Unmounts on this node; returns the exit status.
fn unmount_all(args: &Args) -> u8 {
    let how = if args.lazy { Detach::Lazily } else { Detach::IfIdle };
    let mut status = 0;
    for mountpoint in &args.mountpoints {
        let mount_point = mountpoint.display();
        let bar = Bar::wait(&format!("unmounting {mount_point}"));
        let (messages, outcome) = match args.held_by {
            Some(pid) => (Vec::new(), lifecycle::give_back(mountpoint, pid)),
            None => (lifecycle::unseen_messages(mountpoint), lifecycle::unmount(mountpoint, how)),
        };
        drop(bar);
        match outcome {
            // No one can ask the daemon for them any more.
            Ok(Unmounted::Gone) => {
                let mut is_shown = false;
                for message in &messages {
                    is_shown =
                        message.label == Label::Error || (is_shown && message.label == Label::Hint);
                    if is_shown {
                        crate::log::pass_on(message);
                    }
                }
            }
            Ok(Unmounted::Stays) => term::print_note(&format!("{mount_point}: stays mounted")),
            Ok(Unmounted::HeldByOthers(others)) => {
                term::print_note(&format!("{mount_point}: still held by {others}"));
            }
            Err(error) => {
                term::show_error(&error);
                status = status.max(exit::of(&error));
            }
        }
    }
    status
}
