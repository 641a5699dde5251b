//! A directory that is opened once, and its files by name.
//!
//! A path can lead elsewhere each time it is used: a user with write access to a directory on the
//! way can replace the next component with a link. So a directory that a user names is opened once,
//! by `path_walk`. All else is relative to its descriptor. Invariant: a link as the last component
//! is never followed, except where stated.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, readlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::path_walk::{LINKS_MAX, Links, Target, Walk, is_on_proc, mount_number};
use super::trust::{is_served_by_another, is_trusted};
use crate::sync::Arc;

/// An open directory.
#[derive(Clone, Debug)]
pub struct Directory {
    opened: Arc<Opened>,
}

#[derive(Debug)]
struct Opened {
    file: File,
    location: PathBuf,
    untrusted: Option<PathBuf>,
}

/// The result of opening a file for appending.
#[derive(Debug)]
pub enum Appended {
    /// Open for writing.
    Opened(File),
    /// Another user may have put it there.
    Planted,
}

/// How a directory is opened by its path.
const FOLLOWING: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// How it is opened by its name in another one.
const DIRECTORY: OFlags = FOLLOWING.union(OFlags::NOFOLLOW);

/// The directory part of `path`.
pub fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

impl Directory {
    /// Opens the directory at `path`, a path that a user gave.
    ///
    /// # Errors
    /// Those of the system; `PermissionDenied` for a link of another user, or for root a FUSE file
    /// system of another user (`path_walk`).
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::walk(path, Links::Checked)
    }

    /// Opens the directory at `path`, which has no symbolic links.
    pub fn open_resolved(path: &Path) -> io::Result<Self> {
        match openat2(CWD, path, FOLLOWING, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            // Linux before 5.6, or a container forbids openat2(2).
            Err(Errno::NOSYS | Errno::PERM) => Self::walk(path, Links::Refused),
            opened => Ok(Self::of_opened(opened?, path.to_owned(), None)),
        }
    }

    /// The directory of `path`, which has no symbolic links, and the name in it.
    pub fn open_parent(path: &Path) -> io::Result<(Self, &OsStr)> {
        let parent = Self::open_resolved(path.parent().unwrap_or(Path::new("/")))?;
        Ok((parent, path.file_name().unwrap_or_default()))
    }

    fn walk(path: &Path, links: Links) -> io::Result<Self> {
        let mut walk = Walk::new(path, Target::Directory, links)?;
        walk.run(path.to_owned())?;
        let Walk { directory: file, path: location, untrusted, .. } = walk;
        Ok(Self { opened: Arc::new(Opened { file, location, untrusted }) })
    }

    /// Opens the directory at `path`, which no other user can replace, such as /tmp.
    pub fn of_system(path: &Path) -> io::Result<Self> {
        let opened = openat(CWD, path, FOLLOWING, Mode::empty())?;
        Ok(Self::of_opened(opened, path.to_owned(), None))
    }

    fn of_opened(opened: OwnedFd, location: PathBuf, untrusted: Option<PathBuf>) -> Self {
        Self { opened: Arc::new(Opened { file: opened.into(), location, untrusted }) }
    }

    /// The directory of the file at `path`, the file's name in it, and its path with all links
    /// resolved. `None` if the file has no name or is no longer the one with this device and inode.
    pub fn of(path: &Path, inode: (u64, u64)) -> Option<(Self, OsString, PathBuf)> {
        let path = fs::canonicalize(path).ok()?;
        let name = path.file_name()?;
        let directory = Self::open_resolved(path.parent()?).ok()?;
        let found = directory.metadata(name).ok()?;
        let is_same = (found.dev(), found.ino()) == inode;
        is_same.then(|| (directory, name.to_owned(), path.clone()))
    }

    /// Opens the directory `name` in this one.
    pub fn below(&self, name: &OsStr) -> io::Result<Self> {
        let opened = openat(self, name, DIRECTORY, Mode::empty())?;
        let Opened { location, untrusted, .. } = self.opened.as_ref();
        Ok(Self::of_opened(opened, location.join(name), untrusted.clone()))
    }

    /// Opens the directory `name` in this one, if it belongs to `uid` and is closed to others.
    ///
    /// A file system could be mounted there whose daemon never answers, or claims any owner for its
    /// files. So the directory must be on the file system of this one.
    ///
    /// # Errors
    /// `PermissionDenied` with the reason; those of the system.
    pub fn private(&self, name: &OsStr, uid: u32) -> io::Result<Self> {
        let within = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        let directory = match openat2(self, name, DIRECTORY, Mode::empty(), within) {
            // Linux before 5.6, or a container forbids openat2(2).
            Err(Errno::NOSYS | Errno::PERM) => {
                let directory = self.below(name)?;
                if mount_number(&directory.opened.file)? != mount_number(&self.opened.file)? {
                    return Err(Errno::XDEV.into());
                }
                directory
            }
            opened => Self::of_opened(opened?, self.location().join(name), None),
        };
        let found = directory.stat()?;
        let denied = |why| Err(io::Error::new(ErrorKind::PermissionDenied, why));
        if found.uid() != uid {
            return denied("belongs to another user");
        }
        if is_served_by_another(&directory) {
            return denied("is on a FUSE file system of another user");
        }
        if found.mode() & 0o077 != 0 {
            return denied("is open to other users; its mode must be 0700");
        }
        directory.open_to_owner()?;
        Ok(directory)
    }

    /// Creates the directory `name`, for this user alone. Returns whether it is new.
    pub fn create(&self, name: &OsStr) -> io::Result<bool> {
        match mkdirat(self, name, Mode::RWXU) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives the owner all permissions, if that is this user: a umask may have denied some. The
    /// permissions of others do not change.
    pub fn open_to_owner(&self) -> io::Result<()> {
        self.set_mode(|mode| mode | 0o700)
    }

    /// Denies others access, if this user owns it.
    pub fn close_to_others(&self) -> io::Result<()> {
        self.set_mode(|mode| if mode & 0o077 == 0 { mode } else { 0o700 })
    }

    fn set_mode(&self, change: impl Fn(u32) -> u32) -> io::Result<()> {
        let found = self.stat()?;
        let (mode, changed) = (found.mode() & 0o7777, change(found.mode() & 0o7777));
        if found.uid() != geteuid().as_raw() || mode == changed {
            return Ok(());
        }
        fs::set_permissions(self.path(), Permissions::from_mode(changed))
    }

    /// What the path led to when it was opened, without symbolic links.
    pub fn location(&self) -> &Path {
        &self.opened.location
    }

    /// The first part of the path that a user other than this one and root can replace; `None` if
    /// only they can create, rename or remove files here, or there is a sticky bit.
    pub fn first_untrusted(&self) -> Option<&Path> {
        self.opened.untrusted.as_deref()
    }

    fn stat(&self) -> io::Result<Metadata> {
        self.opened.file.metadata()
    }

    /// The names of the files.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::new(self.open_with(".".as_ref(), OFlags::DIRECTORY)?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    /// The metadata of `name`.
    pub fn metadata(&self, name: &OsStr) -> io::Result<Metadata> {
        fs::symlink_metadata(self.path().join(name))
    }

    /// Opens the file `name`, or creates it for this user alone if `flags` say so.
    pub fn open_with(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(self, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Removes the file `name`. A missing one is no error.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        match unlinkat(self, name, AtFlags::empty()) {
            Err(error) if error != Errno::NOENT => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Removes the directory `name`, which must be empty.
    pub fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(self, name, AtFlags::REMOVEDIR)?)
    }

    /// A path to this directory, valid while it is open.
    pub fn path(&self) -> PathBuf {
        path_of(self)
    }

    /// Like `path`, for other processes of this user.
    pub fn path_for_others(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.opened.file.as_raw_fd()).into()
    }

    /// Whether only this user, root and `owner`, if given, can create, rename or remove files here.
    pub fn is_written_only_by_us(&self, owner: Option<u32>) -> bool {
        self.stat().is_ok_and(|found| {
            (is_trusted(&found) || owner == Some(found.uid()))
                && found.mode() & 0o022 == 0
                && !is_served_by_another(self)
        })
    }

    /// Whether all users can remove and rename each other's files here.
    pub fn is_open_to_all(&self) -> bool {
        self.stat().map_or(true, |found| found.mode() & 0o1002 == 0o002)
    }

    /// Whether users other than the owner and the group can enter.
    pub fn is_entered_by_others(&self) -> bool {
        self.stat().is_ok_and(|found| found.mode() & 0o001 != 0)
    }

    /// Opens the file `name` for reading. Does not block on a pipe.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        self.open_with(name, OFlags::RDONLY | OFlags::NONBLOCK)
    }

    /// Opens the file `name` for appending, or creates it for this user alone. A pipe without a
    /// reader is an error. A link is followed if this user or root owns it.
    pub fn append(&self, name: &OsStr) -> io::Result<Appended> {
        self.append_through(name, LINKS_MAX)
    }

    /// Follows at most `links` links.
    fn append_through(&self, name: &OsStr, links: usize) -> io::Result<Appended> {
        const FLAGS: OFlags = OFlags::WRONLY.union(OFlags::APPEND).union(OFlags::NONBLOCK);
        loop {
            match self.open_with(name, FLAGS) {
                Ok(file) if self.could_be_planted(&file.metadata()?)? => {
                    return Ok(Appended::Planted);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
                    return self.append_by_link(name, links);
                }
                Err(error) => {
                    // The open may fail because the file is another user's.
                    return match self.metadata(name).map(|found| self.could_be_planted(&found)) {
                        Ok(Ok(true)) => Ok(Appended::Planted),
                        _ => Err(error),
                    };
                }
                Ok(file) => return Ok(Appended::Opened(file)),
            }
            match self.open_with(name, FLAGS | OFlags::CREATE | OFlags::EXCL) {
                // Another process has just created it.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                opened => return opened.map(Appended::Opened),
            }
        }
    }

    fn append_by_link(&self, name: &OsStr, links: usize) -> io::Result<Appended> {
        let link = self.open_with(name, OFlags::PATH)?;
        // The owner of the directory could replace the link.
        let is_of_another = geteuid().is_root() && !is_trusted(&self.stat()?);
        if is_of_another || self.could_be_planted(&link.metadata()?)? {
            return Ok(Appended::Planted);
        }
        // A link to an open file has no path that leads there, and no user can replace it.
        if is_on_proc(self) {
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            let opened =
                File::options().append(true).custom_flags(flags).open(self.path().join(name));
            return opened.map(Appended::Opened);
        }
        let target = readlinkat(&link, "", Vec::new())?.into_bytes();
        let target = self.path().join(OsString::from_vec(target));
        let (Some(name), Some(links)) = (target.file_name(), links.checked_sub(1)) else {
            return Err(Errno::LOOP.into());
        };
        Self::open(parent_of(&target))?.append_through(name, links)
    }

    /// Whether another user may have put the file of `metadata` here unexpectedly. A user who names
    /// another user's directory expects that user's files there; root does not.
    fn could_be_planted(&self, metadata: &Metadata) -> io::Result<bool> {
        let own = self.stat()?;
        let is_world_writable = own.mode() & 0o002 != 0;
        let is_of_another = geteuid().is_root() && !is_trusted(&own);
        let is_of_owner =
            !is_world_writable && !metadata.is_symlink() && metadata.uid() == own.uid();
        let has_other_names = metadata.is_file() && metadata.nlink() > 1;
        Ok((is_world_writable || is_of_another)
            && (has_other_names || !(is_trusted(metadata) || is_of_owner)))
    }
}

/// A path for this process that the kernel resolves to the file which `descriptor` has open.
pub fn path_of(descriptor: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()).into()
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.opened.file.as_fd()
    }
}

/// The user's directory for caches or configuration (XDG Base Directory Specification): the one
/// that `variable` names, or else `below_home` in the home directory. Relative paths in the
/// environment do not count.
pub(crate) fn base_directory(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(below_home)))
}

/// `$XDG_CACHE_HOME/archfs`, or else `~/.cache/archfs`.
pub fn cache_directory() -> Option<PathBuf> {
    base_directory("XDG_CACHE_HOME", ".cache").map(|parent| parent.join("archfs"))
}

/// Opens the user's cache directory of archfs. Creates it if needed, and denies others access.
/// Rejects a directory that another user owns or that is reached through another user's directory,
/// for example in /tmp or in the home of a user who ran sudo. Its owner could redirect it to any
/// directory of this user.
pub fn create_cache() -> io::Result<Directory> {
    let path = cache_directory().ok_or_else(|| io::Error::other("HOME is not set"))?;
    let rejected =
        |part: &Path| io::Error::other(format!("{} belongs to another user", part.display()));
    let check = |part: &Path, found: &Metadata| match is_trusted(found) {
        true => Ok(()),
        false => Err(rejected(part)),
    };
    // Checked before anything is created in the directory of another user.
    let existing = path.ancestors().find_map(|part| Some((part, fs::symlink_metadata(part).ok()?)));
    if let Some((part, found)) = existing {
        check(part, &found)?;
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    for part in path.ancestors().take(2) {
        check(part, &fs::symlink_metadata(part)?)?;
    }
    // It contains the names of archives.
    let directory = Directory::open(&path)?;
    directory.close_to_others()?;
    match directory.is_written_only_by_us(None) {
        true => Ok(directory),
        false => Err(rejected(&path)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, lchown, symlink};

    use super::*;

    fn work() -> (tempfile::TempDir, PathBuf) {
        let work = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(work.path()).unwrap();
        (work, path)
    }

    fn sorted(directory: &Directory) -> Vec<OsString> {
        let mut names = directory.names().unwrap();
        names.sort();
        names
    }

    /// > Root opens the parent directory once, without following links, and mounts, unmounts and
    /// > removes from there. A swapped directory or link can make that fail, but cannot redirect
    /// > it.
    #[test]
    fn keeps_its_directory_when_one_above_it_is_replaced() {
        let (_work, work) = work();
        let (parent, moved, trap) = (work.join("parent"), work.join("moved"), work.join("trap"));
        for directory in [parent.join("mount"), trap.join("mount")] {
            fs::create_dir_all(directory).unwrap();
        }
        let mount_point = parent.join("mount");
        let (opened, name) = Directory::open_parent(&mount_point).unwrap();
        fs::rename(&parent, &moved).unwrap();
        symlink(&trap, &parent).unwrap();
        opened.remove_directory(name).unwrap();
        assert!(!moved.join("mount").exists() && trap.join("mount").exists());
        assert!(opened.create(name).unwrap() && !opened.create(name).unwrap());
        assert!(moved.join("mount").exists());
        opened.open_with("file".as_ref(), OFlags::CREATE | OFlags::WRONLY).unwrap();
        assert_eq!(sorted(&opened), ["file", "mount"]);
        opened.remove_file("file".as_ref()).unwrap();
        opened.remove_file("file".as_ref()).unwrap();
        assert_eq!(fs::read_dir(&trap).unwrap().count(), 1);
        let is_loop = |opened: io::Result<Directory>| {
            Errno::from_io_error(&opened.unwrap_err()) == Some(Errno::LOOP)
        };
        assert!(is_loop(Directory::open_parent(&mount_point).map(|(opened, _)| opened)));
        assert!(is_loop(Directory::walk(&parent, Links::Refused)), "without openat2(2)");
    }

    #[test]
    fn a_link_is_not_a_directory_or_a_file_of_it() {
        let (_work, work) = work();
        symlink("/", work.join("link")).unwrap();
        let opened = Directory::open(&work).unwrap();
        let error = opened.below("link".as_ref()).unwrap_err();
        assert!(matches!(Errno::from_io_error(&error), Some(Errno::NOTDIR | Errno::LOOP)));
        assert!(opened.private("link".as_ref(), 0).is_err());
        assert!(opened.open_file("link".as_ref()).is_err());
        assert!(opened.metadata("link".as_ref()).unwrap().is_symlink());
    }

    #[test]
    fn links_of_this_user_and_of_the_kernel_are_followed() {
        let (_work, work) = work();
        fs::create_dir_all(work.join("a/b")).unwrap();
        symlink("a", work.join("link")).unwrap();
        let opened = Directory::open(&work.join("link/../link/b/.")).unwrap();
        assert_eq!(opened.location(), work.join("a/b"));
        let again = Directory::open(&opened.path().join("..")).unwrap();
        assert_eq!(sorted(&again), ["b"]);
        for (path, errno) in [("none/b", Errno::NOENT), ("a/b/..//none", Errno::NOENT)] {
            let error = Directory::open(&work.join(path)).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(errno), "{path}");
        }
        assert!(Directory::open(Path::new(".")).is_ok());
    }

    #[test]
    fn root_follows_no_link_of_another_user() {
        let (_work, work) = work();
        fs::create_dir(work.join("a")).unwrap();
        symlink("a", work.join("link")).unwrap();
        if lchown(work.join("link"), Some(5), None).is_err() {
            return println!("SKIPPED: needs root");
        }
        for path in ["link", "link/.", "a/../link"] {
            let error = Directory::open(&work.join(path)).unwrap_err().to_string();
            assert!(error.ends_with("link is a symbolic link of another user (uid 5)"), "{error}");
        }
        // The owner of a directory may give it away, and root may still use it.
        chown(work.join("a"), Some(5), None).unwrap();
        assert_eq!(
            Directory::open(&work.join("a")).unwrap().first_untrusted(),
            Some(work.join("a").as_path())
        );
    }

    #[test]
    fn a_private_directory_belongs_to_the_user_alone() {
        let (_work, work) = work();
        let opened = Directory::open(&work).unwrap();
        let uid = geteuid().as_raw();
        let private = || opened.private("own".as_ref(), uid);
        assert_eq!(private().unwrap_err().kind(), ErrorKind::NotFound);
        opened.create("own".as_ref()).unwrap();
        private().unwrap();
        let mode = |mode| {
            fs::set_permissions(work.join("own"), Permissions::from_mode(mode)).unwrap();
        };
        mode(0o710);
        assert!(private().unwrap_err().to_string().contains("must be 0700"));
        mode(0o600);
        assert_eq!(private().unwrap().stat().unwrap().mode() & 0o7777, 0o700);
        assert!(opened.private("own".as_ref(), uid + 1).is_err());
        let proc = Directory::open(Path::new("/")).unwrap().private("proc".as_ref(), 0);
        assert_eq!(Errno::from_io_error(&proc.unwrap_err()), Some(Errno::XDEV));
    }

    #[test]
    fn open_to_owner_adds_permissions_for_the_owner_only() {
        let (_work, work) = work();
        let opened = Directory::open(&work).unwrap();
        opened.create("a".as_ref()).unwrap();
        for (before, after) in [(0o600, 0o700), (0, 0o700), (0o1155, 0o1755), (0o700, 0o700)] {
            fs::set_permissions(work.join("a"), Permissions::from_mode(before)).unwrap();
            opened.below("a".as_ref()).unwrap().open_to_owner().unwrap();
            let mode = fs::metadata(work.join("a")).unwrap().mode() & 0o7777;
            assert_eq!(mode, after, "{before:o}");
        }
        fs::set_permissions(work.join("a"), Permissions::from_mode(0o775)).unwrap();
        opened.below("a".as_ref()).unwrap().close_to_others().unwrap();
        assert_eq!(fs::metadata(work.join("a")).unwrap().mode() & 0o7777, 0o700);
    }

    /// The link leads to a name that another user replaces after it was checked.
    #[test]
    fn a_link_to_a_link_of_another_user_is_not_written_through() {
        let (_work, work) = work();
        let open = work.join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        fs::write(work.join("dear"), "").unwrap();
        symlink("open/middle", work.join("own")).unwrap();
        symlink("../dear", open.join("middle")).unwrap();
        let append = || Directory::open(&work).unwrap().append("own".as_ref()).unwrap();
        assert!(matches!(append(), Appended::Opened(_)), "the user's own");
        if lchown(open.join("middle"), Some(5), None).is_err() {
            return println!("SKIPPED in part: needs root");
        }
        assert!(matches!(append(), Appended::Planted));
    }
}
