//! What a client gets to read files itself: the table of paths, the table of direct reads, and the
//! archives. A thread makes the tables when the first client asks.

use std::fs::File;
use std::os::unix::net::UnixStream;

use rustix::fd::{AsFd, BorrowedFd};

use super::{path_table, protocol};
use crate::direct::{Table, is_lasting};
use crate::error::Result;
use crate::os::scm_rights;
use crate::sync::{Arc, Mutex, thread};
use crate::vfs::Tree;

/// The tables of one server.
#[derive(Default)]
pub(super) struct DirectReads {
    /// Held only to look at it or to replace it. No other lock is held with it.
    progress: Mutex<Progress>,
}

#[derive(Clone, Default)]
enum Progress {
    #[default]
    NotAsked,
    Building,
    Ready(Arc<Tables>),
    /// No file can be read directly, or there is not enough memory.
    Never,
}

struct Tables {
    paths: File,
    positions: Table,
}

impl DirectReads {
    /// Answers a client that asks: later, never, or with the descriptors.
    pub(super) fn answer(
        self: &Arc<Self>,
        client: &UnixStream,
        tree: &Arc<dyn Tree>,
    ) -> std::io::Result<()> {
        let progress = {
            let mut progress = self.progress.lock();
            if matches!(*progress, Progress::NotAsked) {
                *progress = self.begin(Arc::clone(tree));
            }
            progress.clone()
        };
        let (state, tables) = match progress {
            Progress::NotAsked | Progress::Building => (protocol::LATER, None),
            Progress::Never => (protocol::NEVER, None),
            Progress::Ready(tables) => (protocol::READY, Some(tables)),
        };
        let Some(tables) = tables else {
            return protocol::succeed(&mut &*client, state, b"");
        };
        let mut descriptors: Vec<BorrowedFd<'_>> =
            vec![tables.paths.as_fd(), tables.positions.file().as_fd()];
        descriptors.extend(tables.positions.archives().iter().map(AsFd::as_fd));
        let header = protocol::header(0, state, 0, None);
        match scm_rights::send_with(client, &header, &descriptors)? {
            sent if sent == header.len() => Ok(()),
            _ => Err(std::io::ErrorKind::WriteZero.into()),
        }
    }

    fn begin(self: &Arc<Self>, tree: Arc<dyn Tree>) -> Progress {
        let direct = Arc::clone(self);
        let build = move || {
            let built = match tables(tree.as_ref()) {
                Ok(Some(tables)) => Progress::Ready(Arc::new(tables)),
                // Clients read through the server.
                Ok(None) => Progress::Never,
                Err(error) if is_lasting(&error) => Progress::Never,
                // Clients ask again, after some reads.
                Err(_) => Progress::NotAsked,
            };
            *direct.progress.lock() = built;
        };
        match thread::Builder::new().name("tables".into()).spawn(build) {
            Ok(_) => Progress::Building,
            Err(_) => Progress::NotAsked,
        }
    }
}

fn tables(tree: &dyn Tree) -> Result<Option<Tables>> {
    // Nothing is mounted, so there is no device number.
    let Some(positions) = Table::build(tree, 0)? else { return Ok(None) };
    Ok(Some(Tables { paths: path_table::build(tree)?, positions }))
}
