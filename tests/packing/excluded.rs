//! `archfs pack --exclude` and `--exclude-from` leave out what git leaves out, and `--no-xattrs` the
//! extended attributes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::*;
use crate::support::{run, work_directory};

/// Names of files and directories, so that patterns match at several depths.
const NAMES: [&str; 6] = ["a", "b.tmp", "cache", "data", ".hidden", "x y"];

/// Patterns that the sets in the test are made of.
const PATTERNS: [&str; 24] = [
    "*.tmp",
    "cache/",
    "/data",
    "a/b.tmp",
    "/a/**/cache",
    "**/data/a",
    "data/**",
    "!cache/",
    "!*.tmp",
    "!a",
    "/*",
    "!/a/",
    "!/data/",
    ".*",
    "?",
    "[ab]*",
    "[!a]*",
    "x y",
    "\\!x",
    "a/*",
    "/a/*/data",
    "# data",
    "data   ",
    "",
];

/// Creates files at every path of three of the names.
fn fill(tree: &Path) {
    for one in NAMES {
        for two in NAMES {
            for three in NAMES {
                // The names of directories differ from those of files in one place only.
                let directory =
                    if one == "x y" { tree.join(one) } else { tree.join(one).join(two) };
                fs::create_dir_all(&directory).unwrap();
                fs::write(directory.join(three), [one, two, three].concat()).unwrap();
            }
        }
    }
}

/// The files in an archive.
fn files_in(archive: &Path) -> BTreeSet<String> {
    let listed = said(&["tar", "-tf", text(archive)]);
    listed.lines().filter(|line| !line.ends_with('/')).map(str::to_owned).collect()
}

/// The files in `tree` that git does not ignore.
fn kept_by_git(tree: &Path, patterns: &Path) -> BTreeSet<String> {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(tree)
        .args(["ls-files", "-z", "--others", "--exclude-from"])
        .arg(patterns);
    let output = run(&mut command);
    let listed = String::from_utf8(output.stdout).unwrap();
    listed.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn patterns_leave_out_what_git_ignores() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    run(Command::new("git").args(["init", "--quiet"]).arg(&tree));
    fill(&tree);
    let file = work.path().join("patterns");
    let mut next = 1_u64;
    let mut kept = BTreeSet::new();
    for round in 0..60 {
        let mut patterns = Vec::new();
        for _ in 0..1 + round % 5 {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
            patterns.push(PATTERNS[(next >> 33) as usize % PATTERNS.len()]);
        }
        fs::write(&file, patterns.join("\n")).unwrap();
        let expected = kept_by_git(&tree, &file);
        let options = ["--exclude-from", text(&file), "--exclude", "/.git"];
        let made = packed(work.path(), "a.tar", &tree, &options);
        assert_eq!(files_in(&made), expected, "{patterns:?}");
        kept.insert(expected.len());
    }
    assert!(kept.len() > 20, "the sets of patterns differ too little: {kept:?}");
}

#[test]
fn patterns_apply_to_archives_and_to_the_sources_themselves() {
    let work = work_directory();
    let (train, val) = (directory(work.path(), "train"), directory(work.path(), "val"));
    write_all(&train, &[("a/1", b"1"), ("a/1.tmp", b"2"), ("cache/x", b"3")]);
    write_all(&val, &[("a/1", b"4")]);
    let loose = work.path().join("notes.tmp");
    fs::write(&loose, "5").unwrap();
    let made = work.path().join("made.tar");
    let set = |files: &[&str]| files.iter().map(|&file| file.to_owned()).collect::<BTreeSet<_>>();
    let common = ["--force", "--exclude", "*.tmp", "--exclude", "cache/"];
    let pack_of = |sources: &[&str]| pack(&[&common[..], sources, &[text(&made)]].concat());

    let output = pack_of(&[text(&train), text(&val), text(&loose)]);
    assert_eq!(files_in(&made), set(&["train/a/1", "val/a/1"]));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("excluded 3 paths"), "{stderr}");

    pack_of(&["--exclude", "/val", text(&train), text(&val)]);
    assert_eq!(files_in(&made), set(&["train/a/1"]));

    let archive = packed(work.path(), "train.sqfs", &train, &[]);
    let output = pack_of(&["--json", text(&archive)]);
    assert_eq!(files_in(&made), set(&["a/1"]));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["excluded"], 2);

    let list = work.path().join("list");
    fs::write(&list, "a/1\na/1.tmp\ncache/x\n").unwrap();
    pack_of(&["--files-from", text(&list), text(&train)]);
    assert_eq!(files_in(&made), set(&["a/1"]));

    let output = pack(&["--force", "--exclude", "nothing", text(&train), text(&made)]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("nothing matches"), "{stderr}");
}

#[test]
fn an_excluded_file_that_cannot_be_read_is_no_problem() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("a", b"1"), ("secret/x", b"2")]);
    let made = work.path().join("made.tar");
    let list = work.path().join("list");
    fs::write(&list, "a\nmissing\n").unwrap();
    let words = ["-q", "--files-from", text(&list), text(&tree), text(&made)];
    refused(&words, 1);
    pack(&[&["--exclude", "missing"][..], &words].concat());
    assert_eq!(files_in(&made), ["a".to_owned()].into());
}

#[test]
fn invalid_patterns_and_missing_files_of_patterns_are_refused() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("a", b"1")]);
    let made = work.path().join("made.tar");
    let stderr = refused(&["--exclude", "a{b", text(&tree), text(&made)], 2);
    assert!(stderr.contains("--exclude \"a{b\""), "{stderr}");
    let missing = work.path().join("missing");
    let stderr = refused(&["--exclude-from", text(&missing), text(&tree), text(&made)], 1);
    assert!(stderr.contains("missing"), "{stderr}");
    assert!(!made.exists());
}

#[test]
fn extended_attributes_are_left_out_on_demand_and_those_of_storage_always() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    write_all(&tree, &[("a", b"1")]);
    let file = tree.join("a");
    let set = |name: &str| {
        let output = Command::new("setfattr").args(["-n", name, "-v", "x"]).arg(&file).output();
        output.unwrap().status.success()
    };
    assert!(set("user.kept"), "no extended attributes in {}", work.path().display());
    let is_root = set("trusted.kept") && set("trusted.lov") && set("trusted.link");
    // SquashFS lists names of sets; GNU tar writes one pax record for each.
    let attributes = |archive: &Path| {
        let listed = said(&["tar", "--xattrs", "--xattrs-include=*", "-tvvf", text(archive)]);
        let names = listed.lines().filter_map(|line| line.trim().strip_prefix("x: "));
        names.map(|line| line.split_whitespace().last().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let made = packed(work.path(), "a.tar", &tree, &[]);
    let mut expected = vec!["user.kept".to_owned()];
    if is_root {
        expected.insert(0, "trusted.kept".to_owned());
    }
    assert_eq!(attributes(&made), expected);
    let image = packed(work.path(), "a.sqfs", &tree, &[]);
    let from_image = packed(work.path(), "b.tar", &image, &[]);
    assert_eq!(attributes(&from_image), expected);
    for source in [&tree, &image, &made] {
        let without = packed(work.path(), "c.tar", source, &["--no-xattrs"]);
        assert_eq!(attributes(&without), Vec::<String>::new(), "{}", source.display());
        let without = packed(work.path(), "c.sqfs", source, &["--no-xattrs"]);
        let info = said(&["unsquashfs", "-stat", text(&without)]);
        assert!(info.contains("Xattrs are not stored"), "{info}");
    }
}
