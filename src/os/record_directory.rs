//! The record directory: where this user's archfs processes on this node keep their record files.
//!
//! It is `archfs-UID` (0700) in /tmp. If /tmp is full or read-only, archfs tries other parent
//! directories. If a different user has taken the name, it adds a random suffix. Records stay there
//! when the usual name becomes usable again. So archfs looks a record up in all of them, and
//! creates one in the first that works.
//!
//! Invariant: the directory belongs to this user, is closed to others, and is on the file system of
//! its parent. A FUSE file system could be mounted there, and its daemon can claim any owner for
//! its files.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use rustix::system::uname;

use super::directory::{Directory, parent_of};
use super::path_walk;
use crate::error::{Error, Kind, Result};

/// The end of the names of sockets in it.
pub(crate) const SOCKET_SUFFIX: &str = ".socket";

/// The mode of files in it. A umask may deny permissions to the owner, for example 0577. Then only
/// the process that creates a file has it open, and others could neither read a record nor lock it.
const FILE_MODE: u32 = 0o600;

/// The size in bytes of the file that tests whether a directory can be written: one block of most
/// file systems, and more than most records.
const TEST_SIZE: usize = 4096;

/// Parent directories that are the same in every job and shell of a node.
const PARENTS: [&str; 3] = ["/tmp", "/dev/shm", "/var/tmp"];

/// How often to try a parent directory in which the record directory vanishes.
const ATTEMPTS: usize = 8;

/// A directory of record files: `archfs-UID`, with or without a suffix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordDirectory {
    path: PathBuf,
}

impl RecordDirectory {
    /// All existing directories of user `uid`, in order of preference.
    pub(crate) fn all_of(uid: u32) -> Vec<Self> {
        Self::all_in(&parents(uid), uid)
    }

    /// The existing directories of this user that do not depend on the environment, and `own`,
    /// which has the record of this process. Unlike the others, they are on no network file system.
    pub(crate) fn all_on_node(own: Option<&Path>) -> Vec<Self> {
        let mut all = Self::all_in(&node_parents(own_uid()), own_uid());
        if let Some(own) = own.filter(|own| all.iter().all(|known| known.path != *own)) {
            all.push(Self { path: own.to_owned() });
        }
        all
    }

    pub(crate) fn all() -> Vec<Self> {
        Self::all_of(own_uid())
    }

    fn all_in(parents: &[PathBuf], uid: u32) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for parent in parents {
            for path in usual(parent, uid).into_iter().chain(suffixed(parent, uid)) {
                if !all.iter().any(|known| known.path == path) {
                    all.push(Self { path });
                }
            }
        }
        all
    }

    /// The directory of this user that contains the file `name`, if any.
    pub(crate) fn containing(name: &str) -> Option<Self> {
        Self::containing_of(own_uid(), name)
    }

    /// The directory of user `uid` that contains the file `name`, if any.
    pub(crate) fn containing_of(uid: u32, name: &str) -> Option<Self> {
        Self::containing_in(&parents(uid), uid, name)
    }

    /// Searches the directories with a suffix last, because finding them takes a scan of each
    /// parent.
    fn containing_in(parents: &[PathBuf], uid: u32, name: &str) -> Option<Self> {
        let usual = parents.iter().filter_map(|parent| usual(parent, uid));
        let suffixed = parents.iter().flat_map(|parent| suffixed(parent, uid));
        let mut all = usual.chain(suffixed).map(|path| Self { path });
        all.find(|record_directory| record_directory.join(name).exists())
    }

    /// Calls `create` with the record directory in one parent after the other, until it succeeds.
    /// Creates the record directory if the parent has none.
    pub(crate) fn try_each_parent<T>(create: impl FnMut(&Self) -> io::Result<T>) -> Result<T> {
        Self::try_each_of(&parents(own_uid()), create)
    }

    fn try_each_of<T>(
        parents: &[PathBuf],
        mut create: impl FnMut(&Self) -> io::Result<T>,
    ) -> Result<T> {
        let mut first_error = None;
        for parent in parents {
            // The last process that used the directory may remove it at any time.
            for _ in 0..ATTEMPTS {
                let created = find_or_create(parent).and_then(|path| create(&Self { path }));
                match created {
                    Ok(created) => return Ok(created),
                    Err(error) => {
                        let is_gone = error.kind() == ErrorKind::NotFound && parent.is_dir();
                        first_error.get_or_insert((parent, error));
                        if !is_gone {
                            break;
                        }
                    }
                }
            }
        }
        let Some((parent, error)) = first_error else {
            return Err(Error::new(Kind::Io, "no directory for the records of mounts"));
        };
        let path = parent.join(usual_name(own_uid()));
        let context = format!("{}: cannot be used for the records of mounts", path.display());
        Err(Error::io(context, error).with_hint(
            "free space in /tmp, /dev/shm, /var/tmp, /run/user/UID or $TMPDIR: a few KiB are enough",
        ))
    }

    /// Writes a file to the record directory and removes it; returns the path of the directory.
    ///
    /// Fails with `Io` if no directory can be written to, for example because the file systems are
    /// full.
    pub(crate) fn check_writable() -> Result<PathBuf> {
        Self::try_each_parent(|record_directory| {
            let file =
                tempfile::Builder::new().prefix("probe-").tempfile_in(&record_directory.path);
            let written = file.and_then(|mut file| file.write_all(&[0; TEST_SIZE]));
            record_directory.remove_if_empty();
            // Drops the name of the test file from the error.
            written.map_err(|error| error.kind())?;
            Ok(record_directory.path.clone())
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the file `name` in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The names of all files in it that end in `suffix`.
    pub(crate) fn names(&self, suffix: &str) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| name.ends_with(suffix)).collect()
    }

    /// Keeps systemd-tmpfiles from removing old files in it while the result is open: it skips
    /// directories that another process has locked (tmpfiles.d(5), "Age"). `None` if it cannot be
    /// locked.
    pub(crate) fn lock_against_tmpfiles(&self) -> Option<File> {
        let directory = File::open(&self.path).ok()?;
        flock(&directory, FlockOperation::NonBlockingLockShared).ok()?;
        Some(directory)
    }

    /// Removes the directory if it is empty.
    pub(crate) fn remove_if_empty(&self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// The name of this node. Nodes may share a record directory.
pub(crate) fn node() -> String {
    let name = uname().nodename().to_string_lossy().into_owned();
    name.split_whitespace().collect()
}

/// Opens or creates the file `path`, as `options` say, in a directory that is closed to others,
/// with mode 0600 whatever the umask is.
pub(crate) fn open_0600(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = match options.mode(FILE_MODE).open(path) {
        // The process that created it has not set its mode yet, or was killed before it could.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let found = fs::symlink_metadata(path)?;
            if !found.is_file() || found.uid() != geteuid().as_raw() {
                return Err(error);
            }
            chmod_0600(path)?;
            options.open(path)?
        }
        opened => opened?,
    };
    if file.metadata()?.mode() & FILE_MODE != FILE_MODE {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

/// Sets the mode of the file or socket `path`, in a directory that is closed to others, to 0600.
pub(crate) fn chmod_0600(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(FILE_MODE))
}

fn own_uid() -> u32 {
    geteuid().as_raw()
}

/// The parent directories that do not depend on the environment.
fn node_parents(uid: u32) -> Vec<PathBuf> {
    let mut parents: Vec<PathBuf> = PARENTS.map(PathBuf::from).to_vec();
    parents.push(format!("/run/user/{uid}").into());
    parents
}

/// The parent directories to use. Root ignores the environment, which sudo(8) may have preserved
/// from a user.
fn parents(uid: u32) -> Vec<PathBuf> {
    let mut parents = node_parents(uid);
    if uid == own_uid() && uid != 0 {
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        let own = [variable("TMPDIR"), variable("HOME").map(|home| home.join(".cache"))];
        let has_room = |path: &PathBuf| path.is_absolute() && has_room_for_sockets(path, uid);
        parents.extend(own.into_iter().flatten().filter(has_room));
    }
    parents
}

/// Checks that no other user can exchange what archfs creates in `parent`. Those of the node are
/// not checked. Those that a variable names are checked only when archfs comes to them, because
/// they may be on a file system whose server does not answer.
fn check_trusted(parent: &Path, uid: u32) -> io::Result<()> {
    if node_parents(uid).iter().any(|known| known == parent) {
        return Ok(());
    }
    match path_walk::first_untrusted(parent) {
        None => Ok(()),
        Some(_) => Err(io::Error::new(ErrorKind::PermissionDenied, "other users can replace it")),
    }
}

/// The longest path of a socket, bytes (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

/// Whether the paths of sockets in the record directory of `parent` are short enough.
fn has_room_for_sockets(parent: &Path, uid: u32) -> bool {
    // The key of a mount point has 32 digits.
    let socket = format!("/{}/{:032}{SOCKET_SUFFIX}", usual_name(uid), 0);
    parent.as_os_str().len() + socket.len() <= SOCKET_PATH_MAX
}

/// The record directory of `uid` in `parent` with the usual name, if that is usable.
fn usual(parent: &Path, uid: u32) -> Option<PathBuf> {
    let usual = parent.join(usual_name(uid));
    check_private(&usual, uid).is_ok().then_some(usual)
}

/// The record directories of `uid` in `parent` with a random suffix.
fn suffixed(parent: &Path, uid: u32) -> Vec<PathBuf> {
    let prefix = format!("{}-", usual_name(uid));
    let entries = fs::read_dir(parent).into_iter().flatten();
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    let ours = |name: &OsString| name.as_bytes().starts_with(prefix.as_bytes());
    let mut found: Vec<_> = names.filter(ours).map(|name| parent.join(name)).collect();
    found.retain(|directory| check_private(directory, uid).is_ok());
    found.sort();
    found
}

/// The first record directory of this user in `parent`, created if there is none.
fn find_or_create(parent: &Path) -> io::Result<PathBuf> {
    let uid = own_uid();
    check_trusted(parent, uid)?;
    let usual = parent.join(usual_name(uid));
    match DirBuilder::new().mode(0o700).create(&usual) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let refused = match check_private(&usual, uid) {
        Ok(()) => return Ok(usual),
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(error),
        Err(error) => error,
    };
    // Another process of this user may have created one with a suffix before.
    if let Some(directory) = suffixed(parent, uid).into_iter().next() {
        return Ok(directory);
    }
    let other = tempfile::Builder::new()
        .prefix(&format!("{}-", usual_name(uid)))
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(parent)?
        .keep();
    log::info!("{}: {refused}; using {}", usual.display(), other.display());
    Ok(other)
}

fn usual_name(uid: u32) -> String {
    format!("archfs-{uid}")
}

/// Checks that `directory` belongs to `uid`, is closed to others, and is on the file system of its
/// parent, which no other user can exchange.
fn check_private(directory: &Path, uid: u32) -> io::Result<()> {
    check_trusted(parent_of(directory), uid)?;
    let parent = Directory::of_system(parent_of(directory))?;
    parent.private(directory.file_name().unwrap_or_default(), uid).map(drop)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn directories(parents: &[PathBuf]) -> Vec<PathBuf> {
        let all = RecordDirectory::all_in(parents, own_uid()).into_iter();
        all.map(|record_directory| record_directory.path).collect()
    }

    fn create(parents: &[PathBuf]) -> Result<PathBuf> {
        RecordDirectory::try_each_of(parents, |record_directory| Ok(record_directory.path.clone()))
    }

    #[test]
    fn uses_only_a_directory_closed_to_others() {
        let work = tempfile::tempdir().unwrap();
        let parents = [work.path().to_owned()];
        assert_eq!(directories(&parents), Vec::<PathBuf>::new());
        let usual = create(&parents).unwrap();
        assert_eq!(usual, work.path().join(usual_name(own_uid())));
        assert_eq!(fs::metadata(&usual).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(directories(&parents), std::slice::from_ref(&usual));
        // As if created under another umask.
        fs::set_permissions(&usual, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(create(&parents).unwrap(), usual);
        assert_eq!(fs::metadata(&usual).unwrap().mode() & 0o7777, 0o700);
    }

    #[test]
    fn adds_a_suffix_if_the_usual_name_is_taken_and_all_processes_find_it() {
        let work = tempfile::tempdir().unwrap();
        let parents = [work.path().to_owned()];
        let usual = work.path().join(usual_name(own_uid()));
        std::os::unix::fs::symlink("/tmp", &usual).unwrap();
        let other = create(&parents).unwrap();
        assert_ne!(other, usual);
        assert_eq!(create(&parents).unwrap(), other);
        assert_eq!(directories(&parents), std::slice::from_ref(&other));
        fs::remove_file(&usual).unwrap();
        fs::create_dir(&usual).unwrap();
        fs::set_permissions(&usual, Permissions::from_mode(0o750)).unwrap();
        assert_eq!(create(&parents).unwrap(), other, "open to a group");
    }

    #[test]
    fn finds_records_in_a_suffixed_directory_after_the_usual_name_is_usable_again() {
        let work = tempfile::tempdir().unwrap();
        let parents = [work.path().to_owned()];
        let usual = work.path().join(usual_name(own_uid()));
        std::os::unix::fs::symlink("/tmp", &usual).unwrap();
        let other = create(&parents).unwrap();
        fs::write(other.join("a.mount"), "").unwrap();
        fs::remove_file(&usual).unwrap();
        let containing = |name| {
            let found = RecordDirectory::containing_in(&parents, own_uid(), name);
            found.map(|record_directory| record_directory.path)
        };
        assert_eq!(containing("a.mount"), Some(other.clone()), "no directory has the usual name");
        assert_eq!(create(&parents).unwrap(), usual);
        assert_eq!(containing("a.mount"), Some(other.clone()));
        assert_eq!(directories(&parents), [usual, other]);
        assert_eq!(containing("b.mount"), None);
    }

    #[test]
    fn a_parent_in_which_others_can_exchange_the_directory_is_not_used() {
        let work = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(work.path()).unwrap();
        for (mode, is_usable) in [(0o700, true), (0o1777, true), (0o777, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(check_trusted(&path, own_uid()).is_ok(), is_usable, "{mode:o}");
        }
    }

    #[test]
    fn a_parent_is_used_only_if_a_socket_can_be_bound_in_it() {
        let work = tempfile::tempdir_in("/tmp").unwrap();
        let uid = own_uid();
        for len in work.path().as_os_str().len() + 2..SOCKET_PATH_MAX {
            let name = "x".repeat(len - work.path().as_os_str().len() - 1);
            let parent = work.path().join(name);
            let records = parent.join(usual_name(uid));
            fs::create_dir_all(&records).unwrap();
            let socket = records.join(format!("{:032x}{SOCKET_SUFFIX}", u128::MAX));
            let bound = std::os::unix::net::UnixListener::bind(socket);
            assert_eq!(has_room_for_sockets(&parent, uid), bound.is_ok(), "{len}: {bound:?}");
        }
    }

    #[test]
    fn tries_the_next_parent_if_one_fails() {
        let [full, free] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let parents = [full.path().to_owned(), free.path().to_owned()];
        let created = RecordDirectory::try_each_of(&parents, |record_directory| {
            if record_directory.path.starts_with(full.path()) {
                return Err(Errno::NOSPC.into());
            }
            Ok(record_directory.path.clone())
        });
        assert!(created.unwrap().starts_with(free.path()));
        let missing = [PathBuf::from("/nonexistent/parent")];
        let error = create(&missing).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/parent/archfs-"), "{error}");
    }

    #[test]
    fn opens_a_file_that_a_umask_has_closed_to_its_owner() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("file");
        for closed in [0, 0o200, 0o400, 0o600] {
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(closed)).unwrap();
            open_0600(&path, File::options().create(true).append(true)).unwrap();
            let mode = fs::symlink_metadata(&path).unwrap().mode();
            assert_eq!(mode & 0o7777, FILE_MODE, "{closed:o}");
            fs::remove_file(&path).unwrap();
        }
        let created = open_0600(&path, File::options().write(true).create_new(true)).unwrap();
        assert_eq!(created.metadata().unwrap().mode() & 0o7777, FILE_MODE);
    }
}
