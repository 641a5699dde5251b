//! The crate's error type: a kind for the caller, a sentence and an optional hint for the user, and
//! a source. `cli::exit` maps kinds to exit statuses, `fuse::reply` to errno.
//!
//! Invariant: the sentence names the object and the problem. It never repeats the source's text.

use std::error::Error as StdError;
use std::fmt;
use std::io;

/// The result of all fallible functions in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What a caller can act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The path, process or mount does not exist.
    NotFound,
    /// A directory was expected.
    NotADirectory,
    /// Something other than a directory was expected.
    IsADirectory,
    /// A number or name that cannot be valid for this object.
    InvalidInput,
    /// The offset is past the end of the file (lseek).
    PastEnd,
    /// There is no such extended attribute.
    NoAttribute,
    /// The archive contradicts itself or its format.
    Corrupt,
    /// The archive ends too early. Everything before the end is valid.
    Truncated,
    /// Not a format that archfs reads.
    UnknownFormat,
    /// The archive is valid, but uses a feature that archfs lacks.
    Unsupported,
    /// The operating system reported an error.
    Io,
    /// In use: a mount with open files, a directory that is not empty.
    Busy,
    /// Invalid command line.
    Usage,
    /// This node, user or mount point does not allow mounting.
    CannotMount,
    /// Not mounted, or another user's mount.
    NotMounted,
    /// The time limit has passed.
    TimedOut,
    /// A file has changed since it was opened.
    Changed,
    /// A signal asked the command to stop.
    Interrupted,
}

/// An error: kind, sentence, hint, source.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    context: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `context` names the object and the problem, such as `data.sqfs: not an
    /// archive`.
    pub fn new(kind: Kind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), hint: None, source: None }
    }

    /// The archive contradicts itself; `context` names the structure and its offset.
    pub fn corrupt(context: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, context)
    }

    /// The archive ends early; `context` names the truncated structure and its offset.
    pub fn truncated(context: impl Into<String>) -> Self {
        Self::new(Kind::Truncated, context)
    }

    /// An error of the operating system during `context`.
    pub fn io(context: impl Into<String>, source: io::Error) -> Self {
        Self::new(Kind::Io, context).with_source(source)
    }

    /// Adds the cause, which is shown after the sentence.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds what the user can do about it, shown on its own line.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prefixes the sentence with `outer: `, unless it already starts with that: the storage, the
    /// format and the command all name the archive.
    #[must_use]
    pub fn within(mut self, outer: impl fmt::Display) -> Self {
        let outer = format!("{outer}: ");
        if !self.context.starts_with(&outer) {
            self.context.insert_str(0, &outer);
        }
        self
    }

    /// What a caller can act on.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether the bytes of the archive are at fault.
    pub fn is_damage(&self) -> bool {
        matches!(self.kind, Kind::Corrupt | Kind::Truncated)
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        let mut source = self.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_outer_context_first_and_the_source_last() {
        let error = Error::io("can not read 96 bytes at 0x0", io::Error::other("disk on fire"))
            .within("data.sqfs")
            .with_hint("buy a new disk");
        assert_eq!(error.to_string(), "data.sqfs: can not read 96 bytes at 0x0: disk on fire");
        assert_eq!(error.hint(), Some("buy a new disk"));
        assert_eq!(error.kind(), Kind::Io);
        let again = error.within("data.sqfs").to_string();
        assert_eq!(again, "data.sqfs: can not read 96 bytes at 0x0: disk on fire");
    }
}
