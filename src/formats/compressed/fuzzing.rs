//! Fuzz targets for compressed files and saved seek points. Not part of the program.

use super::chunks::Chunks;
use super::{ChunkCache, Compressed, Container, FirstPass, SeekIndex, Spool};
use crate::error::Result;
use crate::formats::bytes::{Reader, index, length};
use crate::formats::fuzzing::rest;
use crate::formats::limits::CHUNK_MAX;
use crate::storage::{MemStorage, Storage};
use crate::sync::Arc;

/// Most decoded bytes checked for one input.
const DECODED_MAX: u64 = 1 << 20;

/// Memory for chunks. Too little for threads to decode ahead.
const MEMORY: u64 = 1 << 10;

/// Parses saved seek points. The input is the length of the compressed file (0: that of the rest),
/// the length of the points, the points, and the start of the compressed file.
pub fn seek_points(data: &[u8]) {
    let mut reader = Reader::new("input", data);
    let (claimed, points) = (reader.u64().unwrap_or(0), reader.u16().unwrap_or(0));
    let points = usize::from(points).min(reader.remaining());
    let points = reader.bytes(points).unwrap_or_default();
    let file = rest(&mut reader);
    let encoded_len = if claimed == 0 { length(file.len()) } else { claimed };
    let mut parsing = Reader::new("seek points", points);
    let Ok(seek_index) = SeekIndex::parse(&mut parsing, encoded_len) else { return };
    let used = points.len() - parsing.remaining();
    let mut written = Vec::new();
    seek_index.write(&mut written);
    assert_eq!(written, &points[..used], "written as it was read");
    let (starts, ends): (Vec<u64>, Vec<u64>) = match &seek_index.chunks {
        Chunks::Points(points) => {
            points.iter().map(|point| (point.decoded, point.bit.div_ceil(8))).unzip()
        }
        Chunks::Extents(extents) => {
            let bits = if seek_index.container == Container::Bzip2 { 8 } else { 1 };
            extents.iter().map(|extent| (extent.decoded, extent.end.div_ceil(bits))).unzip()
        }
        Chunks::Spooled => (Vec::new(), Vec::new()),
    };
    assert!(ends.iter().all(|&end| end <= encoded_len), "outside of the file");
    assert!(starts.first().is_none_or(|&start| start == 0));
    for (nth, &start) in starts.iter().enumerate() {
        let end = starts.get(nth + 1).copied().unwrap_or(seek_index.len);
        assert!(end > start && end - start <= CHUNK_MAX, "a chunk of {start} to {end}");
    }
    // Use the points with a file that they may not belong to. Spooled files are left out: each
    // starts a thread.
    if seek_index.largest_chunk() > DECODED_MAX || matches!(seek_index.chunks, Chunks::Spooled) {
        return;
    }
    let decoded = open(file, seek_index, None).expect("few chunks");
    let mut buffer = vec![0; 64];
    for start in starts.into_iter().take(16) {
        let len = index(decoded.len() - start).min(buffer.len());
        _ = decoded.read_exact_at(&mut buffer[..len], start);
    }
    assert!(decoded.read_exact_at(&mut buffer, decoded.len()).is_err(), "behind the end");
}

/// Decodes a compressed file, then reads it through the seek points that were found.
pub fn compressed(data: &[u8]) {
    let storage: Arc<dyn Storage> = Arc::new(MemStorage::new(data.to_vec()));
    let Ok(Some(container)) = Container::of(&*storage, data) else { return };
    let Ok(mut first_pass) = FirstPass::start("fuzz", storage, container, &cache()) else { return };
    let mut bytes = Vec::new();
    let mut complete = false;
    while length(bytes.len()) <= DECODED_MAX {
        match first_pass.next_piece() {
            Ok(Some(piece)) => bytes.extend_from_slice(&piece),
            Ok(None) => {
                complete = true;
                break;
            }
            Err(_) => break,
        }
        assert!(first_pass.position() <= length(data.len()));
    }
    if length(bytes.len()) > DECODED_MAX {
        return;
    }
    let (seek_index, spool) = first_pass.finish();
    assert!(seek_index.len() <= length(bytes.len()));
    assert!(!complete || seek_index.len() == length(bytes.len()));
    let mut written = Vec::new();
    seek_index.write(&mut written);
    let parsed = SeekIndex::parse(&mut Reader::new("seek points", &written), length(data.len()));
    assert!(parsed.is_ok_and(|parsed| parsed.len() == seek_index.len()), "own seek points refused");
    let len = index(seek_index.len());
    let decoded = open(data, seek_index, spool).expect("few chunks");
    for start in [0, len / 2, len.saturating_sub(100)] {
        let mut buffer = vec![0; (len - start).min(1000)];
        decoded.read_exact_at(&mut buffer, length(start)).expect("what was delivered can be read");
        assert_eq!(buffer, &bytes[start..start + buffer.len()], "other bytes at {start}");
    }
}

fn open(file: &[u8], index: SeekIndex, spool: Option<Spool>) -> Result<Arc<Compressed>> {
    Compressed::new("fuzz", Arc::new(MemStorage::new(file.to_vec())), index, spool, cache(), 0)
}

fn cache() -> Arc<ChunkCache> {
    Arc::new(ChunkCache::new(MEMORY, DECODED_MAX, Arc::default()))
}
