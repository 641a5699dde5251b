//! The command line: arguments in, exit status out.
//!
//! Invariants: the layers below do not see arguments. Standard output is data; messages go to
//! standard error.

use std::ffi::{OsStr, OsString};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use rustix::process::{Resource, getrlimit};

use crate::error::Error;
use crate::lifecycle::{self, MountStatus};
use crate::os::process;
use crate::url;

mod args;
mod bar;
mod cat;
mod completions;
mod config;
mod daemon;
mod doctor;
mod exit;
mod extract;
mod gc;
mod index;
mod info;
mod list;
mod ls;
mod man;
mod mistakes;
mod mount;
mod mount_helper;
mod mount_plan;
mod open_args;
mod options;
mod pack;
mod read_server;
mod run;
mod stats;
mod term;
mod unmount;
mod values;
mod verify;
mod wait;

/// Show SquashFS, tar and ZIP archives as directories, for as long as a job runs.
#[derive(Debug, Parser)]
#[command(name = "archfs", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  archfs pack imagenet/ imagenet.sqfs       (once; a tar needs no packing)
  srun archfs run imagenet.sqfs -- python train.py --data {}
                                            (all of a job script, or:)
  archfs mount imagenet.sqfs /dev/shm/$USER-$SLURM_JOB_ID || exit
                                            (until the script ends)
  archfs ls imagenet.sqfs n01440764         (without mounting)
  archfs doctor                             (can this node mount?)";

/// The commands as the help lists them.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Use an archive in a job", &["run", "mount", "unmount", "wait"]),
    ("Make archives", &["pack", "index"]),
    ("Look inside without a mount", &["ls", "cat", "extract", "info", "verify"]),
    ("Look after mounts", &["list", "stats", "gc", "doctor"]),
    ("Help", &["help", "man", "completions"]),
];

/// `command` with its commands in groups, for its help.
fn with_groups(command: clap::Command) -> clap::Command {
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in GROUPS {
        text += &format!("\n{heading}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about =
                about.map_or("Print this message or that of a command".into(), ToString::to_string);
            text += &format!("  {name:<11}  {about}\n");
        }
    }
    command.help_template(text + "\nOptions:\n{options}{after-help}")
}

#[derive(Debug, Subcommand)]
enum Command {
    Mount(mount::Args),
    Run(run::Args),
    #[command(visible_alias = "umount")]
    Unmount(unmount::Args),
    Wait(wait::Args),
    List(list::Args),
    Gc(gc::Args),
    Stats(stats::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Extract(extract::Args),
    Index(index::Args),
    Verify(verify::Args),
    Pack(Box<pack::Args>),
    Info(info::Args),
    Doctor(doctor::Args),
    /// Remove extracted files when the last process that holds them has ended (started by `run`)
    #[command(hide = true)]
    KeepExtracted {
        /// The directory
        directory: PathBuf,
    },
    /// Read all names of a mount ahead (started by the daemon)
    #[command(hide = true)]
    ReadNames {
        /// The mount point
        mountpoint: PathBuf,
        /// The number of the mount's device, as stat(2) returns it
        device: u64,
    },
    #[command(hide = true)]
    ReadServer(read_server::Args),
    /// Write to a named pipe whether archfs has mounted (started by `archfs mount`)
    #[command(hide = true)]
    Notify {
        /// The named pipe
        pipe: PathBuf,
        /// Nothing is mounted
        #[arg(long)]
        failed: bool,
    },
    Man(man::Args),
    Completions(completions::Args),
}

/// Runs `archfs` with `arguments`, which start with the program name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    process::enlarge_descriptor_table();
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(outcome) = run::called_in_overlay(&arguments) {
        return exit::status_of_run(outcome);
    }
    if let Some(served) = daemon::called_for_overlay(&arguments) {
        return served.map_or_else(|_| ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    // What follows is the command of `run`, which gets its words as they are.
    let has_command = arguments.get(1).is_some_and(|word| word == "run");
    let arguments = url::named(arguments, has_command);
    with_enough_stack(|| {
        if let Some(serve) = daemon::called(&arguments) {
            return exit::status(serve());
        }
        match mount_helper::of_squashfuse(&arguments) {
            Some(mount_helper::Request::Run(arguments)) => run_with(&arguments),
            Some(mount_helper::Request::Help) => {
                print!("{}", mount_helper::USAGE);
                ExitCode::SUCCESS
            }
            Some(mount_helper::Request::Usage) => {
                eprint!("{}", mount_helper::USAGE);
                ExitCode::from(exit::USAGE)
            }
            None => match mount_helper::of_mount(arguments, is_subcommand) {
                Some(arguments) => run_with(&arguments),
                None => ExitCode::SUCCESS,
            },
        }
    })
}

/// Stack limit below which archfs runs on a thread of its own, bytes. Parsing the arguments needs
/// more than 64 KiB and at most 128 KiB.
const MIN_STACK: u64 = 512 << 10;

/// The stack of that thread, bytes: the common limit.
const STACK_SIZE: usize = 8 << 20;

/// Runs `work` on this thread, or on one with enough stack.
fn with_enough_stack(work: impl FnOnce() -> ExitCode + Send) -> ExitCode {
    if getrlimit(Resource::Stack).current.is_none_or(|limit| limit >= MIN_STACK) {
        return work();
    }
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("archfs".into()).stack_size(STACK_SIZE);
        match thread.spawn_scoped(scope, work) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(error) => {
                let error = Error::io("cannot start a thread with a larger stack", error);
                exit::status(Err(error.with_hint("raise the stack limit: ulimit -s 512")))
            }
        }
    })
}

/// Leaves the signals to the threads that handle them.
fn prepare_to_mount() {
    lifecycle::leave_to_system_calls();
    lifecycle::ignore_others();
    lifecycle::receive_in_order();
}

fn is_subcommand(word: &OsStr) -> bool {
    // Only aliases need the whole tree of commands, which is slow to build.
    let is_name = |name| name == "help" || Command::has_subcommand(name);
    word.to_str().is_some_and(is_name) || Cli::command().find_subcommand(word).is_some()
}

/// A command whose `-h` is short: without variables, and with only the examples below its options.
/// `--help` has the rest.
fn for_one_screen(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| arg.hide_env(true));
    let has_more = command.get_arguments().any(clap::Arg::is_hide_short_help_set);
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    match text.split("\n\n").find(|paragraph| paragraph.starts_with("Examples:")) {
        Some(examples) if has_more => command.after_help(examples.to_owned()),
        _ => command,
    }
}

fn run_with(arguments: &[OsString]) -> ExitCode {
    // With an archive, -h asks for sizes that people can read, as in ls(1).
    if let [program, ls, option] = arguments
        && ls == "ls"
        && option == "-h"
    {
        return run_with(&[program.clone(), ls.clone(), "--help".into()]);
    }
    if let Some(error) = mistakes::foreign_option(arguments) {
        return exit::status(Err(error));
    }
    let mut command = config::without_foreign_paths(Cli::command());
    let first = arguments.get(1).and_then(|word| word.to_str()).unwrap_or("help");
    if first == "help" || first.starts_with('-') {
        command = with_groups(command);
    }
    if arguments.iter().take_while(|word| *word != "--").any(|word| word == "-h") {
        command = command.mut_subcommands(for_one_screen);
    }
    let parsed = config::parse(command, arguments);
    if let Some(error) = parsed.as_ref().ok().and_then(mistakes::without_effect) {
        return match arguments.get(1).is_some_and(|word| word == "run") {
            true => exit::status_of_run(Err(error)),
            false => exit::status(Err(error)),
        };
    }
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            // clap returns help and the version as errors with status 0.
            match mistakes::explained(&error, arguments) {
                Some(explained) => term::show_error(&explained),
                None => term::show_usage(&error, |name| is_hidden(arguments, name)),
            }
            return exit::usage(&error, arguments);
        }
    };
    lifecycle::leave_to_system_calls();
    match cli.command {
        Command::Mount(args) => {
            prepare_to_mount();
            exit::status(mount::run(&args))
        }
        Command::Run(args) => exit::status_of_run(run::run(&args)),
        Command::Unmount(args) => exit::status(unmount::run(&args)),
        Command::Wait(args) => exit::status(wait::run(&args)),
        Command::List(args) => exit::status(list::run(&args)),
        Command::Gc(args) => exit::status(gc::run(&args)),
        Command::Stats(args) => exit::status(stats::run(&args)),
        Command::Ls(args) => exit::status(ls::run(&args)),
        Command::Cat(args) => exit::status(cat::run(&args)),
        Command::Extract(args) => exit::status(extract::run(&args)),
        Command::Index(args) => exit::status(index::run(&args)),
        Command::Verify(args) => exit::status(verify::run(&args)),
        Command::Pack(args) => exit::status(pack::run(&args)),
        Command::Info(args) => exit::status(info::run(&args)),
        Command::KeepExtracted { directory } => {
            exit::status(crate::extract::keep(&directory).map(|()| 0))
        }
        Command::ReadNames { mountpoint, device } => exit::status(
            lifecycle::read_names(&mountpoint, device)
                .map(|()| 0)
                .map_err(|error| Error::io("cannot read names", error)),
        ),
        Command::Notify { pipe, failed } => {
            let status = if failed { MountStatus::Failed } else { MountStatus::Mounted };
            exit::status(lifecycle::notify(&pipe, status).map(|()| 0))
        }
        Command::ReadServer(args) => exit::status(read_server::run(&args)),
        Command::Doctor(args) => exit::status(doctor::run(&args)),
        Command::Man(args) => exit::status(man::run(&args)),
        Command::Completions(args) => exit::status(completions::run(&args)),
    }
}

/// Whether an option such as `--step-task` of the command that was called is not for users.
fn is_hidden(arguments: &[OsString], name: &str) -> bool {
    let command = Cli::command();
    if let Some(subcommand) = command.find_subcommand(name) {
        return subcommand.is_hide_set();
    }
    let called = arguments.get(1).and_then(|name| command.find_subcommand(name));
    let Some(found) = called.and_then(|called| {
        called.get_arguments().find(|found| found.get_long() == name.strip_prefix("--"))
    }) else {
        return false;
    };
    found.is_hide_set()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_valid() {
        Cli::command().debug_assert();
    }
}
