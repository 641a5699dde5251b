//! What the commands do to mounts, one file each, and which process holds a mount.

pub(super) mod chosen_mount_point;
pub(super) mod descendants;
mod extraction;
pub(super) mod gc;
mod held_files;
pub(super) mod holder;
pub(super) mod interrupt;
pub(super) mod list;
pub(super) mod mount;
mod mount_lease;
pub(super) mod relay;
pub(super) mod run;
pub(super) mod run_options;
pub(super) mod unmount;
pub(super) mod wait;
