//! The account that a mount gives at its end: a file of JSON, and a line in the log.
//!
//! Owns when and where it is told; leaves the numbers to `snapshot`.
//! Invariants: nothing here ends or hinders a mount, what fails is a warning; the file is whole or
//! not there; nothing but an older account is overwritten, for a name typed wrong must not cost a
//! dataset.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::OFlags;

use crate::error::{Error, Kind, Result};
use crate::lifecycle::MountPlan;
use crate::lifecycle::daemon::snapshot::{Served, Snapshot};
use crate::log::tell;
use crate::stats::Stats;
use crate::sync::Arc;

/// What is told of a mount at its end.
pub(in crate::lifecycle) struct Report {
    served: Served,
    stats: Arc<Stats>,
    file: Option<PathBuf>,
}

impl Report {
    /// The report of a mount that serves from now on. Whether its file can be written is tried at
    /// once: at the end there may be no terminal left to say so.
    pub(in crate::lifecycle) fn begin(plan: &MountPlan, stats: Arc<Stats>) -> Self {
        let (archives, mountpoint) = (plan.archives.clone(), plan.mountpoint.clone());
        let served = Served { archives, mountpoint, since: Instant::now() };
        let file = plan.stats_json.clone();
        if let Some(Err(error)) = file.as_deref().map(try_to_write) {
            log::warn!("{error}; mounting all the same");
        }
        Self { served, stats, file }
    }

    /// The numbers so far.
    pub(in crate::lifecycle) fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.served, &self.stats)
    }

    /// Writes the file, and returns the numbers so far. To be called when the mount is gone, before
    /// those who wait for that are told.
    pub(in crate::lifecycle) fn write(&self) -> Snapshot {
        let snapshot = self.snapshot();
        if let Some(Err(error)) = self.file.as_deref().map(|file| write(file, &snapshot)) {
            log::warn!("{error}");
        }
        snapshot
    }

    /// Tells. To be called when the mount is gone, for unmounting must not wait for this, and the
    /// session has ended or nobody waits for it, for until then requests are answered. `is_told`
    /// says that the line was given to whoever waited for the end.
    pub(in crate::lifecycle) fn finish(&self, is_told: bool) {
        let snapshot = self.write();
        if !is_told {
            tell(format_args!("{}", snapshot.summary()));
        }
    }
}

/// Whether `write` would do now. Leaves nothing behind.
fn try_to_write(place: &Path) -> Result<()> {
    check_what_is_there(place)?;
    tempfile::tempfile_in(folder(place)).map(|_| ()).map_err(failed(place))
}

/// Writes `snapshot` beside `place` first, so that nobody ever sees half of it.
///
/// With the permissions to read that the user's umask leaves: unlike the log it names no file of
/// the dataset, and who watches over jobs is often another user of the same group.
fn write(place: &Path, snapshot: &Snapshot) -> Result<()> {
    check_what_is_there(place)?;
    let mut file = tempfile::Builder::new()
        .prefix(".archfs-stats-")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(folder(place))
        .map_err(failed(place))?;
    writeln!(file, "{}", snapshot.json()).map_err(failed(place))?;
    file.persist(place).map(|_| ()).map_err(|error| failed(place)(error.error))
}

/// Refuses anything but nothing, an empty file, or a file that begins as JSON does. A link, too: it
/// may be /dev/stderr, which leads to what must be appended to and not replaced.
fn check_what_is_there(place: &Path) -> Result<()> {
    let found = match fs::symlink_metadata(place) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(place)(error)),
    };
    let mut first = Vec::new();
    if found.is_file() {
        // Its owner may have put a link or a pipe there just now, which would wait for its writer.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let opened = File::options().read(true).custom_flags(flags).open(place);
        let opened = opened.map_err(failed(place))?;
        opened.take(1).read_to_end(&mut first).map_err(failed(place))?;
    }
    if found.is_file() && matches!(first.as_slice(), b"" | b"{") {
        return Ok(());
    }
    let context = format!("{}: holds something else: not overwritten", place.display());
    Err(Error::new(Kind::InvalidInput, context))
}

fn folder(place: &Path) -> &Path {
    place.parent().unwrap_or(Path::new("/"))
}

fn failed(place: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    |error| Error::io(format!("{}: can not be written", place.display()), error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn snapshot() -> Snapshot {
        let served =
            Served { archives: vec!["/a".into()], mountpoint: "/m".into(), since: Instant::now() };
        Snapshot::take(&served, &Stats::default())
    }

    #[test]
    fn replaces_an_older_account_and_leaves_nothing_beside_it() {
        let work = tempfile::tempdir().unwrap();
        let place = work.path().join("stats.json");
        for _ in 0..2 {
            try_to_write(&place).unwrap();
            write(&place, &snapshot()).unwrap();
            assert!(fs::read_to_string(&place).unwrap().ends_with("}\n"));
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
        for place in [&dataset, &link, work.path(), Path::new("/dev/null")] {
            assert!(try_to_write(place).is_err() && write(place, &snapshot()).is_err());
        }
        assert_eq!(fs::read(&dataset).unwrap(), b"hsqs");
    }

    #[test]
    fn a_folder_that_is_not_there_is_told_at_the_beginning() {
        let work = tempfile::tempdir().unwrap();
        let error = try_to_write(&work.path().join("none/stats.json")).unwrap_err();
        assert!(error.to_string().contains("none/stats.json: can not be written"), "{error}");
    }
}
