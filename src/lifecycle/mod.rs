//! The life of a mount: from a plan to a directory that shows the archive, to nothing left behind.
//!
//! Owns mounting and unmounting, the daemon and whom it lives for; the one place where a format is
//! opened and handed to FUSE. Leaves arguments and exit status to `cli`.
//! Invariant: whatever fails half way, nothing stays mounted and no directory made here remains.

use std::path::PathBuf;
use std::time::Duration;

use crate::log::Verbosity;
use crate::vfs::ViewOptions;

mod answer;
mod attach;
mod batch;
mod child;
mod clone;
mod daemon;
mod descriptor;
pub mod doctor;
mod fusermount;
mod gc;
mod hold;
mod holder;
mod inherited;
mod interrupt;
mod join;
mod launcher;
mod lease;
mod leftover;
mod list;
mod mount;
mod mounted;
mod mountinfo;
mod mountpoint;
mod namespace;
mod occupant;
mod pinned;
mod process;
#[cfg(test)]
mod proof;
mod quiet;
mod registry;
mod release;
mod report;
mod session;
mod signals;
mod snapshot;
mod stage;
mod trim;
mod unmount;
mod wait;

pub use attach::Detach;
pub use batch::killed_with;
pub use child::{Outcome, Privacy, run};
pub use daemon::{check_ready, serve_in_background, serve_in_foreground};
pub use gc::{Cleared, gc};
pub use hold::Terms;
pub use holder::{Holder, Wish, choose as choose_holder};
pub use interrupt::Interrupt;
pub use list::{Listed, State, list, stats};
pub use mount::{Caller, Mounted, mount};
pub use process::ProcessId;
pub use signals::leave_to_system_calls;
pub use snapshot::Snapshot;
pub use unmount::{Unmounted, give_back, unmount};
pub use wait::wait;

/// How the mount of a daemon in the background comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The daemon mounts.
    Mount,
    /// Its launcher mounts in a namespace of its own and hands over the connection to the kernel.
    Private,
    /// Somebody has mounted already; the launcher hands over the connection.
    Handed,
}

/// What to mount, where and how: validated, with nothing left to look up but the file itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPlan {
    /// The archives, shown as one tree; of two files with one path the later archive's is shown.
    pub archives: Vec<PathBuf>,
    /// Where its tree shall appear.
    pub mountpoint: PathBuf,
    /// Where in the file the archive starts, bytes.
    pub offset: u64,
    /// Whether archives in an archive are shown as folders.
    pub recursive: bool,
    /// Where the saved index of a tar is; `None` for the usual places.
    pub index: Option<PathBuf>,
    /// Folder and owners shown.
    pub view: ViewOptions,
    /// Whether other users may enter.
    pub access: Access,
    /// How long it holds.
    pub terms: Terms,
    /// Memory for decoded blocks, bytes; `None` for the default.
    pub cache_bytes: Option<u64>,
    /// How long without a request until that memory is given back; `None` for never.
    pub cache_idle: Option<Duration>,
    /// Where the archives are copied to before they are opened; `None` to read them where they are.
    pub stage: Option<PathBuf>,
    /// Whether they are read into memory before.
    pub preload: bool,
    /// Threads that answer requests; `None` for the default.
    pub threads: Option<usize>,
    /// Where the daemon writes what it has to say; `None` for standard error.
    pub log_file: Option<PathBuf>,
    /// Where it writes the numbers of the mount at its end; `None` for nowhere.
    pub stats_json: Option<PathBuf>,
    /// How much it says.
    pub verbosity: Verbosity,
}

/// Who may enter a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Its owner alone; modes are shown, not enforced.
    #[default]
    Owner,
    /// Everybody, as the modes in the archive allow.
    Everybody,
}
