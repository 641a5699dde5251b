//! An index in a file: written once, read in one go.
//!
//! Owns the layout below; leaves where the file is and whether it belongs to an archive to `saved`.
//! Invariants: `read` returns an index that passed its checksum and every check of `Index`, or
//! fails. It takes memory only for what lies on the way to the first fault, and for no index before
//! its key was accepted.
//!
//! All numbers are little-endian.
//!
//! ```text
//! magic "ARCHFSIX", version (4), flags (4)
//! archive: length (8), modification time: seconds (8) and nanoseconds (4)
//! its origin: kind of the file system (8), inode (8), time of the last change: seconds (8) and
//!     nanoseconds (4), owner (4)
//! samples: count (4), then for each an offset (8) and the BLAKE3 hash of the block there (32)
//! length of what random access into a compressed archive needs (8), and that
//! decoded length of the archive (8)
//! nodes, names, segments, maps, links, nodes with attributes, attributes, images, notes:
//!     each a count or length (8) and that many records or bytes
//! CRC-32 of everything before (4)
//! ```

use std::io::{Read, Write};

use super::{Graft, Index, Node, Segment, is_kind};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};

/// Changes with every change of the layout, so that an old file is refused.
pub(in crate::formats::tar) const FORMAT: u32 = 2;

/// What a file with an index begins with.
pub(in crate::formats::tar) const MAGIC: &[u8; 8] = b"ARCHFSIX";

/// Bytes of a node in a file.
const NODE: usize = 42;

/// The most samples a file may claim; we write far fewer.
const SAMPLES_MAX: u32 = 4096;

/// The longest index of an archive, in lengths of that: the shortest path of a folder that is
/// nowhere else takes two bytes of a header, and a node and a name of the index.
const LENGTHS_MAX: u64 = 32;

/// What any index may have besides, bytes.
const REST_MAX: u64 = 1 << 20;

/// The hash of a sampled block.
pub(in crate::formats::tar) type Hash = [u8; 32];

/// Which file an archive was, on its file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::formats::tar) struct FileKey {
    /// The kind of the file system.
    pub(in crate::formats::tar) file_system: u64,
    pub(in crate::formats::tar) inode: u64,
    /// When it was last changed in any way: seconds and nanoseconds.
    pub(in crate::formats::tar) changed: (i64, u32),
    pub(in crate::formats::tar) owner: u32,
}

/// What ties an index to an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::formats::tar) struct Key {
    /// Whether archives within the archive are shown as folders.
    pub(in crate::formats::tar) recursive: bool,
    /// Bytes of the archive.
    pub(in crate::formats::tar) len: u64,
    /// Its modification time: seconds and nanoseconds.
    pub(in crate::formats::tar) modified: (i64, u32),
    /// Which file it was.
    pub(in crate::formats::tar) file: FileKey,
    /// Some of its blocks: where, and their hashes.
    pub(in crate::formats::tar) samples: Vec<(u64, Hash)>,
}

/// An index with what belongs to it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::formats::tar) struct IndexFile {
    pub(in crate::formats::tar) key: Key,
    /// What `Seekable` wrote, for a compressed archive.
    pub(in crate::formats::tar) seek_points: Vec<u8>,
    /// Bytes of the archive once it is decoded.
    pub(in crate::formats::tar) decoded_len: u64,
    pub(in crate::formats::tar) index: Index,
}

impl IndexFile {
    /// Writes all of it to `out`, which need not be buffered.
    ///
    /// # Errors
    /// What `out` reports.
    pub(in crate::formats::tar) fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Self { key, seek_points, decoded_len, index } = self;
        let mut out = Output { out, buffer: Vec::new(), sum: crc32fast::Hasher::new() };
        out.bytes(MAGIC)?;
        out.u32(FORMAT)?;
        out.u32(u32::from(key.recursive))?;
        out.u64(key.len)?;
        out.bytes(&key.modified.0.to_le_bytes())?;
        out.u32(key.modified.1)?;
        let FileKey { file_system, inode, changed, owner } = key.file;
        out.u64(file_system)?;
        out.u64(inode)?;
        out.bytes(&changed.0.to_le_bytes())?;
        out.u32(changed.1)?;
        out.u32(owner)?;
        out.u32(u32::try_from(key.samples.len()).unwrap_or(0))?;
        for (at, hash) in &key.samples {
            out.u64(*at)?;
            out.bytes(hash)?;
        }
        out.sized(seek_points)?;
        out.u64(*decoded_len)?;
        let Index {
            nodes,
            names,
            segments,
            maps,
            links,
            with_xattrs,
            xattrs,
            grafts,
            notes,
            faults: _,
        } = index;
        out.u64(length(nodes.len()))?;
        for node in nodes {
            out.bytes(&encoded(node))?;
        }
        out.sized(names)?;
        out.u64(length(segments.len()))?;
        for segment in segments {
            out.u64(segment.offset)?;
            out.u64(segment.len)?;
            out.u64(segment.at)?;
        }
        out.u64(length(maps.len()))?;
        for end in maps {
            out.u64(*end)?;
        }
        out.u64(length(links.len()))?;
        for &(node, count) in links {
            out.u32(node)?;
            out.u32(count)?;
        }
        out.u64(length(with_xattrs.len()))?;
        for &(node, at) in with_xattrs {
            out.u32(node)?;
            out.u64(at)?;
        }
        out.sized(xattrs)?;
        out.u64(length(grafts.len()))?;
        for graft in grafts {
            out.u64(graft.at)?;
            out.u64(graft.len)?;
            out.sized(&graft.path)?;
        }
        out.u64(length(notes.len()))?;
        for note in notes {
            out.sized(note.as_bytes())?;
        }
        out.finish()
    }

    /// Reads all of it from `input`, a file of `len` bytes, where `accept` finds nothing wrong with
    /// its key.
    ///
    /// # Errors
    /// `Corrupt` where it is no index, of another version, damaged, or not a sound tree; those of
    /// `accept`.
    pub(in crate::formats::tar) fn read(
        input: &mut dyn Read,
        len: u64,
        accept: &dyn Fn(&Key) -> Result<()>,
    ) -> Result<Self> {
        let body = len.checked_sub(4).ok_or_else(|| Error::corrupt("too short for an index"))?;
        let mut input = Input { input, left: body, sum: crc32fast::Hasher::new() };
        if input.array()? != *MAGIC {
            return Err(Error::corrupt("not an index"));
        }
        let version = input.u32()?;
        if version != FORMAT {
            return Err(Error::corrupt(format!("an index of version {version}, not {FORMAT}")));
        }
        let recursive = match input.u32()? {
            0 => false,
            1 => true,
            other => return Err(Error::corrupt(format!("an index with flags {other:#x}"))),
        };
        let archive_len = input.u64()?;
        let modified = (i64::from_le_bytes(input.array()?), input.u32()?);
        let (file_system, inode) = (input.u64()?, input.u64()?);
        let changed = (i64::from_le_bytes(input.array()?), input.u32()?);
        let file = FileKey { file_system, inode, changed, owner: input.u32()? };
        let count = input.u32()?;
        if count > SAMPLES_MAX {
            return Err(Error::corrupt(format!("{count} samples, limit {SAMPLES_MAX}")));
        }
        let samples =
            (0..count).map(|_| Ok((input.u64()?, input.array()?))).collect::<Result<_>>()?;
        let key = Key { recursive, len: archive_len, modified, file, samples };
        accept(&key)?;
        let seek_points = input.sized_within(longest(archive_len))?;
        let decoded_len = input.u64()?;
        if input.left > longest(decoded_len) {
            return Err(Error::corrupt("longer than the index of such an archive can be"));
        }
        let index = Index {
            nodes: input.records(decoded)?,
            names: input.sized()?,
            segments: input.records(|bytes: [u8; 24]| {
                let mut reader = Reader::new("segment", &bytes);
                Ok(Segment { offset: reader.u64()?, len: reader.u64()?, at: reader.u64()? })
            })?,
            maps: input.records(|bytes: [u8; 8]| Ok(u64::from_le_bytes(bytes)))?,
            links: input.records(|bytes: [u8; 8]| {
                let mut reader = Reader::new("link", &bytes);
                Ok((reader.u32()?, reader.u32()?))
            })?,
            with_xattrs: input.records(|bytes: [u8; 12]| {
                let mut reader = Reader::new("node with attributes", &bytes);
                Ok((reader.u32()?, reader.u64()?))
            })?,
            xattrs: input.sized()?,
            grafts: input.list(24, |input| {
                Ok(Graft { at: input.u64()?, len: input.u64()?, path: input.sized()? })
            })?,
            notes: input
                .list(8, |input| Ok(String::from_utf8_lossy(&input.sized()?).into_owned()))?,
            faults: Vec::new(),
        };
        input.finish()?;
        index.check(decoded_len)?;
        Ok(Self { key, seek_points, decoded_len, index })
    }
}

/// The longest index of an archive of `len` bytes, bytes.
fn longest(len: u64) -> u64 {
    len.saturating_mul(LENGTHS_MAX).saturating_add(REST_MAX)
}

fn encoded(node: &Node) -> Vec<u8> {
    let Node { name, mode, nanoseconds, seconds, uid, gid, size, content } = node;
    let mut bytes = Vec::with_capacity(NODE);
    bytes.extend(name.to_le_bytes());
    bytes.extend(mode.to_le_bytes());
    bytes.extend(nanoseconds.to_le_bytes());
    bytes.extend(seconds.to_le_bytes());
    bytes.extend(uid.to_le_bytes());
    bytes.extend(gid.to_le_bytes());
    bytes.extend(size.to_le_bytes());
    bytes.extend(content.to_le_bytes());
    bytes
}

fn decoded(bytes: [u8; NODE]) -> Result<Node> {
    let mut reader = Reader::new("node", &bytes);
    let (name, mode) = (reader.u32()?, reader.u16()?);
    // Such as in the holes of a file, which take memory and no disk.
    if !is_kind(mode >> 12) {
        return Err(Error::corrupt(format!("a node of the unknown kind {}", mode >> 12)));
    }
    Ok(Node {
        name,
        mode,
        // More than a second of nanoseconds could not be shown.
        nanoseconds: reader.u32()?.min(999_999_999),
        seconds: reader.array().map(i64::from_le_bytes)?,
        uid: reader.u32()?,
        gid: reader.u32()?,
        size: reader.u64()?,
        content: reader.u64()?,
    })
}

/// Bytes on their way into a file.
struct Output<'o> {
    out: &'o mut dyn Write,
    buffer: Vec<u8>,
    sum: crc32fast::Hasher,
}

/// Bytes moved at once.
const STEP: usize = 1 << 20;

impl Output<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.buffer.extend(bytes);
        if self.buffer.len() >= STEP { self.flush() } else { Ok(()) }
    }

    fn u32(&mut self, number: u32) -> std::io::Result<()> {
        self.bytes(&number.to_le_bytes())
    }

    fn u64(&mut self, number: u64) -> std::io::Result<()> {
        self.bytes(&number.to_le_bytes())
    }

    fn sized(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.u64(length(bytes.len()))?;
        self.bytes(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.sum.update(&self.buffer);
        self.out.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self) -> std::io::Result<()> {
        self.flush()?;
        self.out.write_all(&self.sum.finalize().to_le_bytes())
    }
}

/// Room for `count` things: a file with holes can be longer than any memory.
fn reserved<T>(count: usize) -> Result<Vec<T>> {
    let mut room = Vec::new();
    match room.try_reserve_exact(count) {
        Ok(()) => Ok(room),
        Err(_) => Err(Error::corrupt(format!("no memory for {count} records of the index"))),
    }
}

/// Bytes on their way out of a file; `left` bounds every count before memory is taken for it.
struct Input<'i> {
    input: &'i mut dyn Read,
    left: u64,
    sum: crc32fast::Hasher,
}

impl Input<'_> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.left = self
            .left
            .checked_sub(length(bytes.len()))
            .ok_or_else(|| Error::corrupt("the index ends early"))?;
        self.input
            .read_exact(bytes)
            .map_err(|error| Error::io("the index can not be read", error))?;
        self.sum.update(bytes);
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count of things that take at least `each` bytes of the file.
    fn count(&mut self, each: usize) -> Result<usize> {
        let count = self.u64()?;
        match count.checked_mul(length(each)) {
            Some(bytes) if bytes <= self.left => Ok(index(count)),
            _ => Err(Error::corrupt(format!("the index claims {count} records, but is shorter"))),
        }
    }

    fn sized(&mut self) -> Result<Vec<u8>> {
        self.sized_within(u64::MAX)
    }

    fn sized_within(&mut self, most: u64) -> Result<Vec<u8>> {
        let count = self.count(1)?;
        if length(count) > most {
            return Err(Error::corrupt(format!("{count} bytes of the index, limit {most}")));
        }
        let mut bytes = reserved(count)?;
        // What is not there yet takes no memory.
        while bytes.len() < count {
            let start = bytes.len();
            bytes.resize(count.min(start.saturating_add(STEP)), 0);
            self.fill(bytes.get_mut(start..).unwrap_or_default())?;
        }
        Ok(bytes)
    }

    fn records<T, const N: usize>(
        &mut self,
        parse: impl Fn([u8; N]) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = self.count(N)?;
        let mut records = reserved(count)?;
        let at_once = STEP.checked_div(N).unwrap_or(1);
        let mut buffer = vec![0; at_once.min(count).saturating_mul(N)];
        while records.len() < count {
            let now = count.saturating_sub(records.len()).min(at_once).saturating_mul(N);
            let bytes = buffer.get_mut(..now).unwrap_or_default();
            self.fill(bytes)?;
            for record in bytes.as_chunks::<N>().0 {
                records.push(parse(*record)?);
            }
        }
        Ok(records)
    }

    fn list<T>(&mut self, each: usize, read: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.count(each)?;
        let mut list = reserved(count)?;
        while list.len() < count {
            list.push(read(self)?);
        }
        Ok(list)
    }

    fn finish(mut self) -> Result<()> {
        if self.left != 0 {
            return Err(Error::corrupt(format!("{} bytes too many in the index", self.left)));
        }
        let sum = std::mem::take(&mut self.sum).finalize();
        self.left = 4;
        if self.u32()? != sum {
            return Err(Error::corrupt("the index is damaged: its checksum is wrong"));
        }
        Ok(())
    }
}
