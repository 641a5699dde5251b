//! A block is found like in a linear walk of its list; sizes have limits.

use super::*;
use crate::codecs::Codec;
use crate::storage::MemStorage;

const BLOCK: u32 = 4096;

/// A chain of metadata blocks that holds `words` from byte `lead` on.
fn list(words: &[u32], lead: usize) -> Arc<Metadata> {
    let mut bytes = vec![0; lead];
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    let mut image = Vec::new();
    for block in bytes.chunks(8192) {
        image.extend((u16::try_from(block.len()).unwrap() | 0x8000).to_le_bytes());
        image.extend(block);
    }
    Arc::new(Metadata::new(Arc::new(MemStorage::new(image)), Codec::Zstd, 1 << 20))
}

/// Lists of at most `words_max` words in `metadata`.
fn lists(metadata: &Arc<Metadata>, words_max: u64) -> Blocks {
    Blocks::new(Arc::clone(metadata), BLOCK, words_max, 1 << 20)
}

fn body(blocks: usize) -> RegularBody {
    let size = length(blocks) * u64::from(BLOCK);
    RegularBody { start: 1000, size, sparse: 0, tail: None }
}

#[test]
fn finds_any_block_like_a_linear_walk() {
    let words: Vec<u32> = (0..10_000_u32)
        .map(|n| match n % 7 {
            0 => 0,
            1 => UNCOMPRESSED | BLOCK,
            _ => 1 + n % 4000,
        })
        .collect();
    let mut expected = Vec::new();
    let mut start = 1000;
    for &word in &words {
        expected.push(DataBlock::parse(word, start));
        start += stored_len(word);
    }
    // With an odd lead, words span metadata blocks.
    for lead in [0, 2, 17] {
        let metadata = list(&words, lead);
        let lists = lists(&metadata, u64::MAX);
        let position = Position { block: 0, offset: u16::try_from(lead).unwrap() };
        let open = |first| {
            let list = metadata.cursor(position).unwrap();
            let file = FileRef { inode: InodeRef::new(0, 0), body: body(words.len()), list };
            lists.list(file, first).unwrap()
        };
        for first in [0, 1, 2046, 2047, 2048, 2049, 4096, 6000, 8191, 8192, 9998, 9999] {
            let mut list = open(first);
            assert_eq!(list.next().unwrap(), Some(expected[index(first)]), "{first}");
            assert_eq!(list.next().unwrap(), expected.get(index(first) + 1).copied());
        }
        assert_eq!(open(10_000).next().unwrap(), None);
        let mut all = open(0);
        for extent in &expected {
            assert_eq!(all.next().unwrap(), Some(*extent));
        }
    }
}

#[test]
fn counts_the_tail_unless_it_is_in_a_fragment() {
    let lists = lists(&list(&[], 0), u64::MAX);
    let tail = Some(Tail { fragment: 0, offset: 0 });
    for (size, alone, shared) in [(0, 0, 0), (1, 1, 0), (4096, 1, 1), (4097, 2, 1)] {
        let body = RegularBody { start: 0, size, sparse: 0, tail: None };
        assert_eq!(lists.count(&body).unwrap(), alone);
        assert_eq!(lists.count(&RegularBody { tail, ..body }).unwrap(), shared);
    }
}

#[test]
fn rejects_one_block_more_than_the_limit() {
    let lists = lists(&list(&[], 0), u64::MAX);
    let size = SQUASHFS_FILE_BLOCKS_MAX * u64::from(BLOCK);
    let body = RegularBody { start: 0, size, sparse: 0, tail: None };
    assert!(lists.count(&body).is_ok());
    assert!(lists.count(&RegularBody { size: size + 1, ..body }).is_err());
}

#[test]
fn rejects_one_block_more_than_the_inode_table_can_list() {
    let lists = lists(&list(&[], 0), 10);
    assert_eq!(lists.count(&body(10)).unwrap(), 10);
    let error = lists.count(&body(11)).unwrap_err();
    assert_eq!(error.to_string(), "file of 11 blocks, the inode table can list 10 at most");
}

#[test]
fn reports_a_list_shorter_than_its_file() {
    let metadata = list(&[5; 10], 0);
    let lists = lists(&metadata, u64::MAX);
    for (blocks, first) in [(11, 10), (5000, 4000)] {
        let list = metadata.cursor(Position { block: 0, offset: 0 }).unwrap();
        let file = FileRef { inode: InodeRef::new(0, 0), body: body(blocks), list };
        let opened = lists.list(file, first);
        assert!(opened.and_then(|mut list| list.next()).is_err());
    }
}
