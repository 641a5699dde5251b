//! What is wrong with an archive.
//!
//! Owns the words for it, from who finds it (trees and those who read them) to who tells it.
//! Invariant: a finding of the archive and a refusal of the system are never mixed up.

use super::Ino;
use crate::error::{Error, Kind};

/// Something to tell of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub location: Location,
    /// What is wrong, and where in the archive.
    pub what: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Bytes of the archive are wrong or missing, or contradict each other.
    Damage,
    /// The system refused to read, so nothing is known.
    Unreadable,
    /// No damage, but something in the archive is not shown.
    LeftOut,
    /// Odd, and in nobody's way.
    Note,
}

/// What a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// The archive, or a table of it.
    Archive,
    /// What has this path, or should have it, without a leading slash.
    Path(Vec<u8>),
    /// What has this number, whatever its names.
    Inode(Ino),
}

impl Severity {
    /// Whether the archive is sound all the same.
    pub fn is_note(self) -> bool {
        matches!(self, Self::LeftOut | Self::Note)
    }
}

impl Finding {
    /// Damage of `location`.
    pub fn damage(location: Location, what: impl Into<String>) -> Self {
        Self { severity: Severity::Damage, location, what: what.into() }
    }

    /// Something about the archive that is odd, and no damage.
    pub fn note(what: impl Into<String>) -> Self {
        Self { severity: Severity::Note, location: Location::Archive, what: what.into() }
    }

    /// Something in the archive is not shown, and that is no damage.
    pub fn left_out(what: impl Into<String>) -> Self {
        Self { severity: Severity::LeftOut, ..Self::note(what) }
    }

    /// What an error that somebody met says of `location`.
    pub fn met(location: Location, error: &Error) -> Self {
        let severity = match error.kind() {
            Kind::Corrupt | Kind::Truncated | Kind::UnknownFormat | Kind::Unsupported => {
                Severity::Damage
            }
            // What a tree itself named is not there, or is something else.
            Kind::NotADirectory
            | Kind::IsADirectory
            | Kind::InvalidInput
            | Kind::PastEnd
            | Kind::NoAttribute
            | Kind::NotFound
                if location != Location::Archive =>
            {
                Severity::Damage
            }
            Kind::NotFound
            | Kind::Changed
            | Kind::Interrupted
            | Kind::NotADirectory
            | Kind::IsADirectory
            | Kind::InvalidInput
            | Kind::PastEnd
            | Kind::NoAttribute
            | Kind::Io
            | Kind::Busy
            | Kind::Usage
            | Kind::CannotMount
            | Kind::NotMounted
            | Kind::TimedOut => Severity::Unreadable,
        };
        Self { severity, location, what: error.to_string() }
    }

    /// The same, said of what is shown in the folder `folder`.
    #[must_use]
    pub fn below(mut self, folder: &[u8]) -> Self {
        if folder.is_empty() {
            return self;
        }
        self.location = match self.location {
            Location::Archive => Location::Path(folder.to_vec()),
            Location::Path(path) if path.is_empty() => Location::Path(folder.to_vec()),
            Location::Path(path) => Location::Path([folder, b"/", &path].concat()),
            inode @ Location::Inode(_) => inode,
        };
        self
    }
}
