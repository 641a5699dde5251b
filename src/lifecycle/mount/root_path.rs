//! Path resolution for root.
//!
//! Invariant: root follows no symbolic link of another user, and sends no request to a FUSE file
//! system of another user.
//!
//! The owner of a directory in the path can replace the components below it at any time: with a
//! link to another user's mount, or with a FUSE file system that answers anything, or never. So
//! root walks one component at a time, and checks what it has opened, not the name. Opening with
//! O_PATH sends no request to the file system of the file, only to that of its parent directory,
//! which is already checked.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;

use crate::error::{Error, Kind};
use crate::os::mountinfo::{self, MountEntry};
use crate::os::trust;

/// The maximum number of symbolic links to follow, as in the kernel (path_resolution(7)).
const LINKS_MAX: usize = 40;

const FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Why a path cannot be resolved.
#[derive(Debug)]
pub(in crate::lifecycle) enum Refusal {
    /// This prefix of the path does not exist.
    NoDirectory(PathBuf),
    /// A system call failed for this prefix of the path.
    System(PathBuf, Errno),
    /// The path breaks the invariant of this module.
    Rule(Error),
}

/// Resolves `path` to an absolute path without symbolic links. Its last component need not exist,
/// unless a link points to it, and may be a mount point of any user.
pub(in crate::lifecycle) fn resolve(path: &Path) -> Result<PathBuf, Refusal> {
    let current = || std::env::current_dir().map_err(|error| system(Path::new("."), &error));
    let whole = if path.is_absolute() { path.to_owned() } else { current()?.join(path) };
    let root = openat(CWD, "/", FLAGS, Mode::empty())
        .map_err(|error| Refusal::System("/".into(), error))?;
    let mut walk = Walk { shown: path, path: "/".into(), mount: mount_of(&root)?, directory: root };
    // The parts that remain to be walked, the next one last.
    let mut remaining = vec![whole];
    let mut links = 0;
    let mut must_exist = false;
    while let Some(part) = remaining.pop() {
        let mut components = part.components();
        let Some(first) = components.next() else {
            continue;
        };
        let rest = components.as_path().to_owned();
        let is_last = rest == Path::new("") && remaining.iter().all(|part| part == Path::new(""));
        remaining.push(rest);
        match first {
            Component::RootDir | Component::Prefix(_) => walk.restart()?,
            Component::CurDir => {}
            Component::ParentDir => walk.up()?,
            Component::Normal(name) => match walk.step(name, is_last, must_exist)? {
                Found::Directory => {}
                Found::End(end) => return Ok(end),
                Found::Link(target) => {
                    links += 1;
                    must_exist |= is_last;
                    if links > LINKS_MAX {
                        return Err(Refusal::System(path.to_owned(), Errno::LOOP));
                    }
                    remaining.push(target);
                }
            },
        }
    }
    Ok(walk.path)
}

/// The result of walking one component.
enum Found {
    /// A directory, which the walk has entered.
    Directory,
    /// The last component, with its path.
    End(PathBuf),
    /// A symbolic link, with its target.
    Link(PathBuf),
}

struct Walk<'a> {
    /// The path as the user wrote it, for errors.
    shown: &'a Path,
    /// The path walked so far, without symbolic links.
    path: PathBuf,
    directory: OwnedFd,
    /// The mount id of the directory.
    mount: u64,
}

impl Walk<'_> {
    fn restart(&mut self) -> Result<(), Refusal> {
        self.path = "/".into();
        self.enter(openat(CWD, "/", FLAGS, Mode::empty()))
    }

    fn up(&mut self) -> Result<(), Refusal> {
        self.path.pop();
        self.enter(openat(&self.directory, "..", FLAGS, Mode::empty()))
    }

    /// Enters the directory `opened`, whose path is `self.path`.
    fn enter(&mut self, opened: rustix::io::Result<OwnedFd>) -> Result<(), Refusal> {
        let opened = opened.map_err(|error| Refusal::System(self.path.clone(), error))?;
        let mount = mount_of(&opened)?;
        if mount != self.mount
            && let Some(entry) = served_by_another(mount)?
        {
            return Err(self.refuse_foreign_fuse(&entry));
        }
        (self.directory, self.mount) = (opened, mount);
        Ok(())
    }

    fn step(&mut self, name: &OsStr, is_last: bool, must_exist: bool) -> Result<Found, Refusal> {
        let next = self.path.join(name);
        let failed = |error| Refusal::System(next.clone(), error);
        let open = |flags| openat(&self.directory, name, FLAGS | flags, Mode::empty());
        // O_DIRECTORY makes the kernel resolve an automount trigger.
        let opened = match open(if is_last { OFlags::empty() } else { OFlags::DIRECTORY }) {
            Err(Errno::NOTDIR | Errno::LOOP) if !is_last => open(OFlags::empty()),
            opened => opened,
        };
        let opened = match opened {
            Err(Errno::NOENT) if is_last && !must_exist => return Ok(Found::End(next)),
            Err(Errno::NOENT) if !is_last => return Err(Refusal::NoDirectory(next)),
            opened => opened.map_err(failed)?,
        };
        // A mount point is never a link, and its file system may not answer.
        if mount_of(&opened)? != self.mount {
            if is_last {
                return Ok(Found::End(next));
            }
            self.path = next;
            return self.enter(Ok(opened)).map(|()| Found::Directory);
        }
        let file = File::from(opened);
        let found = file.metadata().map_err(|error| system(&next, &error))?;
        let opened = OwnedFd::from(file);
        if !found.is_symlink() {
            if is_last {
                return Ok(Found::End(next));
            }
            if !found.is_dir() {
                return Err(failed(Errno::NOTDIR));
            }
            self.path = next;
            return self.enter(Ok(opened)).map(|()| Found::Directory);
        }
        if !trust::is_trusted(&found) {
            let path = self.shown.display();
            let context = match is_last && next.file_name() == self.shown.file_name() {
                true => format!("{path}: is a symbolic link of another user (uid {})", found.uid()),
                false => format!(
                    "{path}: {} is a symbolic link of another user (uid {})",
                    next.display(),
                    found.uid()
                ),
            };
            return Err(Refusal::Rule(Error::new(Kind::Busy, context).with_hint(
                "root does not follow links of other users; give the path without them",
            )));
        }
        let target = readlinkat(&opened, "", Vec::new()).map_err(failed)?;
        Ok(Found::Link(std::ffi::OsString::from_vec(target.into_bytes()).into()))
    }

    fn refuse_foreign_fuse(&self, entry: &MountEntry) -> Refusal {
        let user = entry.owner().map_or("another user".into(), |uid| format!("uid {uid}"));
        let context = format!(
            "{}: {} is a FUSE file system of {user} ({})",
            self.shown.display(),
            self.path.display(),
            entry.kind
        );
        Refusal::Rule(Error::new(Kind::Busy, context).with_hint("run archfs as that user"))
    }
}

fn mount_of(file: &OwnedFd) -> Result<u64, Refusal> {
    mountinfo::id_of(file.as_fd()).map_err(|error| system(Path::new("/proc/self/fdinfo"), &error))
}

/// The mount with this id, if another user serves it through FUSE.
fn served_by_another(mount: u64) -> Result<Option<MountEntry>, Refusal> {
    let entry = mountinfo::find(|entry| entry.id == mount).map_err(Refusal::Rule)?;
    Ok(entry.filter(|entry| entry.is_fuse() && entry.owner() != Some(0)))
}

fn system(path: &Path, error: &std::io::Error) -> Refusal {
    Refusal::System(path.to_owned(), Errno::from_io_error(error).unwrap_or(Errno::IO))
}
