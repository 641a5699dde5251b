//! Archives that `run --or-extract` extracted because this node cannot mount.
//!
//! Processes that ask for the same archives share one directory. Each of them holds a shared lock
//! on a file in it, and so does the command of each. The kernel frees a lock when its process ends,
//! whatever ends it. The last holder removes the directory. If that process was killed, the keeper
//! does, a process that only waits for the last holder. If the keeper was killed too, `gc` does.
//!
//! - `directory`: the directory, its files and its removal;
//! - `hold`: the locks;
//! - `extraction`: the first holder extracts;
//! - `keeper`: the process that waits.
//!
//! Invariant: files are removed only under an exclusive lock, so no holder loses files. The files
//! are found only when all of them were extracted.

mod directory;
mod extraction;
mod hold;
mod keeper;

pub use keeper::keep;

pub(super) use directory::{SafeParent, remove_ended};
pub(super) use extraction::obtain;
pub(super) use hold::Hold;
