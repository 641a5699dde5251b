//! What is in an archive, and what reading it costs: told by its tables alone, no data is read.
//!
//! Owns the words for that, which no format has for itself, and opening for it. Leaves finding the
//! numbers to each format.
//! Invariants: a file counts once, however many names it has, except where names are counted; an
//! archive whose tables can not be read to their end has no numbers at all, for half of them would
//! be wrong ones.

use std::path::PathBuf;
use std::slice;

use super::OpenOptions;
use super::opening::{Format, Memory, Opening, Part};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::storage::{self, Changes};
use crate::vfs::FileKind;

mod cost;
mod sizes;

pub use cost::{Cost, ImageEstimate, READ_COST};
pub use sizes::Sizes;

pub(super) use cost::Costs;

/// What is in an archive.
#[derive(Clone, Debug)]
pub struct Info {
    /// Its folder in the archive that it lies in; empty for the outermost.
    pub path: Vec<u8>,
    /// Bytes of the archive as it is stored, with padding.
    pub bytes: u64,
    /// What has a name in it.
    pub kinds: Kinds,
    /// The regular files by their size.
    pub sizes: Sizes,
    /// What reading one of them decodes.
    pub cost: Cost,
    /// What the same files would cost if they were packed for it.
    pub packed: ImageEstimate,
    /// What only its format has.
    pub layout: Layout,
    /// The archives in it that are shown as folders.
    pub within: Vec<Info>,
}

/// How many names of each kind there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Regular files.
    pub files: u64,
    /// Folders, the root among them.
    pub folders: u64,
    /// Symbolic links.
    pub links: u64,
    /// Devices, of both kinds.
    pub devices: u64,
    /// Named pipes.
    pub fifos: u64,
    /// Sockets.
    pub sockets: u64,
    /// Names among these that are not the first of what they stand for.
    pub hard_links: u64,
}

impl Kinds {
    /// Adds something of that kind with `names` names.
    pub(super) fn add(&mut self, kind: FileKind, names: u64) {
        let count = match kind {
            FileKind::Regular => &mut self.files,
            FileKind::Directory => &mut self.folders,
            FileKind::Symlink => &mut self.links,
            FileKind::BlockDevice | FileKind::CharDevice => &mut self.devices,
            FileKind::Fifo => &mut self.fifos,
            FileKind::Socket => &mut self.sockets,
        };
        *count = count.saturating_add(names);
        self.hard_links = self.hard_links.saturating_add(names.saturating_sub(1));
    }

    /// Adds another name of something of that kind.
    pub(super) fn add_name(&mut self, kind: FileKind) {
        self.add(kind, 1);
        self.hard_links = self.hard_links.saturating_add(1);
    }
}

/// What the formats have of their own.
#[derive(Clone, Debug)]
pub enum Layout {
    /// A SquashFS image.
    Image(Image),
    /// A tar, stored or compressed.
    Tar(TarLayout),
}

/// How an image is laid down.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its compressor.
    pub compressor: &'static str,
    /// The options of that, if they are stored, as `mksquashfs` would be given them.
    pub options: Option<String>,
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes of the image, without padding.
    pub bytes: u64,
    /// Bytes of it that are no contents of files.
    pub tables: u64,
    /// How the bytes of the files are stored.
    pub shares: Shares,
    /// The blocks that files share.
    pub fragments: Fragments,
    /// Sets of extended attributes; `None` where there is no table of them.
    pub xattrs: Option<u32>,
    /// Whether it has a table for NFS.
    pub is_exportable: bool,
    /// Users and groups that own files in it.
    pub owners: u16,
}

/// How the bytes of files are stored: the first three are all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Bytes in blocks that are stored as they are.
    pub plain: u64,
    /// Bytes in compressed blocks, decoded.
    pub compressed: u64,
    /// Bytes in blocks of zeros that are not stored.
    pub holes: u64,
    /// Bytes among these that are those of another file, too, and stored only once.
    pub shared: u64,
}

/// The blocks in which ends of files lie together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragments {
    /// How many there are.
    pub blocks: u32,
    /// Those that files use.
    pub used: u64,
    /// Those of them that are compressed.
    pub compressed: u64,
    /// Bytes that files have in them, decoded.
    pub bytes: u64,
    /// Files that have an end in one.
    pub files: u64,
}

/// How a tar is stored.
#[derive(Clone, Debug)]
pub struct TarLayout {
    /// Bytes of the tar, decoded.
    pub bytes: u64,
    /// How it is compressed.
    pub compressed: Option<Compressed>,
    /// Bytes of sparse files that are not stored.
    pub holes: u64,
    /// Whether a file in it has extended attributes.
    pub has_xattrs: bool,
    /// Whether an index is saved, so that opening it again does not read all of its headers.
    pub is_indexed: bool,
}

/// How a tar is compressed.
#[derive(Clone, Copy, Debug)]
pub struct Compressed {
    /// The container.
    pub container: &'static str,
    /// Parts that can be decoded alone; `None` where there is none, and all must be decoded to a
    /// temporary file when it is opened.
    pub chunks: Option<usize>,
    /// The largest of them, decoded bytes.
    pub largest: u64,
}

/// What is in the archive at `path`.
///
/// # Errors
/// As `super::open`; `Corrupt` where its tables can not be read to their end.
pub fn info(path: &PathBuf, options: &OpenOptions, progress: &Progress) -> Result<Info> {
    let files = storage::open_files(slice::from_ref(path), Changes::default())?;
    progress.begin("reading headers");
    let memory = Memory::new(1, options);
    let image_bytes = memory.image_bytes;
    let opening = Opening { options, memory: &memory, progress, number: 0, image_bytes };
    let mut parts = Vec::new();
    for file in &files {
        parts.extend(opening.parts(file)?);
    }
    let mut parts = parts.into_iter();
    let outer = parts.next().ok_or_else(|| Error::corrupt("no archive"))?;
    let mut info = part(&outer, progress).map_err(advised)?;
    for inner in parts {
        match part(&inner, progress) {
            Ok(inner) => info.within.push(inner),
            Err(error) => log::warn!("{error}; it is not counted"),
        }
    }
    Ok(info)
}

fn part(part: &Part, progress: &Progress) -> Result<Info> {
    let info = match &part.format {
        Format::Image(image) => image.info(progress)?,
        Format::Tar(tar) => tar.info()?,
    };
    Ok(Info { path: part.layer.path.clone(), ..info })
}

fn advised(error: Error) -> Error {
    match error.is_damage() && error.hint().is_none() {
        true => error.with_hint("archfs verify tells what of it can still be read"),
        false => error,
    }
}
