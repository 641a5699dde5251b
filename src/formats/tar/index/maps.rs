//! Which parts of a sparse file the archive stores, as an index has it.

use std::ops::ControlFlow;

use super::super::sparse::Segment;
use super::file::Section;
use super::{Index, MAP, Node, NodeId, SEGMENT, wrong};
use crate::error::{Error, Result};
use crate::formats::bytes::Reader;

/// Which parts of a sparse file the archive stores: a range of all segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::formats::tar) struct Map {
    first: u64,
    end: u64,
    /// Bytes that are stored.
    pub(in crate::formats::tar) stored: u64,
    /// Bytes of the file.
    size: u64,
}

impl Index {
    /// The map of the sparse file `id`, which is `node`; its number is `number`.
    ///
    /// # Errors
    /// `Corrupt` where it is the map of another file, or none; `Io`.
    pub(in crate::formats::tar) fn map(&self, id: NodeId, node: &Node, number: u64) -> Result<Map> {
        let wrong = || wrong(id, "its sparse map is none");
        if number >= self.layout.count(Section::Maps, MAP) {
            return Err(wrong());
        }
        let read = |number| {
            let bytes: [u8; MAP] = self.record(Section::Maps, number)?;
            let mut reader = Reader::new("map", &bytes);
            Ok::<_, Error>((reader.u64()?, reader.u32()?, reader.u64()?))
        };
        let first = match number.checked_sub(1) {
            Some(before) => read(before)?.0,
            None => 0,
        };
        let (end, owner, stored) = read(number)?;
        // With a map of its own each, files can have no more pieces than the index holds.
        let is_own = owner == id && stored <= node.size;
        match is_own && first <= end && end <= self.layout.count(Section::Segments, SEGMENT) {
            true => Ok(Map { first, end, stored, size: node.size }),
            false => Err(wrong()),
        }
    }

    fn segment(&self, map: &Map, number: u64) -> Result<Segment> {
        let bytes: [u8; SEGMENT] = self.record(Section::Segments, number)?;
        let mut reader = Reader::new("segment", &bytes);
        let (offset, len, at) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let is_within = |at: u64, end: u64| at.checked_add(len).is_some_and(|behind| behind <= end);
        let fault = match (is_within(offset, map.size), is_within(at, self.archive_len)) {
            (true, true) if len > 0 => return Ok(Segment { offset, len, at }),
            (true, true) => "it is empty",
            (false, _) => "it lies outside its file",
            (_, false) => "its bytes lie outside the archive",
        };
        Err(Error::corrupt(format!("segment {number}: {fault}")))
    }

    /// Visits the segments of `map` that end behind `offset`, in ascending order.
    ///
    /// # Errors
    /// `Corrupt` where they are out of order or outside; `Io`.
    pub(in crate::formats::tar) fn segments(
        &self,
        map: &Map,
        offset: u64,
        visit: &mut dyn FnMut(Segment) -> ControlFlow<()>,
    ) -> Result<()> {
        let (mut low, mut high) = (map.first, map.end);
        while low < high {
            let middle = low.midpoint(high);
            match self.segment(map, middle)?.end() <= offset {
                true => low = middle.saturating_add(1),
                false => high = middle,
            }
        }
        let mut behind = 0;
        for number in low..map.end {
            let segment = self.segment(map, number)?;
            if segment.offset < behind {
                return Err(Error::corrupt(format!("segment {number}: it is out of order")));
            }
            behind = segment.end();
            if visit(segment).is_break() {
                break;
            }
        }
        Ok(())
    }
}
