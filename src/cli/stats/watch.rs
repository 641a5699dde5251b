//! `archfs stats --watch`: the rates of mounts, again and again.
//!
//! On a terminal each look replaces the one before. Otherwise each adds a line for each mount.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use console::{Term, truncate_str};

use super::interval::Interval;
use super::{Args, mount_points, screen};
use crate::cli::term::written;
use crate::error::{Kind, Result};
use crate::lifecycle::{self, Snapshot};

/// The shortest interval: a look costs the daemon some time.
const SHORTEST: Duration = Duration::from_millis(200);

pub(super) fn run(args: &Args) -> Result<u8> {
    let mut view = View { term: Term::stdout(), drawn: 0 };
    // Without two readings there are no rates, so the first look is at the time since the start.
    let mut last: BTreeMap<PathBuf, Snapshot> = BTreeMap::new();
    let mut looks = 0;
    loop {
        let start = Instant::now();
        let readings = match look(args) {
            // The mounts have ended.
            Err(error) if looks > 0 && error.kind() == Kind::NotMounted => return Ok(0),
            readings => readings?,
        };
        let with_intervals: Vec<_> = readings
            .iter()
            .map(|(path, reading)| (reading, Interval::between(last.get(path), reading)))
            .collect();
        let lines = if view.is_terminal() {
            view.fitting(
                with_intervals.iter().map(|(reading, interval)| screen::block(reading, interval)),
                || with_intervals.iter().map(|(reading, interval)| screen::line(reading, interval)),
            )
        } else {
            let lines =
                with_intervals.iter().map(|(reading, interval)| screen::line(reading, interval));
            lines.collect()
        };
        match view.draw(&lines) {
            // Nobody reads any more.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(0),
            outcome => written(outcome)?,
        }
        last = readings.into_iter().collect();
        looks += 1;
        if args.count.is_some_and(|count| looks >= count) {
            return Ok(0);
        }
        let interval = args.interval.max(SHORTEST);
        thread::sleep(interval.saturating_sub(start.elapsed()));
    }
}

/// Reads the counters of all mounts that still exist.
fn look(args: &Args) -> Result<Vec<(PathBuf, Snapshot)>> {
    let mut readings = Vec::new();
    let mut missing = None;
    for mount_point in mount_points(&args.mountpoint, |_| {})? {
        match lifecycle::stats(&mount_point).and_then(|json| Snapshot::parse(&json)) {
            Ok(reading) => readings.push((mount_point, reading)),
            Err(error) if error.kind() == Kind::NotMounted => missing = Some(error),
            Err(error) => return Err(error),
        }
    }
    match missing {
        Some(error) if readings.is_empty() => Err(error),
        _ => Ok(readings),
    }
}

struct View {
    term: Term,
    /// Lines on the terminal that the next look replaces.
    drawn: usize,
}

impl View {
    fn is_terminal(&self) -> bool {
        self.term.is_term()
    }

    /// The blocks, or a line each if the terminal is too low for blocks.
    fn fitting<L: Iterator<Item = String>>(
        &self,
        blocks: impl Iterator<Item = Vec<String>>,
        lines: impl FnOnce() -> L,
    ) -> Vec<String> {
        let (rows, columns) = self.term.size();
        // The cursor is on the line below.
        let rows = usize::from(rows).saturating_sub(1);
        let blocks: Vec<_> = blocks.collect();
        let mut fitting = blocks.join(&String::new());
        if fitting.len() > rows {
            fitting = lines().take(rows).collect();
        }
        // A line that wraps would take two rows.
        let cut = |line: &String| truncate_str(line, usize::from(columns), "...").into_owned();
        fitting.iter().map(cut).collect()
    }

    /// Prints `lines`, on a terminal in place of those before.
    fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        if self.is_terminal() {
            self.term.clear_last_lines(self.drawn)?;
            self.drawn = lines.len();
        }
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        (&self.term).write_all(text.as_bytes())
    }
}
