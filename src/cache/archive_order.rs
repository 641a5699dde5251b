//! Detects programs that read whole files in the order of the archive, and decides how far to read
//! ahead beyond the end of a file.
//!
//! `cp -r`, `tar` and `cat *` often read files in the order in which the archive has them. Each
//! file may be one READ, so `Readahead`, which knows readers by their file, sees no second one.
//! Here a reader is known by offsets in the archive: a stream is a run of files, each of which was
//! read completely before the next one began close behind it.
//!
//! A program that reads files in random order meets the file behind its last one by chance. One
//! such step therefore announces nothing, and the readahead never exceeds the bytes that the stream
//! has read in order. A stream that skips bytes loses several times as many of its readahead.
//!
//! The table has room for the readers of a node. A READ that finds it locked is not recorded, so no
//! READ waits for another one.

use std::array;
use std::ops::Range;

use crate::sync::{Mutex, OnceLock};

/// Streams of a tree. A new stream replaces the one that has been idle longest.
const STREAMS: usize = 32;

/// Files that must follow the first file of a stream before anything is read ahead.
const FOLLOWERS_MIN: u64 = 2;

/// The longest readahead, in bytes: 16 requests of 128 KiB, the default readahead of Linux.
const AHEAD_MAX: u64 = 2 << 20;

/// The shortest readahead that is worth a request, in bytes, once a stream has a long readahead.
const REQUEST_MIN: u64 = 128 << 10;

/// The largest gap between two files of a stream, in bytes, beyond which the next file must lie in
/// the range that was read ahead: a block of another file or of fragments.
const GAP_MAX: u64 = 128 << 10;

/// The largest gap that is not counted as skipped, in bytes: padding and headers of a tar.
const HEADERS_MAX: u64 = 4 << 10;

/// Bytes that a stream loses of its readahead for each byte that it skips.
const SKIP_COST: u64 = 4;

/// How far from the last one a READ of the same file may be, in bytes. The kernel sends several
/// READs of one reader together, and they may arrive out of order.
const DISORDER: u64 = 512 << 10;

/// The readers of whole files of a tree.
#[derive(Debug, Default)]
pub struct ArchiveOrder {
    /// Held for one pass over the streams, and never waited for. Allocated when a file is first
    /// read, because a mount may have thousands of archives.
    table: OnceLock<Box<Mutex<Table>>>,
}

#[derive(Debug)]
struct Table {
    streams: [Stream; STREAMS],
    /// Counts READs, to find the stream that has been idle longest.
    clock: u64,
}

/// One reader. All offsets are in the archive.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Start of the file that it reads.
    file: u64,
    /// End of that file, if it is known yet.
    end: Option<u64>,
    /// Bytes of that file that were read.
    read: u64,
    /// Offset of the next READ; 0 if the slot is free.
    next: u64,
    /// Bytes that it has read in order, at most `AHEAD_MAX`.
    run: u64,
    /// Files that followed the first one.
    followers: u64,
    /// Offset up to which readahead was requested.
    requested: u64,
    /// Clock value of its last READ.
    last: u64,
}

impl ArchiveOrder {
    /// Records a READ of `range`, which belongs to a file that starts at `file` and ends at `end`,
    /// if that is known. All are offsets in the archive. Returns the range to read ahead now, if
    /// any; it may extend past the end of the archive.
    pub fn observe(&self, file: u64, range: Range<u64>, end: Option<u64>) -> Option<Range<u64>> {
        let mut table = self.table.get_or_init(Box::default).try_lock()?;
        table.clock = table.clock.wrapping_add(1);
        let clock = table.clock;
        let stream = table.stream_of(file);
        match stream {
            Some(stream) if stream.file == file => stream.continue_file(&range),
            Some(stream) => stream.begin_next(file, &range),
            None => *table.oldest()? = Stream::new(file, &range),
        }
        let stream = table.stream_of(file)?;
        stream.end = end.or(stream.end);
        stream.last = clock;
        stream.ahead()
    }
}

impl Default for Table {
    fn default() -> Self {
        Self { streams: array::from_fn(|_| Stream::default()), clock: 0 }
    }
}

impl Table {
    /// The stream that reads the file at `file`, or else the one that ends closest before it.
    fn stream_of(&mut self, file: u64) -> Option<&mut Stream> {
        let is_next = |stream: &Stream| stream.is_followed_by(file);
        let closest = |stream: &&mut Stream| (stream.file == file, stream.next);
        let found = self.streams.iter_mut().filter(|stream| stream.next != 0);
        found.filter(|stream| stream.file == file || is_next(stream)).max_by_key(closest)
    }

    fn oldest(&mut self) -> Option<&mut Stream> {
        let clock = self.clock;
        self.streams.iter_mut().max_by_key(|stream| clock.wrapping_sub(stream.last))
    }
}

impl Stream {
    fn new(file: u64, range: &Range<u64>) -> Self {
        let run = len(range);
        Self { file, read: run, next: range.end, run: run.min(AHEAD_MAX), ..Self::default() }
    }

    /// Whether the file at `file` is the next one of this stream.
    fn is_followed_by(&self, file: u64) -> bool {
        let Some(end) = self.end else {
            return false;
        };
        // Pages that the kernel still had were not requested, so an eighth may be missing.
        let whole = end.saturating_sub(self.file);
        let is_complete = self.read >= whole - whole / 8;
        let last = end.saturating_add(GAP_MAX).max(self.requested);
        is_complete && (end..=last).contains(&file)
    }

    /// Records a READ of the next file, which starts at `file`.
    fn begin_next(&mut self, file: u64, range: &Range<u64>) {
        let gap = file.saturating_sub(self.end.unwrap_or(file));
        let skipped = gap.saturating_sub(HEADERS_MAX);
        self.run = self.run.saturating_sub(skipped.saturating_mul(SKIP_COST));
        self.followers = if self.run == 0 { 0 } else { self.followers.saturating_add(1) };
        (self.file, self.end, self.read, self.next) = (file, None, 0, file);
        self.continue_file(range);
    }

    /// Records a READ of the same file.
    fn continue_file(&mut self, range: &Range<u64>) {
        if self.next.abs_diff(range.start) > DISORDER {
            (self.run, self.followers) = (0, 0);
        }
        self.read = self.read.saturating_add(len(range));
        self.run = self.run.saturating_add(len(range)).min(AHEAD_MAX);
        self.next = self.next.max(range.end);
    }

    /// The range to read ahead now.
    fn ahead(&mut self) -> Option<Range<u64>> {
        if self.followers < FOLLOWERS_MIN {
            return None;
        }
        let start = self.requested.max(self.next);
        let end = self.next.saturating_add(self.run);
        if end.saturating_sub(start) < (self.run / 2).clamp(1, REQUEST_MIN) {
            return None;
        }
        self.requested = end;
        Some(start..end)
    }
}

fn len(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: u64 = 512;
    const LEN: u64 = 80 << 10;
    /// From the start of a file to that of the next one.
    const STEP: u64 = LEN + HEADER;

    /// Reads file `number` with one READ. Returns the range to read ahead.
    fn read(order: &ArchiveOrder, number: u64) -> Option<Range<u64>> {
        let file = HEADER + number * STEP;
        order.observe(file, file..file + LEN, Some(file + LEN))
    }

    /// Bytes read ahead for these files.
    fn requested(order: &ArchiveOrder, numbers: impl IntoIterator<Item = u64>) -> u64 {
        numbers.into_iter().filter_map(|number| read(order, number)).map(|range| len(&range)).sum()
    }

    #[test]
    fn readahead_grows_with_files_read_in_order() {
        let order = ArchiveOrder::default();
        let mut end = 0;
        for number in 0..200 {
            let file_end = HEADER + number * STEP + LEN;
            if let Some(range) = read(&order, number) {
                assert_eq!(range.start, end.max(file_end), "nothing is asked twice or left out");
                end = range.end;
            }
            assert!(end <= file_end + (number + 1) * LEN, "{number}: more than was read");
            assert!(end <= file_end + AHEAD_MAX, "{number}: beyond the longest readahead");
            assert!(number >= 2 || end == 0, "{number}: two files may be neighbors by chance");
            assert!(number < 4 || end >= file_end + LEN, "{number}: the next file is missing");
            assert!(number < 60 || end >= file_end + AHEAD_MAX - REQUEST_MIN, "{number}");
        }
    }

    #[test]
    fn sees_each_of_several_readers() {
        let order = ArchiveOrder::default();
        let mut total = 0;
        for step in 0..40 {
            total += requested(&order, (0..8).map(|reader| reader * 1000 + step));
        }
        assert!(total >= 8 * (37 * LEN), "{total}");
        assert!(total <= 8 * (40 * STEP + AHEAD_MAX), "{total}");
    }

    #[test]
    fn requests_almost_nothing_for_files_in_random_order() {
        let (order, mut state) = (ArchiveOrder::default(), 7_u64);
        let numbers = (0..20_000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % 1000
        });
        let total = requested(&order, numbers.collect::<Vec<_>>());
        assert!(total <= 20_000 * LEN / 50, "{total}");
    }

    #[test]
    fn a_jump_ends_the_readahead() {
        let order = ArchiveOrder::default();
        assert!(requested(&order, 0..50) > 0);
        assert_eq!(requested(&order, [500, 400, 300, 502, 402]), 0);
        assert_eq!(requested(&order, [600, 601]), 0, "a new stream starts from nothing");
        assert!(requested(&order, [602]) > 0);
    }

    #[test]
    fn files_that_are_read_in_part_are_no_stream() {
        let order = ArchiveOrder::default();
        for number in 0..100 {
            let file = HEADER + number * STEP;
            let end = Some(file + LEN);
            assert_eq!(order.observe(file, file..file + 4096, end), None);
            assert_eq!(order.observe(file, file + LEN - 4096..file + LEN, end), None);
        }
    }

    #[test]
    fn a_few_files_of_many_are_no_stream() {
        let order = ArchiveOrder::default();
        assert_eq!(requested(&order, (0..100).map(|number| number * 2)), 0);
        // A stream that starts to skip files dies within its readahead.
        assert!(requested(&order, 1000..1100) > 0);
        assert!(requested(&order, (110..200).map(|number| number * 10)) <= AHEAD_MAX);
    }

    #[test]
    fn a_stream_outlives_a_read_that_was_not_recorded() {
        let order = ArchiveOrder::default();
        let lost = |number: &u64| !number.is_multiple_of(10);
        let total = requested(&order, (0..200).filter(lost));
        assert!(total >= 150 * LEN, "{total}");
    }

    #[test]
    fn a_locked_table_is_not_waited_for() {
        let order = ArchiveOrder::default();
        read(&order, 0);
        let table = order.table.get().unwrap().lock();
        assert_eq!(read(&order, 1), None);
        drop(table);
    }

    #[test]
    fn reads_of_one_file_may_be_out_of_order() {
        const PART: u64 = 128 << 10;
        let order = ArchiveOrder::default();
        let mut total = 0;
        for number in 0..40_u64 {
            let file = HEADER + number * (3 * PART + HEADER);
            for part in [1, 0, 2] {
                let range = file + part * PART..file + (part + 1) * PART;
                let end = (part == 2).then_some(range.end);
                total += order.observe(file, range, end).map_or(0, |range| len(&range));
            }
        }
        assert!(total >= 36 * 3 * PART, "{total}");
    }

    #[test]
    fn jumps_within_a_large_file_request_nothing() {
        let order = ArchiveOrder::default();
        assert!(requested(&order, 0..50) > 0);
        let (file, end) = (HEADER + 50 * STEP, Some(1 << 30));
        order.observe(file, file..file + 4096, end);
        let far = |nth: u64| file + nth * 37 % 50 * (10 << 20) + (3 << 20);
        for nth in 0..100 {
            let range = far(nth)..far(nth) + 4096;
            assert_eq!(order.observe(file, range, end), None);
        }
    }
}
