//! Opens the file of an archive, and says what is wrong with a path that leads to none.

use std::ffi::OsStr;
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fd::AsRawFd;
use rustix::fs::{Advice, OFlags, fadvise};

use super::identity::{Identity, Origin, identified};
use crate::error::{Error, Kind, Result};

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
        ErrorKind::PermissionDenied => Error::io(format!("{name}: cannot open"), error)
            .with_hint("`namei -l PATH` shows which directory or file denies access"),
        _ => Error::io(format!("{name}: cannot open"), error),
    };
    // Checked before opening, because opening a character device can have side effects.
    check_kind(path, std::fs::metadata(path).map_err(failed)?.file_type())?;
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
fn check_kind(path: &Path, kind: FileType) -> Result<()> {
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
    if path.iter().any(is_scheme) {
        error.with_hint("of URLs, archfs reads https://, http:// and s3://")
    } else if name.iter().any(|byte| b"*?[".contains(byte)) {
        error.with_hint("check the pattern: no file matches it")
    } else {
        error
    }
}
