//! archfs finds the memory limit of its control group wherever the hierarchy is mounted.

use std::process::Command;

use serde_json::Value;

use crate::support::cgroup::{Bound, Group};
use crate::support::{skip_without_mounts, work_directory};

const LIMIT: u64 = 512 << 20;

/// The cache size in bytes that a mount would have in the group. `change` is a script that first
/// changes the mounts of that process alone; `starter` starts it.
fn cache(group: &Group, change: &str, starter: &str) -> u64 {
    let script = format!("set -e; {change} exec {starter} \"$1\" doctor --json");
    let mut command = Command::new("sh");
    let enter = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", group.directory().display());
    command.args(["-c", &enter, "sh", "unshare", "-m", "sh", "-c", &script, "sh"]);
    let output = command.arg(env!("CARGO_BIN_EXE_archfs")).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{change}: {error}: {}", String::from_utf8_lossy(&output.stderr))
    });
    json["numbers"]["cache"].as_u64().unwrap()
}

/// A group with the limit; `None` if none can be made.
fn limited() -> Option<Group> {
    if skip_without_mounts() {
        return None;
    }
    let group = Group::new(Bound::Memory)?;
    group.set(LIMIT);
    Some(group)
}

#[test]
fn finds_the_limit_at_the_usual_mount_point() {
    let Some(group) = limited() else {
        return;
    };
    assert_eq!(cache(&group, "", ""), LIMIT / 4);
}

#[test]
fn finds_the_limit_in_a_cgroup_namespace_without_a_new_mount() {
    let Some(group) = limited() else {
        return;
    };
    assert_eq!(cache(&group, "", "unshare -C"), LIMIT / 4);
}

#[test]
fn finds_the_limit_below_a_bind_mount_of_a_subtree() {
    let Some(group) = limited() else {
        return;
    };
    let work = work_directory();
    let (directory, mount_point) = (group.directory().display(), work.path().display());
    let change =
        format!("mount --bind {directory} {mount_point}; mount -t tmpfs none /sys/fs/cgroup;");
    assert_eq!(cache(&group, &change, ""), LIMIT / 4);
    // The mount's root is the group of the namespace.
    assert_eq!(cache(&group, &change, "unshare -C"), LIMIT / 4);
}

#[test]
fn finds_the_limit_if_the_controller_is_mounted_elsewhere() {
    let Some(group) = limited() else {
        return;
    };
    let work = work_directory();
    let mount_point = work.path().join("a b");
    std::fs::create_dir(&mount_point).unwrap();
    let words = group.mount_words();
    let hide = "mount -t tmpfs none /sys/fs/cgroup;";
    let change = format!("{hide} mount {words} '{}';", mount_point.display());
    assert_eq!(cache(&group, &change, ""), LIMIT / 4);
}

#[test]
fn uses_the_memory_of_the_node_if_the_hierarchy_is_not_mounted() {
    let Some(group) = limited() else {
        return;
    };
    // This is the result if archfs ignores the mount table, so the tests above would fail.
    let hide = "mount -t tmpfs none /sys/fs/cgroup;";
    assert_ne!(cache(&group, hide, ""), LIMIT / 4);
}
