//! Compares the hit rates of the cache's eviction policy with those of `quick_cache`.
//!
//! The loads are made from a seed. Each cache has one shard, so hit rates are the same in every
//! run; times depend on the machine. docs/CACHE.md quotes the output.
//!
//! Usage: cargo bench --bench policy

use std::convert::Infallible;
use std::hash::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use archfs::cache::{Cache, Cached, Readahead};
use quick_cache::sync::{Cache as QuickCache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

/// Cache size in percent of the data.
const SHARES: [u64; 4] = [10, 25, 50, 90];

/// Bytes that an entry takes in addition to its value, as in the real cache.
const OVERHEAD: u64 = 128;

/// Times that each load is replayed; the fastest replay is printed.
const ROUNDS: usize = 3;

fn main() {
    println!(
        "share of reads that find their block, and nanoseconds a read, the fastest of {ROUNDS}"
    );
    print!("{:54} {:>6}", "", "holds");
    for contender in Contender::ALL {
        print!(" {:>22}", contender.name());
    }
    println!();
    for load in loads() {
        for share in SHARES {
            let capacity = load.blocks * (load.block_size + OVERHEAD) * share / 100;
            let trace = (load.trace)(&load, capacity);
            print!("{:54} {share:>4} %", load.name);
            for contender in Contender::ALL {
                let runs = (0..ROUNDS).map(|_| replay(&load, &trace, capacity, contender));
                let best = runs.min_by(|a, b| a.nanoseconds.total_cmp(&b.nanoseconds)).unwrap();
                let (hits, time) = (best.hit_rate, best.nanoseconds);
                print!(" {hits:>8.3} {:>5.2} {time:>4.0} ns", best.loads_per_block);
            }
            println!();
        }
    }
    println!("(second of three: how often a block is decoded, on average)");
}

// The loads.

struct Load {
    name: &'static str,
    blocks: u64,
    /// Bytes of a block.
    block_size: u64,
    trace: fn(&Load, u64) -> Vec<Step>,
}

#[derive(Clone, Copy)]
enum Step {
    /// A reader needs that many bytes of a block.
    Read { block: u64, bytes: u64 },
    /// A read-ahead thread loads a block.
    Ahead { block: u64 },
}

const K: u64 = 1 << 10;

fn loads() -> Vec<Load> {
    let of = |name, blocks, block_size, trace| Load { name, blocks, block_size, trace };
    vec![
        of("8 files a block, shuffled, one epoch", 20_000, 128 * K, |load, _| epochs(load, 8, 1)),
        of("8 files a block, shuffled, both epochs", 20_000, 128 * K, |load, _| epochs(load, 8, 2)),
        of("2 files a block, shuffled, one epoch", 20_000, 128 * K, |load, _| epochs(load, 2, 1)),
        of("2 files a block, shuffled, both epochs", 20_000, 128 * K, |load, _| epochs(load, 2, 2)),
        of("half of reads in a tenth, scans of whole blocks", 20_000, 128 * K, |load, _| {
            scans(load, 1, Again::Asked)
        }),
        of("half of reads in a tenth, scans in parts", 20_000, 128 * K, |load, _| {
            scans(load, 8, Again::Asked)
        }),
        of("the same, each part asked for once", 20_000, 128 * K, |load, _| {
            scans(load, 8, Again::PageCache)
        }),
        of("4 readers in order, nothing decoded ahead", 1024, 1024 * K, |load, _| {
            in_order(load, 0)
        }),
        of("4 readers in order, decoded ahead", 1024, 1024 * K, |load, capacity| {
            in_order(load, (capacity / 16).min(8 << 20))
        }),
    ]
}

/// Each block has `files` files. Every epoch reads each file once, in a new random order.
///
/// If the page cache keeps what was read, a mount sees only the first epoch. If it is too small,
/// the mount sees them all.
fn epochs(load: &Load, files: u64, epochs: u64) -> Vec<Step> {
    let mut random = Random::new();
    let bytes = load.block_size / files;
    let mut trace = Vec::new();
    for _ in 0..epochs {
        let file = |number| Step::Read { block: number / files, bytes };
        let mut epoch: Vec<_> = (0..load.blocks * files).map(file).collect();
        random.shuffle(&mut epoch);
        trace.append(&mut epoch);
    }
    trace
}

#[derive(PartialEq)]
enum Again {
    /// A part that was read before is requested again.
    Asked,
    /// The page cache serves it.
    PageCache,
}

/// Half of the reads are of a random eighth of a random block in the first tenth. The others read
/// all blocks in order, twice, each in `parts` parts.
fn scans(load: &Load, parts: u64, again: Again) -> Vec<Step> {
    let mut random = Random::new();
    let mut was_read = vec![false; usize::try_from(load.blocks * 8).unwrap()];
    let mut trace = Vec::new();
    for number in 0..2 * load.blocks * parts {
        let scanned = number / parts % load.blocks;
        let eighths = 8 / parts;
        let part = scanned * 8 + number % parts * eighths;
        let hot = random.below(load.blocks / 10 * 8);
        for (part, eighths) in [(part, eighths), (hot, 1)] {
            let part = usize::try_from(part).unwrap();
            let is_new = !was_read[part];
            was_read[part..part + usize::try_from(eighths).unwrap()].fill(true);
            if is_new || again == Again::Asked {
                let bytes = load.block_size / 8 * eighths;
                trace.push(Step::Read { block: part as u64 / 8, bytes });
            }
        }
    }
    trace
}

/// Four readers of a file each take turns with requests of 128 KiB. `ahead` bytes of each file are
/// decoded before they are read.
fn in_order(load: &Load, ahead: u64) -> Vec<Step> {
    const READERS: u64 = 4;
    const REQUEST: u64 = 128 * K;
    let len = load.blocks / READERS * load.block_size;
    let first = |file| file * load.blocks / READERS;
    let readahead = Readahead::new(ahead);
    let mut trace = Vec::new();
    for start in (0..len).step_by(usize::try_from(REQUEST).unwrap()) {
        for file in 0..READERS {
            let range = start..start + REQUEST;
            let block = first(file) + start / load.block_size;
            trace.push(Step::Read { block, bytes: REQUEST });
            if let Some(range) = readahead.observe(file, range, len) {
                let blocks = range.start / load.block_size..range.end.div_ceil(load.block_size);
                trace.extend(blocks.map(|block| Step::Ahead { block: first(file) + block }));
            }
        }
    }
    trace
}

// The contenders.

#[derive(Clone, Copy)]
enum Contender {
    Cache(UsedUp),
    QuickCache(UsedUp),
}

/// What happens to a block once all its bytes were handed out.
#[derive(Clone, Copy, PartialEq)]
enum UsedUp {
    Leaves,
    /// It leaves, and the count continues after the block is evicted and loaded again.
    Remembered,
    Stays,
}

impl Contender {
    const ALL: [Self; 6] = [
        Self::Cache(UsedUp::Leaves),
        Self::QuickCache(UsedUp::Leaves),
        Self::Cache(UsedUp::Stays),
        Self::QuickCache(UsedUp::Stays),
        Self::Cache(UsedUp::Remembered),
        Self::QuickCache(UsedUp::Remembered),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Cache(UsedUp::Leaves) => "lru, leaves: archfs",
            Self::QuickCache(UsedUp::Leaves) => "quick_cache, leaves",
            Self::Cache(UsedUp::Stays) => "lru, stays",
            Self::QuickCache(UsedUp::Stays) => "quick_cache, stays",
            Self::Cache(UsedUp::Remembered) => "lru, remembered",
            Self::QuickCache(UsedUp::Remembered) => "quick, remembered",
        }
    }

    fn used_up(self) -> UsedUp {
        let (Self::Cache(used_up) | Self::QuickCache(used_up)) = self;
        used_up
    }
}

/// A block without its data.
#[derive(Clone)]
struct Block(Arc<Counted>);

struct Counted {
    len: u64,
    handed_out: AtomicU64,
    used_up: UsedUp,
}

impl Block {
    fn hand_out(&self, bytes: u64) -> bool {
        let before = self.0.handed_out.fetch_add(bytes, Ordering::Relaxed);
        self.0.used_up != UsedUp::Stays && before + bytes >= self.0.len
    }
}

impl Cached for Block {
    fn weight(&self) -> u64 {
        self.0.len
    }

    fn is_used_up(&self) -> bool {
        self.hand_out(0)
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<u64, Block> for Weight {
    fn weight(&self, _: &u64, block: &Block) -> u64 {
        block.weight() + OVERHEAD
    }
}

trait Blocks {
    fn get_or_load(&self, key: u64, load: &mut dyn FnMut() -> Block) -> Block;
    fn remove(&self, key: u64);
}

impl Blocks for Cache<u64, Block> {
    fn get_or_load(&self, key: u64, load: &mut dyn FnMut() -> Block) -> Block {
        Cache::get_or_load(self, key, || Ok(load())).unwrap()
    }

    fn remove(&self, key: u64) {
        Cache::remove(self, &key);
    }
}

type Quick = QuickCache<u64, Block, Weight, RandomState, DefaultLifecycle<u64, Block>>;

impl Blocks for Quick {
    fn get_or_load(&self, key: u64, load: &mut dyn FnMut() -> Block) -> Block {
        let Ok(block) = self.get_or_insert_with(&key, || Ok::<_, Infallible>(load()));
        // quick_cache cannot decline to keep a value.
        if block.is_used_up() {
            QuickCache::remove(self, &key);
        }
        block
    }

    fn remove(&self, key: u64) {
        QuickCache::remove(self, &key);
    }
}

fn cache(load: &Load, capacity: u64, contender: Contender) -> Box<dyn Blocks> {
    if let Contender::Cache(_) = contender {
        // A maximum value size equal to the capacity gives one shard.
        return Box::new(Cache::new(capacity, capacity));
    }
    let options = OptionsBuilder::new()
        .shards(1)
        .estimated_items_capacity(usize::try_from(capacity / load.block_size).unwrap())
        .weight_capacity(capacity)
        .build()
        .unwrap();
    let (hasher, lifecycle) = (RandomState::new(), DefaultLifecycle::default());
    Box::new(Quick::with_options(options, Weight, hasher, lifecycle))
}

// The replay.

struct Outcome {
    hit_rate: f64,
    loads_per_block: f64,
    nanoseconds: f64,
}

fn replay(load: &Load, trace: &[Step], capacity: u64, contender: Contender) -> Outcome {
    let cache = cache(load, capacity, contender);
    let (mut reads, mut hits, mut loads) = (0_u64, 0_u64, 0_u64);
    let mut handed_out = vec![0_u64; usize::try_from(load.blocks).unwrap()];
    let start = Instant::now();
    for step in trace {
        let (key, bytes) = match *step {
            Step::Read { block, bytes } => (block, bytes),
            Step::Ahead { block } => (block, 0),
        };
        let before = &mut handed_out[usize::try_from(key).unwrap()];
        let counted = match contender.used_up() {
            UsedUp::Remembered => *before % load.block_size + bytes,
            UsedUp::Leaves | UsedUp::Stays => bytes,
        };
        *before += bytes;
        let mut was_loaded = false;
        // Like the SquashFS reader: the first read counts before the block may enter the cache.
        let block = cache.get_or_load(key, &mut || {
            was_loaded = true;
            let handed_out = AtomicU64::new(counted);
            let used_up = contender.used_up();
            Block(Arc::new(Counted { len: load.block_size, handed_out, used_up }))
        });
        if !was_loaded && block.hand_out(bytes) {
            cache.remove(key);
        }
        loads += u64::from(was_loaded);
        if bytes > 0 {
            reads += 1;
            hits += u64::from(!was_loaded);
        }
    }
    let nanoseconds = start.elapsed().as_secs_f64() * 1e9 / reads as f64;
    let hit_rate = hits as f64 / reads as f64;
    Outcome { hit_rate, loads_per_block: loads as f64 / load.blocks as f64, nanoseconds }
}

/// A random number generator with a fixed seed.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, usize::try_from(self.below(last as u64 + 1)).unwrap());
        }
    }
}
