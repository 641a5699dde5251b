//! A directory on a disk as a source, and the attributes of its files. `table` reads their bytes.
//!
//! Invariants: symbolic links below the directory and at the end of a path are never followed. The
//! archive that is being written is not found.

use std::ffi::{CStr, CString, NulError};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, lgetxattr, llistxattr, major, minor,
    openat, readlinkat, statat,
};
use rustix::io::Errno;

use super::placing::{
    Directory, FileId, Found, FoundKind, Listed, Source, XattrRule, display_path,
};
use super::selection::Wanted;
use crate::error::{Error, Kind, Result};
use crate::os::directory::parent_of;
use crate::os::thread_directory::ThreadDirectory;
use crate::pack::catalog::{Meta, Xattrs};
use crate::pack::{output, shards};
use crate::vfs::{FileKind, Timestamp};

/// What happens to directories on which another file system is mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherMounts {
    /// They are packed with their contents.
    #[default]
    Enter,
    /// They are packed as empty directories.
    Skip,
}

/// The archive that is being written, which is not packed into itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OutputArchive {
    /// The directory that it will be in.
    directory: FileId,
    name: Vec<u8>,
    names: OutputNames,
}

/// Which names a run creates in the directory of the archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputNames {
    /// Only that of the archive.
    #[default]
    One,
    /// Those of the shards and their class list, but not that of the archive itself.
    Shards,
}

impl OutputArchive {
    /// The archive that will be at `path`; `None` if its directory does not exist.
    pub(super) fn new(path: &Path, names: OutputNames) -> Option<Self> {
        use std::os::unix::ffi::OsStrExt;
        let stat = rustix::fs::stat(parent_of(path)).ok()?;
        let name = path.file_name()?.as_bytes().to_vec();
        Some(Self { directory: file_id(&stat), name, names })
    }

    /// Whether `name` in `directory` is the archive or a temporary file of a run.
    pub(super) fn matches(&self, directory: FileId, name: &[u8]) -> bool {
        let is_archive = || match self.names {
            OutputNames::One => self.name == name,
            OutputNames::Shards => shards::is_shard(&self.name, name),
        };
        self.directory == directory && (name.starts_with(output::PREFIX.as_bytes()) || is_archive())
    }
}

pub(super) struct DiskDirectory<'f> {
    base: OwnedFd,
    /// Its path as the user gave it, for messages.
    display: Vec<u8>,
    id: FileId,
    other_mounts: OtherMounts,
    xattr_rule: XattrRule,
    output_archive: Option<&'f OutputArchive>,
}

impl<'f> DiskDirectory<'f> {
    /// Opens the directory at `path`, which may be a symbolic link to one.
    pub(super) fn open(
        path: &Path,
        other_mounts: OtherMounts,
        xattr_rule: XattrRule,
        output_archive: Option<&'f OutputArchive>,
    ) -> Result<(Self, Found)> {
        use std::os::unix::ffi::OsStrExt;
        let failed =
            |error: Errno| Error::io(format!("{}: cannot open", path.display()), error.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
        let id = file_id(&fstat(&base).map_err(failed)?);
        let found = examine(&OpenDirectory::new(base.as_fd(), xattr_rule), b".", xattr_rule)
            .map_err(|error| error.within(path.display()))?;
        let display = path.as_os_str().as_bytes().to_vec();
        Ok((Self { base, display, id, other_mounts, xattr_rule, output_archive }, found))
    }

    /// The open directory, and its path as the user gave it.
    pub(super) fn into_base(self) -> (OwnedFd, Vec<u8>) {
        (self.base, self.display)
    }

    fn open_directory(&self, directory: &Directory) -> Result<OwnedFd> {
        let failed = |error| Error::io("cannot list the directory", error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = open_below(self.base.as_fd(), &directory.path, flags).map_err(failed)?;
        let stat = fstat(&opened).map_err(|error| failed(error.into()))?;
        if file_id(&stat) != directory.id {
            return Err(Error::new(
                Kind::Changed,
                "replaced by another directory while it was listed",
            ));
        }
        Ok(opened)
    }

    fn examine_one(
        &self,
        parent: &OpenDirectory<'_>,
        directory: &Directory,
        listed: &Listed,
    ) -> Result<Option<Found>> {
        if self
            .output_archive
            .is_some_and(|output_archive| output_archive.matches(directory.id, &listed.name))
        {
            return Ok(None);
        }
        let found = examine(parent, &listed.name, self.xattr_rule);
        let mut found = found.map_err(|error| match (error.kind(), &directory.wanted) {
            (Kind::Changed, Wanted::Only(_)) => Error::new(Kind::NotFound, "no such file"),
            _ => error,
        })?;
        if let FoundKind::Directory { entered } = &mut found.kind {
            *entered = self.other_mounts == OtherMounts::Enter || found.id.device == self.id.device;
        }
        Ok(Some(found))
    }
}

impl Source for DiskDirectory<'_> {
    fn names(&self, directory: &Directory) -> Result<Vec<Listed>> {
        let failed = |error: Errno| Error::io("cannot list the directory", error.into());
        let opened = self.open_directory(directory)?;
        let mut names = Vec::new();
        for entry in Dir::new(opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(Listed { name: name.into(), number: None });
            }
        }
        Ok(names)
    }

    fn examine(&self, directory: &Directory, names: &[Listed]) -> Vec<Result<Option<Found>>> {
        match self.open_directory(directory) {
            Ok(opened) => {
                let parent = OpenDirectory::new(opened.as_fd(), self.xattr_rule);
                names.iter().map(|name| self.examine_one(&parent, directory, name)).collect()
            }
            Err(error) => names.iter().map(|_| Err(error.copy())).collect(),
        }
    }

    fn origin(&self, path: &[u8]) -> String {
        display_path(&self.display, path)
    }
}

/// Bytes of a path that are passed to the kernel at once (PATH_MAX is 4096 with the NUL).
const PATH_BYTES: usize = 4000;

/// Smallest file that is checked for holes, bytes. Some file systems store smaller files in their
/// metadata, where they take no blocks and look sparse.
const HOLE_MIN: u64 = 4096;

/// The largest list of names and the largest value of extended attributes, bytes (Linux:
/// XATTR_LIST_MAX, XATTR_SIZE_MAX).
const XATTR_MAX: usize = 64 << 10;

/// Attributes in which Lustre keeps layouts and links (XATTR_NAME_* in lustre_idl.h).
const LUSTRE_TRUSTED: [&[u8]; 9] = [
    b"trusted.dmv",
    b"trusted.fid",
    b"trusted.hsm",
    b"trusted.link",
    b"trusted.lma",
    b"trusted.lmv",
    b"trusted.lov",
    b"trusted.som",
    b"trusted.version",
];

/// Opens `path` below `base`, or `base` itself if `path` is empty.
pub(super) fn open_below(base: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let (mut rest, mut base_below) = (path, None::<OwnedFd>);
    while rest.len() > PATH_BYTES {
        // Too long for one call: open a directory in between.
        let head = rest.get(..PATH_BYTES).unwrap_or(rest);
        let cut = head.iter().rposition(|&byte| byte == b'/').ok_or(Errno::NAMETOOLONG)?;
        let from = base_below.as_ref().map_or(base, AsFd::as_fd);
        let flags_between = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        base_below = Some(openat(from, &rest[..cut], flags_between, Mode::empty())?);
        rest = &rest[cut + 1..];
    }
    let from = base_below.as_ref().map_or(base, AsFd::as_fd);
    let path = if rest.is_empty() { b"." } else { rest };
    Ok(openat(from, path, flags, Mode::empty())?)
}

/// An open directory whose files are examined.
pub(super) struct OpenDirectory<'d> {
    directory: BorrowedFd<'d>,
    entered: Option<ThreadDirectory>,
}

impl<'d> OpenDirectory<'d> {
    pub(super) fn new(directory: BorrowedFd<'d>, xattr_rule: XattrRule) -> Self {
        let is_entered = xattr_rule == XattrRule::Pack;
        let entered = is_entered.then(|| ThreadDirectory::enter(directory)).flatten();
        Self { directory, entered }
    }

    /// The path of `name` for a call that takes no directory. Linux has such calls for extended
    /// attributes only since 6.13.
    fn path(&self, name: &[u8]) -> std::result::Result<CString, NulError> {
        if self.entered.is_some() {
            return CString::new(name);
        }
        let mut path = format!("/proc/self/fd/{}/", self.directory.as_raw_fd()).into_bytes();
        path.extend_from_slice(name);
        CString::new(path)
    }
}

pub(super) fn examine(
    parent: &OpenDirectory<'_>,
    name: &[u8],
    xattr_rule: XattrRule,
) -> Result<Found> {
    let directory = parent.directory;
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| match error {
        Errno::NOENT => Error::new(Kind::Changed, "removed while its directory was listed"),
        error => Error::io("cannot read the attributes", error.into()),
    })?;
    let mut found = of(&stat);
    if let FoundKind::Symlink(target) = &mut found.kind {
        let link = readlinkat(directory, name, Vec::new());
        let link =
            link.map_err(|error| Error::io("cannot read the target of the link", error.into()))?;
        *target = link.into_bytes().into();
    }
    if xattr_rule == XattrRule::Pack {
        found.xattrs = xattrs(parent, name)?;
    }
    Ok(found)
}

/// What stat(2) reports: everything except link targets and extended attributes.
pub(super) fn of(stat: &Stat) -> Found {
    let size = stat.st_size as u64;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => FoundKind::Directory { entered: true },
        FileType::Symlink => FoundKind::Symlink(Box::default()),
        FileType::BlockDevice => {
            FoundKind::Device { kind: FileKind::BlockDevice, number: device(stat.st_rdev) }
        }
        FileType::CharacterDevice => {
            FoundKind::Device { kind: FileKind::CharDevice, number: device(stat.st_rdev) }
        }
        FileType::Fifo => FoundKind::Fifo,
        FileType::Socket => FoundKind::Socket,
        FileType::RegularFile | FileType::Unknown => {
            let sparse = size >= HOLE_MIN && (stat.st_blocks as u64).saturating_mul(512) < size;
            FoundKind::File { size, sparse }
        }
    };
    Found {
        id: file_id(stat),
        linked: stat.st_nlink > 1,
        meta: Meta {
            permissions: (stat.st_mode & 0o7777) as u16,
            uid: stat.st_uid,
            gid: stat.st_gid,
            modified: modified(stat),
            xattrs: None,
        },
        xattrs: Xattrs::new(),
        kind,
    }
}

pub(super) fn file_id(stat: &Stat) -> FileId {
    FileId { device: stat.st_dev, number: stat.st_ino }
}

pub(super) fn modified(stat: &Stat) -> Timestamp {
    Timestamp { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 }
}

/// A device number in the kernel's 32-bit encoding (new_encode_dev in linux/kdev_t.h).
fn device(number: u64) -> u32 {
    let (major, minor) = (major(number), minor(number));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

fn xattrs(parent: &OpenDirectory<'_>, name: &[u8]) -> Result<Xattrs> {
    let failed = |error: Errno| Error::io("cannot read the extended attributes", error.into());
    let path = parent.path(name).map_err(|_| failed(Errno::INVAL))?;
    let names = match listed(&path) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP) => return Ok(Xattrs::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut set = Xattrs::new();
    let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    for name in names.filter(|name| !describes_storage(name)) {
        match value(&path, name) {
            Ok(value) => set.push((name.to_vec(), value)),
            // Removed since, or listed but not readable for this user.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(set)
}

/// Whether the extended attribute `name` says where Lustre stores the file: on which servers, in
/// which objects. Its value differs for every file and means nothing in an archive.
fn describes_storage(name: &[u8]) -> bool {
    name.starts_with(b"lustre.") || LUSTRE_TRUSTED.contains(&name)
}

/// The names of the extended attributes of a file, each followed by a NUL.
fn listed(path: &CStr) -> rustix::io::Result<Vec<u8>> {
    // Nearly all files have none or a few.
    let mut short = [0_u8; 256];
    match llistxattr(path, &mut short) {
        Ok(len) => Ok(short[..len].to_vec()),
        Err(Errno::RANGE) => {
            let mut names = vec![0; XATTR_MAX];
            let len = llistxattr(path, names.as_mut_slice())?;
            names.truncate(len);
            Ok(names)
        }
        Err(error) => Err(error),
    }
}

fn value(path: &CStr, name: &[u8]) -> rustix::io::Result<Vec<u8>> {
    let mut short = [0_u8; 256];
    match lgetxattr(path, name, &mut short) {
        Ok(len) => Ok(short[..len].to_vec()),
        Err(Errno::RANGE) => {
            let mut value = vec![0; XATTR_MAX];
            let len = lgetxattr(path, name, value.as_mut_slice())?;
            value.truncate(len);
            Ok(value)
        }
        Err(error) => Err(error),
    }
}
