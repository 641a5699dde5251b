//! Several servers behind one name, which may name the same file differently.
//!
//! An ETag often depends on the inode or the time of a file, which copies of it do not share. The
//! bytes with the ETag that was opened are right wherever they come from. If a server names
//! another version, archfs therefore asks again, over another connection to the next address of the
//! name, until one has the opened version. The file counts as replaced only if none has it.

use super::Version;
use super::server::Connection;
use crate::error::{Error, Kind};
use crate::sync::{AtomicBool, Ordering};

/// Answers of other versions in a row, after which the file counts as replaced if no server has
/// named the opened version after another one.
pub(super) const OTHERS_MAX: u32 = 10;

/// What is known of the servers behind a name.
#[derive(Debug, Default)]
pub(super) struct Mirrors {
    disagree: AtomicBool,
    /// Whether the user knows.
    is_noted: AtomicBool,
}

impl Mirrors {
    /// Whether they name several versions in turn.
    pub(super) fn disagree(&self) -> bool {
        self.disagree.load(Ordering::Relaxed)
    }

    /// Notes that the server names another version, which the user allows.
    pub(super) fn note_allowed(&self, name: &str) {
        if !self.is_noted.swap(true, Ordering::Relaxed) {
            log::warn!(
                "{name}: the server gives another ETag or time now; reads continue \
                 (--allow-changes)"
            );
        }
    }

    fn note_turns(&self, name: &str) {
        self.disagree.store(true, Ordering::Relaxed);
        if !self.is_noted.swap(true, Ordering::Relaxed) {
            log::warn!(
                "{name}: the server gives several ETags or times in turn: its mirrors disagree; \
                 reads need more requests"
            );
            crate::log::hint("name one mirror, or use --allow-changes");
        }
    }

    pub(super) fn changed(&self) -> Error {
        match self.disagree() {
            true => Error::new(
                Kind::Changed,
                "the server gives several ETags or times in turn: its mirrors disagree",
            )
            .with_brief("the mirrors of the server disagree about the version of the archive")
            .with_hint("name one mirror, or use --allow-changes"),
            false => Error::new(Kind::Changed, "replaced on the server since it was opened")
                .with_brief("the archive was replaced on the server")
                .with_hint("mount it again"),
        }
    }
}

/// Answers in a row that name other versions than the opened one.
#[derive(Debug, Default)]
pub(super) struct Others {
    count: u32,
    last: Option<Version>,
}

impl Others {
    /// Adds an answer, which may not say which version there is. Returns whether to ask again at
    /// once.
    pub(super) fn add(&mut self, version: Version, mirrors: &Mirrors) -> bool {
        self.count = self.count.saturating_add(1);
        if version != Version::default() {
            let last = self.last.replace(version);
            if last.is_some() && last != self.last {
                mirrors.disagree.store(true, Ordering::Relaxed);
            }
        }
        self.count <= OTHERS_MAX
    }

    /// What becomes of the connection of the next request.
    pub(super) fn connection(&self) -> Connection {
        match self.count {
            0 => Connection::Kept,
            _ => Connection::Closed,
        }
    }

    pub(super) fn addresses(&self) -> usize {
        self.count.try_into().unwrap_or(usize::MAX)
    }

    pub(super) fn end(&mut self, mirrors: &Mirrors, name: &str) {
        if std::mem::take(&mut self.count) > 0 {
            mirrors.note_turns(name);
        }
    }
}
