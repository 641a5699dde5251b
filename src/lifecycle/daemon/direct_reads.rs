//! The daemon's part in reads that bypass FUSE: makes the table when the first process asks for it.
//!
//! Making it reads all inodes of the archives, which takes a second for some million files. A
//! thread does that, so that clients are answered. They read through the mount until it is done.

use std::sync::mpsc::{self, Receiver, TryRecvError};

use rustix::fd::AsFd;

use crate::direct::{State, Table, is_lasting};
use crate::error::{Error, Result};
use crate::lifecycle::registry::DirectAnswer;
use crate::stats::Stats;
use crate::sync::{Arc, thread};
use crate::units::counted;
use crate::vfs::Tree;

use super::mounted::Mounted;

pub(super) struct DirectReads {
    tree: Arc<dyn Tree>,
    mount: Arc<Mounted>,
    stats: Arc<Stats>,
    progress: Progress,
    /// The state, and whether making the table failed, since the first request.
    state: Option<Arc<State>>,
    has_failed: bool,
}

enum Progress {
    NotAsked,
    Building(Arc<State>, Receiver<Result<Option<Table>>>),
    /// For now. The next request starts it again.
    Failed,
    Ready(Arc<State>, Table),
    /// No file can be read directly.
    Never,
}

impl DirectReads {
    pub(super) fn new(tree: Arc<dyn Tree>, mount: Arc<Mounted>, stats: Arc<Stats>) -> Self {
        Self { tree, mount, stats, progress: Progress::NotAsked, state: None, has_failed: false }
    }

    pub(super) fn was_asked(&self) -> bool {
        !matches!(self.progress, Progress::NotAsked)
    }

    /// The answer to a process that asks. The first request starts the making of the table.
    pub(super) fn answer(&mut self) -> DirectAnswer<'_> {
        if matches!(self.progress, Progress::NotAsked | Progress::Failed) {
            self.progress = self.begin().unwrap_or_else(|error| {
                crate::log::error(&error);
                Progress::Never
            });
        }
        if let Progress::Building(state, table) = &self.progress {
            match table.try_recv() {
                Err(TryRecvError::Empty) => {}
                Ok(Ok(Some(table))) => self.progress = Progress::Ready(Arc::clone(state), table),
                Ok(Ok(None)) | Err(TryRecvError::Disconnected) => self.progress = Progress::Never,
                Ok(Err(error)) => self.fail(&error),
            }
        }
        match &self.progress {
            Progress::NotAsked | Progress::Building(..) | Progress::Failed => DirectAnswer::Later,
            Progress::Never => DirectAnswer::Never,
            Progress::Ready(state, table) => {
                let archives = table.archives().iter().map(|archive| archive.as_fd());
                let state = state.files().map(AsFd::as_fd);
                let granules = table.granules().map(|granules| granules.as_fd());
                let table = std::iter::once(table.file().as_fd());
                DirectAnswer::Ready(table.chain(state).chain(archives).chain(granules).collect())
            }
        }
    }

    /// Ends direct reads, or has the next request start again if that may help.
    fn fail(&mut self, error: &Error) {
        let is_lasting = is_lasting(error);
        if is_lasting || !self.has_failed {
            let until = if is_lasting { "" } else { " yet" };
            log::warn!("--direct has no effect{until}: {error}");
        }
        self.has_failed = true;
        self.progress = if is_lasting { Progress::Never } else { Progress::Failed };
    }

    fn begin(&mut self) -> Result<Progress> {
        // A private mount, or one that another program made, has no socket at which to ask.
        let Some(device) = self.mount.device_number() else { return Ok(Progress::Never) };
        let failed = |error| Error::io("cannot start direct reads", error);
        let state = match &self.state {
            Some(state) => Arc::clone(state),
            None => {
                let state = State::new().map_err(failed)?;
                self.mount.end_with_it(&state);
                let counts = Arc::clone(&state);
                self.stats.direct.watch(Box::new(move || counts.counts()));
                Arc::clone(self.state.insert(state))
            }
        };
        let (sender, receiver) = mpsc::channel();
        let (tree, shown) = (Arc::clone(&self.tree), Arc::clone(&state));
        thread::Builder::new()
            .name("direct-table".into())
            .spawn(move || {
                let _ = sender.send(build(tree.as_ref(), device, &shown));
            })
            .map_err(failed)?;
        Ok(Progress::Building(state, receiver))
    }
}

/// Makes the table, and shows in `state` that the mount is served. `None` if there is nothing to
/// read directly.
fn build(tree: &dyn Tree, device: u64, state: &Arc<State>) -> Result<Option<Table>> {
    let table = Table::build(tree, device)?;
    match &table {
        Some(table) => {
            state.show_alive().map_err(|error| Error::io("cannot start direct reads", error))?;
            log::info!("{} can be read directly", counted(table.count(), "file"));
        }
        None => log::warn!("--direct has no effect: no file can be read directly"),
    }
    Ok(table)
}
