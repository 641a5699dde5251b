//! The control groups of a process, versions 1 and 2: directories of files with limits.
//!
//! A group is found by joining the path in /proc/PID/cgroup to the mount of its hierarchy. The root
//! of that mount is in /proc/self/mountinfo. Path and root are relative to the control group
//! namespace of the reader:
//!
//! | path in `cgroup` | root in `mountinfo` | group below the mount point |
//! |---|---|---|
//! | `/slurm/job_1` | `/` | `slurm/job_1` |
//! | `/slurm/job_1` | `/slurm` (bind mount of a subtree) | `job_1` |
//! | `/slurm/job_1` | `/other` | not below it |
//! | `/step` | `/../..` (mounted before the namespace was created) | `?/?/step` |
//!
//! In the last case the kernel hides the names between the root of the mount and the root of the
//! namespace. The group is then the directory at that depth whose `cgroup.procs` lists the process.
//! If there is none, the root of the mount is still a group above the process, and its limit
//! counts.
//!
//! The groups above count too, because each of them may limit the process. Groups above the root of
//! a mount cannot be read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::os::kernel_file;
use crate::os::mountinfo::{self, MountEntry};

/// The version of a group's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Documentation/admin-guide/cgroup-v1 of the kernel.
    One,
    /// Documentation/admin-guide/cgroup-v2.rst.
    Two,
}

/// A control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The directory of its files.
    pub directory: PathBuf,
    /// The version of its files.
    pub version: Version,
}

impl Group {
    /// The groups of this process that may limit what `controller` accounts for, each followed by
    /// its ancestors.
    pub fn own(controller: &str) -> Vec<Self> {
        let groups = kernel_file::read("/proc/self/cgroup").unwrap_or_default();
        let mounts = mountinfo::all().unwrap_or_default();
        let pid = rustix::process::getpid().as_raw_nonzero().to_string();
        String::from_utf8_lossy(&groups)
            .lines()
            .filter_map(|line| membership(line, controller))
            .flat_map(|(path, version)| {
                let mounts = mounts.iter().filter(move |mount| shows(mount, controller, version));
                mounts.filter_map(move |mount| {
                    Some((mount, Location::of(path, &mount.root.to_string_lossy())?, version))
                })
            })
            .flat_map(|(mount, location, version)| {
                let group = location.find(&mount.mount_point, &pid).unwrap_or_default();
                Self::up_to_the_root(&mount.mount_point, &group, version)
            })
            .collect()
    }

    /// The group `group` below `root`, followed by its ancestors.
    pub fn up_to_the_root(root: &Path, group: &Path, version: Version) -> Vec<Self> {
        group.ancestors().map(|group| Self { directory: root.join(group), version }).collect()
    }

    /// The number in its file `name`; `None` if the file holds no number, such as `max`.
    pub fn number(&self, name: &str) -> Option<u64> {
        kernel_file::read_text(self.directory.join(name)).ok()?.trim().parse().ok()
    }

    /// A key that is unique on this node in any namespace: device and inode number of its
    /// directory.
    pub fn key(&self) -> Option<String> {
        let metadata = fs::metadata(&self.directory).ok()?;
        Some(format!("{:x}-{:x}", metadata.dev(), metadata.ino()))
    }
}

/// The path in a line of /proc/PID/cgroup, if the hierarchy may have `controller`.
fn membership<'l>(line: &'l str, controller: &str) -> Option<(&'l str, Version)> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    match controllers {
        "" => Some((path, Version::Two)),
        _ if controllers.split(',').any(|part| part == controller) => Some((path, Version::One)),
        _ => None,
    }
}

/// Whether `mount` belongs to the hierarchy that has `controller` in that version.
fn shows(mount: &MountEntry, controller: &str, version: Version) -> bool {
    match version {
        Version::One => {
            mount.kind == "cgroup" && mount.options.split(',').any(|part| part == controller)
        }
        Version::Two => mount.kind == "cgroup2",
    }
}

/// The location of a group below the root of a mount.
#[derive(Debug, PartialEq, Eq)]
struct Location {
    /// Number of names the kernel hides.
    hidden: usize,
    /// The path below those.
    path: PathBuf,
}

impl Location {
    /// The location of the group `path` below `root`, both relative to the namespace; `None` if it
    /// is not below `root`.
    fn of(path: &str, root: &str) -> Option<Self> {
        let [path, root] = [path, root]
            .map(|path| path.split('/').filter(|name| !name.is_empty()).collect::<Vec<_>>());
        let common = path.iter().zip(&root).take_while(|(part, other)| part == other).count();
        let (path, root) = (path.get(common..)?, root.get(common..)?);
        let is_below = root.iter().all(|&name| name == "..") && !path.contains(&"..");
        is_below.then(|| Self { hidden: root.len(), path: path.iter().collect() })
    }

    /// The path below `directory`. If names are hidden, that of the group that lists `pid`.
    fn find(&self, directory: &Path, pid: &str) -> Option<PathBuf> {
        match self.hidden {
            0 => Some(self.path.clone()),
            hidden => {
                let mut found = PathBuf::new();
                self.search(directory, hidden, pid, &mut found).then(|| found.join(&self.path))
            }
        }
    }

    /// Extends `found` with the names of `hidden` levels of directories below `directory`.
    fn search(&self, directory: &Path, hidden: usize, pid: &str, found: &mut PathBuf) -> bool {
        let Some(deeper) = hidden.checked_sub(1) else {
            let members = fs::read_to_string(directory.join(&self.path).join("cgroup.procs"));
            return members.is_ok_and(|members| members.lines().any(|member| member == pid));
        };
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let directories = entries.filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir()));
        for entry in directories {
            found.push(entry.file_name());
            if self.search(&entry.path(), deeper, pid, found) {
                return true;
            }
            found.pop();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_both_versions() {
        let two = membership("0::/system.slice/job_1", "memory");
        assert_eq!(two, Some(("/system.slice/job_1", Version::Two)));
        let part = membership("9:cpu,memory:/slurm/uid_1/job:2", "memory");
        assert_eq!(part, Some(("/slurm/uid_1/job:2", Version::One)));
        assert_eq!(membership("4:cpu,cpuacct:/x", "memory"), None);
    }

    #[test]
    fn finds_the_mount_of_a_controller_wherever_it_is() {
        let lines = b"\
35 31 0:32 /a\\040b /mnt/x\\134y rw shared:3 master:1 - cgroup none rw,cpu,memory
41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate
1 2 0:3 / /x rw
";
        let mounts: Vec<_> = mountinfo::entries(lines).collect();
        let [part, two] = &mounts[..] else {
            panic!("{mounts:?}");
        };
        assert!(shows(part, "memory", Version::One) && shows(part, "cpu", Version::One));
        assert!(!shows(part, "memory", Version::Two) && !shows(part, "pids", Version::One));
        assert!(shows(two, "memory", Version::Two) && !shows(two, "memory", Version::One));
    }

    #[test]
    fn joins_a_path_to_the_root_of_a_mount() {
        let known = |path, root| {
            let location = Location::of(path, root)?;
            assert_eq!(location.hidden, 0, "{path} {root}");
            Some(location.path)
        };
        for (path, root, below) in [
            ("/slurm/job_1", "/", Some("slurm/job_1")),
            ("/", "/", Some("")),
            // A bind mount of a subtree.
            ("/slurm/job_1", "/slurm", Some("job_1")),
            ("/slurm/job_1", "/slurm/job_1", Some("")),
            ("/slurm/job_1", "/slurm/job_1/step", None),
            ("/slurm/job_1", "/slurm/job_10", None),
            // A process outside the root of its namespace.
            ("/../../other", "/../..", Some("other")),
            ("/../other", "/", None),
        ] {
            assert_eq!(known(path, root), below.map(PathBuf::from), "{path} {root}");
        }
        let hidden = |path, root| Location::of(path, root).map(|it| (it.hidden, it.path));
        assert_eq!(hidden("/", "/.."), Some((1, PathBuf::new())));
        assert_eq!(hidden("/step/task", "/../.."), Some((2, "step/task".into())));
        assert_eq!(hidden("/../task", "/../.."), Some((1, "task".into())));
        assert_eq!(hidden("/", "/../other"), None);
    }

    #[test]
    fn finds_hidden_names_by_the_process() {
        let root = tempfile::tempdir().unwrap();
        for (group, members) in [
            ("a/step", "1\n20\n"),
            ("b/step", "3\n2\n"),
            ("b/other", "4\n"),
            ("c", "5\n"),
            ("c/d/step", "2\n"),
        ] {
            let group = root.path().join(group);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("cgroup.procs"), members).unwrap();
        }
        let found = |path, root_of_mount, pid| {
            Location::of(path, root_of_mount).unwrap().find(root.path(), pid)
        };
        assert_eq!(found("/step", "/..", "2"), Some("b/step".into()));
        assert_eq!(found("/", "/..", "5"), Some("c/".into()));
        assert_eq!(found("/step", "/../..", "2"), Some("c/d/step".into()));
        assert_eq!(found("/step", "/..", "4"), None);
    }
}
