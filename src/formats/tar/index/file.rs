//! An index in a file: its layout, and opening it.
//!
//! ```text
//! start:  magic "ARCHFSIX", version (4), flags (4)
//!         archive: length (8), modification time: seconds (8) and nanoseconds (4)
//!         its origin: kind of the file system (8), inode (8), time of the last change: seconds (8)
//!             and nanoseconds (4), owner (4)
//!         samples: count (4), then for each an offset (8) and the BLAKE3 hash of the block there
//!             (32)
//! data:   nodes, names, segments, maps, links, nodes with attributes, attributes, images, notes,
//!             what random access into a compressed archive needs
//! sums:   the CRC-32 (4) of each 16 KiB of data; the last block may be shorter
//! tail:   decoded length of the archive (8), bytes of each of the ten parts of the data (8 each)
//!         the BLAKE3 hash of start, sums and tail up to here (32)
//! ```
//!
//! All numbers are little-endian. Opening reads start, tail and sums, which are 1/4096 of the
//! file, and believes them if their hash is right. The data is believed block by block (`blocks`).
//! The tail is written last, so a file that was not written to its end is no index.

use std::ops::Range;

use super::blocks::{Allowance, BLOCK, Backing, Blocks, Checked};
use super::key::{Hash, Key};
use super::node::NODE;
use super::{Index, LINK_COUNT, MAP, NestedImage, SEGMENT, WITH_XATTRS};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::storage::Storage;
use crate::sync::Arc;

/// The longest index of an archive, in lengths of that: the shortest path of a folder that is
/// nowhere else takes two bytes of a header, and a node and a name of the index.
const LENGTHS_MAX: u64 = 32;

/// What any index may have in addition, bytes.
const REST_MAX: u64 = 1 << 20;

/// The longest index that is opened, bytes: that of some 400 million members. Whatever a file with
/// holes claims, its checksums and slots take less than 100 MiB of memory.
const INDEX_MAX: u64 = 32 << 30;

/// Images and notes of an index, bytes: they are read when it is opened.
const LISTS_MAX: u64 = 256 << 20;

/// An index whose data is no longer than this is read and checked as a whole when it is opened,
/// bytes. So damage to it costs a scan and no error, and its file need not stay open.
const SMALL: u64 = 1 << 20;

/// Bytes of a hash.
pub(super) const HASH: usize = 32;

/// A part of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Nodes,
    Names,
    Segments,
    Maps,
    Links,
    WithXattrs,
    Xattrs,
    NestedImages,
    Notes,
    SeekPoints,
}

/// How many there are, and bytes of a tail.
const SECTIONS: usize = 10;
pub(super) const TAIL: usize = 8 + 8 * SECTIONS + HASH;

/// Bytes of each part of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sections {
    lens: [u64; SECTIONS],
}

impl Section {
    /// Those that are the tree. They come first.
    pub(super) const TREE: [Self; 7] = [
        Self::Nodes,
        Self::Names,
        Self::Segments,
        Self::Maps,
        Self::Links,
        Self::WithXattrs,
        Self::Xattrs,
    ];

    /// What a message calls it.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Names => "names",
            Self::Segments => "segments",
            Self::Maps => "sparse maps",
            Self::Links => "link counts",
            Self::WithXattrs => "nodes with attributes",
            Self::Xattrs => "attributes",
            Self::NestedImages => "images",
            Self::Notes => "notes",
            Self::SeekPoints => "seek points",
        }
    }

    /// Its position among the others.
    fn nth(self) -> usize {
        match self {
            Self::Nodes => 0,
            Self::Names => 1,
            Self::Segments => 2,
            Self::Maps => 3,
            Self::Links => 4,
            Self::WithXattrs => 5,
            Self::Xattrs => 6,
            Self::NestedImages => 7,
            Self::Notes => 8,
            Self::SeekPoints => 9,
        }
    }
}

impl Sections {
    pub(super) fn len_of(&self, section: Section) -> u64 {
        self.lens.get(section.nth()).copied().unwrap_or(0)
    }

    /// Where in the data it is.
    pub(super) fn range(&self, section: Section) -> Range<u64> {
        let before = self.lens.get(..section.nth()).unwrap_or_default();
        let start = before.iter().fold(0_u64, |sum, len| sum.saturating_add(*len));
        start..start.saturating_add(self.len_of(section))
    }

    /// Records of `each` bytes in it.
    pub(super) fn count(&self, section: Section, each: usize) -> u64 {
        self.len_of(section).checked_div(length(each)).unwrap_or(0)
    }

    /// Makes `section` longer.
    pub(super) fn grow(&mut self, section: Section, by: u64) {
        if let Some(len) = self.lens.get_mut(section.nth()) {
            *len = len.saturating_add(by);
        }
    }

    /// Bytes of all data.
    pub(super) fn total(&self) -> u64 {
        self.lens.iter().fold(0, |sum: u64, len| sum.saturating_add(*len))
    }

    /// Refuses parts that hold no whole number of records, or more than can be.
    fn check(&self) -> Result<()> {
        let records = [
            (Section::Nodes, NODE),
            (Section::Segments, SEGMENT),
            (Section::Maps, MAP),
            (Section::Links, LINK_COUNT),
            (Section::WithXattrs, WITH_XATTRS),
        ];
        for (section, each) in records {
            if self.len_of(section).checked_rem(length(each)) != Some(0) {
                let what = format!("the {} of the index end within one", section.words());
                return Err(Error::corrupt(what));
            }
        }
        if self.count(Section::Nodes, NODE) > u64::from(u32::MAX) {
            return Err(Error::corrupt("more nodes than have numbers"));
        }
        for section in [Section::NestedImages, Section::Notes] {
            let len = self.len_of(section);
            if len > LISTS_MAX {
                let what = format!("{len} bytes of the index, limit {LISTS_MAX}");
                return Err(Error::corrupt(what));
            }
        }
        Ok(())
    }

    /// The tail of a file without its hash.
    pub(super) fn tail(&self, decoded_len: u64) -> Vec<u8> {
        let numbers = std::iter::once(&decoded_len).chain(&self.lens);
        numbers.flat_map(|number| number.to_le_bytes()).collect()
    }
}

/// The hash at the end of a file.
pub(super) fn hash_of(start: &[u8], sums: &[u8], tail: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(start).update(sums).update(tail);
    *hasher.finalize().as_bytes()
}

/// How to open an index.
#[derive(Clone)]
pub(in crate::formats::tar) struct IndexOptions<'o> {
    /// What it is called in errors.
    pub(in crate::formats::tar) name: &'o str,
    pub(in crate::formats::tar) allowance: Arc<Allowance>,
    /// Data up to this length is read and checked as a whole, bytes.
    pub(super) small: u64,
}

impl<'o> IndexOptions<'o> {
    /// Opens an index called `name`, whose blocks come out of `allowance`.
    pub(in crate::formats::tar) fn new(name: &'o str, allowance: &Arc<Allowance>) -> Self {
        Self { name, allowance: Arc::clone(allowance), small: SMALL }
    }
}

/// An index from a file with what belongs to it.
pub(in crate::formats::tar) struct IndexFile {
    #[cfg_attr(not(any(test, fuzzing)), expect(dead_code, reason = "checked before the rest"))]
    pub(in crate::formats::tar) key: Key,
    /// What `SeekIndex` wrote, for a compressed archive.
    pub(in crate::formats::tar) seek_points: Vec<u8>,
    /// Bytes of the archive once it is decoded.
    pub(in crate::formats::tar) decoded_len: u64,
    pub(in crate::formats::tar) index: Index,
}

impl IndexFile {
    /// Opens the index in `file`, if `accept` finds nothing wrong with its key. Takes memory for
    /// nothing that the file does not hold, and nothing before the key was accepted.
    ///
    /// # Errors
    /// `Corrupt` where it is no index, of another version, or damaged; those of `accept`; `Io`.
    pub(in crate::formats::tar) fn open(
        file: Arc<dyn Storage>,
        opening: &IndexOptions<'_>,
        accept: &dyn Fn(&Key) -> Result<()>,
    ) -> Result<Self> {
        let (key, start) = Key::read(file.as_ref())?;
        accept(&key)?;
        let mut tail = [0; TAIL];
        let tail_at = file.len().saturating_sub(length(TAIL));
        file.read_exact_at(&mut tail, tail_at)?;
        let mut reader = Reader::new("index", &tail);
        let decoded_len = reader.u64()?;
        let mut layout = Sections::default();
        for len in &mut layout.lens {
            *len = reader.u64()?;
        }
        let hash: Hash = reader.array()?;
        if file.len() > longest(decoded_len).min(INDEX_MAX) {
            return Err(Error::corrupt("longer than the index of such an archive can be"));
        }
        layout.check()?;
        let data_len = layout.total();
        let blocks = data_len.div_ceil(length(BLOCK));
        let data_at = length(start.len());
        let sums_at = data_at.saturating_add(data_len);
        if sums_at.saturating_add(blocks.saturating_mul(4)) != tail_at {
            return Err(Error::corrupt("the parts of the index do not make up the file"));
        }
        let encoded = read_all(file.as_ref(), sums_at, blocks.saturating_mul(4))?;
        let (numbers, _) = tail.split_at_checked(TAIL.saturating_sub(HASH)).unwrap_or_default();
        if hash_of(&start, &encoded, numbers) != hash {
            return Err(Error::corrupt("the index is damaged: its hash is wrong"));
        }
        let sums = encoded.as_chunks().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
        let is_small = data_len <= opening.small;
        let checked = Checked::new(file, data_at, sums, Arc::clone(&opening.allowance));
        let mut blocks = Blocks::new(data_len, Backing::Checked(checked));
        if is_small {
            blocks = blocks.into_memory()?;
        }
        let mut index = Index {
            name: opening.name.to_owned(),
            blocks,
            layout,
            archive_len: decoded_len,
            nested_images: Vec::new(),
            notes: Vec::new(),
            findings: Vec::new(),
        };
        index.read_lists()?;
        if is_small {
            index.check()?;
        } else {
            index.check_root()?;
        }
        let seek_points = match layout.len_of(Section::SeekPoints) {
            len if len <= longest(key.len) => index.section(Section::SeekPoints)?,
            len => {
                let most = longest(key.len);
                return Err(Error::corrupt(format!("{len} bytes of the index, limit {most}")));
            }
        };
        Ok(Self { key, seek_points, decoded_len, index })
    }
}

impl Index {
    /// Reads images and notes.
    fn read_lists(&mut self) -> Result<()> {
        let bytes = self.section(Section::NestedImages)?;
        let mut reader = Reader::new("image in the index", &bytes);
        while reader.remaining() > 0 {
            let (at, len, path) = (reader.u64()?, reader.u64()?, reader.u64()?);
            let path = reader.bytes(index(path))?.to_vec();
            self.nested_images.push(NestedImage { path, at, len });
        }
        let bytes = self.section(Section::Notes)?;
        let mut reader = Reader::new("note in the index", &bytes);
        while reader.remaining() > 0 {
            let len = index(reader.u64()?);
            self.notes.push(String::from_utf8_lossy(reader.bytes(len)?).into_owned());
        }
        self.check_grafts()
    }

    /// All bytes of a section.
    pub(super) fn section(&self, section: Section) -> Result<Vec<u8>> {
        let mut bytes = reserved(self.layout.len_of(section))?;
        self.layout.range(section).step_by(BLOCK).try_for_each(|at| {
            let len = self.layout.range(section).end.saturating_sub(at).min(length(BLOCK));
            let start = bytes.len();
            bytes.resize(start.saturating_add(index(len)), 0);
            self.blocks.read(at, bytes.get_mut(start..).unwrap_or_default())
        })?;
        Ok(bytes)
    }
}

/// The longest index of an archive of `len` bytes, bytes.
fn longest(len: u64) -> u64 {
    len.saturating_mul(LENGTHS_MAX).saturating_add(REST_MAX)
}

/// Room for `len` bytes: a file with holes can be longer than any memory.
pub(super) fn reserved(len: u64) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    match room.try_reserve_exact(index(len)) {
        Ok(()) => Ok(room),
        Err(_) => Err(Error::corrupt(format!("no memory for {len} bytes of the index"))),
    }
}

/// The `len` bytes at `at`.
fn read_all(file: &dyn Storage, at: u64, len: u64) -> Result<Vec<u8>> {
    let mut bytes = reserved(len)?;
    bytes.resize(index(len), 0);
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}
