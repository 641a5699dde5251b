//! The start of an index: the key that identifies its archive.

use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::storage::Storage;

/// Incremented with every change of the layout, so that old files are rejected.
const FORMAT: u32 = 5;

/// The first bytes of an index.
pub(crate) const MAGIC: &[u8; 8] = b"ARCHFSIX";

/// The flag of an index with archives within the archive as directories. 1 was that of indexes that
/// had ZIP archives as files.
const RECURSIVE: u32 = 2;

/// Most samples that a file may claim. archfs writes far fewer.
const SAMPLES_MAX: u32 = 4096;

/// Size of the start without samples, and of one sample, bytes.
pub(super) const START: usize = 72;
const SAMPLE: usize = 40;

/// The hash of a sampled block.
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
