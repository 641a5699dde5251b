//! Detects sequential readers and decides how far to read and decode ahead of each.
//!
//! Invariant: readahead never exceeds the bytes that the reader has read in order so far. So a
//! wrong guess at most doubles the work.
//!
//! There is no OPEN request (`fuse` says why), so a reader is known only by its reads: the next
//! READ of a stream starts where the last one ended. The kernel has several READs of one reader in
//! flight, and event loops receive them concurrently. So large READs, which come from the kernel's
//! own readahead, may arrive slightly out of order. A small READ must follow directly: that is how
//! a sequential reader differs from a random one.

use std::array;
use std::ops::Range;

use crate::sync::{AtomicU64, Mutex, OnceLock, Ordering};

/// The longest readahead, in bytes: enough for one reader to keep several requests to a slow file
/// system, or several CPU cores, busy.
const AHEAD_MAX: u64 = 8 << 20;

/// The number of readers whose readahead fits in the cache, so that blocks decoded ahead for this
/// many are not evicted before they are read.
const READERS: u64 = 64;

/// Sets of streams; a file belongs to one.
const SETS: usize = 16;

/// Streams per set. A new stream replaces the one that has been idle longest.
const WAYS: usize = 8;

/// The smallest READ, in bytes, that is taken for the kernel's readahead and not for the size that
/// the reader requested.
const LARGE: u64 = 32 << 10;

/// The largest gap between two reads of one stream, in bytes: headers between the members of a tar
/// that is read as a whole. It is less than a page, so that random page reads match only by chance.
const GAP: u64 = 4095;

/// How far out of order a large READ may be, in multiples of its length.
const DISORDER: u64 = 2;

/// How far apart READs of a file may be that the kernel sends together, in bytes.
const TOGETHER: u64 = 1 << 20;

/// The read streams of a tree.
#[derive(Debug)]
pub struct Readahead {
    /// Each lock guards one set, is the only one held at a time, and for a few comparisons.
    /// Allocated when a file is first read in parts, because a mount may have thousands of
    /// archives.
    sets: OnceLock<Box<[Mutex<Set>; SETS]>>,
    /// The longest readahead, in bytes.
    distance_max: AtomicU64,
}

#[derive(Debug, Default)]
struct Set {
    streams: [Stream; WAYS],
    /// Counts reads, to find the stream that has been idle longest.
    clock: u64,
}

/// One reader in one file.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    file: u64,
    /// Offset of its next READ; 0 if the slot is free.
    next: u64,
    /// Bytes it has read in order.
    run: u64,
    /// Offset up to which readahead was requested.
    requested: u64,
    /// Clock value of its last read.
    last: u64,
}

impl Readahead {
    /// Streams that decode ahead into a cache of `capacity` bytes. A capacity of 0 disables
    /// readahead.
    pub fn new(capacity: u64) -> Self {
        Self { sets: OnceLock::new(), distance_max: AtomicU64::new(furthest(capacity)) }
    }

    /// Streams that read ahead into the page cache, which gives way to other pages by itself.
    pub fn furthest() -> Self {
        Self::new(AHEAD_MAX.saturating_mul(READERS))
    }

    /// Changes the capacity of the cache, in bytes.
    pub fn set_capacity(&self, capacity: u64) {
        self.distance_max.store(furthest(capacity), Ordering::Relaxed);
    }

    /// Records a read of `range` in `file`, which has `len` bytes. Returns the range to decode
    /// ahead now, if any.
    pub fn observe(&self, file: u64, range: Range<u64>, len: u64) -> Option<Range<u64>> {
        // A file that is read in one go has no next read, and most files are.
        let distance_max = self.distance_max.load(Ordering::Relaxed);
        if distance_max == 0 || (range.start == 0 && range.end >= len) {
            return None;
        }
        let mut set = self.set(file).lock();
        set.clock = set.clock.wrapping_add(1);
        let clock = set.clock;
        let size = range.end.saturating_sub(range.start);
        if let Some(stream) = set.streams.iter_mut().find(|stream| stream.continues(file, &range)) {
            stream.last = clock;
            stream.run = stream.run.saturating_add(size);
            stream.next = stream.next.max(range.end);
            return stream.ahead(distance_max, len);
        }
        // The kernel sends the first READs of a file together. What a later one has requested is
        // not requested again: it may have been served and dropped by now.
        let together = range.end..range.end.saturating_add(TOGETHER);
        let others = set.streams.iter().filter(|stream| stream.file == file);
        let reached = others.map(|stream| stream.next).filter(|next| together.contains(next));
        let reached = reached.max().unwrap_or(0);
        let idle = |stream: &&mut Stream| clock.wrapping_sub(stream.last);
        let oldest = set.streams.iter_mut().max_by_key(idle)?;
        let requested = range.end.max(reached.min(len));
        *oldest = Stream { file, next: range.end, run: size, requested, last: clock };
        // A reader that starts at offset 0 with a full kernel readahead will probably continue. A
        // reader that starts elsewhere has to prove it first.
        let is_start = range.start == 0 && size >= LARGE;
        if is_start { oldest.ahead(distance_max, len) } else { None }
    }

    /// The part of `range` of `file` that a stream has not read yet, if any.
    pub fn wanted(&self, file: u64, range: Range<u64>) -> Option<Range<u64>> {
        let set = self.set(file).lock();
        let is_ahead = |stream: &&Stream| {
            stream.file == file && stream.next < range.end && range.start < stream.requested
        };
        let next = set.streams.iter().filter(is_ahead).map(|stream| stream.next).min()?;
        Some(range.start.max(next)..range.end)
    }

    fn set(&self, file: u64) -> &Mutex<Set> {
        let sets = self.sets.get_or_init(|| Box::new(array::from_fn(|_| Mutex::default())));
        let mixed = file.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &sets[usize::try_from(mixed).unwrap_or(0) % SETS]
    }
}

/// The longest readahead with a cache of `capacity` bytes, in bytes.
fn furthest(capacity: u64) -> u64 {
    (capacity / READERS).min(AHEAD_MAX)
}

impl Stream {
    /// Whether a read of `range` continues this stream.
    fn continues(&self, file: u64, range: &Range<u64>) -> bool {
        if self.file != file || self.next == 0 {
            return false;
        }
        let size = range.end.saturating_sub(range.start);
        let slack = if size >= LARGE { size.saturating_mul(DISORDER) } else { 0 };
        let early = self.next.saturating_sub(range.start);
        let late = range.start.saturating_sub(self.next);
        early <= slack && late <= slack.max(GAP)
    }

    /// The range to decode ahead now. It is at least half the readahead distance, to avoid many
    /// small requests.
    fn ahead(&mut self, distance_max: u64, len: u64) -> Option<Range<u64>> {
        let distance = self.run.min(distance_max);
        let start = self.requested.max(self.next);
        let end = self.next.saturating_add(distance).min(len);
        let due = end.saturating_sub(start);
        if due == 0 || (due < distance / 2 && end < len) {
            return None;
        }
        self.requested = end;
        Some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u64 = 128 << 10;
    const MOST: u64 = 8 * READ;
    const CAPACITY: u64 = MOST * READERS;
    const LEN: u64 = 1 << 30;

    /// Performs the READs with these numbers, of `READ` bytes each; returns the bytes requested
    /// ahead.
    fn requested(streams: &Readahead, numbers: impl IntoIterator<Item = u64>) -> u64 {
        let ahead = |number| {
            let range = streams.observe(1, number * READ..(number + 1) * READ, LEN);
            range.map_or(0, |range| range.end - range.start)
        };
        numbers.into_iter().map(ahead).sum()
    }

    #[test]
    fn readahead_grows_with_a_sequential_reader() {
        let streams = Readahead::new(CAPACITY);
        let mut end = READ;
        for number in 0..100 {
            let read = number * READ..(number + 1) * READ;
            if let Some(range) = streams.observe(1, read.clone(), LEN) {
                assert_eq!(range.start, end.max(read.end), "nothing is asked twice or left out");
                end = range.end;
            }
            let distance = end - read.end;
            assert!(distance <= (read.end).min(MOST), "{number}: {distance}");
            assert!(number < 8 || distance >= MOST / 2, "{number}: {distance}");
        }
    }

    #[test]
    fn takes_slightly_reordered_reads_for_one_stream() {
        let streams = Readahead::new(CAPACITY);
        let order = [0, 1, 3, 2, 5, 4, 6, 8, 7, 10, 9, 11];
        assert!(requested(&streams, order) >= MOST);
        let streams_used = |streams: &Readahead| {
            let set = streams.set(1).lock();
            set.streams.iter().filter(|stream| stream.next != 0).count()
        };
        assert_eq!(streams_used(&streams), 1);
    }

    #[test]
    fn requests_nothing_for_random_reads() {
        let streams = Readahead::new(CAPACITY);
        let mut state = 7_u64;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Never at the start of the file.
            let start = 4096 * (1 + (state >> 33) % (LEN / 4096));
            assert_eq!(streams.observe(1, start..start + 4096, LEN), None);
        }
    }

    #[test]
    fn never_requests_more_than_was_read_in_order() {
        let streams = Readahead::new(CAPACITY);
        let mut total = 0;
        // Runs of eight sequential reads, far apart.
        for run in 1..50 {
            total += requested(&streams, (0..8).map(|nth| run * 100 + nth));
        }
        // The reads themselves, and at most as much behind them.
        assert!(total <= 49 * 16 * READ, "{total}");
    }

    #[test]
    fn a_read_of_the_whole_file_leaves_no_trace() {
        let streams = Readahead::new(CAPACITY);
        assert_eq!(streams.observe(1, 0..READ, READ), None);
        assert_eq!(streams.set(1).lock().clock, 0);
    }

    #[test]
    fn the_first_read_of_a_small_file_requests_the_rest() {
        let streams = Readahead::new(CAPACITY);
        let rest = READ..READ + 1000;
        assert_eq!(streams.observe(1, 0..READ, rest.end), Some(rest.clone()));
        assert_eq!(streams.wanted(1, rest.clone()), Some(rest.clone()));
        let (part, last) = (rest.start..rest.start + 300, rest.start + 300..rest.end);
        assert_eq!(streams.observe(1, part, rest.end), None);
        assert_eq!(streams.wanted(1, rest.clone()), Some(last.clone()));
        assert_eq!(streams.observe(1, last, rest.end), None);
        assert_eq!(streams.wanted(1, rest), None, "the reader has passed it");
    }

    #[test]
    fn a_cache_of_zero_bytes_disables_readahead() {
        let streams = Readahead::new(0);
        assert_eq!(requested(&streams, 0..100), 0);
    }

    #[test]
    fn a_late_first_read_requests_only_what_no_other_read_has_requested() {
        let streams = Readahead::new(CAPACITY);
        let len = 8 * READ;
        // Too far apart to be one stream.
        assert_eq!(streams.observe(1, 4 * READ..5 * READ, len), None);
        assert_eq!(streams.observe(1, 0..READ, len), None);
        assert_eq!(streams.observe(1, READ..2 * READ, len), None);
        // Another reader of the same file, far ahead, has not read what is in between.
        assert_eq!(streams.observe(3, 100 * READ..101 * READ, LEN), None);
        assert_eq!(streams.observe(3, 0..READ, LEN), Some(READ..2 * READ));
        // The same in another file, whose READs arrive in order.
        assert_eq!(streams.observe(2, 0..READ, len), Some(READ..2 * READ));
    }

    #[test]
    fn a_small_first_read_requests_nothing() {
        let streams = Readahead::new(CAPACITY);
        assert_eq!(streams.observe(1, 0..16 << 10, LEN), None);
    }

    #[test]
    fn tells_apart_several_readers_of_one_file() {
        let streams = Readahead::new(CAPACITY);
        let mut total = 0;
        for step in 0..16 {
            for reader in 0..4 {
                total += requested(&streams, [1 + reader * 1000 + step]);
            }
        }
        assert!(total >= 4 * 16 * READ, "{total}");
    }
}
