//! Logs requests that failed, under the path of the file.
//!
//! A request names an inode, and not every format knows the path of an inode. So `vfs::paths`
//! searches the directories for it, on a thread that runs only while there are failures. The
//! request is answered at once, and the message follows when the search has ended.
//!
//! Invariants: each failure is logged once, if need be with its inode number. The searches take at
//! most a tenth of one CPU core, except when the mount ends, and memory for at most `WAITING_MAX`
//! failures.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::sync::{Arc, Condvar, Mutex};
use crate::vfs::{self, Ino, Tree};

/// Failures that wait for their paths. More are logged with inode numbers.
const WAITING_MAX: usize = 1024;

/// Equal failures of one file that wait. The log drops further ones anyway.
const SAME_MAX: usize = 3;

/// Paths remembered, so that further failures of the same file need no search.
const PATHS_MAX: usize = 4096;

/// The pause after a search, as a multiple of its duration.
const PAUSE: u32 = 9;

/// The failures of requests on a mount.
pub struct FailureLog {
    tree: Arc<dyn Tree>,
    /// The archives, as errors name them.
    archives: Vec<String>,
    /// No lock is taken while it is held, except that of the log.
    state: Mutex<State>,
    /// Signalled when the state changes in a way that a wait is about.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<Failure>,
    /// `None` if the search did not find the inode.
    paths: HashMap<Ino, Option<Vec<u8>>>,
    is_searching: bool,
    is_ending: bool,
}

/// A failure to be logged.
struct Failure {
    ino: Ino,
    operation: &'static str,
    /// The archive, if the error names it.
    archive: Option<String>,
    brief: String,
    /// All that is known, for experts.
    full: String,
    is_damage: bool,
    /// The remedy, if the error has one.
    hint: Option<String>,
}

impl FailureLog {
    /// The log of `tree`, which shows `archives`.
    pub fn new(tree: Arc<dyn Tree>, archives: Vec<String>) -> Arc<Self> {
        let (state, changed) = (Mutex::new(State::default()), Condvar::new());
        Arc::new(Self { tree, archives, state, changed })
    }

    /// Logs that `operation` on `ino` failed with `error`.
    pub(super) fn report(self: &Arc<Self>, ino: Ino, operation: &'static str, error: &Error) {
        let failure = self.failure(ino, operation, error);
        let mut state = self.state.lock();
        if let Some(path) = state.paths.get(&ino) {
            return failure.log(path.as_deref());
        }
        let is_same = |other: &&Failure| other.ino == failure.ino && other.brief == failure.brief;
        if state.waiting.iter().filter(is_same).count() >= SAME_MAX {
            return;
        }
        if state.waiting.len() >= WAITING_MAX {
            return failure.log(None);
        }
        state.waiting.push(failure);
        if !state.is_searching {
            let log = Arc::clone(self);
            let search = move || log.search();
            let thread = thread::Builder::new().name("paths".into()).spawn(search);
            state.is_searching = thread.is_ok();
            if thread.is_err() {
                state.log_all();
            }
        }
    }

    /// Logs all failures that wait for their paths, after `limit` with inode numbers. From now on
    /// searches do not pause.
    pub fn finish(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut state = self.state.lock();
        state.is_ending = true;
        self.changed.notify_all();
        while !state.waiting.is_empty() && state.is_searching && Instant::now() < deadline {
            self.changed.wait_for(&mut state, deadline.saturating_duration_since(Instant::now()));
        }
        state.log_all();
    }

    /// Searches until no failure waits.
    fn search(&self) {
        let mut state = self.state.lock();
        while !state.waiting.is_empty() {
            let wanted: Vec<_> = state.waiting.iter().map(|failure| failure.ino).collect();
            drop(state);
            let start = Instant::now();
            let mut found = vfs::paths(self.tree.as_ref(), &wanted);
            let pause = start.elapsed().saturating_mul(PAUSE);
            state = self.state.lock();
            if state.paths.len() >= PATHS_MAX {
                state.paths.clear();
            }
            for ino in wanted {
                state.paths.entry(ino).or_insert_with(|| found.remove(&ino));
            }
            state.log_known();
            self.changed.notify_all();
            let until = Instant::now() + pause;
            while !state.is_ending && Instant::now() < until {
                let left = until.saturating_duration_since(Instant::now());
                self.changed.wait_for(&mut state, left);
            }
        }
        state.is_searching = false;
        self.changed.notify_all();
    }

    fn failure(&self, ino: Ino, operation: &'static str, error: &Error) -> Failure {
        let text = error.to_string();
        let named = |archive: &&String| {
            text.strip_prefix(archive.as_str()).is_some_and(|rest| rest.starts_with(": "))
        };
        let archive = self.archives.iter().find(named).cloned();
        let brief = error.brief();
        // The line names the archive before the file.
        let start = archive.as_ref().map(|archive| format!("{archive}: "));
        let rest = start.and_then(|start| brief.strip_prefix(&start).map(str::to_owned));
        Failure {
            ino,
            operation,
            archive,
            brief: rest.unwrap_or(brief),
            full: format!("{error:#}"),
            is_damage: error.is_damage(),
            hint: error.hint().map(str::to_owned),
        }
    }
}

impl State {
    /// Logs the failures whose search has ended.
    fn log_known(&mut self) {
        let Self { waiting, paths, .. } = self;
        waiting.retain(|failure| match paths.get(&failure.ino) {
            Some(path) => {
                failure.log(path.as_deref());
                false
            }
            None => true,
        });
    }

    /// Logs all failures, those without a path with their inode numbers.
    fn log_all(&mut self) {
        self.log_known();
        self.waiting.drain(..).for_each(|failure| failure.log(None));
    }
}

impl Failure {
    fn log(&self, path: Option<&[u8]>) {
        let file = match path {
            Some(b"") => "/".to_owned(),
            Some(path) => String::from_utf8_lossy(path).into_owned(),
            None => format!("inode {}", self.ino.number()),
        };
        let archive = self.archive.as_deref().map(|archive| format!("{archive}: "));
        let archive = archive.unwrap_or_default();
        let Self { ino, operation, brief, full, .. } = self;
        let number = ino.number();
        let detail = crate::log::detail(format_args!(" ({operation} of inode {number}: {full})"));
        log::error!("{archive}{file}: {brief}{detail}");
        if let Some(hint) = &self.hint {
            crate::log::hint(hint);
        } else if let Some(archive) = self.archive.as_deref().filter(|_| self.is_damage) {
            crate::log::hint(&format!("run `archfs verify {archive}` to list all damaged files"));
        }
    }
}
