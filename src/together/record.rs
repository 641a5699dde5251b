//! The records by which the daemons of a job find each other.
//!
//! Each is a small file in a directory of the job that all nodes see and only this user can write.
//! It has the addresses of a daemon and its certificate. Who can write there can already read the
//! archives as this user, so a record needs no other proof.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use base64::prelude::{BASE64_STANDARD, Engine};
use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_NOW, utimensat};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::Settings;
use crate::batch_job;
use crate::error::{Error, Result};
use crate::os::directory::{self, Directory};
use crate::os::new_file::{NewFile, Readers};

/// The directory of the records of all jobs.
const JOBS: &str = "jobs";

const SUFFIX: &str = ".json";

/// The largest record, in bytes: a thousand archives have 40 kB.
const LEN_MAX: u64 = 1 << 20;

/// Records of a job that was not heard of for this time are removed.
const OLD: Duration = Duration::from_secs(7 * 24 * 3600);

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

    /// Whether it is of the daemon with this certificate.
    pub(super) fn is_of(&self, certificate: &[u8]) -> bool {
        self.certificate == BASE64_STANDARD.encode(certificate)
    }
}

/// The directory with the records of a job.
pub(super) struct JobDirectory {
    jobs: Directory,
    job: OsString,
    directory: Directory,
}

impl JobDirectory {
    /// Opens it, or creates it.
    ///
    /// Fails with `Io` if it cannot be created, or if others can write there.
    pub(super) fn open(settings: &Settings) -> Result<Self> {
        let open = || {
            let parent = match &settings.directory {
                Some(directory) => Directory::open(Path::new(directory))?,
                None => directory::create_cache()?,
            };
            let jobs = private(&parent, JOBS.as_ref())?;
            let job = OsString::from(&settings.job);
            let directory = private(&jobs, &job)?;
            Ok(Self { jobs, job, directory })
        };
        open().map_err(|error| Error::io("cannot write records for other nodes", error))
    }

    /// Writes the record of this daemon.
    pub(super) fn publish(&self, record: &Record) -> Result<Published> {
        let failed = |error| Error::io("cannot write a record for other nodes", error);
        let text = serde_json::to_vec(record).map_err(|error| failed(error.into()))?;
        // Unique: a node can have several daemons, and one after another.
        let hash = blake3::hash(record.certificate.as_bytes()).to_hex();
        let name = OsString::from(format!("{}-{}{SUFFIX}", record.node, &hash[..16]));
        let owner = Readers { group: None, mode: 0o600 };
        let write = &mut |file: &mut File| file.write_all(&text);
        NewFile::replace(&self.directory, &name, owner, write).map_err(failed)?;
        let Self { jobs, job, directory } = self;
        Ok(Published { jobs: jobs.clone(), job: job.clone(), directory: directory.clone(), name })
    }

    /// The records of all other daemons; `own` is the certificate of this one.
    pub(super) fn records(&self, own: &[u8]) -> io::Result<Vec<Record>> {
        // An NFS client caches a directory for up to a minute. A change of it shows what is there.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let _ = utimensat(&self.directory, ".", &times, AtFlags::empty());
        let names = self.directory.names()?;
        let is_record = |name: &OsString| name.as_encoded_bytes().ends_with(SUFFIX.as_bytes());
        let read = names.into_iter().filter(is_record).filter_map(|name| self.read(&name).ok());
        Ok(read.filter(|record| !record.is_of(own)).collect())
    }

    fn read(&self, name: &OsStr) -> io::Result<Record> {
        let mut text = Vec::new();
        self.directory.open_file(name)?.take(LEN_MAX).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
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

/// Removes the records of jobs in the user's cache directory that have ended without removing them.
/// Returns how many jobs those were.
pub fn remove_old_records() -> usize {
    let Ok(jobs) =
        directory::create_cache().and_then(|it| it.private(JOBS.as_ref(), geteuid().as_raw()))
    else {
        return 0;
    };
    let is_old = |job: &OsString| {
        let modified = jobs.metadata(job).and_then(|found| found.modified());
        modified.is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age > OLD))
    };
    let old = jobs.names().unwrap_or_default().into_iter().filter(is_old);
    let removed = old.filter(|job| {
        let Ok(directory) = jobs.private(job, geteuid().as_raw()) else { return false };
        for name in directory.names().unwrap_or_default() {
            if name.as_encoded_bytes().ends_with(SUFFIX.as_bytes()) {
                let _ = directory.remove_file(&name);
            }
        }
        jobs.remove_directory(job).is_ok()
    });
    removed.count()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::*;

    fn settings(directory: &Path) -> Settings {
        Settings {
            is_required: false,
            directory: Some(directory.into()),
            interface: None,
            job: "slurm-7".into(),
            nodes: 2,
        }
    }

    fn record(certificate: &[u8]) -> Record {
        Record::new(vec!["10.0.0.1:7".parse().unwrap()], certificate, vec!["key".into()])
    }

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("jobs/slurm-7");
        (work, path)
    }

    #[test]
    fn daemons_find_the_records_of_others_until_these_end() {
        let (work, path) = directory();
        let [one, other] = [(), ()].map(|()| JobDirectory::open(&settings(work.path())).unwrap());
        let own = one.publish(&record(b"one")).unwrap();
        assert_eq!(one.records(b"one").unwrap(), []);
        let theirs = other.publish(&record(b"other")).unwrap();
        assert_eq!(one.records(b"one").unwrap(), [record(b"other")]);
        assert_eq!(other.records(b"other").unwrap(), [record(b"one")]);
        // Half of a record, and what is none.
        fs::write(path.join("half.json"), "{\"node\"").unwrap();
        fs::write(path.join("other"), "").unwrap();
        assert_eq!(one.records(b"one").unwrap(), [record(b"other")]);
        for name in ["half.json", "other"] {
            fs::remove_file(path.join(name)).unwrap();
        }
        drop(theirs);
        assert_eq!(one.records(b"one").unwrap(), []);
        assert!(path.exists());
        drop(own);
        assert!(!path.exists(), "the last one removes the directory");
    }

    #[test]
    fn records_are_kept_only_in_a_private_directory() {
        let (work, path) = directory();
        let open = || JobDirectory::open(&settings(work.path())).map(drop);
        open().unwrap();
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
