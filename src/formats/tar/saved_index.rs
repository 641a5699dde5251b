//! The saved index of an archive: when to trust it, and how to replace it. `index_location` says
//! where it may be, `index::layout` has its format.
//!
//! Invariant: the tree is right with and without an index, which only saves time.
//!
//! archfs trusts an index if all of these hold:
//! - The archive has the same length, modification time and sampled blocks.
//! - This user, the owner of the archive, or root owns the index.
//! - The index passes its own checks.
//!
//! The index of an archive at a URL may be beside it at its server. What the server says is in the
//! archive is trusted anyway, so length and samples must match: a copy of an archive has another
//! time. The index must not be older than the archive.
//!
//! Such an index, and that of a copied archive, may be of another version after all, for example of
//! a tar in which two members are exchanged. So it is used with `HeaderChecks`, unless it names
//! this very file. A list in the cache has the indexes that these have refused.
//!
//! An attacker could make a copy of an archive with the same length, time and samples but other
//! names, and have the victim make its index. The victim owns that index, and the attacker can
//! rename it. So the archive must also be the same file: inode, owner and ctime, which cannot be
//! set. The exception is an index beside the archive, in a directory where only this user, root and
//! the owner of the archive can create files. An archive can be copied together with such an index.
//!
//! Any number of processes on any number of nodes may do this at once. Each writes its own file and
//! renames it, so a reader sees one complete index or another, and each is right.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind::NotFound;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::geteuid;

use super::header::BLOCK;
use super::header_checks::{HeaderChecks, Refusal};
use super::index_location::{IndexLocation, LocationKind};
use super::lone_file;
use crate::error::{Error, Kind, Result};
use crate::formats::index::{
    Allowance, FileKey, FinishedTree, Hash, Index, IndexFile, IndexOptions, Key, MAGIC,
};
use crate::os::directory::Directory;
use crate::os::new_file::{NewFile, Readers};
use crate::os::trust;
use crate::storage::{FilePart, FileStorage, Identity, Origin, Storage, Validator};
use crate::sync::Arc;
use crate::vfs::{Finding, Location};

/// Samples of an archive. Opening a saved index reads each once.
pub(super) const SAMPLES: usize = 16;

/// The saved index of an archive, in any of the locations where it may be.
pub(super) struct SavedIndex<'o> {
    pub(super) archive: &'o FileStorage,
    locations: Vec<IndexLocation>,
    /// Whether the user gave the path of the index, and so expects it there.
    pub(super) is_named: bool,
    /// Whether `load` has rejected an index, which is then to be replaced.
    pub(super) was_rejected: Cell<bool>,
    recursive: bool,
    /// Memory for blocks of indexes.
    allowance: &'o Arc<Allowance>,
}

/// A saved index that can be used.
struct Usable {
    file: IndexFile,
    /// Whether it may be of another file than this one.
    is_doubtful: bool,
}

/// What an index must match, besides the bytes of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requirement {
    /// Nothing else.
    Bytes,
    /// Its time.
    Version,
    /// Its time, and the file itself.
    File,
}

impl<'o> SavedIndex<'o> {
    /// The index of `archive`: only the one at the path `index`, if the user gave that.
    pub(super) fn new(
        archive: &'o FileStorage,
        index: Option<&Path>,
        recursive: bool,
        allowance: &'o Arc<Allowance>,
    ) -> Self {
        let locations = match index {
            Some(index) => vec![IndexLocation::named(index)],
            None => IndexLocation::usual(archive, recursive),
        };
        let (is_named, was_rejected) = (index.is_some(), Cell::new(false));
        Self { archive, locations, is_named, was_rejected, recursive, allowance }
    }

    /// The first saved index that can be trusted and passes `check`, with what that returned, and
    /// checks of headers if it may be of another file. If there is none, logs why each of those
    /// found was rejected.
    pub(super) fn load<T>(
        &self,
        check: impl Fn(&IndexFile) -> Result<T>,
    ) -> Option<(T, IndexFile, Option<HeaderChecks>)> {
        let (mut rejected, mut doubtful) = (Vec::new(), None);
        let using = |index: &Path| {
            let (archive, index) = (self.archive.path().display(), index.display());
            log::info!("{archive}: using the index {index}");
        };
        for location in &self.locations {
            let with_checks = |Usable { file, is_doubtful }| {
                let refusal =
                    || Refusal::new(self.archive, self.recursive, &location.path, file.hash);
                let checks = is_doubtful.then(|| HeaderChecks::new(refusal(), file.index.len()));
                Ok((check(&file)?, file, checks))
            };
            let found = self.load_from(location);
            match found.and_then(|found| found.map(with_checks).transpose()) {
                // This user may have one of this very file.
                Ok(Some(found)) if found.2.is_some() && location.kind == LocationKind::Beside => {
                    doubtful = Some((found, location));
                }
                Ok(Some(found)) => {
                    using(&location.path);
                    return Some(found);
                }
                Ok(None) => {}
                Err(error) => rejected.push((location, error)),
            }
        }
        if let Some((found, location)) = doubtful {
            using(&location.path);
            return Some(found);
        }
        for (location, error) in rejected {
            let error = crate::log::text_of(&error);
            log::warn!("{}: {error}; made again", location.path.display());
            self.was_rejected.set(true);
        }
        None
    }

    fn load_from(&self, location: &IndexLocation) -> Result<Option<Usable>> {
        let archive = self.archive;
        let (identity, origin) = (archive.identity(), archive.origin());
        if !self.can_be_identified() {
            return Ok(None);
        }
        let open = |file: FileStorage, requirement: Requirement| {
            let name = location.path.display().to_string();
            let check = |key: &Key| self.check_key(key, requirement);
            let options = IndexOptions::new(&name, self.allowance);
            let file = IndexFile::open(Arc::new(file), &options, &check)?;
            let is_doubtful = !self.is_of_this_file(&file.key);
            if is_doubtful && Refusal::is_noted(archive, self.recursive, file.hash) {
                return stale("it contradicts the archive");
            }
            Ok(Some(Usable { file, is_doubtful }))
        };
        if location.kind == LocationKind::AtServer {
            let Some((file, changed)) = archive.fetched(&location.path)? else {
                return Ok(None);
            };
            return match changed.is_some_and(|changed| changed < identity.modified.0) {
                true => stale("older than the archive; upload it after the archive"),
                false => open(file, Requirement::Bytes),
            };
        }
        let failed = |error| Error::io("cannot be read", error);
        let opened = match location.open() {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
                return stale("a symbolic link");
            }
            opened => opened.map_err(failed)?,
        };
        let Some((file, directory)) = opened.zip(location.directory.as_ref()) else {
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
        let owner = Some(identity.owner)
            .filter(|_| location.kind != LocationKind::Cached && !origin.is_served_by_process())
            .filter(|owner| !trust::is_unmapped(*owner));
        if !trust::is_trusted(&found) && owner != Some(found.uid()) {
            return stale("it belongs to another user");
        }
        if found.mode() & 0o022 != 0 {
            return stale("other users may write to it");
        }
        let is_protected =
            location.kind == LocationKind::Beside && directory.is_written_only_by_us(owner);
        let requirement = if is_protected { Requirement::Version } else { Requirement::File };
        open(archive.with(file, location.path.clone()).map_err(failed)?, requirement)
    }

    /// Fails unless `key` is that of the archive.
    fn check_key(&self, key: &Key, requirement: Requirement) -> Result<()> {
        let (archive, identity) = (self.archive, self.archive.identity());
        let Key { recursive, len, modified, file, samples } = key;
        if *recursive != self.recursive {
            return stale("made with another choice of --nested");
        }
        let is_version = requirement == Requirement::Bytes || *modified == identity.modified;
        if *len != identity.len || !is_version {
            return stale("the archive has changed since it was indexed");
        }
        if requirement == Requirement::File && *file != self.file_key() {
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

    /// Whether anything tells this version of the archive from others. Otherwise no index is saved
    /// or used.
    pub(super) fn can_be_identified(&self) -> bool {
        self.archive.origin().validator != Validator::None
    }

    /// Whether an index with `key` was made of this version of this file.
    fn is_of_this_file(&self, key: &Key) -> bool {
        let is_exact = self.archive.origin().validator == Validator::Strong;
        is_exact && (key.modified, key.file) == (self.archive.identity().modified, self.file_key())
    }

    fn file_key(&self) -> FileKey {
        let Origin { file_system, changed, .. } = self.archive.origin();
        let Identity { inode: (_, inode), owner, .. } = self.archive.identity();
        FileKey { file_system, inode, changed, owner }
    }

    /// What is wrong with the saved indexes, if `new` and its `seek_points` are right. An index
    /// that would not be used gives only a note. One that would be used but differs is damage.
    pub(super) fn compare(&self, new: &Index, seek_points: &[u8]) -> Vec<Finding> {
        let mut findings = Vec::new();
        for location in &self.locations {
            let shown = location.path.display();
            let found = match self.load_from(location) {
                Ok(Some(usable)) => usable,
                Ok(None) => continue,
                Err(error) => {
                    findings.push(Finding::note(format!("index {shown}: {error:#}")));
                    continue;
                }
            };
            let Usable { file, is_doubtful } = found;
            let what = match new.is_same_tree(&file.index) {
                Ok(true) if file.seek_points == seek_points => None,
                // Of a lone file, only the seek points are used.
                Ok(false)
                    if lone_file::is_indexed_by(new)
                        && lone_file::is_indexed_by(&file.index)
                        && file.seek_points == seek_points =>
                {
                    None
                }
                Ok(_) => Some(format!("index {shown}: contradicts the archive: delete it")),
                Err(error) => Some(format!("index {shown}: {error:#}")),
            };
            findings.extend(what.map(|what| Finding::damage(Location::Archive, what)));
            // As in `load`: a doubtful one beside the archive is used only if none after it can be.
            if !is_doubtful || location.kind != LocationKind::Beside {
                break;
            }
        }
        findings
    }

    /// The key of the archive as it is now, with samples of blocks at some of `offsets`.
    pub(super) fn key(&self, offsets: &[u64]) -> Result<Key> {
        let archive = self.archive;
        let block = u64::try_from(BLOCK).unwrap_or(1);
        let step = offsets.len().div_ceil(SAMPLES).max(1);
        let last = archive.len().checked_sub(block);
        let chosen = offsets.iter().step_by(step).copied().chain(last);
        let samples = chosen
            .filter(|offset| offset.checked_add(block).is_some_and(|end| end <= archive.len()))
            .map(|offset| Ok((offset, sample(archive, offset)?)))
            .collect::<Result<_>>()?;
        let Identity { len, modified, .. } = archive.identity();
        Ok(Key { recursive: self.recursive, len, modified, file: self.file_key(), samples })
    }

    /// Saves the index of `finished` at the first path that can be written. Returns that path and
    /// the file. `is_demanded` says that the user asked for it.
    pub(super) fn save(
        &self,
        finished: &FinishedTree,
        key: &Key,
        archive_len: u64,
        is_demanded: bool,
    ) -> Result<(&Path, FileStorage)> {
        if !self.can_be_identified() {
            let context = "no index can be saved: the server names no version of the archive";
            return Err(Error::new(Kind::Unsupported, context)
                .with_hint("use a server that sends ETag or Last-Modified"));
        }
        let mut outcome =
            Err(Error::new(Kind::Io, "no directory for the index: set HOME or --index"));
        for location in
            self.locations.iter().filter(|location| self.may_be_written(location, is_demanded))
        {
            let write = &mut |file: &mut File| finished.write(key, archive_len, file);
            outcome = self.save_to(location, write).map(|file| (location.path.as_path(), file));
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Whether an index may be written there. If others can rename it, they can put it beside
    /// another archive, where it would be trusted as this user's.
    fn may_be_written(&self, location: &IndexLocation, is_demanded: bool) -> bool {
        let Some(directory) = &location.directory else {
            return location.kind != LocationKind::AtServer;
        };
        match location.kind {
            LocationKind::Cached | LocationKind::Named => true,
            LocationKind::AtServer => false,
            // A user who shares a directory with a group and asks for an index shares it with the
            // group.
            LocationKind::Beside => {
                let is_own = self.archive.identity().owner == geteuid().as_raw();
                directory.is_written_only_by_us(None)
                    || (is_demanded && is_own && !directory.is_open_to_all())
            }
        }
    }

    fn save_to(
        &self,
        location: &IndexLocation,
        write: &mut dyn FnMut(&mut File) -> io::Result<()>,
    ) -> Result<FileStorage> {
        let shown = location.path.display();
        let failed = |error| Error::io(format!("{shown}: cannot write"), error);
        let directory = location.directory_to_write().map_err(|error| {
            failed(error).with_hint("name a file in a directory of yours: --index FILE")
        })?;
        if self.is_named && !may_be_replaced(&directory, &location.name).map_err(failed)? {
            let context = format!("{shown}: not overwritten, because it is not an index of archfs");
            return Err(Error::new(Kind::InvalidInput, context));
        }
        // An index beside the archive has the read permissions of the archive.
        let archive_mode = self.archive.identity().mode;
        let mode = match location.kind {
            LocationKind::Beside if directory.is_entered_by_others() => archive_mode & 0o044,
            LocationKind::Beside => archive_mode & 0o040,
            LocationKind::Cached | LocationKind::Named | LocationKind::AtServer => 0,
        };
        let readers = Readers { group: Some(self.archive.origin().group), mode };
        let file = NewFile::replace(&directory, &location.name, readers, write).map_err(failed)?;
        self.archive.with(file, location.path.clone()).map_err(failed)
    }
}

/// The error for an index that is intact but does not belong to this archive or cannot be trusted.
fn stale<T>(why: &str) -> Result<T> {
    Err(Error::new(Kind::InvalidInput, format!("not used: {why}")))
}

/// Whether `name` does not exist, is empty, or is an index. A typo must not overwrite a dataset.
fn may_be_replaced(directory: &Directory, name: &OsStr) -> io::Result<bool> {
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
    archive.read_contents_at(&mut block, offset, FilePart::First)?;
    Ok(*blake3::hash(&block).as_bytes())
}
