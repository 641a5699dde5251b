//! Reports the statistics of a mount when it ends: as a JSON file, and as a line in the log.
//!
//! Invariants: nothing here ends or delays a mount, and every error is only a warning. The file is
//! complete or does not exist. Only an older report is overwritten: a mistyped name must not cost a
//! dataset.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::error::{Error, Kind, Result};
use crate::lifecycle::MountPlan;
use crate::lifecycle::daemon::snapshot::{Served, Snapshot};
use crate::os::directory::{Directory, parent_of};
use crate::os::new_file::{NewFile, Readers};
use crate::stats::Stats;
use crate::sync::Arc;

/// Prefix of a temporary name.
const PREFIX: &str = ".archfs-stats-";

/// What is reported of a mount when it ends.
pub(in crate::lifecycle) struct Report {
    served: Served,
    stats: Arc<Stats>,
    file: Option<PathBuf>,
    /// Whether the user asked for the summary.
    is_summarized: bool,
    /// Whether the log is a file that the user named.
    has_log_file: bool,
}

impl Report {
    /// The report of a mount that serves from now on. Checks at once whether the file can be
    /// written: when the mount ends there may be no terminal to warn on.
    pub(in crate::lifecycle) fn begin(plan: &MountPlan, stats: Arc<Stats>) -> Self {
        let (archives, mount_point) = (plan.archives.clone(), plan.mount_point.clone());
        let served = Served { archives, mount_point, since: Instant::now() };
        let file = plan.stats_json.clone();
        let is_summarized = plan.is_summarized();
        let has_log_file = plan.log_file.is_some();
        if let Some(Err(error)) = file.as_deref().map(check_writable) {
            log::warn!("{error}; mounting anyway");
        }
        Self { served, stats, file, is_summarized, has_log_file }
    }

    /// The statistics so far.
    pub(in crate::lifecycle) fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.served, &self.stats)
    }

    /// Writes the file, and returns the statistics so far. Call this after unmounting, before
    /// answering the processes that wait for that.
    pub(in crate::lifecycle) fn write(&self) -> Snapshot {
        let snapshot = self.snapshot();
        if let Some(Err(error)) = self.file.as_deref().map(|file| write(file, &snapshot)) {
            log::warn!("{error}");
        }
        snapshot
    }

    /// Writes the file and logs the summary: into the user's log file, or where the user asked for
    /// it, unless a process that waited for the end has received it (`is_reported`). Call this
    /// after unmounting, which must not wait for it, and when no more requests are counted: after
    /// the session, or just before exiting.
    pub(in crate::lifecycle) fn finish(&self, is_reported: bool) {
        let snapshot = self.write();
        if self.has_log_file || (self.is_summarized && !is_reported) {
            crate::log::note(format_args!("{}", snapshot.summary()));
        }
    }
}

/// Checks that `write` would succeed now. Leaves nothing behind.
fn check_writable(path: &Path) -> Result<()> {
    let directory = open_directory(path)?;
    NewFile::create(&directory, PREFIX).map(drop).map_err(failed(path))
}

/// Writes `snapshot` to a new file first, so that no reader ever sees half of it.
///
/// The user's umask decides who can read the file. Unlike the log it names no file of the dataset,
/// and jobs are often monitored by another user of the same group.
fn write(path: &Path, snapshot: &Snapshot) -> Result<()> {
    let directory = open_directory(path)?;
    let name = path.file_name().unwrap_or_default();
    let write = &mut |file: &mut File| writeln!(file, "{}", snapshot.json());
    NewFile::replace(&directory, name, Readers::by_umask(), write).map(drop).map_err(failed(path))
}

/// Opens the directory of the file, which must be missing, empty or start like JSON. Refuses a link
/// as well: it may be /dev/stderr, whose target must be appended to, not replaced.
fn open_directory(path: &Path) -> Result<Directory> {
    let directory = Directory::open(parent_of(path)).map_err(failed(path))?;
    let refused = || {
        let context =
            format!("{}: not overwritten, because it is not a statistics file", path.display());
        Err(Error::new(Kind::InvalidInput, context))
    };
    let name = path.file_name().unwrap_or_default();
    match directory.metadata(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(directory),
        Err(error) => return Err(failed(path)(error)),
        Ok(found) if !found.is_file() => return refused(),
        Ok(_) => {}
    }
    // Another process may just have put something else there. A pipe would wait for its writer.
    let file = directory.open_file(name).map_err(failed(path))?;
    let mut first = Vec::new();
    if file.metadata().map_err(failed(path))?.is_file() {
        file.take(1).read_to_end(&mut first).map_err(failed(path))?;
        if matches!(first.as_slice(), b"" | b"{") {
            return Ok(directory);
        }
    }
    refused()
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    |error| Error::io(format!("{}: cannot write", path.display()), error)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn snapshot() -> Snapshot {
        let served =
            Served { archives: vec!["/a".into()], mount_point: "/m".into(), since: Instant::now() };
        Snapshot::take(&served, &Stats::default())
    }

    #[test]
    fn replaces_an_older_report_and_leaves_no_temporary_file() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("stats.json");
        for _ in 0..2 {
            check_writable(&path).unwrap();
            write(&path, &snapshot()).unwrap();
            assert!(fs::read_to_string(&path).unwrap().ends_with("}\n"));
        }
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 1);
    }

    #[test]
    fn overwrites_nothing_else() {
        let work = tempfile::tempdir().unwrap();
        let dataset = work.path().join("data.sqfs");
        fs::write(&dataset, "hsqs").unwrap();
        let link = work.path().join("link");
        symlink(work.path().join("log"), &link).unwrap();
        for path in [&dataset, &link, work.path(), Path::new("/dev/null")] {
            assert!(check_writable(path).is_err() && write(path, &snapshot()).is_err());
        }
        assert_eq!(fs::read(&dataset).unwrap(), b"hsqs");
    }

    #[test]
    fn a_missing_directory_is_reported_at_the_start() {
        let work = tempfile::tempdir().unwrap();
        let error = check_writable(&work.path().join("none/stats.json")).unwrap_err();
        assert!(error.to_string().contains("none/stats.json: cannot write"), "{error}");
    }
}
