//! `archfs verify`: checks whether an archive is intact, and reports the damaged files.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::bar::Bar;
use super::open_args::ContentArgs;
use super::term::{self, name_for_output, written};
use super::values::{size, threads};
use super::{exit, mistakes};
use crate::cache;
use crate::error::Result;
use crate::formats::{self, OpenOptions};
use crate::log::printable;
use crate::os::processors;
use crate::progress::Progress;
use crate::sync::Arc;
use crate::units::counted;
use crate::vfs::{Counts, Finding, Location, Severity, Verified};

/// Read every byte and record of archives, and report damage
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  archfs verify data.sqfs
  archfs verify --json data.tar.zst

Images and uncompressed tars have no checksums of file contents: wrong bytes
that can still be decompressed are not found. Compare a checksum of the archive.

Exit status: 0 no damage found, 3 damaged, 1 something could not be read.")]
pub(super) struct Args {
    /// Archives; each is verified separately
    #[arg(required = true, value_name = "ARCHIVE")]
    archives: Vec<PathBuf>,

    #[command(flatten)]
    content: ContentArgs,

    /// Threads that read [default: one for each CPU core]
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,

    /// Memory for decoded blocks [default: 192M a thread, within a quarter of the job's memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    cache: Option<u64>,

    /// One JSON object a line: one for each finding, then one for the archive
    #[arg(long)]
    json: bool,

    /// Print only damage and errors
    #[arg(short, long)]
    quiet: bool,
}

/// Maximum cache of one thread, bytes: three times the largest chunk.
const CACHE_A_THREAD: u64 = 192 << 20;

/// The keys of `--json` for a finding. Scripts rely on them.
#[derive(Serialize)]
struct FindingRow<'r> {
    archive: &'r str,
    /// `null` if the finding concerns the archive or one of its tables.
    path: Option<String>,
    /// The path in hexadecimal digits if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    kind: &'static str,
    what: &'r str,
}

/// The keys of `--json` for an archive.
#[derive(Serialize)]
struct ArchiveRow<'r> {
    archive: &'r str,
    status: &'static str,
    files: u64,
    #[serde(rename = "folders")]
    directories: u64,
    links: u64,
    others: u64,
    bytes: u64,
    damaged: usize,
    unreadable: usize,
    notes: usize,
    seconds: f64,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    let (offset, index) = (args.content.offset, args.content.index.as_deref());
    if let Some(error) = mistakes::needs_one_archive(&args.archives, offset, index) {
        return Err(error);
    }
    // A warning of a mount is a finding here.
    crate::log::start_without_warnings();
    let cache = args.cache.map(|wanted| cache::reduced_to_fit(wanted, term::print_warning));
    let statuses = args.archives.iter().map(|archive| verify_one(args, archive, cache));
    let statuses = statuses.collect::<Result<Vec<u8>>>()?;
    let most_severe = [3, 2, 1].into_iter().find(|status| statuses.contains(status));
    Ok(most_severe.or(statuses.into_iter().max()).unwrap_or(0))
}

/// Verifies one archive; returns its exit status.
fn verify_one(args: &Args, archive: &PathBuf, cache: Option<u64>) -> Result<u8> {
    let start = Instant::now();
    let threads = args.threads.unwrap_or_else(processors::count);
    let cache_limit = CACHE_A_THREAD.saturating_mul(threads as u64);
    let options = OpenOptions {
        cache_bytes: cache.unwrap_or_else(|| cache_limit.min(cache::default_bytes())),
        ..args.content.options(false)
    };
    let progress = Arc::new(Progress::default());
    let bar = Bar::watch(&progress);
    let outcome = formats::verify(archive, &options, threads, &progress);
    drop(bar);
    let time = start.elapsed();
    let report = Report { args, archive, shown: archive.display().to_string(), time };
    match outcome {
        Ok(verified) => report.print_message(verified),
        Err(error) => {
            let status = exit::of(&error);
            term::show_error(&error);
            if args.json {
                let finding = Finding::from_error(Location::Archive, &error);
                report.json(&[finding], Counts::default())?;
            }
            Ok(status)
        }
    }
}

struct Report<'r> {
    args: &'r Args,
    archive: &'r Path,
    shown: String,
    time: Duration,
}

impl Report<'_> {
    fn print_message(&self, verified: Verified) -> Result<u8> {
        let Verified { counts, mut findings } = verified;
        for finding in &mut findings {
            // Errors name their archive, and so does the report.
            finding.what = finding.what.replacen(&format!("{}: ", self.shown), "", 1);
            // Errors of an inner archive name the directory that it is shown as.
            if let Location::Path(path) = &finding.location
                && let Some(rest) = finding.what.strip_prefix(&format!("{}: ", path.escape_ascii()))
            {
                finding.what = rest.to_owned();
            }
        }
        if self.args.json {
            self.json(&findings, counts)?;
        } else {
            self.lines(&findings)?;
        }
        let (status, word) = verdict(&findings);
        if !self.args.quiet {
            // Without checksums, wrong bytes may be no damage that can be found.
            let leaves_out = findings.iter().any(|finding| finding.severity == Severity::LeftOut);
            let word = match (status, leaves_out) {
                (0, false) => "no damage found",
                (0, true) => "no damage found in the rest",
                _ => word,
            };
            let text = format!("{}: {word}: {}", self.shown, self.summary(&findings, counts));
            if status == 0 { term::print_note(&text) } else { term::print_error(&text) }
        }
        Ok(status)
    }

    /// One line for each finding: damage on standard output, notes on standard error.
    fn lines(&self, findings: &[Finding]) -> Result<()> {
        let mut out = BufWriter::new(std::io::stdout().lock());
        for finding in findings {
            let what = printable(&finding.what);
            if finding.severity.is_note() {
                if !self.args.quiet {
                    term::print_note(&format!("{}: {what}", self.shown));
                }
                continue;
            }
            let several = self.args.archives.len() > 1;
            let archive = std::os::unix::ffi::OsStrExt::as_bytes(self.archive.as_os_str());
            let mut line = Vec::new();
            let path = path_of(finding);
            if path.is_none() || several {
                line.extend(name_for_output(archive));
                line.extend(b": ");
            }
            if let Some(path) = path {
                line.extend(name_for_output(path));
                line.extend(b": ");
            }
            line.extend(what.bytes());
            line.push(b'\n');
            written(out.write_all(&line))?;
        }
        written(out.flush())
    }

    fn json(&self, findings: &[Finding], counts: Counts) -> Result<()> {
        let mut out = BufWriter::new(std::io::stdout().lock());
        for finding in findings {
            let path = path_of(finding);
            let row = FindingRow {
                archive: &self.shown,
                path: path.map(|path| String::from_utf8_lossy(path).into_owned()),
                path_hex: path.and_then(term::hex_if_not_utf8),
                kind: match finding.severity {
                    Severity::Damage => "damaged",
                    Severity::Unreadable => "unreadable",
                    Severity::LeftOut | Severity::Note => "note",
                },
                what: &finding.what,
            };
            line(&mut out, &row)?;
        }
        let count =
            |severity| findings.iter().filter(|finding| finding.severity == severity).count();
        let Counts { files, directories, links, others, bytes } = counts;
        let row = ArchiveRow {
            archive: &self.shown,
            status: verdict(findings).1,
            files,
            directories,
            links,
            others,
            bytes,
            damaged: count(Severity::Damage),
            unreadable: count(Severity::Unreadable),
            notes: count(Severity::LeftOut) + count(Severity::Note),
            seconds: self.time.as_secs_f64(),
        };
        line(&mut out, &row)?;
        written(out.flush())
    }

    fn summary(&self, findings: &[Finding], counts: Counts) -> String {
        let count =
            |severity| findings.iter().filter(|finding| finding.severity == severity).count();
        let mut text = String::new();
        for (severity, noun) in
            [(Severity::Damage, "fault"), (Severity::Unreadable, "unreadable part")]
        {
            let count = count(severity) as u64;
            if count > 0 {
                text.push_str(&format!("{}; ", counted(count, noun)));
            }
        }
        text + &format!("{}; {}", term::contents(counts), term::pace(counts.bytes, self.time))
    }
}

/// The exit status for these findings, and its name.
fn verdict(findings: &[Finding]) -> (u8, &'static str) {
    let any = |severity| findings.iter().any(|finding| finding.severity == severity);
    match (any(Severity::Damage), any(Severity::Unreadable)) {
        (true, _) => (3, "damaged"),
        (false, true) => (1, "unreadable"),
        (false, false) => (0, "sound"),
    }
}

/// The path of a finding; `/` for the root.
fn path_of(finding: &Finding) -> Option<&[u8]> {
    match &finding.location {
        Location::Path(path) if path.is_empty() => Some(b"/"),
        Location::Path(path) => Some(path),
        Location::Archive | Location::Inode(_) => None,
    }
}

fn line(out: &mut impl Write, row: &impl Serialize) -> Result<()> {
    let mut text = term::json_line(row)?;
    text.push('\n');
    written(out.write_all(text.as_bytes()))
}
