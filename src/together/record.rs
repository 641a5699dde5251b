//! The records by which the daemons of a job find each other.
//!
//! Each is a small file in a directory of the job that all nodes see and only this user can write.
//! It has the addresses of a daemon and its certificate. A process that can write there can read
//! the archives as this user anyway, so a record needs no other proof.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_NOW, utimensat};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::Settings;
use crate::batch_job;
use crate::error::{Error, Result};
use crate::os::directory::{self, Directory};
use crate::os::new_file::{self, NewFile, Readers};

/// The directory of the records of all jobs, in the user's cache directory. In another directory
/// its name has the user's number, because several users may have named it.
const JOBS: &str = "jobs";

const SUFFIX: &str = ".json";

/// The largest record, in bytes: a thousand archives have 40 kB.
const LEN_MAX: u64 = 1 << 20;

/// Records of a job whose directory was not touched for this time are removed. Each daemon touches
/// it once a minute, unless its job is suspended.
const OLD: Duration = Duration::from_secs(24 * 3600);

/// How a daemon can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) node: String,
    pub(super) addresses: Vec<SocketAddr>,
    /// In base 64.
    certificate: String,
    /// The keys of its archives.
    pub(super) archives: Vec<String>,
}

impl Record {
    pub(super) fn new(
        addresses: Vec<SocketAddr>,
        certificate: &[u8],
        archives: Vec<String>,
    ) -> Self {
        let certificate = BASE64_STANDARD.encode(certificate);
        Self { node: batch_job::node_name(), addresses, certificate, archives }
    }

    /// The certificate, in DER.
    pub(super) fn certificate(&self) -> Option<Vec<u8>> {
        BASE64_STANDARD.decode(&self.certificate).ok()
    }
}

/// The directory with the records of a job.
pub(super) struct JobDirectory {
    jobs: Directory,
    job: OsString,
    directory: Directory,
    /// The name of this daemon's own record.
    own: Option<OsString>,
}

impl JobDirectory {
    /// Opens it, or creates it.
    ///
    /// Fails with `Io` if it cannot be created, or if others can write there.
    pub(super) fn open(settings: &Settings) -> Result<Self> {
        let failed = |error| Error::io("cannot write records for other nodes", error);
        let (jobs, directory) = Self::opened(settings).map_err(failed)?;
        Ok(Self { jobs, job: OsString::from(&settings.job), directory, own: None })
    }

    /// The directory of all jobs, and that of this one.
    fn opened(settings: &Settings) -> io::Result<(Directory, Directory)> {
        retry_if_removed(|_| {
            let parent = match &settings.directory {
                Some(directory) => Directory::open(Path::new(directory))?,
                None => directory::create_cache()?,
            };
            let jobs = private(&parent, &jobs_in(settings.directory.as_deref()))?;
            let directory = private(&jobs, OsStr::new(&settings.job))?;
            Ok((jobs, directory))
        })
    }

    /// Writes the record of this daemon.
    pub(super) fn publish(&mut self, record: &Record, settings: &Settings) -> Result<Published> {
        let failed = |error| Error::io("cannot write a record for other nodes", error);
        let text = serde_json::to_vec(record).map_err(|error| failed(error.into()))?;
        // Unique: a node can have several daemons, and one after another.
        let hash = blake3::hash(record.certificate.as_bytes()).to_hex();
        let name = OsString::from(format!("{}-{}{SUFFIX}", record.node, &hash[..16]));
        let owner = Readers { group: None, mode: 0o600 };
        let write = &mut |file: &mut File| file.write_all(&text);
        let replace = |attempt| {
            if attempt > 1 {
                (self.jobs, self.directory) = Self::opened(settings)?;
            }
            NewFile::replace(&self.directory, &name, owner, write)
        };
        retry_if_removed(replace).map_err(failed)?;
        self.own = Some(name.clone());
        let (jobs, job) = (self.jobs.clone(), self.job.clone());
        Ok(Published { jobs, job, directory: self.directory.clone(), name })
    }

    /// The names of the records of other daemons.
    pub(super) fn names(&self) -> io::Result<Vec<OsString>> {
        touch(&self.directory);
        let is_other = |name: &OsString| is_record(name) && self.own.as_ref() != Some(name);
        Ok(self.directory.names()?.into_iter().filter(is_other).collect())
    }

    /// The record of this name.
    pub(super) fn read(&self, name: &OsStr) -> io::Result<Record> {
        let mut text = Vec::new();
        self.directory.open_file(name)?.take(LEN_MAX).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

impl Drop for JobDirectory {
    fn drop(&mut self) {
        // It has the records of others, unless this daemon has shared nothing.
        let _ = self.jobs.remove_directory(&self.job);
    }
}

/// Does `work`, which gets the number of the attempt, and again if the last daemon before this one
/// removes its directory at that time.
fn retry_if_removed<T>(mut work: impl FnMut(u32) -> io::Result<T>) -> io::Result<T> {
    const ATTEMPTS: u32 = 5;
    for attempt in 1..ATTEMPTS {
        match work(attempt) {
            Err(error) if is_removed(&error) => {}
            outcome => return outcome,
        }
    }
    work(ATTEMPTS)
}

/// The name of the directory of all jobs in `directory`, which is as in `Settings`.
fn jobs_in(directory: Option<&OsStr>) -> OsString {
    match directory {
        Some(_) => format!("archfs-{JOBS}-{}", geteuid().as_raw()).into(),
        None => JOBS.into(),
    }
}

/// The directory `name`, which is this user's alone.
fn private(parent: &Directory, name: &OsStr) -> io::Result<Directory> {
    parent.create(name)?;
    parent.private(name, geteuid().as_raw())
}

/// A record that is removed when this is dropped, with the directory if it was the last.
pub(super) struct Published {
    jobs: Directory,
    job: OsString,
    directory: Directory,
    name: OsString,
}

impl Drop for Published {
    fn drop(&mut self) {
        // Both may be gone already, or the directory still in use.
        let _ = self.directory.remove_file(&self.name);
        let _ = self.jobs.remove_directory(&self.job);
    }
}

/// Removes the records of jobs that have ended without that, because their nodes lost power or
/// their daemons were killed. `directory` is as in `Settings`. Returns how many jobs those were.
pub fn remove_old_records(directory: Option<&OsStr>) -> usize {
    let opened = || {
        let parent = match directory {
            Some(directory) => Directory::open(Path::new(directory))?,
            None => Directory::open(&directory::cache_directory().unwrap_or_default())?,
        };
        parent.private(&jobs_in(directory), geteuid().as_raw())
    };
    opened().map_or(0, |jobs| remove_old(&jobs, OLD))
}

/// The same for directories that were not touched for `age`.
fn remove_old(jobs: &Directory, age: Duration) -> usize {
    // The clock of a node may be wrong, and the times are those of a server.
    touch(jobs);
    let Ok(now) = jobs.metadata(".".as_ref()).and_then(|found| found.modified()) else { return 0 };
    let is_old = |job: &OsString| {
        let heard = jobs.metadata(job).and_then(|found| found.modified());
        heard.is_ok_and(|time| now.duration_since(time).is_ok_and(|since| since >= age))
    };
    let old = jobs.names().unwrap_or_default().into_iter().filter(is_old);
    let removed = old.filter(|job| {
        let Ok(directory) = jobs.private(job, geteuid().as_raw()) else { return false };
        for name in directory.names().unwrap_or_default() {
            if is_record(&name) || is_temporary(&name) {
                let _ = directory.remove_file(&name);
            }
        }
        jobs.remove_directory(job).is_ok()
    });
    removed.count()
}

/// Sets the time of a directory. That is a sign of life, and makes an NFS client read its names
/// again, which it keeps for up to a minute.
fn touch(directory: &Directory) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    let _ = utimensat(directory, ".", &times, AtFlags::empty());
}

/// Whether a directory was removed. A network file system has a word of its own for that.
fn is_removed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle)
}

fn is_record(name: &OsStr) -> bool {
    name.as_encoded_bytes().ends_with(SUFFIX.as_bytes())
}

/// Whether it was left by a daemon that was killed: by `NewFile`, or by an NFS client when a record
/// was removed that it had open.
fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(new_file::PREFIX.as_bytes()) || name.starts_with(b".nfs")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::super::Bandwidth;
    use super::*;

    fn settings(directory: &Path) -> Settings {
        Settings {
            is_required: false,
            directory: Some(directory.into()),
            interface: None,
            bandwidth: Bandwidth::default(),
            job: "slurm-7".into(),
            nodes: 2,
        }
    }

    fn record(certificate: &[u8]) -> Record {
        Record::new(vec!["10.0.0.1:7".parse().unwrap()], certificate, vec!["key".into()])
    }

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let work = tempfile::tempdir().unwrap();
        let jobs = jobs_in(Some(OsStr::new("")));
        let path = work.path().join(jobs).join("slurm-7");
        (work, path)
    }

    #[test]
    fn daemons_find_the_records_of_others_until_these_end() {
        let (work, path) = directory();
        let settings = settings(work.path());
        let [mut one, mut other] = [(), ()].map(|()| JobDirectory::open(&settings).unwrap());
        let found = |directory: &JobDirectory| -> Vec<Record> {
            let names = directory.names().unwrap();
            names.iter().filter_map(|name| directory.read(name).ok()).collect()
        };
        let own = one.publish(&record(b"one"), &settings).unwrap();
        assert_eq!(found(&other), [record(b"one")]);
        let theirs = other.publish(&record(b"other"), &settings).unwrap();
        assert_eq!(found(&JobDirectory::open(&settings).unwrap()).len(), 2);
        assert_eq!(found(&one), [record(b"other")], "without its own");
        drop(own);
        assert_eq!(found(&one), [record(b"other")]);
        // Half of a record, and what is none.
        fs::write(path.join("half.json"), "{\"node\"").unwrap();
        fs::write(path.join("other"), "").unwrap();
        assert_eq!(found(&one), [record(b"other")]);
        for name in ["half.json", "other"] {
            fs::remove_file(path.join(name)).unwrap();
        }
        drop(theirs);
        assert!(!path.exists(), "the last one removes the directory");
        let again = one.publish(&record(b"again"), &settings).unwrap();
        assert_eq!(found(&JobDirectory::open(&settings).unwrap()), [record(b"again")]);
        drop(again);
        drop(JobDirectory::open(&settings).unwrap());
        assert!(!path.exists(), "a daemon that shares nothing leaves nothing");
    }

    #[test]
    fn records_of_jobs_that_ended_without_a_word_are_removed() {
        let (work, path) = directory();
        let mut job = JobDirectory::open(&settings(work.path())).unwrap();
        std::mem::forget(job.publish(&record(b"killed"), &settings(work.path())).unwrap());
        for name in [".archfs-abc", ".nfs0001"] {
            fs::write(path.join(name), "").unwrap();
        }
        let other = path.with_file_name("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "").unwrap();
        assert_eq!(remove_old_records(Some(work.path().as_os_str())), 0, "it is not old");
        assert!(path.exists());
        assert_eq!(remove_old(&job.jobs, Duration::ZERO), 1);
        assert!(!path.exists());
        assert!(other.join("file").exists(), "archfs did not make it");
        assert_eq!(remove_old_records(Some(OsStr::new("/nowhere"))), 0);
    }

    #[test]
    fn records_are_kept_only_in_a_private_directory() {
        let (work, path) = directory();
        let open = || JobDirectory::open(&settings(work.path())).map(drop);
        let _kept = JobDirectory::open(&settings(work.path())).unwrap();
        for part in [path.as_path(), path.parent().unwrap()] {
            assert_eq!(fs::metadata(part).unwrap().permissions().mode() & 0o777, 0o700);
            fs::set_permissions(part, Permissions::from_mode(0o750)).unwrap();
            assert!(open().is_err(), "others could read {}", part.display());
            fs::set_permissions(part, Permissions::from_mode(0o700)).unwrap();
        }
        fs::remove_dir(&path).unwrap();
        fs::create_dir(work.path().join("elsewhere")).unwrap();
        symlink(work.path().join("elsewhere"), &path).unwrap();
        assert!(open().is_err(), "a link");
    }
}
