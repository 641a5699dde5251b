//! Finds processes that a command left running and that still use the mount.
//!
//! Invariant: this reads /proc and follows no link in it, so a mount that does not answer cannot
//! make it hang.

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::process::{getpgrp, getpid};

use crate::os::process;

/// Processes of this process group that descend from this process and have something of
/// `mount_point` open, mapped, or as their working directory, root or program.
///
/// This process must be a subreaper. Otherwise orphans are no longer its descendants.
pub(in crate::lifecycle) fn users_of(mount_point: &Path) -> Vec<i32> {
    let own = getpid().as_raw_nonzero().get();
    let group = getpgrp().as_raw_nonzero().get();
    let processes = fs::read_dir("/proc").into_iter().flatten();
    let parents: HashMap<i32, (i32, i32)> = processes
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = process::stat(pid)?;
            Some((pid, (stat.parent, stat.group)))
        })
        .collect();
    let is_descendant = |pid: i32| {
        let mut ancestor = pid;
        // If processes start or end during the scan, a process may seem to be its own ancestor.
        for _ in 0..parents.len() {
            match parents.get(&ancestor) {
                Some((parent, _)) if *parent == own => return true,
                Some((parent, _)) => ancestor = *parent,
                None => return false,
            }
        }
        false
    };
    let mut users: Vec<i32> = parents
        .iter()
        .filter(|(pid, (_, process_group))| *process_group == group && **pid != own)
        .map(|(pid, _)| *pid)
        .filter(|pid| is_descendant(*pid) && uses(*pid, mount_point))
        .collect();
    users.sort_unstable();
    users
}

fn uses(pid: i32, mount_point: &Path) -> bool {
    let proc_directory = format!("/proc/{pid}");
    let links = ["cwd", "root", "exe"].map(|name| Path::new(&proc_directory).join(name));
    let open = fs::read_dir(Path::new(&proc_directory).join("fd")).into_iter().flatten();
    let open = open.filter_map(|entry| Some(entry.ok()?.path()));
    if links
        .into_iter()
        .chain(open)
        .filter_map(|link| fs::read_link(link).ok())
        .any(|file| file.starts_with(mount_point))
    {
        return true;
    }
    let mapped = fs::read(Path::new(&proc_directory).join("maps")).unwrap_or_default();
    // The path follows five fields. A newline in it is written as \012.
    mapped.split(|&byte| byte == b'\n').any(|line| {
        let path = line.iter().position(|&byte| byte == b'/').map(|start| &line[start..]);
        path.is_some_and(|path| {
            Path::new(std::ffi::OsStr::from_bytes(path)).starts_with(mount_point)
        })
    })
}
