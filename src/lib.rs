//! archfs mounts archives read-only through FUSE, fast and in parallel, for as long as a job runs.
//!
//! Directories are layers, and imports go only downwards: `cli -> lifecycle -> fuse -> vfs <-
//! formats -> { cache, codecs, storage }`, `cli -> pack -> { formats, vfs, codecs, storage }`, `cli
//! -> extract -> vfs`, `cli -> reader -> { vfs, direct }` and `storage -> together -> remote`.
//! Every layer may use `os`, `batch_job`, `error`, `units`, `url`, `sync`, `stats`, `log`,
//! `ordered`, `spilled`, `progress` and `failpoint`. docs/ARCHITECTURE.md explains why.

pub mod batch_job;
pub mod cache;
pub mod cli;
pub mod codecs;
pub mod direct;
pub mod error;
pub mod extract;
pub mod failpoint;
pub mod formats;
pub mod fuse;
pub mod lifecycle;
pub mod log;
pub mod ordered;
pub mod os;
pub mod pack;
pub mod progress;
pub mod reader;
pub mod remote;
pub mod spilled;
pub mod stats;
pub mod storage;
pub mod sync;
pub mod together;
pub mod units;
pub mod url;
pub mod vfs;
