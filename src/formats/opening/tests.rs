//! Reads from all kinds of archives on storage that returns errors.
//!
//! An I/O error is returned to the reader, is not cached, and never becomes data.
//! tests/hostile/faults.rs mounts archives on a file system that fails.

use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Memory, Opening};
use crate::error::{Kind, Result};
use crate::formats::OpenOptions;
use crate::progress::Progress;
use crate::storage::{Faults, FaultyStorage, MemStorage, Storage};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::vfs::{Cookie, Ino, Scratch, Tree};

/// Number of files in each archive, and length of the longest. It has several blocks and chunks.
const FILES: u64 = 8;
const LONGEST: usize = 400_000;

/// The shell command that makes each kind of archive from a tar, or a command of zip. "image" uses
/// mksquashfs.
const KINDS: [(&str, &str); 9] = [
    ("image", ""),
    ("zip, stored", "zip -q -0"),
    ("zip, deflate", "zip -q"),
    ("stored", "cat"),
    ("gzip", "gzip -1"),
    ("bzip2", "bzip2 -1"),
    ("xz", "xz -0 -T1 --block-size=300KiB"),
    ("zstd", "split -b 300000 --filter='zstd -q -c'"),
    ("lz4", "split -b 300000 --filter='lz4 -q -c'"),
];

/// The files to pack: name and bytes.
fn files() -> Vec<(String, Vec<u8>)> {
    let file = |number: u64| {
        let mut state = number + 1;
        let len = LONGEST / (1 + number as usize % 4) - number as usize;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(number | 1);
            (state >> 33) as u8
        };
        let bytes = (0..len).map(|at| if at.is_multiple_of(3) { random() } else { b'x' }).collect();
        (format!("f{number:02}"), bytes)
    };
    (0..FILES).map(file).collect()
}

fn make(kind: &str, line: &str, files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let work = tempfile::tempdir().unwrap();
    let source = work.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for (name, bytes) in files {
        std::fs::write(source.join(name), bytes).unwrap();
    }
    let archive_path = work.path().join("made");
    let shell = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-ec", script, "bash"]).arg(&source).arg(&archive_path);
        let output = command.stderr(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{kind}: {}", String::from_utf8_lossy(&output.stderr));
    };
    match kind {
        "image" => shell("mksquashfs \"$1\" \"$2\" -quiet -no-progress -comp zstd -b 64K"),
        _ if line.starts_with("zip") => {
            shell(&format!("cd \"$1\"; {line} \"$2.zip\" *; mv \"$2.zip\" \"$2\""));
        }
        _ => shell(&format!("cd \"$1\"; tar -cf - --sort=name * | {line} > \"$2\"")),
    }
    std::fs::read(archive_path).unwrap()
}

/// Opens the archive in `storage` as a tree, with `memory` bytes for decoded blocks.
fn open(storage: Arc<FaultyStorage>, memory: u64) -> Result<Arc<dyn Tree>> {
    let options = OpenOptions { cache_bytes: memory, ..OpenOptions::default() };
    let memory = Memory::new(1, &options);
    let image_bytes = memory.image_bytes;
    let progress = Progress::default();
    let opening = Opening { options: &options, memory: &memory, progress: &progress, image_bytes };
    let mut layers = opening.open_storage("archive", storage, None, None, 0)?;
    assert_eq!(layers.len(), 1);
    Ok(layers.remove(0).layer.tree)
}

fn list_inodes(tree: &dyn Tree) -> Result<Vec<(String, Ino)>> {
    let mut found = Vec::new();
    tree.read_dir(Ino::ROOT, Cookie::START, &mut |entry| {
        found.push((String::from_utf8_lossy(entry.name.as_bytes()).into_owned(), entry.ino));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn contents(tree: &dyn Tree, ino: Ino, step: u32) -> Result<Vec<u8>> {
    let size = tree.attr(ino)?.size;
    let (mut scratch, mut bytes) = (Scratch::default(), Vec::new());
    while (bytes.len() as u64) < size {
        bytes.extend(tree.read(ino, bytes.len() as u64, step, &mut scratch)?.as_slice());
    }
    Ok(bytes)
}

/// Reads all files with four threads, in pieces of several sizes. Checks the bytes and returns how
/// many reads failed.
fn read_all(what: &str, tree: &dyn Tree, files: &[(String, Vec<u8>)]) -> u64 {
    let failed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (reader, step) in [50_000_u32, 128 << 10, 1_000_003, 90_001].into_iter().enumerate() {
            let failed = &failed;
            scope.spawn(move || {
                let Ok(inodes) = list_inodes(tree) else {
                    failed.fetch_add(1, Ordering::Relaxed);
                    return;
                };
                assert_eq!(inodes.len(), files.len(), "{what}: a listing is whole or an error");
                for nth in 0..files.len() {
                    let nth = (nth + reader * 3) % files.len();
                    let ((name, ino), (expected_name, bytes)) = (&inodes[nth], &files[nth]);
                    assert_eq!(name, expected_name, "{what}");
                    match contents(tree, *ino, step) {
                        Ok(found) => assert!(found == *bytes, "{what}: {name} has other bytes"),
                        Err(error) => {
                            let kind = error.kind();
                            assert!(matches!(kind, Kind::Io | Kind::Corrupt), "{what}: {error}");
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    failed.into_inner()
}

fn faulty(archive: &[u8], seed: u64) -> Arc<FaultyStorage> {
    Arc::new(FaultyStorage::new(Arc::new(MemStorage::new(archive.to_vec())), seed))
}

#[test]
fn random_read_errors_give_the_right_data_or_an_error_and_are_not_cached() {
    let files = files();
    for (kind, line) in KINDS {
        let archive = make(kind, line, &files);
        // The cache holds nothing, some, or all of the decoded data.
        for (seed, memory) in [(1, 0), (2, 1 << 20), (3, 256 << 20)] {
            let storage = faulty(&archive, seed);
            let tree = open(Arc::clone(&storage), memory).unwrap();
            let mut failed = 0;
            for one_in in [1, 4, 20] {
                storage.set(Faults {
                    failing: one_in,
                    short: 3 * one_in,
                    late: 5,
                    ..Faults::default()
                });
                failed += read_all(kind, tree.as_ref(), &files);
            }
            assert!(failed > 0 && storage.failed() > 0, "{kind}: nothing was injected");
            storage.set(Faults::default());
            assert_eq!(read_all(kind, tree.as_ref(), &files), 0, "{kind}: an error stayed");
        }
    }
}

#[test]
fn opening_on_failing_storage_gives_the_right_tree_or_an_error() {
    let files = files();
    for (kind, line) in KINDS {
        let archive = make(kind, line, &files);
        let mut opened = 0;
        for seed in 0..40 {
            let storage = faulty(&archive, seed);
            storage.set(Faults { failing: 1 + seed % 20, ..Faults::default() });
            match open(Arc::clone(&storage), 64 << 20) {
                Ok(tree) => {
                    opened += 1;
                    storage.set(Faults::default());
                    assert_eq!(read_all(kind, tree.as_ref(), &files), 0, "{kind}: {seed}");
                }
                Err(error) => assert_eq!(error.kind(), Kind::Io, "{kind}: {seed}: {error}"),
            }
        }
        assert!(opened < 40, "{kind}: nothing was injected");
    }
}

/// Formats with checksums detect changed bytes. The others return wrong bytes or an error, but do
/// not crash.
#[test]
fn changed_bytes_do_not_crash_and_do_not_pass_checksums() {
    let files = files();
    for (kind, line) in KINDS {
        let archive = make(kind, line, &files);
        let storage = faulty(&archive, 9);
        let tree = open(Arc::clone(&storage), 1 << 20).unwrap();
        let inodes = list_inodes(tree.as_ref()).unwrap();
        storage.set(Faults { changed: 3, ..Faults::default() });
        // The checksums of gzip and lz4 cover more than a chunk. They are checked only when the
        // archive is first opened.
        let has_checksums = matches!(kind, "bzip2" | "xz" | "zstd");
        for ((_, ino), (name, bytes)) in inodes.iter().zip(&files) {
            let found = contents(tree.as_ref(), *ino, 100_000);
            if has_checksums {
                assert!(found.is_err() || found.unwrap() == *bytes, "{kind}: {name}");
            }
        }
        assert!(storage.failed() > 0, "{kind}");
    }
}

/// > A reader that waited for the same block retries by itself, and also gets an error while the
/// > fault lasts.
#[test]
fn readers_waiting_for_a_failed_load_get_an_error_and_the_next_read_succeeds() {
    let files = files();
    for (kind, line) in KINDS {
        let archive = make(kind, line, &files);
        let storage = faulty(&archive, 4);
        let tree = open(Arc::clone(&storage), 64 << 20).unwrap();
        let (_, ino) = list_inodes(tree.as_ref()).unwrap()[0];
        tree.attr(ino).unwrap();
        storage.set(Faults { failing: 1, late: 1, ..Faults::default() });
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let read = || tree.read(ino, 0, 4096, &mut Scratch::default()).map(|_| ());
            let readers: Vec<_> = (0..16).map(|_| scope.spawn(read)).collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).collect()
        });
        assert!(outcomes.iter().all(Result::is_err), "{kind}");
        storage.set(Faults::default());
        let mut scratch = Scratch::default();
        let found = tree.read(ino, 0, 4096, &mut scratch).unwrap();
        assert_eq!(found.as_slice(), &files[0].1[..4096], "{kind}");
    }
}

/// > An error during readahead is dropped.
#[test]
fn an_error_while_decoding_ahead_is_dropped_and_not_cached() {
    let bytes: Vec<u8> = (0..8_000_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
    let files = [("big".to_owned(), bytes)];
    // A ZIP archive is not decoded ahead.
    let is_ahead = |kind: &str| kind != "stored" && !kind.starts_with("zip");
    for (kind, line) in KINDS.into_iter().filter(|(kind, _)| is_ahead(kind)) {
        let archive = make(kind, line, &files);
        let storage = faulty(&archive, 6);
        let tree = open(Arc::clone(&storage), 1 << 30).unwrap();
        let (_, ino) = list_inodes(tree.as_ref()).unwrap()[0];
        let len = files[0].1.len();
        let read = |from: usize, to: usize| {
            let mut scratch = Scratch::default();
            for at in (from..to).step_by(128 << 10) {
                let found = tree.read(ino, at as u64, 128 << 10, &mut scratch).unwrap();
                let found = found.as_slice();
                assert!(found == &files[0].1[at..at + found.len()], "{kind}: {at}");
            }
        };
        // The reader stops at 3/8 of the file, and the second half of the archive cannot be read.
        // Decoding ahead of such a reader (8 MiB of 32 MB) reaches the second half.
        let half = archive.len() as u64 / 2;
        storage.set(Faults { failing: 1, from: half, ..Faults::default() });
        read(0, len * 3 / 8);
        let deadline = Instant::now() + Duration::from_secs(10);
        while storage.failed() == 0 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(storage.failed() > 0, "{kind}: decoding ahead has met no fault");
        storage.set(Faults::default());
        read(len * 3 / 8 / (128 << 10) * (128 << 10), len);
    }
}

#[test]
fn injects_the_requested_faults() {
    let storage = faulty(&[7; 1000], 1);
    let mut buffer = [0; 100];
    storage.set(Faults { failing: 1, from: 500, ..Faults::default() });
    storage.read_exact_at(&mut buffer, 400).unwrap();
    let error = storage.read_exact_at(&mut buffer, 401).unwrap_err();
    assert_eq!(error.kind(), Kind::Io, "{error}");
    storage.set(Faults { short: 1, ..Faults::default() });
    let error = storage.read_exact_at(&mut buffer, 0).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    storage.set(Faults { changed: 1, ..Faults::default() });
    storage.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(buffer.iter().filter(|&&byte| byte != 7).count(), 1);
    assert_eq!((storage.reads(), storage.failed()), (4, 3));
    storage.set(Faults { failing: 4, ..Faults::default() });
    let failed = (0..4000).filter(|_| storage.read_exact_at(&mut buffer, 0).is_err());
    assert!((800..1200).contains(&failed.count()));
}
