//! What archfs takes from a node: memory, temporary space, bytes read, allocations.

#[path = "../support/mod.rs"]
mod support;

mod archive_cache;
mod budget_share;
mod control_group;
mod hot_path;
mod memory_limit;
mod packed_cost;
mod packed_spool;
mod release;
