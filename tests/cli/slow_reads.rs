//! `mount` and `run` say that reads of an archive will be slow, and nothing about other archives.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::mount::CleanUp;
use crate::support::{archfs, image, run, skip_without_user_mounts, source, work_directory};

/// Files of 10 KiB, 70 MiB together, of noise or of what compresses well.
fn files(directory: &Path, is_noise: bool) -> PathBuf {
    let path = directory.join(if is_noise { "noise" } else { "text" });
    fs::create_dir(&path).unwrap();
    for nth in 0..7168_u64 {
        let mut bytes = source::noise(nth + 1, 10 << 10);
        if !is_noise {
            bytes.iter_mut().for_each(|byte| *byte = b'a' + *byte % 4);
        }
        fs::write(path.join(nth.to_string()), &bytes).unwrap();
    }
    path
}

#[test]
fn archives_that_are_read_slowly_are_named_once() {
    if skip_without_user_mounts() {
        return;
    }
    let work = work_directory();
    let (text, noise) = (files(work.path(), false), files(work.path(), true));
    let image = |name: &str, source: &Path, options: &[&str]| {
        let common = ["-comp", "lz4", "-no-duplicates"];
        image::make(work.path(), name, source, &[&common, options].concat())
    };
    let tar = work.path().join("data.tar");
    run(Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(&text).arg("."));
    let compressed = |name: &str, program: &str| {
        let path = work.path().join(name);
        let out = File::create(&path).unwrap();
        assert!(Command::new(program).arg("-1c").arg(&tar).stdout(out).status().unwrap().success());
        path
    };
    let large_blocks =
        "reads in random order are slow: each decompresses 1.0 MiB, which holds about ";
    for (archive, note) in [
        (image("large.sqfs", &text, &["-b", "1M"]), Some(large_blocks)),
        (image("usual.sqfs", &text, &[]), None),
        (image("noise.sqfs", &noise, &["-b", "1M"]), None),
        (
            compressed("data.tar.gz", "gzip"),
            Some("reads in random order are slow: each decompresses "),
        ),
        (tar.clone(), None),
    ] {
        let mount_point = work.path().join("mount");
        let _clean_up = CleanUp(mount_point.clone());
        let said = |options: &[&str]| {
            let mut ran = archfs();
            ran.arg("run").args(options).args([&archive, &mount_point]).args(["--", "true"]);
            String::from_utf8(run(&mut ran).stderr).unwrap()
        };
        let (default, name) = (said(&[]), archive.display());
        match note {
            Some(note) => {
                let start = format!("archfs: note: {name}: {note}");
                let found = default.lines().filter(|line| line.starts_with(&start)).count();
                assert_eq!(found, 1, "{default}");
                let remedy = format!("`archfs pack {name} new.sqfs` makes a faster image");
                assert!(default.contains(&remedy), "{default}");
            }
            None => assert!(!default.contains("slow") && !default.contains("faster"), "{default}"),
        }
        assert_eq!(said(&["-q"]), "");
    }
}
