//! What the commands do to mounts, one file each, and which process holds a mount.

pub(super) mod daemon_messages;
mod descendants;
pub(super) mod gc;
pub(super) mod held_files;
pub(super) mod holder;
pub(super) mod interrupt;
pub(super) mod list;
pub(super) mod mount;
pub(super) mod mount_lease;
pub(super) mod relay;
pub(super) mod run;
pub(super) mod unmount;
pub(super) mod wait;
