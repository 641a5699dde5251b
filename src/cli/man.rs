//! `archfs man`: the manual pages, generated from the --help texts.
//!
//! Invariants: a page repeats nothing that the arguments say. Hidden commands and options do not
//! appear.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::Cli;
use super::term::{print_note, written};
use crate::error::{Error, Kind, Result};
use crate::os::directory::Directory;
use crate::os::new_file::{NewFile, Readers};

/// Print the manual page of a command, or write all to a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  archfs man | man -l -
  archfs man mount | man -l -
  archfs man --dir ~/.local/share/man/man1      (then: man archfs-mount)")]
pub(super) struct Args {
    /// The command [default: archfs itself]
    #[arg(conflicts_with = "dir")]
    command: Option<String>,

    /// Write archfs.1, archfs-mount.1 and all others to DIR, which is created if missing
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Print only errors and warnings
    #[arg(short, long)]
    quiet: bool,
}

/// Environment variables that every page lists after those of options.
const COMMON_VARIABLES: [(&str, &str); 2] = [
    ("ARCHFS_MOUNTPOINT", "The mount point. archfs run sets it for its command."),
    ("PATH", "Directories that archfs searches for fusermount3 and fusermount before /usr/bin."),
];

const FILES: [(&str, &str); 5] = [
    ("/dev/fuse", "The FUSE device. Mounting needs it, with mode 0666."),
    (
        "ARCHIVE.archfs-index",
        "The saved index of a tar. In ~/.cache/archfs if that file cannot be written.",
    ),
    ("/tmp/archfs-UID", "Records of your mounts. Removed with the last mount."),
    (
        "/etc/archfs.conf, ~/.config/archfs.conf",
        "Defaults of options, one KEY = VALUE a line. KEY is the name of a variable without ARCHFS_.",
    ),
    ("/etc/fuse.conf", "The line user_allow_other permits -o allow_other."),
];

/// The exit statuses of commands whose help lists none (docs/CLI.md).
const STATUS: [(&str, &str); 7] = [
    ("0", "Done."),
    ("1", "Failed."),
    ("2", "Wrong use."),
    ("3", "The archive is damaged, or has a format that archfs does not read."),
    ("4", "Mounting is impossible here. Run archfs doctor to see why."),
    ("5", "Not mounted, or not by archfs for you."),
    ("6", "Timed out."),
];

pub(super) fn run(args: &Args) -> Result<u8> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let Some(directory) = &args.dir else {
        let command = match args.command.as_deref() {
            None | Some("archfs") => &root,
            Some(name) => find_command(&root, name)?,
        };
        written(io::stdout().write_all(&page(command)?))?;
        return Ok(0);
    };
    let count = write_all(&root, directory)?;
    if !args.quiet {
        print_note(&format!("{}: wrote {count} manual pages", directory.display()));
    }
    Ok(0)
}

fn find_command<'r>(root: &'r Command, name: &str) -> Result<&'r Command> {
    let found = root.find_subcommand(name).filter(|found| !found.is_hide_set());
    found.ok_or_else(|| {
        let names: Vec<_> = visible_subcommands(root).map(Command::get_name).collect();
        Error::new(Kind::Usage, format!("{name}: no such command")).with_hint(names.join(", "))
    })
}

fn visible_subcommands(root: &Command) -> impl Iterator<Item = &Command> {
    root.get_subcommands().filter(|command| !command.is_hide_set())
}

fn write_all(root: &Command, directory: &Path) -> Result<usize> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error| Error::io(format!("{path}: cannot write"), error)
    };
    fs::create_dir_all(directory).map_err(failed(directory))?;
    let opened = Directory::open(directory).map_err(failed(directory))?;
    let mut count = 0;
    for command in std::iter::once(root).chain(visible_subcommands(root)) {
        let (name, page) = (format!("{}.1", page_name(command)), page(command)?);
        let write = &mut |file: &mut File| file.write_all(&page);
        NewFile::replace(&opened, name.as_ref(), Readers::by_umask(), write)
            .map_err(failed(&directory.join(&name)))?;
        count += 1;
    }
    Ok(count)
}

/// `archfs-mount` for `archfs mount`.
fn page_name(command: &Command) -> String {
    command.get_bin_name().unwrap_or(command.get_name()).replace(' ', "-")
}

/// The page of a command in the format of man(1).
fn page(command: &Command) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    render(command, &mut text).map_err(|error| {
        Error::io(format!("{}: cannot make the manual page", command.get_name()), error)
    })?;
    Ok(text)
}

fn render(command: &Command, out: &mut Vec<u8>) -> io::Result<()> {
    let name = page_name(command);
    let version = concat!("archfs ", env!("CARGO_PKG_VERSION"));
    // clap_mangen leaves out the text of what -h does not show.
    let complete = command.clone().mut_args(|argument| argument.hide_short_help(false));
    let man = Man::new(complete.display_name(name.clone()))
        .title(name.to_uppercase())
        .source(version)
        .manual("archfs");
    man.render_title(out)?;
    man.render_name_section(out)?;
    let mut synopsis = Roff::new();
    let usage = command.clone().render_usage().to_string();
    synopsis.control("SH", ["SYNOPSIS"]);
    synopsis.text([roman(usage.trim_start_matches("Usage:").trim())]);
    synopsis.to_writer(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    let help = Help::of(command);
    let mut roff = Roff::new();
    if !help.notes.is_empty() {
        roff.control("SH", ["NOTES"]);
        paragraphs(&mut roff, &help.notes);
    }
    roff.control("SH", ["EXIT STATUS"]);
    match help.status.is_empty() {
        true => list(&mut roff, &STATUS),
        false => paragraphs(&mut roff, &help.status),
    }
    roff.control("SH", ["ENVIRONMENT"]);
    let variables = variables(command);
    let variables = variables.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    list(&mut roff, &variables.chain(COMMON_VARIABLES).collect::<Vec<_>>());
    roff.control("SH", ["FILES"]);
    list(&mut roff, &FILES);
    if !help.examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]).control("EX", []);
        for line in &help.examples {
            roff.text([roman(line.clone())]);
        }
        roff.control("EE", []);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([
        bold("archfs"),
        roman("(1), "),
        bold("fusermount3"),
        roman("(1), "),
        bold("fuse"),
        roman("(4)"),
    ]);
    roff.to_writer(out)
}

/// The options that can be set by a variable.
fn variables(command: &Command) -> Vec<(String, String)> {
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let named = shown.filter_map(|argument| {
        let variable = argument.get_env()?.to_str()?.to_owned();
        Some((variable, format!("Default of --{}.", argument.get_long()?)))
    });
    named.collect()
}

fn list(roff: &mut Roff, items: &[(&str, &str)]) {
    for (name, text) in items {
        roff.control("TP", []).text([bold(*name)]).text([roman(*text)]);
    }
}

fn paragraphs(roff: &mut Roff, texts: &[String]) {
    for text in texts {
        roff.control("PP", []).text([roman(text.replace('\n', " "))]);
    }
}

/// The paragraphs after the options in --help.
#[derive(Debug, Default, PartialEq, Eq)]
struct Help {
    notes: Vec<String>,
    status: Vec<String>,
    /// Command lines, ready to type.
    examples: Vec<String>,
}

impl Help {
    fn of(command: &Command) -> Self {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        Self::parse(&text)
    }

    /// Paragraphs that start with `Examples:` or `Exit status:` go to their sections, others are
    /// notes. Indented paragraphs continue the examples before them.
    fn parse(text: &str) -> Self {
        let mut help = Self::default();
        for paragraph in text.split("\n\n") {
            let paragraph = paragraph.trim_matches('\n');
            if let Some(examples) = paragraph.strip_prefix("Examples:\n") {
                help.add_examples(examples);
            } else if let Some(status) = paragraph.strip_prefix("Exit status: ") {
                help.status.push(status.to_owned());
            } else if paragraph.starts_with("  ") {
                help.examples.push(String::new());
                help.add_examples(paragraph);
            } else if !paragraph.is_empty() {
                help.notes.push(paragraph.to_owned());
            }
        }
        help
    }

    fn add_examples(&mut self, text: &str) {
        let lines = text.lines().map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned());
        self.examples.extend(lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_the_help() {
        let help =
            Help::parse("A note\nof two lines.\n\nExit status: 0 or 1.\n\nExamples:\n  a\n    b");
        let expected = Help {
            notes: vec!["A note\nof two lines.".into()],
            status: vec!["0 or 1.".into()],
            examples: vec!["a".into(), "  b".into()],
        };
        assert_eq!(help, expected);
    }

    #[test]
    fn every_command_has_examples() {
        let mut root = Cli::command().disable_help_subcommand(true);
        root.build();
        for command in std::iter::once(&root).chain(visible_subcommands(&root)) {
            let help = Help::of(command);
            let name = page_name(command);
            assert!(!help.examples.is_empty(), "{name}: {help:?}");
            for line in help.examples.iter().filter(|line| !line.starts_with(' ')) {
                assert!(!line.contains("Examples"), "{name}: {line}");
            }
            assert!(help.examples.iter().any(|line| line.contains("archfs ")), "{name}");
        }
    }
}
