//! `archfs pack`: makes an archive from directories, lists and other archives.

use std::io::Write;
use std::time::Instant;

use super::bar::Bar;
use super::exit;
use super::term::{self, written};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::Interrupt;
use crate::log::Verbosity;
use crate::pack::{self, PackOutcome};
use crate::progress::Progress;
use crate::sync::Arc;
use crate::units::counted;

mod args;
mod summary;

pub(super) use args::Args;

pub(super) fn run(args: &Args) -> Result<u8> {
    let request = args.request()?;
    crate::log::start(if args.quiet { Verbosity::Quiet } else { Verbosity::Default }, None);
    let interrupt = Interrupt::watch()?;
    let start = Instant::now();
    let progress = Arc::new(Progress::default());
    let bar = Bar::watch(&progress);
    let outcome = pack::pack(&request, &progress, interrupt.flag());
    drop(bar);
    let outcome = match outcome {
        Err(error) if error.kind() == Kind::Interrupted => {
            let status = interrupt.signal().map_or(exit::of(&error), |signal| 128 + signal);
            term::show_error(&error.within(request.archive.display()));
            return Ok(status);
        }
        outcome => outcome?,
    };
    let path = request.archive.display();
    let lines =
        outcome.problems.iter().map(|problem| format!("{}: {}", problem.origin, problem.why));
    let most = if args.verbose { usize::MAX } else { term::ERRORS_PRINTED };
    if term::print_errors(lines, most, &path) > 0 {
        term::print_hint("add --verbose to print all of them");
    }
    let PackOutcome { archive, problems, hidden, hidden_path, excluded, only_listed } = outcome;
    if hidden > 0 && !args.quiet {
        let (files, example) = (counted(hidden, "file"), hidden_path.escape_ascii());
        term::print_note(&format!(
            "{path}: later sources hide {files} of earlier ones, for example {example}"
        ));
    }
    if !request.sources.excludes.is_empty() && !args.quiet {
        term::print_note(&match excluded {
            0 => format!("{path}: nothing matches the patterns to exclude"),
            count => format!("{path}: excluded {}", counted(count, "path")),
        });
    }
    let files = counted(problems.len() as u64, "file");
    let Some(archive) = archive else {
        // Contents are not read if the listing failed, so more files may have problems.
        let least = if only_listed { "at least " } else { "" };
        let context = format!("{path}: not made: {least}{files} could not be packed");
        let is_damaged = problems.iter().any(|problem| problem.is_damage);
        let kind = if is_damaged { Kind::Corrupt } else { Kind::Io };
        return Err(Error::new(kind, context).with_hint("use --keep-going to leave them out"));
    };
    let summary = summary::Summary::of(&request, &archive, start.elapsed());
    if args.json {
        let mut text = term::json_for_output(&summary.json(problems.len(), hidden, excluded)?);
        text.push('\n');
        written(std::io::stdout().write_all(text.as_bytes()))?;
    }
    if !args.quiet {
        for line in summary.lines(args.verbose) {
            term::print_note(&line);
        }
    }
    if !problems.is_empty() {
        term::print_warning(&format!("{path}: made without {files} that could not be packed"));
        return Ok(1);
    }
    Ok(0)
}
