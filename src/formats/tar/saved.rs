//! The saved index of an archive: where it lies, whether it can be believed, and making it.
//!
//! Owns the places (`--index`, beside the archive, the user's cache folder), the rule when an index
//! belongs to an archive, and replacing the file in one step. Leaves its layout to `index::file`.
//! Invariant: whoever opens the archive gets a right tree; an index only saves time.
//!
//! An index is believed if its archive has the same length and modification time, if sampled blocks
//! of it are the same, if the file is owned by this user, by the owner of the archive or by root
//! (lest somebody else in /tmp tells us what is in our archive), and if it passes its own checks.
//! Any number of processes on any number of nodes may do this at once: each writes a file of its
//! own and renames it, so that a reader sees one whole file or another, and all of them are right.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::io::{BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use rustix::process::geteuid;

use super::header::BLOCK;
use super::index::{IndexFile, Key, MAGIC};
use crate::error::{Error, Kind, Result};
use crate::storage::{self, FileStorage, Identity, Storage};
use crate::vfs::{Fault, Subject};

/// Samples of an archive; each is a read when a saved index is opened.
const SAMPLES: usize = 16;

/// Where the index of an archive may be, and what it has to fit.
pub(super) struct Saved {
    places: Vec<PathBuf>,
    /// Whether the user named the place.
    named: bool,
    recursive: bool,
    archive: PathBuf,
    identity: Identity,
}

impl Saved {
    /// The places for the archive `file`: `index` alone, if it is given.
    pub(super) fn new(file: &FileStorage, index: Option<&Path>, recursive: bool) -> Result<Self> {
        let (path, identity) = (file.path(), file.identity());
        let suffix = if recursive { ".recursive.archfs-index" } else { ".archfs-index" };
        let places = match index {
            Some(index) => vec![index.to_owned()],
            None => {
                let mut beside = path.as_os_str().to_owned();
                beside.push(suffix);
                let cached = cache_folder().map(|folder| folder.join(cached_name(path, suffix)));
                [Some(PathBuf::from(beside)), cached].into_iter().flatten().collect()
            }
        };
        Ok(Self { places, named: index.is_some(), recursive, archive: path.to_owned(), identity })
    }

    /// What `fit` makes of the saved index, if there is one to believe; if there is none, what is
    /// wrong with those there are is told.
    pub(super) fn load<T>(
        &self,
        archive: &dyn Storage,
        fit: impl Fn(IndexFile) -> Result<T>,
    ) -> Option<T> {
        let mut refused = Vec::new();
        for place in &self.places {
            let found = self.load_from(place, archive);
            match found.and_then(|found| found.map(&fit).transpose()) {
                Ok(Some(found)) => return Some(found),
                Ok(None) => {}
                Err(error) => refused.push((place, error)),
            }
        }
        for (place, error) in refused {
            log::warn!("{}: {error}; made anew", place.display());
        }
        None
    }

    fn load_from(&self, place: &Path, archive: &dyn Storage) -> Result<Option<IndexFile>> {
        let stale = |why: &str| Err(Error::new(Kind::InvalidInput, format!("not used: {why}")));
        let failed = |error| Error::io("can not be read", error);
        // A pipe that somebody made there would wait for its writer.
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let file = match OpenOptions::new().read(true).custom_flags(nonblocking).open(place) {
            Ok(file) => file,
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return stale("no regular file");
        }
        let trusted = [0, geteuid().as_raw(), self.identity.owner];
        if !trusted.contains(&found.uid()) {
            return stale("it belongs to somebody else");
        }
        if found.mode() & 0o002 != 0 {
            return stale("everybody may write to it");
        }
        let mut input = BufReader::with_capacity(1 << 20, file);
        let index = IndexFile::read(&mut input, found.len())?;
        let Key { recursive, len, modified, samples } = &index.key;
        if *recursive != self.recursive {
            return stale("made with another choice of --recursive");
        }
        if *len != self.identity.len || *modified != self.identity.modified {
            return stale("the archive has changed since");
        }
        for &(at, sum) in samples {
            if sample(archive, at)? != sum {
                return stale("the archive has changed since, although its time has not");
            }
        }
        Ok(Some(index))
    }

    /// What is wrong with the saved indexes that are there, if `new` is the right one: one that is
    /// not used is no harm, but one that would be used and says something else is.
    pub(super) fn compare(&self, archive: &dyn Storage, new: &IndexFile) -> Vec<Fault> {
        let mut faults = Vec::new();
        for place in &self.places {
            let shown = place.display();
            let found = match self.load_from(place, archive) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => {
                    faults.push(Fault::note(format!("index {shown}: {error}")));
                    continue;
                }
            };
            let same = found.seek_points == new.seek_points
                && found.decoded_len == new.decoded_len
                && found.index.is_same_tree(&new.index);
            if !same {
                let what =
                    format!("index {shown}: says something else than the archive: delete it");
                faults.push(Fault::damage(Subject::Archive, what));
            }
            // The others are never looked at.
            break;
        }
        faults
    }

    /// The key of the archive as it is now, with samples of the blocks at some of `places`.
    ///
    /// # Errors
    /// `Io` where it can not be read.
    pub(super) fn key(&self, archive: &dyn Storage, places: &[u64]) -> Result<Key> {
        let block = u64::try_from(BLOCK).unwrap_or(1);
        let step = places.len().div_ceil(SAMPLES).max(1);
        let last = archive.len().checked_sub(block);
        let chosen = places.iter().step_by(step).copied().chain(last);
        let samples = chosen
            .filter(|at| at.checked_add(block).is_some_and(|end| end <= archive.len()))
            .map(|at| Ok((at, sample(archive, at)?)))
            .collect::<Result<_>>()?;
        let Identity { len, modified, .. } = self.identity;
        Ok(Key { recursive: self.recursive, len, modified, samples })
    }

    /// Saves the index in the first place that can be written; tells which.
    ///
    /// # Errors
    /// `Io` where none of them can.
    pub(super) fn save(&self, index: &IndexFile) -> Result<&Path> {
        let mut outcome = Err(Error::new(Kind::Io, "no place for an index: set HOME or --index"));
        for place in &self.places {
            outcome = self.save_to(place, index).map(|()| place.as_path());
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    fn save_to(&self, place: &Path, index: &IndexFile) -> Result<()> {
        let failed = |error| Error::io(format!("{}: can not be written", place.display()), error);
        let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let in_cache = cache_folder().is_some_and(|cache| cache == folder);
        if in_cache {
            make_cache(folder).map_err(failed)?;
        }
        if self.named && !may_be_replaced(place).map_err(failed)? {
            let context = format!("{}: is no index of archfs: not overwritten", place.display());
            return Err(Error::new(Kind::InvalidInput, context));
        }
        // It tells no more than the archive itself, to those who may read that.
        let shared = if in_cache || self.named { 0 } else { self.identity.mode & 0o444 };
        let mode = Permissions::from_mode(shared | 0o600);
        // Without a name first, so that nothing is left behind if this process is killed.
        if let Some(mut file) = nameless(folder) {
            index.write(&mut file).map_err(failed)?;
            file.set_permissions(mode.clone()).map_err(failed)?;
            if publish(&file, folder, place).is_ok() {
                return Ok(());
            }
            // This file system does not give such a file a name.
        }
        let mut file = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(folder)
            .map_err(failed)?;
        index.write(file.as_file_mut()).map_err(failed)?;
        file.as_file().set_permissions(mode).map_err(failed)?;
        file.persist(place).map(|_| ()).map_err(|error| failed(error.error))
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

/// What the names of files begin with that are not whole yet.
const PREFIX: &str = ".archfs-index-";

/// A file in `folder` that has no name, where the file system knows such files (open(2),
/// O_TMPFILE).
fn nameless(folder: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE.bits().cast_signed();
    OpenOptions::new().write(true).mode(0o600).custom_flags(flags).open(folder).ok()
}

/// Gives a nameless file the name `place`, in place of whatever has it.
fn publish(file: &File, folder: &Path, place: &Path) -> std::io::Result<()> {
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    // A name can be given but not replaced in one step, so it gets another one in between.
    let named = tempfile::Builder::new()
        .prefix(PREFIX)
        .make_in(folder, |path| Ok(linkat(CWD, &source, CWD, path, AtFlags::SYMLINK_FOLLOW)?))?;
    named.into_temp_path().persist(place).map_err(|error| error.error)
}

/// Whether at `place` there is nothing, an empty file or an index: a name typed wrong must not cost
/// a dataset.
fn may_be_replaced(place: &Path) -> std::io::Result<bool> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut file = match OpenOptions::new().read(true).custom_flags(nonblocking).open(place) {
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

/// The CRC-32 of the block at `at`.
fn sample(archive: &dyn Storage, at: u64) -> Result<u32> {
    let mut block = [0; BLOCK];
    archive.read_exact_at(&mut block, at)?;
    Ok(crc32fast::hash(&block))
}

/// `$XDG_CACHE_HOME/archfs`, else `~/.cache/archfs`.
fn cache_folder() -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(folder.join("archfs"))
}

/// Makes the cache folder, or closes it to others. One that somebody else made or leads to, such as
/// in /tmp or in the home of a user who called sudo, is not used: its owner could let it lead to
/// any folder of this user.
fn make_cache(folder: &Path) -> std::io::Result<()> {
    let check = |part: &Path, found: &fs::Metadata| match storage::is_trusted(found) {
        true => Ok(()),
        false => Err(std::io::Error::other(format!("{} belongs to somebody else", part.display()))),
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
    Ok(())
}

/// A name for the archive's index among those of all others: its own name, so that a person finds
/// it, behind a number made of its whole path.
fn cached_name(path: &Path, suffix: &str) -> PathBuf {
    let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let sum = |seed: u32| {
        let mut hasher = crc32fast::Hasher::new_with_initial(seed);
        hasher.update(whole.as_os_str().as_bytes());
        hasher.finalize()
    };
    let mut name = std::ffi::OsString::from(format!("{:08x}{:08x}-", sum(0), sum(!0)));
    let own = path.file_name().unwrap_or_default().as_bytes();
    // A file's name has 255 bytes at most.
    let own = own.get(own.len().saturating_sub(200)..).unwrap_or_default();
    name.push(std::ffi::OsStr::from_bytes(own));
    name.push(suffix);
    PathBuf::from(name)
}
