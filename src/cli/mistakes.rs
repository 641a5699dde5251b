//! Names mistakes that people make on the command line, where clap would only say that the words do
//! not fit.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;

use crate::error::{Error, Kind};
use crate::formats;
use crate::lifecycle;
use crate::url;

/// Options that only change what another option does, and that option: names in clap, then on the
/// command line.
const DEPENDENT: [(&str, &str, &str, &str); 2] = [
    ("stage_wait", "--stage-wait", "stage", "--stage DIR"),
    ("stage_keep", "--stage-keep", "stage", "--stage DIR"),
];

/// The error for an option on the command line that has no effect without another one. Variables
/// and configuration files may set it for all commands.
pub(super) fn without_effect(matches: &ArgMatches) -> Option<Error> {
    let (_, matches) = matches.subcommand()?;
    let is_given = |id: &str| matches.try_contains_id(id).is_ok_and(|is_there| is_there);
    DEPENDENT.into_iter().find_map(|(id, option, needed, shown)| {
        let is_typed = is_given(id) && matches.value_source(id) == Some(ValueSource::CommandLine);
        (is_typed && !is_given(needed)).then(|| {
            let context = format!("{option} has no effect without {shown}");
            Error::new(Kind::Usage, context).with_hint(format!("add {shown}, or leave it out"))
        })
    })
}

/// Options of mksquashfs, and what to write for them. clap would read `-comp` as `-c omp`.
const MKSQUASHFS: [(&str, &str); 14] = [
    ("-comp", "--compressor NAME"),
    ("-Xcompression-level", "--compressor NAME:LEVEL"),
    ("-Xhc", "--compressor lz4"),
    ("-noI", "--compressor none"),
    ("-noD", "--compressor none"),
    ("-noF", "--compressor none"),
    ("-noX", "--compressor none"),
    ("-processors", "--threads N"),
    ("-all-root", "--owner 0:0"),
    ("-force-uid", "--owner UID:GID"),
    ("-force-gid", "--owner UID:GID"),
    ("-noappend", "--force"),
    ("-no-progress", "--quiet"),
    ("-one-file-system", "--one-file-system"),
];

/// The error for an option of mksquashfs in a call of `archfs pack`.
pub(super) fn foreign_option(arguments: &[OsString]) -> Option<Error> {
    if arguments.get(1).is_none_or(|word| word != "pack") {
        return None;
    }
    let options = arguments.iter().skip(2).take_while(|word| *word != "--");
    let (option, own) =
        options.flat_map(|word| MKSQUASHFS.iter().find(|(option, _)| word == option)).next()?;
    let context = format!("{option}: an option of mksquashfs");
    Some(Error::new(Kind::Usage, context).with_hint(format!("write {own}")))
}

/// Commands that other programs have, and the one of archfs.
const OTHER_COMMANDS: [(&str, &str); 7] = [
    ("check", "verify ARCHIVE"),
    ("create", "pack DIR ARCHIVE"),
    ("ps", "list"),
    ("status", "list"),
    ("test", "verify ARCHIVE"),
    ("unpack", "extract ARCHIVE DIR"),
    ("version", "--version"),
];

const USAGE_OF_RUN: &str = "archfs run [OPTIONS] ARCHIVE... [MOUNTPOINT] -- COMMAND [ARG]...";

/// Options of `run` that people also expect of `mount`.
const OF_RUN: [&str; 3] = ["--private", "--direct", "--or-extract"];

/// Whether a word is the name of an archive.
fn is_named(word: &Path) -> bool {
    ends_as_archive(word) || word.is_file()
}

/// Whether a path ends as the names of archives do.
fn ends_as_archive(path: &Path) -> bool {
    path.file_name().is_some_and(|name| formats::archive_stem(name.as_bytes()).is_some())
}

/// The error for words that clap has rejected, if the mistake is a known one.
pub(super) fn explained(error: &clap::Error, arguments: &[OsString]) -> Option<Error> {
    let missing = |name: &str| match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(names)) => names.iter().any(|found| found.starts_with(name)),
        _ => false,
    };
    let is_run = arguments.get(1).is_some_and(|word| word == "run");
    match error.kind() {
        ErrorKind::MissingRequiredArgument if is_run && missing("<COMMAND>") => {
            let context = match arguments.iter().any(|word| word == "--") {
                true => "no command after --",
                false => "no command: write -- before it",
            };
            Some(Error::new(Kind::Usage, context).with_hint(USAGE_OF_RUN))
        }
        ErrorKind::InvalidSubcommand => {
            let word = arguments.get(1)?;
            let (archive, shown) = (Path::new(word), word.display());
            if let Some((_, own)) = OTHER_COMMANDS.iter().find(|(other, _)| word == other) {
                let error = Error::new(Kind::Usage, format!("unrecognized subcommand '{shown}'"));
                return Some(error.with_hint(format!("archfs {own}")));
            }
            is_named(archive).then(|| {
                let error = Error::new(Kind::Usage, format!("{shown}: no command before it"));
                error.with_hint(format!(
                    "archfs run {shown} -- COMMAND, or archfs mount {shown} DIR"
                ))
            })
        }
        ErrorKind::UnknownArgument if arguments.iter().any(|word| word == "--read-only") => {
            let context = "unexpected argument '--read-only' found";
            Some(Error::new(Kind::Usage, context).with_hint("leave it out: mounts are read-only"))
        }
        ErrorKind::UnknownArgument if arguments.get(1).is_some_and(|word| word == "mount") => {
            let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
                return None;
            };
            OF_RUN.contains(&option.as_str()).then(|| {
                Error::new(Kind::Usage, format!("{option}: only for `archfs run`"))
                    .with_hint(USAGE_OF_RUN)
            })
        }
        // Perhaps an option of COMMAND, which may resemble one of archfs.
        ErrorKind::UnknownArgument if is_run && !arguments.iter().any(|word| word == "--") => {
            let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
                return None;
            };
            let context = format!("unexpected argument '{option}', and no -- before the command");
            let similar = match error.get(ContextKind::SuggestedArg) {
                Some(ContextValue::String(similar)) => format!(" (a similar option: {similar})"),
                _ => String::new(),
            };
            Some(Error::new(Kind::Usage, context).with_hint(USAGE_OF_RUN.to_owned() + &similar))
        }
        ErrorKind::InvalidValue if arguments.iter().skip(1).any(|word| word.is_empty()) => {
            let context = "one of the words is empty";
            Some(Error::new(Kind::Usage, context).with_hint("is a variable not set?"))
        }
        _ => None,
    }
}

/// The error for an archive and a mount point in the wrong order, or for a missing archive in place
/// of the mount point. Asks no mount: only a name that ends like an archive is looked at.
pub(super) fn misplaced(archives: &[impl AsRef<Path>], mount_point: &Path) -> Option<Error> {
    let first = archives.first().map(AsRef::as_ref)?;
    let usage = |context: String| Error::new(Kind::Usage, context);
    if url::is_url(mount_point) && !first.is_dir() {
        let context = format!("{}: a URL, not a mount point", mount_point.display());
        return Some(usage(context).with_hint("the last path is the mount point, a directory"));
    }
    if !ends_as_archive(mount_point) {
        return None;
    }
    let is_missing = |path: &Path| {
        path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    };
    if archives.len() == 1
        && (first.is_dir() || (is_missing(first) && !ends_as_archive(first) && !url::is_url(first)))
        && lifecycle::is_archive(mount_point)
    {
        let (directory, file) = (first.display(), mount_point.display());
        let what = if first.is_dir() { "is a directory" } else { "does not exist" };
        return Some(
            usage(format!("{directory} {what}, and {file} is a file: the archive comes first"))
                .with_hint(format!("write {file} {directory}")),
        );
    }
    is_missing(mount_point).then(|| {
        let context = format!("{}: no such archive", mount_point.display());
        Error::new(Kind::NotFound, context)
            .with_hint("the last path is the mount point, a directory")
    })
}

/// The error for several archives with `--offset` or `--index`, which describe one file.
pub(super) fn needs_one_archive(
    archives: &[PathBuf],
    offset: u64,
    index: Option<&Path>,
) -> Option<Error> {
    (archives.len() > 1 && (offset != 0 || index.is_some())).then(|| {
        let context = "--offset and --index take one archive, but several are given";
        Error::new(Kind::Usage, context)
    })
}
