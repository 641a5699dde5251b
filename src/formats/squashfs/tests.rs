//! Images built by hand, valid and with one wrong field at a time.
//!
//! Tests the limits of inodes, directories, file contents and attributes on both sides. The
//! top-level tests compare images of mksquashfs with other readers.

use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use super::*;
use crate::error::Kind;
use crate::storage::MemStorage;
use crate::sync::{AtomicBool, Condvar, Mutex, Ordering};
use crate::vfs::{Attr, Cookie, Ino, Name, Scratch, SeekTarget, Tree};

mod image;

use image::{BLOCK, DATA, FILE, Field, Image, LINK, PIPE, ROOT, fields, listing, overwrite};

const SIZE: u64 = 3 * BLOCK as u64 + 10;

fn open(image: &Image) -> Result<Arc<SquashFs>> {
    open_stored(Arc::new(MemStorage::new(image.bytes())))
}

fn open_stored(storage: Arc<MemStorage>) -> Result<Arc<SquashFs>> {
    SquashFs::open("test.sqfs", storage, 1 << 20, &Shared::default())
}

fn lookup(image: &SquashFs, name: &str) -> Result<Attr> {
    let name = Name::parse(name.as_bytes()).unwrap();
    image.lookup(Ino::ROOT, name).map(|found| found.expect("no such name"))
}

fn names(image: &SquashFs, from: Cookie) -> Result<Vec<(String, Cookie)>> {
    let mut names = Vec::new();
    image.read_dir(Ino::ROOT, from, &mut |entry| {
        names.push((String::from_utf8_lossy(entry.name.as_bytes()).into_owned(), entry.next));
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

fn read(image: &SquashFs, offset: u64, size: u32) -> Result<Vec<u8>> {
    let file = lookup(image, "f")?;
    let mut scratch = Scratch::default();
    Ok(image.read(file.ino, offset, size, &mut scratch)?.as_slice().to_vec())
}

/// The error of reading the whole file of `image`, as text.
fn read_error(image: &Image) -> String {
    let error = open(image).and_then(|image| read(&image, 0, u32::MAX)).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    error.to_string()
}

fn with(mut image: Image, part: fn(&mut Image) -> &mut Vec<u8>, at: usize, f: &dyn Field) -> Image {
    overwrite(part(&mut image), at, f);
    image
}

#[test]
fn shows_the_contents_of_a_valid_image() {
    let image = open(&Image::valid()).unwrap();
    let names: Vec<String> =
        names(&image, Cookie::START).unwrap().into_iter().map(|n| n.0).collect();
    assert_eq!(names, ["f", "l", "p"]);
    let file = lookup(&image, "f").unwrap();
    assert_eq!((file.size, file.allocated, file.uid), (SIZE, SIZE - u64::from(BLOCK), 1000));
    assert_eq!(image.read_link(lookup(&image, "l").unwrap().ino).unwrap(), b"target");
    assert_eq!(lookup(&image, "p").unwrap().kind, FileKind::Fifo);
    assert_eq!(image.list_xattrs(file.ino).unwrap(), b"user.a\0trusted.b\0");
    assert_eq!(image.xattr(file.ino, b"user.a").unwrap(), b"value");
    assert_eq!(image.xattr(file.ino, b"trusted.b").unwrap(), b"value");
    assert_eq!(image.xattr(file.ino, b"user.c").unwrap_err().kind(), Kind::NoAttribute);
    assert!(image.lookup(Ino::ROOT, Name::parse(b"g").unwrap()).unwrap().is_none());
}

#[test]
fn opens_with_few_reads_and_reads_each_block_once() {
    let storage = Arc::new(MemStorage::new(Image::valid().bytes()));
    let image = open_stored(storage.clone()).unwrap();
    // The superblock; the lists of fragments and owners; the header and list of attributes; one
    // block of owners; the inode of the root.
    assert_eq!(storage.reads(), 7);
    let mut read_counts = Vec::new();
    for _ in 0..2 {
        let before = storage.reads();
        assert_eq!(read(&image, 0, u32::MAX).unwrap().len() as u64, SIZE);
        read_counts.push(storage.reads() - before);
    }
    // First the directory, the uncompressed block, the fragment's record, and the compressed block
    // and the fragment together. Then only what is not cached: the uncompressed block, and the
    // compressed block, which was read whole.
    assert_eq!(read_counts, [4, 2]);
}

#[test]
fn reads_any_range_over_all_kinds_of_blocks() {
    let image = open(&Image::valid()).unwrap();
    let block = BLOCK as usize;
    let whole =
        [&vec![b'1'; block][..], &vec![0; block], &vec![b'3'; block], b"0123456789"].concat();
    for offset in [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK - 1, 3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 9] {
        for size in [1, 2, 10, BLOCK, BLOCK + 1, 2 * BLOCK, u32::MAX] {
            let end = (u64::from(offset) + u64::from(size)).min(SIZE) as usize;
            let expected = &whole[offset as usize..end];
            assert_eq!(read(&image, offset.into(), size).unwrap(), expected, "{offset} {size}");
        }
    }
    for offset in [SIZE, SIZE + 1, u64::MAX] {
        assert_eq!(read(&image, offset, 100).unwrap(), b"");
    }
}

#[test]
fn seeks_data_and_holes() {
    let image = open(&Image::valid()).unwrap();
    let file = lookup(&image, "f").unwrap().ino;
    let block = u64::from(BLOCK);
    for (offset, data, hole) in [
        (0, 0, block),
        (block - 1, block - 1, block),
        (block, 2 * block, block),
        (block + 5, 2 * block, block + 5),
        (2 * block, 2 * block, SIZE),
        (SIZE - 1, SIZE - 1, SIZE),
    ] {
        assert_eq!(image.seek(file, offset, SeekTarget::Data).unwrap(), data, "{offset}");
        assert_eq!(image.seek(file, offset, SeekTarget::Hole).unwrap(), hole, "{offset}");
    }
    assert_eq!(image.seek(file, SIZE, SeekTarget::Hole).unwrap_err().kind(), Kind::PastEnd);
}

#[test]
fn continues_from_any_cookie() {
    let image = open(&Image::valid()).unwrap();
    let all = names(&image, Cookie::START).unwrap();
    for (nth, (_, cookie)) in all.iter().enumerate() {
        assert_eq!(names(&image, *cookie).unwrap(), all[nth + 1..]);
    }
    let past = names(&image, Cookie(u64::from(u32::MAX) << 8)).unwrap_err();
    assert_eq!(past.kind(), Kind::InvalidInput);
    // In the middle of a run.
    for run in 1..12 {
        let between = names(&image, Cookie(Cookie::START.0 + (run << 8))).unwrap_err();
        assert_eq!(between.kind(), Kind::InvalidInput, "{run}");
    }
}

#[test]
fn returns_the_right_error_for_the_wrong_kind_of_inode() {
    let image = open(&Image::valid()).unwrap();
    let link = lookup(&image, "l").unwrap().ino;
    let mut scratch = Scratch::default();
    let kind = |error: Error| error.kind();
    let name = Name::parse(b"x").unwrap();
    assert_eq!(image.lookup(link, name).map_err(kind), Err(Kind::NotADirectory));
    assert_eq!(image.read_link(Ino::ROOT).map_err(kind), Err(Kind::InvalidInput));
    let read = image.read(Ino::ROOT, 0, 1, &mut scratch).map(|_| ()).map_err(kind);
    assert_eq!(read, Err(Kind::IsADirectory));
    assert_eq!(image.attr(Ino::new(u64::MAX).unwrap()).map_err(kind), Err(Kind::NotFound));
}

#[test]
fn rejects_an_invalid_root() {
    for (root, text) in [
        (u64::from(FILE), "the root is not a directory"),
        (1 << 48, "position of the root inode"),
        (9000, "shorter than a reference to it"),
        (1 << 40, "past the end of the image"),
        (8192, "root directory: "),
    ] {
        let error = open(&Image { root, ..Image::valid() }).err().expect("opened").to_string();
        assert!(error.starts_with("test.sqfs: ") && error.contains(text), "{error}");
    }
}

#[test]
fn rejects_invalid_inodes() {
    for (kind, listed_kind, valid) in
        [(0_u16, 6_u16, false), (1, 1, true), (14, 7, true), (15, 7, false), (u16::MAX, 6, false)]
    {
        // The directory entry of `p` is the third. It is changed to the same type.
        let image = Image::valid().inode(PIPE, &kind).directory(12 + 2 * 9 + 4, &listed_kind);
        assert_eq!(open(&image).and_then(|image| lookup(&image, "p")).is_ok(), valid, "{kind}");
    }
    for (at, field, text) in [
        (FILE + 12, &0_u32 as &dyn Field, "inode number 0"),
        (FILE + 16 + 8, &(1_u64 << 63), "file of 9223372036854775808 bytes"),
        (FILE + 4, &1_u16, "id 1 referenced, but there are 1"),
    ] {
        let image = open(&Image::valid().inode(at, field)).unwrap();
        let error = lookup(&image, "f").unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn limits_the_length_of_a_link_target() {
    let target = |len: u32| {
        let image = open(&Image::valid().inode(LINK + 20, &len)).unwrap();
        lookup(&image, "l").map(|attr| attr.size).map_err(|error| error.to_string())
    };
    assert_eq!(target(65_536), Ok(65_536));
    assert!(target(65_537).unwrap_err().contains("symbolic link target of 65537 bytes"));
}

#[test]
fn rejects_invalid_listings() {
    let entry = 12;
    let refused = |image: &Image, text: &str| {
        let error = open(image).and_then(|image| names(&image, Cookie::START)).unwrap_err();
        assert!(error.to_string().contains(text), "{error}, not {text}");
    };
    let valid = Image::valid;
    refused(&valid().directory(0, &256_u32), "257 entries");
    refused(&valid().directory(0, &u32::MAX), "entries, limit 256");
    // Its fourth entry would be the next table.
    refused(&valid().directory(0, &3_u32), "of type 0");
    refused(&valid().inode(ROOT + 24, &20_u16), "an entry past the end of the listing");
    refused(&valid().directory(entry + 4, &0_u16), "of type 0");
    refused(&valid().directory(entry + 4, &8_u16), "of type 8");
    refused(&valid().directory(entry + 6, &255_u16), "a name of 256 bytes");
    refused(&valid().directory(entry + 8, &b'/'), "named /");
    refused(&valid().directory(entry + 8, &0_u8), "named \\x00");
    refused(&valid().directory(entry + 8, &b'l'), "l comes after l, names must ascend");
    refused(&valid().directory(entry + 8, &b'z'), "l comes after z, names must ascend");
    refused(&valid().inode(ROOT + 26, &9000_u16), "shorter than a reference to it");
    refused(&valid().inode(ROOT + 16, &(1_u32 << 30)), "past the end of the image");
}

#[test]
fn shows_a_listing_whose_size_lacks_up_to_three_bytes() {
    let runs = [listing(&[("f", FILE, 2), ("l", LINK, 3)]), listing(&[("p", PIPE, 6)])];
    let (first, all) = (runs[0].len(), runs.concat().len());
    for size in 0..=all + 3 {
        let mut image = Image::valid();
        image.directories = runs.concat();
        let image = open(&image.inode(ROOT + 24, &(size as u16))).unwrap();
        let listed = names(&image, Cookie::START);
        let (shown, end) = match size {
            0..=3 => ("", 0),
            _ if (first..=first + 3).contains(&size) => ("fl", first),
            _ if size >= all => ("flp", all),
            _ => {
                assert_eq!(listed.unwrap_err().kind(), Kind::Corrupt, "{size}");
                continue;
            }
        };
        let entries = listed.unwrap();
        assert_eq!(entries.iter().map(|entry| &*entry.0).collect::<String>(), shown, "{size}");
        for (nth, (_, next)) in entries.iter().enumerate() {
            assert_eq!(names(&image, *next).unwrap(), entries[nth + 1..], "{size} from {next:?}");
        }
        assert!(entries.is_sorted_by(|a, b| a.1.0 < b.1.0), "{entries:?}");
        for name in ["f", "l", "p"] {
            let found = image.lookup(Ino::ROOT, Name::parse(name.as_bytes()).unwrap()).unwrap();
            assert_eq!(found.is_some(), shown.contains(name), "{size}: {name}");
        }
        let mut findings = Vec::new();
        image.audit(&mut |finding| findings.push(finding.what));
        let finds = |text: &str| findings.iter().any(|what| what.contains(text));
        let excess = end.saturating_sub(size.saturating_sub(3));
        assert_eq!(finds("3 bytes less than the format says"), excess == 3, "{findings:?}");
        assert_eq!(finds("bytes longer than it states"), !matches!(excess, 0 | 3), "{findings:?}");
    }
}

#[test]
fn accepts_names_of_255_bytes_and_runs_of_256_entries() {
    let mut image = Image::valid();
    let long = "n".repeat(255);
    image.directories = listing(&[(&long, PIPE, 6)]);
    let listed_size = image.directories.len() as u16 + 3;
    let opened = open(&image.inode(ROOT + 24, &listed_size)).unwrap();
    assert_eq!(names(&opened, Cookie::START).unwrap()[0].0, long);

    let mut image = Image::valid();
    let many: Vec<String> = (0..256).map(|n| format!("{n:03}")).collect();
    let entries: Vec<_> = many.iter().map(|name| (name.as_str(), PIPE, 6)).collect();
    image.directories = listing(&entries);
    let listed_size = image.directories.len() as u16 + 3;
    let opened = open(&image.inode(ROOT + 24, &listed_size)).unwrap();
    let all = names(&opened, Cookie::START).unwrap();
    assert_eq!(
        all.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        many.iter().collect::<Vec<_>>()
    );
    for nth in [0, 254, 255] {
        assert_eq!(names(&opened, all[nth].1).unwrap(), all[nth + 1..], "{nth}");
    }
    assert!(lookup(&opened, "255").is_ok());
}

#[test]
fn rejects_invalid_block_lists() {
    let words = FILE + 16 + 40;
    let valid = Image::valid;
    let check = |image: Image, text: &str| {
        let error = read_error(&image);
        assert!(error.contains(text), "{error}, not {text}");
    };
    check(valid().inode(words + 8, &(BLOCK + 1)), "claims 4097 bytes, limit 4096");
    check(valid().inode(words, &(10_u32 | 1 << 24)), "has 10 bytes, the file needs 4096");
    check(valid().inode(words + 8, &3_u32), "zstd cannot decode");
    check(valid().inode(FILE + 16, &(1_u64 << 40)), "outside the image");
    check(valid().inode(FILE + 16, &u64::MAX), "outside the image");
    check(valid().inode(FILE + 16, &95_u64), "a data block is in the superblock");
    // The compressed block decompresses to 4096 bytes, one more than the file needs.
    let short =
        valid().inode(FILE + 16 + 8, &(3 * u64::from(BLOCK) - 1)).inode(FILE + 44, &u32::MAX);
    check(short, "has 4096 bytes, the file needs 4095");
    // The block list of a file with a wrong size continues into the data after it.
    check(valid().inode(FILE + 16 + 8, &(1_u64 << 30)), "");
}

#[test]
fn rejects_invalid_fragments() {
    let (number, offset) = (FILE + 44, FILE + 48);
    let valid = Image::valid;
    let check = |image: Image, text: &str| {
        let error = read_error(&image);
        assert!(error.contains(text), "{error}, not {text}");
    };
    check(valid().inode(number, &1_u32), "fragment 1 referenced, but there are 1");
    check(Image { fragment_count: 0, ..valid() }, "fragment 0 referenced, but there are none");
    // The fragment has 31 bytes: a tail of 10 may start at 21 at most.
    assert!(read(&open(&valid().inode(offset, &21_u32)).unwrap(), 0, u32::MAX).is_ok());
    check(valid().inode(offset, &22_u32), "has 31 bytes, the file needs 32");
    check(valid().inode(offset, &u32::MAX), "the file needs 4294967305");
    let fragments: fn(&mut Image) -> &mut Vec<u8> = |image| &mut image.fragments;
    check(with(valid(), fragments, 8, &0_u32), "a block of 0 bytes");
    check(with(valid(), fragments, 8, &(BLOCK + 1)), "claims 4097 bytes");
    check(with(valid(), fragments, 0, &(1_u64 << 50)), "outside the image");
    check(with(valid(), fragments, 0, &95_u64), "a data block is in the superblock");
    let many = Image { fragment_count: u32::MAX, ..valid() };
    assert!(
        open(&many)
            .err()
            .unwrap()
            .to_string()
            .contains("fragment table: past the end of the image")
    );
}

#[test]
fn never_returns_data_after_the_image() {
    let image_bytes = Image::valid().bytes();
    let words = FILE + 16 + 40;
    let moved = Image::valid().inode(words, &(BLOCK | 1 << 24));
    let image = moved.inode(FILE + 16, &(image_bytes.len() as u64 - 1)).bytes();
    let storage = MemStorage::new([image, vec![b'x'; 2 * BLOCK as usize]].concat());
    let error = read(&open_stored(Arc::new(storage)).unwrap(), 0, 10).unwrap_err().to_string();
    assert!(error.contains("outside the image"), "{error}");
}

#[test]
fn names_the_damaged_inode() {
    let table = u64::from_le_bytes(Image::valid().bytes()[64..72].try_into().unwrap());
    let check = |error: Error, at: u16| {
        let detail = format!("inode at {table:#x}, byte {at}");
        assert!(format!("{error:#}").contains(&detail), "{error:#}, not {detail}");
        assert!(error.to_string().starts_with("test.sqfs: "), "{error}");
    };
    let opened = |image: Image| open(&image).unwrap();
    check(lookup(&opened(Image::valid().inode(PIPE, &15_u16)), "p").unwrap_err(), PIPE);
    check(lookup(&opened(Image::valid().inode(PIPE + 4, &1_u16)), "p").unwrap_err(), PIPE);
    check(read(&opened(Image::valid().inode(FILE + 44, &1_u32)), 0, 1 << 20).unwrap_err(), FILE);
    let listing = opened(Image::valid().directory(0, &256_u32));
    check(names(&listing, Cookie::START).unwrap_err(), ROOT);
    check(lookup(&listing, "f").unwrap_err(), ROOT);
}

#[test]
fn rejects_entries_for_the_root_or_another_kind() {
    let entry = 12;
    let kind = open(&Image::valid().directory(entry + 4, &1_u16)).unwrap();
    let error = lookup(&kind, "f").unwrap_err().to_string();
    assert!(error.contains("a regular file, its entry says a directory"), "{error}");
    let root = Image::valid().directory(entry, &ROOT).directory(entry + 4, &1_u16);
    let root = open(&root).unwrap();
    for error in [lookup(&root, "f").unwrap_err(), names(&root, Cookie::START).unwrap_err()] {
        assert!(error.to_string().contains("contains the root"), "{error}");
    }
}

#[test]
fn never_returns_data_of_another_block() {
    // Two files may name the same offset with different lengths. Each gets what its own words
    // describe.
    let words = FILE + 16 + 40;
    let image = open(&Image::valid().inode(words, &BLOCK)).unwrap();
    assert!(read(&image, 0, 10).is_err(), "plain bytes taken for compressed");
    assert_eq!(read(&image, 3 * u64::from(BLOCK), 10).unwrap(), b"0123456789");
    assert_eq!(DATA, 96);
}

#[test]
fn rejects_invalid_attributes() {
    let pairs: fn(&mut Image) -> &mut Vec<u8> = |image| &mut image.xattr_pairs;
    let ids: fn(&mut Image) -> &mut Vec<u8> = |image| &mut image.xattr_ids;
    let check = |image: Image, name: &[u8], text: &str| {
        let image = open(&image).unwrap();
        let file = lookup(&image, "f").unwrap().ino;
        let error = image.xattr(file, name).unwrap_err().to_string();
        assert!(error.contains(text), "{error}, not {text}");
    };
    let valid = Image::valid;
    check(with(valid(), pairs, 0, &3_u16), b"user.a", "of type 3");
    check(with(valid(), pairs, 5, &65_537_u32), b"user.a", "value of 65537 bytes");
    check(with(valid(), pairs, 5, &65_536_u32), b"user.a", "damaged metadata block");
    check(with(valid(), pairs, 19, &7_u32), b"trusted.b", "has 7 bytes, must have 8");
    check(with(valid(), pairs, 23, &9000_u64), b"trusted.b", "shorter than a reference to it");
    check(with(valid(), pairs, 23, &u64::MAX), b"trusted.b", "");
    check(with(valid(), ids, 0, &9000_u64), b"user.a", "shorter than a reference to it");
    check(with(valid(), ids, 8, &u32::MAX), b"user.c", "");
    check(valid().inode(FILE + 52, &1_u32), b"user.a", "xattr id 1 referenced, but there are 1");
    let endless = open(&with(valid(), ids, 8, &u32::MAX)).unwrap();
    let file = lookup(&endless, "f").unwrap().ino;
    assert!(endless.list_xattrs(file).is_err());
    // A NUL would split one name into two in the list.
    let split = open(&with(valid(), pairs, 4, &0_u8)).unwrap();
    let file = lookup(&split, "f").unwrap().ino;
    assert!(split.list_xattrs(file).unwrap_err().to_string().contains("a NUL in a name"));
}

#[test]
fn rejects_attributes_of_an_empty_table() {
    let mut bytes = Image::valid().bytes();
    let table = u64::from_le_bytes(bytes[56..64].try_into().unwrap());
    let count = usize::try_from(table).unwrap() + 8;
    bytes[count..count + 4].fill(0);
    let image = open_stored(Arc::new(MemStorage::new(bytes))).unwrap();
    let file = lookup(&image, "f").unwrap().ino;
    let error = image.list_xattrs(file).unwrap_err().to_string();
    assert!(error.contains("xattr id 0 referenced, but there are 0"), "{error}");
    let link = lookup(&image, "l").unwrap().ino;
    assert!(image.list_xattrs(link).unwrap().is_empty());
}

/// Decompressed bytes of block `number` of `of_blocks`.
fn nth_block(number: usize) -> Vec<u8> {
    format!("block {number} ").bytes().cycle().take(BLOCK as usize).collect()
}

/// An image with a single file of `count` contiguous compressed blocks.
fn of_blocks(count: usize) -> Image {
    const INODE_OFFSET: u16 = 1000;
    let compressed: Vec<_> =
        (0..count).map(|number| zstd::bulk::compress(&nth_block(number), 1).unwrap()).collect();
    let mut image = Image::valid();
    image.data = compressed.concat();
    image.directories = listing(&[("f", INODE_OFFSET, 2)]);
    let listed_size = image.directories.len() as u16 + 3;
    let size = count as u64 * u64::from(BLOCK);
    let none = u32::MAX;
    let mut inode = fields(&[&9_u16, &0o644_u16, &0_u16, &0_u16, &77_u32, &1_u32]);
    inode.extend(fields(&[&DATA, &size, &0_u64, &1_u32, &none, &0_u32, &none]));
    compressed.iter().for_each(|block| inode.extend(fields(&[&(block.len() as u32)])));
    let start = usize::from(INODE_OFFSET);
    image.inodes[start..start + inode.len()].copy_from_slice(&inode);
    image.inode(ROOT + 24, &listed_size)
}

#[test]
fn reads_adjacent_blocks_with_one_read() {
    let storage = Arc::new(MemStorage::new(of_blocks(32).bytes()));
    let image = open_stored(storage.clone()).unwrap();
    let file = lookup(&image, "f").unwrap().ino;
    let (reads, mut scratch) = (storage.reads(), Scratch::default());
    let bytes = image.read(file, 0, u32::MAX, &mut scratch).unwrap();
    assert_eq!(bytes.as_slice(), (0..32).flat_map(nth_block).collect::<Vec<_>>());
    assert_eq!(storage.reads() - reads, 1);
}

/// Storage that blocks reads, once it is `closed`, until `readers` of them are in flight.
struct Rendezvous {
    inner: MemStorage,
    readers: usize,
    closed: AtomicBool,
    /// Guards the number of readers that have arrived.
    arrived: Mutex<usize>,
    all_arrived: Condvar,
}

impl Storage for Rendezvous {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            let mut arrived = self.arrived.lock();
            *arrived += 1;
            self.all_arrived.notify_all();
            while *arrived < self.readers {
                // Long enough that a missing reader fails the test.
                let waited = self.all_arrived.wait_for(&mut arrived, Duration::from_secs(60));
                assert!(!waited.timed_out(), "{} reads are in flight, no more", *arrived);
            }
        }
        self.inner.read_exact_at(buffer, offset)
    }
}

#[test]
fn reads_of_the_archive_run_in_parallel_for_all_readers() {
    const READERS: usize = 16;
    let storage = Arc::new(Rendezvous {
        inner: MemStorage::new(of_blocks(READERS).bytes()),
        readers: READERS,
        closed: AtomicBool::new(false),
        arrived: Mutex::new(0),
        all_arrived: Condvar::new(),
    });
    let image = SquashFs::open("test.sqfs", storage.clone(), 1 << 20, &Arc::default()).unwrap();
    let file = lookup(&image, "f").unwrap().ino;
    storage.closed.store(true, Ordering::Relaxed);
    thread::scope(|scope| {
        for number in 0..READERS {
            let image = &image;
            scope.spawn(move || {
                let mut scratch = Scratch::default();
                // Not at the start of the file, which would decode the next block ahead.
                let offset = number as u64 * u64::from(BLOCK) + 1;
                let bytes = image.read(file, offset, 100, &mut scratch).unwrap();
                assert_eq!(bytes.as_slice(), &nth_block(number)[1..101]);
            });
        }
    });
    assert_eq!(*storage.arrived.lock(), READERS, "and each block was read once");
}
