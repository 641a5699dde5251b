//! Shards read by GNU tar, and by webdataset if it is installed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::*;
use crate::pack::catalog::{Builder, ContentId, Inode, InodeKind, Owner};
use crate::pack::tar::tests::{META, Memory, Stored};
use crate::progress::Progress;
use crate::sync::AtomicBool;
use crate::vfs::Name;

/// Files with these paths and lengths; the byte values follow from the index.
fn catalog(files: &[(String, usize, Option<u64>)]) -> Catalog {
    let mut builder = Builder::new(META);
    let mut memory = Memory::default();
    for (key, (path, len, fails)) in files.iter().enumerate() {
        let mut parts: Vec<_> =
            path.split('/').map(|part| Name::parse(part.as_bytes()).unwrap()).collect();
        let name = parts.pop().unwrap();
        let directory = parts
            .into_iter()
            .fold(InodeId::ROOT, |directory, part| builder.directory(directory, part, META));
        let bytes = vec![b'a' + (key % 26) as u8; *len];
        memory.0.push(Stored { bytes, data: Vec::new(), fails: *fails });
        let content = ContentId { source: 0, key: key as u64 };
        let kind = InodeKind::File { size: *len as u64, content, sparse: false };
        builder.add(directory, name, Inode { meta: META, kind });
    }
    builder.source(Box::new(memory));
    builder.finish(Owner::default()).unwrap()
}

/// 3 classes of 40 samples with two files each; some files take several batches.
fn jpeg_samples() -> Vec<(String, usize, Option<u64>)> {
    let mut files = Vec::new();
    for nth in 0..120 {
        let stem = format!("class.{}/img_{nth:03}", nth % 3);
        let len = if nth % 50 == 7 { (2 << 20) + nth } else { 1000 * (nth % 17) };
        files.push((format!("{stem}.JPG"), len, None));
        files.push((format!("{stem}.seg.png"), nth, None));
    }
    files
}

struct Run {
    work: tempfile::TempDir,
    totals: Sharded,
    problems: Vec<String>,
}

impl Run {
    fn new(files: &[(String, usize, Option<u64>)], shards: Shards, threads: usize) -> Self {
        let work = tempfile::tempdir().unwrap();
        let (progress, stop) = (Progress::default(), AtomicBool::new(false));
        let job = Job::new(threads, &progress, &stop);
        let path = work.path().join("out.tar");
        let catalog = catalog(files);
        let (unpublished, totals) =
            write(&job, &catalog, &shards, None, &path, Existing::Refuse).unwrap();
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 0);
        unpublished.publish().unwrap();
        let problems = job.problems.lock().0.iter().map(|problem| problem.origin.clone()).collect();
        Self { work, totals, problems }
    }

    fn shards(&self) -> Vec<PathBuf> {
        let mut paths: Vec<_> =
            fs::read_dir(self.work.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.retain(|path| path.extension().is_some_and(|end| end == "tar"));
        paths
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        self.shards().iter().map(|path| fs::read(path).unwrap()).collect()
    }

    /// The members of all shards, as GNU tar lists them.
    fn members(&self) -> Vec<Vec<String>> {
        let list = |path: PathBuf| {
            let done = Command::new("tar").arg("-tf").arg(path).output().unwrap();
            assert!(done.status.success() && done.stderr.is_empty());
            String::from_utf8(done.stdout).unwrap().lines().map(str::to_owned).collect()
        };
        self.shards().into_iter().map(list).collect()
    }
}

const SHARDS: Shards = Shards { bytes: 300_000, seed: Some(42), labels: Labels::ByDirectory };

#[test]
fn samples_are_whole_shuffled_and_labeled() {
    let run = Run::new(&jpeg_samples(), SHARDS, 4);
    assert_eq!((run.totals.samples, run.totals.files, run.totals.classes), (120, 240, 3));
    assert_eq!(run.problems, Vec::<String>::new());
    let mut keys = Vec::new();
    for (path, members) in run.shards().iter().zip(run.members()) {
        assert_eq!(members.len() % 3, 0);
        for sample in members.chunks(3) {
            let key = sample[0].strip_suffix(".JPG").unwrap();
            assert_eq!(sample[1..], [format!("{key}.seg.png"), format!("{key}.cls")]);
            keys.push(key.to_owned());
        }
        assert!(fs::metadata(path).unwrap().len() <= SHARDS.bytes || members.len() == 3);
    }
    assert!(!keys.is_sorted());
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 120);
    let classes = fs::read_to_string(run.work.path().join("out-classes.txt")).unwrap();
    assert_eq!(classes, "class.0\nclass.1\nclass.2\n");
    let first = &run.members()[0][2];
    let label = Command::new("tar").arg("-xOf").arg(&run.shards()[0]).arg(first).output().unwrap();
    assert_eq!(label.stdout, first.as_bytes()[6..7]);
}

#[test]
fn a_seed_gives_the_same_bytes_and_another_seed_different_ones() {
    let first = Run::new(&jpeg_samples(), SHARDS, 1).bytes();
    assert!(first == Run::new(&jpeg_samples(), SHARDS, 7).bytes());
    assert!(first != Run::new(&jpeg_samples(), Shards { seed: Some(43), ..SHARDS }, 1).bytes());
    let sorted = Run::new(&jpeg_samples(), Shards { seed: None, ..SHARDS }, 2);
    assert!(sorted.members().concat().iter().filter(|name| name.ends_with("JPG")).is_sorted());
}

#[test]
fn leaves_out_all_of_a_sample_that_fails() {
    let mut files = jpeg_samples();
    // A small file, the second of its sample, and a file that fails in its third batch.
    files[21].2 = Some(0);
    files[2 * 57].2 = Some(2 << 20);
    let run = Run::new(&files, SHARDS, 3);
    assert_eq!(run.problems.len(), 2, "{:?}", run.problems);
    assert_eq!(run.totals.samples, 118);
    let members = run.members().concat();
    assert_eq!(members.len(), 118 * 3);
    assert!(!members.iter().any(|name| name.contains("img_010") || name.contains("img_057")));
}

#[test]
fn reports_files_that_webdataset_cannot_read() {
    let files = [
        ("a/x.jpg", "kept"),
        ("a/LICENSE", "no extension"),
        ("a/.hidden", "no key"),
        ("__meta__/x.jpg", "webdataset's own"),
        ("a/y.cls", "labeled already"),
        ("a/z.jpg", "twice"),
        ("a/z.JPG", "twice"),
        ("top.jpg", "no class"),
    ];
    let files = files.map(|(path, _)| (path.to_owned(), 1, None));
    let run = Run::new(&files, SHARDS, 1);
    assert_eq!(run.members().concat(), ["a/x.jpg", "a/x.cls"]);
    assert_eq!(run.problems, ["top", "a/y", "a/z"]);
    assert_eq!(run.totals.notes.len(), 1, "{:?}", run.totals.notes);
    assert!(run.totals.notes[0].starts_with("3 files"), "{:?}", run.totals.notes);
}

#[test]
fn webdataset_reads_the_samples() {
    let run = Run::new(&jpeg_samples(), SHARDS, 2);
    let source = run.work.path().join("source");
    for (key, (path, len, _)) in jpeg_samples().iter().enumerate() {
        let path = source.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![b'a' + (key % 26) as u8; *len]).unwrap();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/webdataset_check.py");
    let python = std::env::var_os("ARCHFS_WEBDATASET_PYTHON").unwrap_or("python3".into());
    let mut check = Command::new(python);
    check.arg(script).arg(source).arg(run.work.path().join("out.tar"));
    let done = check.args(["--labels", "--bytes", "300000"]).output().unwrap();
    if done.status.code() == Some(77) {
        eprintln!("SKIPPED: webdataset is not installed");
        return;
    }
    let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{stdout}{}", String::from_utf8_lossy(&done.stderr));
    assert!(stdout.contains(" 120 samples"), "{stdout}");
}
