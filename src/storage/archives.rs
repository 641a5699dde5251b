//! The files of a mount, opened together and read as a whole: into a copy, or for the page cache.
//!
//! Owns how many are open, how many are read at once, and the layout of a copy: one file, in which
//! each archive starts at a page. One file for all, since a process may have fewer files open than
//! a data set has shards. Leaves where the copy lies and whether it fits there to its user.
//! Invariant: a copy has all bytes of the files, and they are those of one version of each.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::Storage;
use super::changes::Changes;
use super::file::FileStorage;
use super::pool::FilePool;
use crate::error::{Error, Result};
use crate::ordered::try_ordered;
use crate::progress::Progress;
use crate::sync::{Arc, Mutex};

/// Files opened at once, each by a thread: on a parallel file system most of it is waiting.
const OPENED_AT_ONCE: usize = 8;

/// Pieces read at once. One stream gets a fraction of what a parallel file system has to give.
const READ_AT_ONCE: usize = 8;

/// Bytes of a piece: as long as the stripes of parallel file systems, or a few of them.
const PIECE: u64 = 4 << 20;

/// Where archives may start in a copy, bytes: at a page.
const ALIGNMENT: u64 = 4096;

/// Opens the files at `paths`; `changes` says what is done when one is rewritten in place.
///
/// # Errors
/// Of the first that fails, as `FileStorage::open`.
pub fn open_files(paths: &[PathBuf], changes: Changes) -> Result<Vec<Arc<FileStorage>>> {
    // A pool is for more files than may be open: reads of a pooled file take its lock for a moment.
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

/// How many bytes a copy of `files` takes.
pub fn copied_len(files: &[Arc<FileStorage>]) -> u64 {
    layout(files).1
}

/// Copies `files` into `target`, which is empty; returns them as read from there.
///
/// # Errors
/// `Io` where one can not be read or written, or has changed meanwhile.
pub fn copy(
    files: &[Arc<FileStorage>],
    target: File,
    progress: &Progress,
) -> Result<Vec<Arc<FileStorage>>> {
    let target = Arc::new(target);
    let (starts, _) = layout(files);
    let mut cached = Vec::with_capacity(files.len());
    let look = |nth: usize| Ok::<_, Error>(cached_pieces(&files[nth]));
    try_ordered(files.len(), OPENED_AT_ONCE, look, |pieces| cached.push(pieces))?;
    read_pieces(files, progress, |number, offset, piece| {
        let file = &files[number];
        // Where it has changed, that is what is wrong.
        let failed = |error| file.check_unchanged().err().unwrap_or(error);
        file.read_exact_at(piece, offset).map_err(failed)?;
        if cached[number].get((offset / PIECE) as usize) != Some(&true) {
            file.let_go(offset, piece.len() as u64);
        }
        target.write_all_at(piece, starts[number] + offset).map_err(|error| {
            Error::io(format!("{}: writing its copy", file.path().display()), error)
        })
    })?;
    let finish = |nth: usize| {
        // The kernel reads ahead, and so brings in again what another thread had let go.
        for (piece, _) in cached[nth].iter().enumerate().filter(|(_, was_there)| !**was_there) {
            files[nth].let_go(piece as u64 * PIECE, PIECE);
        }
        files[nth].check_unchanged()
    };
    try_ordered(files.len(), OPENED_AT_ONCE, finish, |()| {})?;
    let copied = |(file, start): (&Arc<FileStorage>, u64)| Arc::new(file.copied(&target, start));
    Ok(files.iter().zip(starts).map(copied).collect())
}

/// Reads `files`, so that the page cache holds their bytes.
///
/// # Errors
/// As `Storage::read_exact_at`.
pub fn read_all(files: &[Arc<FileStorage>], progress: &Progress) -> Result<()> {
    read_pieces(files, progress, |number, offset, piece| files[number].read_exact_at(piece, offset))
}

/// Which pieces of `file` the page cache holds.
///
/// Memory of the node that holds an archive which is read from its copy is missing elsewhere, so
/// what copying brings in goes again. But other jobs may be reading the same file, so what was
/// there before stays. One byte tells of a piece, and all are asked before the first is read, since
/// the kernel reads ahead. Where it does not tell, the pages go: to read them again costs time,
/// never a job.
fn cached_pieces(file: &FileStorage) -> Vec<bool> {
    let last = |nth: u64| ((nth + 1) * PIECE).min(file.len()) - 1;
    file.are_cached((0..file.len().div_ceil(PIECE)).map(last))
}

/// Where each of `files` starts in their copy, and where that ends. The sum may be more than there
/// is, but then it does not fit anywhere.
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

/// Lets several threads `read` all pieces of `files`: number of the file, offset, buffer.
fn read_pieces(
    files: &[Arc<FileStorage>],
    progress: &Progress,
    read: impl Fn(usize, u64, &mut [u8]) -> Result<()> + Sync,
) -> Result<()> {
    // The number of each file's first piece among all.
    let mut count = 0;
    let first = |file: &Arc<FileStorage>| {
        progress.expect(file.len());
        let first = count;
        count += file.len().div_ceil(PIECE);
        first
    };
    let firsts: Vec<u64> = files.iter().map(first).collect();
    // Guards buffers that no thread uses just now; held for a push or a pop.
    let buffers = Mutex::new(Vec::new());
    let work = |nth: usize| {
        let nth = nth as u64;
        // Behind empty files, which start with the same piece.
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

    use super::super::unlinked;
    use super::*;
    use crate::error::Kind;

    /// Lengths on both sides of a page and of a piece.
    const LENGTHS: [u64; 8] = [0, 1, 4095, 4096, 4097, PIECE, PIECE + 1, 0];

    /// Files of these lengths, each of bytes of its own.
    fn files(folder: &tempfile::TempDir) -> Vec<PathBuf> {
        let made = LENGTHS.iter().enumerate().map(|(number, &len)| {
            let path = folder.path().join(number.to_string());
            let byte = |at: u64| (at % 251) as u8 ^ number as u8;
            std::fs::write(&path, (0..len).map(byte).collect::<Vec<_>>()).unwrap();
            path
        });
        made.collect()
    }

    #[test]
    fn each_file_is_read_from_the_copy_to_its_own_end_and_no_further() {
        let work = tempfile::tempdir().unwrap();
        let paths = files(&work);
        let files = open_files(&paths, Changes::default()).unwrap();
        let progress = Progress::default();
        let target = unlinked(work.path()).unwrap();
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
            let target = unlinked(work.path()).unwrap();
            let error = copy(&files, target, &Progress::default()).unwrap_err();
            assert_eq!(error.kind(), Kind::Io, "{error}");
            assert!(error.to_string().contains("changed while it was copied"), "{error}");
            assert!(error.to_string().contains(paths[6].to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn the_first_file_that_is_missing_is_told() {
        let work = tempfile::tempdir().unwrap();
        let paths: Vec<_> = ["a", "b"].map(|name| work.path().join(name)).to_vec();
        let error = open_files(&paths, Changes::default()).unwrap_err();
        assert!(error.to_string().contains("/a: no such file"), "{error}");
    }
}
