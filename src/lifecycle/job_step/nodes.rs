//! The progress of the tasks of a step, as a pure data structure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::message::{Message, Progress};

/// The nodes of a step that have reported.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    expected: usize,
    reports: BTreeMap<String, Report>,
}

#[derive(Debug)]
struct Report {
    progress: Progress,
    time: Instant,
}

impl Nodes {
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

    /// The number of nodes that have reported.
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

    fn message(task: u32, node: &str, progress: Progress) -> Message {
        Message { task: Some(task), node: node.into(), progress }
    }

    #[test]
    fn all_waits_for_every_expected_node() {
        let now = Instant::now();
        let mut nodes = Nodes::new(2);
        let is_ready = |progress| progress == Progress::Ready;
        nodes.note(message(0, "n1", Progress::Ready), now);
        assert!(!nodes.all(is_ready));
        nodes.note(message(1, "n2", Progress::Opening), now);
        assert!(!nodes.all(is_ready));
        nodes.note(message(1, "n2", Progress::Ready), now);
        assert!(nodes.all(is_ready) && nodes.failed().is_none());
    }

    #[test]
    fn failed_returns_all_failed_nodes_and_the_highest_status() {
        let now = Instant::now();
        let mut nodes = Nodes::new(3);
        nodes.note(message(0, "n1", Progress::Failed(1)), now);
        nodes.note(message(1, "n2", Progress::Ready), now);
        nodes.note(message(2, "n3", Progress::Failed(4)), now);
        assert_eq!(nodes.failed(), Some((vec!["n1".into(), "n3".into()], 4)));
    }

    #[test]
    fn a_silent_node_has_failed_unless_it_is_ready() {
        let now = Instant::now();
        let limit = Duration::from_secs(30);
        let mut nodes = Nodes::new(2);
        nodes.note(message(0, "n1", Progress::Ready), now);
        nodes.note(message(1, "n2", Progress::Opening), now);
        let is_opening = |progress| progress == Progress::Opening;
        assert!(nodes.give_up_silent(is_opening, now + limit / 2, limit).is_empty());
        assert_eq!(nodes.give_up_silent(is_opening, now + limit, limit), ["n2"]);
        assert_eq!(nodes.failed(), Some((vec!["n2".into()], 1)));
    }
}
