//! Mounts, serves, shares and unmounts archives.
//!
//! This is the only module that opens a format and hands it to FUSE. Arguments and exit statuses
//! belong to `cli`.
//! Invariant: if any step fails, nothing stays mounted and no directory created here remains.

use std::path::PathBuf;
use std::time::Duration;

use crate::log::Verbosity;
use crate::os::processors::Cores;
use crate::vfs::ViewOptions;

mod commands;
mod daemon;
pub mod doctor;
mod extracted;
mod job_step;
mod mount;
mod ready;
mod registry;
mod slurm;

pub use crate::os::process::ProcessId;
pub use crate::storage::Removed;
pub use commands::chosen_mount_point::{choose_mount_point, is_archive};
pub use commands::gc::{Cleared, gc, remove_kept_copies};
pub use commands::holder::{Holder, HolderChoice, choose as choose_holder};
pub use commands::interrupt::Interrupt;
pub use commands::list::{Listed, State, list, stats};
pub use commands::mount::{Caller, MountOutcome, mount};
pub use commands::run::{Outcome, run};
pub use commands::run_options::{Display, Privacy, RunOptions};
pub use commands::unmount::{Unmounted, give_back, unmount};
pub use commands::wait::wait;
pub use daemon::archive_cache::ArchiveCacheChoice;
pub use daemon::end_policy::Lifetime;
pub use daemon::name_readahead::lister::read_names;
pub use daemon::opening::open_to_read;
pub use daemon::signals::{ignore_others, leave_to_system_calls, receive_in_order};
pub use daemon::snapshot::Snapshot;
pub use daemon::{serve_in_background, serve_in_foreground};
pub use extracted::keep as keep_extracted;
pub use job_step::{
    JobStepChoice, Nodes, Outcome as StepOutcome, Task, mount as mount_by_step,
    unmount as unmount_by_step,
};
pub use mount::descriptor_path::resolve_descriptors;
pub use mount::detach::Detach;
pub use ready::{MountStatus, Ready, notify};
pub use registry::{at_read_socket, remove_stale_socket, try_connect};
pub use slurm::killed_with;

/// Where a daemon in the background gets its FUSE connection from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionSource {
    /// The daemon mounts.
    Mount,
    /// The launcher mounts in its own mount namespace and hands over the connection.
    Private,
    /// Another program has mounted, and the launcher hands over the connection.
    Handed,
}

/// What to mount, where and how. Everything is validated except the archives themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPlan {
    /// Archives, shown as one tree. If two have a file with the same path, the later archive wins.
    pub archives: Vec<PathBuf>,
    /// Mount point.
    pub mount_point: PathBuf,
    /// Whether the mount point may be a directory with files, which the mount then hides.
    pub covers_files: bool,
    /// Offset of the archive in its file, bytes.
    pub offset: u64,
    /// Whether archives inside an archive are shown as directories.
    pub recursive: bool,
    /// Whether an archive that is cut off or damaged is mounted as far as it goes.
    pub partial: bool,
    /// Saved index of a tar; `None` to look in the usual directories.
    pub index: Option<PathBuf>,
    /// Subdirectory and owners to show.
    pub view: ViewOptions,
    /// Which users may access the mount.
    pub access: Access,
    /// Whether the kernel refuses to execute files of the mount.
    pub no_exec: bool,
    /// How long it stays mounted.
    pub lifetime: Lifetime,
    /// Memory for decoded blocks, bytes; `None` for the default.
    pub cache_bytes: Option<u64>,
    /// Time without a request until that memory is freed; `None` for never.
    pub cache_idle: Option<Duration>,
    /// Directory that the archives are copied to while they are served; `None` to read them in
    /// place.
    pub stage: Option<PathBuf>,
    /// Whether the copy is complete before they are served.
    pub stage_wait: bool,
    /// Bytes that all copies of this user in that directory may take after their mounts; `None` to
    /// remove the copy with the mount.
    pub stage_keep: Option<u64>,
    /// Whether the archives are read into the page cache while they are served.
    pub preload: bool,
    /// What happens with served pages of the archives.
    pub archive_cache: ArchiveCacheChoice,
    /// Whether all names are read ahead after some lookups.
    pub name_readahead: bool,
    /// Whether to keep serving archives that were rewritten in place.
    pub allow_changes: bool,
    /// Threads that answer requests; `None` for the default.
    pub threads: Option<usize>,
    /// CPU cores that the daemon runs on; `None` for those of the process that starts it.
    pub cpus: Option<Cores>,
    /// File that the daemon logs to; `None` for standard error.
    pub log_file: Option<PathBuf>,
    /// File that the daemon writes its statistics to when the mount ends; `None` for none.
    pub stats_json: Option<PathBuf>,
    /// Whether a summary is printed when the mount ends.
    pub stats: bool,
    /// How much the daemon logs.
    pub verbosity: Verbosity,
}

impl MountPlan {
    /// Whether the user asked for the summary, by `--stats` or `-v`.
    fn is_summarized(&self) -> bool {
        self.stats || self.verbosity == Verbosity::Verbose
    }

    /// What the kernel forbids on its mount.
    fn restrictions(&self) -> Restrictions {
        Restrictions { access: self.access, no_exec: self.no_exec }
    }

    /// A plan for tests: `archive` at `mount_point`, without any option.
    #[cfg(test)]
    pub(crate) fn without_options(archive: PathBuf, mount_point: PathBuf) -> Self {
        Self {
            archives: vec![archive],
            mount_point,
            covers_files: false,
            offset: 0,
            recursive: false,
            partial: false,
            index: None,
            view: ViewOptions::default(),
            access: Access::Owner,
            no_exec: false,
            lifetime: Lifetime::default(),
            cache_bytes: None,
            cache_idle: None,
            stage: None,
            stage_wait: false,
            stage_keep: None,
            preload: false,
            archive_cache: ArchiveCacheChoice::Auto,
            name_readahead: true,
            allow_changes: false,
            threads: None,
            cpus: None,
            log_file: None,
            stats_json: None,
            stats: false,
            verbosity: Verbosity::Default,
        }
    }
}

/// What the kernel forbids on a mount, apart from writing, set-uid programs and devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restrictions {
    pub(crate) access: Access,
    pub(crate) no_exec: bool,
}

/// Which users may access a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Only its owner. Modes are shown but not enforced.
    #[default]
    Owner,
    /// All users, as far as the modes in the archive allow.
    Everybody,
}
