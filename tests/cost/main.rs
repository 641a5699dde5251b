//! What archfs takes from a node: memory, temporary space, bytes read, allocations.

#[path = "../support/mod.rs"]
mod support;

mod archive_cache;
mod budget_share;
mod compressed_tar_cost;
mod compressed_tar_spool;
mod control_group;
mod hot_path;
mod memory_limit;
mod release;
