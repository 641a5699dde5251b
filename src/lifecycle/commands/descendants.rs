//! Finds processes that a command left running, and those of them that still use the mount.
//!
//! Invariant: this reads /proc and follows no link in it, so a mount that does not answer cannot
//! make it hang.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::process::getpid;

use crate::os::process::{self, ProcessId, Stat};

/// Processes of this process group that descend from this process and have something of
/// `mount_point` open, mapped, or as their working directory, root or program.
///
/// This process must be a subreaper. Otherwise orphans are no longer its descendants.
pub(crate) fn users_of(mount_point: &Path) -> Vec<i32> {
    let processes = Processes::scan();
    // In a pid namespace it is 0 if the leader of the group is outside. rustix has no such group.
    let group_of = |pid: &i32| processes.0.get(pid).map(|found| found.group);
    let own = group_of(&own_pid());
    let is_in_group = |pid: &i32| own.is_some() && group_of(pid) == own;
    let mut users = processes.descendants(&HashSet::new());
    users.retain(|pid| is_in_group(pid) && uses(*pid, mount_point));
    users
}

/// All other processes that have something of `mount_point` open, or as their working directory,
/// root or program, as far as /proc shows.
pub(crate) fn all_users_of(mount_point: &Path) -> Vec<ProcessId> {
    let users = process::all().filter(|pid| *pid != own_pid() && has_open(*pid, mount_point));
    users.filter_map(|pid| ProcessId::of(pid).ok()).collect()
}

pub(crate) fn children() -> HashSet<i32> {
    process::children(own_pid()).into_iter().collect()
}

/// The descendants of this process, a subreaper, apart from `others` and their descendants.
pub(crate) fn all_except(others: &HashSet<i32>) -> Vec<ProcessId> {
    let found = Processes::scan().descendants(others).into_iter();
    found.filter_map(|pid| ProcessId::of(pid).ok()).collect()
}

/// All processes that /proc shows, by their ids.
struct Processes(HashMap<i32, Stat>);

impl Processes {
    fn scan() -> Self {
        Self(process::all().filter_map(|pid| Some((pid, process::stat(pid)?))).collect())
    }

    /// The descendants of this process, sorted, apart from `others` and their descendants.
    fn descendants(&self, others: &HashSet<i32>) -> Vec<i32> {
        let own = own_pid();
        let is_meant = |pid: i32| {
            let mut ancestor = pid;
            // If processes start or end during the scan, a process may seem to be its own ancestor.
            for _ in 0..self.0.len() {
                match self.0.get(&ancestor) {
                    _ if others.contains(&ancestor) => return false,
                    Some(found) if found.parent == own => return true,
                    Some(found) => ancestor = found.parent,
                    None => return false,
                }
            }
            false
        };
        let mut meant: Vec<i32> = self.0.keys().copied().filter(|pid| is_meant(*pid)).collect();
        meant.sort_unstable();
        meant
    }
}

fn own_pid() -> i32 {
    getpid().as_raw_nonzero().get()
}

fn has_open(pid: i32, mount_point: &Path) -> bool {
    let proc_directory = format!("/proc/{pid}");
    let links = ["cwd", "root", "exe"].map(|name| Path::new(&proc_directory).join(name));
    let open = fs::read_dir(Path::new(&proc_directory).join("fd")).into_iter().flatten();
    let open = open.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files = links.into_iter().chain(open).filter_map(|link| fs::read_link(link).ok());
    files.any(|file| file.starts_with(mount_point))
}

fn uses(pid: i32, mount_point: &Path) -> bool {
    if has_open(pid, mount_point) {
        return true;
    }
    let mapped = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    // The path follows five fields. A newline in it is written as \012.
    mapped.split(|&byte| byte == b'\n').any(|line| {
        let path = line.iter().position(|&byte| byte == b'/').map(|start| &line[start..]);
        path.is_some_and(|path| {
            Path::new(std::ffi::OsStr::from_bytes(path)).starts_with(mount_point)
        })
    })
}
