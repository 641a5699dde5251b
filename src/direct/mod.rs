//! Reads that bypass FUSE (`run --direct`): a preloaded library answers read(2) on files of a
//! mount from the archive itself, where the archive stores their bytes as they are.
//!
//! The daemon passes three things to the library, over the socket of the mount: the open archive
//! files; a table that says where the bytes of each inode are (`table`); and two pages (`state`).
//! In one the daemon says whether it still serves the mount, and in the other the library counts
//! its reads. Of a copy that is being filled, it also passes the bits that say which parts are
//! there. `library.c` is the other side. It does the reading and checks every assumption on each
//! read.
//!
//! Invariant: nothing here says where bytes are unless a read through the mount returns the same
//! bytes.

mod library;
mod state;
mod table;

pub use library::{environment, install, is_library};
pub use state::State;
pub use table::{Table, is_lasting};
