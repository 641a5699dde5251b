//! The command line: arguments in, exit status out.
//!
//! Invariants: the layers below do not see arguments. Standard output is data; messages go to
//! standard error.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::url;

mod args;
mod bar;
mod cat;
mod completions;
mod config;
mod daemon;
mod doctor;
mod environment;
mod exit;
mod extract;
mod gc;
mod index;
mod info;
mod keep_extracted;
mod list;
mod ls;
mod man;
mod mistakes;
mod mount;
mod mount_helper;
mod mount_plan;
mod notify;
mod open_args;
mod options;
mod pack;
mod read_names;
mod read_server;
mod run;
mod squashfuse;
mod stack;
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
  archfs run data.sqfs -- python train.py --data {}
  P=/dev/shm/$USER-$SLURM_JOB_ID     (a mount point for this job)
  archfs mount data.sqfs $P          (in a job script: unmounted when the script ends)
  archfs mount shard-*.tar $P        (many archives, one tree)
  archfs ls data.sqfs train          (without mounting)
  archfs extract data.sqfs DIR       (unpack everything, in parallel)
  archfs doctor                      (can this node mount?)";

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
    #[command(hide = true)]
    KeepExtracted(keep_extracted::Args),
    #[command(hide = true)]
    ReadNames(read_names::Args),
    #[command(hide = true)]
    ReadServer(read_server::Args),
    #[command(hide = true)]
    Notify(notify::Args),
    Man(man::Args),
    Completions(completions::Args),
}

/// Runs `archfs` with `arguments`, which start with the program name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // What follows is the command of `run`, which gets its words as they are.
    let has_command = arguments.get(1).is_some_and(|word| word == "run");
    let arguments = url::named(arguments, has_command);
    stack::with_enough(|| {
        if let Some(plan_from) = daemon::called(&arguments) {
            prepare_to_mount();
            return exit::status(daemon::run(plan_from));
        }
        match squashfuse::translated(&arguments) {
            Some(squashfuse::Request::Run(arguments)) => run_with(&arguments),
            Some(squashfuse::Request::Help) => {
                print!("{}", squashfuse::USAGE);
                ExitCode::SUCCESS
            }
            Some(squashfuse::Request::Usage) => {
                eprint!("{}", squashfuse::USAGE);
                ExitCode::from(exit::USAGE)
            }
            None => match mount_helper::translated(arguments, is_subcommand) {
                Some(arguments) => run_with(&arguments),
                None => ExitCode::SUCCESS,
            },
        }
    })
}

/// Leaves the signals to the threads that handle them.
fn prepare_to_mount() {
    crate::lifecycle::leave_to_system_calls();
    crate::lifecycle::ignore_others();
    crate::lifecycle::receive_in_order();
}

fn is_subcommand(word: &OsStr) -> bool {
    // Only aliases need the whole tree of commands, which is slow to build.
    let is_name = |name| name == "help" || Command::has_subcommand(name);
    word.to_str().is_some_and(is_name) || Cli::command().find_subcommand(word).is_some()
}

fn run_with(arguments: &[OsString]) -> ExitCode {
    if let Some(error) = mistakes::foreign_option(arguments) {
        return exit::status(Err(error));
    }
    let command = environment::without_foreign_paths(Cli::command());
    let parsed = config::parse(command, arguments);
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
    crate::lifecycle::leave_to_system_calls();
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
        Command::KeepExtracted(args) => exit::status(keep_extracted::run(&args)),
        Command::ReadNames(args) => exit::status(read_names::run(&args)),
        Command::ReadServer(args) => exit::status(read_server::run(&args)),
        Command::Notify(args) => exit::status(notify::run(&args)),
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
