//! Which variables of the environment count.
//!
//! `sudo -E` runs archfs as root with the variables of another user. If one of them names a file
//! that archfs writes, root would write that file, wherever it is. So root takes such names only
//! from the command line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command};
use rustix::process::geteuid;

use super::term;

/// Arguments that name a file which archfs writes, and their variables.
const WRITTEN: [(&str, &str); 3] = [
    ("log_file", "ARCHFS_LOG_FILE"),
    ("stats_json", "ARCHFS_STATS_JSON"),
    ("index", "ARCHFS_INDEX"),
];

/// `command`, in which no variable of another user names a file to be written; says so of each one,
/// unless this process is the daemon, whose launcher has said it.
pub(super) fn without_foreign_paths(command: Command, arguments: &[OsString]) -> Command {
    let user = std::env::var("SUDO_UID").ok();
    if !geteuid().is_root() || user.is_none_or(|user| user == "0") {
        return command;
    }
    let is_daemon = arguments.iter().any(|word| word.as_bytes().starts_with(b"--daemon="));
    for (_, variable) in WRITTEN {
        if !is_daemon && std::env::var_os(variable).is_some() {
            term::tell(&format!(
                "{variable} is not used as root: it is the variable of another user"
            ));
        }
    }
    command.mut_subcommands(|subcommand| subcommand.mut_args(without_variable))
}

fn without_variable(argument: Arg) -> Arg {
    match WRITTEN.iter().any(|(name, _)| argument.get_id() == name) {
        true => argument.env(None),
        false => argument,
    }
}
