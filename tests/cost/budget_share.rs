//! All mounts of a job share one budget for their caches.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::cgroup::{Bound, Group};
use crate::support::mount::{CleanUp, Mounted, unmount};
use crate::support::stage::has_ended;
use crate::support::{archfs, image, run, skip_without_mounts, wait_until, work_directory};

const MIB: u64 = 1 << 20;

/// Memory of the job; its mounts share a quarter of it.
const LIMIT: u64 = 1024 * MIB;

/// The current cache budget of a mount, in bytes.
fn budget(mount_point: &Path) -> u64 {
    let output = run(archfs().args(["stats", "--json"]).arg(mount_point));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    json["cache_budget_bytes"].as_u64().unwrap()
}

/// Waits until each mount has a budget of `bytes`.
fn wait_for_budget(bytes: u64, mount_points: &[PathBuf]) {
    for mount_point in mount_points {
        let what = format!("{} has {bytes} bytes", mount_point.display());
        wait_until(&what, || budget(mount_point) == bytes);
    }
}

/// A command prefix that runs a command in the group.
fn within(group: &Group) -> [String; 4] {
    let enter = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", group.directory().display());
    ["sh", "-c", &enter, "sh"].map(str::to_owned)
}

/// A job with LIMIT, or `None` if the test cannot run here.
fn job() -> Option<Group> {
    let group = (!skip_without_mounts()).then(|| Group::new(Bound::Memory))??;
    group.set(LIMIT);
    Some(group)
}

fn mount(group: &Group, image: &Path, mount_point: &Path, options: &[&str]) -> Mounted {
    let words = within(group);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    Mounted::several(&words, &[image.to_owned()], mount_point, options)
}

/// > **Budget**: all mounts of a job on a node share one budget for their caches, unless `--cache`
/// > gives a mount its own.
#[test]
fn eight_daemons_share_a_quarter_of_the_job_and_the_last_one_gets_all() {
    let Some(group) = job() else {
        return;
    };
    let work = work_directory();
    let image = image::small(work.path());
    let mount_points: Vec<_> =
        (0..8).map(|rank| work.path().join(format!("rank-{rank}"))).collect();
    let _clean_up: Vec<_> = mount_points.iter().cloned().map(CleanUp).collect();
    let mounts: Vec<_> =
        mount_points.iter().map(|mount_point| mount(&group, &image, mount_point, &[])).collect();
    // The newest mount takes its share before it is ready.
    assert_eq!(budget(&mount_points[7]), LIMIT / 4 / 8);
    wait_for_budget(LIMIT / 4 / 8, &mount_points);
    let sum: u64 = mount_points.iter().map(|mount_point| budget(mount_point)).sum();
    assert_eq!(sum, LIMIT / 4);

    // However a daemon ends, the others get its share.
    let killed = Pid::from_raw(mounts[1].daemon().try_into().unwrap()).unwrap();
    kill_process(killed, Signal::KILL).unwrap();
    wait_until("the daemon has ended", || has_ended(killed));
    let [first, dead] = [0, 1].map(|nth: usize| mount_points[nth].clone());
    unmount(&dead);
    unmount(&first);
    wait_for_budget(LIMIT / 4 / 6, &mount_points[2..]);
    mount_points[2..7].iter().for_each(|mount_point| unmount(mount_point));
    wait_for_budget(LIMIT / 4, &mount_points[7..]);
}

#[test]
fn a_private_mount_shares_the_budget() {
    let Some(group) = job() else {
        return;
    };
    let work = work_directory();
    let image = image::small(work.path());
    let mount_point = work.path().join("mount");
    let _mounted = mount(&group, &image, &mount_point, &[]);
    wait_for_budget(LIMIT / 4, std::slice::from_ref(&mount_point));
    let words = within(&group);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(env!("CARGO_BIN_EXE_archfs")).args(["run", "--private"]);
    command.arg(&image).arg(work.path().join("private")).args(["--", "cat"]);
    let mut private = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    wait_for_budget(LIMIT / 8, std::slice::from_ref(&mount_point));
    drop(private.stdin.take());
    assert!(private.wait().unwrap().success());
    wait_for_budget(LIMIT / 4, std::slice::from_ref(&mount_point));
}

#[test]
fn an_explicit_budget_is_not_shared() {
    let Some(group) = job() else {
        return;
    };
    let work = work_directory();
    let image = image::small(work.path());
    let [default, explicit] = ["default", "explicit"].map(|name| work.path().join(name));
    let _mounted = mount(&group, &image, &default, &[]);
    let _other = mount(&group, &image, &explicit, &["--cache=100M"]);
    assert_eq!(budget(&explicit), 100 * MIB);
    wait_for_budget(LIMIT / 4, std::slice::from_ref(&default));
}
