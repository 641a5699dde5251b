//! Shards for WebDataset: samples are not split, the order depends only on the seed, and tar and
//! archfs read them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::*;
use crate::support::mount::Mounted;
use crate::support::{skip_without_mounts, source, work_directory};

const CLASSES: [&str; 3] = ["bird", "cat", "dog"];

/// Samples of a JPEG and a caption; some have a mask as well.
fn samples(root: &Path) {
    for class in CLASSES {
        for number in 0..70_u64 {
            let stem = format!("{class}/{class}_{number:03}");
            let size = 2_000 + 37 * number as usize;
            write_all(
                root,
                &[
                    (&format!("{stem}.jpg"), source::noise(number, size).as_slice()),
                    (&format!("{stem}.txt"), format!("a {class}").as_bytes()),
                ],
            );
            if number % 3 == 0 {
                write_all(
                    root,
                    &[(&format!("{stem}.mask.png"), source::noise(number, 500).as_slice())],
                );
            }
        }
    }
}

/// The members of a shard, in order.
fn members(shard: &Path) -> Vec<String> {
    said(&["tar", "-tf", text(shard)]).lines().map(str::to_owned).collect()
}

/// The key of a sample, as WebDataset defines it: up to the first dot of the last path component.
fn key(member: &str) -> &str {
    let base = member.rfind('/').map_or(0, |slash| slash + 1);
    let dot = member[base..].find('.').expect("every member has an extension");
    &member[..base + dot]
}

fn shards(directory: &Path) -> Vec<PathBuf> {
    let tars = names(directory).into_iter().filter(|name| name.ends_with(".tar"));
    tars.map(|name| directory.join(name)).collect()
}

fn made(work: &Path, name: &str, tree: &Path, options: &[&str]) -> (PathBuf, Vec<PathBuf>) {
    let target = directory(work, name);
    let archive = target.join("train.tar");
    pack(&[options, &["-q", "--shards", "100K", text(tree), text(&archive)]].concat());
    let found = shards(&target);
    (target, found)
}

#[test]
fn samples_are_not_split_and_shards_respect_their_size() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    samples(&tree);
    let (_, shards) = made(work.path(), "out", &tree, &["--shuffle", "1"]);
    assert!(shards.len() > 5, "{shards:?}");
    let mut found = BTreeSet::new();
    let mut keys = BTreeSet::new();
    for (number, shard) in shards.iter().enumerate() {
        assert_eq!(names_of(shard), format!("train-{number:06}.tar"));
        assert!(fs::metadata(shard).unwrap().len() <= 100 << 10);
        // Members with the same key follow each other.
        let mut last = String::new();
        for member in members(shard) {
            assert!(found.insert(member.clone()), "{member} twice");
            if key(&member) != last {
                last = key(&member).to_owned();
                assert!(keys.insert(last.clone()), "{last} is not in one piece");
            }
        }
    }
    let expected = take(&tree, Depth::NoXattrs);
    let expected: BTreeSet<_> =
        contents(&expected).into_iter().map(|(path, _)| String::from_utf8(path).unwrap()).collect();
    assert_eq!(found, expected);
}

fn names_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn the_seed_determines_the_order() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    samples(&tree);
    let order = |name: &str, options: &[&str]| -> Vec<String> {
        let (_, shards) = made(work.path(), name, &tree, options);
        shards.iter().flat_map(|shard| members(shard)).collect()
    };
    let first = order("1", &["--shuffle", "7", "--threads", "1"]);
    assert_eq!(first, order("2", &["--shuffle", "7", "--threads", "5"]));
    assert_ne!(first, order("3", &["--shuffle", "8"]));
    let sorted = order("4", &[]);
    assert!(sorted.is_sorted(), "without a seed the order is that of names");
    let mut again = first.clone();
    again.sort();
    assert_eq!(again, sorted);
    // All classes appear early, because the shuffle is global.
    let early: BTreeSet<_> = first.iter().take(30).map(|name| &name[..3]).collect();
    assert_eq!(early.len(), CLASSES.len());
}

#[test]
fn labels_are_directory_numbers() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    samples(&tree);
    let (_, shards) = made(work.path(), "out", &tree, &["--shuffle", "1", "--labels"]);
    let mut labels = BTreeMap::new();
    for shard in &shards {
        for member in members(shard).iter().filter(|member| member.ends_with(".cls")) {
            let label = said(&["tar", "-xOf", text(shard), member]);
            labels.insert(member.clone(), label.trim().parse::<usize>().unwrap());
        }
    }
    assert_eq!(labels.len(), 3 * 70);
    for (member, label) in labels {
        assert!(member.starts_with(CLASSES[label]), "{member}: {label}");
    }
}

#[test]
fn shards_mounted_together_show_the_source() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    samples(&tree);
    let (_, shards) = made(work.path(), "out", &tree, &["--shuffle", "3"]);
    let mounted = Mounted::several(&[], &shards, &work.path().join("mount"), &[]);
    let expected = take(&tree, Depth::NoXattrs);
    assert_eq!(contents(&take(mounted.path(), Depth::NoXattrs)), contents(&expected));
}

#[test]
fn all_shards_appear_or_none() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    samples(&tree);
    let target = directory(work.path(), "out");
    let archive = target.join("train.tar");
    fs::write(target.join("train-000002.tar"), "another user's").unwrap();
    let words = ["-q", "--shards", "100K", text(&tree), text(&archive)];
    let stderr = refused(&words, 1);
    assert!(stderr.contains("train-000002.tar") && stderr.contains("--force"), "{stderr}");
    assert_eq!(names(&target), ["train-000002.tar"]);
    pack(&[&["--force"], &words[..]].concat());
    assert!(names(&target).len() > 5);
}

#[test]
fn shards_beside_their_source_are_not_packed_again() {
    let work = work_directory();
    let tree = directory(work.path(), "tree");
    samples(&tree);
    let archive = tree.join("out.tar");
    let words = ["-q", "--force", "--labels", "--shards", "1G", text(&tree), text(&archive)];
    pack(&words);
    let shard = tree.join("out-000000.tar");
    let first = members(&shard);
    pack(&words);
    assert_eq!(members(&shard), first);
}
