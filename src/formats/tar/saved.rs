//! The saved index of an archive: where it lies, whether it can be believed, and making it.
//!
//! Owns the places (`--index`, beside the archive, the user's cache folder), the rule when an index
//! belongs to an archive, and replacing the file in one step. Leaves its layout to `index::file`.
//! Invariant: whoever opens the archive gets a right tree; an index only saves time.
//!
//! An index is believed if the archive has the same length, modification time and sampled blocks,
//! if this user, the owner of the archive or root owns the index, and if it passes its own checks.
//!
//! An attacker can make a copy with the same length, time and samples and other names, and have the
//! victim make its index. That index belongs to the victim, and the attacker can rename it. So the
//! archive must also be the same file: inode, owner and ctime, which nobody can set. The exception
//! is an index beside the archive, in a directory where only this user, root and the owner of the
//! archive can create files. An archive can be copied together with such an index.
//!
//! Any number of processes on any number of nodes may do this at once. Each writes a file of its
//! own and renames it, so readers see one complete index or another, and all of them are right.
//! The directory of the archive is opened once. If an attacker exchanges it for a link while the
//! archive is read, the index is still written in the directory that was opened.

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
use super::index::{Allowance, Draft, FileKey, Hash, Index, IndexFile, IndexOptions, Key, MAGIC};
use crate::error::{Error, Kind, Result};
use crate::storage::{self, Directory, FileStorage, Identity, Origin, Readers, Storage};
use crate::sync::Arc;
use crate::vfs::{Finding, Location};

/// Samples of an archive; each is a read when a saved index is opened.
pub(super) const SAMPLES: usize = 16;

/// Where the index of an archive may be, and what it has to fit.
pub(super) struct Saved {
    places: Vec<Place>,
    /// Whether the user named the place.
    named: bool,
    recursive: bool,
    archive: PathBuf,
    identity: Identity,
    origin: Origin,
}

/// An index that is to be saved.
pub(super) struct New<'n> {
    pub(super) draft: &'n Draft,
    pub(super) key: &'n Key,
    pub(super) decoded_len: u64,
}

/// A place for an index.
struct Place {
    kind: PlaceKind,
    /// `None` where it could not be opened, or is not there yet.
    directory: Option<Directory>,
    name: OsString,
    /// For messages.
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceKind {
    /// In the directory of the archive.
    Beside,
    /// In the user's cache folder.
    Cached,
    /// Where the user said.
    Named,
}

impl Place {
    fn beside(file: &FileStorage, suffix: &str) -> Option<Self> {
        // The process that serves such a file system can make anybody the owner of an index.
        if file.origin().is_served_by_process() {
            return None;
        }
        let (directory, mut name, path) = Directory::of(file)?;
        name.push(suffix);
        let path = path.with_file_name(&name);
        Some(Self { kind: PlaceKind::Beside, directory: Some(directory), name, path })
    }

    fn cached(file: &FileStorage, suffix: &str) -> Option<Self> {
        let folder = cache_folder()?;
        let name = cached_name(file.path(), suffix);
        let path = folder.join(&name);
        let directory = Directory::open(&folder).ok();
        Some(Self { kind: PlaceKind::Cached, directory, name, path })
    }

    fn named(path: &Path) -> Self {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let directory = Directory::open(folder.unwrap_or(Path::new("."))).ok();
        let name = path.file_name().unwrap_or_default().to_owned();
        Self { kind: PlaceKind::Named, directory, name, path: path.to_owned() }
    }

    /// The file that is there.
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
    /// The places for the archive `file`: `index` alone, if it is given.
    pub(super) fn new(file: &FileStorage, index: Option<&Path>, recursive: bool) -> Result<Self> {
        let suffix = if recursive { ".recursive.archfs-index" } else { ".archfs-index" };
        let places = match index {
            Some(index) => vec![Place::named(index)],
            None => {
                let places = [Place::beside(file, suffix), Place::cached(file, suffix)];
                places.into_iter().flatten().collect()
            }
        };
        let (archive, identity, origin) = (file.path().to_owned(), file.identity(), file.origin());
        Ok(Self { places, named: index.is_some(), recursive, archive, identity, origin })
    }

    /// What `fit` makes of the saved index, if there is one to believe; if there is none, what is
    /// wrong with those there are is told.
    pub(super) fn load<T>(
        &self,
        archive: &FileStorage,
        allowance: &Arc<Allowance>,
        fit: impl Fn(IndexFile) -> Result<T>,
    ) -> Option<T> {
        let mut refused = Vec::new();
        for place in &self.places {
            let found = self.load_from(place, archive, allowance);
            match found.and_then(|found| found.map(&fit).transpose()) {
                Ok(Some(found)) => return Some(found),
                Ok(None) => {}
                Err(error) => refused.push((place, error)),
            }
        }
        for (place, error) in refused {
            log::warn!("{}: {error}; made anew", place.path.display());
        }
        None
    }

    fn load_from(
        &self,
        place: &Place,
        archive: &FileStorage,
        allowance: &Arc<Allowance>,
    ) -> Result<Option<IndexFile>> {
        let failed = |error| Error::io("can not be read", error);
        let opened = match place.open() {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
                return stale("a symbolic link");
            }
            opened => opened.map_err(failed)?,
        };
        let Some((file, directory)) = opened.zip(place.directory.as_ref()) else {
            return Ok(None);
        };
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return stale("no regular file");
        }
        if storage::is_served_by_another(&file) {
            return stale("it is on a FUSE file system of another user");
        }
        // Whose archive it is can say what is in it, unless a process says whose it is.
        let owner = Some(self.identity.owner)
            .filter(|_| place.kind != PlaceKind::Cached && !self.origin.is_served_by_process())
            .filter(|owner| !storage::is_unmapped(*owner));
        if !storage::is_trusted(&found) && owner != Some(found.uid()) {
            return stale("it belongs to somebody else");
        }
        if found.mode() & 0o022 != 0 {
            return stale("others may write to it");
        }
        let is_bound_to_file = match place.kind {
            PlaceKind::Beside => !directory.is_written_only_by_us(owner),
            PlaceKind::Cached | PlaceKind::Named => true,
        };
        let file = archive.with(file, place.path.clone()).map_err(failed)?;
        let fits = |key: &Key| {
            let Key { recursive, len, modified, file, samples } = key;
            if *recursive != self.recursive {
                return stale("made with another choice of --recursive");
            }
            if *len != self.identity.len || *modified != self.identity.modified {
                return stale("the archive has changed since");
            }
            if is_bound_to_file && *file != self.file_key() {
                return stale("made of another file, or the archive has changed since");
            }
            for (at, hash) in samples {
                if sample(archive, *at)? != *hash {
                    return stale("the archive has changed since, although its time has not");
                }
            }
            Ok(())
        };
        let name = place.path.display().to_string();
        IndexFile::open(Arc::new(file), &IndexOptions::new(&name, allowance), &fits).map(Some)
    }

    fn file_key(&self) -> FileKey {
        let Origin { file_system, changed, group: _ } = self.origin;
        let Identity { inode: (_, inode), owner, .. } = self.identity;
        FileKey { file_system, inode, changed, owner }
    }

    /// What is wrong with the saved indexes that are there, if `new` is the right one and
    /// `seek_points` belong to it: one that is not used is no harm, but one that would be used and
    /// says something else is.
    pub(super) fn compare(
        &self,
        archive: &FileStorage,
        new: &Index,
        seek_points: &[u8],
        allowance: &Arc<Allowance>,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        for place in &self.places {
            let shown = place.path.display();
            let found = match self.load_from(place, archive, allowance) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => {
                    findings.push(Finding::note(format!("index {shown}: {error}")));
                    continue;
                }
            };
            let what = match new.is_same_tree(&found.index) {
                Ok(true) if found.seek_points == seek_points => None,
                Ok(_) => {
                    Some(format!("index {shown}: says something else than the archive: delete it"))
                }
                Err(error) => Some(format!("index {shown}: {error}")),
            };
            findings.extend(what.map(|what| Finding::damage(Location::Archive, what)));
            // The others are never looked at.
            break;
        }
        findings
    }

    /// The key of the archive as it is now, with samples of the blocks at some of `offsets`.
    ///
    /// # Errors
    /// `Io` where it can not be read.
    pub(super) fn key(&self, archive: &dyn Storage, offsets: &[u64]) -> Result<Key> {
        let block = u64::try_from(BLOCK).unwrap_or(1);
        let step = offsets.len().div_ceil(SAMPLES).max(1);
        let last = archive.len().checked_sub(block);
        let chosen = offsets.iter().step_by(step).copied().chain(last);
        let samples = chosen
            .filter(|at| at.checked_add(block).is_some_and(|end| end <= archive.len()))
            .map(|at| Ok((at, sample(archive, at)?)))
            .collect::<Result<_>>()?;
        let Identity { len, modified, .. } = self.identity;
        Ok(Key { recursive: self.recursive, len, modified, file: self.file_key(), samples })
    }

    /// Saves the index of `archive`, which is `new`, in the first place that can be written; tells
    /// which, and returns the file. `is_demanded` where it is what the user asked for.
    ///
    /// # Errors
    /// `Io` where none of them can.
    pub(super) fn save(
        &self,
        archive: &FileStorage,
        new: &New<'_>,
        is_demanded: bool,
    ) -> Result<(&Path, FileStorage)> {
        let mut outcome = Err(Error::new(Kind::Io, "no place for an index: set HOME or --index"));
        for place in self.places.iter().filter(|place| self.may_be_written(place, is_demanded)) {
            outcome = self.save_to(place, archive, new).map(|file| (place.path.as_path(), file));
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Whether an index may be left there. One that others could rename could be put beside another
    /// archive, where it would be believed as this user's.
    fn may_be_written(&self, place: &Place, is_demanded: bool) -> bool {
        let Some(directory) = &place.directory else {
            return true;
        };
        match place.kind {
            PlaceKind::Cached | PlaceKind::Named => true,
            // Who shares a directory with a group, and asks for it, leaves it to the group.
            PlaceKind::Beside => {
                let is_own = self.identity.owner == geteuid().as_raw();
                directory.is_written_only_by_us(None)
                    || (is_demanded && is_own && !directory.is_open_to_all())
            }
        }
    }

    fn save_to(&self, place: &Place, archive: &FileStorage, new: &New<'_>) -> Result<FileStorage> {
        let shown = place.path.display();
        let failed = |error| Error::io(format!("{shown}: can not be written"), error);
        let made;
        let directory = match (place.kind, &place.directory, place.path.parent()) {
            (PlaceKind::Cached, _, Some(folder)) => {
                made = make_cache(folder).map_err(failed)?;
                &made
            }
            (_, Some(directory), _) => directory,
            _ => return Err(failed(NotFound.into())),
        };
        if self.named && !may_be_replaced(directory, &place.name).map_err(failed)? {
            let context = format!("{shown}: is no index of archfs: not overwritten");
            return Err(Error::new(Kind::InvalidInput, context));
        }
        // Beside the archive it is for those who may read that, and nobody else.
        let mode = match place.kind {
            PlaceKind::Beside if directory.is_entered_by_others() => self.identity.mode & 0o044,
            PlaceKind::Beside => self.identity.mode & 0o040,
            PlaceKind::Cached | PlaceKind::Named => 0,
        };
        let readers = Readers { group: self.origin.group, mode };
        let New { draft, key, decoded_len } = new;
        let write = &mut |file: &mut File| draft.write(key, *decoded_len, file);
        let file = directory.replace(&place.name, readers, write).map_err(failed)?;
        archive.with(file, place.path.clone()).map_err(failed)
    }

    /// The archive's path.
    pub(super) fn archive(&self) -> &Path {
        &self.archive
    }

    /// Whether the user named the place, and so expects the index there.
    pub(super) fn is_named(&self) -> bool {
        self.named
    }
}

/// The error for an index that is sound, and not to be believed.
fn stale<T>(why: &str) -> Result<T> {
    Err(Error::new(Kind::InvalidInput, format!("not used: {why}")))
}

/// Whether `name` is free, an empty file or an index: a name typed wrong must not cost a dataset.
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

/// The hash of the block at `at`.
fn sample(archive: &dyn Storage, at: u64) -> Result<Hash> {
    let mut block = [0; BLOCK];
    archive.read_exact_at(&mut block, at)?;
    Ok(*blake3::hash(&block).as_bytes())
}

/// `$XDG_CACHE_HOME/archfs`, else `~/.cache/archfs`.
fn cache_folder() -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(folder.join("archfs"))
}

/// Opens the cache folder; makes it where it is not there, and closes it to others. One that
/// somebody else made or leads to, such as in /tmp or in the home of a user who called sudo, is not
/// used: its owner could let it lead to any folder of this user.
fn make_cache(folder: &Path) -> std::io::Result<Directory> {
    let refused =
        |part: &Path| std::io::Error::other(format!("{} belongs to somebody else", part.display()));
    let check = |part: &Path, found: &fs::Metadata| match storage::is_trusted(found) {
        true => Ok(()),
        false => Err(refused(part)),
    };
    // Before something is made, which would be in that owner's way.
    let there = folder.ancestors().find_map(|part| Some((part, fs::symlink_metadata(part).ok()?)));
    if let Some((part, found)) = there {
        check(part, &found)?;
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    for part in folder.ancestors().take(2) {
        check(part, &fs::symlink_metadata(part)?)?;
    }
    let found = fs::metadata(folder)?;
    if found.uid() == geteuid().as_raw() && found.mode() & 0o077 != 0 {
        // The names of the archives are in it.
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    }
    let directory = Directory::open(folder)?;
    match directory.is_written_only_by_us(None) {
        true => Ok(directory),
        false => Err(refused(folder)),
    }
}

/// A name for the archive's index among those of all others: its own name, so that a person finds
/// it, behind a hash of its whole path.
fn cached_name(path: &Path, suffix: &str) -> OsString {
    let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = OsString::from(blake3::hash(whole.as_os_str().as_bytes()).to_hex().as_str());
    name.push("-");
    let own = path.file_name().unwrap_or_default().as_bytes();
    // A file's name has 255 bytes at most.
    let own = own.get(own.len().saturating_sub(150)..).unwrap_or_default();
    name.push(OsStr::from_bytes(own));
    name.push(suffix);
    name
}
