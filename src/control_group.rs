//! The control groups of this process: folders of files with limits, of both versions.
//!
//! Owns finding them in /proc/self/cgroup; leaves what is in their files to those who ask for it.
//! Invariant: the groups above come, too, for any group on the way to the root may limit what this
//! process may take.

use std::fs;
use std::path::{Path, PathBuf};

/// How the files of a group are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Documentation/admin-guide/cgroup-v1 of the kernel.
    One,
    /// Documentation/admin-guide/cgroup-v2.rst.
    Two,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where its files are.
    pub folder: PathBuf,
    /// How they are called.
    pub version: Version,
}

impl Group {
    /// The groups of this process that may limit what `controller` counts, each with those above
    /// it.
    pub fn own(controller: &str) -> Vec<Self> {
        let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        text.lines()
            .filter_map(|line| hierarchy(line, controller))
            .flat_map(|(root, group, version)| Self::up_to_the_root(&root, &group, version))
            .collect()
    }

    /// The group `group` below `root`, and those above it.
    pub fn up_to_the_root(root: &Path, group: &Path, version: Version) -> Vec<Self> {
        group.ancestors().map(|group| Self { folder: root.join(group), version }).collect()
    }

    /// The number in its file `name`, unless that holds none, such as `max`.
    pub fn number(&self, name: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(name)).ok()?.trim().parse().ok()
    }
}

/// For a line of /proc/self/cgroup: the hierarchy's root, the group below it, its version.
fn hierarchy(line: &str, controller: &str) -> Option<(PathBuf, PathBuf, Version)> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let group = PathBuf::from(group.trim_start_matches('/'));
    let root = Path::new("/sys/fs/cgroup");
    if controllers.is_empty() {
        Some((root.to_owned(), group, Version::Two))
    } else if controllers.split(',').any(|one| one == controller) {
        Some((root.join(controller), group, Version::One))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_both_versions() {
        let (root, group, version) = hierarchy("0::/system.slice/job_1", "memory").unwrap();
        assert_eq!(root.join(group), Path::new("/sys/fs/cgroup/system.slice/job_1"));
        assert_eq!(version, Version::Two);
        let (root, group, version) = hierarchy("9:memory:/slurm/uid_1/job_2", "memory").unwrap();
        assert_eq!(root.join(group), Path::new("/sys/fs/cgroup/memory/slurm/uid_1/job_2"));
        assert_eq!(version, Version::One);
        assert!(hierarchy("4:cpu,cpuacct:/x", "memory").is_none());
        assert!(hierarchy("8:pids:/x", "pids").is_some());
    }
}
