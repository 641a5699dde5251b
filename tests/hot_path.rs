//! What a request costs once its blocks are cached, counting it included: no memory is allocated.
//!
//! Owns a counting allocator, which is why this is a program of its own with one test.
#![expect(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::Command;

use archfs::formats::{self, OpenOptions};
use archfs::progress::Progress;
use archfs::stats::{Operation, Stats};
use archfs::vfs::{Cookie, Ino, Name, Scratch, Tree};

mod support;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches only a thread-local
// cell, which needs no allocation itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Requests to a tree, counted as `fuse` counts them, whose root has the files of `source_folder`:
/// bytes read and names listed.
fn requests(tree: &dyn Tree, stats: &Stats, scratch: &mut Scratch) -> (usize, usize) {
    let mut bytes = 0;
    for name in ["text", "noise", "small"] {
        let name = Name::parse(name.as_bytes()).unwrap();
        let request = stats.begin(Operation::Lookup);
        let attr = tree.lookup(Ino::ROOT, name).unwrap().unwrap();
        drop(request);
        // Within one block, over the border of two, and the end. Not all of a block: one that was
        // handed out as a whole is not kept.
        for (offset, size) in [(0, 4096), (130_000, 10_000), (attr.size - 10, 4096)] {
            let request = stats.begin(Operation::Read);
            let len = tree.read(attr.ino, offset, size, scratch).unwrap().as_slice().len();
            request.hand_out(len);
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
fn a_request_whose_blocks_are_cached_allocates_nothing() {
    let work = support::work_folder();
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
