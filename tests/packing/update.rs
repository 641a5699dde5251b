//! `archfs pack --update`: blocks of an earlier image, by archfs or mksquashfs, in a new one.

use std::fs::{File, FileTimes};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::*;
use crate::support::skip::skip_part;
use crate::support::{image, run, skip_without_mounts, source, work_directory};

/// Writes an image of `tree` that copies from `base`, and returns its numbers.
fn update(base: &Path, tree: &[&Path], made: &Path, options: &[&str]) -> Value {
    let words = [options, &["--update", text(base), "--json", "--quiet", "--force"]].concat();
    let paths = tree.iter().copied().chain([made]).map(text);
    let output = pack(&words.into_iter().chain(paths).collect::<Vec<_>>());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn reused(numbers: &Value) -> u64 {
    numbers["reused"].as_u64().unwrap()
}

fn set_time(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    File::open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
}

/// A copy of `source::varied` that can be changed.
fn copied_tree(work: &Path) -> PathBuf {
    let tree = work.join("tree");
    run(Command::new("cp").arg("-a").arg(source::varied()).arg(&tree));
    tree
}

/// Adds, removes, replaces, moves and changes files of a copy of `source::varied`.
fn change(tree: &Path) {
    let noise = source::noise(7, 300_000);
    let text = b"a new line of text\n".repeat(700);
    write_all(tree, &[("new/noise", &noise), ("new/text", &text), ("new/empty", b"")]);
    let names: Vec<_> = files_of(tree);
    // Every fifth file is changed in a way of its own.
    for (nth, path) in names.iter().step_by(5).enumerate() {
        match nth % 5 {
            0 => fs::remove_file(path).unwrap(),
            1 => {
                let mut bytes = fs::read(path).unwrap();
                bytes.extend_from_slice(b"more");
                fs::write(path, bytes).unwrap();
            }
            2 => fs::set_permissions(path, PermissionsExt::from_mode(0o640)).unwrap(),
            3 => fs::rename(path, path.with_extension("moved")).unwrap(),
            _ => {
                fs::remove_file(path).unwrap();
                symlink("elsewhere", path).unwrap();
            }
        }
    }
}

/// The regular files of a directory tree of at most 64 MiB, each inode once, without mounts and links.
fn files_of(tree: &Path) -> Vec<PathBuf> {
    let found = said(&["find", text(tree), "-type", "f", "-size", "-65536k", "-links", "1"]);
    let mut found: Vec<_> =
        found.lines().map(PathBuf::from).filter(|path| path.is_file()).collect();
    found.sort();
    found
}

#[test]
fn a_new_image_shows_the_sources_whatever_wrote_the_old_one() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let (tree, made) = (copied_tree(work.path()), work.path().join("new.sqfs"));
    let mut bases = Vec::new();
    for (compressor, count) in [("gzip", 3), ("zstd", 3), ("xz", 1), ("lz4", 1)] {
        let matrix = image::matrix(compressor);
        // One with each block size and each way to use fragments.
        let some = matrix.iter().step_by(matrix.len() * 4 / 9).take(count);
        for (nth, options) in some.enumerate() {
            let name = format!("mksquashfs-{compressor}-{nth}.sqfs");
            bases.push(image::make(work.path(), &name, &tree, options));
        }
    }
    let kinds =
        [&[][..], &["-c", "gzip:1"], &["-c", "none"], &["--profile", "archive", "-c", "zstd:3"]];
    for (nth, options) in kinds.iter().enumerate() {
        bases.push(packed(work.path(), &format!("archfs-{nth}.sqfs"), &tree, options));
    }
    let all = files_of(&tree).len() as u64;
    change(&tree);
    let expected = take(&tree, Depth::Everything);
    for base in &bases {
        let numbers = update(base, &[&tree], &made, &[]);
        assert_same(text(base), &expected, &by_kernel(&made, work.path()));
        assert!(reused(&numbers) > all / 2, "{}: {numbers}", base.display());
        run(archfs().args(["verify", "--quiet"]).arg(&made));
    }
}

/// An unchanged file is not read: path, size and time tell.
#[test]
fn only_changed_files_are_read_and_compressed() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    let noise = source::noise(1, 500_000);
    write_all(&tree, &[("large", &noise), ("small", b"the first text"), ("other", b"a third one")]);
    let [large, small, other] = ["large", "small", "other"].map(|name| tree.join(name));
    [&large, &small, &other].into_iter().for_each(|path| set_time(path, 1_600_000_000));
    let base = packed(work.path(), "old.sqfs", &tree, &[]);
    // The same size and time as before: no sign of a change.
    fs::write(&small, "another text !").unwrap();
    set_time(&small, 1_600_000_000);
    fs::write(&other, "a third ONE").unwrap();
    set_time(&other, 1_600_000_001);
    let made = work.path().join("new.sqfs");
    let numbers = update(&base, &[&tree], &made, &[]);
    assert_eq!((reused(&numbers), &numbers["reused_bytes"]), (2, &Value::from(500_014)));
    let cat = |name: &str| run(archfs().arg("cat").arg(&made).arg(name)).stdout;
    assert_eq!(cat("small"), b"the first text");
    assert_eq!(cat("other"), b"a third ONE");
    assert!(cat("large") == noise);
    assert_eq!(numbers["level"], 15);
    assert_eq!(update(&base, &[&tree], &made, &["--profile", "archive"])["level"], 22);
}

/// A file can change in the second of its last change, after it was packed.
#[test]
fn files_as_new_as_the_old_image_are_read() {
    let work = work_directory();
    let (tree, made) = (directory(work.path(), "tree"), work.path().join("new.sqfs"));
    let (file, base) = (tree.join("a"), work.path().join("old.sqfs"));
    for (time_of_file, expected) in [(1_600_000_000, "before"), (1_600_000_001, "behind")] {
        fs::write(&file, "before").unwrap();
        set_time(&file, time_of_file);
        packed(work.path(), "old.sqfs", &tree, &[]);
        set_time(&base, 1_600_000_001);
        fs::write(&file, "behind").unwrap();
        set_time(&file, time_of_file);
        update(&base, &[&tree], &made, &[]);
        let found = run(archfs().arg("cat").arg(&made).arg("a")).stdout;
        assert_eq!(String::from_utf8(found).unwrap(), expected, "{time_of_file}");
    }
    // The image is complete long after it was created.
    let Ok(_) = fs::metadata(&base).unwrap().created() else {
        return skip_part("the file system of /tmp keeps no creation times");
    };
    fs::write(&file, "before").unwrap();
    set_time(&file, 3_000_000_000);
    packed(work.path(), "old.sqfs", &tree, &[]);
    set_time(&base, 4_000_000_000);
    fs::write(&file, "behind").unwrap();
    set_time(&file, 3_000_000_000);
    let numbers = update(&base, &[&tree], &made, &[]);
    assert_eq!(run(archfs().arg("cat").arg(&made).arg("a")).stdout, b"behind");
    assert!(numbers["notes"][0].as_str().unwrap().contains("1 file packed again"), "{numbers}");
}

/// The names of one file may have been different files before.
#[test]
fn a_file_that_got_the_name_of_another_keeps_its_contents() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    let [a, b, c] = [1, 2, 3].map(|seed| source::noise(seed, 200_000));
    write_all(&tree, &[("a", &a), ("b", &b), ("c", &c)]);
    ["a", "b", "c"].iter().for_each(|name| set_time(&tree.join(name), 1_600_000_000));
    let base = packed(work.path(), "old.sqfs", &tree, &[]);
    fs::remove_file(tree.join("b")).unwrap();
    fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    fs::hard_link(tree.join("c"), tree.join("d")).unwrap();
    let made = work.path().join("new.sqfs");
    assert_eq!(reused(&update(&base, &[&tree], &made, &[])), 1, "only c");
    for (name, bytes) in [("a", &a), ("b", &a), ("c", &c), ("d", &c)] {
        assert!(run(archfs().arg("cat").arg(&made).arg(name)).stdout == *bytes, "{name}");
    }
}

/// Two files can have the same blocks at the same place, and holes in different ones: gensquashfs
/// stores them so. Here the block lists are exchanged by hand.
#[test]
fn files_that_share_blocks_but_not_holes_stay_different() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    let (block, zeros) = (source::noise(3, 4096), vec![0; 4096]);
    let files = [("A", [&block[..], &zeros].concat()), ("B", [&zeros[..], &block].concat())];
    for (name, bytes) in &files {
        fs::write(tree.join(name), bytes).unwrap();
        set_time(&tree.join(name), 1_600_000_000);
    }
    let options =
        ["-b", "4096", "-noI", "-noF", "-no-fragments", "-no-duplicates", "-comp", "gzip"];
    let base = image::make(work.path(), "old.sqfs", &tree, &options);
    let mut bytes = fs::read(&base).unwrap();
    // The inodes of both begin with type 2 (a file), and have the start of the blocks at 16, the size
    // at 28 and two words at 32 (squashfs.rst, section 3.3).
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let is_file = |at: &usize| {
        bytes[*at..*at + 2] == [2, 0]
            && word(&bytes, at + 28) == 8192
            && word(&bytes, at + 20) == u32::MAX
    };
    let inodes: Vec<_> = (96..bytes.len() - 40).filter(is_file).collect();
    assert_eq!(inodes.len(), 2, "the two files");
    let start = word(&bytes, inodes[0] + 16).to_le_bytes();
    bytes[inodes[1] + 16..inodes[1] + 20].copy_from_slice(&start);
    fs::write(&base, bytes).unwrap();
    let made = work.path().join("new.sqfs");
    assert_eq!(reused(&update(&base, &[&tree], &made, &[])), 2);
    for (name, bytes) in &files {
        let by_others = run(Command::new("unsquashfs").arg("-cat").args([&base, Path::new(name)]));
        assert!(by_others.stdout == *bytes, "the image made by hand, {name}");
        assert!(run(archfs().arg("cat").arg(&made).arg(name)).stdout == *bytes, "{name}");
    }
}

#[test]
fn an_image_grows_by_the_files_of_a_directory() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = copied_tree(work.path());
    let expected = contents(&take(&tree, Depth::NoXattrs));
    let base = packed(work.path(), "old.sqfs", &tree, &[]);
    let more = directory(work.path(), "more");
    write_all(&more, &[("class9/one", b"one"), ("class9/two", &source::noise(2, 200_000))]);
    let made = work.path().join("new.sqfs");
    let numbers = update(&base, &[&base, &more], &made, &[]);
    let mut found = contents(&by_kernel(&made, work.path()));
    found.retain(|(path, _)| !path.starts_with(b"more/class9/"));
    assert_eq!(found, expected);
    assert_eq!(numbers["files"].as_u64().unwrap(), expected.len() as u64 + 2);
    assert!(reused(&numbers) > expected.len() as u64 * 3 / 4, "{numbers}");
}

/// A fragment block of which less than half belongs to unchanged files is not copied.
#[test]
fn an_image_does_not_keep_what_few_files_use() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    let small = |number: u64| source::noise(number, 250).repeat(4);
    for number in 0..1024 {
        let path = tree.join(format!("{number:04}"));
        fs::write(&path, small(number)).unwrap();
        set_time(&path, 1_600_000_000);
    }
    let by_mksquashfs = image::make(work.path(), "by-mksquashfs.sqfs", &tree, &["-comp", "zstd"]);
    for mut base in [packed(work.path(), "0.sqfs", &tree, &[]), by_mksquashfs] {
        run(Command::new("cp").arg("-rp").arg(&tree).arg(work.path().join("rest")));
        let rest = work.path().join("rest");
        for kept in [64, 32, 16, 8, 4] {
            // The first files of each fragment block stay.
            for number in (0..1024).filter(|number| number % 128 >= kept) {
                let _ = fs::remove_file(rest.join(format!("{number:04}")));
            }
            let next = work.path().join(format!("{kept}.sqfs"));
            let numbers = update(&base, &[&rest], &next, &[]);
            assert!(kept < 64 || reused(&numbers) > 0, "{numbers}");
            let fresh = packed(work.path(), "fresh.sqfs", &rest, &[]);
            let sizes = [&next, &fresh].map(|path| fs::metadata(path).unwrap().len());
            assert!(sizes[0] <= 2 * sizes[1] + 4096, "{kept}: {sizes:?}");
            let found = run(archfs().arg("cat").arg(&next).arg("0129")).stdout;
            assert!(found == small(129));
            base = next;
        }
        fs::remove_dir_all(&rest).unwrap();
    }
}

#[test]
fn repeated_updates_stay_right_on_any_number_of_threads() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = copied_tree(work.path());
    let mut base = packed(work.path(), "0.sqfs", &tree, &[]);
    for round in 1..=3 {
        change(&tree);
        let [one, four] = ["1", "4"].map(|threads| {
            let made = work.path().join(format!("{round}-{threads}.sqfs"));
            update(&base, &[&tree], &made, &["--threads", threads]);
            made
        });
        assert!(fs::read(&one).unwrap() == fs::read(&four).unwrap(), "{round}");
        let expected = take(&tree, Depth::Everything);
        assert_same(&format!("round {round}"), &expected, &by_kernel(&four, work.path()));
        base = four;
    }
}

/// Damage of an image's tables, which its blocks are found by, ends in no crash and no endless run.
#[test]
fn a_damaged_old_image_ends_no_run() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    for number in 0..50_u64 {
        let path = tree.join(number.to_string());
        fs::write(&path, source::noise(number, 3_000 * number as usize)).unwrap();
        set_time(&path, 1_600_000_000);
    }
    let base = packed(work.path(), "old.sqfs", &tree, &["-c", "none", "-b", "16K"]);
    let sound = fs::read(&base).unwrap();
    // The tables are at the end.
    let tables = sound.len() - 12_000;
    let made = work.path().join("new.sqfs");
    let mut sound_runs = 0;
    for nth in 0..60_usize {
        let mut bytes = sound.clone();
        let at = tables + nth * 7919 % 12_000;
        bytes[at..].iter_mut().take(1 + nth % 4).for_each(|byte| *byte ^= 1 << (nth % 8));
        fs::write(&base, bytes).unwrap();
        let words = ["--update", text(&base), "--force", "--quiet", text(&tree), text(&made)];
        let output = archfs().arg("pack").args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 3)), "{nth}: {said}");
        if !output.status.success() {
            continue;
        }
        sound_runs += 1;
        // What OLD still shows, the new image shows.
        for name in ["1", "27", "49"] {
            let cat = |image: &Path| archfs().arg("cat").arg(image).arg(name).output().unwrap();
            let expected = fs::read(tree.join(name)).unwrap();
            if cat(&base).stdout == expected {
                assert!(cat(&made).stdout == expected, "{nth}: {name}");
            }
        }
        assert!(!said.contains("panicked"), "{nth}: {said}");
    }
    assert!(sound_runs > 30, "{sound_runs}");
}

#[test]
fn an_image_that_cannot_be_the_base_is_refused_before_anything_is_read() {
    let work = work_directory();
    let (tree, made) = (directory(work.path(), "tree"), work.path().join("new.sqfs"));
    write_all(&tree, &[("a", &b"some text\n".repeat(100))]);
    let base = packed(work.path(), "old.sqfs", &tree, &["-c", "gzip", "-b", "64K"]);
    let old = text(&base);
    let try_with = |options: &[&str], base: &str, code| {
        let words = [options, &["--update", base, text(&tree), text(&made)]].concat();
        let said = refused(&words, code);
        assert!(!made.exists());
        said
    };
    let said = try_with(&["-c", "zstd"], old, 1);
    assert!(said.contains("its compressor is gzip") && said.contains("leave out --comp"), "{said}");
    let said = try_with(&["-b", "128K"], old, 1);
    assert!(said.contains("its blocks have 65536 bytes"), "{said}");
    let lzo = image::make(work.path(), "lzo.sqfs", &tree, &["-comp", "lzo"]);
    let said = try_with(&[], text(&lzo), 3);
    assert!(said.contains("its compressor is lzo, which archfs only reads"), "{said}");
    let tar = packed(work.path(), "a.tar", &tree, &[]);
    let said = try_with(&[], text(&tar), 3);
    assert!(said.contains("not a SquashFS image"), "{said}");
    let said = try_with(&[], "missing.sqfs", 1);
    assert!(said.contains("missing.sqfs"), "{said}");
    // The level of new blocks may differ, and the image may be replaced by its own update.
    let ino = fs::metadata(&base).unwrap().ino();
    pack(&["-c", "gzip:1", "--update", old, "--force", "--quiet", text(&tree), old]);
    assert_ne!(fs::metadata(&base).unwrap().ino(), ino);
    run(archfs().args(["verify", "--quiet", old]));
    File::options().write(true).open(&base).unwrap().write_at(b"x", 0).unwrap();
    try_with(&[], old, 3);
}
