//! The one error type of the crate.
//!
//! Owns what went wrong as a kind (a caller acts on it), a sentence (a person reads it), an
//! optional hint and an optional source. Leaves the exit status to `cli::exit` and the errno to
//! `fuse::reply`.
//! Invariant: the sentence names what and where; it never repeats the source's text.

use std::error::Error as StdError;
use std::fmt;
use std::io;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What a caller can act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A path, process or mount that was named is not there.
    NotFound,
    /// A directory was needed.
    NotADirectory,
    /// Something other than a directory was needed.
    IsADirectory,
    /// A number or a name that can not be right for this object.
    InvalidInput,
    /// Past the end of the file (lseek).
    PastEnd,
    /// The extended attribute is not there.
    NoAttribute,
    /// The archive contradicts itself or its format.
    Corrupt,
    /// The archive ends before it should; what came before that is as good as any.
    Truncated,
    /// The file is of no format that archfs reads.
    UnknownFormat,
    /// The archive is well formed, but needs something that archfs lacks.
    Unsupported,
    /// The operating system refused.
    Io,
    /// In use: a mount with open files, a directory that is not empty.
    Busy,
    /// The command line is wrong.
    Usage,
    /// This node, user or place can not mount.
    CannotMount,
    /// Not mounted, or the mount of somebody else.
    NotMounted,
    /// Waited as long as was allowed.
    TimedOut,
    /// A file is not what it was a moment ago.
    Changed,
    /// A signal asked for an end.
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
    /// An error of `kind`; `context` says what and why, such as `data.sqfs: not an archive`.
    pub fn new(kind: Kind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), hint: None, source: None }
    }

    /// The archive contradicts itself; `context` names the structure and where it lies.
    pub fn corrupt(context: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, context)
    }

    /// The archive ends early; `context` names the structure that is cut and where it lies.
    pub fn truncated(context: impl Into<String>) -> Self {
        Self::new(Kind::Truncated, context)
    }

    /// An error of the operating system while doing `context`.
    pub fn io(context: impl Into<String>, source: io::Error) -> Self {
        Self::new(Kind::Io, context).with_source(source)
    }

    /// Adds what lies underneath; shown after the sentence.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds what the person can do about it; shown on a line of its own.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Puts `outer` in front of the sentence: `outer: inner`. A sentence that begins with it stays
    /// as it is: the storage, its format and the command all name the archive.
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

    /// What the person can do about it.
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
    fn shows_the_outer_place_first_and_the_source_last() {
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
