//! Fuzz targets for the parsers of a tar and of its saved index. Not part of the program.
//!
//! They make checksums right, because a fuzzer would hardly ever hit them, and check invariants of
//! what the parsers accept. `formats::fuzzing` walks the whole tree.

use super::extensions::{self, Extensions, Record};
use super::header::{self, BLOCK, BLOCK_LEN, Block, BlockKind, Header};
use super::member::Nesting;
use super::open::{Bytes, TarOptions};
use super::scan::Grain;
use super::source::Windowed;
use super::{Tar, TarMembers, scan, sparse};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::fuzzing::{DirectoryChecks, rest, walk};
use crate::formats::index::index_parts::{IndexParts, read, sealed};
use crate::formats::index::{
    Acls, Allowance, FinishedTree, HeaderRun, IndexFile, StoredReads, in_memory, notes,
};
use crate::progress::Progress;
use crate::storage::{MemStorage, Storage};
use crate::sync::Arc;

/// A header block. Its checksum is made right.
pub fn tar_header(data: &[u8]) {
    let mut block = [0; BLOCK];
    let len = data.len().min(BLOCK);
    block[..len].copy_from_slice(&data[..len]);
    assert_eq!(header::classify(&block) == BlockKind::Header, Header::parse(&block).is_some());
    set_checksum(&mut block);
    // The checksum of an empty block does not count as one.
    let Some(header) = Header::parse(&block) else {
        let other_bytes = block[..148].iter().chain(&block[156..]);
        assert!(other_bytes.copied().all(|byte| byte == 0));
        return;
    };
    let mut path = b"what was there before".to_vec();
    header.path(&mut path);
    assert!(path.len() <= 256 && !path.contains(&0));
    assert!(header.link().len() <= 100 && !header.link().contains(&0));
    assert_eq!(header.permissions() & !0o7777, 0);
    if let Ok(size) = header.size() {
        assert!(size <= i64::MAX.unsigned_abs());
        assert!(header::padded(size).is_multiple_of(BLOCK_LEN) && header::padded(size) >= size);
    }
    if let Ok(pieces) = header::sparse_pieces(header.sparse_map().0) {
        assert!(pieces.len() <= 4);
    }
    _ = (header.dialect(), header.kind(), header.has_data(), header.real_size());
    _ = (header.uid(), header.gid(), header.modified(), header.device());
}

/// The body of a pax header.
pub fn pax(data: &[u8]) {
    let mut offset = 0;
    for record in extensions::records(data) {
        let Ok(Record { keyword, value }) = record else { break };
        let text = [b" ", keyword, b"=", value, b"\n"].concat();
        // The length comes first and includes its own digits.
        let digits = data[offset..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let claimed = header::decimal(&data[offset..offset + digits]).expect("a length");
        assert_eq!(claimed, length(digits + text.len()));
        assert_eq!(&data[offset + digits..offset + digits + text.len()], text);
        offset += digits + text.len();
        if let Some(time) = extensions::time(value) {
            assert!(time.nanoseconds < 1_000_000_000);
        }
        assert!(extensions::base64(value).is_none_or(|bytes| bytes.len() <= value.len()));
        assert!(extensions::unescaped(keyword).len() <= keyword.len());
    }
    let mut extensions = Extensions::default();
    _ = extensions.apply(data);
    for (name, value) in extensions.xattrs() {
        assert!((1..=255).contains(&name.len()) && value.len() <= 64 << 10);
    }
    assert!(extensions.xattrs().iter().map(|(name, _)| name.len() + 1).sum::<usize>() <= 64 << 10);
    let mut globals = Extensions::default();
    _ = globals.apply_global(data);
    assert!(globals.path().is_none() && globals.size.is_none() && globals.xattrs().is_empty());
}

/// A sparse member: length of the data, length of the pax records, the records, header and data.
pub fn sparse_map(data: &[u8]) {
    let mut reader = Reader::new("input", data);
    let (stored, records_len) = (reader.u16().unwrap_or(0).into(), reader.u16().unwrap_or(0));
    let records =
        reader.bytes(usize::from(records_len).min(reader.remaining())).unwrap_or_default();
    let mut archive = rest(&mut reader).to_vec();
    let Some(block) = archive.first_chunk_mut::<BLOCK>() else { return };
    set_checksum(block);
    let block = *block;
    let Some(header) = Header::parse(&block) else { return };
    let mut extensions = Extensions::default();
    if extensions.apply(records).is_err() {
        return;
    }
    let storage = MemStorage::new(archive);
    let limit = storage.len();
    let mut source = Windowed::new(&storage, limit);
    let mut headers = HeaderRun::new(BLOCK_LEN);
    let sparse_records = &extensions.sparse;
    let found = sparse::read(header, sparse_records, stored, limit, &mut source, &mut headers);
    assert!((BLOCK_LEN..=limit).contains(&headers.end()));
    let Ok(Some(map)) = found else { return };
    let mut previous_end = (0, BLOCK_LEN);
    for segment in &map.segments {
        assert!(
            segment.len > 0
                && segment.offset >= previous_end.0
                && segment.archive_offset >= previous_end.1
        );
        previous_end = (segment.end(), segment.archive_offset + segment.len);
    }
    assert!(previous_end.0 <= map.size, "a segment behind the end of the file");
    assert!(previous_end.1 <= map.end, "a segment behind the end of the member");
}

/// A saved index without its checksums, which are added.
pub fn saved_index(data: &[u8]) {
    let file = sealed(data);
    let Ok(found) = read(file.clone(), u64::MAX) else {
        // Without the check of the whole index, it may report damage, but must be safe to use.
        if let Ok(found) = read(file, 0) {
            walk(&tree_of(found), DirectoryChecks::MayLie);
        }
        return;
    };
    assert!(found.seek_points.len() <= data.len() && index(found.index.len()) <= data.len());
    let parts = IndexParts::of(&found).expect("memory");
    // Invalid nanoseconds are clamped, and invalid UTF-8 in notes is replaced.
    let again = read(parts.written(), u64::MAX).expect("what was written can be read");
    assert!(IndexParts::of(&again).expect("memory") == parts, "another index");
    walk(&tree_of(found), DirectoryChecks::Consistent);
}

/// The tree of an index, on storage that is at most 64 KiB long.
fn tree_of(found: IndexFile) -> Tar {
    let len = usize::try_from(found.archive_len).unwrap_or(usize::MAX);
    let storage = Arc::new(MemStorage::new(vec![7; len.min(1 << 16)]));
    let (name, index) = ("fuzz".to_owned(), found.index);
    let stored = StoredReads::new(Arc::<MemStorage>::clone(&storage));
    let members = TarMembers { compressed: None, is_saved: false, checks: None };
    Tar { name, storage, index, acls: Acls::Masked, stored, members }
}

/// A whole archive: options (bit 0: show archives in it), then the archive, whose checksums are
/// made right.
pub fn tar(data: &[u8]) {
    let Some((&options_bits, archive)) = data.split_first() else { return };
    let mut archive = archive.to_vec();
    for block in archive.as_chunks_mut::<BLOCK>().0 {
        if block[257..262] == *b"ustar" {
            set_checksum(block);
        }
    }
    let storage = Arc::new(MemStorage::new(archive));
    let recursive = options_bits & 1 != 0;
    let progress = Progress::default();
    let memory = 1 << 20;
    let indexes = &Arc::new(Allowance::new(0));
    let options = TarOptions {
        recursive,
        saved: None,
        progress: &progress,
        memory,
        partial: true,
        logged: notes::Logged::All,
        lone_file: None,
        most: None,
        acls: Acls::Masked,
        indexes,
    };
    let Ok(tar) = Tar::open("fuzz", Bytes::Uncompressed(storage.clone()), &options) else { return };
    walk(&tar, DirectoryChecks::Consistent);
    for nested_archive in tar.nested_archives() {
        assert!(nested_archive.offset + nested_archive.len <= length(data.len()));
    }
    // A scan of a stream and a scan of several segments find the same.
    if options_bits & 2 != 0 && !recursive {
        let mut source = Windowed::new(&*storage, u64::MAX);
        let forward = scan::forward(&mut source, Nesting::Ignore).expect("no reason to fail");
        assert!(is_same(forward, &tar), "another tree from the first header to the last");
    }
    if options_bits & 4 != 0 {
        let grain = Grain { sample: 3, per_segment: 2, segment_min: 1 << 10, segment_max: 8 << 10 };
        let found = scan::uncompressed_with_grain(&*storage, options.nesting(), grain, &progress);
        assert!(
            is_same(found.expect("no reason to fail"), &tar),
            "another tree from several segments"
        );
    }
}

/// Whether `finished` has the same tree and the same notes.
fn is_same(finished: FinishedTree, tar: &Tar) -> bool {
    let allowance = Arc::new(Allowance::new(0));
    let len = tar.storage.len();
    let index = in_memory(finished, len, "fuzz", &allowance).expect("memory");
    let tree = tar.index.is_same_tree(&index).expect("memory");
    tree && (&index.notes, &index.findings) == (&tar.index.notes, &tar.index.findings)
}

/// Makes the checksum of a header right.
fn set_checksum(block: &mut Block) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}
