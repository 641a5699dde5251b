//! Mounts, serves, shares and unmounts archives.
//!
//! This is the only module that opens a format and hands it to FUSE. Arguments and exit statuses
//! belong to `cli`.
//! Invariant: if any step fails, nothing stays mounted and no directory created here remains.

mod commands;
mod daemon;
pub mod doctor;
mod job_step;
mod mount;
mod plan;
mod ready;
mod registry;

pub use crate::os::process::ProcessId;
pub use crate::os::unfinished::Unfinished;
pub use crate::storage::Removed;
pub use commands::gc::{Cleared, gc, remove_kept_copies};
pub use commands::held_files::{Display, RunOptions};
pub use commands::holder::{Holder, HolderChoice, choose as choose_holder};
pub use commands::interrupt::Interrupt;
pub use commands::list::{Listed, STALE, State, list, messages, stats, unseen_messages};
pub use commands::mount::{Caller, MountOutcome, mount};
pub use commands::mount_lease::Privacy;
pub use commands::run::{
    IN_OVERLAY, Outcome, choose_mount_point, execute_in_overlay, is_archive, run,
};
pub use commands::unmount::{Unmounted, give_back, unmount};
pub use commands::wait::wait;
pub use daemon::end_policy::Lifetime;
pub use daemon::launcher::Launcher;
pub use daemon::name_readahead::read_names;
pub use daemon::opening::open_to_read;
pub use daemon::report::{Percentiles, Snapshot};
pub use daemon::signals::{
    ignore_others, leave_to_system_calls, receive_in_order, receive_while_opening,
};
pub use daemon::{serve_in_background, serve_in_foreground};
pub use job_step::{
    JobStepChoice, Nodes, Outcome as StepOutcome, Task, mount as mount_by_step,
    unmount as unmount_by_step,
};
pub use mount::Detach;
pub use mount::inherited::resolve_descriptors;
pub use mount::namespace::keeps_owners;
pub use mount::shared_overlay::{SERVE_OVERLAY, serve_overlay};
pub(crate) use plan::Restrictions;
pub use plan::{
    Access, ArchiveCacheChoice, Background, ConnectionSource, DAEMON_OPTION, DaemonPlan, Layer,
    MountPlan, ReadaheadChoice, STEP, StepTask,
};
pub use ready::{MountStatus, Ready, notify};
pub use registry::{Health, at_read_socket, remove_stale_socket, try_connect};
