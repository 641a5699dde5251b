//! Opens an index file, and writes one from start to end (`layout` describes it).

use std::io::{self, Write};

use super::blocks::{Allowance, BLOCK, Backing, Blocks, Checked};
use super::layout::{HASH, Hash, Key, START, Section, Sections, TAIL, hash_of};
use super::node::Headers;
use super::{Index, NestedArchive};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::storage::Storage;
use crate::sync::Arc;

/// The largest index of an archive, as a multiple of the archive's length. A directory that only
/// one path names costs at least two bytes of that path, and a node and a name in the index.
const LENGTHS_MAX: u64 = 32;

/// Extra size that any index may have, bytes.
const REST_MAX: u64 = 1 << 20;

/// The largest index that is opened, bytes. It holds about 400 million members. Even if a sparse
/// file claims this size, its checksums and slots take less than 100 MiB of memory.
const INDEX_MAX: u64 = 32 << 30;

/// An index with this much data or less is read and checked as a whole when it is opened, bytes. So
/// damage costs a scan instead of an error, and the file need not stay open.
const SMALL: u64 = 1 << 20;

/// How to open an index.
#[derive(Clone)]
pub(crate) struct IndexOptions<'o> {
    /// The name of the index in errors.
    pub(crate) name: &'o str,
    pub(crate) allowance: Arc<Allowance>,
    /// Data up to this length is read and checked as a whole, bytes.
    pub(super) small: u64,
}

impl<'o> IndexOptions<'o> {
    /// Options for an index called `name`, which takes memory for blocks from `allowance`.
    pub(crate) fn new(name: &'o str, allowance: &Arc<Allowance>) -> Self {
        Self { name, allowance: Arc::clone(allowance), small: SMALL }
    }
}

/// An index from a file, and what is stored with it.
pub(crate) struct IndexFile {
    pub(crate) key: Key,
    /// The output of `SeekIndex::write`, for a compressed archive.
    pub(crate) seek_points: Vec<u8>,
    /// Length of the uncompressed archive, bytes.
    pub(crate) archive_len: u64,
    /// The hash in its tail, which differs from that of every other index.
    pub(crate) hash: Hash,
    pub(crate) index: Index,
}

impl IndexFile {
    /// Opens the index in `file`, if `accept` returns no error for its key. Reads only the key
    /// before that. Allocates no more than the length of the file allows.
    ///
    /// Fails with `Corrupt` if it is not an index, has another version, or is damaged. The errors
    /// of `accept`. `Io`.
    pub(crate) fn open(
        file: Arc<dyn Storage>,
        options: &IndexOptions<'_>,
        accept: &dyn Fn(&Key) -> Result<()>,
    ) -> Result<Self> {
        if file.len() < length(START.saturating_add(TAIL)) {
            return Err(Error::corrupt("too short for an index"));
        }
        let (key, start) = Key::read(file.as_ref())?;
        accept(&key)?;
        let mut tail = [0; TAIL];
        let tail_offset = file.len().saturating_sub(length(TAIL));
        file.read_exact_at(&mut tail, tail_offset)?;
        let mut reader = Reader::new("index", &tail);
        let archive_len = reader.u64()?;
        let mut section_lens = Sections::default();
        for len in &mut section_lens.lens {
            *len = reader.u64()?;
        }
        let hash: Hash = reader.array()?;
        if file.len() > longest(archive_len).min(INDEX_MAX) {
            return Err(Error::corrupt("longer than the index of such an archive can be"));
        }
        section_lens.check()?;
        let data_len = section_lens.total();
        let blocks = data_len.div_ceil(length(BLOCK));
        let data_offset = length(start.len());
        let sums_offset = data_offset.saturating_add(data_len);
        if sums_offset.saturating_add(blocks.saturating_mul(4)) != tail_offset {
            return Err(Error::corrupt("the parts of the index do not make up the file"));
        }
        let encoded_sums = read_exact(file.as_ref(), sums_offset, blocks.saturating_mul(4))?;
        let (numbers, _) = tail.split_at_checked(TAIL.saturating_sub(HASH)).unwrap_or_default();
        if hash_of(&start, &encoded_sums, numbers) != hash {
            return Err(Error::corrupt("the index is damaged: its hash is wrong"));
        }
        let sums = encoded_sums.as_chunks().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
        let is_small = data_len <= options.small;
        let checked = Checked::new(file, data_offset, sums, Arc::clone(&options.allowance));
        let mut blocks = Blocks::new(data_len, Backing::Checked(checked));
        if is_small {
            blocks = blocks.into_memory()?;
        }
        let mut index = Index {
            name: options.name.to_owned(),
            blocks,
            section_lens,
            archive_len,
            nested_archives: Vec::new(),
            notes: Vec::new(),
            findings: Vec::new(),
        };
        index.read_lists()?;
        if is_small {
            index.check()?;
        } else {
            index.check_root()?;
        }
        let seek_points = match section_lens.len_of(Section::SeekPoints) {
            len if len <= longest(key.len) => index.section(Section::SeekPoints)?,
            len => {
                return Err(Section::SeekPoints.too_long(len, longest(key.len)));
            }
        };
        Ok(Self { key, seek_points, archive_len, hash, index })
    }
}

impl Index {
    /// Reads the lists of images and notes.
    fn read_lists(&mut self) -> Result<()> {
        let bytes = self.section(Section::NestedArchives)?;
        let mut reader = Reader::new("image in the index", &bytes);
        while reader.remaining() > 0 {
            let (offset, len) = (reader.u64()?, reader.u64()?);
            let headers = Headers::read(&mut reader)?;
            let path_len = reader.u64()?;
            let path = reader.bytes(index(path_len))?.to_vec();
            self.nested_archives.push(NestedArchive { path, offset, len, headers });
        }
        let bytes = self.section(Section::Notes)?;
        let mut reader = Reader::new("note in the index", &bytes);
        while reader.remaining() > 0 {
            let len = index(reader.u64()?);
            self.notes.push(String::from_utf8_lossy(reader.bytes(len)?).into_owned());
        }
        self.check_nested_archives()
    }

    /// Reads a whole section.
    pub(super) fn section(&self, section: Section) -> Result<Vec<u8>> {
        let mut bytes = reserved(self.section_lens.len_of(section))?;
        self.section_lens.range(section).step_by(BLOCK).try_for_each(|offset| {
            let len =
                self.section_lens.range(section).end.saturating_sub(offset).min(length(BLOCK));
            let start = bytes.len();
            bytes.resize(start.saturating_add(index(len)), 0);
            self.blocks.read(offset, bytes.get_mut(start..).unwrap_or_default())
        })?;
        Ok(bytes)
    }
}

/// The largest index of an archive of `len` bytes, bytes.
fn longest(len: u64) -> u64 {
    len.saturating_mul(LENGTHS_MAX).saturating_add(REST_MAX)
}

/// An empty buffer for `len` bytes. Fails if there is no memory, because a sparse file can be
/// larger than memory.
fn reserved(len: u64) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    match buffer.try_reserve_exact(index(len)) {
        Ok(()) => Ok(buffer),
        Err(_) => Err(Error::corrupt(format!("no memory for {len} bytes of the index"))),
    }
}

/// Reads `len` bytes at `offset`.
fn read_exact(file: &dyn Storage, offset: u64, len: u64) -> Result<Vec<u8>> {
    let mut bytes = reserved(len)?;
    bytes.resize(index(len), 0);
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Bytes per write: a few blocks.
const STEP: usize = 16 * BLOCK;

/// Writes an index to `out`, which needs no buffer of its own.
pub(super) struct Output<'o> {
    out: &'o mut dyn Write,
    start: Vec<u8>,
    /// Data not written yet: less than `STEP` bytes, starting at a block boundary.
    buffer: Vec<u8>,
    sums: Vec<u8>,
    section_lens: Sections,
    section: Section,
}

impl<'o> Output<'o> {
    /// Starts the index with `key`.
    pub(super) fn new(out: &'o mut dyn Write, key: &Key) -> io::Result<Self> {
        let start = key.encoded();
        out.write_all(&start)?;
        let (buffer, sums) = (Vec::with_capacity(STEP.saturating_mul(2)), Vec::new());
        Ok(Self {
            out,
            start,
            buffer,
            sums,
            section_lens: Sections::default(),
            section: Section::Nodes,
        })
    }

    /// Starts `section`. Sections must come in order.
    pub(super) fn begin(&mut self, section: Section) {
        self.section = section;
    }

    /// Appends `bytes` to the current section.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.section_lens.grow(self.section, length(bytes.len()));
        // Chunks keep the buffer from growing.
        for piece in bytes.chunks(STEP) {
            self.buffer.extend(piece);
            if self.buffer.len() >= STEP {
                self.flush(STEP)?;
            }
        }
        Ok(())
    }

    /// Writes the first `len` bytes of the buffer: whole blocks, except at the end of the data.
    fn flush(&mut self, len: usize) -> io::Result<()> {
        let ready = self.buffer.get(..len).unwrap_or_default();
        for block in ready.chunks(BLOCK) {
            self.sums.extend(crc32fast::hash(block).to_le_bytes());
        }
        self.out.write_all(ready)?;
        self.buffer.drain(..len);
        Ok(())
    }

    /// Finishes the index of an archive of `archive_len` bytes.
    pub(super) fn finish(mut self, archive_len: u64) -> io::Result<()> {
        self.flush(self.buffer.len())?;
        let tail = self.section_lens.tail(archive_len);
        let hash = hash_of(&self.start, &self.sums, &tail);
        self.out.write_all(&self.sums)?;
        self.out.write_all(&tail)?;
        self.out.write_all(&hash)
    }
}
