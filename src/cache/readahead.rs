//! Who reads a file in order, and how far ahead of each reader to decode.
//!
//! Owns the streams: where each reader will go on, and up to where was asked ahead of it. Leaves
//! decoding ahead to `workers` and those who know the format. Invariant: what is asked ahead of a
//! reader is at most what it has read in order so far, so a guess that proves wrong never more than
//! doubles the work.
//!
//! There is no OPEN request (`fuse` tells why), so a reader is known only by what it reads: the
//! next READ of a stream starts where the last one ended. The kernel has more than one READ of a
//! reader under way, and event loops take them side by side; so large ones, which are of the
//! kernel's own readahead, may come a little out of order. A small one must come right behind: that
//! is what tells a reader in order from one at random places.

use std::array;
use std::ops::Range;

use crate::sync::{AtomicU64, Mutex, OnceLock, Ordering};

/// The furthest that is decoded ahead of a reader in order, bytes: enough to keep several reads of
/// a slow file system, or several processors, busy for one reader.
const AHEAD_MAX: u64 = 8 << 20;

/// Readers whose shares a cache has room for: what was decoded ahead of so many is not driven out
/// before it is read.
const READERS: u64 = 64;

/// Sets of streams; a file belongs to one.
const SETS: usize = 16;

/// Streams of one set. The one that was quiet for longest makes room.
const WAYS: usize = 8;

/// What a READ has at least if it is of the kernel's readahead rather than as long as the reader
/// asked, bytes.
const LARGE: u64 = 32 << 10;

/// What may lie between two reads of one stream, bytes: headers between the members of a tar that
/// is read as one. Less than a page, so that pages at random places fit no better than by chance.
const GAP: u64 = 4095;

/// How many lengths of a large READ it may come early or late by.
const DISORDER: u64 = 2;

/// The streams of a tree.
#[derive(Debug)]
pub struct Readahead {
    /// Each lock guards one set; the only one held at a time, for a few comparisons. Made when the
    /// first file is read in parts, since a mount may have thousands of archives.
    sets: OnceLock<Box<[Mutex<Set>; SETS]>>,
    /// The furthest to go ahead of a reader, bytes.
    most: AtomicU64,
}

#[derive(Debug, Default)]
struct Set {
    streams: [Stream; WAYS],
    /// Counts reads, to tell which stream was quiet for longest.
    clock: u64,
}

/// One reader in one file.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    file: u64,
    /// Where its next READ starts; 0 if there is no such reader.
    next: u64,
    /// Bytes it has read in order.
    run: u64,
    /// Up to where was asked ahead of it.
    asked: u64,
    /// When it read last.
    last: u64,
}

impl Readahead {
    /// Streams that decode ahead into a cache of `capacity` bytes. None of 0 bytes.
    pub fn new(capacity: u64) -> Self {
        Self { sets: OnceLock::new(), most: AtomicU64::new(furthest(capacity)) }
    }

    /// The cache has `capacity` bytes from now on.
    pub fn set_capacity(&self, capacity: u64) {
        self.most.store(furthest(capacity), Ordering::Relaxed);
    }

    /// Takes note of a read of `range` in `file`, which has `len` bytes; returns what to decode
    /// ahead of it now, if anything.
    pub fn observe(&self, file: u64, range: Range<u64>, len: u64) -> Option<Range<u64>> {
        // A file that is read at once has no next read, and most are.
        let most = self.most.load(Ordering::Relaxed);
        if most == 0 || (range.start == 0 && range.end >= len) {
            return None;
        }
        let mut set = self.set(file).lock();
        set.clock = set.clock.wrapping_add(1);
        let clock = set.clock;
        let size = range.end.saturating_sub(range.start);
        if let Some(stream) = set.streams.iter_mut().find(|stream| stream.goes_on(file, &range)) {
            stream.last = clock;
            stream.run = stream.run.saturating_add(size);
            stream.next = stream.next.max(range.end);
            return stream.ahead(most, len);
        }
        let quiet = |stream: &&mut Stream| clock.wrapping_sub(stream.last);
        let oldest = set.streams.iter_mut().max_by_key(quiet)?;
        *oldest = Stream { file, next: range.end, run: size, asked: range.end, last: clock };
        // Who starts at the start with as much as the kernel asks for will go on; whoever starts
        // in the middle has to show it.
        let is_start = range.start == 0 && size >= LARGE;
        if is_start { oldest.ahead(most, len) } else { None }
    }

    /// What of `range` of `file` a reader is still on its way to, if any is.
    pub fn wanted(&self, file: u64, range: Range<u64>) -> Option<Range<u64>> {
        let set = self.set(file).lock();
        let on_its_way = |stream: &&Stream| {
            stream.file == file && stream.next < range.end && range.start < stream.asked
        };
        let next = set.streams.iter().filter(on_its_way).map(|stream| stream.next).min()?;
        Some(range.start.max(next)..range.end)
    }

    fn set(&self, file: u64) -> &Mutex<Set> {
        let sets = self.sets.get_or_init(|| Box::new(array::from_fn(|_| Mutex::default())));
        let mixed = file.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &sets[usize::try_from(mixed).unwrap_or(0) % SETS]
    }
}

/// The furthest to go ahead of a reader, bytes, with a cache of `capacity` bytes.
fn furthest(capacity: u64) -> u64 {
    (capacity / READERS).min(AHEAD_MAX)
}

impl Stream {
    /// Whether a read of `range` is the next of this stream.
    fn goes_on(&self, file: u64, range: &Range<u64>) -> bool {
        if self.file != file || self.next == 0 {
            return false;
        }
        let size = range.end.saturating_sub(range.start);
        let slack = if size >= LARGE { size.saturating_mul(DISORDER) } else { 0 };
        let early = self.next.saturating_sub(range.start);
        let late = range.start.saturating_sub(self.next);
        early <= slack && late <= slack.max(GAP)
    }

    /// What to decode ahead now: in pieces of at least half the distance, not a little each time.
    fn ahead(&mut self, most: u64, len: u64) -> Option<Range<u64>> {
        let distance = self.run.min(most);
        let start = self.asked.max(self.next);
        let end = self.next.saturating_add(distance).min(len);
        let due = end.saturating_sub(start);
        if due == 0 || (due < distance / 2 && end < len) {
            return None;
        }
        self.asked = end;
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

    /// Reads number `numbers`, each of `READ` bytes; what was asked ahead, in bytes.
    fn asked(streams: &Readahead, numbers: impl IntoIterator<Item = u64>) -> u64 {
        let ahead = |number| {
            let range = streams.observe(1, number * READ..(number + 1) * READ, LEN);
            range.map_or(0, |range| range.end - range.start)
        };
        numbers.into_iter().map(ahead).sum()
    }

    #[test]
    fn goes_ahead_of_a_reader_in_order_further_and_further() {
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
    fn takes_reads_that_come_a_little_out_of_order_as_one_stream() {
        let streams = Readahead::new(CAPACITY);
        let order = [0, 1, 3, 2, 5, 4, 6, 8, 7, 10, 9, 11];
        assert!(asked(&streams, order) >= MOST);
        let streams_used = |streams: &Readahead| {
            let set = streams.set(1).lock();
            set.streams.iter().filter(|stream| stream.next != 0).count()
        };
        assert_eq!(streams_used(&streams), 1);
    }

    #[test]
    fn asks_nothing_for_reads_at_random_places() {
        let streams = Readahead::new(CAPACITY);
        let mut state = 7_u64;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Never the start of the file.
            let start = 4096 * (1 + (state >> 33) % (LEN / 4096));
            assert_eq!(streams.observe(1, start..start + 4096, LEN), None);
        }
    }

    #[test]
    fn never_asks_for_more_than_was_read_in_order() {
        let streams = Readahead::new(CAPACITY);
        let mut total = 0;
        // Pieces of eight reads at places far apart.
        for piece in 1..50 {
            total += asked(&streams, (0..8).map(|nth| piece * 100 + nth));
        }
        // What was read itself, and as much behind it.
        assert!(total <= 49 * 16 * READ, "{total}");
    }

    #[test]
    fn a_read_of_the_whole_file_leaves_no_trace() {
        let streams = Readahead::new(CAPACITY);
        assert_eq!(streams.observe(1, 0..READ, READ), None);
        assert_eq!(streams.set(1).lock().clock, 0);
    }

    #[test]
    fn the_rest_of_a_small_file_is_asked_for_with_its_first_read() {
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
    fn nothing_goes_ahead_into_no_cache() {
        let streams = Readahead::new(0);
        assert_eq!(asked(&streams, 0..100), 0);
    }

    #[test]
    fn a_small_first_read_may_be_of_a_header_only() {
        let streams = Readahead::new(CAPACITY);
        assert_eq!(streams.observe(1, 0..16 << 10, LEN), None);
    }

    #[test]
    fn tells_several_readers_of_one_file_apart() {
        let streams = Readahead::new(CAPACITY);
        let mut total = 0;
        for step in 0..16 {
            for reader in 0..4 {
                total += asked(&streams, [1 + reader * 1000 + step]);
            }
        }
        assert!(total >= 4 * 16 * READ, "{total}");
    }
}
