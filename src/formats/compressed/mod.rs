//! Random access to compressed files (data.tar.gz) with bounded memory.
//!
//! A `FirstPass` decodes the file once and finds seek points, where decoding can start. A
//! `Compressed` is storage of the decoded bytes: to read at an offset, it decodes from the seek
//! point before it. The bytes between two seek points are a chunk.
//!
//! Invariant: no chunk of more than `CHUNK_MAX` decoded bytes is ever held in memory. A file
//! that has one is decoded into a temporary file (`spool`).

mod bzip2;
mod chunk_cache;
mod chunks;
mod container;
mod first_pass;
mod format;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod gzip;
mod lz4;
mod lzma;
mod pipeline;
mod seek_index;
mod seek_storage;
mod skippable;
mod spool;
mod spool_limit;
mod streams;
#[cfg(test)]
mod tests;
mod xz;
mod zstd;

pub(crate) use chunk_cache::ChunkCache;
pub(crate) use chunk_cache::{Chunk, Demand, new_number};
pub(crate) use container::Container;
pub(crate) use first_pass::FirstPass;
pub(crate) use seek_index::SeekIndex;
pub(crate) use seek_storage::Compressed;
pub(crate) use spool::Spool;
