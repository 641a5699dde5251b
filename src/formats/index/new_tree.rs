//! The tree that a scan fills with members, and the notes on what it leaves out.

use super::members::Members;
use super::notes::Notes;
use super::weight::Weight;
use super::{ArchiveRange, Builder, DirectoryId, FinishedTree};
use crate::error::Result;
use crate::spilled::Spill;

/// A tree that a scan fills.
pub(crate) struct NewTree {
    builder: Builder,
    weight: Weight,
    pub(crate) notes: Notes,
}

impl Default for NewTree {
    fn default() -> Self {
        Self {
            builder: Builder::new(Spill::default()),
            weight: Weight::new(),
            notes: Notes::default(),
        }
    }
}

impl NewTree {
    /// Adds all of `members`, which belong to `archive`. Appends the tars among them to `inner`.
    pub(crate) fn add(
        &mut self,
        archive: ArchiveRange,
        members: &Members,
        inner: &mut Vec<ArchiveRange>,
    ) -> Result<()> {
        self.add_from(archive, members, 0, inner)
    }

    /// Adds the members from the `nth` on.
    pub(crate) fn add_from(
        &mut self,
        archive: ArchiveRange,
        members: &Members,
        nth: usize,
        inner: &mut Vec<ArchiveRange>,
    ) -> Result<()> {
        let list = members.list().get(nth..).unwrap_or_default();
        self.builder.add(archive, members, list, inner, &mut self.notes)?;
        self.weight.add(list.len())
    }

    /// Adds the notes of the archive that `directory` shows.
    pub(crate) fn note(&mut self, directory: DirectoryId, notes: Notes) {
        self.notes.append(notes.within(&self.builder.path(directory)));
    }

    /// Finishes the tree.
    pub(crate) fn finish(mut self) -> Result<FinishedTree> {
        let mut finished = self.builder.finish(&mut self.notes)?;
        (finished.notes, finished.findings) = self.notes.finish();
        Ok(finished)
    }
}
