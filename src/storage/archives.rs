//! Opens the archives of a mount together, with a near copy of them in a file or the page cache.
//!
//! A copy is a single file, because a data set can have more shards than a process may open files.
//! The caller decides where the copy is and whether it fits there.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::Storage;
use super::changes::Changes;
use super::download::created;
use super::file::{ArchiveCache, BackgroundReads, CachedReads, CachedSource, FileStorage};
use super::kept_copies::KeptCopy;
use super::near::{
    self, Fill, FillScope, NearCopy, Original, Room, Source, Target, room_on_demand,
};
use super::pool::FilePool;
use crate::error::Result;
use crate::ordered::try_ordered;
use crate::os::process;
use crate::progress::Progress;
use crate::sync::Arc;
use crate::together::Group;
use crate::url;

/// The most archives of a mount for which the fill has files of its own: more take time to open.
const OWN_MAX: usize = 16;

/// Files opened concurrently, each by a thread: on a parallel file system opening is mostly
/// waiting.
const OPENED_AT_ONCE: usize = 8;

/// Opens the archives at `paths`, which are files or URLs, for a command that reads them. A file
/// that is rewritten in place is treated as usual (`Changes`). Those at URLs are read through a
/// copy of what was read before.
///
/// # Errors
/// The error of the first path that fails, as `FileStorage::open` and `RemoteFile::open`; `Io` if
/// there is no directory for a copy.
pub fn open_files(paths: &[PathBuf], progress: &Progress) -> Result<Vec<Arc<FileStorage>>> {
    let files = open_originals(paths, Changes::default(), progress)?;
    through_copy(files, FillScope::Announced, None)
}

/// Which archives the nodes of a job share.
#[derive(Clone, Copy)]
pub struct Sharing<'g> {
    /// The nodes.
    pub group: &'g Arc<Group>,
    /// Whether to share also what other nodes may not see, or has no room on them.
    pub is_required: bool,
}

impl Sharing<'_> {
    fn has(&self, file: &FileStorage) -> bool {
        self.is_required || file.is_seen_by_other_nodes()
    }

    /// Has copies of `files` fetch bytes from other nodes as well.
    pub fn begin<'f>(&self, files: impl IntoIterator<Item = &'f Arc<FileStorage>>) {
        files.into_iter().filter(|file| self.has(file)).for_each(|file| file.share(self.group));
    }
}

/// Opens the archives at `paths`, which are files or URLs, without a copy; `changes` says what to
/// do if a file is rewritten in place.
///
/// # Errors
/// The error of the first path that fails, as `FileStorage::open` and `RemoteFile::open`.
pub fn open_originals(
    paths: &[PathBuf],
    changes: Changes,
    progress: &Progress,
) -> Result<Vec<Arc<FileStorage>>> {
    let remote: Vec<_> = paths.iter().filter(|path| url::is_url(path)).collect();
    progress.begin(match remote.is_empty() {
        true => phase(paths, "opening"),
        false => phase(remote, "waiting for the server"),
    });
    // A pool only if there are too many files, because each read of a pooled file takes a lock.
    if paths.len() > FilePool::room() {
        process::enlarge_open_files_max();
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

/// The name of a phase that does `work` with the archives at `paths`.
pub fn phase(paths: impl IntoIterator<Item = impl AsRef<Path>>, work: &str) -> String {
    let mut paths = paths.into_iter();
    let Some(first) = paths.next() else { return String::new() };
    match paths.count() {
        0 => {
            let path = first.as_ref();
            let name = path.file_name().map_or(path, Path::new);
            format!("{}: {work}", name.display())
        }
        more => format!("{} archives: {work}", more + 1),
    }
}

/// Prepares `files` for the requests of a mount, as `FileStorage::serve`. The fill brings `scope`
/// of them into the page cache, if they are not read through a copy, next to a cache of
/// `cache_bytes`. Returns all copies that record what is fetched ahead of readers.
///
/// # Errors
/// `Io` if there is no memory for the record of what was read.
pub fn serve(
    files: &[Arc<FileStorage>],
    cache: &Arc<ArchiveCache>,
    scope: FillScope,
    cache_bytes: u64,
) -> Result<Vec<Arc<NearCopy>>> {
    let is_random = have_room_for(2, files.len(), FilePool::room());
    let has_own = files.len() <= OWN_MAX && have_room_for(3, files.len(), FilePool::room());
    let mut copies: Vec<Arc<NearCopy>> = Vec::new();
    for copy in files.iter().filter_map(|file| file.copy()) {
        if !copies.iter().any(|other| Arc::ptr_eq(other, copy)) {
            copies.push(Arc::clone(copy));
        }
    }
    let is_cached = |file: &&Arc<FileStorage>| file.copy().is_none() && !file.is_in_memory();
    let cached: Vec<_> = files.iter().filter(is_cached).collect();
    let originals = cached.iter().map(|file| {
        let source: Arc<dyn Source> = Arc::new(CachedSource::new(file, has_own));
        (file.path().display().to_string(), file.len(), source)
    });
    if !cached.is_empty() {
        let times = CachedReads::measured();
        let target = Target::PageCache { cache_bytes };
        let name = "--readahead".to_owned();
        let room = Box::new(|| None);
        let copy = NearCopy::new(target, name, originals.collect(), room, scope)?;
        let fill = Arc::new(Fill::on_demand(&copy));
        for (number, file) in cached.iter().enumerate() {
            let (copy, fill) = (Arc::clone(&copy), Arc::clone(&fill));
            file.serve(
                cache,
                is_random,
                Some(BackgroundReads { copy, number, cached: times, _fill: fill }),
            );
        }
        // Not before: `serve` drops the first pages.
        if scope == FillScope::Everything {
            fill.begin()?;
        }
        copies.push(copy);
    }
    files.iter().for_each(|file| file.serve(cache, is_random, None));
    copies.iter().for_each(|copy| copy.serve());
    Ok(copies)
}

/// Whether each of `files` can be open `times` times, if `room` can be open together.
fn have_room_for(times: usize, files: usize, room: usize) -> bool {
    files.saturating_mul(times) <= room
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
    let cache = Arc::new(ArchiveCache::default());
    let is_random = have_room_for(2, files.len(), FilePool::room());
    files.iter().for_each(|file| file.serve(&cache, is_random, None));
    let (file, kept) = match target {
        CopyTarget::New(file) => (Arc::new(file), None),
        CopyTarget::Kept(KeptCopy { bytes, checksums, identity, .. }) => {
            (Arc::new(bytes), Some((checksums, identity)))
        }
    };
    let target = Target::File { file: Arc::clone(&file), kept };
    let copy = NearCopy::new(target, name, originals(&files), room, FillScope::Everything)?;
    let near = |(number, original): (usize, &Arc<FileStorage>)| {
        Arc::new(original.near((&copy, &file), number, None))
    };
    let near = files.iter().enumerate().map(near).collect();
    Ok((copy, near))
}

/// `files`, those at URLs through one copy, which has what was read of them. So are those that the
/// nodes of a job share by `sharing`.
///
/// It is an unlinked file in $TMPDIR, /tmp or /dev/shm, so every byte is fetched once while it has
/// room. It takes only a part of the free space or memory, because the user did not ask for it. If
/// all nodes together have no room for what they would share, the page cache of each is better.
///
/// # Errors
/// `Io` if there is no directory for a copy that is needed.
pub fn through_copy(
    mut files: Vec<Arc<FileStorage>>,
    scope: FillScope,
    sharing: Option<Sharing<'_>>,
) -> Result<Vec<Arc<FileStorage>>> {
    // The device number stands for the file system, so that only one of many shards is asked.
    let device = |file: &Arc<FileStorage>| file.identity().inode.0;
    let local = files.iter().find(|file| !file.is_remote());
    let bypassing = local
        .filter(|file| scope != FillScope::Announced && file.bypasses_page_cache())
        .map(device);
    let needs_copy = |file: &Arc<FileStorage>| file.is_remote() || bypassing == Some(device(file));
    let is_shared = |file: &Arc<FileStorage>| sharing.is_some_and(|sharing| sharing.has(file));
    if !files.iter().any(|file| needs_copy(file) || is_shared(file)) {
        return Ok(files);
    }
    let is_needed = files.iter().any(needs_copy);
    let (directory, target) = match created() {
        Err(error) if !is_needed && sharing.is_some_and(|sharing| !sharing.is_required) => {
            log::info!("--together: {error}");
            return Ok(files);
        }
        created => created?,
    };
    let target = Arc::new(target);
    let (room, most) = room_on_demand(&target);
    let shared: Vec<_> = files.iter().filter(|file| is_shared(file)).cloned().collect();
    let has_room = sharing.is_some_and(|sharing| {
        let nodes = if scope == FillScope::Everything { 1 } else { sharing.group.nodes() };
        sharing.is_required || copied_len(&shared) <= most.saturating_mul(nodes)
    });
    let is_shared = |file: &Arc<FileStorage>| has_room && is_shared(file);
    let is_far = |file: &Arc<FileStorage>| needs_copy(file) || is_shared(file);
    let far: Vec<_> = files.iter().filter(|file| is_far(file)).cloned().collect();
    if far.is_empty() {
        return Ok(files);
    }
    if let Some(sharing) = sharing {
        sharing.begin(far.iter().filter(|file| has_room || file.is_remote()));
    }
    let name = match scope {
        FillScope::Everything => format!("copy in {}", directory.display()),
        FillScope::Announced | FillScope::Demanded { .. } => {
            format!("readahead in {}", directory.display())
        }
    };
    let kept = Target::File { file: Arc::clone(&target), kept: None };
    let copy = NearCopy::new(kept, name, originals(&far), room, scope)?;
    copy.limit_to(if sharing.is_some() { most } else { u64::MAX });
    let fill = Arc::new(match scope {
        FillScope::Everything => Fill::start(&copy)?,
        FillScope::Announced | FillScope::Demanded { .. } => Fill::on_demand(&copy),
    });
    for (number, file) in files.iter_mut().filter(|file| is_far(file)).enumerate() {
        *file = Arc::new(file.near((&copy, &target), number, Some(Arc::clone(&fill))));
    }
    Ok(files)
}

/// `files` as a near copy needs them.
fn originals(files: &[Arc<FileStorage>]) -> Vec<Original> {
    let original =
        |file: &Arc<FileStorage>| (file.path().display().to_string(), file.len(), file.source());
    files.iter().map(original).collect()
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

    const PIECE: u64 = 4 << 20;

    /// Lengths just below, at and above a page and pieces of the fill.
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
        let files = open_files(&paths, &Progress::default()).unwrap();
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
        assert_eq!(copies[0].opened().unwrap().0.metadata().unwrap().len(), copied_len(&files));
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
            let files = open_files(&paths, &Progress::default()).unwrap();
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
        assert!(have_room_for(2, 256, 512));
        assert!(!have_room_for(2, 257, 512));
        assert!(!have_room_for(2, usize::MAX, usize::MAX - 1));
    }

    #[test]
    fn reports_the_first_missing_file() {
        let work = tempfile::tempdir().unwrap();
        let paths: Vec<_> = ["a", "b"].map(|name| work.path().join(name)).to_vec();
        let error = open_files(&paths, &Progress::default()).unwrap_err();
        assert!(error.to_string().contains("/a: no such file"), "{error}");
    }
}
