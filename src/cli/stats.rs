//! `archfs stats`: prints the counters of a live mount.

use std::io::Write;
use std::path::PathBuf;

use serde_json::Value;

use super::bar::Bar;
use super::term;
use crate::error::{Error, Kind, Result};
use crate::lifecycle;
use crate::log::printable;

/// Show counters and latency percentiles of a live mount
#[derive(Debug, clap::Args)]
#[command(after_help = "docs/STATS.md explains each counter. The unit is part of its name.

Examples:
  archfs stats /dev/shm/$USER-data
  archfs stats --json /dev/shm/$USER-data | jq .read_latency")]
pub(super) struct Args {
    /// The mount point
    mountpoint: PathBuf,

    /// Print one JSON object, as --stats-json writes it
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    let bar = Bar::wait(&format!("waiting for the daemon of {}", args.mountpoint.display()));
    let json = lifecycle::stats(&args.mountpoint);
    drop(bar);
    let json = json?;
    let text = match args.json {
        true => term::json_for_output(json.trim_end()) + "\n",
        false => lines(&json)?,
    };
    term::written(std::io::stdout().write_all(text.as_bytes()))?;
    Ok(0)
}

/// One line for each number: `read_latency.p50_ns 3200`.
fn lines(json: &str) -> Result<String> {
    let numbers: Value = serde_json::from_str(json).map_err(|error| {
        Error::new(Kind::Io, "invalid answer from the daemon").with_source(error)
    })?;
    let mut text = String::new();
    add(&mut text, "", &numbers);
    Ok(text)
}

fn add(text: &mut String, name: &str, value: &Value) {
    let below = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(key, value)| add(text, &below(key), value));
        }
        Value::Array(items) => items.iter().for_each(|item| add(text, name, item)),
        Value::String(string) => text.push_str(&format!("{name} {}\n", printable(string))),
        Value::Null => text.push_str(&format!("{name} -\n")),
        number => text.push_str(&format!("{name} {number}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_line() {
        let json = r#"{"a":{"b_ns":null,"c":2},"d":["x","y\n"]}"#;
        assert_eq!(lines(json).unwrap(), "a.b_ns -\na.c 2\nd x\nd y\\n\n");
        assert!(lines("no JSON").is_err());
    }
}
