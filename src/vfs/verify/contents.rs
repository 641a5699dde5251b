//! The bytes of all files, read by several threads in the order of the archive.
//!
//! Owns who reads what; a file is cut into parts, so that one alone keeps all threads busy.
//! Invariants: a part is read by one thread, and what the threads are at lies close together in the
//! archive, so that a block which files share is decoded once; holes are passed over, not read.

use std::collections::HashMap;
use std::ops::Range;
use std::slice;
use std::thread;

use super::super::{Finding, Ino, Location, Scratch, SeekTarget, Severity, Tree};
use super::names::File;
use crate::error::{Error, Kind};
use crate::progress::Progress;
use crate::sync::Mutex;

/// What one thread reads of a file before another one may have the rest, bytes.
const PART: u64 = 16 << 20;

/// What is asked of the tree at once, bytes.
const STEP: u32 = 1 << 20;

/// Reads all of `files`; returns for each that fails the first failure of its kind.
pub(super) fn read(
    tree: &dyn Tree,
    files: &[File],
    threads: usize,
    progress: &Progress,
) -> Vec<Finding> {
    let feed = Feed { state: Mutex::new(State { rest: files.iter(), part: None }) };
    // The first failure of each file, and where it was. Guards only that; taken alone.
    let failures: Mutex<HashMap<(Ino, bool), (u64, Finding)>> = Mutex::default();
    let work = || {
        let mut scratch = Scratch::default();
        while let Some((file, part)) = feed.next() {
            let Err((at, finding)) = read_part(tree, &feed, file, part, &mut scratch, progress)
            else {
                continue;
            };
            let mut failures = failures.lock();
            let key = (file.ino, finding.severity == Severity::Damage);
            match failures.get(&key) {
                Some((before, _)) if *before <= at => {}
                _ => _ = failures.insert(key, (at, finding)),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            // With fewer threads it takes longer.
            let _ = thread::Builder::new().name("verify".into()).spawn_scoped(scope, work);
        }
        work();
    });
    failures.into_inner().into_values().map(|(_, finding)| finding).collect()
}

fn read_part(
    tree: &dyn Tree,
    feed: &Feed<'_>,
    file: File,
    part: Range<u64>,
    scratch: &mut Scratch,
    progress: &Progress,
) -> Result<(), (u64, Finding)> {
    let subject = Location::Inode(file.ino);
    let mut at = part.start;
    while at < part.end {
        let failed = |error: Error| (at, Finding::met(subject.clone(), &error));
        let data = match tree.seek(file.ino, at, SeekTarget::Data) {
            Err(error) if error.kind() == Kind::PastEnd => file.size,
            found => found.map_err(failed)?,
        };
        if data > at {
            // A hole may be as large as a file can be, and must not be cut into parts.
            let from = feed.pass(file.ino, data, part.end);
            progress.advance(data.min(part.end) - at + data.saturating_sub(from));
            at = data;
            continue;
        }
        let size = u32::try_from(part.end - at).unwrap_or(STEP).min(STEP);
        let place = || format!("from byte {at} on");
        let bytes = tree.read(file.ino, at, size, scratch);
        let count = bytes.map_err(|error| failed(error.within(place())))?.as_slice().len();
        if count == 0 {
            return Err(failed(Error::corrupt("ends before its size").within(place())));
        }
        at += count as u64;
        progress.advance(count as u64);
    }
    Ok(())
}

/// What is still to be read.
struct Feed<'f> {
    /// Guards what comes next; taken alone.
    state: Mutex<State<'f>>,
}

struct State<'f> {
    rest: slice::Iter<'f, File>,
    /// The file that is being cut, and where its next part starts.
    part: Option<(File, u64)>,
}

impl Feed<'_> {
    /// The next part.
    fn next(&self) -> Option<(File, Range<u64>)> {
        let mut state = self.state.lock();
        let (file, start) = match state.part.take() {
            Some(part) => part,
            None => (*state.rest.next()?, 0),
        };
        let end = start.saturating_add(PART).min(file.size);
        if end < file.size {
            state.part = Some((file, end));
        }
        Some((file, start..end))
    }

    /// Passes over what is left of `ino` up to `data`, of which nobody has been given anything
    /// from `end` on but what other threads have; returns from where on it was passed over.
    fn pass(&self, ino: Ino, data: u64, end: u64) -> u64 {
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
