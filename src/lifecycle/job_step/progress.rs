//! The progress of the tasks of a step: the lines in which they report it, and the nodes that have.
//!
//! A task writes the line `archfs-step NODE PROGRESS` to its standard output, which the launcher
//! reads through srun. srun puts the number of the task before it (`--label`). Other lines come
//! from the site's TaskProlog and are ignored.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// The progress of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits for `begin`.
    Started,
    /// It is opening the archives. Repeated, so that a task that stays silent has ended.
    Opening,
    /// Its files can be read. It waits for `hold`.
    Ready,
    /// It keeps the mount, and no longer needs srun or the launcher.
    Holding,
    /// It has succeeded, and exits.
    Done,
    /// It has failed with this exit status, and has written the error to standard error.
    Failed(u8),
}

/// The lines that the launcher writes to the standard input of all tasks.
pub(super) const BEGIN: &str = "begin";
pub(super) const HOLD: &str = "hold";

const PREFIX: &str = "archfs-step";

/// A line of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) node: String,
    pub(super) progress: Progress,
}

impl Message {
    /// Parses a line of srun's standard output; `None` if it is not from archfs.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = without_label(line).split_ascii_whitespace();
        if words.next()? != PREFIX {
            return None;
        }
        let node = words.next()?.to_owned();
        let progress = match (words.next()?, words.next()) {
            ("started", None) => Progress::Started,
            ("opening", None) => Progress::Opening,
            ("ready", None) => Progress::Ready,
            ("holding", None) => Progress::Holding,
            ("done", None) => Progress::Done,
            ("failed", Some(status)) => Progress::Failed(status.parse().ok()?),
            _ => return None,
        };
        Some(Self { node, progress })
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX} {} ", self.node)?;
        match self.progress {
            Progress::Started => f.write_str("started"),
            Progress::Opening => f.write_str("opening"),
            Progress::Ready => f.write_str("ready"),
            Progress::Holding => f.write_str("holding"),
            Progress::Done => f.write_str("done"),
            Progress::Failed(status) => write!(f, "failed {status}"),
        }
    }
}

/// A line without the number of the task, which srun puts before it.
pub(super) fn without_label(line: &str) -> &str {
    match line.split_once(": ") {
        Some((label, rest)) if label.trim_start().parse::<u32>().is_ok() => rest,
        _ => line,
    }
}

/// The nodes of a step that have reported.
#[derive(Debug, Default)]
pub(super) struct Reports {
    expected: usize,
    reports: BTreeMap<String, Report>,
}

#[derive(Debug)]
struct Report {
    progress: Progress,
    time: Instant,
}

impl Reports {
    /// `expected` nodes, none of which has reported.
    pub(super) fn new(expected: usize) -> Self {
        Self { expected, ..Self::default() }
    }

    /// Records a message that arrived at `now`.
    pub(super) fn note(&mut self, message: Message, now: Instant) {
        self.reports.insert(message.node, Report { progress: message.progress, time: now });
    }

    /// Whether every node has reported, and `is_far_enough` holds for all of them.
    pub(super) fn all(&self, is_far_enough: impl Fn(Progress) -> bool) -> bool {
        self.reports.len() >= self.expected
            && self.reports.values().all(|report| is_far_enough(report.progress))
    }

    pub(super) fn count(&self) -> usize {
        self.reports.len()
    }

    /// The nodes that have reported, but for which `is_far_enough` does not hold.
    pub(super) fn behind(&self, is_far_enough: impl Fn(Progress) -> bool) -> Vec<&str> {
        let behind = self.reports.iter().filter(|(_, report)| !is_far_enough(report.progress));
        behind.map(|(name, _)| name.as_str()).collect()
    }

    /// The nodes that failed, and the highest exit status among them.
    pub(super) fn failed(&self) -> Option<(Vec<String>, u8)> {
        let failed = self.reports.iter().filter_map(|(name, report)| match report.progress {
            Progress::Failed(status) => Some((name.clone(), status)),
            _ => None,
        });
        let (names, statuses): (Vec<_>, Vec<_>) = failed.unzip();
        statuses.into_iter().max().map(|status| (names, status))
    }

    /// Marks nodes as failed that have not reported for `limit`, if `is_waited_for` holds for their
    /// progress. Returns their names.
    pub(super) fn give_up_silent(
        &mut self,
        is_waited_for: impl Fn(Progress) -> bool,
        now: Instant,
        limit: Duration,
    ) -> Vec<String> {
        let mut silent = Vec::new();
        for (name, report) in &mut self.reports {
            if is_waited_for(report.progress) && now.saturating_duration_since(report.time) >= limit
            {
                report.progress = Progress::Failed(1);
                silent.push(name.clone());
            }
        }
        silent
    }

    /// Restarts, for all nodes, the time that `give_up_silent` measures.
    pub(super) fn restart_clocks(&mut self, now: Instant) {
        for report in self.reports.values_mut() {
            report.time = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_its_own_lines_with_and_without_a_label() {
        use Progress::{Done, Failed, Holding, Opening, Ready, Started};
        for progress in [Started, Opening, Ready, Holding, Done, Failed(3)] {
            let message = Message { node: "n1".into(), progress };
            assert_eq!(Message::parse(&message.to_string()).unwrap(), message);
            let labeled = Message::parse(&format!(" 7: {message}\n")).unwrap();
            assert_eq!(labeled, message);
        }
    }

    #[test]
    fn ignores_other_lines() {
        for line in [
            "",
            "0: ",
            "0: module loaded",
            "archfs-step",
            "archfs-step n1",
            "archfs-step n1 failed",
            "archfs-step n1 failed 300",
            "archfs-step n1 ready 1",
            "archfs-steps n1 ready",
        ] {
            assert_eq!(Message::parse(line), None, "{line:?}");
        }
        assert_eq!(without_label("archfs: bad.sqfs: cut"), "archfs: bad.sqfs: cut");
    }

    fn message(node: &str, progress: Progress) -> Message {
        Message { node: node.into(), progress }
    }

    #[test]
    fn all_waits_for_every_expected_node() {
        let now = Instant::now();
        let mut nodes = Reports::new(2);
        let is_ready = |progress| progress == Progress::Ready;
        nodes.note(message("n1", Progress::Ready), now);
        assert!(!nodes.all(is_ready));
        nodes.note(message("n2", Progress::Opening), now);
        assert!(!nodes.all(is_ready));
        nodes.note(message("n2", Progress::Ready), now);
        assert!(nodes.all(is_ready) && nodes.failed().is_none());
    }

    #[test]
    fn failed_returns_all_failed_nodes_and_the_highest_status() {
        let now = Instant::now();
        let mut nodes = Reports::new(3);
        nodes.note(message("n1", Progress::Failed(1)), now);
        nodes.note(message("n2", Progress::Ready), now);
        nodes.note(message("n3", Progress::Failed(4)), now);
        assert_eq!(nodes.failed(), Some((vec!["n1".into(), "n3".into()], 4)));
    }

    #[test]
    fn a_silent_node_has_failed_unless_it_is_ready() {
        let now = Instant::now();
        let limit = Duration::from_secs(30);
        let mut nodes = Reports::new(2);
        nodes.note(message("n1", Progress::Ready), now);
        nodes.note(message("n2", Progress::Opening), now);
        let is_opening = |progress| progress == Progress::Opening;
        assert!(nodes.give_up_silent(is_opening, now + limit / 2, limit).is_empty());
        assert_eq!(nodes.give_up_silent(is_opening, now + limit, limit), ["n2"]);
        assert_eq!(nodes.failed(), Some((vec!["n2".into()], 1)));
    }
}
