//! Packed images, read by the kernel, unsquashfs, squashfuse, 7-Zip and archfs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use super::*;
use crate::support::{mount, run, skip_without_mounts, source, work_directory};

/// Options for an image, and whether 7-Zip and squashfuse support its compressor.
const KINDS: [&[&str]; 10] = [
    &[],
    &["-c", "zstd:3", "-b", "64K", "--read-cost", "16K"],
    &["-c", "gzip"],
    &["-c", "gzip:1", "-b", "1M"],
    &["-c", "xz"],
    &["-c", "lz4"],
    &["-c", "none"],
    &["--profile", "archive"],
    &["-c", "gzip", "-b", "4K", "--read-cost", "4K"],
    &["--read-cost", "0"],
];

#[test]
fn the_kernel_and_archfs_show_the_source_of_every_kind_of_image() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = source::varied();
    let expected = take(&tree, Depth::Everything);
    for options in KINDS {
        let image = packed(work.path(), "a.sqfs", &tree, options);
        assert_shows(&format!("{options:?}"), &image, &expected, work.path());
    }
}

#[test]
fn unsquashfs_squashfuse_and_7_zip_read_the_images() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = source::varied();
    let expected = take(&tree, Depth::Everything);
    // Other programs cannot tell the level either.
    let archive = &["--profile", "archive", "-c", "zstd:3"];
    for options in [&["-c", "zstd:3"], &["-c", "gzip:1"], KINDS[4], archive] {
        let what = format!("{options:?}");
        let image = packed(work.path(), "a.sqfs", &tree, options);
        let extracted = directory(work.path(), "extracted");
        let mut unsquashfs = Command::new("unsquashfs");
        run(unsquashfs
            .args(["-quiet", "-no-progress", "-force", "-dest"])
            .arg(&extracted)
            .arg(&image));
        assert_same(
            &format!("{what}: unsquashfs"),
            &expected,
            &take(&extracted, Depth::Everything),
        );

        let mount_point = directory(work.path(), "squashfuse");
        let _unmounted = mount::CleanUp(mount_point.clone());
        run(Command::new("squashfuse_ll").arg(&image).arg(&mount_point));
        let found = take(&mount_point, Depth::NoXattrs);
        assert_same(&format!("{what}: squashfuse"), &take(&tree, Depth::NoXattrs), &found);
        run(Command::new("umount").arg(&mount_point));

        // 7-Zip tests every file; it does not support special files.
        let tested = said(&["7z", "t", text(&image)]);
        assert!(tested.contains("Everything is Ok"), "{what}: {tested}");
    }
}

#[test]
fn a_hundred_thousand_names_and_a_sparse_file_of_5_gib() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = source::large();
    let expected = take(&tree, Depth::NoXattrs);
    let image = packed(work.path(), "a.sqfs", &tree, &[]);
    assert!(fs::metadata(&image).unwrap().len() < 8 << 20, "holes are not stored");
    let mounted = Mounted::kernel(&image, &work.path().join("kernel")).unwrap();
    assert_same("the kernel", &expected, &take(mounted.path(), Depth::NoXattrs));
    drop(mounted);
    let mounted = Mounted::archfs(&image, &work.path().join("archfs"), &[]);
    assert_same("archfs", &expected, &take(mounted.path(), Depth::NoXattrs));
    let holes = fs::metadata(mounted.path().join("sparse-5g")).unwrap();
    assert!(holes.blocks() * 512 < 4 << 20, "{} bytes are shown as stored", holes.blocks() * 512);
}

#[test]
fn the_same_source_gives_the_same_bytes_on_any_number_of_threads() {
    let work = work_directory();
    let tree = source::varied();
    // The order of blocks does not depend on the level, and high ones take a minute here.
    let archive = &["--profile", "archive", "-c", "zstd:3"];
    for options in [&["-c", "zstd:3"], KINDS[1], archive] {
        let first = packed(work.path(), "1.sqfs", &tree, &[options, &["--threads", "1"]].concat());
        for threads in ["2", "7"] {
            let other = [options, &["--threads", threads]].concat();
            let other = packed(work.path(), "2.sqfs", &tree, &other);
            assert!(
                fs::read(&first).unwrap() == fs::read(&other).unwrap(),
                "{options:?}, {threads}"
            );
        }
    }
    // A copy that is listed in another order gives the same bytes as well.
    let copy = directory(work.path(), "copy");
    let script = "cd \"$1\" && find . -depth -print0 | cpio --null --pass-through --preserve-modification-time \
                  --make-directories --quiet \"$2\"";
    if Command::new("cpio").arg("--version").output().is_ok() {
        run(Command::new("sh").args(["-c", script, "sh"]).arg(tree.join("many")).arg(&copy));
        let plain = ["--owner", "0:0"];
        let first = packed(work.path(), "1.sqfs", &tree.join("many"), &plain);
        let other = packed(work.path(), "2.sqfs", &copy, &plain);
        let found = [&first, &other].map(|image| by_contents(image));
        assert_eq!(found[0], found[1]);
    }
}

/// The lines of unsquashfs, without the times of directories.
fn by_contents(image: &Path) -> Vec<String> {
    let lines = said(&["unsquashfs", "-lls", text(image)]);
    lines.lines().filter(|line| line.starts_with('-')).map(str::to_owned).collect()
}

#[test]
fn the_archive_time_is_its_latest_file_time() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("a", b"a"), ("b/c", b"c")]);
    let image = work.path().join("a.sqfs");
    let command = || {
        let mut command = archfs();
        command.arg("pack").args(["--force", "--quiet", text(&tree), text(&image)]);
        command
    };
    run(command().env("SOURCE_DATE_EPOCH", "1000000000"));
    let first = fs::read(&image).unwrap();
    for (path, node) in by_kernel(&image, work.path()) {
        assert_eq!(node.seconds, 1_000_000_000, "{}", path.escape_ascii());
    }
    // The bytes are the same whether or not the files were touched.
    run(Command::new("touch").arg(tree.join("a")));
    run(command().env("SOURCE_DATE_EPOCH", "1000000000"));
    assert!(first == fs::read(&image).unwrap());
}

/// Python itself says whether the compiled file is stale.
#[test]
fn a_time_that_makes_compiled_python_files_stale_is_noted() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("module.py", b"x = 1\n"), ("package/__init__.py", b"")]);
    let python = |words: &[&str]| run(Command::new("python3").args(words).current_dir(&tree));
    for (mode, epoch, is_stale) in [
        ("timestamp", "1000000000", true),
        ("timestamp", "4000000000", false),
        ("checked-hash", "1000000000", false),
    ] {
        python(&["-m", "compileall", "-q", "-f", "--invalidation-mode", mode, "."]);
        for form in ["a.sqfs", "a.tar"] {
            let archive = work.path().join(form);
            let mut command = archfs();
            command.arg("pack").args(["--force", text(&tree), text(&archive)]);
            let output = run(command.env("SOURCE_DATE_EPOCH", epoch));
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let note = "SOURCE_DATE_EPOCH makes 2 compiled files of Python stale";
            assert_eq!(said.matches(note).count(), usize::from(is_stale), "{mode} {epoch}: {said}");
            let extracted = work.path().join("extracted");
            run(archfs().arg("extract").args([text(&archive), text(&extracted)]));
            let import = "import sys; sys.path.insert(0, sys.argv[1]); import module, package";
            let output = python(&["-B", "-v", "-c", import, text(&extracted)]);
            let found =
                String::from_utf8_lossy(&output.stderr).matches("bytecode is stale").count();
            assert_eq!(found, if is_stale { 2 } else { 0 }, "{mode} {epoch} {form}");
            fs::remove_dir_all(extracted).unwrap();
        }
    }
}

#[test]
fn duplicates_are_stored_once() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    let (small, large) = (source::noise(1, 30_000), source::noise(2, 3_000_000));
    write_all(&tree, &[("a", &small), ("b/large", &large)]);
    let once = fs::metadata(packed(work.path(), "1.sqfs", &tree, &[])).unwrap().len();
    for number in 0..20 {
        write_all(
            &tree,
            &[
                (&format!("c/{number}"), small.as_slice()),
                (&format!("d/{number}"), large.as_slice()),
            ],
        );
    }
    let image = packed(work.path(), "2.sqfs", &tree, &[]);
    let twenty = fs::metadata(&image).unwrap().len();
    assert!(twenty < once + 8192, "{once} bytes once, {twenty} for 21 times");
    assert_eq!(said(&["unsquashfs", "-cat", text(&image), "d/19"]).len(), {
        String::from_utf8_lossy(&large).len()
    });
}

/// Text of 256 words; more of it compresses better.
fn words(seed: u64) -> String {
    let letters = source::noise(1, 256 * 7);
    let word = |nth: u8| -> String {
        let nth = 7 * usize::from(nth);
        letters[nth..nth + 7].iter().map(|byte| char::from(b'a' + byte % 26)).collect()
    };
    source::noise(1000 + seed, 500).into_iter().map(|nth| word(nth) + " ").collect()
}

#[test]
fn incompressible_data_stays_uncompressed_and_fragments_respect_the_read_cost() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    for number in 0..200_u64 {
        write_all(
            &tree,
            &[
                (&format!("noise/{number}"), source::noise(number, 50_000).as_slice()),
                (&format!("text/{number}"), words(number).as_bytes()),
            ],
        );
    }
    let summary = |options: &[&str]| -> serde_json::Value {
        let image = work.path().join("a.sqfs");
        let words =
            [options, &["--force", "--quiet", "--json", text(&tree), text(&image)]].concat();
        serde_json::from_slice(&pack(&words).stdout).unwrap()
    };
    let image = work.path().join("a.sqfs");
    let mut sizes = Vec::new();
    for cost in ["8K", "32K", "128K"] {
        let row = summary(&["--read-cost", cost]);
        let bound = 1024.0 * cost.trim_end_matches('K').parse::<f64>().unwrap();
        let decoded = row["mean_decoded"].as_f64().unwrap();
        // Half of the files are noise, which costs nothing to decode.
        assert!(decoded > 1000.0 && decoded <= bound / 2.0, "{cost}: {row}");
        sizes.push(fs::metadata(&image).unwrap().len());
    }
    assert!(sizes[0] > sizes[1] && sizes[1] > sizes[2], "{sizes:?}");
    // Noise stays uncompressed, and the text takes less than half of its size.
    let noise = 200 * 50_000;
    let most = noise + 200 * 500 * 8 / 2;
    assert!(sizes.iter().all(|&size| size > noise && size < most), "{sizes:?}");
}

#[test]
fn the_summary_says_which_times_and_attributes_are_lost() {
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir_all(source.join("class")).unwrap();
    for (name, seconds) in [("a.jpg", -5), ("b.jpg", 1_i64 << 33), ("c.jpg", 7)] {
        let file = source.join("class").join(name);
        fs::write(&file, name).unwrap();
        let touch = format!("@{seconds}.5");
        run(Command::new("touch").arg("-d").arg(touch).arg(&file));
    }
    run(Command::new("setfattr").args(["-n", "user.a", "-v", "1"]).arg(source.join("class/a.jpg")));
    run(Command::new("touch").args(["-d", "@9"]).arg(source.join("class")));
    let notes = |words: &[&str], name: &str| {
        let mut pack = archfs();
        pack.args(["pack", "--json", "-q"]).args(words).arg(&source).arg(work.path().join(name));
        let summary: serde_json::Value = serde_json::from_slice(&run(&mut pack).stdout).unwrap();
        let notes = summary["notes"].as_array().unwrap().iter();
        notes.map(|note| note.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let times = "times of 2 objects changed: SquashFS has those from 1970 to 2106";
    assert_eq!(notes(&[], "a.sqfs"), [times]);
    assert_eq!(notes(&[], "a.tar"), [] as [&str; 0]);
    let lost = [
        "extended attributes of 1 file left out: shards have none",
        "fractions of seconds of 3 files left out: shards have none",
    ];
    assert_eq!(notes(&["--shards", "1M"], "b.tar"), lost);
}
