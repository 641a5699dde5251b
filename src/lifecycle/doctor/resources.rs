//! The resources that a mount needs: directories, records, open files, threads, memory.
//!
//! The numbers are those of this process, because a batch job has other limits than a login shell.
//! A limit that cannot be read counts as no limit.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use rustix::fs::statvfs;
use rustix::process::{Resource, geteuid, getrlimit};

use super::Check;
use crate::cache;
use crate::error::reason;
use crate::lifecycle::commands::list::{self, list};
use crate::lifecycle::daemon::session;
use crate::os::control_group::{Group, Version};
use crate::os::kernel_file;
use crate::os::memory::{self, Bound, Headroom};
use crate::os::process;
use crate::os::record_directory::RecordDirectory;
use crate::units::format_size;

/// Free space below which a directory counts as full, bytes.
const LITTLE_SPACE: u64 = 64 << 20;

/// Memory below which a mount is slow, bytes. A quarter of it is less than the default cache.
const LITTLE_MEMORY: u64 = 256 << 20;

/// Fewest threads with which a mount starts.
const MIN_THREADS: u64 = 8;

/// A directory in which users usually mount.
#[derive(Clone)]
pub(crate) struct MountParent {
    pub(super) path: PathBuf,
    pub(super) state: MountParentState,
}

#[derive(Clone)]
pub(super) enum MountParentState {
    /// A directory can be created in it; the free space in bytes.
    Writable(u64),
    /// Nothing can be created in it; the error.
    Refused(String),
    Missing,
}

/// The usual directories, and TMPDIR if it is another one.
pub(super) fn mount_parents() -> Vec<MountParent> {
    let mut paths = vec![PathBuf::from("/dev/shm"), PathBuf::from("/tmp")];
    let own = env::var_os("TMPDIR").map(PathBuf::from);
    if let Some(own) = own.filter(|own| own.is_absolute() && !paths.contains(own)) {
        paths.push(own);
    }
    paths.into_iter().map(|path| MountParent { state: MountParentState::of(&path), path }).collect()
}

impl MountParentState {
    fn of(path: &Path) -> Self {
        if !path.is_dir() {
            return Self::Missing;
        }
        if let Err(error) = unused_name(path) {
            return Self::Refused(reason(error));
        }
        let free_bytes =
            statvfs(path).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
        Self::Writable(free_bytes)
    }
}

/// Creates a directory in `path` and removes it; returns its path. Whatever another user exchanges
/// it with, only an empty directory is removed.
pub(super) fn unused_name(path: &Path) -> io::Result<PathBuf> {
    let created = tempfile::Builder::new().prefix("archfs-doctor-").tempdir_in(path)?.keep();
    fs::remove_dir(&created)?;
    Ok(created)
}

pub(super) fn check_mount_parents(parents: &[MountParent]) -> Check {
    const NAME: &str = "places";
    let describe = |parent: &MountParent| {
        let path = parent.path.display();
        match &parent.state {
            MountParentState::Writable(free) => format!("{path} {} free", format_size(*free)),
            MountParentState::Refused(why) => format!("{path} cannot be written ({why})"),
            MountParentState::Missing => format!("{path} does not exist"),
        }
    };
    let text = parents.iter().map(describe).collect::<Vec<_>>().join(", ");
    let free = |parent: &MountParent| match parent.state {
        MountParentState::Writable(free) => Some(free),
        _ => None,
    };
    if parents.iter().all(|parent| free(parent).is_none()) {
        return Check::problem(NAME, text, "set TMPDIR to a writable directory of the node");
    }
    if parents.iter().all(|parent| free(parent).is_some_and(|free| free >= LITTLE_SPACE)) {
        return Check::good(NAME, text);
    }
    Check::note_with(NAME, text, "mount and --stage where there is space")
}

/// Whether the record directory can be written.
pub(super) fn check_records() -> Check {
    const NAME: &str = "records";
    match RecordDirectory::check_writable() {
        Ok(directory) if directory.starts_with("/tmp") => {
            Check::good(NAME, directory.display().to_string())
        }
        Ok(directory) => {
            let text = format!("{}; /tmp cannot be written", directory.display());
            Check::note_with(NAME, text, "free space in /tmp")
        }
        Err(error) => {
            let remedy = error.hint().unwrap_or("free space in the directory above it");
            Check::problem(NAME, error.to_string(), remedy)
        }
    }
}

/// Mounts of this user that are stale, whose daemon does not answer, or that are served although
/// they are unmounted.
pub(super) fn check_mounts() -> Check {
    const NAME: &str = "mounts";
    let broken: Vec<_> = list()
        .unwrap_or_default()
        .into_iter()
        .filter(|mount| !matches!(mount.state, list::State::Alive | list::State::Unknown))
        .collect();
    if broken.is_empty() {
        return Check::good(NAME, "none is stale");
    }
    let describe = broken.iter().map(|mount| {
        let what = match mount.state {
            list::State::Stale => "is stale",
            list::State::Detached => "is unmounted but still served",
            _ => "does not answer",
        };
        format!("{} {what}", mount.mount_point.display())
    });
    let text = describe.collect::<Vec<_>>().join(", ");
    match broken.iter().any(|mount| mount.state == list::State::Stale) {
        true => Check::note_with(NAME, text, "archfs gc"),
        false => Check::note_with(NAME, text, "archfs list"),
    }
}

/// The limit of open files of a process.
pub(crate) struct Descriptors {
    /// The hard limit, to which archfs raises its own limit.
    pub(crate) most: Option<u64>,
    /// The number that a mount needs for all its threads.
    wanted: u64,
}

impl Descriptors {
    pub(super) fn probe(threads: usize) -> Self {
        let wanted = u64::try_from(session::descriptors(threads)).unwrap_or(u64::MAX);
        Self { most: getrlimit(Resource::Nofile).maximum, wanted }
    }

    pub(super) fn check(&self) -> Check {
        const NAME: &str = "open-files";
        let Self { most, wanted } = self;
        let Some(most) = most else {
            return Check::good(NAME, format!("no limit; {wanted} needed"));
        };
        let text = format!("{most} allowed; {wanted} needed");
        if most >= wanted {
            return Check::good(NAME, text);
        }
        let remedy = format!(
            "ask the administrator to raise the limit on open files to {wanted} (ulimit -Hn)"
        );
        Check::note_with(NAME, text, remedy)
    }
}

/// The limits of processes and threads.
pub(crate) struct Processes {
    /// How many more the user may start (ulimit -u); `None` if there is no limit, as for root.
    left_to_user: Option<u64>,
    /// How many more the control group of the job may start (pids.max).
    left_to_group: Option<u64>,
    /// The number of threads that a mount starts.
    wanted: u64,
}

impl Processes {
    pub(super) fn probe(threads: usize) -> Self {
        let is_root = geteuid().is_root();
        let most = getrlimit(Resource::Nproc).current.filter(|_| !is_root);
        Self {
            left_to_user: most.map(|most| most.saturating_sub(threads_of_user())),
            left_to_group: left_to_groups(&Group::own("pids")),
            // The others are threads of the session, the daemon, the workers and the launcher.
            wanted: u64::try_from(threads).unwrap_or(u64::MAX).saturating_add(16),
        }
    }

    /// The smaller of the two limits.
    pub(crate) fn left(&self) -> Option<u64> {
        [self.left_to_user, self.left_to_group].into_iter().flatten().min()
    }

    pub(super) fn check(&self) -> Check {
        const NAME: &str = "threads";
        let wanted = self.wanted;
        let Some(left) = self.left() else {
            return Check::good(NAME, format!("no limit; {wanted} needed"));
        };
        let text = format!("{left} allowed; {wanted} needed");
        if left >= wanted {
            return Check::good(NAME, text);
        }
        let limit = match self.left_to_user == Some(left) {
            true => "ulimit -u",
            false => "pids.max",
        };
        let text = format!("{text} ({limit})");
        let remedy = "mount with --threads 4";
        match left < MIN_THREADS {
            true => Check::problem(NAME, text, remedy),
            false => Check::note_with(NAME, text, remedy),
        }
    }
}

fn left_to_groups(groups: &[Group]) -> Option<u64> {
    let left = |group: &Group| {
        // Both versions of control groups use the same file names.
        let (Version::One | Version::Two) = group.version;
        let most = group.number("pids.max")?;
        Some(most.saturating_sub(group.number("pids.current").unwrap_or(0)))
    };
    groups.iter().filter_map(left).min()
}

/// The number of threads of this user on the node that /proc shows.
fn threads_of_user() -> u64 {
    let user = geteuid().as_raw();
    let processes = process::all().map(|pid| PathBuf::from(format!("/proc/{pid}")));
    let own = processes.filter(|path| fs::metadata(path).is_ok_and(|found| found.uid() == user));
    own.filter_map(|path| kernel_file::status(&path, "Threads")?.parse::<u64>().ok()).sum()
}

pub(crate) struct Memory {
    /// The memory that this process may still allocate.
    pub(crate) left: Option<Headroom>,
    /// The cache size in bytes that a mount without --cache would choose now.
    pub(crate) cache: u64,
    /// The limit of the address space (ulimit -v) in bytes.
    address_space: Option<u64>,
}

impl Memory {
    pub(super) fn probe() -> Self {
        Self {
            left: memory::headroom(),
            cache: cache::default_bytes(),
            address_space: getrlimit(Resource::As).current,
        }
    }

    pub(super) fn check(&self) -> Check {
        const NAME: &str = "memory";
        let cache = format_size(self.cache);
        let Some(left) = self.left else {
            // No remedy, because the memory may be sufficient.
            return Check::note(NAME, format!("unknown; default cache {cache}"));
        };
        let bound = match left.bound {
            Bound::Node => "on the node",
            Bound::ControlGroup => "to the job",
        };
        let text = format!("{} left {bound}; default cache {cache}", format_size(left.bytes));
        if let Some(space) = self.address_space {
            let text = format!("{text}; ulimit -v is {}", format_size(space));
            return Check::note_with(NAME, text, "ulimit -v unlimited");
        }
        if left.bytes < LITTLE_MEMORY {
            let remedy = "request more memory (--mem), or mount with --cache and --threads";
            return Check::note_with(NAME, text, remedy);
        }
        Check::good(NAME, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_with_the_fewest_left_counts() {
        let root = tempfile::tempdir().unwrap();
        let job = root.path().join("slurm/job");
        fs::create_dir_all(&job).unwrap();
        for (path, text) in [
            ("slurm/job/pids.max", "max\n"),
            ("slurm/job/pids.current", "5\n"),
            ("slurm/pids.max", "100\n"),
            ("slurm/pids.current", "70\n"),
        ] {
            fs::write(root.path().join(path), text).unwrap();
        }
        let groups = Group::up_to_the_root(root.path(), Path::new("slurm/job"), Version::Two);
        assert_eq!(left_to_groups(&groups), Some(30));
        assert_eq!(left_to_groups(&groups[..1]), None);
    }

    #[test]
    fn this_user_has_threads() {
        assert!(threads_of_user() > 0);
    }
}
