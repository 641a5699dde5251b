//! The shared lock that keeps extracted files.
//!
//! Invariant: when the last holder has left, the files are gone or a process is removing them.

use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd, retry_on_intr};

use super::directory::{ExtractedDirectory, is_removed};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::registry::extraction_record;
use crate::progress::Show;

/// A hold on extracted files, or on files that will be extracted.
#[derive(Debug)]
pub(in crate::lifecycle) struct Hold {
    directory: ExtractedDirectory,
    holders: File,
}

impl Hold {
    /// Holds the directory that `create` returns, which is called again if another process removes
    /// the directory before it is locked. `show` displays that wait.
    pub(super) fn take(
        create: &dyn Fn() -> Result<ExtractedDirectory>,
        show: Show<'_>,
    ) -> Result<Self> {
        loop {
            let directory = create()?;
            let shown = directory.path().display().to_string();
            let failed = |error| Error::io(format!("{shown}: cannot lock"), error);
            let holders = match directory.holders(true) {
                // Removed since.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened.map_err(failed)?,
            };
            let waiting = show(&format!("waiting until {shown} is removed"));
            retry_on_intr(|| flock(&holders, FlockOperation::LockShared))
                .map_err(|errno| failed(errno.into()))?;
            drop(waiting);
            if is_removed(&holders) {
                continue;
            }
            if let Some(node) = directory.other_node() {
                Self { directory, holders }.end_empty();
                let context = format!("{shown}: used by node {node}");
                let hint = "--or-extract takes a directory of this node, not a shared one; if \
                            nothing runs on the other node any more, remove the directory";
                return Err(Error::new(Kind::Busy, context).with_hint(hint));
            }
            // From here on there is something for `gc` to find if all processes are killed.
            if let Err(error) = extraction_record::write(directory.path()) {
                log::info!("{shown}: no record for `archfs gc`: {error}");
            }
            return Ok(Self { directory, holders });
        }
    }

    pub(super) fn directory(&self) -> &ExtractedDirectory {
        &self.directory
    }

    /// The extracted files.
    pub(in crate::lifecycle) fn files(&self) -> PathBuf {
        self.directory.files()
    }

    /// Starts a process with `spawn` that holds the files as well.
    pub(in crate::lifecycle) fn shared_with<T>(&self, spawn: impl FnOnce() -> T) -> T {
        // If this fails, the files end with this process.
        let _ = fcntl_setfd(&self.holders, FdFlags::empty());
        let spawned = spawn();
        let _ = fcntl_setfd(&self.holders, FdFlags::CLOEXEC);
        spawned
    }

    /// Gives the files back, for this process and those that share its hold. Returns when they are
    /// removed, or at once if others hold them.
    pub(in crate::lifecycle) fn end(self) -> Result<()> {
        match self.end_for_all() {
            Some((directory, holders)) => directory.remove(holders),
            None => Ok(()),
        }
    }

    /// Gives back a directory in which nothing was extracted.
    fn end_empty(self) {
        if let Some((directory, holders)) = self.end_for_all() {
            directory.remove_empty(holders);
        }
    }

    /// The directory and its exclusive lock, if no other process holds it.
    fn end_for_all(self) -> Option<(ExtractedDirectory, File)> {
        let Self { directory, holders } = self;
        // Not only closed: processes that share the hold have the file open.
        let _ = flock(&holders, FlockOperation::Unlock);
        drop(holders);
        // Without a name, if another process has just removed it.
        let holders = directory.holders(false).ok()?;
        let take = || flock(&holders, FlockOperation::NonBlockingLockExclusive).is_ok();
        if take() {
            return Some((directory, holders));
        }
        // There are other holders, or the keeper is removing the files. Wait for the keeper.
        retry_on_intr(|| flock(&holders, FlockOperation::LockShared)).ok()?;
        // If the keeper failed, the files are still there.
        (!is_removed(&holders) && take()).then_some((directory, holders))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    fn take(path: &Path) -> Hold {
        let create = || {
            fs::create_dir_all(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
            Ok(ExtractedDirectory::existing(path).unwrap())
        };
        Hold::take(&create, &|_| Box::new(())).unwrap()
    }

    #[test]
    fn the_last_holder_removes_the_files() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("made");
        let (first, second) = (take(&path), take(&path));
        fs::create_dir(first.files()).unwrap();
        first.end().unwrap();
        assert!(second.files().exists());
        let shared = second.holders.try_clone().unwrap();
        second.end().unwrap();
        assert!(!path.exists(), "although another process shares the hold");
        drop(shared);
        take(&path).end_empty();
        assert!(!path.exists());
    }

    #[test]
    fn holders_that_come_and_go_at_once_never_lose_files() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("made");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let hold = take(&path);
                        fs::create_dir_all(hold.files()).unwrap();
                        std::thread::yield_now();
                        assert!(hold.files().exists());
                        hold.end().unwrap();
                    }
                });
            }
        });
        assert!(!path.exists());
    }
}
