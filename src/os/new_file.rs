//! A file that gets its name only once it is complete.
//!
//! Invariant: until `publish`, no file has the final name. If the process dies before that, nothing
//! remains on file systems that support unnamed files (O_TMPFILE in open(2)). Elsewhere the file
//! has a temporary name, which is removed unless SIGKILL ends the process.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use rustix::process::geteuid;
use tempfile::{Builder, TempPath};

use super::directory::Directory;
use super::kernel_file;

/// Who else may read a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readers {
    /// The group of the file; `None` for the one that the directory gives to new files.
    pub group: Option<u32>,
    /// Permissions of the group and of others. The owner may always read and write.
    pub mode: u32,
}

/// Prefix of the temporary names that `replace` uses.
pub const PREFIX: &str = ".archfs-";

/// What to do if a file with the name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Keep it and fail.
    Refuse,
    /// Replace it when the new file is complete.
    Replace,
}

/// A private file in an open directory. The caller writes it through a separate descriptor.
#[derive(Debug)]
pub struct NewFile {
    content: Content,
    /// Prefix of a temporary name.
    prefix: OsString,
    // Dropped last: the path of the temporary name leads through it.
    directory: Directory,
}

#[derive(Debug)]
enum Content {
    Nameless(File),
    /// Has a temporary name, which is removed when this is dropped.
    Named(TempPath),
}

impl Readers {
    /// As the user's umask says, with the group that the directory gives to new files.
    pub fn by_umask() -> Self {
        Self { group: None, mode: 0o644 & !kernel_file::umask() }
    }
}

impl NewFile {
    /// Creates an empty file in `directory`, open for reading and writing. A temporary name begins
    /// with `prefix`.
    pub fn create(directory: &Directory, prefix: &str) -> io::Result<(File, Self)> {
        let flags = OFlags::TMPFILE.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags(flags);
        match options.open(directory.path()) {
            Ok(file) => {
                let content = Content::Nameless(file.try_clone()?);
                Ok((file, Self { content, prefix: prefix.into(), directory: directory.clone() }))
            }
            // The file system or the kernel has no unnamed files (NFS, some parallel file systems).
            // If the error had another cause, creating a named file fails as well.
            Err(_) => Self::create_named(directory, prefix),
        }
    }

    /// Like `create`, with a temporary name.
    pub fn create_named(directory: &Directory, prefix: &str) -> io::Result<(File, Self)> {
        let mut builder = Builder::new();
        builder.prefix(prefix).permissions(Permissions::from_mode(0o600));
        let created = builder.tempfile_in(directory.path()).map_err(without_path)?;
        let (file, named) = created.into_parts();
        let content = Content::Named(named);
        Ok((file, Self { content, prefix: prefix.into(), directory: directory.clone() }))
    }

    /// Like `create_named`, for a file that `make` creates at the path that it gets. The path is
    /// valid in other processes as well.
    pub fn create_by(
        directory: &Directory,
        prefix: &str,
        make: &dyn Fn(&Path) -> io::Result<()>,
    ) -> io::Result<(File, Self)> {
        let path = directory.path_for_others();
        let make = |path: &Path| {
            make(path)?;
            let file = directory.open_with(path.file_name().unwrap_or_default(), OFlags::RDWR)?;
            // Another user may have put something else in its place.
            let found = file.metadata()?;
            let is_new = found.is_file() && found.len() == 0 && found.nlink() == 1;
            if is_new && found.uid() == geteuid().as_raw() {
                return Ok(file);
            }
            // Nothing else removes what `make` created.
            if is_new {
                let _ = directory.remove_file(path.file_name().unwrap_or_default());
            }
            Err(rustix::io::Errno::ACCESS.into())
        };
        let (file, named) = Builder::new().prefix(prefix).make_in(path, make)?.into_parts();
        file.set_permissions(Permissions::from_mode(0o600))?;
        let content = Content::Named(named);
        Ok((file, Self { content, prefix: prefix.into(), directory: directory.clone() }))
    }

    /// Names the file `name`.
    ///
    /// # Errors
    /// Those of the system; `AlreadyExists` if the name is taken and `existing` is `Refuse`.
    pub fn publish(self, name: &OsStr, existing: Existing) -> io::Result<()> {
        let path = self.directory.path().join(name);
        if let (Content::Nameless(file), Existing::Refuse) = (&self.content, existing) {
            return link(file, &path);
        }
        // A link cannot replace a file, so the new file gets a temporary name first.
        let (named, _directory) = self.named()?;
        let renamed = match existing {
            Existing::Replace => named.persist(&path),
            Existing::Refuse => named.persist_noclobber(&path),
        };
        renamed.map_err(|error| error.error)
    }

    /// Closes the descriptor, for callers with many files: the file gets a temporary name.
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
                let created = Builder::new().prefix(&prefix).make_in(directory.path(), make);
                created.map_err(without_path)?.into_temp_path()
            }
        };
        Ok((named, directory))
    }

    /// Writes the file `name` with `write`, replacing an existing one. Returns it open for reading.
    pub fn replace(
        directory: &Directory,
        name: &OsStr,
        readers: Readers,
        write: &mut dyn FnMut(&mut File) -> io::Result<()>,
    ) -> io::Result<File> {
        let mut written = |(mut file, new): (File, Self)| {
            write(&mut file)?;
            share(&file, readers)?;
            Ok::<_, io::Error>((file, new))
        };
        let (file, new) = written(Self::create(directory, PREFIX)?)?;
        match new.publish(name, Existing::Replace) {
            Ok(()) => Ok(file),
            // Some file systems support unnamed files but cannot link them.
            Err(_) => {
                let (file, new) = written(Self::create_named(directory, PREFIX)?)?;
                new.publish(name, Existing::Replace)?;
                Ok(file)
            }
        }
    }
}

/// Opens `file` to its readers. If this user may not set the group, the group gets no access.
fn share(file: &File, Readers { group, mode }: Readers) -> io::Result<()> {
    let mut mode = mode & 0o044;
    if let Some(group) = group
        && mode & 0o040 != 0
        && file.metadata()?.gid() != group
    {
        match fchown(file, None, Some(group)) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => mode &= !0o040,
            Err(error) => return Err(error),
        }
    }
    file.set_permissions(Permissions::from_mode(0o600 | mode))
}

/// Keeps only the kind of `error`: tempfile adds the path, which leads through /proc here.
pub(super) fn without_path(error: io::Error) -> io::Error {
    error.kind().into()
}

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

    fn names(directory: &Path) -> Vec<OsString> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    type Create = fn(&Directory, &str) -> io::Result<(File, NewFile)>;

    const WAYS: [Create; 2] = [NewFile::create, NewFile::create_named];

    #[test]
    fn appears_complete_or_not_at_all() {
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
    fn errors_do_not_show_the_path_through_proc() {
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

    #[test]
    fn a_file_that_another_user_put_in_its_place_is_not_written() {
        let put: [fn(&Path, &Path) -> io::Result<()>; 3] = [
            |from, to| std::os::unix::fs::symlink(from, to),
            |from, to| fs::hard_link(from, to),
            |from, to| fs::rename(from, to),
        ];
        for put in put {
            let work = tempfile::tempdir().unwrap();
            let directory = Directory::open(work.path()).unwrap();
            let dear = work.path().join("dear");
            fs::write(&dear, "dear").unwrap();
            let refused = NewFile::create_by(&directory, PREFIX, &|path| put(&dear, path));
            assert!(refused.is_err());
            for name in names(work.path()) {
                assert_eq!(fs::read(work.path().join(name)).unwrap(), b"dear");
            }
        }
        let work = tempfile::tempdir().unwrap();
        let directory = Directory::open(work.path()).unwrap();
        NewFile::create_by(&directory, PREFIX, &|path| fs::write(path, "")).unwrap();
        assert_eq!(names(work.path()), [""; 0]);
    }
}
