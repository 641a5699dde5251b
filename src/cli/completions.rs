//! `archfs completions`: what makes a shell complete commands, options and paths.
//!
//! Owns the shells there are; leaves the scripts to clap_complete. Invariant: what is hidden in
//! --help is not offered.

use std::io::Write;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::term::written;
use crate::error::Result;

/// Print what lets a shell complete commands and options of archfs
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  archfs completions bash > ~/.local/share/bash-completion/completions/archfs
  archfs completions zsh > ~/.zfunc/_archfs       (a folder of fpath)
  archfs completions fish > ~/.config/fish/completions/archfs.fish")]
pub(super) struct Args {
    /// The shell
    shell: ShellName,
}

/// Shells that people of clusters use.
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
    let mut command = shown(&Cli::command()).version(env!("CARGO_PKG_VERSION"));
    clap_complete::generate(shell, &mut command, "archfs", &mut script);
    written(std::io::stdout().write_all(&script))?;
    Ok(0)
}

/// The command without what is hidden, which clap_complete would offer.
fn shown(command: &Command) -> Command {
    // clap wants names that live as long as the program; these are some twenty.
    let kept = |name: &str| -> &'static str { name.to_owned().leak() };
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let mut like_it = Command::new(kept(command.get_name()))
        .args(arguments.cloned())
        .visible_aliases(command.get_visible_aliases().map(kept))
        .subcommands(command.get_subcommands().filter(|it| !it.is_hide_set()).map(shown));
    if let Some(about) = command.get_about() {
        like_it = like_it.about(about.clone());
    }
    like_it
}
