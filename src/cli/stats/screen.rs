//! The text for people: a block with bars for a mount, or one line.
//!
//! Invariant: apart from the title, no line is wider than 80 columns.

use std::path::Path;
use std::time::Duration;

use super::super::term;
use super::interval::{Bottleneck, Interval, Shares};
use crate::lifecycle::Snapshot;
use crate::log::{Message, printable};
use crate::stats::{ReadaheadState, StageCounts};
use crate::units::{counted, format_duration, format_percent, format_size};

/// Columns of the labels, and of the bars.
const LABEL: usize = 12;
const BAR: usize = 40;

/// The lines for `reading`, with the rates of `interval`.
pub(super) fn block(reading: &Snapshot, interval: &Interval) -> Vec<String> {
    let Shares { storage, decoding, requests } = interval.shares();
    let mut lines = vec![title(reading, "mounted", " ago")];
    let mut add = |label: &str, text: String| lines.push(format!("  {label:LABEL$}{text}"));
    add(
        "read",
        format!(
            "{}/s, {} files/s, {} reads/s",
            format_size(interval.rate(interval.bytes) as u64),
            rounded(interval.rate(interval.files)),
            rounded(interval.rate(interval.reads)),
        ),
    );
    add("readers", waiting(interval));
    add("", "part of the time that reads take".to_owned());
    add("storage", bar(storage, &format_percent(storage)));
    add("decoding", bar(decoding, &format_percent(decoding)));
    add("requests", bar(requests, &format_percent(requests)));
    if let Some(found) = interval.found() {
        add("cache", bar(found, &format!("{} found", format_percent(found))));
    }
    let held = reading.data_cache.held_bytes + reading.metadata_cache.held_bytes;
    let budget = reading.cache_budget_bytes;
    let part = if budget > 0 { held as f64 / budget as f64 } else { 0.0 };
    add("memory", bar(part, &format!("{} of {}", format_size(held), format_size(budget))));
    if let Some(StageCounts { copied, total }) = reading.staged
        && copied < total
    {
        let part = copied as f64 / total as f64;
        add("staged", bar(part, &format!("{} of {}", format_percent(part), format_size(total))));
    }
    if let Some(counts) = &reading.together {
        add("nodes", counts.to_string());
    }
    if let Some(counts) = reading.readahead.filter(|counts| counts.state != ReadaheadState::Off) {
        add("ahead", counts.to_string());
    }
    let is_blocked = reading.blocked.requests > 0;
    // Reads in progress are not among those that the interval counts.
    if !(is_blocked && matches!(interval.bottleneck(), Bottleneck::Idle | Bottleneck::Readers)) {
        lines.push(format!("  {}", sentence(interval)));
    }
    if is_blocked {
        lines.push(format!("  {}.", reading.blocked));
    }
    lines
}

/// The lines for all that `reading` counted since the start of its mount, then the `messages` of
/// its daemon, which may be wider.
pub(super) fn totals(reading: &Snapshot, messages: &[Message]) -> Vec<String> {
    let interval = Interval::between(None, reading);
    let mut lines = block(reading, &interval);
    let mut add = |label: &str, text: String| lines.push(format!("  {label:LABEL$}{text}"));
    let size = format_size(interval.bytes);
    let mut counts = format!("{}, {size}", counted(interval.files, "file"));
    counts += &format!(", {}", counted(interval.reads, "read"));
    if interval.direct_reads > 0 {
        counts += &format!(", {}", counted(interval.direct_reads, "direct read"));
    }
    add("total", counts);
    for (label, latency) in
        [("a lookup", &reading.lookup_latency), ("a read", &reading.read_latency)]
    {
        let times = [latency.p50_ns, latency.p99_ns, latency.max_ns].map(|time| time.map(duration));
        if let [Some(p50), Some(p99), Some(longest)] = times {
            add(label, format!("{p50} (half of them), {p99} (99%), at most {longest}"));
        }
    }
    if let Some(peak) = reading.peak_memory_bytes {
        add("daemon", format!("at most {} of memory", format_size(peak)));
    }
    if reading.faults > 0 {
        let requests = counted(reading.faults, "request");
        add("faults", format!("{requests} failed"));
    }
    lines.extend(term::without_hints(messages).map(|line| format!("  {line}")));
    lines
}

/// The lines of `totals` for a mount that has ended.
pub(super) fn at_end(reading: &Snapshot) -> Vec<String> {
    let mut lines = totals(reading, &[]);
    lines[0] = title(reading, "was mounted for", "");
    lines
}

/// One line, for a log.
pub(super) fn line(reading: &Snapshot, interval: &Interval) -> String {
    let found =
        interval.found().map(|found| format!(", {} found in the cache", format_percent(found)));
    let text = format!(
        "{}: {}/s, {} files/s, {}{}; bottleneck: {}",
        reading.mountpoint,
        format_size(interval.rate(interval.bytes) as u64),
        rounded(interval.rate(interval.files)),
        waiting(interval),
        found.unwrap_or_default(),
        match interval.bottleneck() {
            Bottleneck::Idle => "none",
            Bottleneck::Readers => "readers",
            Bottleneck::Storage => "storage",
            Bottleneck::Decoding => "decoding",
            Bottleneck::Requests => "requests",
        },
    );
    printable(&text)
}

/// The archives, the mount point, and for how long it is mounted, between two words.
fn title(reading: &Snapshot, before: &str, after: &str) -> String {
    let archives = match reading.archives.as_slice() {
        [one] => Path::new(one).file_name().unwrap_or_default().to_string_lossy().into_owned(),
        several => counted(several.len() as u64, "archive"),
    };
    let uptime = Duration::try_from_secs_f64(reading.uptime_seconds).unwrap_or_default();
    let since = format_duration(uptime);
    printable(&format!("{archives} at {}, {before} {since}{after}", reading.mountpoint))
}

/// How long readers wait.
fn waiting(interval: &Interval) -> String {
    let cores = interval.cpu_seconds / interval.seconds.max(f64::MIN_POSITIVE);
    let cores = format!("daemon on {cores:.1} cores");
    match interval.read_ns.checked_div(interval.reads) {
        Some(mean) => {
            let at_a_time = interval.reads_at_a_time();
            format!("wait {} for a read, {at_a_time:.1} at a time; {cores}", duration(mean))
        }
        None => format!("no reads; {cores}"),
    }
}

/// What limits the readers, in a sentence.
fn sentence(interval: &Interval) -> String {
    let Shares { storage, decoding, requests } = interval.shares();
    match interval.bottleneck() {
        Bottleneck::Idle if interval.direct_reads > 0 => {
            "All reads were direct: they need no request.".to_owned()
        }
        Bottleneck::Idle => "Nothing was read, or the page cache answered.".to_owned(),
        Bottleneck::Readers => {
            "The readers are the bottleneck: few of them wait for archfs.".to_owned()
        }
        Bottleneck::Storage => format!(
            "Storage is the bottleneck: {} of the time, at {}/s.",
            format_percent(storage),
            format_size(interval.rate(interval.archive_bytes) as u64)
        ),
        Bottleneck::Decoding => {
            format!("Decoding is the bottleneck: {}. See `archfs info`.", format_percent(decoding))
        }
        Bottleneck::Requests => {
            let share = format_percent(requests);
            format!("The requests are the bottleneck: {share}. See `archfs run --direct`.")
        }
    }
}

/// A bar that is filled to `part`, and a text after it.
fn bar(part: f64, text: &str) -> String {
    format!("{} {text}", term::bar(part, BAR))
}

fn duration(nanoseconds: u64) -> String {
    format_duration(Duration::from_nanos(nanoseconds))
}

/// Small rates with a decimal.
fn rounded(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::Percentiles;
    use crate::stats::CacheCounts;

    /// Counters as large as they get in a week on a large node.
    fn largest(read_ns: u64, archive_ns: u64, decode_ns: u64) -> Snapshot {
        let latency = |total_ns| Percentiles {
            p50_ns: Some(999_940_000),
            p90_ns: Some(999_940_000),
            p99_ns: Some(59_900_000_000),
            max_ns: Some(59_900_000_000),
            total_ns,
        };
        let (hits, loads, held_bytes) = (u64::MAX >> 8, u64::MAX >> 8, 1_099_500_000_000);
        let cache = CacheCounts { hits, loads, held_bytes, decode_ns, ..CacheCounts::default() };
        Snapshot {
            mountpoint: "/m\u{1b}".into(),
            archives: vec!["/x/a.sqfs".into()],
            uptime_seconds: 604_799.0,
            cpu_seconds: 1e8,
            peak_memory_bytes: Some(1_099_500_000_000),
            requests: [("read".to_owned(), 99_999_999_999), ("lookup".to_owned(), 1)].into(),
            faults: 99_999_999,
            files_started: 99_999_999_999,
            served_bytes: 1 << 60,
            archive_bytes: 1 << 60,
            archive_read_ns: archive_ns,
            lookup_latency: latency(0),
            read_latency: latency(read_ns),
            data_cache: cache,
            cache_budget_bytes: 1_099_500_000_000,
            staged: Some(StageCounts { copied: 1_099_500_000_000, total: 1_099_500_000_001 }),
            ..Snapshot::default()
        }
    }

    #[test]
    fn bars_fit_a_terminal_of_80_columns() {
        let week = 604_800_000_000_000;
        for (read, archive, decode, bottleneck) in [
            (64 * week, 60 * week, 0, "Storage"),
            (64 * week, 0, 60 * week, "Decoding"),
            (64 * week, 0, 0, "requests"),
            (week / 100, 0, 0, "readers"),
        ] {
            let reading = largest(read, archive, decode);
            let lines = totals(&reading, &[]);
            assert_eq!(lines[0], "a.sqfs at /m\\u{1b}, mounted 6d 23h ago");
            assert_eq!(at_end(&reading)[0], "a.sqfs at /m\\u{1b}, was mounted for 6d 23h");
            for line in &lines[1..] {
                assert!(line.chars().count() <= 80, "{line}");
            }
            assert!(lines.iter().any(|line| line.contains(bottleneck)), "{lines:?}");
        }
    }
}
