//! What archfs handed out, judged by what the other reader says.
//!
//! Owns the comparison of facts. Where the two may differ is for `rules` to say.
//! Invariant: what archfs refuses is never wrong, and nothing else is right but what the other
//! says.

use std::collections::BTreeMap;

use crate::facts::Facts;
use crate::rules::{Case, Format};

/// What became of the facts of one mutant.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Both say the same.
    pub(crate) right: usize,
    /// By the rule that allows the difference.
    pub(crate) disputes: BTreeMap<&'static str, usize>,
    /// What no rule allows.
    pub(crate) wrong: Vec<String>,
}

impl Verdict {
    /// Compares what archfs says of a mutant with `theirs`; `sound` is what archfs says of the
    /// archive it was made of.
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
        verdict
    }
}
