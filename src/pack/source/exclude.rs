//! Patterns of paths that are not packed, in the syntax of gitignore(5).
//!
//! Invariant: an excluded directory is not entered. As with git, a pattern with `!`
//! therefore cannot bring back a file whose directory is excluded.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::list;
use crate::error::{Error, Kind, Result};

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

/// Compiled patterns. They match paths in the archive, before the map moves files.
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
            for (nth, line) in list::text(path)?.split(|&byte| byte == b'\n').enumerate() {
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

    /// Whether there are no patterns.
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
