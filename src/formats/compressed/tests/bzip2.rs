//! bzip2: blocks, and false magic numbers that cut them. The decoded bytes must be the same.

use std::collections::VecDeque;

use super::{check, count, run, sample, store};
use crate::error::{Kind, Result};
use crate::formats::compressed::bzip2::BLOCKS;
use crate::formats::compressed::bzip2::{BLOCK, Blocks};
use crate::formats::compressed::chunks::{Extent, Size};
use crate::formats::compressed::format::{Next, Note, Output, Pass, Task, Verdict, Walk};
use crate::formats::compressed::pipeline::Pipeline;
use crate::sync::{Arc, AtomicU64, Ordering};

#[test]
fn reads_bzip2() {
    let data = sample(4 << 20, 4);
    for words in ["bzip2 -1 -c", "bzip2 -9 -c", "pbzip2 -c", "lbzip2 -c"] {
        check(words, run(words, &data), &data);
    }
    let mut streams = run("bzip2 -c", &data[..2 << 20]).unwrap();
    streams.extend(run("bzip2 -c", b"").unwrap());
    streams.extend(run("bzip2 -1 -c", &data[2 << 20..]).unwrap());
    streams.extend(b"\0\0\0 garbage");
    let seek_index = check("streams", Some(streams), &data).unwrap();
    assert!(count(&seek_index) >= 4);
    let zeros = vec![0; 46 << 20];
    check("zeros", run("bzip2 -c", &zeros), &zeros);
}

/// A walk that cuts every block into pieces, as false magic numbers would, and counts the joins.
struct Cut {
    blocks: Blocks,
    pieces: u64,
    waiting: VecDeque<Task>,
    joins: Arc<AtomicU64>,
}

impl Walk for Cut {
    fn next(&mut self) -> Result<Next> {
        if let Some(task) = self.waiting.pop_front() {
            return Ok(Next::Task(task));
        }
        Ok(match self.blocks.next()? {
            Next::Task(task) if task.note == Note::None => {
                let Extent { start, end, .. } = task.extent;
                let cut_at = |piece| start + (end - start) * piece / self.pieces;
                self.waiting.extend((0..self.pieces).map(|piece| {
                    let extent =
                        Extent { start: cut_at(piece), end: cut_at(piece + 1), ..task.extent };
                    Task { extent, size: Size::AtMost(5 << 20), note: Note::None }
                }));
                return self.next();
            }
            next => next,
        })
    }

    fn on_decoded(&mut self, task: &Task, bytes: &[u8]) -> Result<Verdict> {
        self.blocks.on_decoded(task, bytes)
    }

    fn join(&self, failed: &Task, next: &Task) -> Option<Task> {
        self.joins.fetch_add(1, Ordering::Relaxed);
        self.blocks.join(failed, next)
    }
}

/// Decodes a bzip2 file whose blocks are cut into pieces. Returns the result and the number of
/// joins.
fn read_cut(encoded: &[u8], pieces: u64) -> (Result<Vec<u8>>, u64) {
    let storage = store(encoded);
    let blocks = Blocks::new("x", Arc::clone(&storage));
    let joins = Arc::new(AtomicU64::new(0));
    let walk = Cut { blocks, pieces, waiting: VecDeque::new(), joins: Arc::clone(&joins) };
    let mut pipeline = Pipeline::start(BLOCKS, storage, Box::new(walk), super::cache()).unwrap();
    let mut bytes = Vec::new();
    let outcome = loop {
        match pipeline.next() {
            Ok(Output::Piece(piece)) => bytes.extend_from_slice(&piece),
            Ok(_) => break Ok(bytes),
            Err(error) => break Err(error),
        }
    };
    (outcome, joins.load(Ordering::Relaxed))
}

#[test]
fn joins_bzip2_blocks_cut_by_false_magic_numbers() {
    let data = sample(3 << 20, 5);
    let Some(encoded) = run("bzip2 -9 -c", &data) else { return };
    for pieces in [1, 2, 4, 9] {
        let (outcome, joins) = read_cut(&encoded, pieces);
        assert!(outcome.unwrap() == data, "{pieces} pieces");
        // About four blocks.
        assert!(joins.is_multiple_of(pieces.max(2) - 1) && joins <= 5 * (pieces - 1), "{joins}");
    }
    // More false magic numbers in one block than chance would produce.
    let (outcome, joins) = read_cut(&encoded, 10);
    assert_eq!((outcome.unwrap_err().kind(), joins), (Kind::Corrupt, 8));
}

#[test]
fn gives_up_on_a_bzip2_file_of_magic_numbers() {
    let encoded = [&b"BZh9"[..], &BLOCK.repeat(100_000)].concat();
    let (outcome, joins) = read_cut(&encoded, 1);
    assert_eq!((outcome.unwrap_err().kind(), joins), (Kind::Corrupt, 8));
}
