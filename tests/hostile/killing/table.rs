//! Counts what the rounds of a run tried, and prints the table.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rustix::process::Signal;

use super::plan::{Phase, Plan, Variant, Victim};
use super::round::Seen;

/// Counts of rounds.
#[derive(Default)]
pub(crate) struct Table {
    variants: BTreeMap<Variant, Row>,
    victims: BTreeMap<Victim, [u64; 4]>,
    phases: BTreeMap<Phase, u64>,
}

#[derive(Default)]
struct Row {
    rounds: u64,
    /// Rounds in which a process got the signal; in the others it was sent too early or too late.
    hits: u64,
    mounted: u64,
    direct: u64,
    dead: u64,
    reads: u64,
    errors: u64,
    slowest: Duration,
    slowest_end: Duration,
}

const SIGNALS: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::KILL];

impl Table {
    pub(crate) fn add(&mut self, plan: &Plan, seen: &Seen) {
        let row = self.variants.entry(plan.variant).or_default();
        row.rounds += 1;
        row.hits += u64::from(seen.hits > 0);
        row.mounted += u64::from(seen.was_read);
        row.direct += u64::from(seen.was_read_directly);
        row.dead += u64::from(seen.dead);
        row.reads += seen.reads;
        row.errors += seen.errors;
        row.slowest = row.slowest.max(seen.mounted_for.unwrap_or_default());
        row.slowest_end = row.slowest_end.max(seen.ended_after);
        *self.phases.entry(plan.phase).or_default() += 1;
        let at = SIGNALS.iter().position(|signal| *signal == plan.signal).unwrap();
        if seen.hits > 0 {
            self.victims.entry(plan.victim).or_default()[at] += 1;
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "variant         rounds  hit  read from  directly  dead mounts    reads  errors  \
             gone after the last holder within  all ended within"
        )?;
        for (variant, row) in &self.variants {
            writeln!(
                f,
                "{:<16}{:>6}{:>5}{:>11}{:>10}{:>13}{:>9}{:>8}{:>32} ms{:>15} ms",
                format!("{variant:?}"),
                row.rounds,
                row.hits,
                row.mounted,
                row.direct,
                row.dead,
                row.reads,
                row.errors,
                row.slowest.as_millis(),
                row.slowest_end.as_millis()
            )?;
        }
        writeln!(f, "hit         SIGTERM  SIGINT  SIGHUP  SIGKILL")?;
        for (victim, [term, int, hup, kill]) in &self.victims {
            writeln!(f, "{:<12}{term:>7}{int:>8}{hup:>8}{kill:>9}", format!("{victim:?}"))?;
        }
        writeln!(f, "phases: {:?}", self.phases)
    }
}
