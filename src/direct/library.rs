//! The preloaded library as a file, and the environment variables that make a command load it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use xxhash_rust::xxh3::xxh3_64;

/// The library, which build.rs compiles. Empty if it does not support the CPU architecture.
const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/direct.so"));

/// The start of the file name; a digest of the library follows. So programs of different versions
/// each have their own.
const PREFIX: &str = "direct-";

/// Names the libraries to load first (ld.so(8)).
const PRELOAD: &str = "LD_PRELOAD";

/// Names the mounts that the library serves. The format is in `library.c`.
const MOUNTS: &str = "ARCHFS_DIRECT_MOUNTS";

/// Whether `name` is the file name of a library of any version.
pub fn is_library(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(".so")
}

/// Writes the library to `directory`, unless it is there; returns its path. The directory must be
/// writable for this user only, because programs execute the file. The file stays: processes that
/// were started with it start others.
///
/// # Errors
/// Those of the system; `Unsupported` if programs cannot be executed there, or if its path cannot
/// be in LD_PRELOAD.
pub fn install(directory: &Path) -> io::Result<PathBuf> {
    let unsupported = |why: &str| Err(io::Error::new(ErrorKind::Unsupported, why));
    if BYTES.is_empty() {
        return unsupported("there is no library for this CPU architecture");
    }
    if statvfs(directory)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return unsupported("mounted with noexec");
    }
    let path = directory.join(format!("{PREFIX}{:016x}.so", xxh3_64(BYTES)));
    // ld.so separates paths by these, and expands the third.
    if path.as_os_str().as_bytes().iter().any(|byte| b" :$".contains(byte)) {
        return unsupported("its name cannot be in LD_PRELOAD");
    }
    // A file that is there may be cut off, on a file system that was full.
    if fs::read(&path).is_ok_and(|found| found == BYTES) {
        return Ok(path);
    }
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(BYTES)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o500))?;
    file.persist(&path)?;
    Ok(path)
}

/// The environment variables with which a command reads directly: `library` is the file, `device`
/// the device number that stat(2) returns for files of the mount, `socket` the socket of its
/// daemon. `inherited` returns the value of a variable that the command would have.
pub fn environment(
    library: &Path,
    device: u64,
    socket: &Path,
    inherited: impl Fn(&str) -> Option<OsString>,
) -> [(&'static str, OsString); 2] {
    // Last, so that other libraries, such as profilers, see the reads.
    let preload = joined(inherited(PRELOAD), ":", library.as_os_str());
    let mut mount = OsString::from(format!("{device}:"));
    mount.push(socket);
    // First, because the library looks only at the first few.
    let mounts = match inherited(MOUNTS) {
        Some(others) => joined(Some(mount), ";", &others),
        None => mount,
    };
    [(PRELOAD, preload), (MOUNTS, mounts)]
}

fn joined(first: Option<OsString>, separator: &str, second: &OsStr) -> OsString {
    let Some(mut joined) = first.filter(|first| !first.is_empty()) else {
        return second.to_owned();
    };
    let is_separator = |byte: &u8| separator.as_bytes().contains(byte);
    let is_listed = joined.as_bytes().split(is_separator).any(|part| part == second.as_bytes());
    if !is_listed {
        joined.push(separator);
        joined.push(second);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_written_once_and_again_if_it_is_damaged() {
        let work = tempfile::tempdir().unwrap();
        let path = install(work.path()).unwrap();
        assert!(is_library(path.file_name().unwrap().to_str().unwrap()));
        let modified = || fs::metadata(&path).unwrap().modified().unwrap();
        let first = modified();
        assert_eq!(install(work.path()).unwrap(), path);
        assert_eq!(modified(), first);
        fs::remove_file(&path).unwrap();
        fs::write(&path, &BYTES[..BYTES.len() / 2]).unwrap();
        install(work.path()).unwrap();
        assert!(fs::read(&path).unwrap() == BYTES);
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 1);
        let spaced = work.path().join("a b");
        fs::create_dir(&spaced).unwrap();
        assert_eq!(install(&spaced).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn comes_after_other_libraries_and_keeps_other_mounts() {
        let of = |inherited: &dyn Fn(&str) -> Option<OsString>| {
            environment(Path::new("/tmp/direct.so"), 72, Path::new("/tmp/a.socket"), inherited)
        };
        let [preload, mounts] = of(&|_| None);
        assert_eq!(preload, ("LD_PRELOAD", "/tmp/direct.so".into()));
        assert_eq!(mounts, ("ARCHFS_DIRECT_MOUNTS", "72:/tmp/a.socket".into()));
        let [preload, mounts] = of(&|name| match name {
            "LD_PRELOAD" => Some("/usr/lib/libdarshan.so".into()),
            _ => Some("71:/tmp/b.socket".into()),
        });
        assert_eq!(preload.1, "/usr/lib/libdarshan.so:/tmp/direct.so");
        assert_eq!(mounts.1, "72:/tmp/a.socket;71:/tmp/b.socket");
        // A command of `run --direct` that runs it again.
        let [preload, _] = of(&|name| (name == "LD_PRELOAD").then(|| "/tmp/direct.so".into()));
        assert_eq!(preload.1, "/tmp/direct.so");
    }
}
