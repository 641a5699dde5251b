//! Keeps extracted files as long as a process needs them.
//!
//! Processes that ask for the same archives share one directory. Each of them holds a shared lock
//! on a file in it, and so does the command of each. The kernel frees a lock when its process ends,
//! whatever ends it. The last holder removes the directory. If that process was killed, the keeper
//! does, a process that only waits for the last holder. If the keeper was killed too, `gc` does.
//!
//! Invariant: files are removed only under an exclusive lock, so no holder loses files.

use std::env;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd, retry_on_intr};
use rustix::process::setsid;

use super::shared_directory::{self, SafeParent, SharedDirectory, is_removed};
use crate::error::{Error, Kind, Result};
use crate::os::{own_program, raw_signals};
use crate::progress::Show;

/// A hold on extracted files, or on files that will be extracted.
#[derive(Debug)]
pub(crate) struct Hold {
    directory: SharedDirectory,
    holders: File,
}

impl Hold {
    /// Holds the directory `name` in `parent`, created if it is missing. `show` displays waits.
    pub(crate) fn take_in(parent: &SafeParent, name: &str, show: Show<'_>) -> Result<Self> {
        Self::take(&|| SharedDirectory::create(parent, name), show)
    }

    /// Holds the directory that `create` returns, which is called again if another process removes
    /// the directory before it is locked. `show` displays that wait.
    fn take(create: &dyn Fn() -> Result<SharedDirectory>, show: Show<'_>) -> Result<Self> {
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
            if let Err(error) = shared_directory::write_record(directory.path()) {
                log::info!("{shown}: no record for `archfs gc`: {error}");
            }
            return Ok(Self { directory, holders });
        }
    }

    /// Its path, for messages.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Calls `extract` with a directory to extract to, unless another process has extracted the
    /// files; returns its result. Starts the keeper first. `show` displays a wait.
    pub(crate) fn extract_once<T>(
        &self,
        show: Show<'_>,
        extract: impl FnOnce(&Path) -> Result<T>,
    ) -> Result<Option<T>> {
        let directory = &self.directory;
        let shown = directory.path().display();
        let failed = |error| Error::io(format!("{shown}: cannot extract"), error);
        let extracting = directory.extracting().map_err(failed)?;
        let waiting = show(&format!("waiting until another process has extracted to {shown}"));
        retry_on_intr(|| flock(&extracting, FlockOperation::LockExclusive))
            .map_err(|errno| failed(errno.into()))?;
        drop(waiting);
        if directory.has_files() {
            log::info!("{shown}: sharing the files that another process extracted");
            return Ok(None);
        }
        start_keeper(directory).map_err(|error| error.within(directory.path().display()))?;
        // A process that was killed may have left a part.
        directory.remove_part().map_err(failed)?;
        let extracted = extract(&directory.part())?;
        directory.complete().map_err(failed)?;
        Ok(Some(extracted))
    }

    /// The extracted files.
    pub(crate) fn files(&self) -> PathBuf {
        self.directory.files()
    }

    /// Starts a process with `spawn` that holds the files as well.
    pub(crate) fn shared_with<T>(&self, spawn: impl FnOnce() -> T) -> T {
        // If this fails, the files end with this process.
        let _ = fcntl_setfd(&self.holders, FdFlags::empty());
        let spawned = spawn();
        let _ = fcntl_setfd(&self.holders, FdFlags::CLOEXEC);
        spawned
    }

    /// Gives the files back, for this process and those that share its hold. Returns when they are
    /// removed, or at once if others hold them.
    pub(crate) fn end(self) -> Result<()> {
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
    fn end_for_all(self) -> Option<(SharedDirectory, File)> {
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

/// Starts a keeper of `directory`.
fn start_keeper(directory: &SharedDirectory) -> Result<()> {
    // Not in this process's group, which may be killed as a whole (`keep`). This process
    // does not wait for it, because it usually lives longer.
    let started = own_program::silent(["keep-extracted", "--"]).arg(directory.path()).spawn();
    started.map(drop).map_err(|error| Error::io("cannot start a process", error))
}

/// The keeper: waits until no process holds the files extracted to `directory`, then removes them.
pub(crate) fn keep(directory: &Path) -> Result<()> {
    // A batch system asks all processes of a job to end, and the holders are still there.
    raw_signals::ENDING.into_iter().for_each(raw_signals::ignore);
    let _ = setsid();
    let _ = env::set_current_dir("/");
    let Some(directory) = SharedDirectory::existing(directory) else { return Ok(()) };
    // It may be removed already.
    let Ok(holders) = directory.holders(false) else { return Ok(()) };
    retry_on_intr(|| flock(&holders, FlockOperation::LockExclusive))
        .map_err(|errno| Error::io("cannot wait for the end of the holders", errno.into()))?;
    match is_removed(&holders) {
        true => Ok(()),
        false => directory.remove(holders),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn take(path: &Path) -> Hold {
        let create = || {
            fs::create_dir_all(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
            Ok(SharedDirectory::existing(path).unwrap())
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
