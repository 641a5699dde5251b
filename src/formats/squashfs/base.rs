//! An image whose blocks are copied into a new image as they are, without decompressing them.
//!
//! Invariant: a returned block lies within the image, after the superblock, and is no longer than
//! a block may be.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::UNIX_EPOCH;

use super::blocks::DataBlock;
use super::{Shared, SquashFs, superblock};
use crate::cache::MemoryLimit;
use crate::codecs::Codec;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::progress::Progress;
use crate::storage;
use crate::sync::Arc;
use crate::vfs::{Attr, Ino, Name, Tree};

/// Memory for blocks of metadata, bytes.
const CACHE: u64 = 64 << 20;

/// An image that is the base of a new one.
pub struct BaseImage {
    image: Arc<SquashFs>,
    /// When its file was created, if that is known: seconds since 1970.
    created: Option<i64>,
}

/// The contents of a regular file, as the image stores them.
pub struct StoredContents {
    /// Offset of its first block in the image.
    pub start: u64,
    /// For each block, its length on disk, with bit 24 set if it is not compressed; 0 is a hole.
    pub size_fields: Vec<u32>,
    /// Its end, if that is in a fragment block.
    pub tail: Option<StoredTail>,
}

/// The end of a file, in a block that it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredTail {
    /// The number of the fragment block.
    pub fragment: u32,
    /// Offset in the decompressed block, bytes.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// A fragment block, as the image stores it.
pub struct StoredFragment {
    /// Where it is in the image.
    pub range: Range<u64>,
    /// Its length on disk, with bit 24 set if it is not compressed.
    pub size_field: u32,
}

impl BaseImage {
    /// Opens the image at `path`, which may be a URL.
    ///
    /// # Errors
    /// Those of opening an archive; `UnknownFormat` if it is no SquashFS image.
    pub fn open(path: &Path, progress: &Progress) -> Result<Self> {
        let files = storage::open_files(&[path.to_owned()], progress)?;
        let Some(file) = files.into_iter().next() else {
            return Err(Error::new(Kind::NotFound, format!("{}: no such file", path.display())));
        };
        let name = path.display().to_string();
        let created = created(path, file.identity().modified.0);
        let shared = Shared::new(MemoryLimit::new(CACHE));
        let image = SquashFs::open(&name, file, CACHE, &shared)?;
        Ok(Self { image, created })
    }

    /// When its file was created, if that is known: seconds since 1970. A program that makes an
    /// image creates the file first. Of a copy, it is at most the time of its contents.
    pub fn created(&self) -> Option<i64> {
        self.created
    }

    /// How its blocks are compressed, if they are.
    pub fn codec(&self) -> Codec {
        self.image.superblock.codec
    }

    /// Whether it says that no block with contents of files is compressed.
    pub fn is_uncompressed(&self) -> bool {
        self.image.superblock.is_uncompressed
    }

    /// Size of the image, bytes.
    pub fn bytes(&self) -> u64 {
        self.image.superblock.bytes_used
    }

    /// Size of a block, bytes.
    pub fn block_size(&self) -> u32 {
        self.image.superblock.block_size
    }

    /// What `directory` has under this name.
    ///
    /// # Errors
    /// Those of `Tree::lookup`.
    pub fn lookup(&self, directory: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        self.image.lookup(directory, name)
    }

    /// Where the contents of a regular file are.
    ///
    /// # Errors
    /// `Corrupt` if a block is outside of the image or too long; the errors of reading metadata.
    pub fn contents(&self, ino: Ino) -> Result<StoredContents> {
        self.contents_of(ino).map_err(|error| error.within(&self.image.name))
    }

    fn contents_of(&self, ino: Ino) -> Result<StoredContents> {
        let (image, block_size) = (&self.image, u64::from(self.block_size()));
        let file = image.file(ino)?;
        let body = file.body;
        let mut list = image.blocks.list(file, 0)?;
        let mut contents = StoredContents { start: 0, size_fields: Vec::new(), tail: None };
        while let Some(block) = list.next()? {
            if block != DataBlock::Hole {
                self.checked(block)?;
                if contents.start == 0 {
                    contents.start = block.range().start;
                }
            }
            contents.size_fields.push(block.size_field());
        }
        if let Some(tail) = body.tail {
            let len = body.size.checked_rem(block_size).unwrap_or(0);
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            contents.tail = Some(StoredTail { fragment: tail.fragment, offset: tail.offset, len });
        }
        Ok(contents)
    }

    /// Where a fragment block is.
    ///
    /// # Errors
    /// `Corrupt` if the image has no such block, or it is outside of the image or too long.
    pub fn fragment(&self, number: u32) -> Result<StoredFragment> {
        let block = self.fragment_block(number)?;
        Ok(StoredFragment { range: block.range(), size_field: block.size_field() })
    }

    /// Bytes of a fragment block when it is decompressed. `stored` are its bytes in the image.
    ///
    /// # Errors
    /// `Corrupt` if it cannot be decompressed.
    pub fn decoded_len(&self, fragment: &StoredFragment, stored: &[u8]) -> Result<u32> {
        let block = DataBlock::parse(fragment.size_field, fragment.range.start);
        let DataBlock::Compressed { .. } = block else {
            return Ok(fragment.size_field & DataBlock::LEN);
        };
        let mut decoded = vec![0; index(self.block_size())];
        let len = self.codec().decode(stored, &mut decoded).map_err(|error| {
            error
                .within("damaged data block")
                .with_detail(block.describe())
                .within(&self.image.name)
        })?;
        Ok(u32::try_from(len).unwrap_or(u32::MAX))
    }

    fn fragment_block(&self, number: u32) -> Result<DataBlock> {
        let block = self.image.blocks.fragment(number);
        let block = block.and_then(|block| self.checked(block).map(|()| block));
        block.map_err(|error| error.within(&self.image.name))
    }

    /// Fills `buffer` with the bytes at `offset` of the image, as they are stored.
    ///
    /// # Errors
    /// `Io`, `Changed`.
    pub fn read_stored(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let read = self.image.data.storage.read_exact_at(buffer, offset);
        read.map_err(|error| error.within(&self.image.name))
    }

    /// Checks that a block that is stored can be one of an image.
    fn checked(&self, block: DataBlock) -> Result<()> {
        let Range { start, end } = block.range();
        let is_within = start >= length(superblock::SIZE)
            && end <= self.image.superblock.bytes_used
            && end.saturating_sub(start) <= u64::from(self.block_size());
        let damaged = || Error::corrupt("damaged data block").with_detail(block.describe());
        is_within.then_some(()).ok_or_else(damaged)
    }
}

/// When the file at `path` was created, or last changed if that is earlier: seconds since 1970.
/// `modified` is 0 if a server does not say.
fn created(path: &Path, modified: i64) -> Option<i64> {
    let created = fs::metadata(path).and_then(|found| found.created()).ok();
    let created = created.and_then(|created| created.duration_since(UNIX_EPOCH).ok());
    let created = created.map(|created| i64::try_from(created.as_secs()).unwrap_or(i64::MAX));
    created.into_iter().chain((modified != 0).then_some(modified)).min()
}
