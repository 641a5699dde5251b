//! What readers ask for, and how much may be fetched ahead of them because of it.
//!
//! A loader that shuffles asks for each file once, in an order that cannot be known. To be ahead of
//! it is therefore to fetch files that it has not asked for yet. If the job reads all of them, each
//! byte is used later. If it reads a few, the rest is wasted, and the storage belongs to everybody.
//! So the bytes that are fetched ahead follow from what was asked for:
//!
//! - The most recent reads form regions: runs of offsets without a gap that is too wide to be
//!   chance. Of `n` reads at random, the widest gap is about `ln n` times the mean one. Only bytes
//!   between two reads of a region are fetched. A job that reads one class, or a validation split,
//!   therefore fetches nothing of the others.
//! - In a region, the bytes that are fetched and not used yet are at most `FACTOR` times those that
//!   were asked for, until an eighth of the region was asked for. Then the job most likely reads
//!   the region, and all of it may be fetched.
//! - A small region may be fetched as soon as it is one, because that costs less than to wait for
//!   evidence.
//! - If the nodes of a job read together, each fetches what it owns, for the reads of all of them.
//!   What others own it fetches after that, if its own readers have asked for an eighth of it, and
//!   for more than their share of one epoch. Then they most likely read several. Each later epoch
//!   needs only a share, so a job of very many nodes copies nothing.
//!
//! `simulation` in the tests has the patterns of loaders, with what each fetches and wastes.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use super::granules::{GRANULE, Granules};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::together::{PART, Run};

/// Reads that form regions: enough to tell 40 classes from reads all over the archive.
const RECENT: usize = 512;

/// Fewest reads of a region.
const READS_MIN: usize = 8;

/// A gap between two reads divides a region if it exceeds the mean gap by this factor and `ln n`,
/// which happens by chance in 0.2 % of all looks (`n` times e to the power of minus the factor).
const GAP_FACTOR: f64 = 6.0;

/// Unused bytes for each byte that was asked for. With the bytes that readers share granules with,
/// which are a sixth of files of 100 kB, a job fetches at most three times what it reads.
const FACTOR: f64 = 1.5;

/// The share of a region from which on all of it is fetched.
const ENOUGH: f64 = 1.0 / 8.0;

/// The part of a region that readers have asked for only in a later epoch, compared with their
/// share of one. Two nodes have asked for 1.5 shares after two epochs, many for almost 2.
const EPOCHS: f64 = 1.25;

/// Unused bytes that a region may have in any case: a fraction of a second of a node's network.
const SMALL: u64 = 256 << 20;

/// Reads between two looks at the regions, at first and later.
const LOOK_FIRST: usize = 8;
const LOOK_LATER: usize = 32;

/// Tells whether readers wait for storage, before anything is fetched ahead of them: by a sample of
/// the first reads, and of those after a read that took long.
#[derive(Debug, Default)]
pub(super) struct FirstWaits {
    /// Reads of the sample, and those of them that waited. After the sample, readers do not change
    /// them, so that they are in the cache of each CPU core.
    reads: AtomicU64,
    waits: AtomicU64,
}

impl FirstWaits {
    /// Reads of a sample, the fewest that must wait, and the part of all that must.
    const SAMPLE: u64 = 64;
    const WAITS_MIN: u64 = 8;
    const PART: u64 = 4;

    /// Whether the next read belongs to a sample.
    pub(super) fn is_sampling(&self) -> bool {
        self.reads.load(Ordering::Relaxed) < Self::SAMPLE
    }

    /// Notes a read of a sample. Returns whether enough have waited.
    pub(super) fn note(&self, waited: bool) -> bool {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        if !waited {
            return false;
        }
        let waits = self.waits.fetch_add(1, Ordering::Relaxed) + 1;
        waits >= Self::WAITS_MIN && waits * Self::PART >= reads
    }

    /// Begins a new sample.
    pub(super) fn begin(&self) {
        self.waits.store(0, Ordering::Relaxed);
        self.reads.store(0, Ordering::Relaxed);
    }
}

/// Where bytes may be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// From the first to the last read.
    pub(super) range: Range<u64>,
    /// Whether that is about the bytes that this node owns; otherwise about the others.
    pub(super) is_own: bool,
    /// Bytes that may still be fetched.
    pub(super) left: u64,
}

/// What readers asked for.
#[derive(Debug)]
pub(super) struct Demand {
    /// The granules that were fetched and not used yet.
    unused: Arc<Granules>,
    /// The most recent reads of bytes that were not asked for before, the oldest first.
    recent: VecDeque<Range<u64>>,
    /// Reads since the last look.
    new: usize,
    /// Found at the last look.
    pub(super) regions: Vec<Region>,
    /// Nodes that read the same archives in this job.
    nodes: u64,
    /// Where to begin with what others own. If all nodes began at the same place, they would all
    /// ask the same one.
    random: u64,
}

impl Demand {
    /// No demand, in a job with this many nodes. `unused` are the granules that were fetched and
    /// not used yet.
    pub(super) fn new(unused: Arc<Granules>, nodes: u64) -> Self {
        let (recent, regions) = (VecDeque::new(), Vec::new());
        let random = RandomState::new().hash_one(0);
        Self { unused, recent, new: 0, regions, nodes: nodes.max(1), random }
    }

    /// Notes a read of bytes that were not asked for before.
    pub(super) fn note(&mut self, range: Range<u64>) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(range);
        self.new += 1;
    }

    /// Whether enough was read since the last look for another one.
    pub(super) fn is_look_due(&self) -> bool {
        let later = self.recent.len() > 2 * LOOK_LATER;
        self.new >= if later { LOOK_LATER } else { LOOK_FIRST }
    }

    /// Finds the regions, and how much may be fetched of each. `granules` are those that were asked
    /// for or fetched.
    ///
    /// `run` says which bytes this node owns, if others read the rest. It fetches its own for all
    /// nodes, whose reads of them it sees. What others own comes after that. `nodes` says how many
    /// own it.
    pub(super) fn look(
        &mut self,
        granules: &Granules,
        run: impl Fn(u64) -> Run,
        nodes: impl Fn(u64) -> u64,
    ) {
        self.new = 0;
        let mut reads: Vec<_> = self.recent.iter().cloned().collect();
        reads.sort_unstable_by_key(|read| read.start);
        self.regions.clear();
        let mut of_others = Vec::new();
        let mut small = SMALL / self.nodes;
        let mut parts = vec![&*reads];
        while let Some(part) = parts.pop() {
            if let Some(at) = widest_gap(part) {
                let (before, after) = part.split_at(at);
                parts.extend([after, before]);
            } else if part.len() >= READS_MIN {
                let range = widened(hull(part), part.len() as u64, granules.len());
                let own = own_runs(&range, &run);
                if own.is_shared {
                    let others = |offset| {
                        let run = run(offset);
                        Run { is_own: !run.is_own, ..run }
                    };
                    let asked = self.asked(&own_runs(&range, others), granules) * density(part);
                    let nodes = nodes(range.start) as f64;
                    if asked >= ENOUGH.max(EPOCHS / nodes) {
                        let middle = range.start + self.random % (range.end - range.start);
                        let middle = range.start.max(middle - middle % PART);
                        for range in [middle..range.end, range.start..middle] {
                            of_others.push(Region { range, is_own: false, left: u64::MAX });
                        }
                    }
                }
                let left = self.allowed(&own, granules, small);
                small = small.saturating_sub(left);
                self.regions.push(Region { range, is_own: true, left });
            }
        }
        self.regions.extend(of_others);
    }

    /// Bytes that may be fetched of a region, of which `small` need no evidence.
    fn allowed(&self, region: &OwnRuns, granules: &Granules, small: u64) -> u64 {
        let len = region.len;
        let unused = region.share(&self.unused);
        let asked = self.asked(region, granules);
        // Each node of a job reads another part of an epoch, so the more nodes there are, the less
        // of what is fetched ahead do its own readers use.
        let nodes = if region.is_shared { 1 } else { self.nodes };
        if nodes == 1 && asked >= ENOUGH {
            return u64::MAX;
        }
        let factor = FACTOR / nodes as f64;
        let most = (asked * factor * len).max(small as f64);
        (most - unused * len).max(0.0) as u64
    }

    /// The share of a region that readers asked for.
    fn asked(&self, region: &OwnRuns, granules: &Granules) -> f64 {
        (region.share(granules) - region.share(&self.unused)).max(0.0)
    }
}

/// The bytes of a region that this node owns.
struct OwnRuns {
    /// Some of them.
    runs: Vec<Range<u64>>,
    /// About how many bytes they all have.
    len: f64,
    /// Whether other nodes own the rest.
    is_shared: bool,
}

impl OwnRuns {
    /// The share of them that is in `set`, from 0 to 1.
    fn share(&self, set: &Granules) -> f64 {
        let len = |run: &Range<u64>| (run.end - run.start) as f64;
        let all: f64 = self.runs.iter().map(len).sum();
        self.runs.iter().map(|run| set.share(run) * len(run)).sum::<f64>() / all.max(1.0)
    }
}

/// The bytes of `range` that this node owns, by `run`.
fn own_runs(range: &Range<u64>, run: impl Fn(u64) -> Run) -> OwnRuns {
    /// Points that are looked at in a large region.
    const POINTS: u64 = 4096;
    let whole = range.end - range.start;
    if matches!(run(range.start), Run { end, is_own: true } if end >= range.end) {
        let runs = vec![range.clone()];
        return OwnRuns { runs, len: whole as f64, is_shared: false };
    }
    let step = whole / POINTS;
    // Counted by points, because runs of others are longer than own ones.
    let (mut runs, mut own, mut seen) = (Vec::new(), 0, 0);
    let mut next = range.start;
    while next < range.end {
        let Run { end, is_own } = run(next);
        // Between two archives is less than a granule, which belongs to none.
        let end = end.checked_next_multiple_of(GRANULE).unwrap_or(end);
        let end = end.clamp(next + 1, range.end);
        let (counted, after) = match step > PART {
            true => (1, next + step),
            false => (end - next, end),
        };
        seen += counted;
        if is_own {
            own += counted;
            runs.push(next..end.min(after));
        }
        next = after;
    }
    if own == seen {
        let runs = vec![range.clone()];
        return OwnRuns { runs, len: whole as f64, is_shared: false };
    }
    OwnRuns { runs, len: whole as f64 * own as f64 / seen.max(1) as f64, is_shared: true }
}

/// How much of the granules of `reads` they asked for, from 0 to 1.
fn density(reads: &[Range<u64>]) -> f64 {
    let asked: u64 = reads.iter().map(|read| read.end - read.start).sum();
    let whole = |read: &Range<u64>| {
        read.end.next_multiple_of(GRANULE).saturating_sub(read.start - read.start % GRANULE)
    };
    asked as f64 / reads.iter().map(whole).sum::<u64>().max(1) as f64
}

/// The index of the read behind the widest gap of `reads`, if it is too wide to be chance.
fn widest_gap(reads: &[Range<u64>]) -> Option<usize> {
    let count = reads.len() as f64;
    let gap = |pair: &[Range<u64>]| pair[1].start.saturating_sub(pair[0].end);
    let gaps = reads.windows(2).map(gap);
    let (before, widest) = gaps.enumerate().max_by_key(|(_, gap)| *gap)?;
    let all = hull(reads);
    let mean = (all.end - all.start) as f64 / count;
    (widest as f64 > mean * (GAP_FACTOR + count.ln())).then_some(before + 1)
}

/// `range` with the ends of a copy of `len` bytes, if they are about as close as the next of
/// `reads` reads is.
fn widened(range: Range<u64>, reads: u64, len: u64) -> Range<u64> {
    let close = 2 * (range.end - range.start) / reads.max(1);
    let start = if range.start <= close { 0 } else { range.start };
    let is_last = len.saturating_sub(range.end) <= close;
    start..if is_last { len.max(range.end) } else { range.end }
}

/// From the start of the first of `reads`, which are sorted, to the last end.
fn hull(reads: &[Range<u64>]) -> Range<u64> {
    let start = reads.first().map_or(0, |read| read.start);
    start..reads.iter().map(|read| read.end).max().unwrap_or(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(_: u64) -> Run {
        Run { end: u64::MAX, is_own: true }
    }

    /// Bytes of a file, with those around it that share its granules.
    const FILE: u64 = 7 * GRANULE;

    /// An archive of `files` files, its reader, and a fill that is as fast as its budget.
    struct Simulation {
        granules: Granules,
        unused: Arc<Granules>,
        demand: Demand,
        /// Granules that were fetched ahead, and reads that had to wait.
        ahead: u64,
        of_others: u64,
        waits: u64,
        reads: u64,
        nodes: u64,
        /// What this node owns, if it does not read alone.
        run: Option<fn(u64) -> Run>,
    }

    impl Simulation {
        fn new(files: u64, nodes: u64) -> Self {
            let unused = Arc::new(Granules::new(files * FILE).unwrap());
            Self {
                granules: Granules::new(files * FILE).unwrap(),
                demand: Demand::new(Arc::clone(&unused), nodes),
                unused,
                ahead: 0,
                of_others: 0,
                waits: 0,
                reads: 0,
                nodes,
                run: None,
            }
        }

        fn read(&mut self, file: u64) {
            let range = file * FILE..(file + 1) * FILE;
            let is_new = self.granules.add(&range) > 0;
            let used = self.unused.remove(&range) > 0;
            self.reads += 1;
            self.waits += u64::from(is_new);
            if is_new || used {
                self.demand.note(range);
            }
            if self.demand.is_look_due() {
                let nodes = self.nodes;
                self.demand.look(&self.granules, self.run.unwrap_or(alone), |_| nodes);
                self.fetch();
            }
        }

        fn fetch(&mut self) {
            for Region { range, is_own, left } in self.demand.regions.clone() {
                let mut left = left / GRANULE;
                let mut next = range.start;
                while left > 0
                    && let Some(start) = self.granules.first_missing(next)
                {
                    if start >= range.end {
                        break;
                    }
                    let run = self.run.unwrap_or(alone)(start);
                    if run.is_own != is_own {
                        next = run.end;
                        continue;
                    }
                    let one = start..start + GRANULE;
                    self.granules.add(&one);
                    self.unused.add(&one);
                    let ahead = if is_own { &mut self.ahead } else { &mut self.of_others };
                    *ahead += 1;
                    (left, next) = (left - 1, one.end);
                }
            }
        }

        fn read_all(mut self, files: impl IntoIterator<Item = u64>) -> Self {
            files.into_iter().for_each(|file| self.read(file));
            self
        }

        /// Bytes that were fetched, by the fill and by readers, for each byte that was read.
        fn fetched(&self) -> f64 {
            let read_by_readers = self.waits * FILE / GRANULE;
            (self.ahead + read_by_readers) as f64 / (self.reads * FILE / GRANULE) as f64
        }

        /// The share of reads that waited.
        fn waited(&self) -> f64 {
            self.waits as f64 / self.reads as f64
        }
    }

    /// The numbers of `files` in an order that looks random.
    fn shuffled(files: Range<u64>) -> Vec<u64> {
        let mut random = 1_u64;
        let mut keyed: Vec<(u64, u64)> = files
            .map(|file| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33, file)
            })
            .collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, file)| file).collect()
    }

    /// As ImageNet, a twentieth of its files.
    const FILES: u64 = 64_000;

    #[test]
    fn simulation_of_a_shuffled_epoch() {
        let epoch = Simulation::new(FILES, 1).read_all(shuffled(0..FILES));
        assert_eq!(epoch.fetched(), 1.0);
        // An eighth is read until there is enough evidence; of it, what was fetched ahead is used.
        assert!((0.08..0.125).contains(&epoch.waited()), "{}", epoch.waited());
        // A small archive is fetched at once.
        let files = SMALL / FILE;
        let epoch = Simulation::new(files, 1).read_all(shuffled(0..files));
        assert!(epoch.waits <= 2 * READS_MIN as u64, "{}", epoch.waits);
    }

    #[test]
    fn simulation_of_one_class() {
        for (size, times) in [(FILES / 1000, 1), (FILES / 100, 1), (FILES / 20, 3)] {
            let class = FILES / 3..FILES / 3 + size;
            let order = shuffled(class.clone()).repeat(times);
            let job = Simulation::new(FILES, 1).read_all(order);
            assert!(job.fetched() <= 1.02, "{size}: {}", job.fetched());
            assert!(job.waited() < 0.25, "{size}: {}", job.waited());
        }
    }

    /// Until they can be told apart, they look like files all over the archive.
    #[test]
    fn simulation_of_some_classes() {
        let classes = [3, 17, 40, 41, 77].map(|class| class * FILES / 100);
        let files = classes.iter().flat_map(|&start| start..start + FILES / 100);
        let order = shuffled(0..5 * FILES / 100);
        let files: Vec<_> = files.collect();
        let job = Simulation::new(FILES, 1).read_all(order.iter().map(|&nth| files[nth as usize]));
        let wasted =
            job.fetched() * (order.len() as u64 * FILE) as f64 - order.len() as f64 * FILE as f64;
        assert!(wasted <= SMALL as f64, "{wasted}");
        assert!(job.waited() < 0.2, "{}", job.waited());
    }

    /// What is fetched without evidence is left out by an archive that is large.
    #[test]
    fn simulation_of_a_part_at_random() {
        for part in [100, 20, 10] {
            let order = shuffled(0..20 * FILES).into_iter().take((20 * FILES / part) as usize);
            let job = Simulation::new(20 * FILES, 1).read_all(order);
            assert!(job.fetched() <= 3.0, "1/{part}: {}", job.fetched());
        }
    }

    #[test]
    fn simulation_of_a_job_on_several_nodes() {
        let nodes = 16;
        let order = shuffled(0..FILES).into_iter().take((FILES / nodes) as usize);
        let job = Simulation::new(FILES, nodes).read_all(order);
        assert!(job.fetched() <= 1.15, "{}", job.fetched());
    }

    #[test]
    fn the_share_of_a_node_is_estimated_without_a_bias() {
        // Owners that look random.
        let owns = |part: u64, nodes: u64| {
            part.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 < (1 << 32) / nodes
        };
        for (nodes, len) in [(4, 1 << 30), (4, 1 << 40), (16, 140 << 30), (64, 1 << 40)] {
            let run = |offset: u64| {
                let part = offset / PART;
                let is_own = owns(part, nodes);
                let mut end = part + 1;
                while end * PART < len && owns(end, nodes) == is_own {
                    end += 1;
                }
                Run { end: end * PART, is_own }
            };
            let estimated = own_runs(&(0..len), run).len * nodes as f64 / len as f64;
            assert!((0.7..1.4).contains(&estimated), "{nodes} {len}: {estimated}");
        }
    }

    #[test]
    fn a_region_of_several_archives_is_looked_at_once_for_each() {
        // Each archive begins at a granule, and ends before the next one.
        const ARCHIVE: u64 = 7 * GRANULE;
        let looks = std::cell::Cell::new(0);
        let run = |offset: u64| {
            looks.set(looks.get() + 1);
            Run { end: offset / ARCHIVE * ARCHIVE + ARCHIVE - 5000, is_own: true }
        };
        let found = own_runs(&(0..100 * ARCHIVE), run);
        assert!(looks.get() <= 101, "{}", looks.get());
        assert_eq!(found.runs, std::slice::from_ref(&(0..100 * ARCHIVE)));
        assert!(!found.is_shared);
    }

    /// Nodes that share what they read: one owns each `NODES`th part, and sees all reads of it. Of
    /// what others own, its own readers read another share in each epoch. Returns the shares of all
    /// that it fetched ahead after each epoch: of its own bytes and of the others.
    fn together<const NODES: u64>(epochs: u64) -> Vec<(f64, f64)> {
        fn own<const NODES: u64>(offset: u64) -> Run {
            let part = offset / PART;
            Run { end: (part + 1) * PART, is_own: part.is_multiple_of(NODES) }
        }
        let mut job = Simulation::new(FILES, NODES);
        job.run = Some(own::<NODES>);
        let all = (FILES * FILE / GRANULE) as f64;
        let epoch = |epoch| {
            for (nth, file) in (0..).zip(shuffled(0..FILES)) {
                if own::<NODES>(file * FILE).is_own || nth % NODES == epoch {
                    job.read(file);
                }
            }
            (job.ahead as f64 / all, job.of_others as f64 / all)
        };
        (0..epochs).map(epoch).collect()
    }

    #[test]
    fn simulation_of_nodes_that_read_together() {
        let four = together::<4>(2);
        let sixteen = together::<16>(3);
        let many = together::<100>(3);
        for (nodes, epochs) in [(4.0, &four), (16.0, &sixteen), (100.0, &many)] {
            assert!(
                epochs.iter().all(|(own, _)| (0.6..=1.0).contains(&(own * nodes))),
                "{epochs:?}"
            );
            // Nothing of others in the first epoch, and only what its own readers left.
            assert_eq!(epochs[0].1, 0.0, "{nodes}");
        }
        assert!(four[1].1 > 0.4, "{four:?}");
        assert!(sixteen[2].1 > 0.7, "{sixteen:?}");
        // A later epoch needs a hundredth.
        assert_eq!(many[2].1, 0.0, "{many:?}");
    }

    #[test]
    fn nodes_do_not_begin_at_the_same_place_with_what_others_own() {
        let begins = |_| {
            let mut job = Simulation::new(FILES, 4);
            job.run = Some(|offset| {
                let part = offset / PART;
                Run { end: (part + 1) * PART, is_own: part.is_multiple_of(4) }
            });
            shuffled(0..FILES).into_iter().take(FILES as usize / 2).for_each(|file| job.read(file));
            let region = job.demand.regions.iter().find(|region| !region.is_own);
            region.unwrap().range.start
        };
        let begins: Vec<_> = (0..8).map(begins).collect();
        assert!(begins.iter().any(|begin| *begin != begins[0]), "{begins:?}");
    }

    #[test]
    fn files_share_granules() {
        let of = |read: Range<u64>| density(&[read.clone(), read]);
        assert_eq!(of(0..GRANULE), 1.0);
        assert_eq!(of(5..GRANULE / 2 + 5), 0.5);
        assert_eq!(of(GRANULE - 1..GRANULE + 1) * GRANULE as f64, 1.0);
    }

    #[test]
    fn simulation_of_two_passes_over_a_part() {
        let part = shuffled(FILES / 2..FILES * 3 / 4);
        let job = Simulation::new(FILES, 1).read_all(part.repeat(2));
        assert!(job.fetched() <= 0.51, "{}", job.fetched());
    }

    /// A shard is read in order, and another one far away then.
    #[test]
    fn simulation_of_reads_in_order() {
        let shards = [7, 50, 20].map(|shard| shard * 640..(shard + 1) * 640);
        let job = Simulation::new(FILES, 1).read_all(shards.into_iter().flatten());
        assert!(job.fetched() <= 1.02, "{}", job.fetched());
    }

    #[test]
    fn a_reader_that_moves_on_leaves_nothing_behind() {
        let mut job = Simulation::new(FILES, 1).read_all(shuffled(0..6400).into_iter().take(600));
        let before = job.ahead;
        for file in shuffled(FILES / 2..FILES / 2 + 640) {
            job.read(file);
        }
        let more = job.ahead - before;
        assert!(more <= 640 * FILE / GRANULE + 6400 * FILE / GRANULE, "{more}");
        assert!(job.demand.regions.iter().all(|region| region.range.start >= FILES / 2 * FILE));
    }

    #[test]
    fn a_few_slow_reads_are_no_reason() {
        let first = FirstWaits::default();
        assert!((0..64).all(|nth| first.is_sampling() && !first.note(nth % 6 == 0)));
        assert!(!first.is_sampling());
        first.begin();
        assert_eq!((0..20).position(|_| first.note(true)), Some(7));
        let often = FirstWaits::default();
        assert_eq!((0..40).position(|nth| often.note(nth % 4 == 0)), Some(28));
    }

    #[test]
    fn regions_end_at_gaps_that_are_not_chance() {
        let unused = Arc::new(Granules::new(1 << 40).unwrap());
        let mut demand = Demand::new(unused, 1);
        let read = |offset: u64| offset..offset + 1000;
        // Far from each other: too few to say anything.
        for nth in 0..READS_MIN as u64 - 1 {
            demand.note(read(nth << 30));
        }
        demand.look(&Granules::new(1 << 40).unwrap(), alone, |_| 1);
        assert_eq!(demand.regions, []);
        demand.note(read(7 << 30));
        demand.look(&Granules::new(1 << 40).unwrap(), alone, |_| 1);
        assert_eq!(demand.regions.len(), 1);
        let mut demand = Demand::new(Arc::new(Granules::new(1 << 40).unwrap()), 1);
        for start in [1_u64 << 30, 500 << 30] {
            (0..40).for_each(|nth| demand.note(read(start + nth * 1_000_000)));
        }
        demand.look(&Granules::new(1 << 40).unwrap(), alone, |_| 1);
        let found: Vec<_> = demand.regions.iter().map(|region| region.range.clone()).collect();
        let region = |start: u64| start..start + 39_001_000;
        assert_eq!(found, [region(1 << 30), region(500 << 30)]);
        assert_eq!(widened(5..100, 10, 120), 0..100);
        assert_eq!(widened(20..100, 10, 119), 20..100);
        assert_eq!(widened(20..100, 8, 120), 0..120);
        assert_eq!(demand.regions[0].left, SMALL);
    }
}
