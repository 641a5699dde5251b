//! The life of a mount: from a plan to a directory that shows the archive, to nothing left behind.
//!
//! Owns mounting and unmounting, the daemon and whom it lives for; the one place where a format is
//! opened and handed to FUSE. Leaves arguments and exit status to `cli`.
//! Invariant: whatever fails half way, nothing stays mounted and no directory made here remains.

use std::path::PathBuf;
use std::time::Duration;

use crate::log::Verbosity;
use crate::vfs::ViewOptions;

mod commands;
mod daemon;
pub mod doctor;
mod job_step;
mod mount;
mod share;
mod system;

pub use commands::gc::{Cleared, gc};
pub use commands::holder::{Holder, HolderChoice, choose as choose_holder};
pub use commands::interrupt::Interrupt;
pub use commands::list::{Listed, State, list, stats};
pub use commands::mount::{Caller, MountOutcome, mount};
pub use commands::run::{Outcome, Privacy, run};
pub use commands::unmount::{Unmounted, give_back, unmount};
pub use commands::wait::wait;
pub use daemon::end_policy::Lifetime;
pub use daemon::signals::{ignore_others, leave_to_system_calls};
pub use daemon::snapshot::Snapshot;
pub use daemon::{check_ready, serve_in_background, serve_in_foreground};
pub use job_step::{
    JobStep, Nodes, Outcome as StepOutcome, Task, mount as mount_by_step,
    unmount as unmount_by_step,
};
pub use mount::descriptor_path::resolve_descriptors;
pub use mount::detach::Detach;
pub use system::process::ProcessId;
pub use system::slurm::killed_with;

/// How the mount of a daemon in the background comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionSource {
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
    pub lifetime: Lifetime,
    /// Memory for decoded blocks, bytes; `None` for the default.
    pub cache_bytes: Option<u64>,
    /// How long without a request until that memory is given back; `None` for never.
    pub cache_idle: Option<Duration>,
    /// Where the archives are copied to before they are opened; `None` to read them where they are.
    pub stage: Option<PathBuf>,
    /// Whether they are read into memory before.
    pub preload: bool,
    /// Whether archives that were rewritten in place are served on.
    pub allow_changes: bool,
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
