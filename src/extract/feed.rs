//! The queue of files to write, and of parts of large files.
//!
//! Invariant: a thread gets nothing only if no other thread can still add a part.

use std::collections::VecDeque;
use std::ops::Range;
use std::slice::ChunkBy;

use super::listing::Entry;
use crate::sync::{Arc, Condvar, Mutex};
use crate::vfs::PART;

/// What to do next. `New` is a file that was created.
pub(super) enum Work<'w, New> {
    /// Create the inode that has these names.
    Inode(&'w [Entry]),
    /// Write this part of a large file.
    Part(Arc<New>, Range<u64>),
}

/// The queue.
pub(super) struct Feed<'w, New> {
    /// Guards only the queue; no other lock is held with it.
    state: Mutex<State<'w, New>>,
    changed: Condvar,
}

type SameInode = fn(&Entry, &Entry) -> bool;

struct State<'w, New> {
    rest: ChunkBy<'w, Entry, SameInode>,
    large: VecDeque<Large<New>>,
    /// Inodes that were handed out and may turn out to be large files.
    pending: usize,
}

struct Large<New> {
    new: Arc<New>,
    next: u64,
    size: u64,
}

impl<'w, New> Feed<'w, New> {
    /// A queue of `entries`, in which the names of one inode are adjacent.
    pub(super) fn new(entries: &'w [Entry]) -> Self {
        let same: SameInode = |a, b| a.ino == b.ino;
        let (rest, large) = (entries.chunk_by(same), VecDeque::new());
        Self { state: Mutex::new(State { rest, large, pending: 0 }), changed: Condvar::new() }
    }

    /// The next work. `settled` must follow an `Inode`.
    pub(super) fn next(&self) -> Option<Work<'w, New>> {
        let mut state = self.state.lock();
        loop {
            if let Some(mut large) = state.large.pop_front() {
                let part = large.next..large.next.saturating_add(PART).min(large.size);
                large.next = part.end;
                if large.next >= large.size {
                    // With this reference, whichever thread finishes last completes the file.
                    return Some(Work::Part(large.new, part));
                }
                let new = Arc::clone(&large.new);
                state.large.push_front(large);
                return Some(Work::Part(new, part));
            }
            if let Some(names) = state.rest.next() {
                state.pending += 1;
                return Some(Work::Inode(names));
            }
            if state.pending == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// An `Inode` is complete, or is the large file `large` of a size in bytes.
    pub(super) fn settled(&self, large: Option<(New, u64)>) {
        let mut state = self.state.lock();
        state.pending -= 1;
        if let Some((new, size)) = large {
            state.large.push_back(Large { new: Arc::new(new), next: 0, size });
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Leaves out the part of `new` before `offset`, if it was not handed out. The caller still has
    /// a part of it.
    pub(super) fn skip(&self, new: &Arc<New>, offset: u64) {
        let mut state = self.state.lock();
        let Some(nth) = state.large.iter().position(|large| Arc::ptr_eq(&large.new, new)) else {
            return;
        };
        let large = &mut state.large[nth];
        large.next = large.next.max(offset);
        if large.next >= large.size {
            state.large.remove(nth);
        }
    }
}
