//! Path resolution, one component at a time.
//!
//! The owner of a directory in a path can replace the components below it at any time: with a link
//! to another user's files, or with a FUSE file system that answers anything, or never. So the walk
//! opens each component in the directory that it opened before, and checks what it has opened, not
//! the name. Opening with O_PATH sends no request to the file system of the file, only to that of
//! its parent directory, which is already checked.
//!
//! A link of another user can lead to any directory where this user may write. Invariants: root
//! follows none, and enters no FUSE file system of another user. Other users follow none in a
//! world-writable directory. Elsewhere they follow one only to a directory that the owner of the
//! link owns, or that others may write to: it gives that owner nothing that they do not have. At a
//! mount point, where fusermount checks the directory, they follow none of another user.
//!
//! The walk also finds what other users could replace, for files that archfs executes or whose
//! names it chooses: a user who can rename a directory can replace everything below it. A
//! world-writable directory is safe only with the sticky bit, and then only for files that belong
//! to the user, to root or to the owner of `/`. The same holds for a directory that a group may
//! write to, unless the group has no member other than this user or root.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fd::AsFd;
use rustix::fs::{CWD, Mode, OFlags, fstatfs, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::mountinfo::{self, MountEntry};
use super::trust;

/// Maximum number of symbolic links to follow, as in the kernel (path_resolution(7)).
pub(super) const LINKS_MAX: usize = 40;

/// PROC_SUPER_MAGIC in linux/magic.h.
const PROC: u64 = 0x9fa0;

const FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// What the last component of a path must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Anything. What is mounted there is not touched, because its daemon may not answer. May be
    /// missing, unless a link points to it.
    MountPoint,
    /// A file of any kind.
    File,
    /// A directory, which the walk enters.
    Directory,
}

/// Whether to follow symbolic links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// As the module says.
    Checked,
    /// The path has none. If it has one now, another process has replaced a directory.
    Refused,
}

/// Why a path cannot be resolved. Each names a prefix of the path.
#[derive(Debug)]
pub(crate) enum Refusal {
    Missing(PathBuf),
    System(PathBuf, Errno),
    /// A symbolic link of another user, whose uid this is.
    Link(PathBuf, u32),
    /// A FUSE file system of another user.
    Served(PathBuf, Box<MountEntry>),
}

impl Refusal {
    fn path(self) -> PathBuf {
        match self {
            Self::Missing(path)
            | Self::System(path, _)
            | Self::Link(path, _)
            | Self::Served(path, _) => path,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(_) => write!(f, "{}", io::Error::from(Errno::NOENT)),
            Self::System(_, error) => write!(f, "{}", io::Error::from(*error)),
            Self::Link(path, uid) => {
                write!(f, "{} is a symbolic link of another user (uid {uid})", path.display())
            }
            Self::Served(path, entry) => {
                let user = entry.owner().map_or("another user".into(), |uid| format!("uid {uid}"));
                let (path, kind) = (path.display(), &entry.kind);
                write!(f, "{path} is a FUSE file system of {user} ({kind})")
            }
        }
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Missing(_) => Errno::NOENT.into(),
            Refusal::System(_, error) => error.into(),
            rule => Self::new(ErrorKind::PermissionDenied, rule.to_string()),
        }
    }
}

/// Resolves the path of a mount point to an absolute path without symbolic links.
pub(crate) fn resolve_mount_point(path: &Path) -> Result<PathBuf, Refusal> {
    let current = || std::env::current_dir().map_err(|error| system(Path::new("."), &error));
    let whole = if path.is_absolute() { path.to_owned() } else { current()?.join(path) };
    let mut walk = Walk::new(&whole, Target::MountPoint, Links::Checked)?;
    walk.run(whole)?;
    Ok(walk.path)
}

/// The first file, directory or link on the way to `path` that a user other than this one and root
/// can change or replace; `None` if there is none. Missing components do not count.
pub(crate) fn first_untrusted(path: &Path) -> Option<PathBuf> {
    let mut walk = match Walk::new(path, Target::File, Links::Checked) {
        Ok(walk) => walk,
        Err(refusal) => return Some(refusal.path()),
    };
    let refused = match walk.run(path.to_owned()) {
        Ok(()) | Err(Refusal::Missing(_)) => None,
        Err(refusal) => Some(refusal.path()),
    };
    walk.untrusted.or(refused)
}

/// A walk along a path, and where it is.
pub(super) struct Walk {
    target: Target,
    links: Links,
    /// Whether this user is root, outside of user namespaces.
    is_root: bool,
    /// The path walked so far, without symbolic links.
    pub(super) path: PathBuf,
    pub(super) directory: File,
    pub(super) metadata: Metadata,
    /// The id of the mount that the directory is on.
    mount: u64,
    /// The first part that other users can replace.
    pub(super) untrusted: Option<PathBuf>,
    /// The first link of another user that was followed, and its owner.
    led_by: Option<(PathBuf, u32)>,
}

enum Step {
    /// A directory, which the walk has entered.
    Entered,
    End,
    /// A symbolic link, with its target.
    Link(PathBuf),
}

impl Walk {
    /// Begins at the root directory, or at the working directory if `path` is relative.
    pub(super) fn new(path: &Path, target: Target, links: Links) -> Result<Self, Refusal> {
        let (start, untrusted) = match path.is_absolute() {
            true => (PathBuf::from("/"), None),
            // The working directory is open already, but what is in it may be replaced.
            false => {
                let current = std::env::current_dir().unwrap_or_else(|_| ".".into());
                let untrusted = current.is_absolute().then(|| first_untrusted(&current)).flatten();
                (current, untrusted)
            }
        };
        let from = if path.is_absolute() { "/" } else { "." };
        let directory = openat(CWD, from, FLAGS | OFlags::DIRECTORY, Mode::empty());
        let directory = File::from(directory.map_err(|error| Refusal::System(from.into(), error))?);
        let metadata = directory.metadata().map_err(|error| system(&start, &error))?;
        let mount = mount_of(&directory)?;
        let is_root =
            geteuid().is_root() && (target == Target::MountPoint || !trust::is_in_user_namespace());
        let led_by = None;
        Ok(Self {
            target,
            links,
            is_root,
            path: start,
            directory,
            metadata,
            mount,
            untrusted,
            led_by,
        })
    }

    pub(super) fn run(&mut self, path: PathBuf) -> Result<(), Refusal> {
        // The parts that remain to be walked, the next one last.
        let mut remaining = vec![path];
        let mut links = 0;
        let mut must_exist = false;
        while let Some(part) = remaining.pop() {
            let mut components = part.components();
            let Some(first) = components.next() else {
                continue;
            };
            let rest = components.as_path().to_owned();
            let is_last =
                rest == Path::new("") && remaining.iter().all(|part| part == Path::new(""));
            remaining.push(rest);
            match first {
                Component::RootDir | Component::Prefix(_) => self.restart()?,
                Component::CurDir => {}
                Component::ParentDir => self.up()?,
                Component::Normal(name) => match self.step(name, is_last, must_exist)? {
                    Step::Entered => {}
                    Step::End => return Ok(()),
                    Step::Link(target) => {
                        links += 1;
                        must_exist |= is_last;
                        if links > LINKS_MAX {
                            return Err(Refusal::System(self.path.join(name), Errno::LOOP));
                        }
                        remaining.push(target);
                    }
                },
            }
        }
        match self.led_by.take() {
            Some((link, owner))
                if self.target == Target::Directory
                    && self.metadata.uid() != owner
                    && !trust::may_others_write(&self.metadata) =>
            {
                Err(Refusal::Link(link, owner))
            }
            _ => Ok(()),
        }
    }

    fn restart(&mut self) -> Result<(), Refusal> {
        self.path = "/".into();
        self.enter(openat(CWD, "/", FLAGS, Mode::empty()).map(File::from))
    }

    fn up(&mut self) -> Result<(), Refusal> {
        self.path.pop();
        self.enter(openat(&self.directory, "..", FLAGS, Mode::empty()).map(File::from))
    }

    /// Enters the directory `opened`, whose path is `self.path`.
    fn enter(&mut self, opened: rustix::io::Result<File>) -> Result<(), Refusal> {
        let opened = opened.map_err(|error| Refusal::System(self.path.clone(), error))?;
        let (mount, path) = (mount_of(&opened)?, self.path.clone());
        self.check_server(mount, &path)?;
        self.metadata = opened.metadata().map_err(|error| system(&path, &error))?;
        (self.directory, self.mount) = (opened, mount);
        Ok(())
    }

    fn step(&mut self, name: &OsStr, is_last: bool, must_exist: bool) -> Result<Step, Refusal> {
        let next = self.path.join(name);
        let failed = |error| Refusal::System(next.clone(), error);
        let open = |flags| {
            let flags = FLAGS | OFlags::NOFOLLOW | flags;
            openat(&self.directory, name, flags, Mode::empty()).map(File::from)
        };
        let is_end = is_last && self.target != Target::Directory;
        // O_DIRECTORY makes the kernel resolve an automount trigger.
        let opened = match open(if is_end { OFlags::empty() } else { OFlags::DIRECTORY }) {
            Err(Errno::NOTDIR | Errno::LOOP) if !is_end => open(OFlags::empty()),
            opened => opened,
        };
        let opened = match opened {
            Err(Errno::NOENT) if is_end && self.target == Target::MountPoint && !must_exist => {
                self.path = next;
                return Ok(Step::End);
            }
            Err(Errno::NOENT) if !must_exist || self.target != Target::MountPoint => {
                return Err(Refusal::Missing(next));
            }
            opened => opened.map_err(failed)?,
        };
        let mount = mount_of(&opened)?;
        // A mount point is never a link, and its file system may not answer.
        if mount != self.mount && is_end && self.target == Target::MountPoint {
            self.path = next;
            return Ok(Step::End);
        }
        self.check_server(mount, &next)?;
        let found = opened.metadata().map_err(|error| system(&next, &error))?;
        let is_sticky = found.is_dir() && found.mode() & 0o1000 != 0;
        if self.untrusted.is_none()
            && (!trust::is_trusted(&found)
                || (!found.is_symlink() && !is_sticky && trust::may_others_write(&found)))
        {
            self.untrusted = Some(next.clone());
        }
        if found.is_symlink() {
            self.check_link(&next, &found, is_end)?;
            // A link to an open file has no path that leads there.
            if self.target == Target::Directory && is_on_proc(&self.directory) {
                let flags = FLAGS | OFlags::DIRECTORY;
                let opened = openat(&self.directory, name, flags, Mode::empty()).map(File::from);
                self.path = next;
                return self.enter(opened).map(|()| Step::Entered);
            }
            let target = readlinkat(&opened, "", Vec::new()).map_err(failed)?;
            return Ok(Step::Link(OsString::from_vec(target.into_bytes()).into()));
        }
        if !is_end && !found.is_dir() {
            return Err(failed(Errno::NOTDIR));
        }
        self.path = next;
        if is_end {
            return Ok(Step::End);
        }
        (self.directory, self.metadata, self.mount) = (opened, found, mount);
        Ok(Step::Entered)
    }

    fn check_link(&mut self, path: &Path, link: &Metadata, is_end: bool) -> Result<(), Refusal> {
        if self.links == Links::Refused {
            return Err(Refusal::System(path.to_owned(), Errno::LOOP));
        }
        if trust::is_trusted(link) {
            return Ok(());
        }
        let owner = link.uid();
        let is_of_a_second_user = self.target == Target::Directory
            && self.led_by.as_ref().is_some_and(|(_, first)| *first != owner);
        if self.is_root
            || self.metadata.mode() & 0o002 != 0
            || (is_end && self.target == Target::MountPoint)
            || is_of_a_second_user
        {
            return Err(Refusal::Link(path.to_owned(), owner));
        }
        // In a user namespace, it may as well be root's.
        if !trust::is_unmapped(owner) {
            self.led_by.get_or_insert((path.to_owned(), owner));
        }
        Ok(())
    }

    /// Checks who serves the mount that the walk is about to enter at `path`.
    fn check_server(&mut self, mount: u64, path: &Path) -> Result<(), Refusal> {
        if mount == self.mount {
            return Ok(());
        }
        let entry = mountinfo::find(|entry| entry.id == mount);
        let entry = entry.map_err(|_| Refusal::System(path.to_owned(), Errno::IO))?;
        match entry.filter(trust::is_of_another) {
            Some(entry) if self.is_root => Err(Refusal::Served(path.to_owned(), Box::new(entry))),
            Some(_) => {
                self.untrusted.get_or_insert_with(|| path.to_owned());
                Ok(())
            }
            None => Ok(()),
        }
    }
}

fn mount_of(file: &File) -> Result<u64, Refusal> {
    mount_number(file).map_err(|error| system(Path::new("/proc/self/fdinfo"), &error))
}

/// What tells the mount of `file` from others: its id or, without /proc or on a kernel that does
/// not show ids, such as gVisor, the number of its device.
pub(super) fn mount_number(file: &File) -> io::Result<u64> {
    match mountinfo::id_of(file.as_fd()) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => {
            Ok(file.metadata()?.dev())
        }
        id => id,
    }
}

/// Whether `directory` is on procfs, whose links only the kernel can follow.
pub(super) fn is_on_proc(directory: impl AsFd) -> bool {
    fstatfs(directory).is_ok_and(|found| found.f_type as u64 == PROC)
}

fn system(path: &Path, error: &io::Error) -> Refusal {
    Refusal::System(path.to_owned(), Errno::from_io_error(error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;

    #[test]
    fn the_users_own_files_are_trusted() {
        let work = tempfile::tempdir().unwrap();
        let directory = fs::canonicalize(work.path()).unwrap().join("a/b");
        assert_eq!(first_untrusted(&directory), None, "what is not there yet");
        fs::create_dir_all(&directory).unwrap();
        assert_eq!(first_untrusted(&directory), None);
        assert_eq!(first_untrusted(&directory.join("../../a/./b")), None);
        symlink("b", directory.with_file_name("link")).unwrap();
        assert_eq!(first_untrusted(&directory.with_file_name("link")), None);
        symlink("round", directory.join("round")).unwrap();
        assert_eq!(first_untrusted(&directory.join("round")), Some(directory.join("round")));
    }

    #[test]
    fn a_world_writable_directory_anywhere_on_the_way_is_untrusted() {
        let work = tempfile::tempdir().unwrap();
        let open = fs::canonicalize(work.path()).unwrap().join("open");
        let within = open.join("mine/file");
        fs::create_dir_all(open.join("mine")).unwrap();
        fs::write(&within, "").unwrap();
        symlink(&within, work.path().join("link")).unwrap();
        // A new directory has the user's own group; a group with other members is tested below.
        for (mode, untrusted) in [(0o755, None), (0o1777, None), (0o777, Some(open.clone()))] {
            fs::set_permissions(&open, Permissions::from_mode(mode)).unwrap();
            for path in [&within, &work.path().join("link"), &open.join("mine/../mine")] {
                assert_eq!(first_untrusted(path), untrusted, "{mode:o} {}", path.display());
            }
        }
    }

    #[test]
    fn a_directory_of_a_group_with_members_is_untrusted() {
        let work = tempfile::tempdir().unwrap();
        let directory = fs::canonicalize(work.path()).unwrap().join("directory");
        fs::create_dir(&directory).unwrap();
        if !geteuid().is_root() || chown(&directory, None, Some(12_345)).is_err() {
            return println!("SKIPPED: needs root");
        }
        for (mode, untrusted) in [(0o755, None), (0o1775, None), (0o775, Some(directory.clone()))] {
            fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
            assert_eq!(first_untrusted(&directory.join("file")), untrusted, "{mode:o}");
        }
        chown(&directory, None, Some(0)).unwrap();
        assert_eq!(first_untrusted(&directory.join("file")), None, "root's group");
    }

    #[test]
    fn files_of_other_users_are_untrusted() {
        if !geteuid().is_root() {
            return println!("SKIPPED: needs root");
        }
        let work = tempfile::tempdir().unwrap();
        let work = fs::canonicalize(work.path()).unwrap();
        let (directory, link) = (work.join("directory"), work.join("link"));
        fs::create_dir(&directory).unwrap();
        symlink("directory", &link).unwrap();
        lchown(&link, Some(5), None).unwrap();
        assert_eq!(first_untrusted(&link.join("file")), Some(link));
        chown(&directory, Some(5), None).unwrap();
        assert_eq!(first_untrusted(&directory.join("file")), Some(directory));
    }
}
