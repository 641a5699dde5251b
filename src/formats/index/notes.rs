//! Collects what the user should know about an archive: damage, and members that are left out.
//! There are few lines, however many members they concern.

use std::collections::{BTreeMap, BTreeSet};

use super::Index;
use super::members::{components_of, shown};
use crate::error::{Error, Result};
use crate::formats::bytes::length;
use crate::units::counted;
use crate::vfs::{Finding, Location, Severity};

/// Most lines about damage. A damaged archive may have any number of faults.
const DAMAGES_MAX: usize = 10;

/// Hard links that are left out, as a note says it.
const LOST_LINKS: &str = "hard links whose target is not in the archive";

/// Most findings for `archfs verify`.
const FINDINGS_MAX: usize = 1 << 16;

/// The first character of a note that says that members are missing. A saved index contains it.
const LOSS: char = '!';

/// The notes so far.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// The lines of `line_of`, and whether members are missing.
    damages: Vec<(bool, String)>,
    more_damages: u64,
    /// Kinds of members that are left out: how many, and the path of one of them.
    skipped: BTreeMap<String, (u64, Option<String>)>,
    /// Kinds among them that archfs cannot decode.
    unreadable: BTreeSet<String>,
    /// Damage per file, for `archfs verify`.
    findings: Vec<Finding>,
    more_findings: u64,
}

impl Notes {
    /// Adds damage to the archive that loses no member.
    pub(crate) fn damage(&mut self, error: &Error) {
        self.finding(&[], &format!("{error:#}"));
        self.damage_line(false, line_of(error));
    }

    /// Adds something unusual that is no damage. A mount warns of it all the same.
    pub(crate) fn unusual(&mut self, error: &Error) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding::note(format!("{error:#}")));
        }
        self.damage_line(false, line_of(error));
    }

    /// Adds damage because of which the member at `path` is missing, and perhaps others. An empty
    /// path stands for the archive.
    pub(crate) fn loss(&mut self, path: &[u8], error: &Error) {
        self.finding(path, &format!("{error:#}"));
        self.damage_line(true, line_of(error));
    }

    fn finding(&mut self, path: &[u8], what: &str) {
        if self.findings.len() >= FINDINGS_MAX {
            self.more_findings = self.more_findings.saturating_add(1);
            return;
        }
        let location = match components_of(path).join(&b'/') {
            path if path.is_empty() => Location::Archive,
            path => Location::Path(path),
        };
        self.findings.push(Finding::damage(location, what));
    }

    fn damage_line(&mut self, is_loss: bool, what: String) {
        if self.damages.len() < DAMAGES_MAX {
            self.damages.push((is_loss, what));
        } else if is_loss && let Some(note) = self.damages.iter_mut().find(|(is_loss, _)| !is_loss)
        {
            // Among many faults, a loss is never only counted.
            *note = (true, what);
            self.more_damages = self.more_damages.saturating_add(1);
        } else {
            self.more_damages = self.more_damages.saturating_add(1);
        }
    }

    /// Counts a member that is not shown. `what` names its kind in the plural. `path` is `None`
    /// for a record without a member.
    pub(crate) fn skip(&mut self, what: &str, path: Option<&[u8]>) {
        self.skip_many(what, 1, path.map(shown));
    }

    /// The same for a member that archfs cannot decode.
    pub(crate) fn skip_unreadable(&mut self, what: &str, path: &[u8]) {
        self.skip(what, Some(path));
        self.unreadable.insert(what.to_owned());
    }

    fn skip_many(&mut self, what: &str, count: u64, path: Option<String>) {
        let Some((sum, known)) = self.skipped.get_mut(what) else {
            self.skipped.insert(what.to_owned(), (count, path));
            return;
        };
        *sum = sum.saturating_add(count);
        // The smallest path, because the first one depends on the order of the scan.
        *known = match (known.take(), path) {
            (Some(known), Some(path)) => Some(known.min(path)),
            (known, path) => known.or(path),
        };
    }

    /// Adds a hard link at `path` that is not shown, because `target` is not in the archive.
    pub(crate) fn lost_link(&mut self, path: &[u8], target: &[u8]) {
        self.skip(LOST_LINKS, Some(path));
        let target = shown(target);
        self.finding(path, &format!("a hard link to \"{target}\", which is not in the archive"));
    }

    /// Adds the path of the directory that shows the archive to all damage. The path of the
    /// outermost archive is empty.
    pub(crate) fn within(mut self, path: &[u8]) -> Self {
        if !path.is_empty() {
            self.findings = self.findings.into_iter().map(|finding| finding.below(path)).collect();
            let path = path.escape_ascii();
            let name = |what: &mut String| *what = format!("in \"{path}\": {what}");
            self.damages.iter_mut().for_each(|(_, what)| name(what));
        }
        self
    }

    /// Adds all notes of `other`.
    pub(crate) fn append(&mut self, other: Self) {
        for (is_loss, what) in other.damages {
            self.damage_line(is_loss, what);
        }
        let room = FINDINGS_MAX.saturating_sub(self.findings.len()).min(other.findings.len());
        let over = length(other.findings.len().saturating_sub(room));
        self.more_findings =
            self.more_findings.saturating_add(other.more_findings).saturating_add(over);
        self.findings.extend(other.findings.into_iter().take(room));
        self.more_damages = self.more_damages.saturating_add(other.more_damages);
        for (what, (count, path)) in other.skipped {
            self.skip_many(&what, count, path);
        }
        self.unreadable.extend(other.unreadable);
    }

    /// One text for each note, as a saved index has it, and the findings for `archfs verify`.
    pub(crate) fn finish(mut self) -> (Vec<String>, Vec<Finding>) {
        let mut findings = std::mem::take(&mut self.findings);
        if self.more_findings > 0 {
            let what = counted(self.more_findings, "more damaged part");
            findings.push(Finding::damage(Location::Archive, what));
        }
        // Each lost link already has its own finding.
        let skipped = self.skipped.iter().filter(|(what, _)| *what != LOST_LINKS);
        findings.extend(skipped.map(|(what, left_out)| {
            let is_unreadable = self.unreadable.contains(what);
            let severity = if is_unreadable { Severity::Unreadable } else { Severity::LeftOut };
            Finding { severity, ..Finding::note(left_out_line(what, left_out)) }
        }));
        (self.lines(), findings)
    }

    pub(crate) fn lines(self) -> Vec<String> {
        let damages = self.damages.into_iter();
        let mut lines: Vec<_> =
            damages.map(|(is_loss, what)| if is_loss { loss_line(&what) } else { what }).collect();
        if self.more_damages > 0 {
            lines.push(counted(self.more_damages, "more damaged part"));
        }
        lines.extend(self.skipped.iter().map(|(what, left_out)| left_out_line(what, left_out)));
        lines
    }
}

/// The note on `error`, because of which members are missing.
pub(crate) fn loss_of(error: &Error) -> String {
    loss_line(&line_of(error))
}

fn loss_line(what: &str) -> String {
    format!("{LOSS}{what}")
}

/// Whether a note says that members are missing.
fn is_loss(note: &str) -> bool {
    note.starts_with(LOSS)
}

/// The note on `error`: its sentence, and after a newline its details.
fn line_of(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{error}\n{detail}"),
        None => error.to_string(),
    }
}

/// What is printed of a note: the details only if everything is wanted.
fn shown_line(note: &str) -> String {
    let note = note.strip_prefix(LOSS).unwrap_or(note);
    match note.split_once('\n') {
        None => note.to_owned(),
        Some((what, detail)) => {
            format!("{what}{}", crate::log::detail(format_args!(" ({detail})")))
        }
    }
}

/// Which notes are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logged {
    All,
    /// Those on what is only unusual. The caller reports the other findings of the tree.
    Unusual,
    Nothing,
}

/// Logs the notes on `index`, which belongs to the archive `name`.
///
/// Fails with `Corrupt` if a note says that members are missing, unless `partial` is set.
pub(crate) fn report(name: &str, index: &Index, partial: bool, logged: Logged) -> Result<()> {
    if !partial {
        check_complete(&index.notes)?;
    }
    match logged {
        Logged::All => {
            for note in &index.notes {
                let shown = shown_line(note);
                match is_loss(note) {
                    true => crate::log::loss(format_args!("{name}: {shown}")),
                    false => log::warn!("{name}: {shown}"),
                }
            }
        }
        Logged::Unusual => {
            let unusual = |finding: &&Finding| finding.severity == Severity::Note;
            for finding in index.findings.iter().filter(unusual) {
                log::warn!("{name}: {}", finding.what);
            }
        }
        Logged::Nothing => {}
    }
    Ok(())
}

/// Refuses an archive of which members are missing.
fn check_complete(notes: &[String]) -> Result<()> {
    let mut losses = notes.iter().filter(|note| is_loss(note));
    let Some(first) = losses.next() else { return Ok(()) };
    let mut what = shown_line(first);
    match losses.count() {
        0 => {}
        more => what = format!("{what} (and {})", counted(length(more), "more fault")),
    }
    Err(Error::corrupt(what)
        .with_hint("copy the archive again, or add --partial to mount the rest of it"))
}

/// How many members of a kind were left out, and the path of one of them.
fn left_out_line(what: &str, (count, path): &(u64, Option<String>)) -> String {
    let example = path.as_ref().map_or(String::new(), |path| format!(", such as \"{path}\""));
    format!("left out {count}: {what}{example}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_on_many_faults_take_few_lines() {
        let mut notes = Notes::default();
        for number in 0..100 {
            notes.damage(&Error::corrupt(format!("finding {number}")));
            notes.skip("odd members", Some(format!("m{number}").as_bytes()));
        }
        let mut all = Notes::default();
        all.skip("odd members", Some(b"m5"));
        all.skip("records", None);
        all.append(notes);
        let lines = all.lines();
        assert_eq!(lines.len(), DAMAGES_MAX + 3);
        assert_eq!(lines[DAMAGES_MAX], "90 more damaged parts");
        assert_eq!(lines[DAMAGES_MAX + 1], "left out 101: odd members, such as \"m0\"");
        assert_eq!(lines[DAMAGES_MAX + 2], "left out 1: records");
    }

    #[test]
    fn a_loss_is_never_only_counted() {
        let mut notes = Notes::default();
        for number in 0..DAMAGES_MAX {
            notes.damage(&Error::corrupt(format!("finding {number}")));
        }
        assert!(!notes.damages.iter().any(|(is_loss, _)| *is_loss));
        notes.loss(b"a", &Error::corrupt("cut off").with_detail(format_args!("at 7")));
        let lines = notes.within(b"below").lines();
        assert_eq!(lines.len(), DAMAGES_MAX + 1);
        assert_eq!(lines[0], "!in \"below\": cut off\nat 7");
        assert!(is_loss(&lines[0]) && !lines[1..].iter().any(|line| is_loss(line)));
        assert_eq!(shown_line(&lines[0]), "in \"below\": cut off");
    }
}
