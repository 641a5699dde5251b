//! The saved index of an archive: where to find it, when to trust it, and how to replace it.
//! `index::file` has its format.
//!
//! Invariant: the tree is right with and without an index, which only saves time.
//!
//! archfs trusts an index if all of these hold:
//! - The archive has the same length, modification time and sampled blocks.
//! - This user, the owner of the archive, or root owns the index.
//! - The index passes its own checks.
//!
//! The index of an archive at a URL may be beside it at its server. What the server says is in the
//! archive is trusted anyway, so only length and samples must match: a copy of an archive has
//! another time.
//!
//! An attacker could make a copy of an archive with the same length, time and samples but other
//! names, and have the victim make its index. The victim owns that index, and the attacker can
//! rename it. So the archive must also be the same file: inode, owner and ctime, which cannot be
//! set. The exception is an index beside the archive, in a directory where only this user, root and
//! the owner of the archive can create files. An archive can be copied together with such an index.
//!
//! Any number of processes on any number of nodes may do this at once. Each writes its own file and
//! renames it, so a reader sees one complete index or another, and each is right. The directory of
//! the archive is opened once. If an attacker replaces it with a link during the scan, the index
//! still goes into the directory that was opened.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::geteuid;

use super::header::BLOCK;
use crate::error::{Error, Kind, Result};
use crate::formats::index::{
    Allowance, FileKey, FinishedTree, Hash, Index, IndexFile, IndexOptions, Key, MAGIC,
};
use crate::os::base_directory::base_directory;
use crate::os::directory::Directory;
use crate::os::new_file::{NewFile, Readers};
use crate::os::trust;
use crate::storage::{FileStorage, Identity, Origin, Storage};
use crate::sync::Arc;
use crate::url;
use crate::vfs::{Finding, Location};

/// Samples of an archive. Opening a saved index reads each once.
pub(super) const SAMPLES: usize = 16;

/// Where the index of an archive may be, and what it must match.
pub(super) struct Saved {
    candidates: Vec<Candidate>,
    /// Whether the user gave the path of the index.
    is_named: bool,
    recursive: bool,
    archive: PathBuf,
    identity: Identity,
    origin: Origin,
}

/// A new index to save.
pub(super) struct New<'n> {
    pub(super) finished: &'n FinishedTree,
    pub(super) key: &'n Key,
    pub(super) archive_len: u64,
}

/// A path where an index may be.
struct Candidate {
    kind: CandidateKind,
    /// `None` if it cannot be opened or does not exist yet.
    directory: Option<Directory>,
    name: OsString,
    /// For messages.
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CandidateKind {
    /// In the directory of the archive.
    Beside,
    /// In the user's cache directory.
    Cached,
    /// At the path that the user gave.
    Named,
    /// Beside the archive at its server.
    AtServer,
}

/// What an index must match, besides the bytes of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// Nothing else.
    Bytes,
    /// Its time.
    Version,
    /// Its time, and the file itself.
    File,
}

impl Candidate {
    fn beside(file: &FileStorage, suffix: &str) -> Option<Self> {
        // On FUSE, the daemon can report any owner for an index.
        if file.is_remote() || file.origin().is_served_by_process() {
            return None;
        }
        let (directory, mut name, path) = Directory::of(file.path(), file.identity().inode)?;
        name.push(suffix);
        let path = path.with_file_name(&name);
        Some(Self { kind: CandidateKind::Beside, directory: Some(directory), name, path })
    }

    fn at_server(file: &FileStorage, suffix: &str) -> Option<Self> {
        let path = file.is_remote().then(|| url::beside(file.path(), suffix))??;
        let name = OsString::new();
        Some(Self { kind: CandidateKind::AtServer, directory: None, name, path })
    }

    fn cached(file: &FileStorage, suffix: &str) -> Option<Self> {
        let cache_directory = cache_directory()?;
        let name = cached_name(file.path(), suffix);
        let path = cache_directory.join(&name);
        let directory = Directory::open(&cache_directory).ok();
        Some(Self { kind: CandidateKind::Cached, directory, name, path })
    }

    fn named(path: &Path) -> Self {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = Directory::open(parent.unwrap_or(Path::new("."))).ok();
        let name = path.file_name().unwrap_or_default().to_owned();
        Self { kind: CandidateKind::Named, directory, name, path: path.to_owned() }
    }

    /// The file at this path, if it exists.
    fn open(&self) -> std::io::Result<Option<File>> {
        let Some(directory) = &self.directory else {
            return Ok(None);
        };
        match directory.open_file(&self.name) {
            Ok(file) => Ok(Some(file)),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Saved {
    /// The possible paths for the index of `file`: `index` alone, if the user gave it.
    pub(super) fn new(file: &FileStorage, index: Option<&Path>, recursive: bool) -> Result<Self> {
        let suffix = if recursive { ".recursive.archfs-index" } else { ".archfs-index" };
        let candidates = match index {
            Some(index) => vec![Candidate::named(index)],
            None => {
                let candidates = [
                    Candidate::beside(file, suffix),
                    Candidate::cached(file, suffix),
                    Candidate::at_server(file, suffix),
                ];
                candidates.into_iter().flatten().collect()
            }
        };
        let (archive, identity, origin) = (file.path().to_owned(), file.identity(), file.origin());
        Ok(Self { candidates, is_named: index.is_some(), recursive, archive, identity, origin })
    }

    /// The result of `fit` for the first saved index that can be trusted. If there is none, logs
    /// why each of those found was rejected.
    pub(super) fn load<T>(
        &self,
        archive: &FileStorage,
        allowance: &Arc<Allowance>,
        fit: impl Fn(IndexFile) -> Result<T>,
    ) -> Option<T> {
        let mut rejected = Vec::new();
        for candidate in &self.candidates {
            let found = self.load_from(candidate, archive, allowance);
            match found.and_then(|found| found.map(&fit).transpose()) {
                Ok(Some(found)) => {
                    let (archive, index) = (self.archive.display(), candidate.path.display());
                    log::info!("{archive}: using the index {index}");
                    return Some(found);
                }
                Ok(None) => {}
                Err(error) => rejected.push((candidate, error)),
            }
        }
        for (candidate, error) in rejected {
            let error = crate::log::text_of(&error);
            log::warn!("{}: {error}; made again", candidate.path.display());
        }
        None
    }

    fn load_from(
        &self,
        candidate: &Candidate,
        archive: &FileStorage,
        allowance: &Arc<Allowance>,
    ) -> Result<Option<IndexFile>> {
        let fits = |is_bound: Bound| move |key: &Key| self.check_key(archive, key, is_bound);
        let open = |file: FileStorage, bound: Bound| {
            let name = candidate.path.display().to_string();
            IndexFile::open(Arc::new(file), &IndexOptions::new(&name, allowance), &fits(bound))
                .map(Some)
        };
        if candidate.kind == CandidateKind::AtServer {
            return match archive.fetched(&candidate.path)? {
                Some(file) => open(file, Bound::Bytes),
                None => Ok(None),
            };
        }
        let failed = |error| Error::io("cannot be read", error);
        let opened = match candidate.open() {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
                return stale("a symbolic link");
            }
            opened => opened.map_err(failed)?,
        };
        let Some((file, directory)) = opened.zip(candidate.directory.as_ref()) else {
            return Ok(None);
        };
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return stale("not a regular file");
        }
        if trust::is_served_by_another(&file) {
            return stale("it is on a FUSE file system of another user");
        }
        // The owner of the archive may also say what is in it, unless a daemon reports the owner.
        let owner = Some(self.identity.owner)
            .filter(|_| {
                candidate.kind != CandidateKind::Cached && !self.origin.is_served_by_process()
            })
            .filter(|owner| !trust::is_unmapped(*owner));
        if !trust::is_trusted(&found) && owner != Some(found.uid()) {
            return stale("it belongs to another user");
        }
        if found.mode() & 0o022 != 0 {
            return stale("other users may write to it");
        }
        let is_unbound =
            candidate.kind == CandidateKind::Beside && directory.is_written_only_by_us(owner);
        let bound = if is_unbound { Bound::Version } else { Bound::File };
        open(archive.with(file, candidate.path.clone()).map_err(failed)?, bound)
    }

    /// Fails unless `key` is that of the archive.
    fn check_key(&self, archive: &FileStorage, key: &Key, bound: Bound) -> Result<()> {
        let Key { recursive, len, modified, file, samples } = key;
        if *recursive != self.recursive {
            return stale("made with another choice of --nested");
        }
        let is_version = bound == Bound::Bytes || *modified == self.identity.modified;
        if *len != self.identity.len || !is_version {
            return stale("the archive has changed since it was indexed");
        }
        if bound == Bound::File && *file != self.file_key() {
            return stale("made of another file, or the archive has changed since it was indexed");
        }
        // On storage that is far away, each takes a while.
        let block = u64::try_from(BLOCK).unwrap_or(1);
        samples.iter().for_each(|(offset, _)| archive.will_need(*offset, block));
        for (offset, hash) in samples {
            if sample(archive, *offset)? != *hash {
                return stale(
                    "the archive has changed since it was indexed, although its time has not",
                );
            }
        }
        Ok(())
    }

    fn file_key(&self) -> FileKey {
        let Origin { file_system, changed, group: _ } = self.origin;
        let Identity { inode: (_, inode), owner, .. } = self.identity;
        FileKey { file_system, inode, changed, owner }
    }

    /// What is wrong with the saved indexes, if `new` and its `seek_points` are right. An index
    /// that would not be used gives only a note. One that would be used but differs is damage.
    pub(super) fn compare(
        &self,
        archive: &FileStorage,
        new: &Index,
        seek_points: &[u8],
        allowance: &Arc<Allowance>,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        for candidate in &self.candidates {
            let shown = candidate.path.display();
            let found = match self.load_from(candidate, archive, allowance) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => {
                    findings.push(Finding::note(format!("index {shown}: {error:#}")));
                    continue;
                }
            };
            let what = match new.is_same_tree(&found.index) {
                Ok(true) if found.seek_points == seek_points => None,
                Ok(_) => Some(format!("index {shown}: contradicts the archive: delete it")),
                Err(error) => Some(format!("index {shown}: {error:#}")),
            };
            findings.extend(what.map(|what| Finding::damage(Location::Archive, what)));
            // The other paths are never tried.
            break;
        }
        findings
    }

    /// The key of the archive as it is now, with samples of blocks at some of `offsets`.
    ///
    /// # Errors
    /// `Io` if the archive cannot be read.
    pub(super) fn key(&self, archive: &dyn Storage, offsets: &[u64]) -> Result<Key> {
        let block = u64::try_from(BLOCK).unwrap_or(1);
        let step = offsets.len().div_ceil(SAMPLES).max(1);
        let last = archive.len().checked_sub(block);
        let chosen = offsets.iter().step_by(step).copied().chain(last);
        let samples = chosen
            .filter(|offset| offset.checked_add(block).is_some_and(|end| end <= archive.len()))
            .map(|offset| Ok((offset, sample(archive, offset)?)))
            .collect::<Result<_>>()?;
        let Identity { len, modified, .. } = self.identity;
        Ok(Key { recursive: self.recursive, len, modified, file: self.file_key(), samples })
    }

    /// Saves `new`, the index of `archive`, at the first path that can be written. Returns that
    /// path and the file. `is_demanded` says that the user asked for it.
    ///
    /// # Errors
    /// `Io` if no path can be written.
    pub(super) fn save(
        &self,
        archive: &FileStorage,
        new: &New<'_>,
        is_demanded: bool,
    ) -> Result<(&Path, FileStorage)> {
        let mut outcome =
            Err(Error::new(Kind::Io, "no directory for the index: set HOME or --index"));
        for candidate in
            self.candidates.iter().filter(|candidate| self.may_be_written(candidate, is_demanded))
        {
            outcome =
                self.save_to(candidate, archive, new).map(|file| (candidate.path.as_path(), file));
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Whether an index may be written there. If others can rename it, they can put it beside
    /// another archive, where it would be trusted as this user's.
    fn may_be_written(&self, candidate: &Candidate, is_demanded: bool) -> bool {
        let Some(directory) = &candidate.directory else {
            return candidate.kind != CandidateKind::AtServer;
        };
        match candidate.kind {
            CandidateKind::Cached | CandidateKind::Named => true,
            CandidateKind::AtServer => false,
            // A user who shares a directory with a group and asks for an index shares it with the
            // group.
            CandidateKind::Beside => {
                let is_own = self.identity.owner == geteuid().as_raw();
                directory.is_written_only_by_us(None)
                    || (is_demanded && is_own && !directory.is_open_to_all())
            }
        }
    }

    fn save_to(
        &self,
        candidate: &Candidate,
        archive: &FileStorage,
        new: &New<'_>,
    ) -> Result<FileStorage> {
        let shown = candidate.path.display();
        let failed = |error| Error::io(format!("{shown}: cannot write"), error);
        let cache;
        let directory = match (candidate.kind, &candidate.directory, candidate.path.parent()) {
            (CandidateKind::Cached, _, Some(parent)) => {
                cache = open_cache(parent).map_err(failed)?;
                &cache
            }
            (_, Some(directory), _) => directory,
            _ => return Err(failed(NotFound.into())),
        };
        if self.is_named && !may_be_replaced(directory, &candidate.name).map_err(failed)? {
            let context = format!("{shown}: not overwritten, because it is not an index of archfs");
            return Err(Error::new(Kind::InvalidInput, context));
        }
        // An index beside the archive has the read permissions of the archive.
        let mode = match candidate.kind {
            CandidateKind::Beside if directory.is_entered_by_others() => self.identity.mode & 0o044,
            CandidateKind::Beside => self.identity.mode & 0o040,
            CandidateKind::Cached | CandidateKind::Named | CandidateKind::AtServer => 0,
        };
        let readers = Readers { group: self.origin.group, mode };
        let New { finished, key, archive_len } = new;
        let write = &mut |file: &mut File| finished.write(key, *archive_len, file);
        let file = NewFile::replace(directory, &candidate.name, readers, write).map_err(failed)?;
        archive.with(file, candidate.path.clone()).map_err(failed)
    }

    /// The path of the archive.
    pub(super) fn archive(&self) -> &Path {
        &self.archive
    }

    /// Whether the user gave the path, and so expects the index there.
    pub(super) fn is_named(&self) -> bool {
        self.is_named
    }
}

/// The error for an index that is intact but does not belong to this archive or cannot be trusted.
fn stale<T>(why: &str) -> Result<T> {
    Err(Error::new(Kind::InvalidInput, format!("not used: {why}")))
}

/// Whether `name` does not exist, is empty, or is an index. A typo must not overwrite a dataset.
fn may_be_replaced(directory: &Directory, name: &OsStr) -> std::io::Result<bool> {
    let mut file = match directory.open_file(name) {
        Ok(file) => file,
        Err(error) if error.kind() == NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    let mut start = Vec::new();
    if found.is_file() {
        Read::by_ref(&mut file).take(8).read_to_end(&mut start)?;
    }
    Ok(found.is_file() && (start.is_empty() || start == MAGIC))
}

/// The hash of the block at `offset`.
fn sample(archive: &dyn Storage, offset: u64) -> Result<Hash> {
    let mut block = [0; BLOCK];
    archive.read_contents_at(&mut block, offset)?;
    Ok(*blake3::hash(&block).as_bytes())
}

/// `$XDG_CACHE_HOME/archfs`, or else `~/.cache/archfs`.
fn cache_directory() -> Option<PathBuf> {
    base_directory("XDG_CACHE_HOME", ".cache").map(|parent| parent.join("archfs"))
}

/// Opens the cache directory. Creates it if needed, and denies others access. Rejects a directory
/// that another user owns or that is reached through another user's directory, for example in /tmp
/// or in the home of a user who ran sudo. Its owner could redirect it to any directory of this
/// user.
fn open_cache(path: &Path) -> std::io::Result<Directory> {
    let rejected =
        |part: &Path| std::io::Error::other(format!("{} belongs to another user", part.display()));
    let check = |part: &Path, found: &fs::Metadata| match trust::is_trusted(found) {
        true => Ok(()),
        false => Err(rejected(part)),
    };
    // Checked before anything is created in the directory of another user.
    let existing = path.ancestors().find_map(|part| Some((part, fs::symlink_metadata(part).ok()?)));
    if let Some((part, found)) = existing {
        check(part, &found)?;
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    for part in path.ancestors().take(2) {
        check(part, &fs::symlink_metadata(part)?)?;
    }
    let found = fs::metadata(path)?;
    if found.uid() == geteuid().as_raw() && found.mode() & 0o077 != 0 {
        // It contains the names of archives.
        fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    let directory = Directory::open(path)?;
    match directory.is_written_only_by_us(None) {
        true => Ok(directory),
        false => Err(rejected(path)),
    }
}

/// The file name of the archive's index in the cache: a hash of the archive's whole path, then its
/// own name for people to read.
fn cached_name(path: &Path, suffix: &str) -> OsString {
    let absolute_path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name =
        OsString::from(blake3::hash(absolute_path.as_os_str().as_bytes()).to_hex().as_str());
    name.push("-");
    let file_name = path.file_name().unwrap_or_default().as_bytes();
    // A file name has at most 255 bytes.
    let file_name = file_name.get(file_name.len().saturating_sub(150)..).unwrap_or_default();
    name.push(OsStr::from_bytes(file_name));
    name.push(suffix);
    name
}
