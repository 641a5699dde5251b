//! Fuzz targets for the parsers of an image. Not part of the program.
//!
//! `formats::fuzzing` walks whole images.

use std::ops::ControlFlow;

use super::blocks::{Blocks, DataBlock, FileRef};
use super::directory::Directory;
use super::inode::{Body, DirectoryBody, Inode, InodeRef};
use super::metadata::{Cursor, Metadata, Position, Table};
use super::superblock::{self, Superblock};
use super::xattr::Xattrs;
use super::{Shared, SquashFs};
use crate::codecs::Codec;
use crate::formats::bytes::{Reader, length};
use crate::formats::fuzzing::{DirectoryChecks, rest, walk};
use crate::formats::info::{Image, Layout};
use crate::progress::Progress;
use crate::storage::{MemStorage, Storage};
use crate::sync::Arc;
use crate::vfs::{Cookie, Name};

/// Memory for the blocks of an image. Too little for threads to decode ahead.
const MEMORY: u64 = 16 << 10;

/// Most entries and metadata blocks read for one input.
const STEPS: usize = 300;

/// A superblock. The input is the length of its file, then the block.
pub fn superblock(data: &[u8]) {
    let mut reader = Reader::new("input", data);
    let (Ok(file_len), Ok(bytes)) = (reader.u64(), reader.array()) else { return };
    let Ok(parsed) = Superblock::parse(&bytes, file_len) else { return };
    assert!(Superblock::recognizes(&bytes));
    assert!(parsed.bytes_used <= file_len);
    assert!(parsed.block_size.is_power_of_two() && (4096..=1 << 20).contains(&parsed.block_size));
    assert!(parsed.id_count > 0);
    let tables = [
        Some(parsed.id_table),
        Some(parsed.inode_table),
        Some(parsed.directory_table),
        parsed.xattr_table,
        parsed.fragment_table,
    ];
    let inside = superblock::SIZE as u64..parsed.bytes_used;
    assert!(tables.iter().flatten().all(|table| inside.contains(table)));
    assert_eq!(parsed.fragment_table.is_some(), parsed.fragment_count > 0);
}

/// An inode. The input is the offset of its record in the metadata chain, then the chain.
pub fn inode(data: &[u8]) {
    let mut reader = Reader::new("input", data);
    let offset = reader.u16().unwrap_or(0);
    let metadata = Arc::new(Metadata::new(chain(rest(&mut reader)), Codec::Gzip, MEMORY));
    let reference = InodeRef::new(0, offset);
    assert_eq!(InodeRef::parse(reference.bits()), Some(reference));
    assert_eq!((reference.block(), reference.offset()), (0, offset));
    let Ok((inode, mut cursor)) = Inode::read(&metadata, 0, reference) else { return };
    assert_eq!(inode.permissions & !0o7777, 0);
    assert_ne!(inode.xattr, Some(u32::MAX), "a sentinel");
    match inode.body {
        Body::Symlink { len } => {
            assert!(len <= 64 << 10);
            _ = cursor.skip(u64::from(len));
        }
        Body::Directory(body) => _ = entries(&metadata, body, cursor, Cookie::START),
        Body::Regular(body) => {
            assert!(body.size <= i64::MAX.unsigned_abs());
            assert_ne!(body.tail.map(|tail| tail.fragment), Some(u32::MAX), "a sentinel");
            let lists = Blocks::new(Arc::clone(&metadata), 4096, u64::MAX, MEMORY);
            let Ok(count) = lists.count(&body) else { return };
            assert!(count <= 1 << 30);
            let mut expected = body.start;
            let file = FileRef { inode: reference, body, list: cursor };
            let extents = lists.list(file, 0);
            let mut left = count;
            let mut list = extents.expect("the first word is not read yet");
            while let Ok(Some(extent)) = list.next() {
                left = left.checked_sub(1).expect("more words than the size demands");
                if let DataBlock::Uncompressed { start, len }
                | DataBlock::Compressed { start, len } = extent
                {
                    assert!(start == expected && len > 0, "a block that lies elsewhere");
                    expected = expected.saturating_add(u64::from(len));
                }
            }
        }
        Body::Device { .. } | Body::Fifo | Body::Socket => {}
    }
}

/// A directory. The input is the length and offset of the listing, the length and offset of the
/// index, then the chain that holds both.
pub fn directory(data: &[u8]) {
    let mut reader = Reader::new("input", data);
    let mut number = || reader.u16().unwrap_or(0);
    let (size, offset, index_count, index_at) = (number(), number(), number(), number());
    let metadata = Metadata::new(chain(rest(&mut reader)), Codec::Gzip, MEMORY);
    let without_index =
        DirectoryBody { block: 0, offset, size: size.into(), index_count: 0, parent: 0 };
    let indexed = DirectoryBody { index_count: index_count % 16, ..without_index };
    let Ok(index) = metadata.cursor(Position { block: 0, offset: index_at }) else { return };
    let directory = Directory::new(&metadata, 0, without_index, index.clone());
    let (listed, complete) = entries(&metadata, without_index, index.clone(), Cookie::START);
    assert!(listed.is_sorted_by(|a, b| a.0 < b.0), "names out of order");
    for (nth, (name, reference, next)) in listed.iter().enumerate() {
        let name = Name::parse(name).expect("a listing shows names");
        let found = directory.find(name).ok().flatten();
        assert_eq!(found.map(|found| found.reference), Some(*reference));
        if nth < 8 && complete {
            let (following, _) = entries(&metadata, without_index, index.clone(), *next);
            assert_eq!(following, &listed[nth + 1..], "from {next:?}");
        }
    }
    // The index may send a reader anywhere, but the names must be valid and in order.
    let (listed, _) = entries(&metadata, indexed, index.clone(), Cookie::START);
    assert!(listed.is_sorted_by(|a, b| a.0 < b.0), "names out of order");
    let directory = Directory::new(&metadata, 0, indexed, index);
    for (name, ..) in listed.iter().take(8) {
        _ = directory.find(Name::parse(name).expect("a listing shows names"));
    }
}

/// Lookup tables. The input is where they start, the number of records, the record to read, then
/// the image.
pub fn tables(data: &[u8]) {
    let mut reader = Reader::new("input", data);
    let mut start = || u64::from(reader.u16().unwrap_or(0));
    let (table, xattr_table) = (start(), start());
    let (count, wanted) = (reader.u32().unwrap_or(0), reader.u32().unwrap_or(0));
    let image: Arc<dyn Storage> = Arc::new(MemStorage::new(rest(&mut reader).to_vec()));
    let end = image.len();
    let metadata = Arc::new(Metadata::new(image.clone(), Codec::Zstd, MEMORY));
    if let Ok(ids) = Table::<4>::read(&metadata, &*image, "id", table, count, end) {
        assert!(ids.record(count).is_err(), "a record behind the last");
        _ = ids.record(wanted);
    }
    if let Ok(fragments) = Table::<16>::read(&metadata, &*image, "fragment", table, count, end) {
        assert!(fragments.record(u32::MAX).is_err() || count == u32::MAX);
        _ = fragments.record(wanted);
    }
    let Ok(xattrs) = Xattrs::read(&metadata, &*image, xattr_table, end) else { return };
    let Ok(names) = xattrs.list(wanted) else { return };
    assert!(names.len() <= 64 << 10);
    for name in names.split(|&byte| byte == 0).take(16) {
        if let Ok(value) = xattrs.value(wanted, name) {
            assert!(value.len() <= 64 << 10);
        }
    }
}

/// A chain of compressed blocks. The input is the compressor, then the image.
pub fn metadata(data: &[u8]) {
    let Some((&codec, image)) = data.split_first() else { return };
    let codecs = [Codec::Gzip, Codec::Lzma, Codec::Lzo, Codec::Xz, Codec::Lz4, Codec::Zstd];
    let codec = codecs[usize::from(codec) % codecs.len()];
    let storage = Arc::new(MemStorage::new(image.to_vec()));
    let metadata = Metadata::new(storage, codec, MEMORY);
    let Ok(mut cursor) = metadata.cursor(Position { block: 0, offset: 0 }) else { return };
    for _ in 0..STEPS {
        let position = cursor.position();
        let Ok(rest) = cursor.rest() else { break };
        assert!((1..=8192).contains(&rest.len()));
        let (len, first) = (length(rest.len()), rest[0]);
        if let Ok(mut again) = metadata.cursor(position) {
            assert_eq!(again.array::<1>().ok(), Some([first]));
        }
        cursor.skip(len).expect("bytes that are there");
        assert!(cursor.position().block < length(image.len()));
    }
}

/// A whole image.
pub fn squashfs(data: &[u8]) {
    let storage = Arc::new(MemStorage::new(data.to_vec()));
    if let Ok(image) = SquashFs::open("fuzz", storage, MEMORY, &Shared::default()) {
        walk(&*image, DirectoryChecks::MayLie);
        if let Ok(info) = image.info(&Progress::default())
            && let Layout::Image(Image { shares, fragments, .. }) = info.layout
        {
            let stored = shares.uncompressed + shares.compressed + shares.holes;
            assert_eq!(stored, info.sizes.bytes(), "bytes that are nowhere");
            assert!(shares.shared <= stored && fragments.compressed <= fragments.used);
            assert!(info.cost.mean <= info.cost.worst && info.cost.p99 <= info.cost.worst);
        }
    }
}

/// The first entries of a listing with their inodes and next cookies, and whether it was read to
/// its end.
type Entries = (Vec<(Vec<u8>, InodeRef, Cookie)>, bool);

fn entries(metadata: &Metadata, body: DirectoryBody, index: Cursor<'_>, from: Cookie) -> Entries {
    let mut entries = Vec::new();
    let directory = Directory::new(metadata, 0, body, index);
    let outcome = directory.visit(from, |entry| {
        entries.push((entry.name.as_bytes().to_vec(), entry.reference, entry.next));
        if entries.len() < STEPS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let complete = outcome.is_ok() && entries.len() < STEPS;
    (entries, complete)
}

/// `bytes` as a chain of uncompressed metadata blocks.
fn chain(bytes: &[u8]) -> Arc<MemStorage> {
    let mut image = Vec::new();
    for block in bytes.chunks(8192) {
        image.extend((block.len() as u16 | 0x8000).to_le_bytes());
        image.extend(block);
    }
    Arc::new(MemStorage::new(image))
}
