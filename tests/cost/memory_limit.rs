//! Under load, a daemon in a small control group stays within its memory limit.
//!
//! The readers run in a group without a limit, so their pages are not charged to the daemon.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::fs::{Advice, fadvise};
use serde_json::Value;

use crate::support::cgroup::{Bound, Group};
use crate::support::mount::{CleanUp, daemon_of, is_mounted, unmount};
use crate::support::stage::said;
use crate::support::{archfs, image, run, skip_without_mounts, source, tar, work_directory};

/// Number of files and their length: together many times the memory of the group.
const FILES: u64 = 192;
const LEN: usize = 2 << 20;

const MIB: u64 = 1 << 20;

/// Contents that compress to a sixteenth.
fn contents(number: u64) -> Vec<u8> {
    source::noise(number + 1, LEN / 16).iter().flat_map(|byte| [*byte; 16]).collect()
}

fn directory() -> PathBuf {
    let make = |path: &Path| {
        fs::create_dir(path).unwrap();
        for number in 0..FILES {
            fs::write(path.join(format!("{number}")), contents(number)).unwrap();
        }
    };
    source::made_file("memory-files", make)
}

/// Archives whose parts decode to 1 MiB and 8 MiB.
fn archives() -> [PathBuf; 2] {
    let image = source::made_file("memory.sqfs", |path| {
        let options = ["-comp", "zstd", "-Xcompression-level", "1", "-b", "1M"];
        let made = image::make(path.parent().unwrap(), "memory-made", &directory(), &options);
        fs::rename(made, path).unwrap();
    });
    [image, source::made_file("memory.tar.xz", |path| pack(path, "*", 8))]
}

/// A tar.xz of the files that a shell pattern matches, in blocks of `block` MiB.
fn pack(path: &Path, files: &str, block: u32) {
    let line =
        format!("cd \"$1\" && tar -cf - {files} | xz -0 -T2 --block-size={block}MiB -c > \"$2\"");
    run(Command::new("sh").args(["-ec", &line, "sh"]).arg(directory()).arg(path));
}

/// Reads whole files and parts of them at random with `readers` threads. All bytes must be right.
fn load(mount_point: &Path, readers: u64, rounds: usize) {
    thread::scope(|scope| {
        for reader in 0..readers {
            scope.spawn(move || {
                let mut state = reader + 1;
                for round in 0..rounds {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    let number = (state >> 33) % FILES;
                    let file = File::open(mount_point.join(number.to_string())).unwrap();
                    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
                    let expected = contents(number);
                    let part =
                        if round.is_multiple_of(2) { 0..LEN } else { LEN / 3..LEN / 3 + 5000 };
                    let mut found = vec![0; part.len()];
                    file.read_exact_at(&mut found, part.start as u64).unwrap();
                    assert!(found == expected[part], "{number}: other bytes");
                }
            });
        }
    });
}

/// > **Memory**: the cache and the number of threads follow the memory of the job, so a daemon
/// > survives full load in a control group of 128 MiB.
#[test]
fn a_daemon_stays_within_the_memory_of_its_group_under_full_load() {
    if skip_without_mounts() {
        return;
    }
    let Some(group) = Group::new(Bound::Memory) else {
        return;
    };
    let work = work_directory();
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    let rounds = if std::env::var_os("ARCHFS_LONG_TESTS").is_some() { 100 } else { 4 };
    for archive in archives() {
        for limit in [256 * MIB, 128 * MIB] {
            group.set(limit);
            let line = format!(
                "{} mount --keep --quiet {} {}",
                env!("CARGO_BIN_EXE_archfs"),
                archive.display(),
                mount_point.display()
            );
            let output = group.run(&line);
            assert!(output.status.success(), "{}", said(&output));
            let daemon = daemon_of(&mount_point).unwrap();
            load(&mount_point, 16, rounds);
            let what = format!("{} in {} MiB", archive.display(), limit / MIB);
            assert_eq!(group.killed(), 0, "{what}");
            assert_eq!(daemon_of(&mount_point), Some(daemon), "{what}: the same daemon serves");
            unmount(&mount_point);
        }
    }
}

/// Memory of a daemon beyond its budget, in bytes: the program, its tables, and for each thread a
/// stack, a decoder and a reply.
fn on_top(threads: u64) -> u64 {
    16 * MIB + threads * MIB
}

/// The archives of the table. Parts of the compressed ones have 1, 2 and 32 MiB. The last one is a
/// single frame, which is decoded into a temporary file.
fn table() -> Vec<(&'static str, PathBuf)> {
    let packed = |name: &'static str, program: &str| {
        let line = format!("cd \"$1\" && tar -cf - * | {program} > \"$2\"");
        let make = |path: &Path| {
            run(Command::new("bash").args(["-ec", &line, "bash"]).arg(directory()).arg(path));
        };
        (name, source::made_file(&format!("memory.{name}"), make))
    };
    let frames = |size: u32| format!("split -b {size}M --filter='zstd -1 -q -c' -");
    let [image, _] = archives();
    vec![
        ("image", image),
        packed("tar", "cat"),
        packed("tar.gz", "gzip -1"),
        packed("tar.zst-2", &frames(2)),
        packed("tar.zst-32", &frames(32)),
        packed("tar.zst-one", "zstd -1 -q -c"),
    ]
}

/// A process that holds memory in a group; dropping it ends the process.
struct Holder(Child);

impl Holder {
    fn new(group: &Group, bytes: u64) -> Self {
        let script = format!(
            "echo $$ > {}/cgroup.procs; exec python3 -c \"import sys; held = b'x' * {bytes}; \
             print('held', flush=True); sys.stdin.read()\"",
            group.directory().display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn mount_line(archive: &Path, mount_point: &Path, options: &str) -> String {
    let program = env!("CARGO_BIN_EXE_archfs");
    format!("{program} mount --keep {options} {} {}", archive.display(), mount_point.display())
}

/// The cache budget of a mount, in bytes.
fn budget(mount_point: &Path) -> u64 {
    let output = run(archfs().args(["stats", "--json"]).arg(mount_point));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    json["cache_budget_bytes"].as_u64().unwrap()
}

/// The peak memory of a process, in bytes.
fn peak(process: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// > Decompressed blocks, finished or in progress, take no more than the budget. On top, a daemon
/// > takes 16 MiB and 1 MiB for each of its threads, for any archive and any number of readers. A
/// > job that already uses half of its memory is not killed.
#[test]
fn a_daemon_stays_within_its_budget_if_half_of_the_job_is_used() {
    if skip_without_mounts() {
        return;
    }
    let is_long = std::env::var_os("ARCHFS_LONG_TESTS").is_some();
    let work = work_directory();
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    for (name, archive) in table() {
        for limit in [128, 256, 512, 1024] {
            for readers in [1, 16, 64] {
                let is_short = matches!(
                    (name, limit, readers),
                    ("image" | "tar.gz", 128, 64)
                        | ("tar.zst-2", 512, 64)
                        | ("tar.zst-32", 256, 16)
                );
                if !is_short && !is_long {
                    continue;
                }
                let Some(group) = Group::new(Bound::Memory) else {
                    return;
                };
                group.set(limit * MIB);
                let what = format!("{name} in {limit} MiB, {readers} readers");
                let _holder = Holder::new(&group, limit * MIB / 2);
                let index = work.path().join("index");
                let _ = fs::remove_file(&index);
                let options = match name.strip_prefix("tar.") {
                    Some(_) => format!("--quiet --index {}", index.display()),
                    None => "--quiet".to_owned(),
                };
                let output = group.run(&mount_line(&archive, &mount_point, &options));
                assert_eq!(group.killed(), 0, "{what}: {}", said(&output));
                if (name, limit) == ("tar.zst-32", 128) {
                    assert!(
                        said(&output).contains("must be decompressed at once"),
                        "{}",
                        said(&output)
                    );
                    assert!(!is_mounted(&mount_point));
                    continue;
                }
                assert!(output.status.success(), "{what}: {}", said(&output));
                let daemon = daemon_of(&mount_point).unwrap();
                load(&mount_point, readers, if is_long { 20 } else { 3 });
                assert_eq!(group.killed(), 0, "{what}");
                assert_eq!(daemon_of(&mount_point), Some(daemon), "{what}: the same daemon serves");
                let threads = fs::read_dir(format!("/proc/{daemon}/task")).unwrap().count() as u64;
                let (budget, peak) = (budget(&mount_point), peak(daemon));
                eprintln!("{what}: {} of {} MiB, {threads} threads", peak / MIB, budget / MIB);
                // One part of 32 MiB and its source may exceed the budget.
                let one = if name == "tar.zst-32" { 36 * MIB } else { 0 };
                assert!(peak <= budget.max(one) + on_top(threads), "{what}: {peak}");
                unmount(&mount_point);
            }
        }
    }
}

/// > archfs reduces a budget that does not fit into the job, and prints a warning.
#[test]
fn a_budget_above_the_job_limit_is_clamped_with_a_warning() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    for (name, archive) in
        table().into_iter().filter(|(name, _)| ["image", "tar.zst-2"].contains(name))
    {
        let Some(group) = Group::new(Bound::Memory) else {
            return;
        };
        group.set(256 * MIB);
        let output = group.run(&mount_line(&archive, &mount_point, "--cache 8G"));
        assert!(output.status.success(), "{name}: {}", said(&output));
        let stderr = said(&output);
        let warning = "--cache 8.0 GiB: the limit of the job leaves ";
        assert!(stderr.contains(warning), "{name}: {stderr}");
        assert!(budget(&mount_point) < 256 * MIB, "{name}: {}", budget(&mount_point));
        load(&mount_point, 16, 6);
        assert_eq!(group.killed(), 0, "{name}");
        unmount(&mount_point);
        // A budget that fits is not changed.
        let output = group.run(&mount_line(&archive, &mount_point, "--cache 100M"));
        assert_eq!((budget(&mount_point), said(&output).contains("--cache")), (100 * MIB, false));
        unmount(&mount_point);
    }
}

/// > archfs refuses a compressed tar with parts that do not fit into the memory of the job.
#[test]
fn an_archive_with_parts_larger_than_the_job_is_refused() {
    if skip_without_mounts() {
        return;
    }
    let Some(group) = Group::new(Bound::Memory) else {
        return;
    };
    let work = work_directory();
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    let archive = work.path().join("large.tar.xz");
    pack(&archive, "1?", 24);
    for is_indexed in [false, true] {
        if is_indexed {
            // A saved index, so that opening the archive decodes nothing.
            run(archfs().arg("index").arg(&archive));
        }
        for (limit, fits) in [(64 * MIB, false), (512 * MIB, true)] {
            group.set(limit);
            let output = group.run(&mount_line(&archive, &mount_point, ""));
            let stderr = said(&output);
            assert_eq!(output.status.success(), fits, "{limit}: {stderr}");
            assert_eq!(stderr.contains("must be decompressed at once"), !fits, "{limit}: {stderr}");
            assert_eq!(group.killed(), 0);
            if fits {
                unmount(&mount_point);
            }
        }
    }
}

/// > archfs makes an index in temporary files on a local disk (ext4, XFS) and reads it block by
/// > block. A tar of very many files therefore fits into a small job.
///
/// > If temporary files are on another file system, archfs makes the index in memory. It then
/// > refuses a tar whose index does not fit into the job.
#[test]
fn an_index_larger_than_the_job_is_refused() {
    if skip_without_mounts() {
        return;
    }
    let Some(group) = Group::new(Bound::Memory) else {
        return;
    };
    let work = work_directory();
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    let archive = work.path().join("members.tar");
    let mut file = BufWriter::new(File::create(&archive).unwrap());
    // So many that 64 MiB are far from the limit in both cases.
    for number in 0..250_000 {
        let name = format!("folder-{}/member-{number}-of-a-tar-of-many-members", number % 100);
        file.write_all(&tar::member(&name, b'0', "", b"")).unwrap();
    }
    file.write_all(&[0; 1024]).unwrap();
    file.into_inner().unwrap();
    // An index is made in files only on ext4 and XFS.
    let disk = env!("CARGO_TARGET_TMPDIR");
    let kind = rustix::fs::statfs(disk).unwrap().f_type as u64;
    let has_blocks = [0xef53, 0x5846_5342].contains(&kind);
    for (is_indexed, temporary) in [(false, "/dev/shm"), (false, disk), (true, "/dev/shm")] {
        if is_indexed {
            run(archfs().args(["index", "--quiet"]).arg(&archive));
        }
        let is_small_enough = is_indexed || (temporary == disk && has_blocks);
        for (limit, fits) in [(64 * MIB, is_small_enough), (256 * MIB, true)] {
            group.set(limit);
            // Why a list or the index is not in a file.
            let line = mount_line(&archive, &mount_point, "--verbose");
            let output = group.run(&format!("TMPDIR={temporary} {line}"));
            let stderr = said(&output);
            assert_eq!(group.killed(), 0, "{limit}: {stderr}");
            let what = format!("{limit}, TMPDIR {temporary}, saved {is_indexed}: {stderr}");
            assert_eq!(output.status.success(), fits, "{what}");
            let is_told =
                stderr.contains("too little memory for the index") && stderr.contains("hint:");
            assert_eq!(is_told, !fits, "{limit}: {stderr}");
            if fits {
                // Outside the group: the kernel counts the names and inodes that `find` makes it
                // keep as memory of its group, and may kill there before it has freed them.
                let script = format!("find {} | wc -l", mount_point.display());
                let found = run(Command::new("sh").args(["-c", &script]));
                assert_eq!(found.stdout, b"250101\n", "{limit}: {}", said(&found));
                assert_eq!(group.killed(), 0, "{limit}: the daemon");
                unmount(&mount_point);
            }
            if !is_indexed {
                let _ = fs::remove_file(work.path().join("members.tar.archfs-index"));
            }
        }
    }
}
