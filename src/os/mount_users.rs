//! Processes that still have a mount which was unmounted here.
//!
//! A mount namespace has its own copy of a mount. A container or a service that was started while
//! the mount existed keeps its copy until its last process exits, unless the unmount propagates to
//! it. After a lazy unmount, open and mapped files also keep the file system.
//!
//! Invariant: this reads only what the kernel generates, and follows no link in /proc, so no file
//! system can make it hang. A process that /proc does not show is not found.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::os::kernel_file;
use crate::os::mountinfo::{self, MountEntry, MountId};
use crate::os::process::{self, ProcessId};

/// How long to search. Some 10,000 processes take a second.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// A process that still has the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountUser {
    pub(crate) pid: i32,
    pub(crate) name: String,
    /// Where its mount namespace has the mount; `None` if it only has files open.
    pub(crate) mounted_at: Option<PathBuf>,
}

/// The processes that still have `mount`, in the order of their ids, apart from the process
/// `daemon`.
pub(crate) fn of(mount: &MountId, daemon: Option<i32>) -> Vec<MountUser> {
    of_within(mount, daemon, TIME_LIMIT)
}

fn of_within(mount: &MountId, daemon: Option<i32>, limit: Duration) -> Vec<MountUser> {
    let deadline = Instant::now() + limit;
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let own = namespace(Path::new("/proc/self")).unwrap_or_default();
    // By namespace, whether and where it has the mount.
    let mut known = HashMap::from([(own, None)]);
    let mut found = Vec::new();
    for pid in process::all() {
        if Instant::now() >= deadline {
            break;
        }
        let process = PathBuf::from(format!("/proc/{pid}"));
        // The namespace of another user's process is unknown, but its mounts can be read.
        let mounted_at = match namespace(&process) {
            Some(namespace) => {
                known.entry(namespace).or_insert_with(|| place_of(mount, &process)).clone()
            }
            None => place_of(mount, &process),
        };
        if Some(pid) != daemon
            && (mounted_at.is_some() || has_open(mount, &process))
            && let Ok(process) = ProcessId::of(pid)
        {
            found.push(MountUser { pid, name: process.name(), mounted_at });
        }
    }
    found.sort_unstable_by_key(|user| user.pid);
    found
}

/// Where the namespace of `process`, a directory of /proc, has `mount`.
fn place_of(mount: &MountId, process: &Path) -> Option<PathBuf> {
    let table = kernel_file::read(process.join("mountinfo")).ok()?;
    let mut entries = mountinfo::entries(&table);
    // The kernel may have given the number to another file system since.
    let is_it = |entry: &MountEntry| entry.device == mount.device && entry.is_archfs();
    entries.find(is_it).map(|entry| entry.mount_point)
}

/// Whether `process` has files of `mount` open or mapped.
fn has_open(mount: &MountId, process: &Path) -> bool {
    let is_of_mount = |text: String| {
        let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        id.is_some_and(|id| id.trim().parse() == Ok(mount.id))
    };
    let open = fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten();
    if open.into_iter().filter_map(|file| kernel_file::read_text(file.path()).ok()).any(is_of_mount)
        && !is_listed(mount.id, process)
    {
        return true;
    }
    let Some(device) = device_in_maps(&mount.device) else { return false };
    let maps = kernel_file::read(process.join("maps")).unwrap_or_default();
    maps.split(|&byte| byte == b'\n').any(|line| {
        line.split(|&byte| byte == b' ').nth(3).is_some_and(|found| found == device.as_bytes())
    })
}

/// Whether the namespace of `process` has a mount with this id. An unmounted one has no entry, so
/// the kernel has given its id to another mount.
fn is_listed(id: u64, process: &Path) -> bool {
    let table = kernel_file::read(process.join("mountinfo")).unwrap_or_default();
    mountinfo::entries(&table).any(|entry| entry.id == id)
}

/// A device number such as `0:53` as /proc/PID/maps writes it: `00:35` (proc_pid_maps(5)).
fn device_in_maps(device: &str) -> Option<String> {
    let (major, minor) = device.split_once(':')?;
    let number = |text: &str| text.parse::<u32>().ok();
    Some(format!("{:02x}:{:02x}", number(major)?, number(minor)?))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// tests/lifecycle/namespaces.rs finds a process by an open file.
    #[test]
    fn finds_this_process_by_its_program_and_not_by_the_id_of_another_mount() {
        let own = ProcessId::own().unwrap().pid();
        let file = File::open("/proc/self/mountinfo").unwrap();
        let id = mountinfo::id_of(rustix::fd::AsFd::as_fd(&file)).unwrap();
        let reused = MountId { id, device: "0:1048575".to_owned() };
        assert!(!of(&reused, None).iter().any(|user| user.pid == own));
        let program = fs::metadata("/proc/self/exe").unwrap();
        let device = std::os::unix::fs::MetadataExt::dev(&program);
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let mapped = MountId { id: u64::MAX, device };
        assert!(has_open(&mapped, Path::new("/proc/self")));
        let hour = Duration::from_secs(3600);
        let has_own = |daemon| of_within(&mapped, daemon, hour).iter().any(|user| user.pid == own);
        assert!(has_own(None) && !has_own(Some(own)));
        let missing = MountId { id: u64::MAX, device: "0:1048575".to_owned() };
        assert!(!has_open(&missing, Path::new("/proc/self")));
    }

    #[test]
    fn device_numbers_are_written_in_hexadecimal_digits() {
        assert_eq!(device_in_maps("0:53").as_deref(), Some("00:35"));
        assert_eq!(device_in_maps("259:1048575").as_deref(), Some("103:fffff"));
        assert_eq!(device_in_maps("x"), None);
    }
}
