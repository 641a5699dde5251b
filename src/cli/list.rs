//! `archfs list`: the user's mounts on this node.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use serde::Serialize;

use super::bar::Bar;
use super::term;
use crate::error::{Error, Kind, Result};
use crate::lifecycle::{self, Listed, State};
use crate::log::{Verbosity, printable};

/// List your archfs mounts on this node: mount point, archives, daemon, holders, state
#[derive(Debug, clap::Args)]
#[command(
    after_help = "State: alive; stale (run archfs gc); silent (the daemon does not answer); unknown.

Examples:
  archfs list
  archfs list --json | jq -r .mountpoint"
)]
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
    state: &'static str,
}

#[derive(Serialize)]
struct HolderRow {
    pid: i32,
    name: String,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    crate::log::start(Verbosity::Default, None);
    let mut text = String::new();
    let bar = Bar::wait("asking the daemons of your mounts");
    let all = lifecycle::list();
    drop(bar);
    for listed in all? {
        if args.json {
            let row = serde_json::to_string(&row(&listed))
                .map_err(|error| Error::new(Kind::Io, "cannot write JSON").with_source(error))?;
            text.push_str(&term::json_for_output(&row));
        } else {
            text.push_str(&line(&listed));
        }
        text.push('\n');
    }
    term::written(std::io::stdout().write_all(text.as_bytes()))?;
    Ok(0)
}

fn row(listed: &Listed) -> Row {
    let Listed { mount_point, archives, daemon, holders, kept, state } = listed;
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
        // Scripts match this value.
        state: if *state == State::Stale { "dead" } else { name(*state) },
    }
}

/// How a mount without an end is described.
const KEPT: &str = "kept until unmount";

fn line(listed: &Listed) -> String {
    let Listed { mount_point, archives, daemon, holders, kept, state } = listed;
    let archive = archives.first().map(|path| path.display().to_string()).unwrap_or_default();
    let more = match archives.len() {
        0 | 1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let daemon = daemon.map_or("-".to_owned(), |pid| pid.to_string());
    let mut held: Vec<_> = holders.iter().map(|(pid, name)| format!("{pid} ({name})")).collect();
    if *kept {
        held.push(KEPT.to_owned());
    }
    let held = match held.as_slice() {
        [] => "no holders".to_owned(),
        [first, ..] if first == KEPT => KEPT.to_owned(),
        _ => format!("held by {}", held.join(", ")),
    };
    let mount_point = mount_point.display();
    printable(&format!("{mount_point}: {archive}{more}; daemon {daemon}; {held}; {}", name(*state)))
}

fn name(state: State) -> &'static str {
    match state {
        State::Alive => "alive",
        State::Stale => "stale",
        State::Silent => "silent",
        State::Unknown => "unknown",
    }
}
