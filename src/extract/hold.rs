//! Keeps extracted files as long as a process needs them.
//!
//! Processes that ask for the same archives share one directory, which other users cannot replace.
//! Each of them holds a shared lock on a file in it, and so does its command. The kernel frees a
//! lock when its process ends, whatever ends it. The last holder removes the directory. If that
//! process was killed, the keeper does, a process that only waits for the last holder. If the
//! keeper was killed too, `gc` does. Files are removed only under an exclusive lock.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, renameat};
use rustix::io::{FdFlags, fcntl_setfd, retry_on_intr};
use rustix::process::{geteuid, setsid};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Kind, Result};
use crate::os::directory::Directory;
use crate::os::process;
use crate::os::record_directory::{RecordDirectory, node, open_0600};
use crate::os::signal::Mask;
use crate::progress::Show;

/// The files, once all of them are there.
const FILES: &str = "files";

/// The files that are being extracted.
const PART: &str = "files.part";

/// The lock of the process that extracts.
const EXTRACTING: &str = "extracting";

/// The beginning of the name of the lock of all holders; the rest is the name of the node. The
/// locks of one node may not count on another one.
const HOLDERS: &str = "holders-";

const RECORD_SUFFIX: &str = ".extracted";

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
            if let Err(error) = write_record(directory.path()) {
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
        let extracting = directory.open_lock(EXTRACTING, true).map_err(failed)?;
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

fn start_keeper(directory: &SharedDirectory) -> Result<()> {
    // Not in this process's group, which may be killed as a whole (`keep`). This process
    // does not wait for it, because it usually lives longer.
    let mut command = process::silent_own_program(["keep-extracted", "--"]);
    command.arg(directory.path());
    // A batch system signals all processes of a job, perhaps before this one has done anything.
    Mask::all().pass_to(&mut command);
    command.spawn().map(drop).map_err(|error| Error::io("cannot start a process", error))
}

/// The keeper: waits until no process holds the files extracted to `directory`, then removes them.
/// It is started with all signals blocked, because the holders may outlive those to the whole job.
pub(crate) fn keep(directory: &Path) -> Result<()> {
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

/// A directory in which only this user and root can replace what archfs creates.
#[derive(Clone, Debug)]
pub(crate) struct SafeParent(Directory);

impl SafeParent {
    /// Checks `parent`. In a user namespace the owners of directories are unknown, so check before
    /// this process enters one.
    pub(crate) fn check(parent: &Path) -> Result<Self> {
        let opened = Directory::open(parent).map_err(|error| cannot_extract_to(parent, error))?;
        let Some(untrusted) = opened.first_untrusted() else { return Ok(Self(opened)) };
        let (shown, untrusted) = (parent.display(), untrusted.display());
        let context =
            format!("{shown}: not safe to extract to: other users can replace {untrusted}");
        Err(Error::new(Kind::Busy, context)
            .with_hint("name a directory of your own on this node, for example $TMPDIR"))
    }
}

fn cannot_extract_to(directory: &Path, error: io::Error) -> Error {
    Error::io(format!("{}: cannot extract to this directory", directory.display()), error)
}

/// A directory for extracted files.
#[derive(Clone, Debug)]
struct SharedDirectory {
    parent: Directory,
    directory: Directory,
    path: PathBuf,
}

impl SharedDirectory {
    /// The directory `name` in `parent`, created if it is missing.
    ///
    /// Fails with `Io` if it cannot be created; `Busy` if it is not for this user alone.
    fn create(SafeParent(parent): &SafeParent, name: &str) -> Result<Self> {
        let created = parent.create(name.as_ref());
        created.map_err(|error| cannot_extract_to(parent.location(), error))?;
        let path = parent.location().join(name);
        Self::of(parent.clone(), name.as_ref()).map_err(|error| {
            let context = format!("{}: cannot be used: {error}", path.display());
            Error::new(Kind::Busy, context).with_hint("name another directory")
        })
    }

    /// The directory at `path`, if it is one of this user.
    fn existing(path: &Path) -> Option<Self> {
        let (parent, name) = Directory::open_parent(path).ok()?;
        Self::of(parent, name).ok()
    }

    fn of(parent: Directory, name: &OsStr) -> io::Result<Self> {
        let directory = parent.private(name, geteuid().as_raw())?;
        let path = parent.location().join(name);
        Ok(Self { parent, directory, path })
    }

    /// Its path, for messages and other processes.
    fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the extracted files, for other processes.
    fn files(&self) -> PathBuf {
        self.path.join(FILES)
    }

    fn has_files(&self) -> bool {
        self.directory.metadata(FILES.as_ref()).is_ok()
    }

    /// Where files are extracted to, valid while this exists.
    fn part(&self) -> PathBuf {
        self.directory.path().join(PART)
    }

    /// Makes the extracted files those that `files` returns.
    fn complete(&self) -> io::Result<()> {
        Ok(renameat(&self.directory, PART, &self.directory, FILES)?)
    }

    /// Removes the files that a killed process had begun to extract.
    fn remove_part(&self) -> io::Result<()> {
        remove_tree(&self.part())
    }

    /// The file with the lock of all holders on this node. It is created only if `may_create`.
    fn holders(&self, may_create: bool) -> io::Result<File> {
        self.open_lock(&holders_name(), may_create)
    }

    /// Another node with holders, if any.
    fn other_node(&self) -> Option<String> {
        let own = node();
        let names = self.directory.names().unwrap_or_default().into_iter();
        let names = names.filter_map(|name| name.into_string().ok());
        let mut nodes = names.filter_map(|name| Some(name.strip_prefix(HOLDERS)?.to_owned()));
        nodes.find(|node| *node != own)
    }

    /// Removes everything. The caller has the exclusive lock of `holders`.
    fn remove(&self, holders: File) -> Result<()> {
        let failed = |error| {
            let context = format!("{}: cannot remove the extracted files", self.path.display());
            Error::io(context, error).with_hint("run `archfs gc` to try again")
        };
        // Whoever takes the lock finds either all files or none.
        let _ = renameat(&self.directory, FILES, &self.directory, PART);
        self.remove_part().map_err(failed)?;
        let _ = self.directory.remove_file(EXTRACTING.as_ref());
        self.remove_empty(holders);
        Ok(())
    }

    /// Removes the directory if it holds nothing but the lock `holders`, which the caller has.
    fn remove_empty(&self, holders: File) {
        // Before another process can take the lock, and write a record of its own.
        remove_record(&self.path);
        let _ = self.directory.remove_file(holders_name().as_ref());
        // It is not empty if another process wants to extract to it.
        let _ = self.parent.remove_directory(self.path.file_name().unwrap_or_default());
        // Last: a process that waits for the lock finds that its file has no name any more.
        drop(holders);
    }

    fn open_lock(&self, name: &str, may_create: bool) -> io::Result<File> {
        let path = self.directory.path().join(name);
        open_0600(&path, File::options().read(true).write(true).create(may_create))
    }
}

fn holders_name() -> String {
    format!("{HOLDERS}{}", node())
}

/// Whether the file of a lock, which is open, has been removed.
fn is_removed(lock: &File) -> bool {
    lock.metadata().is_ok_and(|found| found.nlink() == 0)
}

/// Removes a directory and everything in it, also what is in directories without write permission.
fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        removed => return removed,
    }
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        let _ = fs::set_permissions(&directory, Permissions::from_mode(0o700));
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories.extend(below.map(|entry| entry.path()));
    }
    fs::remove_dir_all(path)
}

/// Removes the directories without holders that killed processes of this user have left on this
/// node. Returns the directories that were removed, and the errors.
pub(crate) fn remove_ended() -> (Vec<PathBuf>, Vec<Error>) {
    let (mut removed, mut errors) = (Vec::new(), Vec::new());
    for path in recorded() {
        let Some(directory) = SharedDirectory::existing(&path) else {
            // Somebody else removed it, or it was never created.
            if fs::symlink_metadata(&path).is_err() {
                remove_record(&path);
            }
            continue;
        };
        // Created: a process may have been killed before it could.
        let Ok(holders) = directory.holders(true) else { continue };
        if flock(&holders, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        match directory.remove(holders) {
            Ok(()) => removed.push(path),
            Err(error) => errors.push(error),
        }
    }
    (removed, errors)
}

/// Records `directory`, which this process holds, in a file with the name of the node and the path.
fn write_record(directory: &Path) -> Result<()> {
    let name = record_name(directory);
    if RecordDirectory::containing(&name).is_some() {
        return Ok(());
    }
    let content = [node().as_bytes(), b"\n", directory.as_os_str().as_bytes()].concat();
    RecordDirectory::try_each_parent(|record_directory| {
        let path = record_directory.join(&name);
        let mut file = open_0600(&path, File::options().write(true).create(true).truncate(true))?;
        file.write_all(&content)
    })
}

/// The directories of this user on this node that were recorded.
fn recorded() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for record_directory in RecordDirectory::all() {
        for name in record_directory.names(RECORD_SUFFIX) {
            let content = fs::read(record_directory.join(&name)).unwrap_or_default();
            let Some(end) = content.iter().position(|&byte| byte == b'\n') else { continue };
            let (recorded, path) = content.split_at(end);
            if recorded == node().as_bytes() {
                found.push(PathBuf::from(OsString::from_vec(path[1..].to_vec())));
            }
        }
    }
    found
}

/// Removes the record of `directory`, which is gone.
fn remove_record(directory: &Path) {
    let name = record_name(directory);
    while let Some(record_directory) = RecordDirectory::containing(&name) {
        if fs::remove_file(record_directory.join(&name)).is_err() {
            return;
        }
        record_directory.remove_if_empty();
    }
}

fn record_name(directory: &Path) -> String {
    format!("{:016x}{RECORD_SUFFIX}", xxh3_64(directory.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(path: &Path) -> Hold {
        let create = || {
            fs::create_dir_all(path).unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
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

    #[test]
    fn removes_directories_that_cannot_be_written() {
        let work = tempfile::tempdir().unwrap();
        let tree = work.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), "").unwrap();
        for closed in ["a/b", "a", ""] {
            fs::set_permissions(tree.join(closed), Permissions::from_mode(0o000)).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        remove_tree(&tree).unwrap();
    }

    #[test]
    fn another_node_is_found_by_its_lock() {
        let work = tempfile::tempdir().unwrap();
        fs::set_permissions(work.path(), Permissions::from_mode(0o700)).unwrap();
        let directory = SharedDirectory::existing(work.path()).unwrap();
        directory.holders(true).unwrap();
        assert_eq!(directory.other_node(), None);
        fs::write(work.path().join("holders-elsewhere"), "").unwrap();
        assert_eq!(directory.other_node().as_deref(), Some("elsewhere"));
        fs::set_permissions(work.path(), Permissions::from_mode(0o750)).unwrap();
        assert!(SharedDirectory::existing(work.path()).is_none(), "open to a group");
    }
}
