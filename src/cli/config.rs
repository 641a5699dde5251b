//! Defaults of options from configuration files, below environment variables and the command line;
//! and which variables count.
//!
//! A line is `key = value`; a key is the name of an environment variable, with or without `ARCHFS_`
//! and in any case: `cache = 8G`. The file of the site comes first, that of the user outranks it.
//! Invariant: a mistake in a file costs a warning and that line, never a mount.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgMatches, Command};
use rustix::process::geteuid;

use super::term;
use crate::error::reason;
use crate::os::directory::base_directory;
use crate::os::trust;

/// The file of the site.
const SITE: &str = "/etc/archfs.conf";

/// Name of the user's file in `$XDG_CONFIG_HOME`, by default `~/.config`.
const NAME: &str = "archfs.conf";

/// Prefix of the environment variables.
const PREFIX: &str = "ARCHFS_";

/// Bytes of the largest file that is read.
const BYTES_MAX: u64 = 64 << 10;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    /// Name of the environment variable for the same option.
    variable: String,
    value: String,
    /// `FILE: line N`.
    place: String,
}

/// Parses `arguments` with `command` and the defaults from the files.
pub(super) fn parse(command: Command, arguments: &[OsString]) -> clap::error::Result<ArgMatches> {
    let called = arguments.get(1).and_then(|name| command.find_subcommand(name));
    let takes_any =
        called.is_some_and(|called| called.get_arguments().any(|it| it.get_env().is_some()));
    let mut settings = if takes_any { read(&command) } else { Vec::new() };
    while !settings.is_empty() {
        let parsed = with_defaults(command.clone(), &settings).try_get_matches_from(arguments);
        let Err(error) = &parsed else { return parsed };
        // What the user wrote is reported as usual.
        let Some(wrong) = settings.iter().position(|setting| is_about(error, setting, arguments))
        else {
            return parsed;
        };
        let Setting { variable, value, place } = settings.remove(wrong);
        warn(
            &place,
            &format!("{value:?} is not a value of {}; the line is ignored", option(&variable)),
        );
    }
    command.try_get_matches_from(arguments)
}

/// The settings of both files, without those that an environment variable outranks.
fn read(command: &Command) -> Vec<Setting> {
    let mut settings: Vec<Setting> = Vec::new();
    for path in [Some(PathBuf::from(SITE)), users_file()].into_iter().flatten() {
        for setting in text_of(&path).map(|text| lines(&path, &text)).unwrap_or_default() {
            if !is_known(command, &setting.variable) {
                warn(&setting.place, &format!("{} is not an option", option(&setting.variable)));
                continue;
            }
            settings.retain(|earlier| earlier.variable != setting.variable);
            // As for a variable, an empty value is none.
            if !setting.value.is_empty() && std::env::var_os(&setting.variable).is_none() {
                settings.push(setting);
            }
        }
    }
    settings
}

fn users_file() -> Option<PathBuf> {
    base_directory("XDG_CONFIG_HOME", ".config").map(|directory| directory.join(NAME))
}

/// The text of a file, if there is one that no other user can write.
fn text_of(path: &Path) -> Option<String> {
    let shown = path.display().to_string();
    let file = match File::open(path) {
        Ok(file) => file,
        // PermissionDenied: HOME is that of another user.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied
            ) =>
        {
            return None;
        }
        Err(error) => {
            warn(&shown, &format!("cannot read: {}", reason(error)));
            return None;
        }
    };
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || !trust::is_trusted(&metadata) || metadata.mode() & 0o002 != 0 {
        warn(&shown, "ignored, because another user can write it");
        return None;
    }
    let mut bytes = Vec::new();
    match file.take(BYTES_MAX).read_to_end(&mut bytes) {
        Ok(_) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => {
            warn(&shown, &format!("cannot read: {}", reason(error)));
            None
        }
    }
}

/// The settings in `text`, the contents of `path`. Reports lines that are none.
fn lines(path: &Path, text: &str) -> Vec<Setting> {
    let mut settings = Vec::new();
    for (nth, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let place = format!("{}: line {}", path.display(), nth + 1);
        let Some((key, value)) = line.split_once('=') else {
            warn(&place, "not a line KEY = VALUE");
            continue;
        };
        let key = key.trim().to_ascii_uppercase().replace('-', "_");
        let variable = format!("{PREFIX}{}", key.trim_start_matches(PREFIX));
        settings.push(Setting { variable, value: value.trim().to_owned(), place });
    }
    settings
}

/// Whether some command has an option with that variable.
fn is_known(command: &Command, variable: &str) -> bool {
    let has = |command: &Command| command.get_arguments().any(|it| is_set_by(it, variable));
    command.get_subcommands().any(has)
}

fn is_set_by(argument: &Arg, variable: &str) -> bool {
    argument.get_env() == Some(OsStr::new(variable))
}

/// `command` with the settings as defaults of its subcommands.
fn with_defaults(command: Command, settings: &[Setting]) -> Command {
    command.mut_subcommands(|subcommand| {
        subcommand.mut_args(|argument| {
            let mut found = settings.iter().filter(|it| is_set_by(&argument, &it.variable));
            match found.next() {
                // clap keeps defaults for the life of the program.
                Some(setting) => argument.default_value(&*setting.value.clone().leak()),
                None => argument,
            }
        })
    })
}

/// Whether `error` is about the value of `setting`, and not about one in `arguments`.
fn is_about(error: &clap::Error, setting: &Setting, arguments: &[OsString]) -> bool {
    let option = option(&setting.variable);
    let is_given = |word: &OsString| {
        let rest = word.as_bytes().strip_prefix(option.as_bytes());
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'=')))
    };
    let named = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => argument.split([' ', '=', '[']).next(),
        _ => None,
    };
    named == Some(&option) && !arguments.iter().any(is_given)
}

/// The option that a variable stands for.
fn option(variable: &str) -> String {
    let name = variable.trim_start_matches(PREFIX);
    format!("--{}", name.to_ascii_lowercase().replace('_', "-"))
}

fn warn(place: &str, what: &str) {
    term::print_warning(&format!("{place}: {what}"));
}

/// Arguments that name a file written by archfs, and their variables.
const WRITTEN: [(&str, &str); 3] = [
    ("log_file", "ARCHFS_LOG_FILE"),
    ("stats_json", "ARCHFS_STATS_JSON"),
    ("index", "ARCHFS_INDEX"),
];

/// Makes `command` ignore variables of another user that name a file to be written, and reports
/// each of them.
///
/// `sudo -E` runs archfs as root with the variables of another user. If one of them names a file
/// that archfs writes, root could overwrite any file. So root accepts such names only on the
/// command line.
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
    let without_variable = |argument: Arg| match WRITTEN.iter().any(|it| argument.get_id() == it.0)
    {
        true => argument.env(None),
        false => argument,
    };
    command.mut_subcommands(|subcommand| subcommand.mut_args(without_variable))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_variables_and_comments_are_left_out() {
        let text =
            "# site\n\ncache = 8G\n  ARCHFS_STAGE=/local disk \nno-name-readahead = yes\ngrace=\n";
        let found: Vec<_> = lines(Path::new("/f"), text)
            .into_iter()
            .map(|Setting { variable, value, place }| format!("{variable} {value} {place}"))
            .collect();
        let expected = [
            "ARCHFS_CACHE 8G /f: line 3",
            "ARCHFS_STAGE /local disk /f: line 4",
            "ARCHFS_NO_NAME_READAHEAD yes /f: line 5",
            "ARCHFS_GRACE  /f: line 6",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn each_variable_belongs_to_the_option_of_its_name() {
        use clap::CommandFactory;
        let command = super::super::Cli::command();
        for subcommand in command.get_subcommands() {
            for argument in subcommand.get_arguments() {
                let Some(variable) = argument.get_env().and_then(OsStr::to_str) else { continue };
                let long = argument.get_long().map(|long| format!("--{long}"));
                assert_eq!(long, Some(option(variable)), "{variable}");
                assert!(is_known(&command, variable));
            }
        }
        assert!(!is_known(&command, "ARCHFS_CASHE"));
    }
}
