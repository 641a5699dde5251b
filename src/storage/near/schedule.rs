//! What is fetched next, by whom, and how much at once.
//!
//! Readers fetch what they miss at once. The fill follows in the order of the archives, and takes
//! the bandwidth that they leave (`streams`).
//!
//! Invariant: no byte is in two flights.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::demand::{Demand, Region};
use super::granules::{GRANULE, Granules};
use super::streams::{FIRST_PIECE, PIECE, Pace, STREAMS_ALONE, Streams};
use crate::remote::Requester;
use crate::together::Run;

/// How long after its last miss a reader is expected to miss again.
const READER_PAUSE: Duration = Duration::from_millis(100);

/// How long after a reader waited the fill fetches from other nodes as fast as it can.
const READER_NEED: Duration = Duration::from_secs(1);

/// While programs wait for bytes, what is copied for later epochs has its limit divided by this: it
/// costs them the same links and cores, and does not help them yet.
const BESIDE_NEED: u64 = 4;

/// While the fill waits because of its pace, the time between two looks for bytes that this node
/// owns: a look passes all missing parts.
const OWN_INTERVAL: Duration = Duration::from_secs(1);

/// Time until the next attempt after a failure, and after many in a row.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Time between two looks for room.
const ROOM_INTERVAL: Duration = Duration::from_millis(50);

/// Ranges that were announced and wait to be fetched. The oldest are forgotten.
const ANNOUNCED_MAX: usize = 64;

/// What the fill does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It fetches these bytes.
    Fetch(Range<u64>),
    /// It waits for the end of a flight, or until this time.
    Wait(Option<Instant>),
    /// Nothing is left to fetch.
    End,
}

/// The archive that has a byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArchiveFill {
    /// Where it starts and ends in the copy.
    pub(super) start: u64,
    pub(super) end: u64,
    /// The bytes around this one that belong all to this node, or all to others.
    pub(super) run: Run,
    /// How many nodes own it.
    pub(super) nodes: u64,
    /// Whether it is still to be copied.
    pub(super) is_wanted: bool,
    /// Whether all of it is, and not only what was announced.
    pub(super) is_filled: bool,
}

/// Under way and to come. All ranges are in bytes of the copy.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    flights: Vec<(Range<u64>, Requester, Instant)>,
    /// When the last flight of a reader ended. Initially the time of creation, because opening the
    /// archives reads tables.
    last_reader: Option<Instant>,
    /// Whether readers are programs. Before, the archives are opened.
    pub(super) is_served: bool,
    /// When a program on this node last waited.
    needed_at: Option<Instant>,
    /// Where the fill looks for missing bytes.
    cursor: u64,
    /// Whether the fill also fetches what other nodes own. First each node fetches its own bytes,
    /// so that all bytes are soon on some node.
    fills_others: bool,
    /// Whether there is room only for what this node owns.
    pub(super) keeps_own_only: bool,
    /// Whether there is room now for what others own and no reader has asked for.
    pub(super) has_room_for_others: bool,
    streams: Streams,
    /// For what other nodes own and no program waits for; `None` without a limit.
    pub(super) pace: Option<Pace>,
    /// When to look for bytes that this node owns, although the fill has come to those of others.
    own_at: Option<Instant>,
    /// Whether someone waits until all bytes are there.
    pub(super) is_awaited: bool,
    announced: VecDeque<Range<u64>>,
    /// Largest number of bytes that the fill fetches with one read: few at first, fewer after a
    /// failure, to find the place that cannot be read, and then more again.
    piece: u64,
    /// Failures in a row, and when to try again.
    failures: u32,
    /// Those of single granules.
    bad_granules: u32,
    retry_at: Option<Instant>,
    /// When to look for room again. Until then nothing is kept.
    room_at: Option<Instant>,
    /// When there was a look for room.
    looked_at: Option<Instant>,
    /// What readers ask for, if the fill fetches ahead of them.
    pub(super) demand: Option<Demand>,
    /// Bytes that may be fetched ahead and not be used yet, and how many there are.
    pub(super) unused_max: u64,
    pub(super) unused: u64,
    /// Whether readers read a region that has no room in memory.
    exceeds_memory: bool,
    /// Whether a piece may contain bytes that are there: reading on in a file costs less than a
    /// second read.
    pub(super) reads_on: bool,
    pub(super) threads: Threads,
    pub(super) stage: Stage,
}

/// Whether `Schedule::pace` applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Paced {
    Yes,
    No,
}

/// The threads of a fill.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Threads {
    /// How many there may be.
    pub(super) most: usize,
    pub(super) running: usize,
    /// Those that wait for something to fetch.
    pub(super) idle: usize,
}

/// How far the fill is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// It fetches.
    #[default]
    Filling,
    /// It was stopped.
    Stopped,
    /// All bytes are there, and a thread closes the sources.
    Closing,
    /// The sources are closed.
    Closed,
}

impl Schedule {
    /// Nothing in flight, and just read.
    pub(super) fn new() -> Self {
        let last_reader = Some(Instant::now());
        Self { last_reader, piece: FIRST_PIECE, unused_max: u64::MAX, ..Self::default() }
    }

    /// The first bytes of `range` that are in no flight. `None` if its first byte is in one.
    pub(super) fn free(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let mut end = range.end;
        for (flight, ..) in &self.flights {
            if flight.contains(&range.start) {
                return None;
            }
            if flight.start > range.start {
                end = end.min(flight.start);
            }
        }
        Some(range.start..end)
    }

    /// Notes that `by` fetches `range`, which is free.
    pub(super) fn begin(&mut self, range: Range<u64>, requester: Requester, now: Instant) {
        self.flights.push((range, requester, now));
    }

    /// Notes the end of the flight of `range`.
    pub(super) fn end(&mut self, range: &Range<u64>, now: Instant) {
        let Some(index) = self.flights.iter().position(|(flight, ..)| flight == range) else {
            return;
        };
        let (_, requester, began) = self.flights.swap_remove(index);
        match requester {
            Requester::Fill => self.streams.note_piece(range.end - range.start, now - began),
            Requester::Reader | Requester::Peer => self.note_request(requester, now),
        }
    }

    /// Notes that a reader of this node or of another one waited for the source until `now`.
    pub(super) fn note_request(&mut self, requester: Requester, now: Instant) {
        self.last_reader = Some(now);
        if requester == Requester::Reader {
            self.note_wait(now);
        }
    }

    /// Notes that a reader waited until `now`, perhaps for the fill.
    pub(super) fn note_wait(&mut self, now: Instant) {
        if self.is_served {
            self.needed_at = Some(now);
        }
    }

    /// Puts `range` before what the fill would fetch.
    pub(super) fn announce(&mut self, range: Range<u64>) {
        if self.announced.contains(&range) {
            return;
        }
        if self.announced.len() == ANNOUNCED_MAX {
            self.announced.pop_front();
        }
        self.announced.push_back(range);
    }

    /// Whether bytes that are fetched at `now` are kept.
    pub(super) fn keeps(&self, now: Instant) -> bool {
        self.room_at.is_none_or(|until| now >= until)
    }

    /// Notes that there is no room for more before `until`.
    pub(super) fn wait_for_room(&mut self, until: Instant) {
        self.room_at = Some(until);
    }

    /// Whether to look for room at `now`.
    pub(super) fn is_look_due(&self, now: Instant) -> bool {
        let is_recent = self.looked_at.is_some_and(|last| now < last + ROOM_INTERVAL);
        self.keeps(now) && !is_recent
    }

    /// Notes that there was a look for room.
    pub(super) fn note_look(&mut self, now: Instant) {
        self.looked_at = Some(now);
    }

    /// Notes that the fill could not fetch `range` of `extent`. Returns whether it could before.
    pub(super) fn fail(&mut self, range: &Range<u64>, extent: ArchiveFill, now: Instant) -> bool {
        let is_one_granule = range.end - range.start <= GRANULE;
        if !is_one_granule {
            // Granule by granule.
            self.piece = GRANULE;
            self.cursor = self.cursor.min(range.start);
        }
        // Threads that failed together count once.
        if self.retry_at.is_some_and(|retry_at| now < retry_at) {
            return false;
        }
        if is_one_granule {
            // Ever further, because all of an archive may be out of reach. What is skipped is tried
            // again after the rest.
            // What this node cannot read must not keep it from what others can.
            self.fills_others |= !self.keeps_own_only;
            let skipped = (GRANULE << self.bad_granules.min(32)) - GRANULE;
            self.bad_granules = self.bad_granules.saturating_add(1);
            self.cursor = self.cursor.max(range.end.saturating_add(skipped).min(extent.end));
        }
        // Own bytes that cannot be read do not hold up those of others.
        self.own_at = Some(now + RETRY_MAX);
        let wait = RETRY_FIRST.saturating_mul(1 << self.failures.min(6)).min(RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + wait);
        self.failures == 1
    }

    /// Notes that the fill fetched something. Returns whether it could not before.
    pub(super) fn succeed(&mut self) -> bool {
        self.piece = self.piece.saturating_mul(2).min(PIECE);
        self.bad_granules = 0;
        self.retry_at = None;
        std::mem::take(&mut self.failures) > 0
    }

    /// What the fill does at `now`. `extent` returns the archive that has a byte.
    pub(super) fn next(
        &mut self,
        granules: &Granules,
        extent: impl Fn(u64) -> ArchiveFill,
        now: Instant,
    ) -> Next {
        if !self.keeps(now) {
            return Next::Wait(self.room_at);
        }
        self.room_at = None;
        let (most, reads_on) = (self.piece, self.reads_on);
        let piece = |start: u64, end: u64| {
            let ArchiveFill { end: archive, run, .. } = extent(start);
            // Whole granules: a region ends where a read does.
            let end = end
                .checked_next_multiple_of(GRANULE)
                .unwrap_or(end)
                .min(archive)
                .min(run.end)
                .min(start.saturating_add(most));
            if reads_on { start..end } else { granules.first_run(&(start..end)).0 }
        };
        let waits = self.retry_at.filter(|&retry_at| now < retry_at);
        if waits.is_some() {
            self.announced.clear();
        }
        while let Some(range) = self.announced.front().cloned() {
            let start = granules.first_missing(range.start);
            let start = start.filter(|&start| {
                let ArchiveFill { run, is_wanted, .. } = extent(start);
                start < range.end && is_wanted && (run.is_own || !self.keeps_own_only)
            });
            let Some(start) = start else {
                self.announced.pop_front();
                continue;
            };
            match self.free(&piece(start, range.end)) {
                Some(free) if self.has_room_for(&free, STREAMS_ALONE) => {
                    self.announced[0].start = free.end;
                    return Next::Fetch(free);
                }
                // It fetches as much as it may now.
                Some(_) => return Next::Wait(None),
                None => self.announced[0].start = self.end_of_flight(start),
            }
        }
        if waits.is_none()
            && let Some(next) = self.next_in_demand(granules, piece, &extent, now)
        {
            return next;
        }
        // What failed is tried again after the rest, so that one bad place does not hold it up.
        let (mut is_left, mut passes) = (false, 0);
        while passes < 2 {
            let mut is_others_left = false;
            while let Some(start) = granules.first_missing(self.cursor) {
                let ArchiveFill { start: archive, end, run, is_wanted, is_filled, .. } =
                    extent(start);
                // It ends where whole pieces would, also after shorter ones: the storage has
                // stripes.
                let whole = (start.saturating_sub(archive) / most + 1).saturating_mul(most);
                let found = piece(start, archive.saturating_add(whole));
                match self.free(&found) {
                    _ if !is_wanted || !is_filled => self.cursor = end.max(start + 1),
                    _ if !run.is_own && !self.fills_others => {
                        is_others_left = true;
                        self.cursor = run.end.max(start + 1);
                    }
                    Some(_) if waits.is_some() => return Next::Wait(waits),
                    Some(free) => {
                        let is_limited = !run.is_own && !self.is_needed(now);
                        let paced = if is_limited { Paced::Yes } else { Paced::No };
                        let is_too_soon = self.pace_wait(paced, now).is_some();
                        if is_too_soon && self.own_at.is_none_or(|at| now >= at) {
                            // Nodes may have ended, and bytes may be readable again.
                            self.own_at = Some(now + OWN_INTERVAL);
                            (self.fills_others, is_left) = (false, false);
                            continue;
                        }
                        let next = self.admit(free, paced, now);
                        if let Next::Fetch(range) = &next {
                            self.cursor = range.end;
                        }
                        return next;
                    }
                    None => {
                        is_left = true;
                        self.cursor = self.end_of_flight(start);
                    }
                }
            }
            self.cursor = 0;
            passes += 1;
            if passes == 2 && is_others_left && !is_left && !self.keeps_own_only {
                // Not at the start: there all nodes would ask the same one.
                self.cursor = RandomState::new().hash_one(now) % granules.len().max(1);
                (self.fills_others, passes) = (true, 0);
            }
        }
        if is_left { Next::Wait(None) } else { Next::End }
    }

    /// Whether memory has no room for another piece, or for what readers read.
    pub(super) fn is_full(&self) -> bool {
        self.exceeds_memory || self.unused.saturating_add(PIECE) > self.unused_max
    }

    /// What to fetch ahead of readers. `None` if nothing, or not now.
    fn next_in_demand(
        &mut self,
        granules: &Granules,
        piece: impl Fn(u64, u64) -> Range<u64>,
        extent: &impl Fn(u64) -> ArchiveFill,
        now: Instant,
    ) -> Option<Next> {
        let mut demand = self.demand.take()?;
        if demand.is_look_due() {
            demand.look(granules, |offset| extent(offset).run, |offset| extent(offset).nodes);
            // In a random order, most files of a larger region would be evicted before their use.
            let regions = demand.regions.len();
            demand
                .regions
                .retain(|Region { range, .. }| range.end - range.start <= self.unused_max);
            self.exceeds_memory = demand.regions.len() < regions;
        }
        let next = demand.regions.iter_mut().find_map(|Region { range, is_own, left }| {
            let is_possible = *is_own || !self.keeps_own_only && self.has_room_for_others;
            while *left > 0 && is_possible {
                let start = granules.first_missing(range.start)?;
                if start >= range.end {
                    *left = 0;
                    break;
                }
                let run = extent(start).run;
                if run.is_own != *is_own {
                    range.start = run.end.max(start + 1);
                    continue;
                }
                let Some(free) = self.free(&piece(start, range.end)) else {
                    range.start = self.end_of_flight(start);
                    continue;
                };
                // Of others only for a later epoch.
                let pace = if *is_own { Paced::No } else { Paced::Yes };
                let next = self.admit(free, pace, now);
                if let Next::Fetch(free) = &next {
                    let new = (1.0 - granules.share(free)) * (free.end - free.start) as f64;
                    *left = left.saturating_sub(new as u64);
                    range.start = free.end;
                }
                return Some(next);
            }
            None
        });
        self.demand = Some(demand);
        next
    }

    /// Whether programs wait for what the fill fetches.
    fn is_needed(&self, now: Instant) -> bool {
        self.is_awaited
            || (self.is_served && self.bytes(Requester::Reader) > 0)
            || self.needed_at.is_some_and(|last| now < last + READER_NEED)
    }

    /// Until when to wait at `now` because of the pace, if at all.
    fn pace_wait(&self, paced: Paced, now: Instant) -> Option<Instant> {
        self.pace.as_ref().filter(|_| paced == Paced::Yes)?.wait(now)
    }

    /// How many bytes of the pace `len` bytes take at `now`.
    fn paced_len(&self, len: u64, now: Instant) -> u64 {
        if self.is_needed(now) { len.saturating_mul(BESIDE_NEED) } else { len }
    }

    /// Notes that of what the fill was to fetch, `len` bytes were there already.
    pub(super) fn note_recovered(&mut self, len: u64, now: Instant) {
        let len = self.paced_len(len, now);
        if let Some(pace) = &mut self.pace {
            pace.give_back(len);
        }
    }

    /// Fetches `range`, or waits if that is too much at once.
    fn admit(&mut self, range: Range<u64>, paced: Paced, now: Instant) -> Next {
        if let Some(until) = self.pace_wait(paced, now) {
            return Next::Wait(Some(until));
        }
        let unused = self.unused.saturating_add(self.bytes(Requester::Fill));
        if unused.saturating_add(range.end - range.start) > self.unused_max {
            return Next::Wait(None);
        }
        let quiet_at = self.last_reader.map(|last| last + READER_PAUSE).filter(|&at| now < at);
        let asked = self.bytes(Requester::Reader) + self.bytes(Requester::Peer);
        let has_readers = asked > 0 || quiet_at.is_some();
        let streams = match (has_readers, paced) {
            (false, _) => STREAMS_ALONE,
            (true, Paced::No) => self.streams.beside_readers(),
            (true, Paced::Yes) => 1.0,
        };
        if !self.has_room_for(&range, streams) {
            return Next::Wait(quiet_at);
        }
        let len = self.paced_len(range.end - range.start, now);
        if let Some(pace) = self.pace.as_mut().filter(|_| paced == Paced::Yes) {
            pace.take(len, now);
        }
        Next::Fetch(range)
    }

    /// Whether the fill may fetch `range` as well, with this many streams.
    fn has_room_for(&self, range: &Range<u64>, streams: f64) -> bool {
        let (filled, len) = (self.bytes(Requester::Fill), range.end - range.start);
        filled == 0 || filled.saturating_add(len) <= (streams * self.piece as f64) as u64
    }

    /// Bytes that `by` is fetching.
    fn bytes(&self, requester: Requester) -> u64 {
        let flights = self.flights.iter().filter(|(_, who, _)| *who == requester);
        flights.map(|(range, ..)| range.end - range.start).sum()
    }

    fn end_of_flight(&self, offset: u64) -> u64 {
        let flight = self.flights.iter().find(|(flight, ..)| flight.contains(&offset));
        flight.map_or(offset, |(flight, ..)| flight.end)
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::sync::Arc;

    /// Ends of archives in these tests.
    const PART: u64 = 40 * PIECE + 5;
    const ALL: Run = Run { end: u64::MAX, is_own: true };
    const ARCHIVE: ArchiveFill =
        ArchiveFill { start: 0, end: PART, run: ALL, nodes: 1, is_wanted: true, is_filled: true };

    /// After its first reads.
    fn schedule() -> Schedule {
        Schedule { piece: PIECE, ..Schedule::new() }
    }

    fn next(schedule: &mut Schedule, granules: &Granules, now: Instant) -> Next {
        schedule.next(granules, |_| ARCHIVE, now)
    }

    /// What the fill begins to fetch at `now`.
    fn fetched(schedule: &mut Schedule, granules: &Granules, now: Instant) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        while let Next::Fetch(range) = next(schedule, granules, now) {
            schedule.begin(range.clone(), Requester::Fill, now);
            ranges.push(range);
        }
        ranges
    }

    fn pieces(numbers: Range<u64>) -> Vec<Range<u64>> {
        numbers.map(|number| number * PIECE..(number + 1) * PIECE).collect()
    }

    #[test]
    fn the_fill_takes_pieces_in_order_and_fewer_beside_readers() {
        let (mut schedule, granules) = (schedule(), Granules::new(PART).unwrap());
        let now = Instant::now();
        let opening = Streams::default().beside_readers() as u64;
        assert_eq!(fetched(&mut schedule, &granules, now), pieces(0..opening));
        let (mut schedule, now) = (self::schedule(), now + READER_PAUSE * 2);
        let (alone, beside) =
            [STREAMS_ALONE, Streams::default().beside_readers()].map(|n| n as u64).into();
        assert_eq!(fetched(&mut schedule, &granules, now), pieces(0..alone));
        assert_eq!(next(&mut schedule, &granules, now), Next::Wait(None));
        let reader = 39 * PIECE..39 * PIECE + GRANULE;
        schedule.begin(reader.clone(), Requester::Reader, now);
        for piece in &pieces(0..alone) {
            granules.add(piece);
            schedule.end(piece, now);
        }
        assert_eq!(fetched(&mut schedule, &granules, now), pieces(alone..alone + beside));
        granules.add(&reader);
        schedule.end(&reader, now);
        let quiet = now + READER_PAUSE;
        assert_eq!(next(&mut schedule, &granules, now), Next::Wait(Some(quiet)));
        let left = fetched(&mut schedule, &granules, quiet);
        assert_eq!(left, pieces(alone + beside..2 * alone));
    }

    #[test]
    fn what_others_own_is_fetched_at_a_limited_rate_while_no_program_waits() {
        let (mut schedule, granules) = (schedule(), Granules::new(PART).unwrap());
        let all_of_others = |_| ArchiveFill { run: Run { is_own: false, ..ALL }, ..ARCHIVE };
        schedule.pace = Some(Pace::new(PIECE));
        let start = Instant::now() + READER_PAUSE;
        let mut now = start;
        // Otherwise the place to begin is random.
        schedule.fills_others = true;
        schedule.own_at = Some(now + 60 * OWN_INTERVAL);
        let mut fetched = 0;
        for _ in 0..3 {
            // Several, if some of them are short.
            let next = loop {
                let next = schedule.next(&granules, all_of_others, now);
                let Next::Fetch(range) = next else { break next };
                schedule.begin(range.clone(), Requester::Fill, now);
                granules.add(&range);
                schedule.end(&range, now);
                fetched += range.end - range.start;
            };
            let Next::Wait(Some(until)) = next else { panic!("{next:?}") };
            let least = Duration::from_secs_f64(fetched as f64 / PIECE as f64);
            assert!(until - start > least, "{least:?}");
            now = until;
        }
        now -= Duration::from_millis(100);
        assert!(matches!(schedule.next(&granules, all_of_others, now), Next::Wait(_)));
        // A node ended, and this one owns all but the next piece.
        let next = granules.first_missing(schedule.cursor).or(granules.first_missing(0)).unwrap();
        let others = next..next + PIECE;
        let mixed = |offset| {
            let run = match offset {
                _ if offset < others.start => Run { end: others.start, is_own: true },
                _ if offset < others.end => Run { end: others.end, is_own: false },
                _ => ALL,
            };
            ArchiveFill { run, ..ARCHIVE }
        };
        let later = now + OWN_INTERVAL;
        schedule.own_at = Some(later);
        schedule.pace.as_mut().unwrap().take(10 * PIECE, later);
        let found = schedule.next(&granules, mixed, later);
        assert!(
            matches!(&found, Next::Fetch(range) if !others.contains(&range.start)),
            "{found:?}"
        );
        schedule.fills_others = true;
        assert!(matches!(schedule.next(&granules, all_of_others, later), Next::Wait(_)));
        // A program may need what is announced.
        let is_missing = |range: &Range<u64>| granules.first_run(range) == (range.clone(), false);
        let announced = pieces(0..40).into_iter().find(is_missing).unwrap();
        schedule.announce(announced.clone());
        assert_eq!(schedule.next(&granules, all_of_others, now), Next::Fetch(announced));
        // A program waited, and someone waits until all is there.
        schedule.note_request(Requester::Reader, now);
        assert!(matches!(schedule.next(&granules, all_of_others, now), Next::Wait(_)), "opening");
        schedule.is_served = true;
        schedule.note_request(Requester::Reader, now);
        assert!(matches!(schedule.next(&granules, all_of_others, now), Next::Fetch(_)));
        (schedule.last_reader, schedule.needed_at) = (None, None);
        assert!(matches!(schedule.next(&granules, all_of_others, now), Next::Wait(_)));
        schedule.is_awaited = true;
        assert!(matches!(schedule.next(&granules, all_of_others, now), Next::Fetch(_)));
    }

    #[test]
    fn copies_for_later_epochs_leave_the_links_to_readers_that_wait() {
        let fetched = |is_needed: bool| {
            let (granules, unused) = (Granules::new(PART).unwrap(), Granules::new(PART).unwrap());
            let mut demand = Demand::new(Arc::new(unused), 1);
            demand.regions.push(Region { range: 0..PART, is_own: false, left: PART });
            let mut schedule = Schedule { demand: Some(demand), ..schedule() };
            (schedule.is_served, schedule.has_room_for_others) = (true, true);
            schedule.pace = Some(Pace::new(PIECE));
            let run = Run { is_own: false, ..ALL };
            let of_others = |_| ArchiveFill { run, is_filled: false, ..ARCHIVE };
            let start = Instant::now() + READER_PAUSE;
            let (mut now, mut fetched) = (start, 0);
            while now < start + Duration::from_secs(20) {
                if is_needed {
                    schedule.note_request(Requester::Reader, now);
                }
                let step = now + READER_PAUSE;
                now = match schedule.next(&granules, of_others, now) {
                    Next::Fetch(range) => {
                        granules.add(&range);
                        fetched += range.end - range.start;
                        now
                    }
                    Next::Wait(until) => until.map_or(step, |until| until.min(step)),
                    Next::End => panic!("{fetched} fetched"),
                };
            }
            fetched / PIECE
        };
        let [alone, beside] = [false, true].map(fetched);
        assert!((19..=21).contains(&alone), "{alone}");
        assert!((5..=6).contains(&beside), "{beside}");
    }

    #[test]
    fn the_first_reads_are_short() {
        // The archive does not start at a whole piece.
        let (start, end) = (3 * GRANULE, 3 * GRANULE + PART);
        let archive = |_| ArchiveFill { start, end, ..ARCHIVE };
        let (mut schedule, granules) = (Schedule::new(), Granules::new(end).unwrap());
        granules.add(&(0..start));
        let now = Instant::now();
        let streams = Streams::default().beside_readers() as u64;
        let rounds = [(); 3].map(|()| {
            let mut begun = Vec::new();
            while let Next::Fetch(range) = schedule.next(&granules, archive, now) {
                schedule.begin(range.clone(), Requester::Fill, now);
                begun.push(range);
            }
            for range in &begun {
                granules.add(range);
                schedule.end(range, now);
                schedule.succeed();
            }
            begun
        });
        let sizes = rounds
            .each_ref()
            .map(|begun| begun.iter().map(|range| range.end - range.start).sum::<u64>());
        assert_eq!(sizes[0], streams * FIRST_PIECE);
        let is_whole = |range: &Range<u64>| (range.end - start).is_multiple_of(PIECE);
        assert!(rounds[1..].iter().flatten().all(is_whole), "{rounds:?}");
        assert_eq!(sizes[2], streams * PIECE);
    }

    #[test]
    fn what_this_node_owns_is_fetched_before_what_others_own() {
        let (mut schedule, granules) = (schedule(), Granules::new(PART).unwrap());
        let shared = |offset: u64| {
            let number = offset / (4 * PIECE);
            let run = Run { end: (number + 1) * 4 * PIECE, is_own: number % 2 == 1 };
            ArchiveFill { run, ..ARCHIVE }
        };
        let later = Instant::now() + READER_PAUSE;
        let mut order = Vec::new();
        while let Next::Fetch(range) = schedule.next(&granules, shared, later) {
            let is_own = shared(range.start).run.is_own;
            assert!(range.end <= shared(range.start).run.end, "one owner");
            granules.add(&range);
            order.push(is_own);
        }
        assert!(granules.is_full());
        assert!(order.is_sorted_by(|one, next| one >= next), "{order:?}");
        assert_eq!(order.iter().filter(|own| **own).count(), 20);
    }

    #[test]
    fn one_piece_is_always_allowed_and_no_byte_is_in_two_flights() {
        let (mut schedule, granules) = (schedule(), Granules::new(PART).unwrap());
        let now = Instant::now();
        let reader = GRANULE..2 * GRANULE;
        schedule.begin(reader.clone(), Requester::Reader, now);
        assert_eq!(schedule.free(&(0..PIECE)), Some(0..GRANULE));
        assert_eq!(schedule.free(&(GRANULE..PIECE)), None);
        assert_eq!(schedule.free(&(GRANULE + 1..PIECE)), None);
        assert_eq!(schedule.free(&(2 * GRANULE..PIECE)), Some(2 * GRANULE..PIECE));
        let begun = fetched(&mut schedule, &granules, now);
        assert_eq!(begun[..2], [0..GRANULE, 2 * GRANULE..PIECE]);
        // What failed comes after the rest.
        schedule.end(&reader, now);
        schedule.end(&(0..GRANULE), now);
        let all = std::iter::from_fn(|| {
            begun.iter().for_each(|range| schedule.end(range, now));
            let later = now + READER_PAUSE;
            let Next::Fetch(range) = next(&mut schedule, &granules, later) else { return None };
            schedule.begin(range.clone(), Requester::Fill, now);
            granules.add(&range);
            schedule.end(&range, later);
            Some(range.start)
        });
        let all: Vec<_> = all.take(100).collect();
        assert!(granules.is_full());
        let after_the_rest = all.iter().position(|&start| start == 0).unwrap();
        assert!(all[..after_the_rest].is_sorted() && after_the_rest > 30, "{all:?}");
    }

    #[test]
    fn announced_ranges_come_first_and_old_ones_are_forgotten() {
        let (mut schedule, granules) = (schedule(), Granules::new(PART).unwrap());
        let now = Instant::now();
        let range = |number: u64| number * GRANULE * 2..number * GRANULE * 2 + GRANULE;
        schedule.begin(39 * PIECE..39 * PIECE + GRANULE, Requester::Reader, now);
        for number in (0..ANNOUNCED_MAX as u64 + 1).chain([7]) {
            schedule.announce(range(number));
        }
        granules.add(&range(2));
        let first = next(&mut schedule, &granules, now);
        assert_eq!(first, Next::Fetch(range(1)));
        schedule.begin(range(1), Requester::Fill, now);
        assert_eq!(next(&mut schedule, &granules, now), Next::Fetch(range(3)));
    }

    #[test]
    fn only_regions_that_memory_can_hold_are_fetched_ahead() {
        let (granules, unused) = (Granules::new(PART).unwrap(), Granules::new(PART).unwrap());
        let mut demand = Demand::new(Arc::new(unused), 1);
        let read = |number: u64| number * PIECE..number * PIECE + GRANULE;
        (0..9).for_each(|number| demand.note(read(number)));
        let mut schedule = Schedule { demand: Some(demand), ..schedule() };
        let nothing = |_| ArchiveFill { is_filled: false, ..ARCHIVE };
        let region = 8 * PIECE + GRANULE;
        schedule.unused_max = region - 1;
        assert_eq!(schedule.next(&granules, nothing, Instant::now()), Next::End);
        assert!(schedule.is_full());
        schedule.unused_max = region;
        (0..9).for_each(|number| schedule.demand.as_mut().unwrap().note(read(number)));
        let next = schedule.next(&granules, nothing, Instant::now());
        assert_eq!(next, Next::Fetch(0..PIECE));
        assert!(!schedule.is_full());
    }

    #[test]
    fn failures_are_tried_again_ever_later() {
        let (mut schedule, granules) = (schedule(), Granules::new(PART).unwrap());
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for number in 0..9 {
            assert_eq!(schedule.fail(&(0..GRANULE), ARCHIVE, now), number == 0);
            let again = schedule.fail(&(0..GRANULE), ARCHIVE, now);
            assert!(!again, "together with another thread");
            let Next::Wait(Some(until)) = next(&mut schedule, &granules, now) else {
                panic!("it does not wait")
            };
            waits.push((until - now).as_secs());
            now = until;
            assert!(matches!(next(&mut schedule, &granules, now), Next::Fetch(_)));
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(schedule.succeed());
        assert!(!schedule.succeed());
        assert!(schedule.fail(&(0..GRANULE), ARCHIVE, now));
    }

    /// The place is found, and what lies around it is fetched.
    #[test]
    fn one_bad_granule_does_not_hold_up_the_others() {
        let (mut schedule, granules) = (schedule(), Granules::new(PART).unwrap());
        let mut now = Instant::now();
        let bad = 7 * PIECE + 3 * GRANULE;
        let mut failures = 0;
        while failures < 6 {
            match next(&mut schedule, &granules, now) {
                Next::Fetch(range) if range.contains(&bad) => {
                    schedule.fail(&range, ARCHIVE, now);
                    failures += 1;
                }
                Next::Fetch(range) => {
                    granules.add(&range);
                    schedule.succeed();
                }
                Next::Wait(until) => now = until.unwrap(),
                Next::End => panic!("it is not complete"),
            }
        }
        assert!(granules.has(&(0..bad)) && granules.has(&(bad + GRANULE..PART)));
        assert!(!granules.has(&(bad..bad + 1)));
        granules.add(&(bad..bad + 1));
        assert_eq!(next(&mut schedule, &granules, now + RETRY_MAX), Next::End);
    }

    /// An archive of 40 pieces that cannot be read, and another behind it.
    #[test]
    fn an_archive_out_of_reach_does_not_hold_up_the_next() {
        let mut schedule = schedule();
        let granules = Granules::new(2 * 40 * PIECE).unwrap();
        let middle = 40 * PIECE;
        let extent = |offset| ArchiveFill {
            start: if offset < middle { 0 } else { middle },
            end: if offset < middle { middle } else { 2 * middle },
            run: ALL,
            nodes: 1,
            is_wanted: true,
            is_filled: true,
        };
        let start = Instant::now();
        let mut now = start;
        while !granules.has(&(middle..2 * middle)) {
            match schedule.next(&granules, extent, now) {
                Next::Fetch(range) if range.start < middle => {
                    schedule.fail(&range, extent(range.start), now);
                }
                Next::Fetch(range) => {
                    granules.add(&range);
                    schedule.succeed();
                }
                Next::Wait(until) => now = until.unwrap(),
                Next::End => panic!("it is not complete"),
            }
        }
        let waited = now - start;
        assert!(waited < Duration::from_secs(1200), "{waited:?}");
        // If it was rewritten, it is given up.
        let extent = |offset| ArchiveFill { is_wanted: offset >= middle, ..extent(offset) };
        assert_eq!(schedule.next(&granules, extent, now + RETRY_MAX), Next::End);
    }

    #[test]
    fn nothing_is_kept_until_there_is_room() {
        let (mut schedule, granules) = (schedule(), Granules::new(PART).unwrap());
        let now = Instant::now();
        assert!(schedule.is_look_due(now));
        schedule.note_look(now);
        assert!(!schedule.is_look_due(now));
        assert!(schedule.is_look_due(now + ROOM_INTERVAL));
        let until = now + Duration::from_secs(5);
        schedule.wait_for_room(until);
        assert!(schedule.keeps(until) && !schedule.keeps(now));
        assert!(!schedule.is_look_due(now + ROOM_INTERVAL));
        assert_eq!(next(&mut schedule, &granules, now), Next::Wait(Some(until)));
        assert!(schedule.is_look_due(until));
        assert!(matches!(next(&mut schedule, &granules, until), Next::Fetch(_)));
        assert!(schedule.keeps(now));
    }

    /// A region ends where the last read does, whose granule may not have been kept.
    #[test]
    fn whole_granules_of_a_region_are_fetched() {
        let (mut schedule, granules) = (schedule(), Granules::new(PART).unwrap());
        let mut demand = Demand::new(Arc::new(Granules::new(PART).unwrap()), 1);
        demand.regions.push(Region { range: 5..3 * GRANULE + 5, is_own: true, left: u64::MAX });
        schedule.demand = Some(demand);
        let next = schedule.next(&granules, |_| ARCHIVE, Instant::now());
        assert_eq!(next, Next::Fetch(GRANULE..4 * GRANULE));
    }
}
