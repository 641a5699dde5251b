//! `archfs extract`: writes the files of archives to a directory.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::builder::FalseyValueParser;

use super::bar::Bar;
use super::open_args::{ContentArgs, open_watched};
use super::values::threads;
use super::{exit, term};
use crate::error::{Error, Kind, Result};
use crate::extract::{self, Existing, ExtractOptions, Extracted, LeftOut};
use crate::formats::OpenOptions;
use crate::lifecycle::Interrupt;
use crate::log::Verbosity;
use crate::progress::Progress;
use crate::sync::Arc;
use crate::units::{counted, quoted};
use crate::vfs::{Finding, Location, Severity};

/// Unpack archives into a directory, in parallel
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "archfs extract [OPTIONS] ARCHIVE... DIR",
    after_help = "\
Examples:
  archfs extract data.sqfs $TMPDIR/data
  archfs extract --only train/n01440764 --only classes.txt data.tar.zst here

Exit status: 0 done, 3 the archive is damaged, 1 something could not be written."
)]
pub(super) struct Args {
    /// The archives, then the directory, which is created if it is missing
    ///
    /// If two archives have the same path, the later one wins.
    #[arg(value_name = "PATH", num_args = 1.., required = true)]
    paths: Vec<PathBuf>,

    /// Extract only this path of the archive and what is below it; may be repeated
    #[arg(long, value_name = "PATH")]
    only: Vec<PathBuf>,

    /// Replace files that exist [default: they are errors]
    #[arg(long)]
    overwrite: bool,

    #[command(flatten)]
    content: ContentArgs,

    /// Extract an archive that is cut off or damaged as far as it goes
    #[arg(long, env = "ARCHFS_PARTIAL", value_parser = FalseyValueParser::new())]
    partial: bool,

    /// Threads that write [default: one for each CPU core, at least 4]
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,

    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    let (directory, archives) = args.split_paths()?;
    crate::log::start(if args.quiet { Verbosity::Quiet } else { Verbosity::Default }, None);
    let start = Instant::now();
    let opening =
        OpenOptions { reads_all: args.only.is_empty(), ..args.content.options(args.partial) };
    let tree = open_watched(archives, &opening)?;
    let interrupt = Interrupt::watch()?;
    let only: Vec<_> = args.only.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
    let options = ExtractOptions {
        only: &only,
        existing: if args.overwrite { Existing::Replace } else { Existing::Keep },
        threads: args.threads.unwrap_or_else(extract::usual_threads),
        interrupt: interrupt.flag(),
    };
    let progress = Arc::new(Progress::default());
    let bar = Bar::watch(&progress);
    let extracted = extract::extract(tree.as_ref(), directory, options, &progress);
    drop(bar);
    let shown = directory.display();
    match extracted {
        Err(error) if error.kind() == Kind::Interrupted => {
            let status = interrupt.signal().map_or(exit::of(&error), |signal| 128 + signal);
            term::show_error(&error.within(shown));
            Ok(status)
        }
        Err(error) if error.kind() == Kind::NotFound => {
            let error = error.within(match archives {
                [archive] => archive.display().to_string(),
                archives => counted(archives.len() as u64, "archive"),
            });
            let archive = archives.last().map(|archive| quoted(archive.display()));
            Err(error
                .with_hint(format!("to see its paths: archfs ls {}", archive.unwrap_or_default())))
        }
        Err(error) => Err(error.within(shown)),
        Ok(extracted) => Ok(args.report(directory, &extracted, start)),
    }
}

impl Args {
    /// The directory, and the archives before it.
    fn split_paths(&self) -> Result<(&PathBuf, &[PathBuf])> {
        match self.paths.split_last() {
            Some((directory, archives)) if !archives.is_empty() => Ok((directory, archives)),
            _ => {
                let error = Error::new(Kind::Usage, "no directory to extract to");
                let archive = self.paths.first().map_or(Path::new("ARCHIVE"), PathBuf::as_path);
                let stem = Path::new(archive.file_stem().unwrap_or("DIR".as_ref()));
                let end = if stem.exists() { "-extracted" } else { "" };
                let (shown, stem) = (archive.display(), stem.display());
                Err(error.with_hint(format!("archfs extract {shown} {stem}{end}")))
            }
        }
    }

    /// Prints the result; returns the exit status.
    fn report(&self, directory: &Path, extracted: &Extracted, start: Instant) -> u8 {
        let Extracted { counts, problems, existing, left_out } = extracted;
        let shown = directory.display();
        let lines = problems.iter().map(|Finding { location, what, .. }| {
            let path = match location {
                Location::Path(path) if !path.is_empty() => {
                    directory.join(std::ffi::OsStr::from_bytes(path)).display().to_string()
                }
                _ => shown.to_string(),
            };
            format!("{path}: {what}")
        });
        term::print_errors(lines, term::ERRORS_PRINTED, &shown);
        if *existing > 0 {
            term::print_hint("use --overwrite to replace files that exist, or another directory");
        }
        if !self.quiet {
            for LeftOut { what, why, count, path } in left_out {
                let (files, path) = (counted(*count, "file"), path.escape_ascii());
                term::print_warning(&format!(
                    "{shown}: {what} not restored for {files}, for example {path}: {why}"
                ));
            }
            let (contents, pace) =
                (term::contents(*counts), term::pace(counts.bytes, start.elapsed()));
            term::print_note(&format!("{shown}: {contents}; {pace}"));
        }
        let is_damaged = problems.iter().any(|found| found.severity == Severity::Damage);
        let status: u8 = match (problems.is_empty(), is_damaged) {
            (true, _) => 0,
            (false, true) => 3,
            (false, false) => 1,
        };
        if self.partial { status.max(exit::of_shown()) } else { status }
    }
}
