//! A file that gets its name when it is whole.
//!
//! Invariant: until `publish`, nothing has the final name, and a process that ends before leaves
//! nothing where the file system knows files without a name (O_TMPFILE in open(2)). Elsewhere the
//! file has a name for the time being, which is removed unless SIGKILL ends the process.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use tempfile::{Builder, TempPath};

use super::directory::Directory;

/// What becomes of a file that has the name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and there is no new one.
    Refuse,
    /// It is replaced at the end, and stays until then.
    Replace,
}

/// A file for its owner alone, in a directory that is held open. It is written through a descriptor
/// of its own.
#[derive(Debug)]
pub struct NewFile {
    content: Content,
    /// What a name for the time being begins with.
    prefix: OsString,
    // Dropped last: the path of a name for the time being leads through it.
    directory: Directory,
}

#[derive(Debug)]
enum Content {
    Nameless(File),
    /// With a name for the time being, which goes when this is dropped.
    Named(TempPath),
}

impl NewFile {
    /// An empty one in `directory`, open for reading and writing. A name for the time being begins
    /// with `prefix`.
    ///
    /// # Errors
    /// The system's.
    pub fn create(directory: &Directory, prefix: &str) -> io::Result<(File, Self)> {
        let flags = OFlags::TMPFILE.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags(flags);
        match options.open(directory.path()) {
            Ok(file) => {
                let content = Content::Nameless(file.try_clone()?);
                Ok((file, Self { content, prefix: prefix.into(), directory: directory.clone() }))
            }
            // No such thing on that file system (NFS, some parallel ones), or in that kernel. Where
            // it is for another reason, that is met again.
            Err(_) => Self::create_named(directory, prefix),
        }
    }

    /// The same with a name for the time being.
    ///
    /// # Errors
    /// The system's.
    pub fn create_named(directory: &Directory, prefix: &str) -> io::Result<(File, Self)> {
        let mut builder = Builder::new();
        builder.prefix(prefix).permissions(Permissions::from_mode(0o600));
        let made = builder.tempfile_in(directory.path()).map_err(without_path)?;
        let (file, named) = made.into_parts();
        let content = Content::Named(named);
        Ok((file, Self { content, prefix: prefix.into(), directory: directory.clone() }))
    }

    /// Gives it the name `name`.
    ///
    /// # Errors
    /// The system's; `AlreadyExists` where there is such a file and it is not to be replaced.
    pub fn publish(self, name: &OsStr, existing: Existing) -> io::Result<()> {
        let path = self.directory.path().join(name);
        if let (Content::Nameless(file), Existing::Refuse) = (&self.content, existing) {
            return link(file, &path);
        }
        // A link cannot replace, so the file gets another name before.
        let (named, _directory) = self.named()?;
        let renamed = match existing {
            Existing::Replace => named.persist(&path),
            Existing::Refuse => named.persist_noclobber(&path),
        };
        renamed.map_err(|error| error.error)
    }

    /// The same without an open file, where there are many: it gets a name for the time being.
    ///
    /// # Errors
    /// The system's.
    pub fn closed(self) -> io::Result<Self> {
        let prefix = self.prefix.clone();
        let (named, directory) = self.named()?;
        Ok(Self { content: Content::Named(named), prefix, directory })
    }

    fn named(self) -> io::Result<(TempPath, Directory)> {
        let Self { content, prefix, directory } = self;
        let named = match content {
            Content::Named(named) => named,
            Content::Nameless(file) => {
                let make = |path: &Path| link(&file, path);
                let made = Builder::new().prefix(&prefix).make_in(directory.path(), make);
                made.map_err(without_path)?.into_temp_path()
            }
        };
        Ok((named, directory))
    }
}

/// The kind of `error` alone: tempfile adds the path, which is one through /proc here.
fn without_path(error: io::Error) -> io::Error {
    error.kind().into()
}

/// Gives a file without a name one.
fn link(file: &File, path: &Path) -> io::Result<()> {
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(linkat(CWD, source, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    const PREFIX: &str = ".archfs-test-";

    fn names(folder: &Path) -> Vec<OsString> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    type Create = fn(&Directory, &str) -> io::Result<(File, NewFile)>;

    const WAYS: [Create; 2] = [NewFile::create, NewFile::create_named];

    #[test]
    fn appears_whole_or_not_at_all() {
        for create in WAYS {
            for is_closed in [false, true] {
                let work = tempfile::tempdir().unwrap();
                let directory = Directory::open(work.path()).unwrap();
                let make = |text: &str| {
                    let (mut file, new) = create(&directory, PREFIX).unwrap();
                    file.write_all(text.as_bytes()).unwrap();
                    if is_closed { new.closed().unwrap() } else { new }
                };
                drop(make("never seen"));
                assert_eq!(names(work.path()), [""; 0]);
                for (text, existing, is_given) in [
                    ("one", Existing::Refuse, true),
                    ("two", Existing::Refuse, false),
                    ("three", Existing::Replace, true),
                ] {
                    let published = make(text).publish("name".as_ref(), existing);
                    assert_eq!(published.is_ok(), is_given, "{text}");
                    assert_eq!(names(work.path()), ["name"]);
                }
                assert_eq!(fs::read(work.path().join("name")).unwrap(), b"three");
            }
        }
    }

    #[test]
    fn errors_have_no_path_through_proc() {
        let directory = Directory::open(Path::new("/proc/self")).unwrap();
        for create in WAYS {
            let error = create(&directory, PREFIX).unwrap_err();
            assert!(!error.to_string().contains("/proc"), "{error}");
        }
    }

    #[test]
    fn stays_in_the_directory_that_was_opened() {
        for create in WAYS {
            let work = tempfile::tempdir().unwrap();
            let [opened, moved, victim] =
                ["opened", "moved", "victim"].map(|name| work.path().join(name));
            fs::create_dir(&opened).unwrap();
            fs::create_dir(&victim).unwrap();
            let directory = Directory::open(&opened).unwrap();
            let (_, new) = create(&directory, PREFIX).unwrap();
            fs::rename(&opened, &moved).unwrap();
            std::os::unix::fs::symlink(&victim, &opened).unwrap();
            new.publish("name".as_ref(), Existing::Replace).unwrap();
            assert_eq!(names(&moved), ["name"]);
            assert_eq!(names(&victim), [""; 0]);
        }
    }
}
