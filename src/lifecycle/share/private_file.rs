//! Files of the registry, which their owner can read and write whatever the umask.
//!
//! Owns how they are opened and made. Invariant: one that is open has the mode 0600.
//!
//! A umask that keeps rights from the owner (0577, say) makes files that their maker has open, and
//! no other process of its user can open again: a record that tells nobody anything, a lock that
//! nobody else takes.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::process::geteuid;

const MODE: u32 = 0o600;

/// Opens the file at `path`, in a folder of the user alone, or makes it as `options` say.
///
/// # Errors
/// The system's.
pub(super) fn open(path: &Path, options: &mut OpenOptions) -> Result<File> {
    let file = match options.mode(MODE).open(path) {
        // Its maker is between these two lines, or was killed there.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let found = fs::symlink_metadata(path)?;
            if !found.is_file() || found.uid() != geteuid().as_raw() {
                return Err(error);
            }
            open_to_owner(path)?;
            options.open(path)?
        }
        opened => opened?,
    };
    if file.metadata()?.mode() & MODE != MODE {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    Ok(file)
}

/// Gives the file or socket at `path`, in a folder of the user alone, to its owner.
///
/// # Errors
/// The system's.
pub(super) fn open_to_owner(path: &Path) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(MODE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_a_umask_has_closed_is_opened_to_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for closed in [0, 0o200, 0o400, 0o600] {
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(closed)).unwrap();
            open(&path, File::options().create(true).append(true)).unwrap();
            let mode = fs::symlink_metadata(&path).unwrap().mode();
            assert_eq!(mode & 0o7777, MODE, "{closed:o}");
            fs::remove_file(&path).unwrap();
        }
        let made = open(&path, File::options().write(true).create_new(true)).unwrap();
        assert_eq!(made.metadata().unwrap().mode() & 0o7777, MODE);
    }
}
