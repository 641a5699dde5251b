//! Compares the facts from archfs with those from the other reader.
//!
//! Invariant: a refusal is never wrong. Any other fact is right only if the other reader or a rule
//! confirms it. An entry that only the other reader finds in a tar must be reported as missing.

use std::collections::BTreeMap;

use super::facts::Facts;
use super::rules::{Case, Format};

/// The count of names that archfs leaves out and reports.
const LEFT_OUT: &str = "a name that is missing, of which archfs tells";

/// The verdict on the facts of a mutant.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Facts that both readers agree on.
    pub(crate) right: usize,
    /// Allowed differences, by rule.
    pub(crate) disputes: BTreeMap<&'static str, usize>,
    /// Differences that no rule allows.
    pub(crate) wrong: Vec<String>,
}

impl Verdict {
    /// Compares the facts from archfs with `theirs`; `sound` are the facts of the undamaged
    /// archive.
    pub(crate) fn of(
        format: Format,
        ours: &Facts,
        theirs: &Facts,
        sound: &Facts,
        seed: &str,
    ) -> Self {
        let mut verdict = Self::default();
        for (key, value) in &ours.known {
            let other = theirs.known.get(key);
            if other == Some(value) {
                verdict.right += 1;
                continue;
            }
            let case = Case { key, value, other, ours, theirs, sound, seed };
            match case.rule(format) {
                Some(rule) => *verdict.disputes.entry(rule).or_default() += 1,
                None => verdict.wrong.push(case.to_string()),
            }
        }
        if format != Format::Squashfs {
            verdict.look_for_missing(ours, theirs);
        }
        verdict
    }

    /// If only the other reader finds a name, archfs must have reported it as missing.
    fn look_for_missing(&mut self, ours: &Facts, theirs: &Facts) {
        for key in theirs.known.keys().filter(|key| !ours.known.contains_key(*key)) {
            let Some((directory, name)) = key.split_once(".n") else {
                continue;
            };
            let path =
                if directory == "/" { name.to_owned() } else { format!("{directory}2f{name}") };
            if ours.has_finding_at(&path) {
                *self.disputes.entry(LEFT_OUT).or_default() += 1;
            } else {
                self.wrong.push(format!("{key} is missing, and no message reports it"));
            }
        }
    }
}
