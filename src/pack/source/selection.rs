//! What is selected: a list of paths to pack, and patterns of paths to leave out.
//!
//! Invariant: no path of a list leads out of the directory that it is relative to.
//!
//! The paths are in one buffer, sorted with the slash before every other byte. All paths below a
//! directory are then adjacent, and the walk needs only their range for each directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::error::{Error, Kind, Result};
use crate::vfs::Name;

/// What separates the paths of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Separator {
    /// A newline.
    #[default]
    Newline,
    /// A NUL byte, as `find -print0` writes.
    Nul,
}

/// A list of paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileList {
    /// The file with the list; `-` is standard input.
    pub path: PathBuf,
    /// What separates its paths.
    pub separator: Separator,
}

impl FileList {
    /// Reads the list.
    ///
    /// Fails with `Io`; `InvalidInput` if a path is absolute or contains `..`, or if the list is
    /// empty.
    pub(super) fn read(&self) -> Result<Selection> {
        let display = self.path.display().to_string();
        let text = text(&self.path)?;
        let separator = match self.separator {
            Separator::Newline => b'\n',
            Separator::Nul => 0,
        };
        let mut selection = Selection { bytes: Vec::with_capacity(text.len()), paths: Vec::new() };
        for (nth, line) in text.split(|&byte| byte == separator).enumerate() {
            if line.is_empty() {
                continue;
            }
            selection.add(line).map_err(|why| {
                let line = line.escape_ascii();
                Error::new(
                    Kind::InvalidInput,
                    format!("{display}: line {}: {line}: {why}", nth + 1),
                )
                .with_hint("paths of a list are relative to the packed directory")
            })?;
        }
        if selection.paths.is_empty() {
            // For example the output of a failed command in a pipe.
            return Err(Error::new(Kind::InvalidInput, format!("{display}: no paths in the list")));
        }
        selection.sort();
        Ok(selection)
    }
}

/// The contents of a file or of standard input.
pub(super) fn text(path: &Path) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let read = match path.as_os_str().as_bytes() {
        b"-" => io::stdin().lock().read_to_end(&mut text),
        _ => File::open(path).and_then(|mut file| file.read_to_end(&mut text)),
    };
    read.map_err(|error| Error::io(format!("{}: cannot read", path.display()), error))?;
    Ok(text)
}

/// What to pack of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    All,
    /// Only the paths in this range of the selection.
    Only(Range<usize>),
}

/// The paths of a list.
#[derive(Debug, Default)]
pub(super) struct Selection {
    bytes: Vec<u8>,
    paths: Vec<Range<usize>>,
}

impl Selection {
    /// What to pack of the directory that the paths are relative to.
    pub(super) fn top(&self) -> Wanted {
        match self.paths.first() {
            Some(path) if path.is_empty() => Wanted::All,
            _ => Wanted::Only(0..self.paths.len()),
        }
    }

    pub(super) fn paths(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        self.paths[range].iter().map(|path| &self.bytes[path.clone()])
    }

    /// The selected names in a directory whose path is `parent_len` bytes long, each with what to
    /// pack of it.
    pub(super) fn children(
        &self,
        range: Range<usize>,
        parent_len: usize,
    ) -> impl Iterator<Item = (Box<[u8]>, Wanted)> {
        let from = if parent_len == 0 { 0 } else { parent_len + 1 };
        let name = move |nth: usize| {
            let rest = &self.bytes[self.paths[nth].clone()][from..];
            let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
            (&rest[..end], end == rest.len())
        };
        let mut next = range.start;
        std::iter::from_fn(move || {
            if next >= range.end {
                return None;
            }
            let first = next;
            let (child, whole) = name(first);
            next += 1;
            while next < range.end && name(next).0 == child {
                next += 1;
            }
            Some((child.into(), if whole { Wanted::All } else { Wanted::Only(first..next) }))
        })
    }

    fn add(&mut self, path: &[u8]) -> std::result::Result<(), &'static str> {
        if path.starts_with(b"/") {
            return Err("is an absolute path");
        }
        let start = self.bytes.len();
        for part in path.split(|&byte| byte == b'/') {
            match part {
                b"" | b"." => continue,
                b".." => return Err("leaves the directory through '..'"),
                _ if Name::parse(part).is_none() => return Err("contains an invalid name"),
                _ => {}
            }
            if self.bytes.len() > start {
                self.bytes.push(b'/');
            }
            self.bytes.extend_from_slice(part);
        }
        self.paths.push(start..self.bytes.len());
        Ok(())
    }

    fn sort(&mut self) {
        let Self { bytes, paths } = self;
        let key = |path: &Range<usize>| {
            bytes[path.clone()].iter().map(|&byte| if byte == b'/' { 0 } else { byte })
        };
        paths.sort_by(|a, b| key(a).cmp(key(b)));
        paths.dedup_by(|a, b| bytes[a.clone()] == bytes[b.clone()]);
    }
}

/// What the user wants to leave out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excludes {
    /// Files of patterns, one a line; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// Further patterns. They come after those of the files, so they outrank them.
    pub patterns: Vec<String>,
}

impl Excludes {
    /// Whether there are no patterns and no files of patterns.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.patterns.is_empty()
    }
}

/// Compiled patterns, in the syntax of gitignore(5). They match paths in the archive, before the
/// map moves files.
///
/// An excluded directory is not entered. So a pattern with `!` cannot bring back a file whose
/// directory is excluded, as with git.
pub(super) struct Exclusions(Gitignore);

impl Exclusions {
    /// Reads all patterns.
    ///
    /// Fails with `Io` if a file cannot be read; `InvalidInput` and `Usage` if a pattern is
    /// invalid.
    pub(super) fn read(excludes: &Excludes) -> Result<Self> {
        // An empty root: paths are relative already.
        let mut builder = GitignoreBuilder::new("");
        for path in &excludes.files {
            let display = path.display();
            for (nth, line) in text(path)?.split(|&byte| byte == b'\n').enumerate() {
                let failed = |why: String| {
                    Error::new(Kind::InvalidInput, format!("{display}: line {}: {why}", nth + 1))
                };
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                let line = std::str::from_utf8(line).map_err(|_| failed("not UTF-8".into()))?;
                builder.add_line(None, line).map_err(|error| failed(why(&error)))?;
            }
        }
        for pattern in &excludes.patterns {
            let failed =
                |why: String| Error::new(Kind::Usage, format!("--exclude {pattern:?}: {why}"));
            if pattern.trim().is_empty() {
                return Err(failed("the pattern is empty".into()));
            }
            if pattern.starts_with('#') {
                return Err(failed("starts like a comment".into())
                    .with_hint("write \\# for a name that starts with #"));
            }
            builder.add_line(None, pattern).map_err(|error| failed(why(&error)))?;
        }
        let built = builder.build();
        built.map(Self).map_err(|error| Error::new(Kind::InvalidInput, why(&error)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `path`, whose parent is not excluded, is left out.
    pub(super) fn excludes(&self, path: &[u8], is_directory: bool) -> bool {
        self.0.matched(Path::new(OsStr::from_bytes(path)), is_directory).is_ignore()
    }
}

/// The reason in an error of the crate, without the path and line that it adds.
fn why(error: &ignore::Error) -> String {
    match error {
        ignore::Error::Glob { err, .. } => err.clone(),
        ignore::Error::WithLineNumber { err, .. } | ignore::Error::WithPath { err, .. } => why(err),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8], separator: Separator) -> Result<Selection> {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("list");
        std::fs::write(&path, text).unwrap();
        FileList { path, separator }.read()
    }

    fn children(selection: &Selection, wanted: Wanted, parent_len: usize) -> Vec<(String, Wanted)> {
        let Wanted::Only(range) = wanted else { panic!("all") };
        let display = |name: Box<[u8]>| String::from_utf8_lossy(&name).into_owned();
        selection
            .children(range, parent_len)
            .map(|(name, wanted)| (display(name), wanted))
            .collect()
    }

    #[test]
    fn paths_of_a_directory_are_adjacent_and_a_directory_alone_selects_all_of_it() {
        let text = b"a/z\nb\na!\na/b/c\n./a//b/d/\nb/x\n\na!\n";
        let selection = read(text, Separator::Newline).unwrap();
        let top = children(&selection, selection.top(), 0);
        let names: Vec<_> = top.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "a!", "b"]);
        assert_eq!((&top[1].1, &top[2].1), (&Wanted::All, &Wanted::All));
        let a = children(&selection, top[0].1.clone(), 1);
        assert_eq!((a[0].0.as_str(), a[1].0.as_str()), ("b", "z"));
        let b = children(&selection, a[0].1.clone(), 3);
        assert_eq!(b, [("c".to_owned(), Wanted::All), ("d".to_owned(), Wanted::All)]);
        assert_eq!(read(b"x\n.\n", Separator::Newline).unwrap().top(), Wanted::All);
        assert_eq!(read(b".\n", Separator::Newline).unwrap().top(), Wanted::All);
        assert!(read(b"", Separator::Newline).is_err());
    }

    #[test]
    fn nul_separated_names_may_contain_newlines() {
        let selection = read(b"a\nb\0\xff\0", Separator::Nul).unwrap();
        assert_eq!(selection.paths(0..2).collect::<Vec<_>>(), [&b"a\nb"[..], b"\xff"]);
    }

    #[test]
    fn rejects_paths_that_lead_out() {
        for (text, line) in [("ok\n/etc/passwd\n", "/etc/passwd"), ("a/../../b", "a/../../b")] {
            let error = read(text.as_bytes(), Separator::Newline).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidInput);
            assert!(error.to_string().contains(line), "{error}");
        }
        let missing = FileList { path: "/no/such/list".into(), separator: Separator::Nul };
        assert_eq!(missing.read().unwrap_err().kind(), Kind::Io);
    }

    fn excludes(patterns: &[&str], path: &[u8], is_directory: bool) -> bool {
        let patterns = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        let exclusions = Exclusions::read(&Excludes { files: Vec::new(), patterns }).unwrap();
        exclusions.excludes(path, is_directory)
    }

    #[test]
    fn a_pattern_matches_at_any_depth_unless_it_has_a_slash() {
        for path in [&b"x.tmp"[..], b"a/b/x.tmp", b"a/\xff.tmp"] {
            assert!(excludes(&["*.tmp"], path, false), "{}", path.escape_ascii());
            assert!(!excludes(&["/c/*.tmp"], path, false), "{}", path.escape_ascii());
        }
        assert!(excludes(&["/c/*.tmp"], b"c/x.tmp", false));
        assert!(!excludes(&["/c/*.tmp"], b"c/d/x.tmp", false));
        assert!(excludes(&["c/**/x"], b"c/d/e/x", false));
    }

    #[test]
    fn a_slash_at_the_end_matches_directories_alone_and_an_exclamation_mark_keeps_files() {
        assert!(excludes(&["cache/"], b"a/cache", true));
        assert!(!excludes(&["cache/"], b"a/cache", false));
        assert!(!excludes(&["*.log", "!keep.log"], b"a/keep.log", false));
        assert!(excludes(&["!keep.log", "*.log"], b"a/keep.log", false));
    }

    #[test]
    fn later_patterns_of_the_command_line_outrank_those_of_files() {
        let work = tempfile::tempdir().unwrap();
        let file = work.path().join("patterns");
        std::fs::write(&file, "# a comment\n\n*.log\r\n\\#x\n").unwrap();
        let patterns = vec!["!keep.log".to_owned()];
        let exclusions = Exclusions::read(&Excludes { files: vec![file], patterns }).unwrap();
        let found = [&b"a.log"[..], b"keep.log", b"#x", b"# a comment"]
            .map(|path| exclusions.excludes(path, false));
        assert_eq!(found, [true, false, true, false]);
    }

    #[test]
    fn invalid_patterns_are_named() {
        let read = |files, patterns: &[&str]| {
            let patterns = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
            Exclusions::read(&Excludes { files, patterns }).map(drop).unwrap_err()
        };
        for pattern in ["", " ", "#x", "[z-a]", "a{b"] {
            let error = read(Vec::new(), &["ok", pattern]);
            assert_eq!(error.kind(), Kind::Usage, "{pattern}: {error}");
            assert!(error.to_string().contains(&format!("{pattern:?}")), "{error}");
        }
        let work = tempfile::tempdir().unwrap();
        let file = work.path().join("patterns");
        for text in [&b"ok\n[z-a]\n"[..], b"ok\n\xff\n"] {
            std::fs::write(&file, text).unwrap();
            let error = read(vec![file.clone()], &[]);
            assert_eq!(error.kind(), Kind::InvalidInput, "{error}");
            assert!(error.to_string().contains("line 2"), "{error}");
        }
        assert_eq!(read(vec![work.path().join("missing")], &[]).kind(), Kind::Io);
    }
}
