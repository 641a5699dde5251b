//! The sections of an index file, and its tail, which says how long each is. `file` has the layout.

use std::ops::Range;

use super::key::Hash;
use super::node::NODE_LEN;
use super::{LINK_COUNT_LEN, MAP_LEN, SEGMENT_LEN, WITH_XATTRS_LEN};
use crate::error::{Error, Result};
use crate::formats::bytes::length;

/// Limit for images and for notes, bytes. Both are read when the index is opened.
const LISTS_MAX: u64 = 256 << 20;

/// Size of a hash, bytes.
pub(super) const HASH: usize = 32;

/// A section of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Nodes,
    Names,
    Segments,
    Maps,
    LinkCounts,
    WithXattrs,
    Xattrs,
    NestedArchives,
    Notes,
    SeekPoints,
}

/// Number of sections, and size of the tail in bytes.
const SECTIONS: usize = 10;
pub(super) const TAIL: usize = 8 + 8 * SECTIONS + HASH;

/// Length of each section, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sections {
    pub(super) lens: [u64; SECTIONS],
}

impl Section {
    /// The sections that make up the tree. They come first.
    pub(super) const TREE: [Self; 7] = [
        Self::Nodes,
        Self::Names,
        Self::Segments,
        Self::Maps,
        Self::LinkCounts,
        Self::WithXattrs,
        Self::Xattrs,
    ];

    /// Its name in messages.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Names => "names",
            Self::Segments => "segments",
            Self::Maps => "sparse maps",
            Self::LinkCounts => "link counts",
            Self::WithXattrs => "nodes with attributes",
            Self::Xattrs => "attributes",
            Self::NestedArchives => "archives",
            Self::Notes => "notes",
            Self::SeekPoints => "seek points",
        }
    }

    /// The error for a section of `len` bytes.
    pub(super) fn too_long(self, len: u64, limit: u64) -> Error {
        let label = self.label();
        Error::corrupt(format!("{len} bytes of {label} in the index, limit {limit}"))
    }

    /// Its position in the data, counted in sections.
    fn position(self) -> usize {
        match self {
            Self::Nodes => 0,
            Self::Names => 1,
            Self::Segments => 2,
            Self::Maps => 3,
            Self::LinkCounts => 4,
            Self::WithXattrs => 5,
            Self::Xattrs => 6,
            Self::NestedArchives => 7,
            Self::Notes => 8,
            Self::SeekPoints => 9,
        }
    }
}

impl Sections {
    pub(super) fn len_of(&self, section: Section) -> u64 {
        self.lens.get(section.position()).copied().unwrap_or(0)
    }

    /// The range of a section in the data.
    pub(super) fn range(&self, section: Section) -> Range<u64> {
        let before = self.lens.get(..section.position()).unwrap_or_default();
        let start = before.iter().fold(0_u64, |sum, len| sum.saturating_add(*len));
        start..start.saturating_add(self.len_of(section))
    }

    /// Number of records in a section, if a record has `record_len` bytes.
    pub(super) fn count(&self, section: Section, record_len: usize) -> u64 {
        self.len_of(section).checked_div(length(record_len)).unwrap_or(0)
    }

    /// Adds `len` bytes to `section`.
    pub(super) fn grow(&mut self, section: Section, added: u64) {
        if let Some(len) = self.lens.get_mut(section.position()) {
            *len = len.saturating_add(added);
        }
    }

    /// Length of all sections, bytes.
    pub(super) fn total(&self) -> u64 {
        self.lens.iter().fold(0, |sum: u64, len| sum.saturating_add(*len))
    }

    /// Checks that tables hold whole records, and that no section is too long.
    pub(super) fn check(&self) -> Result<()> {
        let records = [
            (Section::Nodes, NODE_LEN),
            (Section::Segments, SEGMENT_LEN),
            (Section::Maps, MAP_LEN),
            (Section::LinkCounts, LINK_COUNT_LEN),
            (Section::WithXattrs, WITH_XATTRS_LEN),
        ];
        for (section, record_len) in records {
            if self.len_of(section).checked_rem(length(record_len)) != Some(0) {
                let what = format!("the {} of the index end in the middle of one", section.label());
                return Err(Error::corrupt(what));
            }
        }
        if self.count(Section::Nodes, NODE_LEN) > u64::from(u32::MAX) {
            return Err(Error::corrupt("more nodes than have numbers"));
        }
        for section in [Section::NestedArchives, Section::Notes] {
            let len = self.len_of(section);
            if len > LISTS_MAX {
                return Err(section.too_long(len, LISTS_MAX));
            }
        }
        Ok(())
    }

    /// The tail of a file, without its hash.
    pub(super) fn tail(&self, archive_len: u64) -> Vec<u8> {
        let numbers = std::iter::once(&archive_len).chain(&self.lens);
        numbers.flat_map(|number| number.to_le_bytes()).collect()
    }
}

/// The hash at the end of a file.
pub(super) fn hash_of(start: &[u8], sums: &[u8], tail: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(start).update(sums).update(tail);
    *hasher.finalize().as_bytes()
}
