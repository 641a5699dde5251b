//! A daemon in a control group with little memory, under load.
//!
//! Owns the promise that it takes its budget from the group, and is not killed for it. What the
//! readers' own pages take is counted in the readers' group, which has no limit.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::fs::{Advice, fadvise};

mod support;

use support::cgroup::{Bound, Group};
use support::mount::{CleanUp, daemon_of, unmount};
use support::stage::said;
use support::{archfs, can_mount, image, run, source, work_folder};

/// Files, and the length of each: many times what the group may take.
const FILES: u64 = 192;
const LEN: usize = 2 << 20;

const MIB: u64 = 1 << 20;

/// A file that compresses to a sixteenth.
fn contents(number: u64) -> Vec<u8> {
    source::noise(number + 1, LEN / 16).iter().flat_map(|byte| [*byte; 16]).collect()
}

fn folder() -> PathBuf {
    let make = |path: &Path| {
        fs::create_dir(path).unwrap();
        for number in 0..FILES {
            fs::write(path.join(format!("{number}")), contents(number)).unwrap();
        }
    };
    source::made_file("memory-files", make)
}

/// Archives whose parts have 1 MiB and 8 MiB, decoded.
fn archives() -> [PathBuf; 2] {
    let image = source::made_file("memory.sqfs", |path| {
        let options = ["-comp", "zstd", "-Xcompression-level", "1", "-b", "1M"];
        let made = image::make(path.parent().unwrap(), "memory-made", &folder(), &options);
        fs::rename(made, path).unwrap();
    });
    [image, source::made_file("memory.tar.xz", |path| pack(path, "*", 8))]
}

/// A tar.xz of the files that a pattern of the shell names, in blocks of so many MiB.
fn pack(path: &Path, files: &str, block: u32) {
    let line =
        format!("cd \"$1\" && tar -cf - {files} | xz -0 -T2 --block-size={block}MiB -c > \"$2\"");
    run(Command::new("sh").args(["-ec", &line, "sh"]).arg(folder()).arg(path));
}

/// Reads by sixteen threads, each at random: whole files and parts of them. All must be right.
fn load(place: &Path, rounds: usize) {
    thread::scope(|scope| {
        for reader in 0..16_u64 {
            scope.spawn(move || {
                let mut state = reader + 1;
                for round in 0..rounds {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    let number = (state >> 33) % FILES;
                    let file = File::open(place.join(number.to_string())).unwrap();
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

/// > **Memory**: the cache is a part of what the job may use, and so is the number of threads, so
/// > that a daemon in a group of 128 MiB lives under full load.
#[test]
fn a_daemon_stays_within_the_memory_of_its_group_under_full_load() {
    if !can_mount() {
        return;
    }
    let Some(group) = Group::new(Bound::Memory) else {
        return;
    };
    let work = work_folder();
    let place = work.path().join("mount");
    let _clean_up = CleanUp(place.clone());
    let rounds = if std::env::var_os("ARCHFS_LONG_TESTS").is_some() { 100 } else { 8 };
    for archive in archives() {
        for limit in [256 * MIB, 128 * MIB] {
            group.set(limit);
            let line = format!(
                "{} mount --keep --quiet {} {}",
                env!("CARGO_BIN_EXE_archfs"),
                archive.display(),
                place.display()
            );
            let output = group.run(&line);
            assert!(output.status.success(), "{}", said(&output));
            let daemon = daemon_of(&place).unwrap();
            load(&place, rounds);
            let what = format!("{} in {} MiB", archive.display(), limit / MIB);
            assert_eq!(group.killed(), 0, "{what}");
            assert_eq!(daemon_of(&place), Some(daemon), "{what}: the same daemon serves");
            unmount(&place);
        }
    }
}

/// > Where parts of a compressed tar are so large that decoding one may take more than the job has,
/// > the mount says so.
#[test]
fn parts_that_do_not_fit_in_the_memory_of_the_job_are_told_of() {
    if !can_mount() {
        return;
    }
    let Some(group) = Group::new(Bound::Memory) else {
        return;
    };
    let work = work_folder();
    let place = work.path().join("mount");
    let _clean_up = CleanUp(place.clone());
    let archive = work.path().join("large.tar.xz");
    pack(&archive, "1?", 24);
    // Opened before, so that nothing has to be decoded for that.
    run(archfs().arg("index").arg(&archive));
    let (program, archive) = (env!("CARGO_BIN_EXE_archfs"), archive.display());
    let line = format!("{program} mount --keep {archive} {}", place.display());
    for (limit, is_told) in [(64 * MIB, true), (512 * MIB, false)] {
        group.set(limit);
        let output = group.run(&line);
        assert!(output.status.success(), "{}", said(&output));
        let told =
            said(&output).contains("this job may take") && said(&output).contains("parts of");
        assert_eq!(told, is_told, "{limit}: {}", said(&output));
        unmount(&place);
    }
}
