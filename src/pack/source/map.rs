//! A map that moves files: each line has a path, a tab and the new path.
//!
//! Invariants: every error names its line. No two files get the same path.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::selection;
use crate::error::{Error, Kind, Result};
use crate::pack::catalog::InodeId;
use crate::vfs::{Name, Timestamp, joined};

/// Maximum number of errors listed; the others are counted.
const LISTED_MAX: usize = 20;

/// One line: the path of a file and its new path.
struct Line {
    /// Line number, counted from 1.
    number: usize,
    old: Box<[u8]>,
    new: Box<[u8]>,
    /// The file, once a source has it.
    found: Option<(InodeId, Timestamp)>,
}

pub(super) struct PathMap {
    display: String,
    lines: Vec<Line>,
    /// Index of the line by the path of the file.
    old: HashMap<Box<[u8]>, usize>,
    /// Index of the line by the new path.
    new: HashMap<Box<[u8]>, usize>,
    /// Directories that files are moved into, with the index of one such line.
    parents: HashMap<Box<[u8]>, usize>,
    /// Line numbers and reasons of lines that do not match the sources.
    mismatches: Vec<(usize, String)>,
}

impl PathMap {
    /// Reads a map from a file, or from standard input if the path is `-`.
    pub(super) fn read(path: &Path) -> Result<Self> {
        Self::parse(path.display().to_string(), &selection::text(path)?)
    }

    fn parse(display: String, text: &[u8]) -> Result<Self> {
        let mut map = Self {
            display,
            lines: Vec::new(),
            old: HashMap::new(),
            new: HashMap::new(),
            parents: HashMap::new(),
            mismatches: Vec::new(),
        };
        for (nth, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if !line.is_empty()
                && let Err(why) = map.add(nth + 1, line)
            {
                map.mismatches.push((nth + 1, why));
            }
        }
        for line in &map.lines {
            if let Some(&nth) = map.parents.get(&line.new) {
                let other = map.lines[nth].number;
                let why = format!("{}: is a directory in line {other}", line.new.escape_ascii());
                map.mismatches.push((line.number, why));
            }
        }
        map.check_mismatches()?;
        Ok(map)
    }

    fn add(&mut self, number: usize, line: &[u8]) -> std::result::Result<(), String> {
        let (old, new) =
            halves(line).ok_or("expected two paths with a tab or blank between them")?;
        let into = new.ends_with(b"/");
        let (old, mut new) = (clean(old)?, clean(new)?);
        let name = old.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if name.is_empty() || (new.is_empty() && !into) {
            return Err("a path is empty".to_owned());
        }
        if into {
            new = joined(&new, name);
        }
        let (old, new): (Box<[u8]>, Box<[u8]>) = (old.into(), new.into());
        let nth = self.lines.len();
        if let Some(&other) = self.old.get(&old) {
            let other = self.lines[other].number;
            return Err(format!("{}: is also in line {other}", old.escape_ascii()));
        }
        if let Some(&other) = self.new.get(&new) {
            let other = self.lines[other].number;
            return Err(format!("{}: line {other} has the same new path", new.escape_ascii()));
        }
        for (slash, _) in new.iter().enumerate().filter(|&(_, &byte)| byte == b'/') {
            if !self.parents.contains_key(&new[..slash]) {
                self.parents.insert(new[..slash].into(), nth);
            }
        }
        self.old.insert(old.clone(), nth);
        self.new.insert(new.clone(), nth);
        self.lines.push(Line { number, old, new, found: None });
        Ok(())
    }

    /// The index of the line that moves the file at `path`, if there is one.
    pub(super) fn line(&mut self, path: &[u8], is_directory: bool) -> Option<usize> {
        match self.old.get(path) {
            Some(&nth) if is_directory => {
                self.mismatch(nth, format!("{}: is a directory", path.escape_ascii()));
            }
            Some(&nth) => return Some(nth),
            None => {}
        }
        if let Some(&nth) = self.new.get(path) {
            self.mismatch(nth, format!("{}: already exists", path.escape_ascii()));
        } else if let Some(&nth) = self.parents.get(path).filter(|_| !is_directory) {
            self.mismatch(nth, format!("{}: is not a directory", path.escape_ascii()));
        }
        None
    }

    /// Records the file for a line. If two sources have the file, the later one is moved.
    pub(super) fn moved(&mut self, line: usize, inode: InodeId, modified: Timestamp) {
        self.lines[line].found = Some((inode, modified));
    }

    /// Checks that the map matches the sources.
    pub(super) fn check(&mut self) -> Result<()> {
        let listed: HashSet<usize> = self.mismatches.iter().map(|&(number, _)| number).collect();
        let missing = self.lines.iter().filter(|line| line.found.is_none());
        for line in missing.filter(|line| !listed.contains(&line.number)) {
            let why = format!("{}: no such file", line.old.escape_ascii());
            self.mismatches.push((line.number, why));
        }
        self.check_mismatches()
    }

    pub(super) fn moves(&self) -> impl Iterator<Item = (&[u8], InodeId, Timestamp)> {
        let found = |line: &'_ Line| line.found;
        self.lines.iter().filter_map(move |line| {
            found(line).map(|(inode, modified)| (line.new.as_ref(), inode, modified))
        })
    }

    fn mismatch(&mut self, nth: usize, why: String) {
        self.mismatches.push((self.lines[nth].number, why));
    }

    fn check_mismatches(&mut self) -> Result<()> {
        if self.mismatches.is_empty() {
            return Ok(());
        }
        self.mismatches.sort();
        let listed = self.mismatches.iter().take(LISTED_MAX);
        let mut listed: Vec<_> =
            listed.map(|(number, why)| format!("line {number}: {why}")).collect();
        if self.mismatches.len() > LISTED_MAX {
            listed.push(format!("and {} more", self.mismatches.len() - LISTED_MAX));
        }
        Err(Error::new(Kind::InvalidInput, format!("{}: {}", self.display, listed.join("; "))))
    }
}

/// The two paths of a line, separated by a tab or else by the first blanks.
fn halves(line: &[u8]) -> Option<(&[u8], &[u8])> {
    if let Some(separator) = line.iter().position(|&byte| byte == b'\t') {
        let (old, new) = (&line[..separator], &line[separator + 1..]);
        return (!old.is_empty() && !new.is_empty()).then_some((old, new));
    }
    let line = line.trim_ascii();
    let separator = line.iter().position(|&byte| byte == b' ')?;
    Some((&line[..separator], line[separator..].trim_ascii()))
}

/// A path without empty components and `.`.
fn clean(path: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let display = || path.escape_ascii();
    if path.starts_with(b"/") {
        return Err(format!("{}: is an absolute path", display()));
    }
    let mut clean = Vec::with_capacity(path.len());
    for part in path.split(|&byte| byte == b'/') {
        if part.is_empty() || part == b"." {
            continue;
        }
        if Name::parse(part).is_none() {
            return Err(format!("{}: {} is not a valid name", display(), part.escape_ascii()));
        }
        if !clean.is_empty() {
            clean.push(b'/');
        }
        clean.extend_from_slice(part);
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &[u8]) -> Result<PathMap> {
        PathMap::parse("map".to_owned(), text)
    }

    fn lines(text: &[u8]) -> Vec<(String, String)> {
        let display = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let map = parse(text).unwrap();
        map.lines.iter().map(|line| (display(&line.old), display(&line.new))).collect()
    }

    #[test]
    fn accepts_tabs_blanks_and_directories() {
        let found = lines(b"a\tn1/\n./b/c d\tx y\ne   f/g\n\nd/h ./\r\n");
        let expected = [("a", "n1/a"), ("b/c d", "x y"), ("e", "f/g"), ("d/h", "h")];
        assert_eq!(found, expected.map(|(old, new)| (old.to_owned(), new.to_owned())));
    }

    #[test]
    fn reports_each_bad_line_by_number() {
        let text = b"a\tx\nlonely\n/abs\ty\nb\tx\na\tz\nc\t../z\nd\tx/y\ne\t\n";
        let error = parse(text).err().unwrap();
        assert_eq!(error.kind(), Kind::InvalidInput);
        let listed = error.to_string();
        for line in ["map: line 1: ", "line 2: ", "line 3: /abs", "line 4: x: line 1 has"] {
            assert!(listed.contains(line), "{line} in {listed}");
        }
        for line in
            ["line 5: a: is also in line 1", "line 6: ../z: .. is not a valid name", "line 8: "]
        {
            assert!(listed.contains(line), "{line} in {listed}");
        }
        assert!(!listed.contains("line 7: "), "{listed}");
    }

    #[test]
    fn rejects_missing_files_and_occupied_paths() {
        let mut map = parse(b"a\tx/b\nmissing\ty\nf\tg\nh\ttaken\n").unwrap();
        assert_eq!(map.line(b"a", false), Some(0));
        map.moved(0, InodeId(1), Timestamp { seconds: 0, nanoseconds: 0 });
        assert_eq!(map.line(b"x", false), None);
        assert_eq!(map.line(b"f", true), None);
        assert_eq!(map.line(b"taken", true), None);
        assert_eq!(map.line(b"other", false), None);
        let listed = map.check().unwrap_err().to_string();
        let expected = "map: line 1: x: is not a directory; line 2: missing: no such file; \
                        line 3: f: is a directory; line 4: taken: already exists";
        assert_eq!(listed, expected);
    }
}
