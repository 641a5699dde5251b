//! Reads the bytes of all files with several threads, in archive order.
//!
//! A file is split into parts, so that a single large file keeps all threads busy, unless the
//! archive has a checksum of the whole file. Invariants: each part is read by one thread. The
//! threads read close to each other in the archive, so that a block shared by files is decoded
//! once. Holes are skipped.

use std::collections::HashMap;
use std::ops::Range;
use std::slice;
use std::thread;

use super::super::file_data::{ContentCheck, PART, next_data, piece_of, read_some};
use super::super::{Finding, Ino, Location, Scratch, Severity, Tree};
use super::File;
use crate::error::{Error, Kind};
use crate::progress::Progress;
use crate::sync::{AtomicBool, Mutex, Ordering};

/// Reads all of `files`. Returns, for each file with errors, the first damage and the first other
/// error, and whether it has stopped because a server does not answer.
pub(super) fn read(
    tree: &dyn Tree,
    files: &[File],
    threads: usize,
    progress: &Progress,
) -> (Vec<Finding>, bool) {
    let is_stopped = AtomicBool::new(false);
    let feed = Feed { state: Mutex::new(State { rest: files.iter(), part: None }) };
    // The first failure of each file with its offset. Guards only that; no other lock is held with
    // it.
    let failures: Mutex<HashMap<(Ino, bool), (u64, Finding)>> = Mutex::default();
    let run = || {
        let mut scratch = Scratch::default();
        while let Some((file, part)) = feed.next() {
            let Err((offset, error)) = read_part(tree, &feed, file, part, &mut scratch, progress)
            else {
                continue;
            };
            let finding = Finding::from_error(Location::Inode(file.ino), &error);
            if error.kind() == Kind::Unreachable {
                // All other reads would wait as long.
                is_stopped.store(true, Ordering::Relaxed);
                feed.end();
            }
            let mut failures = failures.lock();
            let key = (file.ino, finding.severity == Severity::Damage);
            match failures.get(&key) {
                Some((before, _)) if *before <= offset => {}
                _ => _ = failures.insert(key, (offset, finding)),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            // If a thread cannot be started, the others do its work.
            let _ = thread::Builder::new().name("verify".into()).spawn_scoped(scope, run);
        }
        run();
    });
    let findings = failures.into_inner().into_values().map(|(_, finding)| finding).collect();
    (findings, is_stopped.into_inner())
}

fn read_part(
    tree: &dyn Tree,
    feed: &Feed<'_>,
    file: File,
    part: Range<u64>,
    scratch: &mut Scratch,
    progress: &Progress,
) -> Result<(), (u64, Box<Error>)> {
    let mut offset = part.start;
    // A file with a checksum is one part.
    let check = ContentCheck::new(file.crc32, file.size);
    let mut sum = check.part(part.start);
    while offset < part.end {
        let failed = |error: Error| (offset, Box::new(error));
        let data = next_data(tree, file.ino, offset, file.size).map_err(failed)?;
        if data > offset {
            // A hole may be as large as the largest file size, so it must not be split into parts.
            let from = feed.skip(file.ino, data, part.end);
            progress.advance(data.min(part.end) - offset + data.saturating_sub(from));
            offset = data;
            continue;
        }
        let bytes = read_some(tree, file.ino, offset, piece_of(part.end - offset), scratch);
        let bytes = bytes.map_err(|error| failed(error.within(format!("from byte {offset}"))))?;
        sum.update(bytes.as_slice());
        let count = bytes.as_slice().len() as u64;
        offset += count;
        progress.advance(count);
    }
    check.add(sum).map(drop).map_err(|error| (part.start, Box::new(error)))
}

/// The queue of parts to read.
struct Feed<'f> {
    /// Guards the next part; no other lock is held with it.
    state: Mutex<State<'f>>,
}

struct State<'f> {
    rest: slice::Iter<'f, File>,
    /// The file being split, and the offset of its next part.
    part: Option<(File, u64)>,
}

impl Feed<'_> {
    /// Nothing more is read.
    fn end(&self) {
        *self.state.lock() = State { rest: [].iter(), part: None };
    }

    /// The next part to read.
    fn next(&self) -> Option<(File, Range<u64>)> {
        let mut state = self.state.lock();
        let (file, start) = match state.part.take() {
            Some(part) => part,
            None => (*state.rest.next()?, 0),
        };
        let len = if file.crc32.is_some() { file.size } else { PART };
        let end = start.saturating_add(len).min(file.size);
        if end < file.size {
            state.part = Some((file, end));
        }
        Some((file, start..end))
    }

    /// Skips the rest of `ino` up to `data`. `end` is the end of the caller's part. Returns the
    /// offset from which the file was skipped.
    fn skip(&self, ino: Ino, data: u64, end: u64) -> u64 {
        let mut state = self.state.lock();
        match &mut state.part {
            Some((file, next)) if file.ino == ino && *next < data => {
                let from = *next;
                *next = data;
                if data >= file.size {
                    state.part = None;
                }
                from
            }
            _ => data.max(end),
        }
    }
}
