//! What the kernel reports and provides: memory, control groups, mounts, processes, files.
//!
//! Imports only `error` and `sync`.

pub mod control_group;
pub mod directory;
pub mod file_position;
pub mod heap;
pub mod kernel_file;
pub mod lustre;
pub mod memory;
pub mod memory_file;
pub(crate) mod mount_users;
pub mod mountinfo;
pub mod new_file;
pub mod page_cache;
pub(crate) mod path_walk;
pub mod process;
pub mod processors;
pub(crate) mod record_directory;
pub mod signal;
pub mod thread_directory;
pub mod trust;
pub mod unfinished;
pub mod unix_socket;
pub mod unlinked;
