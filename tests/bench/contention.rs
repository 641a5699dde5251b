//! Measures whether threads that hit the cache slow each other down.
//!
//! Each round is a fixed number of hits, divided among the threads; results are in docs/bench.
//!
//! Usage: cargo bench --bench contention [-- NAME]

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::thread;

use archfs::cache::Cache;
use archfs::formats::{self, OpenOptions};
use archfs::progress::Progress;
use archfs::vfs::{Ino, Name, Scratch, Tree};
use divan::Bencher;
use divan::counter::ItemsCount;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const THREADS: [usize; 4] = [1, 2, 4, 16];

/// Hits in a round, by all threads together.
const HITS: usize = 1 << 20;

/// The blocks that are read: the same one by all threads, or a different one for each.
#[derive(Clone, Copy)]
enum Blocks {
    One,
    OneEach,
}

impl Blocks {
    fn of(self, thread: usize) -> usize {
        match self {
            Self::One => 0,
            Self::OneEach => thread,
        }
    }
}

fn main() {
    divan::main();
}

/// Divides HITS calls of `hit(block, scratch)` among the threads.
fn round(
    bencher: Bencher,
    threads: usize,
    blocks: Blocks,
    hit: impl Fn(usize, &mut Scratch) + Sync,
) {
    bencher.counter(ItemsCount::new(HITS)).bench(|| {
        thread::scope(|scope| {
            for thread in 0..threads {
                let hit = &hit;
                scope.spawn(move || {
                    pin(thread);
                    let mut scratch = Scratch::default();
                    for _ in 0..HITS / threads {
                        hit(blocks.of(thread), &mut scratch);
                    }
                });
            }
        });
    });
}

/// Pins this thread to a CPU, round robin. On a busy machine the scheduler may otherwise leave all
/// threads of such a short round on one CPU.
fn pin(thread: usize) {
    let allowed = sched_getaffinity(None).unwrap();
    let nth = thread % usize::try_from(allowed.count()).unwrap();
    let mut processors = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number));
    let mut one = CpuSet::new();
    one.set(processors.nth(nth).unwrap());
    sched_setaffinity(None, &one).unwrap();
}

/// Only the cache.
#[divan::bench_group(sample_count = 10, sample_size = 1)]
mod cache {
    use super::*;

    fn hits(bencher: Bencher, threads: usize, blocks: Blocks) {
        let cache: Cache<usize, Arc<[u8]>> = Cache::new(1 << 30, 128 << 10);
        let value: Arc<[u8]> = vec![0; 128 << 10].into();
        let look_up = |key| cache.get_or_load(key, || Ok(Arc::from(&value[..]))).unwrap();
        (0..16).for_each(|key| drop(look_up(key)));
        round(bencher, threads, blocks, |block, _| {
            black_box(look_up(block));
        });
    }

    #[divan::bench(args = THREADS)]
    fn one_block(bencher: Bencher, threads: usize) {
        hits(bencher, threads, Blocks::One);
    }

    #[divan::bench(args = THREADS)]
    fn a_block_each(bencher: Bencher, threads: usize) {
        hits(bencher, threads, Blocks::OneEach);
    }
}

/// A whole read except for the kernel's part. Each read is of one byte: a cached block is not
/// copied, so a byte costs as much as 4096. A block leaves the cache once every byte was handed
/// out, so it lasts for a million reads.
#[divan::bench_group(sample_count = 10, sample_size = 1)]
mod tree {
    use super::*;

    fn hits(bencher: Bencher, threads: usize, blocks: Blocks) {
        static TREE: OnceLock<(Arc<dyn Tree>, Vec<Ino>)> = OnceLock::new();
        let (tree, files) = TREE.get_or_init(open);
        round(bencher, threads, blocks, |block, scratch| {
            // Not at the start of the file, which would look like sequential reading.
            let bytes = tree.read(files[block], 5000, 1, scratch).unwrap();
            assert_eq!(black_box(bytes.as_slice()).len(), 1);
        });
    }

    #[divan::bench(args = THREADS)]
    fn one_block(bencher: Bencher, threads: usize) {
        hits(bencher, threads, Blocks::One);
    }

    #[divan::bench(args = THREADS)]
    fn a_block_each(bencher: Bencher, threads: usize) {
        hits(bencher, threads, Blocks::OneEach);
    }

    /// An image of 16 files, each one block of 1 MiB.
    fn open() -> (Arc<dyn Tree>, Vec<Ino>) {
        let work = tempfile::tempdir().unwrap();
        let source = work.path().join("source");
        std::fs::create_dir(&source).unwrap();
        let name = |number: usize| format!("{number:02}");
        for number in 0..16 {
            let line = format!("line of file {number}, which compresses\n");
            let bytes: Vec<u8> = line.bytes().cycle().take(1 << 20).collect();
            std::fs::write(source.join(name(number)), bytes).unwrap();
        }
        let image = work.path().join("image.sqfs");
        make(&source, &image);
        let options = OpenOptions { cache_bytes: 1 << 30, ..OpenOptions::default() };
        let tree = formats::open(&[image], &options, &Progress::default()).unwrap();
        let find = |number| {
            let name = name(number);
            tree.lookup(Ino::ROOT, Name::parse(name.as_bytes()).unwrap()).unwrap().unwrap().ino
        };
        let files = (0..16).map(find).collect();
        (tree, files)
    }

    fn make(source: &Path, image: &Path) {
        let options = ["-comp", "zstd", "-b", "1M", "-no-fragments", "-quiet", "-no-progress"];
        let made = Command::new("mksquashfs").arg(source).arg(image).args(options).status();
        assert!(made.unwrap().success(), "mksquashfs failed");
    }
}
