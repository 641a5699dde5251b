//! What is in an archive and what reading it costs, from its tables alone. No data is read.
//!
//! Invariants: a file counts once even if it has several names, except where names are counted. An
//! archive with damaged tables has no numbers at all, because partial ones would be wrong. The
//! names of the fields are keys of `archfs info --json`, on which scripts rely.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::slice;

use serde::Serialize;

use super::OpenOptions;
use super::opening::{Format, Memory, Opening, Part};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::storage;
use crate::units::quoted;
use crate::vfs::{Cookie, FileKind, Ino, Name, Tree};

mod statistics;

pub use statistics::{Cost, ImageEstimate, READ_COST, Sizes};
pub(super) use statistics::{Costs, SlowReads};

/// What is in an archive.
#[derive(Clone, Debug)]
pub struct Info {
    /// Directory that shows it in the outer archive; empty for the outermost.
    pub path: Vec<u8>,
    /// Size of the archive in the file system or outer archive, bytes, with padding.
    pub bytes: u64,
    /// Number of names of each kind.
    pub kinds: Kinds,
    /// The regular files by size.
    pub sizes: Sizes,
    /// What reading one of the files decodes.
    pub cost: Cost,
    /// The estimated cost of the same files in an image made by `archfs pack`.
    pub packed: ImageEstimate,
    /// Whether it holds a Python environment.
    pub is_environment: bool,
    /// What is specific to its format.
    pub layout: Layout,
    /// The archives in it that are shown as directories.
    pub within: Vec<Info>,
}

impl Info {
    /// What an archive of `bytes` holds. `info` adds where it is, and what is in it.
    pub(super) fn new(
        bytes: u64,
        (kinds, sizes, costs): (Kinds, Sizes, Costs),
        layout: Layout,
    ) -> Self {
        let (cost, packed) = costs.finish();
        let (path, within, is_environment) = (Vec::new(), Vec::new(), false);
        Self { path, bytes, kinds, sizes, cost, packed, is_environment, layout, within }
    }
}

/// Number of names of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kinds {
    /// Regular files.
    pub files: u64,
    /// Directories, including the root.
    #[serde(rename = "folders")]
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Block and character devices.
    pub devices: u64,
    /// Named pipes.
    pub fifos: u64,
    /// Sockets.
    pub sockets: u64,
    /// Names among these that are not the first of their file.
    pub hard_links: u64,
}

impl Kinds {
    /// Adds a file of kind `kind` with `names` names.
    pub(super) fn add(&mut self, kind: FileKind, names: u64) {
        let count = match kind {
            FileKind::Regular => &mut self.files,
            FileKind::Directory => &mut self.directories,
            FileKind::Symlink => &mut self.links,
            FileKind::BlockDevice | FileKind::CharDevice => &mut self.devices,
            FileKind::Fifo => &mut self.fifos,
            FileKind::Socket => &mut self.sockets,
        };
        *count = count.saturating_add(names);
        self.hard_links = self.hard_links.saturating_add(names.saturating_sub(1));
    }

    /// Adds another name of a file of kind `kind`.
    pub(super) fn add_name(&mut self, kind: FileKind) {
        self.add(kind, 1);
        self.hard_links = self.hard_links.saturating_add(1);
    }
}

/// What is specific to a format.
#[derive(Clone, Debug)]
pub enum Layout {
    /// A SquashFS image.
    Image(Image),
    /// A tar, compressed or not.
    Tar(TarLayout),
    /// A ZIP archive.
    Zip(ZipLayout),
}

/// The layout of an image.
#[derive(Clone, Debug, Serialize)]
pub struct Image {
    /// Name of its compressor.
    pub compressor: &'static str,
    /// The options of the compressor as arguments of `mksquashfs`, if they are stored.
    pub options: Option<String>,
    /// Size of a block, bytes.
    pub block_size: u32,
    /// Size of the image, bytes, without padding.
    pub bytes: u64,
    /// Bytes of it that are not file data.
    pub tables: u64,
    /// How the data of the files is stored.
    #[serde(flatten)]
    pub shares: Shares,
    /// The blocks that hold tails of several files.
    pub fragments: Fragments,
    /// Number of sets of extended attributes; `None` if there is no table of them.
    pub xattrs: Option<u32>,
    /// Whether it has an export table, for NFS.
    #[serde(rename = "exportable")]
    pub is_exportable: bool,
    /// Number of users and groups that own files in it.
    pub owners: u16,
}

/// How the data of files is stored. The first three sum up to all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shares {
    /// Bytes in uncompressed blocks.
    #[serde(rename = "plain")]
    pub uncompressed: u64,
    /// Bytes in compressed blocks, decompressed.
    pub compressed: u64,
    /// Bytes in blocks of zeros that are not stored.
    pub holes: u64,
    /// Bytes among these that are also part of another file and are stored only once.
    pub shared: u64,
}

/// Fragment blocks, which hold the tails of several files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fragments {
    /// Number of fragment blocks.
    pub blocks: u32,
    /// Number of them that files use.
    pub used: u64,
    /// Number of those that are compressed.
    pub compressed: u64,
    /// Bytes of files in them, decompressed.
    pub bytes: u64,
    /// Number of files with a tail in one.
    pub files: u64,
}

/// The layout of a tar.
#[derive(Clone, Debug)]
pub struct TarLayout {
    /// Size of the tar, bytes, decompressed.
    pub bytes: u64,
    /// Its compression. None if it is not compressed.
    pub compressed: Option<Compressed>,
    /// Bytes of holes in sparse files, which are not stored.
    pub holes: u64,
    /// Whether a file in it has extended attributes.
    pub has_xattrs: bool,
    /// Whether an index is saved. Without one, opening reads all headers.
    pub is_indexed: bool,
    /// Whether it is one compressed file, and not a tar.
    pub is_lone_file: bool,
}

/// The layout of a ZIP archive.
#[derive(Clone, Debug, Serialize)]
pub struct ZipLayout {
    /// The compression methods of its files.
    pub methods: Vec<MethodShare>,
}

/// The files of a ZIP archive with one compression method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MethodShare {
    /// Name of the method.
    pub method: &'static str,
    /// Number of entries of files.
    pub files: u64,
    /// Their bytes in the archive.
    pub compressed: u64,
    /// Their decoded bytes.
    pub bytes: u64,
}

/// The compression of a tar.
#[derive(Clone, Copy, Debug)]
pub struct Compressed {
    /// Name of the compression format.
    pub container: &'static str,
    /// Number of chunks. `None` if there is none, and opening decodes the whole file to a temporary
    /// file.
    pub chunks: Option<usize>,
    /// Size of the largest chunk, decoded bytes.
    pub largest: u64,
}

/// Describes the archive at `path`.
pub fn info(path: &PathBuf, options: &OpenOptions, progress: &Progress) -> Result<Info> {
    let files = storage::open_files(slice::from_ref(path), progress)?;
    progress.begin(super::reading_headers(&files));
    let memory = Memory::new(1, options);
    let opening = Opening::new(options, &memory, progress);
    let mut parts = Vec::new();
    for file in &files {
        parts.extend(opening.parts(file)?);
    }
    let mut parts = parts.into_iter();
    let outer = parts.next().ok_or_else(|| Error::corrupt("no archive in the file"))?;
    let mut info = part(&outer, progress).map_err(|error| advised(path, error))?;
    for inner in parts {
        match part(&inner, progress) {
            Ok(inner) => info.within.push(inner),
            Err(error) => log::warn!("{}; not counted", crate::log::text_of(&error)),
        }
    }
    Ok(info)
}

fn part(part: &Part, progress: &Progress) -> Result<Info> {
    let info = match &part.format {
        Format::Image(image) => image.info(progress)?,
        Format::Tar(tar) => tar.info()?,
        Format::Zip(zip) => zip.info()?,
    };
    let is_environment = is_environment(part.layer.tree.as_ref());
    Ok(Info { path: part.layer.path.clone(), is_environment, ..info })
}

fn advised(path: &Path, error: Error) -> Error {
    match error.is_damage() && error.hint().is_none() {
        true => {
            let hint = format!("run `archfs verify {}` to list all damage", quoted(path.display()));
            error.with_hint(hint)
        }
        false => error,
    }
}

/// What conda and venv leave at the top of an environment.
const MARKS: [&[u8]; 2] = [b"conda-meta", b"pyvenv.cfg"];

/// Most directories at the top of a tree that are looked into.
const DIRECTORIES_MAX: usize = 64;

/// Whether `tree`, or a directory at its top, is a Python environment, which is packed often and
/// read seldom.
fn is_environment(tree: &dyn Tree) -> bool {
    let mut directories = vec![Ino::ROOT];
    // A damaged listing is no environment; whatever reads it reports the damage.
    _ = tree.read_dir(Ino::ROOT, Cookie::START, &mut |entry| {
        if entry.kind == FileKind::Directory {
            directories.push(entry.ino);
        }
        match directories.len() > DIRECTORIES_MAX {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    directories.into_iter().any(|directory| has_mark(tree, directory))
}

fn has_mark(tree: &dyn Tree, directory: Ino) -> bool {
    let mut names = MARKS.into_iter().filter_map(Name::parse);
    names.any(|name| matches!(tree.lookup(directory, name), Ok(Some(_))))
}
