//! The outcomes of a step along the chain of headers, which `walk` and `segments` handle.

use crate::error::Error;

/// What a step found.
#[derive(Debug)]
pub(super) enum Step {
    /// A member, added to the list.
    Member,
    /// A volume label or the like, or a member that cannot be shown, with the reason.
    Skipped(Option<Skip>),
    /// The end of the archive, at a point where a header could start.
    End,
    /// Zeros instead of a header.
    Zeros,
    /// Other data instead of a header.
    Garbage,
    /// A header that contradicts itself, with the reason. The path is empty if it is unknown.
    Damaged { path: Vec<u8>, error: Error },
    /// The archive ends before the data of this member does.
    Truncated(Vec<u8>),
}

/// What is left out, and its path, if it has one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Skip {
    pub(super) what: String,
    pub(super) path: Option<Vec<u8>>,
}

/// The detail of an error in the header at `start`.
pub(super) fn header_at(start: u64) -> String {
    format!("header at {start:#x}")
}
