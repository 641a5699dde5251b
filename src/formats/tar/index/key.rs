//! What ties an index to an archive: the start of its file.

use super::file::TAIL;
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::storage::Storage;

/// Changes with every change of the layout, so that an old file is refused.
const FORMAT: u32 = 3;

/// What a file with an index begins with.
pub(in crate::formats::tar) const MAGIC: &[u8; 8] = b"ARCHFSIX";

/// The most samples a file may claim; we write far fewer.
const SAMPLES_MAX: u32 = 4096;

/// Bytes of a start without samples, and of a sample.
const START: usize = 72;
const SAMPLE: usize = 40;

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

impl Key {
    /// The start of a file.
    pub(super) fn encoded(&self) -> Vec<u8> {
        let FileKey { file_system, inode, changed, owner } = self.file;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(u32::from(self.recursive).to_le_bytes());
        bytes.extend(self.len.to_le_bytes());
        bytes.extend(self.modified.0.to_le_bytes());
        bytes.extend(self.modified.1.to_le_bytes());
        bytes.extend(file_system.to_le_bytes());
        bytes.extend(inode.to_le_bytes());
        bytes.extend(changed.0.to_le_bytes());
        bytes.extend(changed.1.to_le_bytes());
        bytes.extend(owner.to_le_bytes());
        bytes.extend(u32::try_from(self.samples.len()).unwrap_or(0).to_le_bytes());
        for (at, hash) in &self.samples {
            bytes.extend(at.to_le_bytes());
            bytes.extend(hash);
        }
        bytes
    }

    /// The key in the start of `file`, and the bytes of that start.
    pub(super) fn read(file: &dyn Storage) -> Result<(Self, Vec<u8>)> {
        let mut start = vec![0; START];
        if file.len() < length(START.saturating_add(TAIL)) {
            return Err(Error::corrupt("too short for an index"));
        }
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
            1 => true,
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
