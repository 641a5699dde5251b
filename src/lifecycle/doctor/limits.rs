//! Open files, and processes and threads, against what a mount takes.
//!
//! Owns counting them. Invariant: a limit that can not be read is taken as none.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Resource, geteuid, getrlimit};

use crate::control_group::{Group, Version};
use crate::kernel_file;
use crate::lifecycle::daemon::session;

/// Open files of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// How many a process may have; archfs raises its own limit to this.
    pub most: Option<u64>,
    /// How many a mount takes, so that each of its threads has one.
    pub wanted: u64,
}

impl Descriptors {
    pub(super) fn probe(threads: usize) -> Self {
        let wanted = u64::try_from(session::descriptors(threads)).unwrap_or(u64::MAX);
        Self { most: getrlimit(Resource::Nofile).maximum, wanted }
    }
}

/// Processes and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processes {
    /// How many more the user may start (ulimit -u); `None` without such a limit, as for root.
    pub left_to_user: Option<u64>,
    /// How many more the job's control group may (pids.max).
    pub left_to_group: Option<u64>,
    /// How many threads a mount starts.
    pub wanted: u64,
}

impl Processes {
    pub(super) fn probe(threads: usize) -> Self {
        let is_root = geteuid().is_root();
        let most = getrlimit(Resource::Nproc).current.filter(|_| !is_root);
        Self {
            left_to_user: most.map(|most| most.saturating_sub(threads_of_user())),
            left_to_group: left_to_groups(&Group::own("pids")),
            // Besides those that answer: the session, the daemon, workers and the launcher.
            wanted: u64::try_from(threads).unwrap_or(u64::MAX).saturating_add(16),
        }
    }

    /// The smaller of both.
    pub fn left(&self) -> Option<u64> {
        [self.left_to_user, self.left_to_group].into_iter().flatten().min()
    }
}

fn left_to_groups(groups: &[Group]) -> Option<u64> {
    let left = |group: &Group| {
        // Both versions call them the same.
        let (Version::One | Version::Two) = group.version;
        let most = group.number("pids.max")?;
        Some(most.saturating_sub(group.number("pids.current").unwrap_or(0)))
    };
    groups.iter().filter_map(left).min()
}

/// Threads of this user on the node, as far as /proc shows them.
fn threads_of_user() -> u64 {
    let user = geteuid().as_raw();
    let Ok(folder) = fs::read_dir("/proc") else {
        return 0;
    };
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes =
        folder.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_number));
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
    fn the_group_with_the_least_left_counts() {
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
