//! Opens the archives of a plan, and copies them to this node while they are served (--stage).
//!
//! Invariants: what cannot fit is refused before a byte is copied. Unless the user wants to keep
//! it, the copy is an unlinked file, so it disappears with the daemon, however the daemon ends. No
//! other user can open it.
//!
//! The tasks of a node that share a mount have one daemon, so there is one copy.

use std::cell::Cell;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use super::together::Nodes;
use crate::error::{Error, Kind, Result};
use crate::lifecycle::{MountPlan, ReadaheadChoice};
use crate::os::directory::Directory;
use crate::os::memory::{self, Headroom};
use crate::os::unlinked;
use crate::progress::Progress;
use crate::stats::Stats;
use crate::storage::{
    self, Changes, CopyTarget, FileStorage, Fill, KeptCopies, KeptCopy, NearCopy, Room,
};
use crate::sync::Arc;
use crate::units::{Size, format_size};

const DISK: &str = "stage to a local disk such as $TMPDIR, or leave out --stage: \
                    the page cache keeps what fits";

/// How long an error of the storage may last while the user waits for a copy, as for a read of an
/// archive at a URL.
const PATIENCE: Duration = Duration::from_secs(60);

/// The archives of a plan, opened.
pub(in crate::lifecycle) struct Archives {
    pub(in crate::lifecycle) files: Vec<Arc<FileStorage>>,
    /// The copy through which they are read, if there is one.
    pub(in crate::lifecycle) staging: Option<Staging>,
    /// The other nodes of the job, if they share archives.
    pub(in crate::lifecycle) nodes: Option<Nodes>,
}

/// A copy that is filled until this is dropped.
pub(in crate::lifecycle) struct Staging {
    copy: Arc<NearCopy>,
    _fill: Fill,
}

impl Staging {
    pub(in crate::lifecycle) fn copy(&self) -> &Arc<NearCopy> {
        &self.copy
    }

    /// Makes `stats` report how far the copy is.
    pub(in crate::lifecycle) fn count_in(&self, stats: &Stats) {
        let copy = Arc::clone(&self.copy);
        stats.staged.watch(Box::new(move || copy.counts()));
    }
}

/// The archives of `plan`, opened. If the plan asks for a copy, it is being filled. A cache of
/// `cache_bytes` must fit next to a copy in memory.
///
/// Fails with `Io` if they cannot be read, do not fit, or cannot be copied; else as
/// `storage::open_files`.
pub(in crate::lifecycle) fn archives(
    plan: &MountPlan,
    cache_bytes: u64,
    progress: &Progress,
) -> Result<Archives> {
    let changes = match (&plan.stage, plan.allow_changes) {
        // A copy must be of one version, so a change is an error.
        (Some(_), true) => Changes::RefusedExceptEtags,
        (Some(_), false) => Changes::Refused,
        (None, true) => Changes::Allowed,
        (None, false) => Changes::Reported,
    };
    let files = storage::open_originals(&plan.archives, changes, progress)?;
    let nodes = Nodes::of(plan, &files)?;
    let sharing = nodes.as_ref().map(|nodes| nodes.sharing(plan));
    let Some(directory) = &plan.stage else {
        let files = storage::through_copy(files, plan.fill_scope(), sharing)?;
        return Ok(Archives { files, staging: None, nodes });
    };
    if let Some(sharing) = sharing {
        sharing.begin(&files);
    }
    let name = format!("--stage {}", directory.display());
    progress.begin(format!("preparing the copy in {}", directory.display()));
    let begun = begin(files, directory, plan.stage_keep, name.clone(), cache_bytes);
    let (files, staging) = begun.map_err(|error| error.within(&name))?;
    Ok(Archives { files, staging: Some(staging), nodes })
}

/// Waits until the copy is complete, if the plan says so.
///
/// Fails with `Io` if the archives cannot be copied.
pub(in crate::lifecycle) fn wait_if_asked(
    plan: &MountPlan,
    staging: Option<&Staging>,
    progress: &Progress,
) -> Result<()> {
    let (true, Some(staging), Some(directory)) = (plan.stage_wait, staging, &plan.stage) else {
        return Ok(());
    };
    let name = format!("--stage {}", directory.display());
    wait(&staging.copy, directory, progress).map_err(|error| error.within(&name))
}

/// Warns if the user wants all of `files` read into the page cache, and the memory that is left
/// next to a cache of `cache_bytes` does not hold them.
pub(in crate::lifecycle) fn warn_of_memory(
    plan: &MountPlan,
    files: &[Arc<FileStorage>],
    cache_bytes: u64,
) {
    if plan.readahead != ReadaheadChoice::All || plan.stage.is_some() {
        return;
    }
    let is_read = |file: &&Arc<FileStorage>| !file.is_remote() && !file.is_in_memory();
    let len = storage::copied_len(&files.iter().filter(is_read).cloned().collect::<Vec<_>>());
    let left = memory::headroom();
    if let Err(error) = check_memory(len, cache_bytes, left) {
        match storage::unused_in_page_cache(len, cache_bytes, left) {
            0 => log::warn!("--readahead: {error}; reading nothing ahead"),
            most => {
                let most = format_size(most);
                log::warn!("--readahead: {error}; reading at most {most} ahead of programs");
            }
        }
    }
}

/// Begins to copy `files` to `directory`. `keep` is what copies may take there after their mounts.
fn begin(
    files: Vec<Arc<FileStorage>>,
    directory: &Path,
    keep: Option<u64>,
    name: String,
    cache_bytes: u64,
) -> Result<(Vec<Arc<FileStorage>>, Staging)> {
    let len = storage::copied_len(&files);
    let opened = Directory::open(directory).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::new(Kind::Io, "no such directory"),
        ErrorKind::NotADirectory => Error::new(Kind::Io, "not a directory"),
        _ => Error::io("cannot open the directory", error),
    })?;
    let kept = keep.and_then(|most| kept_copy(&files, (&opened, directory), len, most));
    let target = match kept {
        Some(copy) => CopyTarget::Kept(copy),
        None => {
            let created = unlinked::create_in(&opened);
            CopyTarget::New(created.map_err(|error| Error::io("cannot create a file", error))?)
        }
    };
    let copies = KeptCopies::existing(&opened, directory).ok().flatten();
    match with_room(&target, copies, len, cache_bytes) {
        Ok(room) => {
            let (copy, files) = storage::near_copy(files, target, name, room)?;
            let fill = Fill::start(&copy)?;
            Ok((files, Staging { copy, _fill: fill }))
        }
        Err(error) => {
            if let CopyTarget::Kept(copy) = &target {
                copy.discard_if_new();
            }
            Err(error)
        }
    }
}

/// Checks that a copy of `len` bytes fits in `target`, and reserves space for it. `copies` make
/// room.
fn with_room(
    target: &CopyTarget,
    copies: Option<KeptCopies>,
    len: u64,
    cache_bytes: u64,
) -> Result<Room> {
    let file = target.file();
    // What it takes already need not be free.
    let more = len.saturating_sub(target.taken());
    let is_in_memory = unlinked::is_in_memory(file);
    let free = || unlinked::free_bytes(file).map(|free| free.unwrap_or(u64::MAX));
    let lack = || {
        let on_disk = more.saturating_sub(free().unwrap_or(u64::MAX));
        let left = memory::headroom().filter(|_| is_in_memory && more > 0);
        let wanted = more.saturating_add(cache_bytes);
        on_disk.max(left.map_or(0, |left| wanted.saturating_sub(left.bytes)))
    };
    copies.iter().for_each(|copies| copies.make_room(lack));
    let free = free().map_err(|error| Error::io("cannot get the free space", error))?;
    if free < more {
        let what = if more < len { "takes another" } else { "takes" };
        return Err(does_not_fit(what, more, free));
    }
    if is_in_memory {
        let left = memory::headroom();
        check_memory(more, cache_bytes, left).map_err(|error| error.with_hint(DISK))?;
        return Ok(storage::room_in_memory(more, left));
    }
    // In memory this would write zeros to all of it.
    reserve_space(file, len)?;
    Ok(Box::new(|| None))
}

/// The copy of `files` that an earlier mount has left in `directory`, or a new one that stays.
/// `None` if this copy cannot stay; the log says why.
fn kept_copy(
    files: &[Arc<FileStorage>],
    (directory, shown): (&Directory, &Path),
    len: u64,
    most: u64,
) -> Option<KeptCopy> {
    let taken = KeptCopies::open(directory, shown).and_then(|copies| copies.take(files, len, most));
    match taken {
        Ok(Some(copy)) => return Some(copy),
        Ok(None) => log::info!("--stage-keep: another mount uses the copy; this one has its own"),
        Err(error) => log::warn!("--stage-keep: {error}; the copy is removed with the mount"),
    }
    None
}

fn wait(copy: &NearCopy, directory: &Path, progress: &Progress) -> Result<()> {
    progress.begin(format!("copying to {}", directory.display()));
    progress.expect(copy.counts().total);
    let shown = Cell::new(0);
    copy.wait(PATIENCE, |copied| progress.advance(copied - shown.replace(copied)))
}

/// Reserves space for the copy. Free space may be used up by now, or exceed a quota.
fn reserve_space(target: &File, len: u64) -> Result<()> {
    unlinked::reserve(target, len).map_err(|error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            let free = unlinked::free_bytes(target).ok().flatten().unwrap_or(0);
            does_not_fit("takes", len, free).with_source(error)
        }
        _ => Error::io(format!("cannot reserve {}", Size(len)), error),
    })
}

fn does_not_fit(takes: &str, len: u64, free: u64) -> Error {
    let context = format!("the copy {takes} {}, but only {} are free", Size(len), Size(free));
    Error::new(Kind::Io, context).with_hint(DISK)
}

/// Checks that `len` bytes fit in the memory that is left, next to a cache.
fn check_memory(len: u64, cache_bytes: u64, left: Option<Headroom>) -> Result<()> {
    let Some(Headroom { bytes, bound }) = left else {
        return Ok(());
    };
    if len == 0 || len.saturating_add(cache_bytes) <= bytes {
        return Ok(());
    }
    let context = format!(
        "needs {} of memory plus a cache of {} (--cache), but {} {}",
        Size(len),
        Size(cache_bytes),
        bound.leaves(),
        Size(bytes)
    );
    Err(Error::new(Kind::Io, context))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::Bound;

    #[test]
    fn memory_must_hold_the_archives_and_the_cache() {
        let left = |bytes, bound| Some(Headroom { bytes, bound });
        for bound in [Bound::Node, Bound::ControlGroup] {
            check_memory(100, 28, left(128, bound)).unwrap();
            let error = check_memory(100, 28, left(127, bound)).unwrap_err();
            assert_eq!(error.kind(), Kind::Io);
            for expected in ["100 bytes of memory", "28 bytes (--cache)", " 127 bytes"] {
                assert!(error.to_string().contains(expected), "{error}");
            }
        }
        check_memory(u64::MAX, u64::MAX, None).unwrap();
        check_memory(0, 28, left(1, Bound::Node)).unwrap();
        check_memory(u64::MAX, u64::MAX, left(u64::MAX - 1, Bound::Node)).unwrap_err();
    }
}
