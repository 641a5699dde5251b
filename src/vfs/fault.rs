//! What is wrong with an archive.
//!
//! Owns the words for it, from who finds it (trees and those who read them) to who tells it.
//! Invariant: a fault of the archive and a refusal of the system are never mixed up.

use super::Ino;
use crate::error::{Error, Kind};

/// Something to tell of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// How bad it is.
    pub gravity: Gravity,
    /// What it is about.
    pub subject: Subject,
    /// What is wrong, and where in the archive.
    pub what: String,
}

/// How bad a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gravity {
    /// Bytes of the archive are wrong or missing, or contradict each other.
    Damage,
    /// The system refused to read, so nothing is known.
    Unreadable,
    /// No damage, but something in the archive is not shown.
    LeftOut,
    /// Odd, and in nobody's way.
    Note,
}

/// What a fault is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The archive, or a table of it.
    Archive,
    /// What has this path, or should have it, without a leading slash.
    Path(Vec<u8>),
    /// What has this number, whatever its names.
    Inode(Ino),
}

impl Gravity {
    /// Whether the archive is sound all the same.
    pub fn is_note(self) -> bool {
        matches!(self, Self::LeftOut | Self::Note)
    }
}

impl Fault {
    /// Damage of `subject`.
    pub fn damage(subject: Subject, what: impl Into<String>) -> Self {
        Self { gravity: Gravity::Damage, subject, what: what.into() }
    }

    /// Something about the archive that is odd, and no damage.
    pub fn note(what: impl Into<String>) -> Self {
        Self { gravity: Gravity::Note, subject: Subject::Archive, what: what.into() }
    }

    /// Something in the archive is not shown, and that is no damage.
    pub fn left_out(what: impl Into<String>) -> Self {
        Self { gravity: Gravity::LeftOut, ..Self::note(what) }
    }

    /// What an error that somebody met says of `subject`.
    pub fn met(subject: Subject, error: &Error) -> Self {
        let gravity = match error.kind() {
            Kind::Corrupt | Kind::Truncated | Kind::UnknownFormat | Kind::Unsupported => {
                Gravity::Damage
            }
            // What a tree itself named is not there, or is something else.
            Kind::NotADirectory
            | Kind::IsADirectory
            | Kind::InvalidInput
            | Kind::PastEnd
            | Kind::NoAttribute
            | Kind::NotFound
                if subject != Subject::Archive =>
            {
                Gravity::Damage
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
            | Kind::TimedOut => Gravity::Unreadable,
        };
        Self { gravity, subject, what: error.to_string() }
    }

    /// The same, said of what is shown in the folder `folder`.
    #[must_use]
    pub fn below(mut self, folder: &[u8]) -> Self {
        if folder.is_empty() {
            return self;
        }
        self.subject = match self.subject {
            Subject::Archive => Subject::Path(folder.to_vec()),
            Subject::Path(path) if path.is_empty() => Subject::Path(folder.to_vec()),
            Subject::Path(path) => Subject::Path([folder, b"/", &path].concat()),
            inode @ Subject::Inode(_) => inode,
        };
        self
    }
}
