//! `archfs completions`: scripts that complete commands, options and paths in a shell.
//!
//! Invariant: commands and options that --help hides are not offered.

use std::io::Write;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::term::written;
use crate::error::Result;

/// Print a script that completes commands and options in a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  archfs completions bash > ~/.local/share/bash-completion/completions/archfs
  archfs completions zsh > ~/.zfunc/_archfs       (a directory in fpath)
  archfs completions fish > ~/.config/fish/completions/archfs.fish")]
pub(super) struct Args {
    /// The shell
    shell: ShellName,
}

/// The shells that are common on clusters.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ShellName {
    Bash,
    Zsh,
    Fish,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    let shell = match args.shell {
        ShellName::Bash => Shell::Bash,
        ShellName::Zsh => Shell::Zsh,
        ShellName::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    let mut command = without_hidden(&Cli::command()).version(env!("CARGO_PKG_VERSION"));
    clap_complete::generate(shell, &mut command, "archfs", &mut script);
    written(std::io::stdout().write_all(&script))?;
    Ok(0)
}

/// The command without its hidden parts, which clap_complete would offer.
fn without_hidden(command: &Command) -> Command {
    // clap needs names with a static lifetime; about twenty are leaked.
    let leaked = |name: &str| -> &'static str { name.to_owned().leak() };
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let mut visible = Command::new(leaked(command.get_name()))
        .args(arguments.cloned())
        .disable_help_flag(command.is_disable_help_flag_set())
        .visible_aliases(command.get_visible_aliases().map(leaked))
        .subcommands(command.get_subcommands().filter(|it| !it.is_hide_set()).map(without_hidden));
    if let Some(about) = command.get_about() {
        visible = visible.about(about.clone());
    }
    visible
}
