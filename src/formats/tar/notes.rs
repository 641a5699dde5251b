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
    /// By what they are: how many, and the path of one of them.
    skipped: BTreeMap<String, (u64, Option<String>)>,
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

    /// A member is not shown; `what` says what such members are, in the plural. `path` is its own,
    /// if it has one.
    pub(super) fn skip(&mut self, what: &str, path: Option<&[u8]>) {
        self.skip_many(what, 1, path.map(shown));
    }

    fn skip_many(&mut self, what: &str, count: u64, path: Option<String>) {
        let Some((sum, known)) = self.skipped.get_mut(what) else {
            self.skipped.insert(what.to_owned(), (count, path));
            return;
        };
        *sum = sum.saturating_add(count);
        // Not the one that came first: in which order they come depends on how it is scanned.
        *known = match (known.take(), path) {
            (Some(known), Some(path)) => Some(known.min(path)),
            (known, path) => known.or(path),
        };
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
        for (what, (count, path)) in other.skipped {
            self.skip_many(&what, count, path);
        }
    }

    /// A line for each.
    pub(super) fn lines(self) -> Vec<String> {
        let mut lines = self.damages;
        if self.more_damages > 0 {
            lines.push(format!("and damage in {} more places", self.more_damages));
        }
        for (what, (count, path)) in self.skipped {
            let example = path.map_or(String::new(), |path| format!(", such as \"{path}\""));
            lines.push(format!("left out {count}: {what}{example}"));
        }
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
            notes.skip("odd members", Some(format!("m{number}").as_bytes()));
        }
        let mut all = Notes::default();
        all.skip("odd members", Some(b"m5"));
        all.skip("records", None);
        all.append(notes);
        let lines = all.lines();
        assert_eq!(lines.len(), DAMAGES_MAX + 3);
        assert_eq!(lines[DAMAGES_MAX], "and damage in 90 more places");
        assert_eq!(lines[DAMAGES_MAX + 1], "left out 101: odd members, such as \"m0\"");
        assert_eq!(lines[DAMAGES_MAX + 2], "left out 1: records");
    }
}
