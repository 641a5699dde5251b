//! What a request costs once its blocks are cached: no memory is allocated.
//!
//! Owns a counting allocator, which is why this is a program of its own with one test.
#![expect(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::ControlFlow;

use archfs::formats::{self, OpenOptions};
use archfs::progress::Progress;
use archfs::vfs::{Cookie, Ino, Name, Scratch};

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

#[test]
fn a_request_whose_blocks_are_cached_allocates_nothing() {
    let work = support::work_folder();
    let source = work.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("text"), "a line that compresses\n".repeat(30_000)).unwrap();
    std::fs::write(source.join("noise"), support::source::noise(1, 500_000)).unwrap();
    std::fs::write(source.join("small"), "a tail in a fragment\n".repeat(200)).unwrap();
    let image = support::image::make(work.path(), "image.sqfs", &source, &["-comp", "zstd"]);
    let options = OpenOptions { cache_bytes: 64 << 20, ..OpenOptions::default() };
    let tree = formats::open(&[image], &options, &Progress::default()).unwrap();
    let mut scratch = Scratch::default();
    let mut requests = || {
        let mut bytes = 0;
        for name in ["text", "noise", "small"] {
            let name = Name::parse(name.as_bytes()).unwrap();
            let attr = tree.lookup(Ino::ROOT, name).unwrap().unwrap();
            // Within one block, over the border of two, and the end.
            for (offset, size) in [(0, 131_072), (100_000, 100_000), (attr.size - 10, 4096)] {
                bytes += tree.read(attr.ino, offset, size, &mut scratch).unwrap().as_slice().len();
            }
        }
        let mut names = 0;
        tree.read_dir(Ino::ROOT, Cookie::START, &mut |entry| {
            names += usize::from(tree.attr(entry.ino).is_ok());
            ControlFlow::Continue(())
        })
        .unwrap();
        (bytes, names)
    };
    let cold = requests();
    assert_eq!(cold.1, 3);
    let before = ALLOCATIONS.with(Cell::get);
    let warm = requests();
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0, "allocations of warm requests");
    assert_eq!(warm, cold);
}
