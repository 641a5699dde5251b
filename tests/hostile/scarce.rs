//! A mount works within small limits of descriptors, threads, address space and stack, or fails
//! with an error that names the limit.
//!
//! `tests/cost/memory_limit.rs` covers memory.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::cgroup::{Bound, Group};
use crate::support::mount::{CleanUp, is_mounted, unmount};
use crate::support::stage::{Stage, has_ended, said, shell, stage, stage_with, tell};
use crate::support::{archfs, run, tar, wait_until, work_directory};

/// `archfs mount --keep` with a limit on open files.
fn mount_within(
    descriptors: u64,
    archives: &[PathBuf],
    mount_point: &Path,
    options: &[&str],
) -> Output {
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={descriptors}:{descriptors}"));
    command.arg(env!("CARGO_BIN_EXE_archfs")).args(["mount", "--keep"]).args(options);
    command.args(archives).arg(mount_point).output().unwrap()
}

/// Mounts under smaller and smaller limits. Each mount passes `check` or is refused.
fn works_or_says_why(
    archives: &[PathBuf],
    mount_point: &Path,
    options: &[&str],
    check: impl Fn(&Path),
) {
    let _clean_up = CleanUp(mount_point.to_owned());
    let (mut least, mut refused) = (u64::MAX, 0);
    for limit in [64, 48, 40, 32, 24, 16, 8] {
        let output = mount_within(limit, archives, mount_point, options);
        if output.status.success() {
            check(mount_point);
            unmount(mount_point);
            least = limit;
        } else {
            let stderr = said(&output);
            assert_eq!(output.status.code(), Some(1), "{limit}: {stderr}");
            assert!(stderr.contains("Too many open files"), "{limit}: {stderr}");
            refused += 1;
        }
        assert!(!is_mounted(mount_point) && !mount_point.exists(), "{limit}");
    }
    assert!(least <= 40, "works within {least} only");
    assert!(refused > 0, "eight do");
}

fn small_tar(path: &Path, number: usize) {
    let name = format!("file-{number}");
    fs::write(path, tar::of(&[(&name, name.as_bytes())])).unwrap();
}

/// > **Descriptors**: 40 are enough for one archive, for a hundred and for nested ones. With too
/// > few, the mount fails with "Too many open files".
#[test]
fn forty_descriptors_suffice_for_one_archive_and_for_many() {
    let Some(stage) = stage() else {
        return;
    };
    let image = [stage.image.clone()];
    works_or_says_why(&image, &stage.mount_point, &[], |_| stage.assert_readable());
    let tars: Vec<_> =
        (0..100).map(|number| stage.work.path().join(format!("{number}.tar"))).collect();
    tars.iter().enumerate().for_each(|(number, path)| small_tar(path, number));
    works_or_says_why(&tars, &stage.mount_point, &[], |mount_point| {
        for number in (0..100).rev() {
            let name = format!("file-{number}");
            assert_eq!(fs::read_to_string(mount_point.join(&name)).unwrap(), name);
        }
    });
}

/// > **Descriptors**: 40 are enough for one archive, for a hundred and for nested ones. With too
/// > few, the mount fails with "Too many open files".
#[test]
fn forty_descriptors_suffice_for_nested_archives() {
    let Some(stage) = stage() else {
        return;
    };
    let outer = stage.work.path().join("outer.tar");
    let inner: Vec<_> = (0..50)
        .map(|number| {
            let image = fs::read(&stage.image).unwrap();
            tar::member(&format!("{number}.sqfs"), b'0', "", &image)
        })
        .collect();
    fs::write(&outer, [inner.concat(), vec![0; 1024]].concat()).unwrap();
    works_or_says_why(&[outer], &stage.mount_point, &["--recursive"], |mount_point| {
        for number in 0..50 {
            let text = fs::read_to_string(mount_point.join(format!("{number}/hello")));
            assert_eq!(text.unwrap(), "hello, world\n");
        }
    });
}

/// CPU time that a process has used, in clock ticks (proc(5), fields 14 and 15).
fn ticks(process: rustix::process::Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap();
    let behind = stat.rsplit(')').next().unwrap();
    behind.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

fn socket_of(stage: &Stage) -> PathBuf {
    let mount_point = fs::canonicalize(&stage.mount_point).unwrap();
    let line = format!("mount-point {}\n", mount_point.display());
    let user = rustix::process::geteuid().as_raw();
    let directories = ["/tmp", "/dev/shm", "/var/tmp"].map(|root| format!("{root}/archfs-{user}"));
    let files = directories.iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten();
    let record = files
        .map(|entry| entry.unwrap().path())
        .find(|path| fs::read_to_string(path).is_ok_and(|text| text.contains(&line)));
    record.expect("a record").with_extension("socket")
}

/// > A daemon that has run out of descriptors keeps serving, sleeps when idle, and unmounts when
/// > its last holder ends.
#[test]
fn a_daemon_out_of_descriptors_idles_serves_recovers_and_unmounts() {
    let Some(stage) = stage() else {
        return;
    };
    let tars: Vec<_> =
        (0..60).map(|number| stage.work.path().join(format!("{number}.tar"))).collect();
    tars.iter().enumerate().for_each(|(number, path)| small_tar(path, number));
    let output = mount_within(64, &tars, &stage.mount_point, &["--cache-idle", "0"]);
    assert!(output.status.success(), "{}", said(&output));
    let daemon = stage.daemon();
    let directory = format!("/proc/{}/fd", daemon.as_raw_nonzero());
    let open = || fs::read_dir(&directory).unwrap().count();
    let socket = socket_of(&stage);
    // More connections than the daemon may have open; each stays open.
    let connect = || UnixStream::connect(&socket).unwrap();
    let mut connections: Vec<_> = (0..100).map(|_| connect()).collect();
    wait_until("all descriptors are taken", || open() >= 64);
    let before = ticks(daemon);
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        thread::sleep(Duration::from_millis(50));
    }
    // A busy loop would take the whole two seconds: 200 ticks.
    let taken = ticks(daemon) - before;
    assert!(taken < 20, "{taken} ticks of processor time while nothing was to be done");
    // Closed archives can still be reopened.
    for number in 0..60 {
        let name = format!("file-{number}");
        assert_eq!(fs::read_to_string(stage.mount_point.join(&name)).unwrap(), name);
    }
    connections.clear();
    wait_until("it has opened and closed all", || open() < 64);
    // It answers again, and its holder kept its lease.
    run(archfs().arg("stats").arg(&stage.mount_point));
    connections.extend((0..100).map(|_| connect()));
    wait_until("all descriptors are taken again", || open() >= 64);
    run(Command::new("kill").args(["-INT", &daemon.as_raw_nonzero().to_string()]));
    wait_until("it has unmounted and ended", || stage.is_gone() && has_ended(daemon));
}

/// > A daemon that has run out of descriptors keeps serving, sleeps when idle, and unmounts when
/// > its last holder ends.
#[test]
fn the_holder_of_a_daemon_out_of_descriptors_still_ends_it() {
    let Some(stage) = stage() else {
        return;
    };
    let mut holder = shell(stage.work.path());
    let image = stage.image.display();
    let line = format!("prlimit --nofile=64:64 $ARCHFS mount --until-pid $$ {image} mount 2>&1");
    assert!(tell(&mut holder, &line).contains("mounted") || is_mounted(&stage.mount_point));
    wait_until("it is mounted", || is_mounted(&stage.mount_point));
    let daemon = stage.daemon();
    let socket = socket_of(&stage);
    let connections: Vec<_> = (0..100).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let directory = format!("/proc/{}/fd", daemon.as_raw_nonzero());
    wait_until("all descriptors are taken", || fs::read_dir(&directory).unwrap().count() >= 64);
    holder.kill().unwrap();
    holder.wait().unwrap();
    wait_until("the mount is gone", || stage.is_gone() && has_ended(daemon));
    drop(connections);
}

/// > **Threads**: if only a few can be started, a mount takes half of them and reports it, or
/// > fails.
#[test]
fn a_mount_works_with_few_threads_or_reports_the_limit() {
    let Some(stage) = stage() else {
        return;
    };
    let Some(pids) = Group::new(Bound::Threads) else {
        return;
    };
    let (image, mount_point) = (stage.image.display(), stage.mount_point.display());
    let command = format!("{} mount --keep {image} {mount_point}", env!("CARGO_BIN_EXE_archfs"));
    let mut worked = Vec::new();
    for most in [3, 4, 5, 6, 8, 10, 16, 24, 36, 48] {
        pids.set(most);
        let output = pids.run(&command);
        let stderr = said(&output);
        if output.status.success() {
            // It also works later, because `mount` returns only once all threads are running.
            stage.assert_readable();
            assert!(fs::read(stage.mount_point.join("folder/data")).is_ok());
            let numbers: Vec<u64> = stderr
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|it| it.parse().ok())
                .collect();
            match stderr.contains("--threads: using") {
                // "--threads: using N of 32, because the process limit leaves M"
                true => {
                    assert!(numbers.windows(3).any(|it| it[0] == it[2] / 2), "{most}: {stderr}");
                }
                false => assert!(most >= 36, "{most}: {stderr}"),
            }
            unmount(&stage.mount_point);
            worked.push(most);
        } else {
            assert!(!stderr.contains("panicked"), "{most}: {stderr}");
            let is_clear =
                ["the process limit leaves", "Resource temporarily unavailable", "annot fork"];
            assert!(is_clear.iter().any(|text| stderr.contains(text)), "{most}: {stderr}");
        }
        assert!(stage.is_gone(), "{most}");
        wait_until("all have ended", || pids.is_empty());
    }
    assert!(worked.contains(&16) && worked.contains(&48), "{worked:?}");
}

#[test]
fn many_archives_are_opened_without_extra_threads() {
    let Some(pids) = Group::new(Bound::Threads) else {
        return;
    };
    let work = work_directory();
    let tars: Vec<_> = (0..20).map(|number| work.path().join(format!("{number}.tar"))).collect();
    tars.iter().enumerate().for_each(|(number, path)| small_tar(path, number));
    let archive = tars[7].display();
    // The shell executes archfs, which is then the only process in the group.
    pids.set(1);
    let output = pids.run(&format!("exec {} ls {archive}", env!("CARGO_BIN_EXE_archfs")));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "file-7\n", "{}", said(&output));
}

/// A tree large enough to keep all threads of a mount busy.
fn many_files(work: &Path) -> PathBuf {
    let tree = work.join("tree");
    for directory in 0..8 {
        let directory = tree.join(directory.to_string());
        fs::create_dir_all(&directory).unwrap();
        for file in 0..8_u8 {
            let bytes: Vec<u8> =
                (0..1 << 20_u32).map(|at: u32| (at / 7) as u8 ^ file.wrapping_mul(31)).collect();
            fs::write(directory.join(file.to_string()), bytes).unwrap();
        }
    }
    let image = work.join("many.sqfs");
    run(archfs().args(["pack", "--quiet"]).arg(&tree).arg(&image));
    image
}

/// > **Address space**: under `ulimit -v` a mount starts the threads that fit, or fails with an
/// > error that names the limit. A mount that is ready never ends later for lack of address space.
#[test]
fn a_small_address_space_gives_fewer_threads_or_an_error_at_start() {
    let Some(stage) = stage_with(many_files) else {
        return;
    };
    let read = "set -o pipefail; find mount -type f -print0 | xargs -0 -n 2 -P 32 cat | wc -c";
    let (mut served, mut refused) = (Vec::new(), Vec::new());
    for option in ["-v", "-d"] {
        for megabytes in (200..=2000).step_by(100) {
            let script = format!(
                "ulimit {option} {}; exec $ARCHFS mount --keep $IMAGE mount",
                megabytes << 10
            );
            let output = stage.bash(&script).output().unwrap();
            let stderr = said(&output);
            if output.status.success() {
                let read = stage.bash(read).output().unwrap();
                let bytes = String::from_utf8_lossy(&read.stdout).trim().to_owned();
                assert_eq!(bytes, (64_u32 << 20).to_string(), "{option} {megabytes}: {stderr}");
                let is_limited = stderr.contains("limits the address space to");
                assert_eq!(is_limited, stderr.contains("--threads: using"), "{stderr}");
                unmount(&stage.mount_point);
                served.push(megabytes);
            } else {
                assert_eq!(output.status.code(), Some(1), "{option} {megabytes}: {stderr}");
                assert!(stderr.contains(&format!("ulimit {option}")), "{megabytes}: {stderr}");
                refused.push(megabytes);
            }
            assert!(stage.is_gone(), "{option} {megabytes}");
        }
    }
    assert!(served.iter().filter(|it| **it <= 600).count() >= 2, "{served:?}");
    assert!(refused.contains(&200), "{refused:?}");
}

/// > **Stack**: a small stack limit is enough for everything except a namespace, which fails with
/// > an error that says so.
#[test]
fn a_small_stack_limit_is_enough() {
    let Some(stage) = stage() else {
        return;
    };
    for kilobytes in [64, 128, 256, 8192] {
        let script = format!(
            "ulimit -s {kilobytes}; $ARCHFS mount -q --keep $IMAGE mount && cat mount/hello \
             && $ARCHFS unmount mount 2> gone && $ARCHFS run -q $IMAGE mount -- cat mount/hello"
        );
        let output = stage.bash(&script).output().unwrap();
        assert!(output.status.success(), "{kilobytes}: {}", said(&output));
        assert_eq!(output.stdout, b"hello, world\nhello, world\n", "{kilobytes}");
        assert!(stage.is_gone(), "{kilobytes}");
    }
    let private = "ulimit -s 64; exec $ARCHFS run --private $IMAGE mount -- cat mount/hello";
    let output = stage.bash(private).output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{}", said(&output));
    assert!(said(&output).contains("the stack limit is too low"), "{}", said(&output));
    assert!(stage.is_gone());
}
