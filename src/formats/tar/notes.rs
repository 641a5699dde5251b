//! What the user should be told of an archive: what is missing, what was left out.
//!
//! Owns the sentences and that there are few of them, however many members they are about.

use std::collections::BTreeMap;

/// Sentences about damage kept; a damaged archive may hold any number of faults.
const DAMAGES_MAX: usize = 10;

/// A path as a person should read it, cut where it is longer than anybody would.
pub(super) fn shown(path: &[u8]) -> String {
    match path.split_at_checked(200) {
        Some((start, rest)) if !rest.is_empty() => format!("{}...", start.escape_ascii()),
        _ => path.escape_ascii().to_string(),
    }
}

/// What was noted so far.
#[derive(Debug, Default)]
pub(super) struct Notes {
    damages: Vec<String>,
    more_damages: u64,
    skipped: BTreeMap<String, u64>,
}

impl Notes {
    /// Something is broken or missing.
    pub(super) fn damage(&mut self, what: String) {
        if self.damages.len() < DAMAGES_MAX {
            self.damages.push(what);
        } else {
            self.more_damages = self.more_damages.saturating_add(1);
        }
    }

    /// A member is not shown; `what` says what such members are, in the plural.
    pub(super) fn skip(&mut self, what: &str) {
        match self.skipped.get_mut(what) {
            Some(count) => *count = count.saturating_add(1),
            None => _ = self.skipped.insert(what.to_owned(), 1),
        }
    }

    /// Says of each damage that it is in the archive shown as the folder `path`; the whole archive
    /// has none.
    pub(super) fn within(mut self, path: &[u8]) -> Self {
        if !path.is_empty() {
            let path = path.escape_ascii();
            self.damages.iter_mut().for_each(|what| *what = format!("in \"{path}\": {what}"));
        }
        self
    }

    /// Adds what was noted elsewhere.
    pub(super) fn append(&mut self, other: Self) {
        other.damages.into_iter().for_each(|what| self.damage(what));
        self.more_damages = self.more_damages.saturating_add(other.more_damages);
        for (what, count) in other.skipped {
            let sum = self.skipped.entry(what).or_insert(0);
            *sum = sum.saturating_add(count);
        }
    }

    /// A line for each.
    pub(super) fn lines(self) -> Vec<String> {
        let mut lines = self.damages;
        if self.more_damages > 0 {
            lines.push(format!("and damage in {} more places", self.more_damages));
        }
        let skipped = self.skipped.into_iter();
        lines.extend(skipped.map(|(what, count)| format!("left out {count}: {what}")));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_of_many_faults_in_few_lines() {
        let mut notes = Notes::default();
        for number in 0..100 {
            notes.damage(format!("fault {number}"));
            notes.skip("odd members");
        }
        let mut all = Notes::default();
        all.skip("odd members");
        all.append(notes);
        let lines = all.lines();
        assert_eq!(lines.len(), DAMAGES_MAX + 2);
        assert_eq!(lines[DAMAGES_MAX], "and damage in 90 more places");
        assert_eq!(lines[DAMAGES_MAX + 1], "left out 101: odd members");
    }
}
