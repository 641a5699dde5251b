//! archfs mounts archives read-only through FUSE, fast and in parallel, for as long as a job runs.
//!
//! Directories are layers, and imports go only downwards: `cli -> lifecycle -> fuse -> vfs <-
//! formats -> { cache, codecs, storage }` and `cli -> pack -> { formats, vfs, codecs, storage }`.
//! Every layer may use `error`, `units`, `sync`, `stats`, `log`, `memory`, `control_group`, `heap`,
//! `kernel_file`, `mountinfo`, `ordered`, `processors`, `progress` and `failpoint`.
//! docs/ARCHITECTURE.md explains why.

pub mod cache;
pub mod cli;
pub mod codecs;
pub mod control_group;
pub mod error;
pub mod failpoint;
pub mod formats;
pub mod fuse;
mod heap;
pub mod kernel_file;
pub mod lifecycle;
pub mod log;
pub mod memory;
mod mountinfo;
pub mod ordered;
pub mod pack;
pub mod processors;
pub mod progress;
pub mod stats;
pub mod storage;
pub mod sync;
pub mod units;
pub mod vfs;
