//! The crate's error type: a kind for the caller, a sentence and an optional hint for the user,
//! details and a source. `cli::exit` maps kinds to exit statuses, and `Kind::errno` to errno.
//!
//! Invariants: the sentence names the object and the problem. It never repeats the source's text.
//! No text of an error contains an errno number.

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
    /// A server has not answered for as long as archfs waits for it.
    Unreachable,
    /// A server does not let this user read.
    Denied,
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
    /// Another archfs process has printed the error, and exited with this status.
    Reported(u8),
}

impl Kind {
    /// What system calls return for it (errno(3)).
    pub fn errno(self) -> i32 {
        match self {
            Self::NotFound => libc::ENOENT,
            Self::NotADirectory => libc::ENOTDIR,
            Self::IsADirectory => libc::EISDIR,
            Self::InvalidInput | Self::Usage => libc::EINVAL,
            Self::PastEnd => libc::ENXIO,
            Self::NoAttribute => libc::ENODATA,
            Self::Busy => libc::EBUSY,
            Self::TimedOut => libc::ETIMEDOUT,
            Self::Corrupt
            | Self::Truncated
            | Self::UnknownFormat
            | Self::Unsupported
            | Self::Io
            | Self::Unreachable
            | Self::Denied
            | Self::CannotMount
            | Self::NotMounted
            | Self::Changed
            | Self::Interrupted
            | Self::Reported(_) => libc::EIO,
        }
    }
}

/// An error: kind, sentence, details, hint, source.
///
/// `{}` shows the sentence and the source: the text for a user. `{:#}` also shows the details, such
/// as offsets in the archive: `data.sqfs: damaged data block (data block at 0x60)`.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    context: String,
    /// What is wrong with a file, without where.
    brief: Option<String>,
    /// What only an expert understands: offsets, texts of libraries.
    detail: Option<String>,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `context` names the object and the problem, such as `data.sqfs: not an
    /// archive`.
    pub fn new(kind: Kind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), brief: None, detail: None, hint: None, source: None }
    }

    /// The archive contradicts itself; `context` names the structure.
    pub fn corrupt(context: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, context)
    }

    /// The archive ends early; `context` names the truncated structure.
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

    /// Adds what only an expert understands, such as an offset in the archive or the text of a
    /// library. It is shown before the details that the error already has.
    #[must_use]
    pub fn with_detail(mut self, detail: impl fmt::Display) -> Self {
        self.detail = Some(match self.detail {
            Some(details) => format!("{detail}; {details}"),
            None => detail.to_string(),
        });
        self
    }

    /// Adds the details of `inner`, whose sentence is part of this one.
    #[must_use]
    pub fn with_details_of(self, inner: &Self) -> Self {
        match inner.detail() {
            Some(detail) => self.with_detail(detail),
            None => self,
        }
    }

    /// The same error for another caller: its text, details and hint, with the source as text.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self {
            kind: self.kind,
            context: self.to_string(),
            brief: self.brief.clone(),
            detail: self.detail.clone(),
            hint: self.hint.clone(),
            source: None,
        }
    }

    /// Replaces the kind.
    #[must_use]
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Adds what is wrong with a file in a few words, such as `damaged data block (gzip)`.
    #[must_use]
    pub fn with_brief(mut self, brief: impl Into<String>) -> Self {
        self.brief = Some(brief.into());
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

    /// Prefixes the sentence with `archive: path: `. Errors of a read name only the archive.
    #[must_use]
    pub fn within_file(mut self, archive: impl fmt::Display, path: impl fmt::Display) -> Self {
        let archive = format!("{archive}: ");
        let problem = self.context.strip_prefix(&archive).unwrap_or(&self.context);
        self.context = format!("{archive}{path}: {problem}");
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

    /// The details, for experts.
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// What is wrong with a file that is named already.
    pub fn brief(&self) -> String {
        match (&self.brief, &self.source) {
            (Some(brief), _) => brief.clone(),
            (None, _) if self.is_damage() => "damaged".to_owned(),
            (None, Some(source)) if self.kind == Kind::Io => {
                format!("cannot be read: {}", reason(source))
            }
            _ => self.to_string(),
        }
    }
}

/// The text of an error of the system or of a library, without the number that Rust appends:
/// `No such file or directory (os error 2)`.
pub fn reason(error: impl fmt::Display) -> String {
    const START: &str = " (os error ";
    let text = error.to_string();
    let mut parts = text.split(START);
    let mut reason = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        match rest.strip_prefix(')') {
            Some(rest) => reason.push_str(rest),
            None => reason.extend([START, part]),
        }
    }
    reason
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        if let Some(detail) = self.detail.as_deref().filter(|_| f.alternate()) {
            write!(f, " ({})", reason(detail))?;
        }
        let mut source = self.source();
        while let Some(cause) = source {
            let text = if f.alternate() { format!("{cause:#}") } else { cause.to_string() };
            write!(f, ": {}", reason(text))?;
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
        let error = Error::io("cannot read 96 bytes at 0x0", io::Error::other("disk on fire"))
            .within("data.sqfs")
            .with_hint("buy a new disk");
        assert_eq!(error.to_string(), "data.sqfs: cannot read 96 bytes at 0x0: disk on fire");
        assert_eq!(error.hint(), Some("buy a new disk"));
        assert_eq!(error.kind(), Kind::Io);
        let again = error.within("data.sqfs").to_string();
        assert_eq!(again, "data.sqfs: cannot read 96 bytes at 0x0: disk on fire");
    }

    #[test]
    fn names_the_file_after_the_archive() {
        for context in ["a.sqfs: block at 0x60: cut", "block at 0x60: cut"] {
            let error = Error::corrupt(context).within_file("a.sqfs", "dir/file").within("a.sqfs");
            assert_eq!(error.to_string(), "a.sqfs: dir/file: block at 0x60: cut");
        }
    }

    #[test]
    fn shows_no_errno_number_wherever_an_error_of_the_system_comes_from() {
        let refused = || io::Error::from_raw_os_error(libc::EACCES);
        let nested = io::Error::other(Error::io("a", refused()));
        for error in [
            Error::io("a", refused()),
            Error::io("a", rustix::io::Errno::ACCESS.into()),
            Error::new(Kind::Io, "a").with_source(rustix::io::Errno::ACCESS),
            Error::new(Kind::Io, "a").with_source(nested),
            Error::corrupt("a").with_detail(refused()),
        ] {
            let texts = [error.to_string(), format!("{error:#}"), error.brief()];
            assert!(texts.iter().all(|text| !text.contains("os error")), "{texts:?}");
            assert!(texts[1].contains("Permission denied"), "{texts:?}");
        }
        assert_eq!(reason(refused()), "Permission denied");
        assert_eq!(reason("x (os error 2) at \"/y\""), "x at \"/y\"");
        assert_eq!(reason("a (os error of mine)"), "a (os error of mine)");
    }

    #[test]
    fn users_see_damage_without_offsets_and_library_texts() {
        let error = Error::corrupt("gzip cannot decode it")
            .with_detail("InvalidHeader in libgz")
            .within("damaged data block")
            .with_detail(format_args!("data block at {:#x}", 0x60))
            .with_detail("inode at 0x623c, byte 419")
            .within("bad.sqfs");
        let sentence = "bad.sqfs: damaged data block: gzip cannot decode it";
        let details = "inode at 0x623c, byte 419; data block at 0x60; InvalidHeader in libgz";
        assert_eq!(error.to_string(), sentence);
        assert_eq!(format!("{error:#}"), format!("{sentence} ({details})"));
        let outer = Error::corrupt(format!("damaged: {error}")).with_details_of(&error);
        assert_eq!(outer.detail(), Some(details));
        assert_eq!(error.brief(), "damaged");
        assert_eq!(error.with_brief("damaged data block").brief(), "damaged data block");
    }

    #[test]
    fn the_details_of_a_source_follow_its_sentence() {
        let source = Error::corrupt("b").with_detail("c");
        let error = Error::new(Kind::Io, "a").with_source(source);
        assert_eq!(error.to_string(), "a: b");
        assert_eq!(format!("{error:#}"), "a: b (c)");
    }

    #[test]
    fn a_brief_text_of_an_error_of_the_system_is_the_reason() {
        let gone = io::Error::from_raw_os_error(libc::ESTALE);
        let error = Error::io("/x/a.sqfs: cannot read 96 bytes at 0x0", gone);
        assert_eq!(error.brief(), "cannot be read: Stale file handle");
    }
}
