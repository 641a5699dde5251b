//! `archfs stats`: the counters of live mounts.
//!
//! `interval` computes rates; `screen` and `openmetrics` present
//! it; `watch` repeats it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::bar::Bar;
use super::term;
use super::values::time;
use crate::error::{Error, Kind, Result};
use crate::lifecycle::{self, Listed, Snapshot, State};
use crate::log::Verbosity;

mod interval;
mod openmetrics;
mod screen;
mod watch;

/// Show throughput, waits and caches of mounts, and the bottleneck
#[derive(Debug, clap::Args)]
#[command(after_help = "docs/STATS.md explains the bars and each counter.

Examples:
  archfs stats
  archfs stats --watch /dev/shm/$USER-data
  archfs stats --json /dev/shm/$USER-data | jq .read_latency
  archfs stats --openmetrics > archfs.prom")]
pub(super) struct Args {
    /// Mount points [default: all your mounts on this node]
    mountpoint: Vec<PathBuf>,

    /// Show rates every --interval, until the mounts end
    #[arg(short, long, conflicts_with_all = ["json", "openmetrics"])]
    watch: bool,

    /// Time between two looks at the counters
    #[arg(long, value_name = "T", value_parser = time, default_value = "2s", requires = "watch")]
    interval: Duration,

    /// End after that many looks
    #[arg(long, value_name = "N", requires = "watch")]
    count: Option<u64>,

    /// Print one JSON object a line, as --stats-json writes it
    #[arg(long)]
    json: bool,

    /// Print the text format of OpenMetrics, for Prometheus and its node exporter
    #[arg(long, conflicts_with = "json")]
    openmetrics: bool,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    crate::log::start(Verbosity::Default, None);
    if args.watch {
        return watch::run(args);
    }
    let mut readings = Vec::new();
    for mount_point in mount_points(&args.mountpoint, term::show_error)? {
        match json(&mount_point) {
            Ok(json) => readings.push((mount_point, json)),
            // Without names, a mount may end in the meantime.
            Err(error) if args.mountpoint.is_empty() && error.kind() == Kind::NotMounted => {}
            Err(error) => return Err(error),
        }
    }
    let parsed =
        || readings.iter().map(|(_, json)| Snapshot::parse(json)).collect::<Result<Vec<_>>>();
    let text = if args.json {
        readings.iter().map(|(_, json)| term::json_for_output(json.trim_end()) + "\n").collect()
    } else if args.openmetrics {
        openmetrics::text(&parsed()?)
    } else {
        let messages = readings.iter().map(|(mount_point, _)| lifecycle::messages(mount_point));
        let parsed = parsed()?;
        let with_messages = parsed.iter().zip(messages);
        let blocks: Vec<_> =
            with_messages.map(|(reading, messages)| screen::totals(reading, &messages)).collect();
        blocks.iter().map(|lines| lines.join("\n") + "\n").collect::<Vec<_>>().join("\n")
    };
    term::written(std::io::stdout().write_all(text.as_bytes()))?;
    Ok(0)
}

/// Prints the chart of a mount that has ended to standard error.
pub(super) fn print_chart(json: &str) {
    let text = match Snapshot::parse(json) {
        Ok(reading) => screen::at_end(&reading).join("\n") + "\n",
        Err(error) => return term::show_error(&error),
    };
    // If standard error is closed, there is no other place for it.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// The mount points `given`, or those of all live mounts of this user. Passes an error for each
/// mount of the user that has no counters to `report`.
fn mount_points(given: &[PathBuf], report: impl Fn(&Error)) -> Result<Vec<PathBuf>> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let mut found = Vec::new();
    let all = lifecycle::list()?;
    if all.is_empty() {
        let error = Error::new(Kind::NotMounted, "you have no archfs mount on this node");
        return Err(error.with_hint("to make one: archfs mount ARCHIVE MOUNTPOINT"));
    }
    for Listed { mount_point, state, .. } in all {
        let why = match state {
            State::Alive => {
                found.push(mount_point);
                continue;
            }
            State::Stale => lifecycle::STALE,
            State::Silent => "its daemon does not answer; it may be stopped",
            State::Unknown | State::Detached => continue,
        };
        report(&Error::new(Kind::NotMounted, format!("{}: {why}", mount_point.display())));
    }
    if found.is_empty() {
        let error = Error::new(Kind::NotMounted, "no mount of yours is served on this node");
        return Err(error.with_hint("run `archfs list` to see all of them"));
    }
    Ok(found)
}

/// The JSON of the daemon at `mount_point`.
fn json(mount_point: &Path) -> Result<String> {
    let bar = Bar::wait(&format!("waiting for the daemon of {}", mount_point.display()));
    let json = lifecycle::stats(mount_point);
    drop(bar);
    json
}
