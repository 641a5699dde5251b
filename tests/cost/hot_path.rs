//! A request whose blocks are cached allocates no memory, including its statistics.
//!
//! The global allocator of this test program is one that counts, for each thread.
#![expect(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::Command;

use archfs::formats::{self, OpenOptions};
use archfs::progress::Progress;
use archfs::stats::{Operation, Stats};
use archfs::vfs::{Cookie, Ino, Name, Scratch, Tree};

use crate::support;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system allocator unchanged. Counting uses a thread-local cell that
// needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Sends requests to a tree with the files of `source_directory`, counted as in `fuse`. Returns
/// bytes read and names listed.
fn requests(tree: &dyn Tree, stats: &Stats, scratch: &mut Scratch) -> (usize, usize) {
    let mut bytes = 0;
    for name in ["text", "noise", "small"] {
        let name = Name::parse(name.as_bytes()).unwrap();
        let request = stats.begin(Operation::Lookup);
        let attr = tree.lookup(Ino::ROOT, name).unwrap().unwrap();
        drop(request);
        // Within one block, across two blocks, and at the end. Never a whole block: one that was
        // handed out completely is not kept.
        for (offset, size) in [(0, 4096), (130_000, 10_000), (attr.size - 10, 4096)] {
            let request = stats.begin(Operation::Read);
            let len = tree.read(attr.ino, offset, size, scratch).unwrap().as_slice().len();
            request.hand_out(1, len);
            bytes += len;
        }
    }
    stats.count(Operation::Readdir);
    let mut names = 0;
    tree.read_dir(Ino::ROOT, Cookie::START, &mut |entry| {
        names += usize::from(tree.attr(entry.ino).is_ok());
        ControlFlow::Continue(())
    })
    .unwrap();
    (bytes, names)
}

#[test]
fn a_cached_request_allocates_nothing() {
    let work = support::work_directory();
    let source = work.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("text"), "a line that compresses\n".repeat(30_000)).unwrap();
    std::fs::write(source.join("noise"), support::source::noise(1, 500_000)).unwrap();
    std::fs::write(source.join("small"), "a tail in a fragment\n".repeat(2000)).unwrap();
    let image = support::image::make(work.path(), "image.sqfs", &source, &["-comp", "zstd"]);
    let tar = work.path().join("data.tar");
    let names = ["text", "noise", "small"];
    support::run(Command::new("tar").arg("-C").arg(&source).arg("-cf").arg(&tar).args(names));
    support::run(Command::new("gzip").arg("-k").arg(&tar));
    let other = work.path().join("other.tar");
    support::run(Command::new("tar").arg("-C").arg(&source).arg("-cf").arg(&other).arg("small"));
    let packed: PathBuf = work.path().join("data.tar.gz");
    for paths in [vec![image.clone()], vec![tar.clone()], vec![packed], vec![tar, other, image]] {
        let options = OpenOptions { cache_bytes: 512 << 20, ..OpenOptions::default() };
        let tree = formats::open(&paths, &options, &Progress::default()).unwrap();
        let mut scratch = Scratch::default();
        let stats = &options.stats;
        let cold = requests(tree.as_ref(), stats, &mut scratch);
        assert_eq!(cold.1, 3);
        let before = ALLOCATIONS.with(Cell::get);
        let warm = requests(tree.as_ref(), stats, &mut scratch);
        let allocations = ALLOCATIONS.with(Cell::get) - before;
        assert_eq!(allocations, 0, "allocations of warm requests to {paths:?}");
        assert_eq!(warm, cold);
        let totals = stats.totals();
        assert_eq!((totals.all_requests(), totals.bytes), (26, 2 * cold.0 as u64));
    }
}

/// Members of a tar whose index is read block by block, and members of each directory.
const MEMBERS: usize = 30_000;
const EACH: usize = 1000;

fn directory(number: usize) -> String {
    format!("directory{:03}", number / EACH)
}

fn file(number: usize) -> String {
    format!("file{number:06}.jpeg")
}

/// A tar of empty files.
fn tar_of_many() -> Vec<u8> {
    let mut bytes = Vec::with_capacity((MEMBERS + 2) * 512);
    for number in 0..MEMBERS {
        let path = format!("{}/{}", directory(number), file(number));
        let mut header = [0; 512];
        header[..path.len()].copy_from_slice(path.as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(b"00000000000");
        header[148..156].fill(b' ');
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        bytes.extend(header);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Looks up files in the first directories, lists the first directory, and returns what was found.
fn look_up(tree: &dyn Tree, paths: &[(String, String)]) -> (usize, u64) {
    let find = |parent, name: &str| {
        tree.lookup(parent, Name::parse(name.as_bytes()).unwrap()).unwrap().unwrap().ino
    };
    let (mut names, mut sum) = (0, 0);
    for (directory, file) in paths {
        let ino = find(find(Ino::ROOT, directory), file);
        sum += tree.attr(ino).unwrap().ino.number();
    }
    let first = find(Ino::ROOT, &paths[0].0);
    tree.read_dir(first, Cookie::START, &mut |entry| {
        names += usize::from(tree.attr(entry.ino).is_ok());
        ControlFlow::Continue(())
    })
    .unwrap();
    (names, sum)
}

#[test]
fn a_request_with_cached_index_blocks_allocates_and_reads_nothing() {
    let work = support::work_directory();
    let tar = work.path().join("many.tar");
    let index = work.path().join("many.tar.archfs-index");
    std::fs::write(&tar, tar_of_many()).unwrap();
    let options = OpenOptions::default();
    let open =
        || formats::open(std::slice::from_ref(&tar), &options, &Progress::default()).unwrap();
    drop(open());
    let saved = std::fs::read(&index).unwrap();
    assert!(saved.len() > 3 << 19, "{} bytes are read as a whole", saved.len());
    let tree = open();
    let paths: Vec<_> = (0..5000).step_by(37).map(|nth| (directory(nth), file(nth))).collect();
    let cold = look_up(tree.as_ref(), &paths);
    assert_eq!(cold.0, EACH);

    // From here on every read of the index fails.
    File::options().write(true).open(&index).unwrap().set_len(0).unwrap();
    let before = ALLOCATIONS.with(Cell::get);
    let warm = look_up(tree.as_ref(), &paths);
    let allocations = ALLOCATIONS.with(Cell::get) - before;
    assert_eq!(allocations, 0, "allocations of warm requests");
    assert_eq!(warm, cold);

    // What was not read before fails, and released blocks are read again.
    let last = directory(MEMBERS - 1);
    let in_last = |tree: &dyn Tree| {
        let found = tree.lookup(Ino::ROOT, Name::parse(last.as_bytes()).unwrap())?;
        let name = file(MEMBERS - 1);
        tree.lookup(found.unwrap().ino, Name::parse(name.as_bytes()).unwrap())
    };
    assert!(in_last(tree.as_ref()).is_err(), "all of the index was read");
    tree.release();
    assert!(tree.attr(Ino::ROOT).is_err(), "nothing was released");
    std::fs::write(&index, saved).unwrap();
    assert_eq!(look_up(tree.as_ref(), &paths), cold);
    assert!(in_last(tree.as_ref()).is_ok());
}
