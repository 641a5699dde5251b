//! Opens the archives of a mount together, and reads them completely: into a copy, or to fill the
//! page cache.
//!
//! A copy is a single file in which each archive starts at a page boundary, because a data set can
//! have more shards than a process may open files. The caller decides where the copy is and whether
//! it fits there. Invariant: a copy has all bytes of the files, and those of each file are of one
//! version.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::Storage;
use super::archive_cache::ArchiveCache;
use super::changes::Changes;
use super::file::FileStorage;
use super::pool::FilePool;
use crate::error::{Error, Result};
use crate::ordered::try_ordered;
use crate::progress::Progress;
use crate::sync::{Arc, Mutex};

/// Files opened concurrently, each by a thread: on a parallel file system opening is mostly
/// waiting.
const OPENED_AT_ONCE: usize = 8;

/// Pieces read concurrently. A single stream gets only a fraction of a parallel file system's
/// bandwidth.
const READ_AT_ONCE: usize = 8;

/// Size of a piece in bytes: one or a few stripes of a parallel file system.
const PIECE: u64 = 4 << 20;

/// Alignment of the archives in a copy, in bytes: a page.
const ALIGNMENT: u64 = 4096;

/// Opens the files at `paths`; `changes` says what to do if one is rewritten in place.
///
/// # Errors
/// The error of the first path that fails, as `FileStorage::open`.
pub fn open_files(paths: &[PathBuf], changes: Changes) -> Result<Vec<Arc<FileStorage>>> {
    // A pool only if there are too many files, because each read of a pooled file takes a lock.
    if paths.len() > FilePool::room() {
        FilePool::enlarge_room();
    }
    let pool = (paths.len() > FilePool::room()).then(|| FilePool::new(FilePool::room()));
    let mut files = Vec::with_capacity(paths.len());
    try_ordered(
        paths.len(),
        OPENED_AT_ONCE,
        |nth| match &pool {
            Some(pool) => FileStorage::open_in(&paths[nth], pool, changes),
            None => FileStorage::open_with(&paths[nth], changes),
        },
        |file| files.push(Arc::new(file)),
    )?;
    Ok(files)
}

/// Prepares `files` for the requests of a mount, as `FileStorage::serve`.
pub fn serve(files: &[Arc<FileStorage>], cache: &Arc<ArchiveCache>) {
    let is_random = have_room_for_two_each(files.len(), FilePool::room());
    files.iter().for_each(|file| file.serve(cache, is_random));
}

/// Whether each of `files` can be open twice, if `room` can be open together.
fn have_room_for_two_each(files: usize, room: usize) -> bool {
    files.saturating_mul(2) <= room
}

/// The size of a copy of `files`, in bytes.
pub fn copied_len(files: &[Arc<FileStorage>]) -> u64 {
    layout(files).1
}

/// Copies `files` into `target`, which is empty. Returns them as read from there.
///
/// # Errors
/// `Io` if a file cannot be read or written, or has changed since it was opened.
pub fn copy(
    files: &[Arc<FileStorage>],
    target: File,
    progress: &Progress,
) -> Result<Vec<Arc<FileStorage>>> {
    let target = Arc::new(target);
    let (starts, _) = layout(files);
    let mut cached = Vec::with_capacity(files.len());
    let check_cached = |nth: usize| Ok::<_, Error>(cached_pieces(&files[nth]));
    try_ordered(files.len(), OPENED_AT_ONCE, check_cached, |pieces| cached.push(pieces))?;
    read_pieces(files, progress, |number, offset, piece| {
        let file = &files[number];
        // If the file has changed, report that instead.
        let failed = |error| file.check_unchanged().err().unwrap_or(error);
        file.read_exact_at(piece, offset).map_err(failed)?;
        if cached[number].get((offset / PIECE) as usize) != Some(&true) {
            file.drop_cached(offset, piece.len() as u64);
        }
        target.write_all_at(piece, starts[number] + offset).map_err(|error| {
            Error::io(format!("{}: cannot write the copy", file.path().display()), error)
        })
    })?;
    let finish = |nth: usize| {
        // The kernel's readahead may have reloaded pages that another thread dropped.
        for (piece, _) in cached[nth].iter().enumerate().filter(|(_, was_cached)| !**was_cached) {
            files[nth].drop_cached(piece as u64 * PIECE, PIECE);
        }
        files[nth].check_unchanged()
    };
    try_ordered(files.len(), OPENED_AT_ONCE, finish, |()| {})?;
    let copied = |(file, start): (&Arc<FileStorage>, u64)| Arc::new(file.copied(&target, start));
    Ok(files.iter().zip(starts).map(copied).collect())
}

/// Reads `files`, to load them into the page cache.
///
/// # Errors
/// As `Storage::read_exact_at`.
pub fn read_all(files: &[Arc<FileStorage>], progress: &Progress) -> Result<()> {
    // With its own readahead, the kernel loads large folios, which it drops only as a whole. Then
    // most pages would stay when the files in them were served.
    read_pieces(files, progress, |number, offset, piece| {
        files[number].read_contents_at(piece, offset)
    })
}

/// Drops the copy of `files` from the page cache, if they are read from one on a disk. Writing the
/// copy left it there in large folios, which the kernel drops only as a whole. Waits until the disk
/// has the copy.
///
/// # Errors
/// Those of writing it.
pub fn drop_copy(files: &[Arc<FileStorage>]) -> io::Result<()> {
    // All have the same copy.
    files.first().map_or(Ok(()), |file| file.drop_copy())
}

/// Which pieces of `file` are in the page cache.
///
/// An archive that is read from its copy should not occupy the page cache as well, so pages loaded
/// by copying are dropped again. But other jobs may be reading the same file, so pages that were
/// cached before stay. One byte stands for a piece, and all pieces are checked before the first is
/// read, because the kernel reads ahead. If the system cannot say, the pages are dropped: reading
/// them again only costs time.
fn cached_pieces(file: &FileStorage) -> Vec<bool> {
    let last = |nth: u64| ((nth + 1) * PIECE).min(file.len()) - 1;
    file.are_cached((0..file.len().div_ceil(PIECE)).map(last))
}

/// The offset of each of `files` in their copy, and the copy's size. The sum saturates; a copy of
/// that size fits nowhere.
fn layout(files: &[Arc<FileStorage>]) -> (Vec<u64>, u64) {
    let mut end = 0_u64;
    let starts = files.iter().map(|file| {
        let start = match file.is_empty() {
            true => end,
            false => end.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX),
        };
        end = start.saturating_add(file.len());
        start
    });
    (starts.collect(), end)
}

/// Calls `read` from several threads for all pieces of `files`, with file number, offset and
/// buffer.
fn read_pieces(
    files: &[Arc<FileStorage>],
    progress: &Progress,
    read: impl Fn(usize, u64, &mut [u8]) -> Result<()> + Sync,
) -> Result<()> {
    // The index of each file's first piece among all pieces.
    let mut count = 0;
    let first = |file: &Arc<FileStorage>| {
        progress.expect(file.len());
        let first = count;
        count += file.len().div_ceil(PIECE);
        first
    };
    let firsts: Vec<u64> = files.iter().map(first).collect();
    // Guards unused buffers. Held for a push or a pop.
    let buffers = Mutex::new(Vec::new());
    let work = |nth: usize| {
        let nth = nth as u64;
        // The last match, because empty files before it have the same first piece.
        let number = firsts.partition_point(|&first| first <= nth) - 1;
        let offset = (nth - firsts[number]) * PIECE;
        let len = PIECE.min(files[number].len() - offset);
        let mut buffer = buffers.lock().pop().unwrap_or_else(|| vec![0; PIECE as usize]);
        read(number, offset, &mut buffer[..len as usize])?;
        buffers.lock().push(buffer);
        progress.advance(len);
        Ok(())
    };
    try_ordered(usize::try_from(count).unwrap_or(usize::MAX), READ_AT_ONCE, work, |()| {})
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use super::*;
    use crate::error::Kind;
    use crate::os::unlinked;

    /// Lengths just below, at and above a page and a piece.
    const LENGTHS: [u64; 8] = [0, 1, 4095, 4096, 4097, PIECE, PIECE + 1, 0];

    /// Files of these lengths, each with different content.
    fn files(directory: &tempfile::TempDir) -> Vec<PathBuf> {
        let created = LENGTHS.iter().enumerate().map(|(number, &len)| {
            let path = directory.path().join(number.to_string());
            let byte = |offset: u64| (offset % 251) as u8 ^ number as u8;
            std::fs::write(&path, (0..len).map(byte).collect::<Vec<_>>()).unwrap();
            path
        });
        created.collect()
    }

    #[test]
    fn each_file_is_read_from_the_copy_up_to_its_own_end() {
        let work = tempfile::tempdir().unwrap();
        let paths = files(&work);
        let files = open_files(&paths, Changes::default()).unwrap();
        let progress = Progress::default();
        let target = unlinked::create(work.path()).unwrap();
        let shown = target.try_clone().unwrap();
        let copies = copy(&files, target, &progress).unwrap();
        assert_eq!(shown.metadata().unwrap().len(), copied_len(&files));
        let total = LENGTHS.iter().sum();
        assert_eq!(progress.now(), (total, total));
        let expected: Vec<_> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
        for path in &paths {
            std::fs::remove_file(path).unwrap();
        }
        for ((copy, file), bytes) in copies.iter().zip(&files).zip(expected) {
            assert_eq!((copy.path(), copy.identity()), (file.path(), file.identity()));
            let mut found = vec![0; bytes.len()];
            copy.read_exact_at(&mut found, 0).unwrap();
            assert!(found == bytes, "{}", copy.path().display());
            let past = copy.read_exact_at(&mut [0; 2], copy.len().saturating_sub(1)).unwrap_err();
            assert_eq!(past.kind(), Kind::Corrupt);
            assert_eq!(copy.read_exact_at(&mut [0], u64::MAX).unwrap_err().kind(), Kind::Corrupt);
        }
    }

    #[test]
    fn a_file_that_changes_while_it_is_copied_is_refused() {
        let work = tempfile::tempdir().unwrap();
        let change: [fn(&PathBuf); 3] = [
            |path| OpenOptions::new().append(true).open(path).unwrap().write_all(b"x").unwrap(),
            |path| OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap(),
            |path| {
                let new = path.with_extension("new");
                std::fs::copy(path, &new).unwrap();
                std::fs::rename(new, path).unwrap();
            },
        ];
        for change in change {
            let paths = files(&work);
            let files = open_files(&paths, Changes::default()).unwrap();
            change(&paths[6]);
            let target = unlinked::create(work.path()).unwrap();
            let error = copy(&files, target, &Progress::default()).unwrap_err();
            assert_eq!(error.kind(), Kind::Io, "{error}");
            assert!(error.to_string().contains("changed while it was copied"), "{error}");
            assert!(error.to_string().contains(paths[6].to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn files_are_opened_twice_only_while_descriptors_suffice() {
        assert!(have_room_for_two_each(256, 512));
        assert!(!have_room_for_two_each(257, 512));
        assert!(!have_room_for_two_each(usize::MAX, usize::MAX - 1));
    }

    #[test]
    fn reports_the_first_missing_file() {
        let work = tempfile::tempdir().unwrap();
        let paths: Vec<_> = ["a", "b"].map(|name| work.path().join(name)).to_vec();
        let error = open_files(&paths, Changes::default()).unwrap_err();
        assert!(error.to_string().contains("/a: no such file"), "{error}");
    }
}
