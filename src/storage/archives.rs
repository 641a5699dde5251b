//! Opens the archives of a mount together, and makes a near copy of them or fills the page cache.
//!
//! A copy is a single file, because a data set can have more shards than a process may open files.
//! The caller decides where the copy is and whether it fits there.

use std::fs::File;
use std::path::PathBuf;

use super::Storage;
use super::changes::Changes;
use super::download::created;
use super::file::{ArchiveCache, FileStorage};
use super::kept_copies::KeptCopy;
use super::near::{self, Fill, FillScope, NearCopy, Original, Room, Target, room_on_demand};
use super::pool::FilePool;
use crate::error::Result;
use crate::ordered::try_ordered;
use crate::sync::{Arc, Mutex};
use crate::url;

/// Files opened concurrently, each by a thread: on a parallel file system opening is mostly
/// waiting.
const OPENED_AT_ONCE: usize = 8;

/// Pieces read concurrently. A single stream gets only a fraction of a parallel file system's
/// bandwidth.
const READ_AT_ONCE: usize = 8;

/// Size of a piece in bytes: one or a few stripes of a parallel file system.
const PIECE: u64 = 4 << 20;

/// Opens the archives at `paths`, which are files or URLs; `changes` says what to do if a file is
/// rewritten in place. Those at URLs are read through a copy of what was read before.
///
/// # Errors
/// The error of the first path that fails, as `FileStorage::open` and `RemoteFile::open`; `Io` if
/// there is no directory for a copy.
pub fn open_files(paths: &[PathBuf], changes: Changes) -> Result<Vec<Arc<FileStorage>>> {
    through_copy(open_originals(paths, changes)?)
}

/// Like `open_files`, without a copy.
///
/// # Errors
/// The error of the first path that fails, as `FileStorage::open` and `RemoteFile::open`.
pub fn open_originals(paths: &[PathBuf], changes: Changes) -> Result<Vec<Arc<FileStorage>>> {
    // A pool only if there are too many files, because each read of a pooled file takes a lock.
    if paths.len() > FilePool::room() {
        FilePool::enlarge_room();
    }
    let pool = (paths.len() > FilePool::room()).then(|| FilePool::new(FilePool::room()));
    let mut files = Vec::with_capacity(paths.len());
    try_ordered(
        paths.len(),
        OPENED_AT_ONCE,
        |nth| match url::is_url(&paths[nth]) {
            true => FileStorage::open_remote(&paths[nth], changes),
            false => FileStorage::open_in(&paths[nth], changes, pool.as_ref()),
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
    near::copied_len(&files.iter().map(|file| file.len()).collect::<Vec<_>>())
}

/// What a near copy is made in.
pub enum CopyTarget {
    /// A file that is empty.
    New(File),
    /// A copy that an earlier mount has left.
    Kept(KeptCopy),
}

impl CopyTarget {
    /// The file of the copy.
    pub fn file(&self) -> &File {
        match self {
            Self::New(file) => file,
            Self::Kept(copy) => &copy.bytes,
        }
    }

    /// Bytes that it takes already.
    pub fn taken(&self) -> u64 {
        match self {
            Self::New(_) => 0,
            Self::Kept(copy) => copy.taken(),
        }
    }
}

/// Makes `target` the near copy of `files`. Messages call it `name`; `room` says whether it may
/// grow. Returns the copy, and the files as read through it.
///
/// # Errors
/// `Io` if it would be too large.
pub fn near_copy(
    files: Vec<Arc<FileStorage>>,
    target: CopyTarget,
    name: String,
    room: Room,
) -> Result<(Arc<NearCopy>, Vec<Arc<FileStorage>>)> {
    // Each byte is read once, so what lies around it is not.
    serve(&files, &Arc::new(ArchiveCache::default()));
    let target = match target {
        CopyTarget::New(file) => Target::from(file),
        CopyTarget::Kept(KeptCopy { bytes, checksums, identity, .. }) => {
            Target { file: Arc::new(bytes), kept: Some((checksums, identity)) }
        }
    };
    let copy = NearCopy::new(target, name, originals(&files), room, FillScope::Everything)?;
    let near =
        |(number, file): (usize, &Arc<FileStorage>)| Arc::new(file.near(&copy, number, None));
    let near = files.iter().enumerate().map(near).collect();
    Ok((copy, near))
}

/// `files`, those at URLs through one copy, which has what was read of them.
///
/// It is an unlinked file in $TMPDIR, /tmp or /dev/shm, so every byte is fetched once while it has
/// room. It takes only a part of the free space or memory, because nobody has asked for it. A
/// program that announces to read all of an archive has it fetched in the background.
fn through_copy(mut files: Vec<Arc<FileStorage>>) -> Result<Vec<Arc<FileStorage>>> {
    let remote: Vec<_> = files.iter().filter(|file| file.is_remote()).cloned().collect();
    if remote.is_empty() {
        return Ok(files);
    }
    let (directory, target) = created()?;
    let target = Arc::new(target);
    let room = room_on_demand(&target);
    let name = format!("copy in {}", directory.display());
    let target = Target { file: target, kept: None };
    let copy = NearCopy::new(target, name, originals(&remote), room, FillScope::Announced)?;
    let fill = Arc::new(Fill::start(&copy)?);
    let remote = files.iter_mut().filter(|file| file.is_remote());
    for (number, file) in remote.enumerate() {
        *file = Arc::new(file.near(&copy, number, Some(Arc::clone(&fill))));
    }
    Ok(files)
}

/// `files` as a near copy needs them.
fn originals(files: &[Arc<FileStorage>]) -> Vec<Original> {
    let original =
        |file: &Arc<FileStorage>| (file.path().display().to_string(), file.len(), file.source());
    files.iter().map(original).collect()
}

/// Reads `files` in order from several threads, at most `most` bytes, to load them into the page
/// cache.
pub fn read_first(files: &[Arc<FileStorage>], most: u64) -> Result<()> {
    let mut left = most;
    let read = |file: &Arc<FileStorage>| {
        let len = file.len().min(left);
        left -= len;
        len
    };
    // How much is read of each file, bytes.
    let lens: Vec<u64> = files.iter().map(read).collect();
    // The index of each file's first piece among all pieces.
    let mut count = 0;
    let first = |len: &u64| {
        let first = count;
        count += len.div_ceil(PIECE);
        first
    };
    let firsts: Vec<u64> = lens.iter().map(first).collect();
    // Guards unused buffers. Held for a push or a pop.
    let buffers = Mutex::new(Vec::new());
    let work = |nth: usize| {
        let nth = nth as u64;
        // The last match, because empty files before it have the same first piece.
        let number = firsts.partition_point(|&first| first <= nth) - 1;
        let offset = (nth - firsts[number]) * PIECE;
        let len = PIECE.min(lens[number] - offset);
        let mut buffer = buffers.lock().pop().unwrap_or_else(|| vec![0; PIECE as usize]);
        // With its own readahead, the kernel loads large folios, which it drops only as a whole.
        // Then most pages would stay when the files in them were served.
        files[number].read_contents_at(&mut buffer[..len as usize], offset)?;
        buffers.lock().push(buffer);
        Ok(())
    };
    try_ordered(usize::try_from(count).unwrap_or(usize::MAX), READ_AT_ONCE, work, |()| {})
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::time::Duration;

    use super::*;
    use crate::error::Kind;
    use crate::os::unlinked;
    use crate::stats::StageCounts;

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

    /// The near copy of `files`, and the files as read through it.
    fn near(files: &[Arc<FileStorage>], work: &tempfile::TempDir) -> Near {
        let target = unlinked::create(work.path()).unwrap();
        near_copy(files.to_vec(), CopyTarget::New(target), "copy".into(), Box::new(|| None))
            .unwrap()
    }

    type Near = (Arc<NearCopy>, Vec<Arc<FileStorage>>);

    #[test]
    fn each_file_is_read_through_the_copy_up_to_its_own_end() {
        let work = tempfile::tempdir().unwrap();
        let paths = files(&work);
        let files = open_files(&paths, Changes::default()).unwrap();
        let (copy, copies) = near(&files, &work);
        let total = LENGTHS.iter().sum::<u64>();
        assert_eq!(copy.counts(), StageCounts { copied: 0, total });
        let compare = |number: usize| {
            let (copy, file, bytes) =
                (&copies[number], &files[number], std::fs::read(&paths[number]).unwrap());
            assert_eq!((copy.path(), copy.identity()), (file.path(), file.identity()));
            let mut found = vec![0; bytes.len()];
            copy.read_exact_at(&mut found, 0).unwrap();
            assert!(found == bytes, "{}", copy.path().display());
            let past = copy.read_exact_at(&mut [0; 2], copy.len().saturating_sub(1)).unwrap_err();
            assert_eq!(past.kind(), Kind::Corrupt);
            assert_eq!(copy.read_exact_at(&mut [0], u64::MAX).unwrap_err().kind(), Kind::Corrupt);
        };
        compare(6);
        assert_eq!(copy.counts().copied, LENGTHS[6], "nothing but what was read");
        let _fill = Fill::start(&copy).unwrap();
        copy.wait(Duration::ZERO, |_| {}).unwrap();
        assert_eq!(copy.counts(), StageCounts { copied: total, total });
        (0..LENGTHS.len()).for_each(compare);
        assert_eq!(copy.file().metadata().unwrap().len(), copied_len(&files));
        // The originals are not read any more.
        let expected: Vec<_> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
        for (copy, (path, bytes)) in copies.iter().zip(paths.iter().zip(expected)) {
            std::fs::write(path, "other").unwrap();
            let mut found = vec![0; bytes.len()];
            copy.read_exact_at(&mut found, 0).unwrap();
            assert!(found == bytes, "{}", path.display());
        }
    }

    /// A new file of the same name is another one.
    #[test]
    fn a_file_that_changes_while_it_is_copied_is_not_mixed() {
        let work = tempfile::tempdir().unwrap();
        let changes: [fn(&PathBuf); 3] = [
            |path| {
                let new = path.with_extension("new");
                std::fs::write(&new, "new").unwrap();
                std::fs::rename(new, path).unwrap();
            },
            |path| OpenOptions::new().append(true).open(path).unwrap().write_all(b"x").unwrap(),
            |path| OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap(),
        ];
        for (turn, change) in changes.into_iter().enumerate() {
            let is_copied = turn == 0;
            let paths = files(&work);
            let files = open_files(&paths, Changes::default()).unwrap();
            let (copy, copies) = near(&files, &work);
            let number = 6;
            let bytes = std::fs::read(&paths[number]).unwrap();
            let read = |offset: usize| {
                let mut found = [0; 100];
                let read = copies[number].read_exact_at(&mut found, offset as u64);
                read.map(|()| assert!(found == bytes[offset..offset + 100]))
            };
            read(0).unwrap();
            change(&paths[number]);
            let _fill = Fill::start(&copy).unwrap();
            let outcome = copy.wait(Duration::ZERO, |_| {});
            if is_copied {
                outcome.unwrap();
                read(50).unwrap();
                read(bytes.len() - 100).unwrap();
            } else {
                assert_eq!(outcome.unwrap_err().kind(), Kind::Changed);
                let error = read(50).unwrap_err();
                assert_eq!(error.kind(), Kind::Changed, "{error}");
                assert!(error.to_string().contains(paths[number].to_str().unwrap()), "{error}");
            }
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
