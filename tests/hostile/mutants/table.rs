//! The table at the end: outcomes of the mutants of each sound archive.

use std::collections::BTreeMap;
use std::fmt;

/// A worker's result for one mutant.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) number: u64,
    pub(crate) seed: String,
    pub(crate) outcome: String,
    pub(crate) micros: u64,
    pub(crate) peak_kib: u64,
    pub(crate) right: u64,
    pub(crate) wrong: u64,
    pub(crate) disputes: Vec<(u64, String)>,
}

impl Done {
    /// Parses `NUMBER SEED OUTCOME MICROS KIB RIGHT WRONG DISPUTES`.
    pub(crate) fn of_text(text: &str) -> Self {
        let mut words = text.splitn(8, ' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        let (number, seed, outcome) = (word(), word(), word());
        let mut count = || word().parse().expect("a number");
        let (micros, peak_kib, right, wrong) = (count(), count(), count(), count());
        let disputes = word();
        let disputes = disputes.split('|').filter_map(|one| one.split_once('='));
        Self {
            number: number.parse().expect("a number"),
            seed,
            outcome,
            micros,
            peak_kib,
            right,
            wrong,
            disputes: disputes.map(|(count, rule)| (count.parse().unwrap(), rule.into())).collect(),
        }
    }
}

/// A row of the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) mutants: u64,
    pub(crate) refused: u64,
    pub(crate) partly: u64,
    pub(crate) whole: u64,
    pub(crate) right: u64,
    pub(crate) wrong: u64,
    /// The longest time, and its mutant.
    slowest: (u64, u64),
    /// The most memory, and its mutant.
    largest: (u64, u64),
}

/// All rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: BTreeMap<String, Row>,
    rules: BTreeMap<String, u64>,
}

impl Table {
    pub(crate) fn add(&mut self, done: &Done) {
        let row = self.rows.entry(done.seed.clone()).or_default();
        row.mutants += 1;
        match &*done.outcome {
            "refused" => row.refused += 1,
            "partly" => row.partly += 1,
            _ => row.whole += 1,
        }
        row.right += done.right;
        row.wrong += done.wrong;
        row.slowest = row.slowest.max((done.micros, done.number));
        row.largest = row.largest.max((done.peak_kib, done.number));
        for (count, rule) in &done.disputes {
            *self.rules.entry(rule.clone()).or_default() += count;
        }
    }

    /// Number of facts that only a rule allows.
    pub(crate) fn by_rule(&self) -> u64 {
        self.rules.values().sum()
    }

    /// The sum of all rows.
    pub(crate) fn sum(&self) -> Row {
        let mut sum = Row::default();
        for row in self.rows.values() {
            sum.mutants += row.mutants;
            sum.refused += row.refused;
            sum.partly += row.partly;
            sum.whole += row.whole;
            sum.right += row.right;
            sum.wrong += row.wrong;
            sum.slowest = sum.slowest.max(row.slowest);
            sum.largest = sum.largest.max(row.largest);
        }
        sum
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [name, mutants, refused, partly, whole] =
            ["made of", "mutants", "refused", "in part", "whole"];
        writeln!(
            f,
            "{name:<24} {mutants:>8} {refused:>8} {partly:>8} {whole:>8} {:>10} {:>6} {:>18} {:>18}",
            "right", "wrong", "worst ms (of)", "worst MiB (of)"
        )?;
        let sum = self.sum();
        for (name, row) in self.rows.iter().map(|(name, row)| (&**name, row)).chain([("all", &sum)])
        {
            let Row { mutants, refused, partly, whole, right, wrong, slowest, largest } = row;
            let slowest = format!("{} ({})", slowest.0 / 1000, slowest.1);
            let largest = format!("{} ({})", largest.0 >> 10, largest.1);
            writeln!(
                f,
                "{name:<24} {mutants:>8} {refused:>8} {partly:>8} {whole:>8} {right:>10} {wrong:>6} \
                 {slowest:>18} {largest:>18}"
            )?;
        }
        for (rule, count) in &self.rules {
            writeln!(f, "{count:>10} by rule: {rule}")?;
        }
        Ok(())
    }
}
