//! How much memory this process may use: the node's memory and the limits of its control groups.
//!
//! On a cluster, a job's control group usually has a limit far below the node's memory. Every group
//! above it may limit it too, so the smallest limit on the path to the root counts. Invariant: an
//! unreadable limit counts as no limit.

use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit};

use crate::os::control_group::{Group, Version};
use crate::os::kernel_file;

/// Memory that can still be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// Bytes.
    pub bytes: u64,
    /// What sets this bound.
    pub bound: Bound,
}

/// What limits the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The memory available on the node.
    Node,
    /// The limit of a control group, such as the job's.
    ControlGroup,
}

impl Bound {
    /// The start of a message, before an amount.
    pub fn leaves(self) -> &'static str {
        match self {
            Self::Node => "the node has",
            Self::ControlGroup => "the limit of the job leaves",
        }
    }
}

/// The smallest limit of this process and its control groups, or the memory available on the node,
/// in bytes. It is read once, so that all sizes derived from it are consistent.
pub fn limit() -> Option<u64> {
    static LIMIT: OnceLock<Option<u64>> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let groups = groups();
        let group = groups.iter().filter_map(Counted::limit).min();
        [available(), group, address_space()].into_iter().flatten().min()
    })
}

/// The headroom when first called, at the start of the process. Sizes derived from it leave room
/// for processes that already run.
pub fn headroom_at_start() -> Option<Headroom> {
    static LEFT: OnceLock<Option<Headroom>> = OnceLock::new();
    *LEFT.get_or_init(headroom)
}

/// The smaller limit of ulimit -v and ulimit -d, in bytes.
fn address_space() -> Option<u64> {
    [Resource::As, Resource::Data].into_iter().filter_map(|it| getrlimit(it).current).min()
}

/// Names what limits the memory of this process: the control group with the smallest limit, or the
/// node. Two processes get the same name if they share that bound. Of groups with equal limits the
/// highest counts, because batch systems give a job and each of its tasks the same limit.
pub fn job() -> String {
    let limited = groups().into_iter().rev().filter_map(|group| Some((group.limit()?, group)));
    let smallest = limited.min_by_key(|(limit, _)| *limit);
    // Not the available memory, which changes from one process to the next.
    let within = smallest.filter(|(limit, _)| total().is_none_or(|total| *limit < total));
    within.and_then(|(_, group)| group.0.key()).unwrap_or_else(|| "node".to_owned())
}

/// How much more memory the node and the control groups let this process use. Memory that the
/// kernel reclaims on demand, such as the page cache, counts as free.
pub fn headroom() -> Option<Headroom> {
    let node = available().map(|bytes| Headroom { bytes, bound: Bound::Node });
    let group = groups().iter().filter_map(Counted::headroom).min();
    let group = group.map(|bytes| Headroom { bytes, bound: Bound::ControlGroup });
    [node, group].into_iter().flatten().min_by_key(|left| left.bytes)
}

fn available() -> Option<u64> {
    meminfo("MemAvailable:")
}

fn total() -> Option<u64> {
    meminfo("MemTotal:")
}

fn meminfo(key: &str) -> Option<u64> {
    let text = kernel_file::read_text("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The groups of this process that count its memory, with all their ancestors.
fn groups() -> Vec<Counted> {
    Group::own("memory").into_iter().map(Counted).collect()
}

/// A group that may limit memory.
#[derive(Debug)]
struct Counted(Group);

/// The file names of a version.
#[derive(Debug)]
struct Names {
    limits: &'static [&'static str],
    usage: &'static str,
    /// Lines of memory.stat with the memory that the group and its descendants can reclaim. They do
    /// not include tmpfs files, which cannot be reclaimed without swap.
    reclaimable: &'static [&'static str],
}

/// Documentation/admin-guide/cgroup-v1/memory.rst of the kernel.
const VERSION_1: Names = Names {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: &["total_active_file", "total_inactive_file"],
};

/// Documentation/admin-guide/cgroup-v2.rst. Above memory.high processes are not killed, but slowed
/// down until they almost stop.
const VERSION_2: Names = Names {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: &["active_file", "inactive_file", "slab_reclaimable"],
};

impl Counted {
    fn names(&self) -> &'static Names {
        match self.0.version {
            Version::One => &VERSION_1,
            Version::Two => &VERSION_2,
        }
    }

    fn limit(&self) -> Option<u64> {
        // "max" does not parse. Version 1 writes about 2^63 for no limit, which the minimum
        // ignores.
        let limits = self.names().limits.iter().filter_map(|name| self.0.number(name));
        limits.min()
    }

    /// Bytes that its limit leaves.
    fn headroom(&self) -> Option<u64> {
        let stat = kernel_file::read_text(self.0.directory.join("memory.stat")).unwrap_or_default();
        let reclaimable: u64 = stat
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| self.names().reclaimable.contains(name))
            .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
            .fold(0, u64::saturating_add);
        let used = self.0.number(self.names().usage).unwrap_or(0).saturating_sub(reclaimable);
        Some(self.limit()?.saturating_sub(used))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// A hierarchy of files with these contents.
    fn fake(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn smallest(
        files: &[(&str, &str)],
        version: Version,
        of: fn(&Counted) -> Option<u64>,
    ) -> Option<u64> {
        let root = fake(files);
        let groups = Group::up_to_the_root(root.path(), Path::new("slurm/job"), version);
        groups.into_iter().map(Counted).filter_map(|group| of(&group)).min()
    }

    #[test]
    fn uses_the_smallest_limit_on_the_path_to_the_root() {
        let mut files = vec![
            ("slurm/job/memory.max", "max\n"),
            ("slurm/memory.max", "4096\n"),
            ("memory.max", "8192\n"),
        ];
        assert_eq!(smallest(&files, Version::Two, Counted::limit), Some(4096));
        files.push(("slurm/job/memory.high", "1024\n"));
        assert_eq!(smallest(&files, Version::Two, Counted::limit), Some(1024));
        assert_eq!(smallest(&files[..1], Version::Two, Counted::limit), None);
    }

    #[test]
    fn page_cache_counts_as_free_and_memory_of_processes_and_tmpfs_does_not() {
        let stat = "anon 3000\nfile 2500\nshmem 1000\ninactive_anon 4000\nactive_file 900\n\
                    inactive_file 600\nslab_reclaimable 100\n";
        let files = [
            ("slurm/job/memory.max", "10000\n"),
            ("slurm/job/memory.current", "5600\n"),
            ("slurm/job/memory.stat", stat),
        ];
        assert_eq!(smallest(&files, Version::Two, Counted::headroom), Some(10_000 - 4000));

        let stat = "cache 99\nactive_file 1\ninactive_file 1\ntotal_active_file 900\n\
                    total_inactive_file 600\n";
        let files = [
            ("slurm/job/memory.limit_in_bytes", "9223372036854771712\n"),
            ("slurm/job/memory.usage_in_bytes", "5500\n"),
            ("slurm/job/memory.stat", stat),
            ("slurm/memory.limit_in_bytes", "10000\n"),
            ("slurm/memory.usage_in_bytes", "5500\n"),
            ("slurm/memory.stat", stat),
        ];
        assert_eq!(smallest(&files, Version::One, Counted::headroom), Some(10_000 - 4000));
    }

    #[test]
    fn a_group_over_its_limit_has_nothing_left() {
        let files = [("memory.max", "100\n"), ("memory.current", "101\n")];
        assert_eq!(smallest(&files, Version::Two, Counted::headroom), Some(0));
    }

    #[test]
    fn this_machine_has_memory() {
        let left = headroom().unwrap();
        assert!(left.bytes > 0 && limit().unwrap() > 0, "{left:?}");
    }
}
