//! Archives that are files of another archive: finds them in a tree, and reads one as storage. Also
//! finds the archives in a directory.
//!
//! Tars within a tar need neither: the scan finds them, and their bytes are contiguous in the outer
//! archive.
//!
//! Invariant: the search ends, even if the directories of a damaged archive form a loop.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::bytes::length;
use super::compressed::Container;
use super::index::members::archive_stem;
use super::limits::ZIP_WHOLE_MAX;
use super::squashfs::SquashFs;
use super::{tar, zip};
use crate::error::{Error, Kind, Result};
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::{Cookie, DirectoryWalk, FileKind, Ino, Scratch, Tree, joined};

/// Most bytes of one read from the tree.
const READ_MAX: usize = 1 << 20;

thread_local! {
    /// Buffers for reads from trees. Reads from nested trees need one for each level.
    static SCRATCHES: RefCell<Vec<Scratch>> = const { RefCell::new(Vec::new()) };
}

/// An archive found in a tree.
pub(super) struct Found {
    /// The directory that will show it, without a leading slash.
    pub(super) directory: Vec<u8>,
    pub(super) ino: Ino,
    pub(super) size: u64,
}

/// All regular files of `tree` that are archives by name and first bytes. Damaged directories are
/// skipped.
pub(super) fn find(tree: &dyn Tree) -> Vec<Found> {
    let mut found = Vec::new();
    let mut directories = DirectoryWalk::from_root();
    let mut scratch = Scratch::default();
    while let Some((path, directory)) = directories.next() {
        let mut candidates = Vec::new();
        // Damage in one directory does not hide the archives in others.
        let listed = tree.read_dir(directory, Cookie::START, &mut |entry| {
            let path = joined(&path, entry.name.as_bytes());
            match entry.kind {
                FileKind::Directory => {
                    directories.add(path, entry.ino);
                }
                FileKind::Regular => {
                    let directory = archive_stem(&path).map(<[u8]>::to_vec);
                    candidates.extend(directory.map(|directory| (directory, entry.ino)));
                }
                _ => {}
            }
            ControlFlow::Continue(())
        });
        if let Err(error) = listed {
            let error = crate::log::text_of(&error);
            log::warn!("{error}; archives in that directory are not opened");
        }
        for (directory, ino) in candidates {
            let head = tree.read(ino, 0, HEAD, &mut scratch);
            let (Ok(attr), Ok(head)) = (tree.attr(ino), head) else { continue };
            let (size, head) = (attr.size, head.as_slice());
            if recognizes(head) || Container::is_at_start(head) {
                found.push(Found { directory, ino, size });
            }
        }
    }
    found
}

/// Replaces each directory in `paths` by the archives below it, sorted by path. An archive is found
/// by its suffix. Skips names that start with a dot. Returns the paths of the archives, and the
/// directories.
///
/// # Errors
/// `NotFound` if a directory holds no archive; `Io`. A path that cannot be examined stays, so that
/// opening it reports the error.
pub fn archives_in(paths: &[PathBuf]) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let (mut archives, mut directories) = (Vec::new(), Vec::new());
    for path in paths {
        if !path.is_dir() {
            archives.push(path.clone());
            continue;
        }
        let before = archives.len();
        let mut pending = vec![path.clone()];
        while let Some(directory) = pending.pop() {
            let failed = |error| Error::io(format!("{}: cannot list", directory.display()), error);
            for entry in fs::read_dir(&directory).map_err(failed)? {
                let found = entry.map_err(failed)?.path();
                let name = found.file_name().map(OsStr::as_bytes).unwrap_or_default();
                let kind = fs::symlink_metadata(&found).map_err(failed)?;
                match name.first() {
                    Some(b'.') => {}
                    // A link to a directory may lead back.
                    _ if kind.is_dir() => pending.push(found),
                    _ if archive_stem(name).is_some() && found.is_file() => archives.push(found),
                    _ => {}
                }
            }
        }
        let found = archives.get_mut(before..).unwrap_or_default();
        if found.is_empty() {
            let context = format!("{}: no archive in this directory", path.display());
            return Err(Error::new(Kind::NotFound, context)
                .with_hint("pack it first: archfs pack DIRECTORY data.sqfs"));
        }
        found.sort_unstable();
        directories.push(path.clone());
    }
    Ok((archives, directories))
}

/// The directory that shows the archive at `path`, if it is one of those in `directories`.
pub(super) fn shown_path(directories: &[PathBuf], path: &Path) -> Option<Vec<u8>> {
    let below = directories.iter().find_map(|directory| path.strip_prefix(directory).ok())?;
    archive_stem(below.as_os_str().as_bytes()).map(<[u8]>::to_vec)
}

/// What a tree holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Only directories.
    NoFiles,
    /// Regular files each of which is an archive that would become a directory, and perhaps links.
    /// Compressed tars do not count: checking them takes long.
    OnlyArchives,
    /// Anything else.
    Files,
}

/// What `tree` holds. Of at most `most` files, the first bytes are read; further ones count as
/// archives if their names say so. Stops at the first file that is no archive.
pub fn contents(tree: &dyn Tree, most: usize) -> Result<Contents> {
    let mut scratch = Scratch::default();
    let mut directories = DirectoryWalk::from_root();
    let (mut has_archives, mut has_others, mut read) = (false, false, 0);
    while let Some((_, directory)) = directories.next() {
        let mut candidates = Vec::new();
        let mut has_plain_file = false;
        tree.read_dir(directory, Cookie::START, &mut |entry| {
            let name = entry.name.as_bytes();
            match entry.kind {
                FileKind::Directory => {
                    directories.add(Vec::new(), entry.ino);
                }
                FileKind::Regular if archive_stem(name).is_some() => {
                    candidates.push(entry.ino);
                }
                FileKind::Regular => {
                    has_plain_file = true;
                    return ControlFlow::Break(());
                }
                _ => has_others = true,
            }
            ControlFlow::Continue(())
        })?;
        if has_plain_file {
            return Ok(Contents::Files);
        }
        for ino in candidates {
            // Of a large file, its name has to do: its first bytes may have to be decompressed with
            // all others.
            if read < most && tree.attr(ino)?.size <= ZIP_WHOLE_MAX {
                read = read.saturating_add(1);
                if !recognizes(tree.read(ino, 0, HEAD, &mut scratch)?.as_slice()) {
                    return Ok(Contents::Files);
                }
            }
            has_archives = true;
        }
    }
    Ok(match (has_archives, has_others) {
        (true, _) => Contents::OnlyArchives,
        (false, true) => Contents::Files,
        (false, false) => Contents::NoFiles,
    })
}

/// Number of bytes at the start of a file that show whether it is an archive.
const HEAD: u32 = 1024;

fn recognizes(head: &[u8]) -> bool {
    SquashFs::recognizes(head) || tar::recognizes(head) || zip::recognizes(head)
}

/// A file of a tree as storage.
pub(super) struct NestedFile {
    tree: Arc<dyn Tree>,
    ino: Ino,
    len: u64,
}

impl NestedFile {
    /// The file `ino` of `tree`, which is `len` bytes long.
    pub(super) fn new(tree: Arc<dyn Tree>, ino: Ino, len: u64) -> Self {
        Self { tree, ino, len }
    }

    fn read(&self, buffer: &mut [u8], mut offset: u64, scratch: &mut Scratch) -> Result<()> {
        let mut rest = buffer;
        while !rest.is_empty() {
            let size = u32::try_from(rest.len().min(READ_MAX)).unwrap_or(u32::MAX);
            let bytes = self.tree.read(self.ino, offset, size, scratch)?;
            let bytes = bytes.as_slice();
            let missing = rest.len();
            let (target, remaining) = rest.split_at_mut_checked(bytes.len()).unwrap_or_default();
            if target.is_empty() {
                return Err(Error::corrupt("the file is shorter than its size")
                    .with_detail(format_args!("{missing} bytes missing at {offset:#x}")));
            }
            target.copy_from_slice(bytes);
            offset = offset.saturating_add(length(target.len()));
            rest = remaining;
        }
        Ok(())
    }
}

impl Storage for NestedFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(length(buffer.len()));
        if end.is_none_or(|end| end > self.len) {
            let (wanted, len) = (buffer.len(), self.len);
            return Err(Error::corrupt("a reference to data past the end of the file")
                .with_detail(format_args!("{wanted} bytes at {offset:#x} of {len}")));
        }
        let reused = SCRATCHES.with_borrow_mut(Vec::pop);
        let mut scratch = reused.unwrap_or_default();
        let outcome = self.read(buffer, offset, &mut scratch);
        // The inner archive may need these pages again, and nothing else would do this work.
        scratch.finish(false);
        SCRATCHES.with_borrow_mut(|scratches| scratches.push(scratch));
        outcome
    }
}
