//! How much memory the cache may use by default.
//!
//! Owns the look at the job's limits: a quarter of what the job may use, between 64 MiB and 16 GiB.
//! Invariant: a limit that can not be read is taken as none.
//!
//! A job on a cluster lives in a control group whose limit is far below the node's memory, and any
//! group above it may limit it too, so the smallest on the way to the root counts (v1 and v2).

use std::fs;
use std::path::{Path, PathBuf};

/// The smallest and the largest default, bytes.
const RANGE: (u64, u64) = (64 << 20, 16 << 30);

/// The default budget, bytes.
pub fn default_bytes() -> u64 {
    let available = [cgroup_limit(), available_memory()].into_iter().flatten().min();
    share(available)
}

fn share(available: Option<u64>) -> u64 {
    (available.unwrap_or(0) / 4).clamp(RANGE.0, RANGE.1)
}

/// MemAvailable of /proc/meminfo, bytes.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest memory limit of this process's control groups, bytes.
fn cgroup_limit() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    text.lines()
        .filter_map(group_folder)
        .filter_map(|(root, group, file)| smallest_on_the_way_up(&root, &group, file))
        .min()
}

/// For a line of /proc/self/cgroup: the hierarchy's root, the group below it, the limit's file
/// name.
fn group_folder(line: &str) -> Option<(PathBuf, PathBuf, &'static str)> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let group = PathBuf::from(group.trim_start_matches('/'));
    if controllers.is_empty() {
        Some((PathBuf::from("/sys/fs/cgroup"), group, "memory.max"))
    } else if controllers.split(',').any(|controller| controller == "memory") {
        Some((PathBuf::from("/sys/fs/cgroup/memory"), group, "memory.limit_in_bytes"))
    } else {
        None
    }
}

fn smallest_on_the_way_up(root: &Path, group: &Path, file: &str) -> Option<u64> {
    // "max" is no number, and v1 writes about 2^63 for no limit, which the minimum ignores.
    let limit = |group: &Path| -> Option<u64> {
        fs::read_to_string(root.join(group).join(file)).ok()?.trim().parse().ok()
    };
    group.ancestors().filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_quarter_within_the_range() {
        assert_eq!(share(Some(8 << 30)), 2 << 30);
        assert_eq!(share(Some(1 << 20)), 64 << 20);
        assert_eq!(share(Some(1 << 50)), 16 << 30);
        assert_eq!(share(None), 64 << 20);
    }

    #[test]
    fn knows_both_versions_of_control_groups() {
        let (root, group, file) = group_folder("0::/system.slice/job_1").unwrap();
        assert_eq!(
            root.join(group).join(file),
            Path::new("/sys/fs/cgroup/system.slice/job_1/memory.max")
        );
        let (root, group, file) = group_folder("9:memory:/slurm/uid_1/job_2").unwrap();
        assert_eq!(
            root.join(group).join(file),
            Path::new("/sys/fs/cgroup/memory/slurm/uid_1/job_2/memory.limit_in_bytes")
        );
        assert!(group_folder("4:cpu,cpuacct:/x").is_none());
    }

    #[test]
    fn heeds_the_smallest_limit_on_the_way_to_the_root() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("slurm/job")).unwrap();
        fs::write(root.path().join("slurm/job/memory.max"), "max\n").unwrap();
        fs::write(root.path().join("slurm/memory.max"), "4096\n").unwrap();
        fs::write(root.path().join("memory.max"), "8192\n").unwrap();
        let limit = smallest_on_the_way_up(root.path(), Path::new("slurm/job"), "memory.max");
        assert_eq!(limit, Some(4096));
    }
}
