//! What the kernel reports and provides: memory, control groups, mounts, processes, files.
//!
//! Imports only `error` and `sync`.

pub(crate) mod base_directory;
pub mod control_group;
pub mod directory;
pub mod file_position;
pub mod heap;
pub mod kernel_file;
pub mod lustre;
pub mod memory;
pub(crate) mod memory_file;
pub(crate) mod mount_users;
pub mod mountinfo;
pub mod new_file;
pub(crate) mod own_program;
pub mod page_cache;
pub(crate) mod path_walk;
pub(crate) mod peer_credentials;
pub mod probe;
pub mod process;
pub mod processors;
pub mod raw_signals;
pub(crate) mod record_directory;
pub mod scm_rights;
pub mod shared_bits;
pub(crate) mod signal_receiver;
pub mod thread_directory;
pub mod trust;
pub mod unlinked;
