//! Problems of an archive, as `verify` reports them.
//!
//! Invariant: damage of the archive and errors of the system are never confused.

use super::Ino;
use crate::error::{Error, Kind};

/// A problem of an archive, or a note about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How serious it is.
    pub severity: Severity,
    /// The part of the archive it is about.
    pub location: Location,
    /// A description, with the location in the archive.
    pub what: String,
}

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Bytes of the archive are wrong or missing, or contradict each other.
    Damage,
    /// The system could not read the data, or archfs cannot decode it, so its state is unknown.
    Unreadable,
    /// No damage, but something in the archive is not shown.
    LeftOut,
    /// Unusual but harmless.
    Note,
}

/// The part of the archive that a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// The archive as a whole, or one of its tables.
    Archive,
    /// The path it has, or should have, without a leading slash.
    Path(Vec<u8>),
    /// An inode, under all its names.
    Inode(Ino),
}

impl Severity {
    /// Whether the archive is undamaged despite this finding.
    pub fn is_note(self) -> bool {
        matches!(self, Self::LeftOut | Self::Note)
    }
}

impl Finding {
    /// Damage at `location`.
    pub fn damage(location: Location, what: impl Into<String>) -> Self {
        Self { severity: Severity::Damage, location, what: what.into() }
    }

    /// Something unusual about the archive that is not damage.
    pub fn note(what: impl Into<String>) -> Self {
        Self { severity: Severity::Note, location: Location::Archive, what: what.into() }
    }

    /// The finding for an error that occurred at `location`.
    pub fn from_error(location: Location, error: &Error) -> Self {
        let severity = match error.kind() {
            Kind::Corrupt | Kind::Truncated | Kind::UnknownFormat | Kind::Unsupported => {
                Severity::Damage
            }
            // The tree listed it, but it is missing or is something else.
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
            | Kind::Reported(_)
            | Kind::NotADirectory
            | Kind::IsADirectory
            | Kind::InvalidInput
            | Kind::PastEnd
            | Kind::NoAttribute
            | Kind::Io
            | Kind::Unreachable
            | Kind::Denied
            | Kind::Busy
            | Kind::Usage
            | Kind::CannotMount
            | Kind::NotMounted
            | Kind::TimedOut => Severity::Unreadable,
        };
        Self { severity, location, what: format!("{error:#}") }
    }

    /// The same finding with its path moved below the directory `directory`.
    #[must_use]
    pub fn below(mut self, directory: &[u8]) -> Self {
        if directory.is_empty() {
            return self;
        }
        self.location = match self.location {
            Location::Archive => Location::Path(directory.to_vec()),
            Location::Path(path) if path.is_empty() => Location::Path(directory.to_vec()),
            Location::Path(path) => Location::Path([directory, b"/", &path].concat()),
            inode @ Location::Inode(_) => inode,
        };
        self
    }
}
