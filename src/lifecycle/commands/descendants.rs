//! What a command leaves running when it ends.
//!
//! Owns finding those processes and whether they use the mount. Invariant: /proc is only read, and
//! no link in it is followed, so a mount that does not answer can not make this hang.

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::process::{getpgrp, getpid};

use crate::lifecycle::system::process;

/// The processes of this process group that descend from this process and have something of
/// `mount_point` open, mapped, or as their working directory.
///
/// This process must be a subreaper, else orphans are no longer its descendants.
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
    let descends = |pid: i32| {
        let mut ancestor = pid;
        // A process that starts while this is read may seem to be its own ancestor.
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
        .filter(|(pid, (_, its_group))| *its_group == group && **pid != own)
        .map(|(pid, _)| *pid)
        .filter(|pid| descends(*pid) && uses(*pid, mount_point))
        .collect();
    users.sort_unstable();
    users
}

fn uses(pid: i32, mount_point: &Path) -> bool {
    let folder = format!("/proc/{pid}");
    let links = ["cwd", "root", "exe"].map(|name| Path::new(&folder).join(name));
    let open = fs::read_dir(Path::new(&folder).join("fd")).into_iter().flatten();
    let open = open.filter_map(|entry| Some(entry.ok()?.path()));
    if links
        .into_iter()
        .chain(open)
        .filter_map(|link| fs::read_link(link).ok())
        .any(|file| file.starts_with(mount_point))
    {
        return true;
    }
    let mapped = fs::read(Path::new(&folder).join("maps")).unwrap_or_default();
    // The path stands behind five fields, with newlines as \012.
    mapped.split(|&byte| byte == b'\n').any(|line| {
        let path = line.iter().position(|&byte| byte == b'/').map(|start| &line[start..]);
        path.is_some_and(|path| {
            Path::new(std::ffi::OsStr::from_bytes(path)).starts_with(mount_point)
        })
    })
}
