//! The layout of an index file: the key of the archive at its start, the sections of its data, and
//! the tail, which says how long each section is.
//!
//! ```text
//! start:  magic "ARCHFSIX", version (4), flags (4)
//!         archive: length (8), mtime: seconds (8) and nanoseconds (4)
//!         its file: type of the file system (8), inode (8), ctime: seconds (8) and
//!             nanoseconds (4), owner (4)
//!         samples: count (4), then for each an offset (8) and the BLAKE3 hash of the block there
//!             (32)
//! data:   nodes, names, segments, maps, links, nodes with attributes, attributes, images, notes,
//!             seek points of a compressed archive
//! sums:   the CRC-32 (4) of each 16 KiB of data; the last block may be shorter
//! tail:   length of the uncompressed archive (8), length of each of the ten sections (8 each),
//!         the BLAKE3 hash of start, sums and tail up to here (32)
//! ```
//!
//! All numbers are little-endian. Opening an index reads start, tail and sums (1/4096 of the file)
//! and checks their hash. The data is checked block by block (`blocks`). The tail is written last,
//! so an incomplete file is not an index.

use std::ops::Range;

use super::node::NODE_LEN;
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::storage::Storage;

/// Incremented with every change of the layout, so that old files are rejected.
const FORMAT: u32 = 5;

/// The first bytes of an index.
pub(crate) const MAGIC: &[u8; 8] = b"ARCHFSIX";

/// The flag of an index with archives within the archive as directories. 1 was that of indexes that
/// had ZIP archives as files, 2 of ones that had compressed tars as files.
const RECURSIVE: u32 = 3;

/// Most samples that a file may claim. archfs writes far fewer.
const SAMPLES_MAX: u32 = 4096;

/// Size of the start without samples, and of one sample, bytes.
pub(super) const START: usize = 72;
const SAMPLE: usize = 40;

/// A BLAKE3 hash.
pub(crate) type Hash = [u8; 32];

/// The identity of the archive's file on its file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileKey {
    /// The type of the file system.
    pub(crate) file_system: u64,
    pub(crate) inode: u64,
    /// Its ctime: seconds and nanoseconds.
    pub(crate) changed: (i64, u32),
    pub(crate) owner: u32,
}

/// The key of an index: what its archive was when the index was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key {
    /// Whether archives within the archive are shown as directories.
    pub(crate) recursive: bool,
    /// Length of the archive's file, bytes.
    pub(crate) len: u64,
    /// Its mtime: seconds and nanoseconds.
    pub(crate) modified: (i64, u32),
    /// Its identity on its file system.
    pub(crate) file: FileKey,
    /// Samples of its blocks: offset and hash.
    pub(crate) samples: Vec<(u64, Hash)>,
}

impl Key {
    /// Encodes the start of the file.
    pub(super) fn encoded(&self) -> Vec<u8> {
        let FileKey { file_system, inode, changed, owner } = self.file;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend((if self.recursive { RECURSIVE } else { 0 }).to_le_bytes());
        bytes.extend(self.len.to_le_bytes());
        bytes.extend(self.modified.0.to_le_bytes());
        bytes.extend(self.modified.1.to_le_bytes());
        bytes.extend(file_system.to_le_bytes());
        bytes.extend(inode.to_le_bytes());
        bytes.extend(changed.0.to_le_bytes());
        bytes.extend(changed.1.to_le_bytes());
        bytes.extend(owner.to_le_bytes());
        bytes.extend(u32::try_from(self.samples.len()).unwrap_or(0).to_le_bytes());
        for (offset, hash) in &self.samples {
            bytes.extend(offset.to_le_bytes());
            bytes.extend(hash);
        }
        bytes
    }

    /// Reads the key at the start of `file`. Also returns the bytes of that start.
    pub(super) fn read(file: &dyn Storage) -> Result<(Self, Vec<u8>)> {
        let mut start = vec![0; START];
        file.read_exact_at(&mut start, 0)?;
        let mut reader = Reader::new("index", &start);
        if reader.array()? != *MAGIC {
            return Err(Error::corrupt("not an index"));
        }
        let version = reader.u32()?;
        if version != FORMAT {
            return Err(Error::corrupt(format!("an index of version {version}, not {FORMAT}")));
        }
        let recursive = match reader.u32()? {
            0 => false,
            RECURSIVE => true,
            other => return Err(Error::corrupt(format!("an index with flags {other:#x}"))),
        };
        let len = reader.u64()?;
        let modified = (i64::from_le_bytes(reader.array()?), reader.u32()?);
        let (file_system, inode) = (reader.u64()?, reader.u64()?);
        let changed = (i64::from_le_bytes(reader.array()?), reader.u32()?);
        let key = FileKey { file_system, inode, changed, owner: reader.u32()? };
        let count = reader.u32()?;
        if count > SAMPLES_MAX {
            return Err(Error::corrupt(format!("{count} samples, limit {SAMPLES_MAX}")));
        }
        let mut samples = vec![0; index(count).saturating_mul(SAMPLE)];
        file.read_exact_at(&mut samples, length(START))?;
        start.extend(&samples);
        let sample = |bytes: &[u8; SAMPLE]| {
            let mut reader = Reader::new("sample", bytes);
            Ok((reader.u64()?, reader.array()?))
        };
        let samples = samples.as_chunks().0.iter().map(sample).collect::<Result<_>>()?;
        Ok((Self { recursive, len, modified, file: key, samples }, start))
    }
}

/// Limit for images and for notes, bytes. Both are read when the index is opened.
const LISTS_MAX: u64 = 256 << 20;

/// Size of a hash, bytes.
pub(super) const HASH: usize = 32;

/// Size of the records of each table, bytes.
pub(super) const SEGMENT_LEN: usize = 24;
pub(super) const MAP_LEN: usize = 20;
pub(super) const LINK_COUNT_LEN: usize = 8;
pub(super) const WITH_XATTRS_LEN: usize = 12;

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
    /// The sections in order, their names in messages, and the size of their records in bytes. A
    /// section without records has records of one byte.
    const ALL: [(Self, &'static str, usize); SECTIONS] = [
        (Self::Nodes, "nodes", NODE_LEN),
        (Self::Names, "names", 1),
        (Self::Segments, "segments", SEGMENT_LEN),
        (Self::Maps, "sparse maps", MAP_LEN),
        (Self::LinkCounts, "link counts", LINK_COUNT_LEN),
        (Self::WithXattrs, "nodes with attributes", WITH_XATTRS_LEN),
        (Self::Xattrs, "attributes", 1),
        (Self::NestedArchives, "archives", 1),
        (Self::Notes, "notes", 1),
        (Self::SeekPoints, "seek points", 1),
    ];

    /// Its position in the data, counted in sections.
    fn position(self) -> usize {
        Self::ALL.iter().take_while(|&&(section, ..)| section != self).count()
    }

    /// Its name in messages.
    pub(super) fn label(self) -> &'static str {
        Self::ALL.get(self.position()).map_or("", |&(_, label, _)| label)
    }

    /// Size of its records, bytes.
    pub(super) fn record_len(self) -> usize {
        Self::ALL.get(self.position()).map_or(1, |&(.., record_len)| record_len)
    }

    /// The error for a section of `len` bytes.
    pub(super) fn too_long(self, len: u64, limit: u64) -> Error {
        let label = self.label();
        Error::corrupt(format!("{len} bytes of {label} in the index, limit {limit}"))
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

    /// Number of records in a section.
    pub(super) fn count(&self, section: Section) -> u64 {
        self.len_of(section).checked_div(length(section.record_len())).unwrap_or(0)
    }

    /// Length of each section that makes up the tree. They come first.
    pub(super) fn of_tree(&self) -> &[u64] {
        self.lens.get(..Section::NestedArchives.position()).unwrap_or_default()
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
        for (section, _, record_len) in Section::ALL {
            if self.len_of(section).checked_rem(length(record_len)) != Some(0) {
                let what = format!("the {} of the index end in the middle of one", section.label());
                return Err(Error::corrupt(what));
            }
        }
        if self.count(Section::Nodes) > u64::from(u32::MAX) {
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
