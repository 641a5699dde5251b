//! Opens the file of an archive, and says which version of which file it is.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use jiff::fmt::rfc2822;
use rustix::fd::AsRawFd;
use rustix::fs::{Advice, FileType, OFlags, fadvise, fstatfs};
use rustix::process::{getegid, geteuid};
use xxhash_rust::xxh3::xxh3_128;

use crate::error::{Error, Kind, Result};
use crate::os::trust;
use crate::remote::{self, RemoteFile, Version};
use crate::units::quoted;
use crate::url;

/// Identifies one version of a file, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Size in bytes.
    pub len: u64,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// Device number and inode number; of an archive at a URL, 0 and a hash of what it is there.
    pub inode: (u64, u64),
    /// Owner (uid).
    pub owner: u32,
    /// Type and permissions (st_mode).
    pub mode: u32,
}

impl Identity {
    /// Whether it is a regular file.
    pub(super) fn is_regular(&self) -> bool {
        FileType::from_raw_mode(self.mode).is_file()
    }

    /// Whether it may be another version of `other`: same inode, owner and type.
    pub(super) fn is_file_of(&self, other: &Self) -> bool {
        let file = |one: &Self| (one.inode, one.owner, FileType::from_raw_mode(one.mode));
        file(self) == file(other)
    }
}

/// Distinguishes a file from a copy of it, together with inode and owner. Unlike `Identity` it
/// changes when the file is linked or renamed, because no user can set the change time (inode(7),
/// ctime).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The file system's type (statfs(2), f_type). The device number would not do: nodes that mount
    /// the same file system assign different ones.
    pub file_system: u64,
    /// Change time: seconds since 1970 and nanoseconds. Of an archive at a URL, a hash of the
    /// version that its server names.
    pub changed: (i64, u32),
    /// Group (gid).
    pub group: u32,
    /// How well `changed` and the modification time tell versions apart.
    pub validator: Validator,
}

/// What tells one version of an archive from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validator {
    /// Nothing: the server names no version.
    None,
    /// A time in whole seconds, or an ETag that is marked as weak (RFC 9110, section 8.8).
    Weak,
    /// The change time of a file, or an ETag.
    #[default]
    Strong,
}

impl Origin {
    /// Whether the file system is served by a user process, which then controls the owners of its
    /// files.
    pub fn is_served_by_process(&self) -> bool {
        self.file_system == trust::FUSE
    }
}

/// The identity of `file`, which has `len` bytes.
pub(super) fn identified(file: &File, len: u64) -> io::Result<(Identity, Origin)> {
    let metadata = file.metadata()?;
    let nanoseconds = |number: i64| u32::try_from(number).unwrap_or(0);
    let identity = Identity {
        len,
        modified: (metadata.mtime(), nanoseconds(metadata.mtime_nsec())),
        inode: (metadata.dev(), metadata.ino()),
        owner: metadata.uid(),
        mode: metadata.mode(),
    };
    let origin = Origin {
        // The width of this number depends on the architecture.
        file_system: fstatfs(file)?.f_type as u64,
        changed: (metadata.ctime(), nanoseconds(metadata.ctime_nsec())),
        group: metadata.gid(),
        validator: Validator::Strong,
    };
    Ok((identity, origin))
}

/// What `Origin::file_system` is for an archive at a URL. No file system has this number.
const REMOTE: u64 = u64::from_be_bytes(*b"archfsUR");

/// The identity of `file`, which is at the URL with the name `path`. It belongs to the user who
/// reads it, because the server is the one that the user named.
pub(super) fn identified_remote(path: &Path, file: &RemoteFile) -> (Identity, Origin) {
    let version = file.version();
    let hash = |bytes: &[u8]| xxh3_128(bytes) as u64;
    let etag = version.etag.as_deref().unwrap_or_default();
    let modified = modified_at(version);
    let validator = match version {
        Version { etag: None, .. } if modified.is_none() => Validator::None,
        Version { etag: Some(etag), .. } if !etag.starts_with("W/") => Validator::Strong,
        _ => Validator::Weak,
    };
    let identity = Identity {
        len: file.len(),
        modified: (modified.unwrap_or(0), 0),
        inode: (0, hash(&remote::lasting_identity(&url::text(path)))),
        owner: geteuid().as_raw(),
        mode: FileType::RegularFile.as_raw_mode() | 0o600,
    };
    let changed = (hash(etag.as_bytes()).cast_signed(), 0);
    let group = getegid().as_raw();
    (identity, Origin { file_system: REMOTE, changed, group, validator })
}

/// The time in Last-Modified, in seconds since 1970.
pub(super) fn modified_at(version: &Version) -> Option<i64> {
    let time = rfc2822::parse(version.modified.as_deref()?).ok()?;
    Some(time.timestamp().as_second())
}

/// Opens `file` once more, with advice that reads of it are random.
pub(super) fn open_random(file: &File) -> Option<File> {
    // Advice belongs to an open file and its duplicates, so a duplicate is not enough.
    let random = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    fadvise(&random, 0, None, Advice::Random).ok()?;
    Some(random)
}

/// Opens `path`, checks its kind and reads its identity.
pub(super) fn opened(path: &Path) -> Result<(File, Identity, Origin)> {
    let name = path.display();
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => missing(path),
        ErrorKind::PermissionDenied => {
            Error::io(format!("{name}: cannot open"), error).with_hint(format!(
                "to see which directory or file denies access: namei -l {}",
                quoted(path.display())
            ))
        }
        _ => Error::io(format!("{name}: cannot open"), error),
    };
    // Checked before opening, because opening a character device can have side effects.
    check_kind(path, fs::metadata(path).map_err(failed)?.file_type())?;
    // If a pipe has replaced the file since, a blocking open would wait for its writer.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut file =
        OpenOptions::new().read(true).custom_flags(nonblocking).open(path).map_err(failed)?;
    check_kind(path, file.metadata().map_err(failed)?.file_type())?;
    // The metadata of a block device has no size, so it is found by seeking to the end.
    let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let (identity, origin) = identified(&file, len).map_err(failed)?;
    Ok((file, identity, origin))
}

/// Fails unless a file of this kind can be an archive.
fn check_kind(path: &Path, kind: fs::FileType) -> Result<()> {
    let path = path.display();
    if kind.is_dir() {
        let context = format!("{path}: is a directory, not an archive");
        return Err(Error::new(Kind::IsADirectory, context)
            .with_hint("pack it first: archfs pack DIRECTORY data.sqfs"));
    }
    if kind.is_fifo() {
        let context = format!("{path}: a pipe; archfs needs a file");
        return Err(Error::new(Kind::Usage, context)
            .with_hint("save the output of the pipe to a file first"));
    }
    if !kind.is_file() && !kind.is_block_device() {
        let context = format!("{path}: neither a file nor a block device");
        return Err(Error::new(Kind::UnknownFormat, context));
    }
    Ok(())
}

/// How many names of a directory are compared with one that is missing.
const NAMES_COMPARED: usize = 10_000;

/// How similar two names are that are probably meant for each other, from 0 to 1.
const SIMILAR: f64 = 0.8;

/// The file in the directory of `path` whose name is the most similar one.
fn similar_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let entries = fs::read_dir(parent.unwrap_or(Path::new("."))).ok()?.take(NAMES_COMPARED);
    let files =
        entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()));
    let rated = files.filter_map(|entry| {
        let found =
            entry.file_name().into_string().ok().filter(|found| !is_sibling(name, found))?;
        let rating = strsim::normalized_damerau_levenshtein(name, &found);
        (rating >= SIMILAR).then(|| (rating, path.with_file_name(found).display().to_string()))
    });
    rated.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, similar)| similar)
}

/// Whether two names differ only in numbers, as those of shards do.
fn is_sibling(one: &str, other: &str) -> bool {
    let without_digits =
        |name: &str| -> String { name.chars().filter(|c| !c.is_ascii_digit()).collect() };
    without_digits(one) == without_digits(other)
}

/// The archive and the directory in it that `ARCHIVE:/DIR` means, as some other programs write it.
fn inside_archive(path: &Path) -> Option<(String, String)> {
    let (archive, directory) = path.to_str()?.split_once(":/")?;
    (!directory.is_empty() && Path::new(archive).is_file())
        .then(|| (archive.to_owned(), directory.to_owned()))
}

/// The error for a missing file, with a hint if the name suggests the cause.
fn missing(path: &Path) -> Error {
    let error = Error::new(Kind::NotFound, format!("{}: no such file", path.display()));
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    // A path that was made absolute has a single slash after the scheme.
    let is_scheme = |part: &OsStr| {
        let part = part.as_encoded_bytes();
        let name = part.strip_suffix(b":").unwrap_or_default();
        name.len() > 1 && name.iter().all(u8::is_ascii_alphanumeric)
    };
    let scheme = path.iter().find(|part| is_scheme(part)).map(|part| part.display().to_string());
    let subdir = inside_archive(path);
    if let Some(scheme) = scheme {
        error.with_hint(match scheme.as_str() {
            "gs:" => "archfs reads https://, http:// and s3://; Google serves this as \
                      https://storage.googleapis.com/BUCKET/NAME"
                .to_owned(),
            "hf:" => "archfs reads https://, http:// and s3://; Hugging Face serves this as \
                      https://huggingface.co/datasets/OWNER/NAME/resolve/main/FILE"
                .to_owned(),
            "https:" | "http:" | "s3:" => format!("write two slashes: {scheme}//"),
            _ => format!("archfs reads https://, http:// and s3://, not {scheme}//"),
        })
    } else if let Some((archive, subdir)) = subdir {
        error.with_hint(format!("to mount a directory of the archive: --subdir {subdir} {archive}"))
    } else if let Some(similar) = similar_name(path) {
        error.with_hint(format!("a similar file exists: {similar}"))
    } else if name.iter().any(|byte| b"*?[".contains(byte)) {
        error.with_hint("check the pattern: no file matches it")
    } else {
        error
    }
}
