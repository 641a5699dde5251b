//! Descriptors that a process inherits from its parent, and paths that name one.
//!
//! A daemon closes those that it must not keep. If it kept the writing end of a pipe, the reader
//! would wait until the mount ends. Other functions here take a descriptor that was passed on by
//! number. `launcher` handles standard input, output and error.
#![expect(unsafe_code, reason = "a descriptor that is only a number has no safe form")]

use std::fs::{self, File, Metadata};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::fstat;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};

use crate::error::{Error, Kind, Result};
use crate::lifecycle::MountPlan;
use crate::lifecycle::mount::device;
use crate::storage::FileStorage;

/// The number in a path such as `/dev/fd/3`. libfuse 3 and container runtimes use such a path for a
/// connection that is already mounted.
pub(crate) fn number(path: &Path) -> Option<RawFd> {
    path.to_str()?.strip_prefix("/dev/fd/")?.parse().ok().filter(|number| *number >= 0)
}

/// A duplicate of the FUSE connection that was passed on as descriptor `number`.
///
/// Fails with `NotFound` if it is not open; `InvalidInput` if it is not the FUSE device. On another
/// file the daemon might wait for requests for ever.
pub(crate) fn connection(number: RawFd) -> Result<OwnedFd> {
    let duplicate = duplicate(number)?;
    let is_fuse =
        fstat(&duplicate).is_ok_and(|found| device::is_fuse(found.st_mode, found.st_rdev));
    if !is_fuse {
        let context = format!("/dev/fd/{number}: not a FUSE connection (/dev/fuse)");
        return Err(Error::new(Kind::InvalidInput, context));
    }
    Ok(duplicate)
}

/// A duplicate of the descriptor `number`, which was inherited.
pub(crate) fn duplicate(number: RawFd) -> Result<OwnedFd> {
    let is_open = fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
    let not_open = || Error::new(Kind::NotFound, format!("/dev/fd/{number}: descriptor not open"));
    if !is_open {
        return Err(not_open());
    }
    // SAFETY: the descriptor is open, as checked above. It was open when this process started, so
    // no object of this process owns it, and none can close it before it is duplicated.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_dupfd_cloexec(borrowed, 3).map_err(|_| not_open())
}

/// Closes the descriptors that this process inherited, except standard input, output and error, and
/// those in `kept`. One that this process opened itself stays: it would be closed on execve(2), so
/// it cannot have been inherited.
pub(crate) fn close_all(kept: &[RawFd]) {
    let Ok(listing) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<RawFd> = listing
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|descriptor| *descriptor > 2 && !kept.contains(descriptor))
        .collect();
    for descriptor in open {
        // SAFETY: the call only reads the flags of the descriptor. For a number that is not open,
        // it returns an error.
        let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(descriptor) });
        if flags.is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC)) {
            // SAFETY: no object of this process owns it, because the standard library and this
            // crate open descriptors that are closed on execve(2).
            unsafe { libc::close(descriptor) };
        }
    }
}

const DIRECTORY: &str = "/proc/self/fd";

/// The maximum number of symbolic links to follow to a descriptor, as in the kernel.
const LINKS_MAX: usize = 40;

/// Replaces the paths of archives in `plan` that name an open descriptor, such as /dev/stdin or
/// /dev/fd/7, by paths that the daemon can open. Call it in the launcher.
///
/// The daemon is another process and closes the descriptors that it inherits. If the file still has
/// a name, the daemon opens it by that name. If not (it was deleted, or is below a directory
/// without access), the daemon inherits the descriptor and keeps it open under the same number.
///
/// # Errors
/// `NotFound` for a descriptor that is not open; `Usage` for a pipe; `UnknownFormat` for another
/// kind of file; `Io`.
pub fn resolve_descriptors(mut plan: MountPlan) -> Result<MountPlan> {
    for path in plan.archives.iter_mut().chain(&mut plan.index) {
        if let Some(number) = number_in(path) {
            *path = resolve(path, number)?;
        }
    }
    Ok(plan)
}

/// The descriptors that the daemon of `plan` needs, as `resolve_descriptors` left them.
pub(crate) fn kept(plan: &MountPlan) -> Vec<RawFd> {
    let paths = plan.archives.iter().chain(&plan.index);
    paths.filter_map(|path| path.strip_prefix(DIRECTORY).ok()?.to_str()?.parse().ok()).collect()
}

/// The descriptor of this process that `path` leads to, if it leads to one.
fn number_in(path: &Path) -> Option<RawFd> {
    let own = fs::canonicalize(DIRECTORY).ok()?;
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let mut parent = path.parent()?.to_owned();
        // Only paths below these lead to descriptors; looking up others may be slow.
        if parent.starts_with("/proc") || parent.starts_with("/dev") {
            parent = fs::canonicalize(parent).ok()?;
        }
        let name = path.file_name()?;
        if parent == own {
            return name.to_str()?.parse().ok();
        }
        let target = fs::read_link(parent.join(name)).ok()?;
        path = parent.join(target);
    }
    None
}

/// A path to the file behind descriptor `number`, which the user called `path`.
fn resolve(path: &Path, number: RawFd) -> Result<PathBuf> {
    let link = Path::new(DIRECTORY).join(number.to_string());
    let Ok(found) = fs::metadata(&link) else {
        let context = format!("{}: descriptor {number} is not open", path.display());
        return Err(Error::new(Kind::NotFound, context));
    };
    if !found.is_file() && !found.file_type().is_block_device() {
        // Opening it returns the error for its type.
        FileStorage::open(path)?;
    }
    if let Some(name) = name_of(&link, &found) {
        return Ok(name);
    }
    if number > 2 {
        // This process has inherited it, so the daemon inherits it again.
        return Ok(link);
    }
    // The daemon gets other standard streams, so the file is opened once more.
    let failed = |error| Error::io(format!("{}: cannot open", path.display()), error);
    let file = File::open(&link).map_err(failed)?;
    fcntl_setfd(&file, FdFlags::empty()).map_err(|error| failed(error.into()))?;
    let link = Path::new(DIRECTORY).join(file.as_raw_fd().to_string());
    // It stays open until this process ends, so that the daemon inherits it.
    let _ = file.into_raw_fd();
    Ok(link)
}

/// The name of the open file behind `link`, if that name still leads to the file.
fn name_of(link: &Path, open: &Metadata) -> Option<PathBuf> {
    let name = fs::read_link(link).ok().filter(|name| name.is_absolute())?;
    let named = fs::metadata(&name).ok()?;
    ((named.dev(), named.ino()) == (open.dev(), open.ino())).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn follows_links_to_descriptors_of_this_process_only() {
        let work = tempfile::tempdir().unwrap();
        let link = work.path().join("link");
        symlink("/dev/stdin", &link).unwrap();
        let pid = std::process::id();
        for path in ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0", link.to_str().unwrap()] {
            assert_eq!(number_in(Path::new(path)), Some(0), "{path}");
        }
        assert_eq!(number_in(Path::new(&format!("/proc/{pid}/fd/7"))), Some(7));
        for path in ["/proc/1/fd/0", "/dev/null", "/dev/fd/x", "/dev/fd", "/", "/data/7"] {
            assert_eq!(number_in(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn prefers_the_name_of_a_file_while_the_name_leads_to_it() {
        let work = tempfile::tempdir().unwrap();
        let name = work.path().join("data");
        fs::write(&name, "a").unwrap();
        let file = File::open(&name).unwrap();
        let link = Path::new(DIRECTORY).join(file.as_raw_fd().to_string());
        let resolved = || resolve(&link, file.as_raw_fd()).unwrap();
        assert_eq!(resolved(), fs::canonicalize(&name).unwrap());
        // Now another file has that name.
        fs::rename(&name, work.path().join("old")).unwrap();
        fs::remove_file(work.path().join("old")).unwrap();
        fs::write(&name, "b").unwrap();
        assert_eq!(resolved(), link);
        drop(file);
        assert_eq!(resolve(&link, 1 << 20).unwrap_err().kind(), Kind::NotFound);
    }
}
