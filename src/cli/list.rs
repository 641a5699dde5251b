//! `archfs list`: the user's mounts on this node.

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;

use console::measure_text_width;
use serde::Serialize;

use super::bar::Bar;
use super::term;
use crate::error::Result;
use crate::lifecycle::{self, Listed, State};
use crate::log::{Verbosity, printable};
use crate::stats::{Blocked, ReadaheadCounts, StageCounts, TogetherCounts};

/// List your mounts on this node with state, holders and archives
#[derive(Debug, clap::Args)]
#[command(after_help = "State: alive; stale (run archfs gc); silent (the daemon does not answer);
detached (unmounted, but served to the processes that still have it); unknown.

Examples:
  archfs list
  archfs list --json | jq -r .mountpoint")]
pub(super) struct Args {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// The keys of `--json`. Job scripts rely on them.
#[derive(Serialize)]
struct Row {
    mountpoint: String,
    /// The mount point in hexadecimal digits if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    mountpoint_hex: Option<String>,
    archives: Vec<String>,
    daemon: Option<i32>,
    holders: Vec<HolderRow>,
    kept: bool,
    /// How much of the archives is copied to this node; null without --stage.
    staged: Option<StageCounts>,
    /// How much was read ahead of programs; null if the daemon does not answer.
    readahead: Option<ReadaheadCounts>,
    /// What the nodes of a job read for each other; null unless they do.
    together: Option<TogetherCounts>,
    /// Requests that have waited for long.
    blocked: Blocked,
    /// The first and the last errors and warnings.
    messages: Vec<String>,
    state: &'static str,
}

#[derive(Serialize)]
struct HolderRow {
    pid: i32,
    name: String,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    crate::log::start(Verbosity::Default, None);
    let bar = Bar::wait("asking the daemons of your mounts");
    let all = lifecycle::list();
    drop(bar);
    let all = all?;
    let text = match args.json {
        true => all
            .iter()
            .map(|listed| Ok(term::json_line(&row(listed))? + "\n"))
            .collect::<Result<_>>()?,
        false => {
            table(&all, if std::io::stdout().is_terminal() { term::columns() } else { usize::MAX })
        }
    };
    term::written(std::io::stdout().write_all(text.as_bytes()))?;
    if all.is_empty() {
        term::print_note("you have no archfs mount on this node");
    }
    Ok(0)
}

fn row(listed: &Listed) -> Row {
    let Listed { mount_point, archives, daemon, holders, kept, health, state } = listed;
    Row {
        mountpoint: mount_point.to_string_lossy().into_owned(),
        mountpoint_hex: term::hex_if_not_utf8(mount_point.as_os_str().as_bytes()),
        archives: archives.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
        daemon: *daemon,
        holders: holders
            .iter()
            .map(|(pid, name)| HolderRow { pid: *pid, name: name.clone() })
            .collect(),
        kept: *kept,
        staged: health.staged,
        readahead: health.readahead,
        together: health.together.clone(),
        blocked: health.blocked,
        messages: term::without_hints(&health.messages).collect(),
        // Scripts match this value.
        state: if *state == State::Stale { "dead" } else { name(*state) },
    }
}

/// How a mount without an end is described.
const KEPT: &str = "kept until unmount";

/// Holders and nodes that a row names.
const NAMED: usize = 3;

/// What a user should know of a mount, one line each.
fn remarks(listed: &Listed) -> Vec<String> {
    let health = &listed.health;
    let mut remarks = Vec::new();
    if health.blocked.requests > 0 {
        remarks.push(health.blocked.to_string());
    }
    remarks
        .extend(health.readahead.filter(|ahead| ahead.fetched > 0).map(|ahead| ahead.to_string()));
    if let Some(counts) = &health.together {
        remarks.push(counts.to_string());
        remarks.extend(reads_with(counts));
    }
    remarks.extend(term::without_hints(&health.messages));
    remarks
}

/// Which nodes a mount reads archives with.
fn reads_with(counts: &TogetherCounts) -> Option<String> {
    let named = &counts.names[..counts.names.len().min(NAMED)];
    let more = counts.peers.saturating_sub(named.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| format!("reads with {}{more}", named.join(", ")))
}

/// The rows of `all` under their titles, in columns, then remarks; empty without mounts. If a row
/// is wider than `limit`, each mount has a block of lines instead.
fn table(all: &[Listed], limit: usize) -> String {
    const TITLES: [&str; 5] = ["MOUNT POINT", "STATE", "DAEMON", "HELD BY", "ARCHIVES"];
    if all.is_empty() {
        return String::new();
    }
    let mut rows = vec![TITLES.map(str::to_owned)];
    rows.extend(all.iter().map(cells));
    let width = |column: usize| rows.iter().map(|row| measure_text_width(&row[column])).max();
    let widths: Vec<_> = (0..TITLES.len()).map(|column| width(column).unwrap_or(0)).collect();
    if widths.iter().sum::<usize>() + 2 * (TITLES.len() - 1) > limit {
        return all.iter().map(block).collect::<Vec<_>>().join("\n");
    }
    let line = |row: &[String; 5]| {
        let padded = row.iter().zip(&widths).map(|(cell, width)| {
            let missing = width.saturating_sub(measure_text_width(cell));
            format!("{cell}{}", " ".repeat(missing))
        });
        let line: Vec<_> = padded.collect();
        format!("{}\n", line.join("  ").trim_end())
    };
    let remarks: Vec<_> = all
        .iter()
        .flat_map(|listed| {
            let mount_point = printable(&listed.mount_point.display().to_string());
            let remarks = remarks(listed).into_iter();
            remarks.map(move |remark| format!("{mount_point}: {remark}\n"))
        })
        .collect();
    let gap = if remarks.is_empty() { "" } else { "\n" };
    format!("{}{gap}{}", rows.iter().map(line).collect::<String>(), remarks.concat())
}

/// A mount in lines of its own.
fn block(listed: &Listed) -> String {
    let [mount_point, state, daemon, held, archives] = cells(listed);
    let mut text = format!("{mount_point}\n");
    for (label, cell) in
        [("state", state), ("daemon", daemon), ("held by", held), ("archives", archives)]
    {
        text += &format!("  {label:12}{cell}\n");
    }
    remarks(listed).iter().fold(text, |text, remark| text + "  " + remark + "\n")
}

fn cells(listed: &Listed) -> [String; 5] {
    let Listed { mount_point, archives, daemon, holders, kept, health, state } = listed;
    let archive = archives.first().map(|path| path.display().to_string()).unwrap_or_default();
    let archives = match archives.len() {
        0 | 1 => archive,
        count => format!("{archive} and {} more", count - 1),
    };
    let mut held: Vec<_> =
        holders.iter().take(NAMED).map(|(pid, name)| format!("{pid} ({name})")).collect();
    if holders.len() > NAMED {
        held.push(format!("{} more", holders.len() - NAMED));
    }
    if *kept {
        held.push(KEPT.to_owned());
    }
    let held = if held.is_empty() { "-".to_owned() } else { held.join(", ") };
    let daemon = daemon.map_or("-".to_owned(), |pid| pid.to_string());
    let mount_point = mount_point.display().to_string();
    let state = match health.staged {
        Some(StageCounts { copied, total }) if copied < total => {
            format!("{}, {}% staged", name(*state), copied.saturating_mul(100) / total)
        }
        _ => name(*state).to_owned(),
    };
    [mount_point, state, daemon, held, archives].map(|cell| printable(&cell))
}

fn name(state: State) -> &'static str {
    match state {
        State::Alive => "alive",
        State::Stale => "stale",
        State::Silent => "silent",
        State::Unknown => "unknown",
        State::Detached => "detached",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::Health;
    use crate::log::{Label, Message};

    #[test]
    fn few_nodes_are_named() {
        let of = |peers: u64| {
            let names = (1..=peers.min(64)).map(|number| format!("n{number}")).collect();
            reads_with(&TogetherCounts { peers, names, ..TogetherCounts::default() })
        };
        assert_eq!(of(0), None);
        assert_eq!(of(1).unwrap(), "reads with n1");
        assert_eq!(of(3).unwrap(), "reads with n1, n2, n3");
        assert_eq!(of(1000).unwrap(), "reads with n1, n2, n3 and 997 more");
    }

    #[test]
    fn rows_are_aligned_and_name_few_holders() {
        let message =
            |label, text: &str| Message { number: 0, seconds: None, label, text: text.to_owned() };
        let listed = |mount_point: &str, holders: usize, kept, state| Listed {
            health: match holders {
                5 => Health {
                    staged: Some(StageCounts { copied: 999, total: 1000 }),
                    blocked: Blocked { requests: 1, longest_seconds: 35.0 },
                    messages: vec![
                        message(Label::Error, "a.sqfs: file: damaged data block"),
                        message(Label::Hint, "do it"),
                    ],
                    ..Health::default()
                },
                _ => Health::default(),
            },
            mount_point: mount_point.into(),
            archives: vec!["/x/a.sqfs".into(); holders.max(1)],
            daemon: (holders > 0).then_some(7),
            holders: (0..holders).map(|nth| (100 + nth as i32, "cat".to_owned())).collect(),
            kept,
            state,
        };
        let all = [
            listed("/m", 0, false, State::Stale),
            listed("/m\u{e9}\u{1b}", 2, true, State::Alive),
            listed("/many", 5, false, State::Silent),
        ];
        let expected = "\
MOUNT POINT  STATE               DAEMON  HELD BY                                    ARCHIVES
/m           stale               -       -                                          /x/a.sqfs
/m\u{e9}\\u{1b}    alive               7       100 (cat), 101 (cat), kept until unmount   /x/a.sqfs and 1 more
/many        silent, 99% staged  7       100 (cat), 101 (cat), 102 (cat), 2 more    /x/a.sqfs and 4 more

/many: 1 request has waited 35.0 s for an answer
/many: error: a.sqfs: file: damaged data block
";
        let table = table(&all, usize::MAX);
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        assert_eq!(words(&table), words(expected));
        let at = |word: &str, line: &str| line.split(word).next().map(measure_text_width);
        let lines: Vec<_> = table.lines().collect();
        let widths = |table: &str| table.lines().map(measure_text_width).max().unwrap();
        let column = at("ARCHIVES", lines[0]);
        assert!(lines[1..4].iter().all(|line| at("/x/a", line) == column), "{table}");
        assert_eq!(super::table(&[], 0), "");
        let blocks = super::table(&all, widths(&table) - 1);
        let expected = "\
/m
  state       stale
  daemon      -
  held by     -
  archives    /x/a.sqfs

/m\u{e9}\\u{1b}
  state       alive
  daemon      7
  held by     100 (cat), 101 (cat), kept until unmount
  archives    /x/a.sqfs and 1 more

/many
  state       silent, 99% staged
  daemon      7
  held by     100 (cat), 101 (cat), 102 (cat), 2 more
  archives    /x/a.sqfs and 4 more
  1 request has waited 35.0 s for an answer
  error: a.sqfs: file: damaged data block
";
        assert_eq!(blocks, expected);
    }
}
