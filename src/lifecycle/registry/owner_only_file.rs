//! Files of the record directory, with mode 0600 whatever the umask is.
//!
//! A umask may deny permissions to the owner, for example 0577. Then only the process that creates
//! a file has it open; no other process of the same user can open it. So others could neither read
//! a record nor take its lock.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::process::geteuid;

const MODE: u32 = 0o600;

/// Opens or creates the file `path`, as `options` say, in a directory that is closed to others.
pub(in crate::lifecycle) fn open_0600(path: &Path, options: &mut OpenOptions) -> Result<File> {
    let file = match options.mode(MODE).open(path) {
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
    if file.metadata()?.mode() & MODE != MODE {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    Ok(file)
}

/// Sets the mode of the file or socket `path`, in a directory that is closed to others, to 0600.
pub(super) fn chmod_0600(path: &Path) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(MODE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_a_file_that_a_umask_has_closed_to_its_owner() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("file");
        for closed in [0, 0o200, 0o400, 0o600] {
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(closed)).unwrap();
            open_0600(&path, File::options().create(true).append(true)).unwrap();
            let mode = fs::symlink_metadata(&path).unwrap().mode();
            assert_eq!(mode & 0o7777, MODE, "{closed:o}");
            fs::remove_file(&path).unwrap();
        }
        let created = open_0600(&path, File::options().write(true).create_new(true)).unwrap();
        assert_eq!(created.metadata().unwrap().mode() & 0o7777, MODE);
    }
}
