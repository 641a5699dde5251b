//! Decodes an index into its parts and encodes it again, for tests and fuzzing.

use super::blocks::BLOCK;
use super::file::{IndexFile, IndexOptions, Output};
use super::layout::{
    HASH, Key, LINK_COUNT_LEN, MAP_LEN, SEGMENT_LEN, Section, TAIL, WITH_XATTRS_LEN, hash_of,
};
use super::members::Segment;
use super::{Allowance, Index, NestedArchive, Node, NodeId};
use crate::error::Result;
use crate::formats::bytes::{Reader, index, length};
use crate::storage::InMemory;
use crate::sync::Arc;

/// All parts of an index file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IndexParts {
    pub(super) key: Key,
    pub(super) seek_points: Vec<u8>,
    pub(super) archive_len: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) names: Vec<u8>,
    pub(super) segments: Vec<Segment>,
    /// For each map: where it ends in `segments`, its node, and bytes that it stores.
    pub(super) maps: Vec<(u64, NodeId, u64)>,
    pub(super) links: Vec<(NodeId, u32)>,
    pub(super) with_xattrs: Vec<(NodeId, u64)>,
    pub(super) xattrs: Vec<u8>,
    pub(super) nested_archives: Vec<NestedArchive>,
    pub(super) notes: Vec<String>,
}

/// Decodes the records of a section.
fn records<T, const N: usize>(
    index: &Index,
    section: Section,
    read: impl Fn(&mut Reader<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let bytes = index.section(section)?;
    bytes.as_chunks::<N>().0.iter().map(|record| read(&mut Reader::new("record", record))).collect()
}

impl IndexParts {
    /// The parts of `found`.
    pub(crate) fn of(found: &IndexFile) -> Result<Self> {
        let parts = Self::of_index(&found.index)?;
        let (key, seek_points) = (found.key.clone(), found.seek_points.clone());
        Ok(Self { key, seek_points, ..parts })
    }

    /// The parts of `index` alone.
    pub(crate) fn of_index(index: &Index) -> Result<Self> {
        let nodes = index.section(Section::Nodes)?;
        let nodes = nodes.as_chunks().0.iter().map(Node::from_bytes).collect::<Result<_>>()?;
        Ok(Self {
            key: Key::default(),
            seek_points: Vec::new(),
            archive_len: index.archive_len,
            nodes,
            names: index.section(Section::Names)?,
            segments: records::<_, SEGMENT_LEN>(index, Section::Segments, |reader| {
                Ok(Segment {
                    offset: reader.u64()?,
                    len: reader.u64()?,
                    archive_offset: reader.u64()?,
                })
            })?,
            maps: records::<_, MAP_LEN>(index, Section::Maps, |reader| {
                Ok((reader.u64()?, reader.u32()?, reader.u64()?))
            })?,
            links: records::<_, LINK_COUNT_LEN>(index, Section::LinkCounts, |reader| {
                Ok((reader.u32()?, reader.u32()?))
            })?,
            with_xattrs: records::<_, WITH_XATTRS_LEN>(index, Section::WithXattrs, |reader| {
                Ok((reader.u32()?, reader.u64()?))
            })?,
            xattrs: index.section(Section::Xattrs)?,
            nested_archives: index.nested_archives.clone(),
            notes: index.notes.clone(),
        })
    }

    /// Encodes the file.
    pub(crate) fn written(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut out = Output::new(&mut bytes, &self.key).expect("memory");
        let sections: [(Section, Vec<u8>); 10] = [
            (Section::Nodes, self.nodes.iter().copied().flat_map(Node::to_bytes).collect()),
            (Section::Names, self.names.clone()),
            (Section::Segments, {
                let numbers = |s: &Segment| {
                    [s.offset, s.len, s.archive_offset].map(u64::to_le_bytes).concat()
                };
                self.segments.iter().flat_map(numbers).collect()
            }),
            (Section::Maps, {
                let numbers = |&(end, owner, stored): &(u64, u32, u64)| {
                    [&end.to_le_bytes()[..], &owner.to_le_bytes(), &stored.to_le_bytes()].concat()
                };
                self.maps.iter().flat_map(numbers).collect()
            }),
            (Section::LinkCounts, {
                let numbers =
                    |&(id, count): &(u32, u32)| [id, count].map(u32::to_le_bytes).concat();
                self.links.iter().flat_map(numbers).collect()
            }),
            (Section::WithXattrs, {
                let numbers = |&(id, offset): &(u32, u64)| {
                    [&id.to_le_bytes()[..], &offset.to_le_bytes()].concat()
                };
                self.with_xattrs.iter().flat_map(numbers).collect()
            }),
            (Section::Xattrs, self.xattrs.clone()),
            (Section::NestedArchives, {
                let record = |nested_archive: &NestedArchive| {
                    let NestedArchive { path, offset, len, headers } = nested_archive;
                    let position = [*offset, *len].map(u64::to_le_bytes).concat();
                    let path_len = length(path.len()).to_le_bytes();
                    [&position[..], &headers.to_bytes(), &path_len, path].concat()
                };
                self.nested_archives.iter().flat_map(record).collect()
            }),
            (Section::Notes, {
                let record = |note: &String| {
                    [&length(note.len()).to_le_bytes()[..], note.as_bytes()].concat()
                };
                self.notes.iter().flat_map(record).collect()
            }),
            (Section::SeekPoints, self.seek_points.clone()),
        ];
        for (section, content) in sections {
            out.begin(section);
            out.bytes(&content).expect("memory");
        }
        out.finish(self.archive_len).expect("memory");
        bytes
    }
}

/// Opens the index in `bytes`. Up to `small` bytes of data are checked as a whole.
pub(crate) fn read(bytes: Vec<u8>, small: u64) -> Result<IndexFile> {
    let allowance = Arc::new(Allowance::new(1 << 20));
    let options = IndexOptions { small, ..IndexOptions::new("index", &allowance) };
    IndexFile::open(Arc::new(InMemory::new(bytes)), &options, &|_| Ok(()))
}

/// A file without its checksums: start, data, and the numbers of the tail.
#[cfg(test)]
pub(crate) fn without_sums(file: &[u8]) -> Vec<u8> {
    let (before, tail) = file.split_at(file.len() - TAIL);
    let numbers = &tail[..TAIL - HASH];
    let (numbers_of, _) = numbers.as_chunks::<8>();
    let data: u64 = numbers_of[1..].iter().map(|number| u64::from_le_bytes(*number)).sum();
    let sums = data.div_ceil(length(BLOCK)) * 4;
    [&before[..before.len() - index(sums)], numbers].concat()
}

/// The reverse of `without_sums`: adds the checksums.
pub(crate) fn sealed(bytes: &[u8]) -> Vec<u8> {
    let (before, numbers) = bytes.split_at(bytes.len().saturating_sub(TAIL - HASH));
    let samples = before.get(68..72).and_then(|count| count.first_chunk().copied());
    let samples = index(u32::from_le_bytes(samples.unwrap_or_default()));
    let start = samples.saturating_mul(40).saturating_add(72).min(before.len());
    let (start, data) = before.split_at(start);
    let sums: Vec<u8> =
        data.chunks(BLOCK).flat_map(|block| crc32fast::hash(block).to_le_bytes()).collect();
    [before, &sums, numbers, &hash_of(start, &sums, numbers)].concat()
}
