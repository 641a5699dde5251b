//! Patterns of paths in an archive.
//!
//! `Pattern` follows a walk from the root: a state is the set of its parts that may match the next
//! name. So a walk enters only directories in which something can match.

use globset::{GlobBuilder, GlobMatcher};

use crate::error::{Error, Kind, Result};

/// A compiled pattern.
pub(in crate::cli) struct Pattern(Vec<Part>);

/// What a component of a path must be.
enum Part {
    /// Any number of components (`**`).
    Any,
    Name {
        matcher: GlobMatcher,
        /// Whether it asks for a name that begins with a dot.
        is_hidden: bool,
    },
}

/// Positions of the parts that may match the next component, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State(Vec<usize>);

/// The outcome of a component.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Whether the path up to it matches.
    pub(super) is_match: bool,
    /// The state for what is below it, if anything there can match.
    pub(super) below: Option<State>,
}

impl Pattern {
    /// Whether `path` has a character with a meaning in a pattern.
    pub(in crate::cli) fn is_one(path: &[u8]) -> bool {
        path.iter().any(|byte| b"*?[{".contains(byte))
    }

    /// Compiles `pattern`.
    pub(super) fn parse(pattern: &[u8]) -> Result<Self> {
        let shown = String::from_utf8_lossy(pattern);
        let failed = |why: &str| Error::new(Kind::Usage, format!("{shown}: {why}"));
        let part = |name| Part::name(name).map_err(|error| failed(&error.kind().to_string()));
        let text = std::str::from_utf8(pattern).map_err(|_| failed("a pattern must be UTF-8"))?;
        let mut parts = Vec::new();
        for component in text.split('/').filter(|component| !matches!(*component, "" | ".")) {
            let is_repeated = component == "**" && matches!(parts.last(), Some(Part::Any));
            match component {
                "**" if is_repeated => {}
                "**" => parts.push(Part::Any),
                name => parts.push(part(name)?),
            }
        }
        // What is below a directory does not include the directory itself.
        if matches!(parts.last(), Some(Part::Any)) {
            parts.push(part("*")?);
        }
        Ok(Self(parts))
    }

    /// The state at the root.
    pub(super) fn start(&self) -> State {
        self.closed(vec![0])
    }

    /// The step from a directory in `state` to its entry `name`. A part matches a name that begins
    /// with a dot if `all` is set or the part begins with a dot.
    pub(super) fn step(&self, state: &State, name: &[u8], all: bool) -> Step {
        let name_is_hidden = name.starts_with(b".");
        let mut next = Vec::new();
        for &position in &state.0 {
            match self.0.get(position) {
                Some(Part::Any) if all || !name_is_hidden => next.push(position),
                Some(Part::Name { matcher, is_hidden })
                    if (all || *is_hidden || !name_is_hidden)
                        && matcher.is_match(as_path(name)) =>
                {
                    next.push(position + 1);
                }
                _ => {}
            }
        }
        let State(next) = self.closed(next);
        let is_match = next.last() == Some(&self.0.len());
        let below: Vec<_> = next.into_iter().filter(|&position| position < self.0.len()).collect();
        Step { is_match, below: (!below.is_empty()).then_some(State(below)) }
    }

    /// Adds the positions after each `**`, which may stand for nothing.
    fn closed(&self, mut positions: Vec<usize>) -> State {
        let after: Vec<_> = positions
            .iter()
            .filter(|&&position| matches!(self.0.get(position), Some(Part::Any)))
            .map(|position| position + 1)
            .collect();
        positions.extend(after);
        positions.sort_unstable();
        positions.dedup();
        State(positions)
    }
}

impl Part {
    fn name(pattern: &str) -> std::result::Result<Self, globset::Error> {
        let glob =
            GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build()?;
        Ok(Self::Name { matcher: glob.compile_matcher(), is_hidden: pattern.starts_with('.') })
    }
}

fn as_path(name: &[u8]) -> &std::path::Path {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(name).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `pattern` matches `path`, and whether a walk reaches the path's directory.
    fn matches(pattern: &str, path: &str, all: bool) -> (bool, bool) {
        let pattern = Pattern::parse(pattern.as_bytes()).unwrap();
        let mut state = Some(pattern.start());
        let mut is_match = false;
        for component in path.split('/') {
            let Some(current) = state else { return (false, false) };
            Step { is_match, below: state } = pattern.step(&current, component.as_bytes(), all);
        }
        (is_match, true)
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, path) in [
            ("*", "a"),
            ("/train/*/", "train/n01"),
            ("train/n0[12]/*.jp{e,}g", "train/n02/x.jpeg"),
            ("**/x", "x"),
            ("**/x", "a/b/x"),
            ("a/**/x", "a/x"),
            ("a/**/b/**/x", "a/1/b/2/3/x"),
            ("a/**/**/x", "a/x"),
            ("a/**", "a/b"),
            ("a/**", "a/b/c"),
            ("a/.*", "a/.hidden"),
            // One byte.
            ("??", "\u{e9}"),
            ("[*]", "*"),
            ("\\*", "*"),
        ] {
            assert_eq!(matches(pattern, path, false), (true, true), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("*", "a/b"),
            ("*", ".hidden"),
            ("**", ".hidden/x"),
            ("**/x", "a/.b/x"),
            ("a/**", "a"),
            ("a/b", "a"),
            ("*.jpg", "x.jpeg"),
            ("A", "a"),
        ] {
            assert!(!matches(pattern, path, false).0, "{pattern} {path}");
        }
        assert!(matches("**/x", ".a/.b/x", true).0);
    }

    #[test]
    fn a_walk_enters_no_directory_in_vain() {
        assert_eq!(matches("train/*/x", "val/n01", false), (false, false));
        assert_eq!(matches("train/*", "train/n01/x", false), (false, false));
        assert_eq!(matches("train/**/x", "train/n01/y", false), (false, true));
    }

    #[test]
    fn invalid_patterns_are_usage_errors() {
        for pattern in [&b"a/[b"[..], b"{a", b"\xff*"] {
            let error = Pattern::parse(pattern).err().unwrap();
            assert_eq!(error.kind(), Kind::Usage, "{error}");
        }
        assert!(!Pattern::is_one(b"a.b-c"));
    }
}
