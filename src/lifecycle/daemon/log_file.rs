//! Opens the file that the daemon logs to.
//!
//! Invariant: nothing is written to a file that another user put there. The log names files of the
//! dataset. Another user may have created a link in a directory such as /tmp, or for root in a
//! directory of their own, so that the log is appended to any file of this user. They may also have
//! created a pipe or a file there, in order to read the log. The kernel's protection
//! (fs.protected_symlinks and the like) may be off.
//!
//! A mount never waits for a reader of its log. Opening a named pipe without a reader is an error,
//! and a full pipe loses lines.

use std::fs::File;
use std::path::Path;

use crate::error::{Error, Kind, Result};
use crate::os::directory::{Appended, Directory, parent_of};

/// Opens a log, or creates it with access for this user only.
///
/// Fails with `Io` if the file cannot be opened for appending, or if another user could have put it
/// there.
pub(super) fn open(path: &Path) -> Result<File> {
    let failed = |error| {
        Error::io(format!("{}: cannot write the log", path.display()), error)
            .with_hint("without --log-file, the log goes to standard error if that is a file")
    };
    let directory = Directory::open(parent_of(path)).map_err(failed)?;
    // A path that ends with `..` has no file name: it is a directory.
    let name = path.file_name().unwrap_or(path.as_os_str());
    match directory.append(name).map_err(failed)? {
        Appended::Opened(file) => Ok(file),
        Appended::Planted => {
            let context = format!(
                "{}: cannot write the log: another user may have created this file",
                path.display()
            );
            Err(Error::new(Kind::Io, context).with_hint("use a file in a directory of your own"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{ErrorKind, Write};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

    use rustix::fs::{CWD, FileType};
    use rustix::process::geteuid;

    use super::*;

    fn is_refused(path: &Path) -> bool {
        open(path).is_err_and(|error| error.to_string().contains("another user may"))
    }

    #[test]
    fn a_log_is_private_and_the_users_own_links_are_followed() {
        let work = tempfile::tempdir().unwrap();
        let (log, link) = (work.path().join("log"), work.path().join("link"));
        symlink("log", &link).unwrap();
        for path in [&link, &log] {
            open(path).unwrap().write_all(b"line\n").unwrap();
            assert_eq!(fs::symlink_metadata(&log).unwrap().mode() & 0o7777, 0o600);
        }
        assert_eq!(fs::read(&log).unwrap(), b"line\nline\n");
        for path in ["/dev/null", "/proc/self/fd/2"] {
            open(Path::new(path)).unwrap();
        }
        assert!(open(&work.path().join("none/log")).is_err() && open(work.path()).is_err());
    }

    #[test]
    fn a_log_never_waits_for_the_reader_of_a_pipe() {
        let work = tempfile::tempdir().unwrap();
        let pipe = work.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
        let refused = open(&pipe).unwrap_err().to_string();
        assert!(refused.contains("No such device or address"), "{refused}");
        let mut reader = File::options().read(true).write(true).open(&pipe).unwrap();
        let mut log = open(&pipe).unwrap();
        let mut written_len = 0;
        let full = std::iter::repeat_with(|| log.write_all(b"line\n")).find_map(|written| {
            written_len += 5 * usize::from(written.is_ok());
            written.err()
        });
        assert_eq!(full.unwrap().kind(), ErrorKind::WouldBlock);
        let mut read = vec![0; written_len];
        std::io::Read::read_exact(&mut reader, &mut read).unwrap();
        assert!(read.ends_with(b"line\n"));
    }

    #[test]
    fn nothing_is_written_to_what_others_put_where_everybody_may_write() {
        if !geteuid().is_root() {
            return println!("SKIPPED: needs root");
        }
        let work = tempfile::tempdir().unwrap();
        let name = |name: &str| work.path().join(name);
        fs::write(name("dear"), "").unwrap();
        fs::write(name("file"), "").unwrap();
        symlink("dear", name("link")).unwrap();
        symlink("none", name("dangling")).unwrap();
        let mode = rustix::fs::Mode::from(0o666);
        rustix::fs::mknodat(CWD, name("pipe"), FileType::Fifo, mode, 0).unwrap();
        let planted = ["file", "link", "dangling", "pipe"];
        for name in planted.map(name) {
            lchown(name, Some(5), None).unwrap();
        }
        fs::set_permissions(work.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        for name in planted.map(name) {
            assert!(is_refused(&name), "{}", name.display());
        }
        assert!(!name("none").exists());
        // A hard link to the user's own file.
        fs::hard_link(name("dear"), name("second")).unwrap();
        assert!(is_refused(&name("second")));
        // If others cannot write to the directory, this user has chosen to log to another user's
        // file.
        fs::set_permissions(work.path(), fs::Permissions::from_mode(0o755)).unwrap();
        open(&name("file")).unwrap();
    }

    /// > Root writes no log through a link in a directory of another user.
    #[test]
    fn root_writes_through_nothing_that_a_user_made_in_their_directory() {
        if !geteuid().is_root() {
            return println!("SKIPPED: needs root");
        }
        let work = tempfile::tempdir().unwrap();
        let directory = work.path().join("directory");
        let name = |name: &str| directory.join(name);
        fs::create_dir(&directory).unwrap();
        chown(&directory, Some(5), None).unwrap();
        fs::write(work.path().join("dear"), "").unwrap();
        symlink("../dear", name("link")).unwrap();
        symlink("../none", name("dangling")).unwrap();
        symlink("../dear", name("of root")).unwrap();
        for name in ["link", "dangling"].map(name) {
            lchown(name, Some(5), None).unwrap();
        }
        fs::hard_link(work.path().join("dear"), name("second")).unwrap();
        // The owner of the directory can replace root's link by another link.
        for name in ["link", "dangling", "of root", "second"].map(name) {
            assert!(is_refused(&name), "{}", name.display());
        }
        assert!(!work.path().join("none").exists());
        open(&name("new")).unwrap();
        fs::write(name("theirs"), "").unwrap();
        chown(name("theirs"), Some(5), None).unwrap();
        open(&name("theirs")).unwrap();
    }
}
