//! Kills the processes of a mount at random moments and checks that nothing is left: no mount,
//! socket, record, directory or process.
//!
//! `plan` draws what a round does, `round` runs it.
//!
//! ARCHFS_KILL_ROUNDS sets the number of rounds (300). ARCHFS_SEED repeats the choices of an
//! earlier run, but not the scheduling of its processes.

mod again;
mod files;
mod plan;
mod process;
mod reader;
mod round;
mod table;

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Instant, SystemTime};

use crate::support;
use crate::support::stale::one_at_a_time;
use plan::{Plan, ROOT};
use process::Processes;
use table::Table;

/// Rounds that run in parallel, each at its own mount point; most of a round is waiting.
const PARALLEL_ROUNDS: usize = 6;

/// Shared by all rounds.
struct Stage {
    work: PathBuf,
    image: PathBuf,
    source: PathBuf,
    users: [u32; 2],
    /// The program, where any user can run it, and this test program, which contains the readers.
    archfs: PathBuf,
    reader: PathBuf,
    processes: Processes,
    /// For each mount point: its user and the prefix of the files that archfs keeps for it.
    mount_points: HashMap<PathBuf, (u32, String)>,
}

#[test]
fn kills_leave_nothing_and_the_mount_point_works_again() {
    if support::skip_without_mounts() {
        return;
    }
    let number = |name: &str| Some(std::env::var(name).ok()?.parse::<u64>().expect(name));
    let rounds = number("ARCHFS_KILL_ROUNDS").unwrap_or(300);
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = number("ARCHFS_SEED").unwrap_or(clock.as_micros() as u64 % 1_000_000_000);
    say(&format!("killing: {rounds} rounds, ARCHFS_SEED={seed}\n"));
    let _restore = open_device();
    let directory = support::work_directory();
    let stage = stage(directory.path());

    let since = Instant::now();
    let (next, table, failures) = (AtomicU64::new(0), Mutex::default(), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for worker in 0..PARALLEL_ROUNDS {
            let (stage, next, table, failures) = (&stage, &next, &table, &failures);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= rounds {
                        return;
                    }
                    let plan = Plan::draw(seed, number, stage.users);
                    match round::play(stage, worker, &plan) {
                        Ok(seen) => Table::add(&mut table.lock().unwrap(), &plan, &seen),
                        Err(failure) => {
                            say(&format!("killing: {failure}\n"));
                            failures.lock().unwrap().push(failure);
                        }
                    }
                }
            });
        }
    });
    let table: Table = table.into_inner().unwrap();
    say(&format!("{table}{rounds} rounds took {:.0?}\n", since.elapsed()));
    let mut failures = failures.into_inner().unwrap();
    failures.extend(remains(&stage));
    assert!(
        failures.is_empty(),
        "ARCHFS_SEED={seed}: {} failures\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Not a test: each reader of a round runs this in its own process.
#[test]
#[ignore = "the readers of the test above"]
fn reads() {
    reader::main();
}

/// Writes past the test's output capture, because the table is of interest after a success as well.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn stage(work: &Path) -> Stage {
    fs::set_permissions(work, Permissions::from_mode(0o755)).unwrap();
    let source = work.join("source");
    reader::make_source(&source);
    let image = support::image::make(work, "image.sqfs", &source, &["-comp", "zstd"]);
    // The build directory may be accessible only to root.
    let (archfs, reader) = (work.join("archfs"), work.join("reader"));
    support::copy_program(&archfs);
    fs::copy(std::env::current_exe().unwrap(), &reader).unwrap();
    let users = plan::users();
    let mut mount_points = HashMap::new();
    for worker in 0..PARALLEL_ROUNDS {
        for user in [ROOT].into_iter().chain(users) {
            let parent = work.join(format!("{worker}/{user}"));
            fs::create_dir_all(&parent).unwrap();
            chown(&parent, Some(user), Some(user)).unwrap();
            let mount_point = parent.join("mount");
            let [program, mount_point_text] =
                [&archfs, &mount_point].map(|path| path.to_str().unwrap());
            let mount =
                [program, "mount", "--keep", "-q", image.to_str().unwrap(), mount_point_text];
            support::run(&mut as_user(user, &mount));
            let start = files::name_prefix(user, &mount_point);
            support::run(&mut as_user(user, &[program, "unmount", mount_point_text]));
            mount_points.insert(mount_point, (user, start));
        }
    }
    Stage {
        work: work.to_owned(),
        image,
        source,
        users,
        archfs,
        reader,
        processes: Processes::new(),
        mount_points,
    }
}

/// Lets ordinary users open the device, as every distribution does; restores its mode when dropped.
fn open_device() -> impl Drop {
    struct Restore(Permissions);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = fs::set_permissions("/dev/fuse", self.0.clone());
        }
    }
    let restore = Restore(fs::metadata("/dev/fuse").unwrap().permissions());
    fs::set_permissions("/dev/fuse", Permissions::from_mode(0o666)).unwrap();
    restore
}

/// Remains of the test after `archfs gc` as each user.
fn remains(stage: &Stage) -> Vec<String> {
    let _one = one_at_a_time();
    let mut left = Vec::new();
    for user in [ROOT].into_iter().chain(stage.users) {
        let output = as_user(user, &[stage.archfs.to_str().unwrap(), "gc"]).output().unwrap();
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            left.push(format!("gc as user {user}: {}: {stderr}", output.status));
        }
        // Other tests mount as root too.
        if user != ROOT && files::directory(user).exists() {
            left.push(format!("{}: left", files::directory(user).display()));
            left.extend(
                files::entries(user).iter().map(|file| format!("{}: left", file.display())),
            );
        }
        for worker in 0..PARALLEL_ROUNDS {
            let parent = stage.work.join(format!("{worker}/{user}"));
            for entry in fs::read_dir(parent).unwrap().flatten() {
                left.push(format!("{}: left", entry.path().display()));
            }
        }
    }
    for (mount_point, (user, start)) in &stage.mount_points {
        let files = files::about(*user, start, mount_point);
        left.extend(
            files
                .iter()
                .map(|file| format!("left: {} of {}", file.display(), mount_point.display())),
        );
    }
    left.extend(process::mounts_below(&stage.work).into_iter().map(|line| format!("left: {line}")));
    let processes = stage.processes.of_test();
    left.extend(processes.iter().map(|process| format!("left: {}", process.describe())));
    left
}

/// A command run by `user`.
fn as_user(user: u32, words: &[&str]) -> Command {
    if user == ROOT {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        return command;
    }
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()]);
    command.args(words);
    command
}
