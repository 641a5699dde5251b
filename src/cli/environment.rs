//! Which environment variables archfs accepts.
//!
//! `sudo -E` runs archfs as root with the variables of another user. If one of them names a file
//! that archfs writes, root could overwrite any file. So root accepts such names only on the
//! command line.

use clap::{Arg, Command};
use rustix::process::geteuid;

use super::term;

/// Arguments that name a file written by archfs, and their variables.
const WRITTEN: [(&str, &str); 3] = [
    ("log_file", "ARCHFS_LOG_FILE"),
    ("stats_json", "ARCHFS_STATS_JSON"),
    ("index", "ARCHFS_INDEX"),
];

/// Makes `command` ignore variables of another user that name a file to be written, and reports
/// each of them.
pub(super) fn without_foreign_paths(command: Command) -> Command {
    let user = std::env::var("SUDO_UID").ok();
    if !geteuid().is_root() || user.is_none_or(|user| user == "0") {
        return command;
    }
    for (_, variable) in WRITTEN {
        if std::env::var_os(variable).is_some() {
            term::print_warning(&format!(
                "{variable}: ignored, because root runs archfs with the environment of another user"
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
