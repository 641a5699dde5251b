//! Limits of open files, processes and threads, and how many of each a mount needs.
//!
//! A limit that cannot be read counts as no limit.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Resource, geteuid, getrlimit};

use crate::lifecycle::daemon::session;
use crate::os::control_group::{Group, Version};
use crate::os::kernel_file;

/// The limit of open files of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// The hard limit, to which archfs raises its own limit.
    pub most: Option<u64>,
    /// The number that a mount needs for all its threads.
    pub wanted: u64,
}

impl Descriptors {
    pub(super) fn probe(threads: usize) -> Self {
        let wanted = u64::try_from(session::descriptors(threads)).unwrap_or(u64::MAX);
        Self { most: getrlimit(Resource::Nofile).maximum, wanted }
    }
}

/// The limits of processes and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processes {
    /// How many more the user may start (ulimit -u); `None` if there is no limit, as for root.
    pub left_to_user: Option<u64>,
    /// How many more the control group of the job may start (pids.max).
    pub left_to_group: Option<u64>,
    /// The number of threads that a mount starts.
    pub wanted: u64,
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
    pub fn left(&self) -> Option<u64> {
        [self.left_to_user, self.left_to_group].into_iter().flatten().min()
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
    let Ok(entries) = fs::read_dir("/proc") else {
        return 0;
    };
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes =
        entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_number));
    let own = processes.filter(|entry| entry.metadata().is_ok_and(|found| found.uid() == user));
    let threads =
        own.filter_map(|entry| kernel_file::status(&entry.path(), "Threads")?.parse::<u64>().ok());
    threads.sum()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
