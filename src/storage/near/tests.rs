//! Readers, the fill, and sources that are slow or fail.

use std::time::Duration;

use super::*;
use crate::sync::thread;

const LEN: usize = 6 << 20;

/// `Source::tables_at_once`.
const TABLES: u64 = 8 * GRANULE;

/// A source in memory.
struct Distant {
    bytes: Vec<u8>,
    latency: Duration,
    fetched: AtomicU64,
    /// Bytes that cannot be read, until the end is set to 0.
    broken: (u64, AtomicU64),
    has_changed: AtomicBool,
    tables_at_once: u64,
}

impl Distant {
    fn new(len: usize, latency: Duration) -> Arc<Self> {
        let bytes = (0..len).map(|at| (at % 251) as u8 ^ (at >> 12) as u8).collect();
        let broken = (0, AtomicU64::new(0));
        let has_changed = AtomicBool::new(false);
        Arc::new(Self {
            bytes,
            latency,
            fetched: AtomicU64::new(0),
            broken,
            has_changed,
            tables_at_once: 0,
        })
    }

    fn broken(len: usize, range: Range<u64>) -> Arc<Self> {
        let broken = (range.start, AtomicU64::new(range.end));
        let new = Arc::into_inner(Self::new(len, Duration::ZERO)).unwrap();
        Arc::new(Self { broken, ..new })
    }

    fn with_tables(len: usize) -> Arc<Self> {
        let new = Arc::into_inner(Self::new(len, Duration::ZERO)).unwrap();
        Arc::new(Self { tables_at_once: TABLES, ..new })
    }

    fn mend(&self) {
        self.broken.1.store(0, Ordering::Relaxed);
    }
}

impl Source for Distant {
    fn fetch(&self, buffer: &mut [u8], offset: u64, _: Requester) -> Result<()> {
        thread::sleep(self.latency);
        let end = offset + buffer.len() as u64;
        if self.has_changed.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Changed, "rewritten"));
        }
        if offset < self.broken.1.load(Ordering::Relaxed) && self.broken.0 < end {
            return Err(Error::new(Kind::Io, "a broken disk"));
        }
        self.fetched.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        buffer.copy_from_slice(&self.bytes[offset as usize..end as usize]);
        Ok(())
    }

    fn check_version(&self) -> Result<()> {
        match self.has_changed.load(Ordering::Relaxed) {
            true => Err(Error::new(Kind::Changed, "rewritten")),
            false => Ok(()),
        }
    }

    fn tables_at_once(&self) -> u64 {
        self.tables_at_once
    }
}

fn copy_in(room: Room, sources: &[&Arc<Distant>]) -> Arc<NearCopy> {
    copy_for(FillScope::Everything, room, sources)
}

fn copy_for(scope: FillScope, room: Room, sources: &[&Arc<Distant>]) -> Arc<NearCopy> {
    let file = unlinked::create(&std::env::temp_dir()).unwrap().into();
    let original = |source: &&Arc<Distant>| {
        let bytes: Arc<dyn Source> = Arc::clone(source) as _;
        ("original".to_owned(), source.bytes.len() as u64, bytes)
    };
    let originals = sources.iter().map(original).collect();
    NearCopy::new(file, "copy".into(), originals, room, scope).unwrap()
}

fn copy_of(sources: &[&Arc<Distant>]) -> Arc<NearCopy> {
    copy_in(Box::new(|| None), sources)
}

/// Reads `range` of the source with this number, and compares it.
fn read(copy: &Arc<NearCopy>, number: usize, source: &Distant, range: Range<usize>) -> Result<()> {
    let mut found = vec![0; range.len()];
    copy.read_exact_at(
        number,
        &mut found,
        range.start as u64,
        copy.file.as_ref().unwrap(),
        Wanted::Contents,
    )?;
    assert!(found == source.bytes[range.clone()], "{range:?}");
    Ok(())
}

/// Reads ranges all over the source from eight threads.
fn read_at_random(copy: &Arc<NearCopy>, number: usize, source: &Distant, times: usize) {
    thread::scope(|scope| {
        for reader in 0..8_u64 {
            scope.spawn(move || {
                let mut random = reader + 1;
                for _ in 0..times {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let start = (random >> 33) as usize % source.bytes.len();
                    let len = 1 + (random >> 17) as usize % 100_000;
                    let end = (start + len).min(source.bytes.len());
                    read(copy, number, source, start..end).unwrap();
                }
            });
        }
    });
}

#[test]
fn each_byte_is_fetched_once_however_many_read() {
    let sources = [LEN, 0, 1, GRANULE as usize, LEN + 1]
        .map(|len| Distant::new(len, Duration::from_micros(100)));
    let copy = copy_of(&sources.each_ref());
    assert!(!copy.is_complete());
    thread::scope(|scope| {
        let filling = scope.spawn(|| {
            thread::sleep(Duration::from_millis(5));
            let fill = Fill::start(&copy).unwrap();
            copy.wait(Duration::ZERO, |_| {}).unwrap();
            fill
        });
        for number in [0, 4] {
            let (copy, source) = (&copy, &sources[number]);
            scope.spawn(move || read_at_random(copy, number, source, 200));
        }
        filling.join().unwrap();
    });
    for (number, source) in sources.iter().enumerate() {
        let len = source.bytes.len();
        read(&copy, number, source, 0..len).unwrap();
        assert_eq!(source.fetched.load(Ordering::Relaxed), len as u64, "{number}");
        assert!(copy.parts[number].source.lock().is_none(), "the source is open");
    }
    let total = sources.iter().map(|source| source.bytes.len() as u64).sum();
    assert_eq!(copy.counts(), StageCounts { copied: total, total });
}

#[test]
fn a_granule_of_which_a_part_was_fetched_is_not_there() {
    let source = Distant::new(LEN, Duration::ZERO);
    let copy = copy_of(&[&source]);
    let range = 0..2 * GRANULE + 5;
    let flight = Flight { copy: &copy, range: range.clone(), requester: Requester::Fill };
    copy.fetch(&copy.parts[0], flight, &mut vec![0; range.end as usize]).unwrap();
    assert_eq!(copy.granules.first_missing(0), Some(2 * GRANULE));
    read(&copy, 0, &source, 0..LEN).unwrap();
    // An archive may end within a granule.
    let end = LEN as u64..LEN as u64 + 5;
    assert_eq!(
        copy_of(&[&Distant::new(LEN + 5, Duration::ZERO)]).parts[0].complete_granules(&end),
        end
    );
}

#[test]
fn a_reader_fetches_only_the_granules_that_it_wants() {
    let source = Distant::new(LEN, Duration::ZERO);
    let copy = copy_of(&[&source]);
    let granule = GRANULE as usize;
    for (range, fetched) in [
        (5..6, 1),
        (granule - 1..granule, 1),
        (granule - 1..granule + 1, 2),
        (0..4 * granule, 4),
        (LEN - 1..LEN, 5),
        (LEN..LEN, 5),
    ] {
        read(&copy, 0, &source, range.clone()).unwrap();
        assert_eq!(copy.counts().copied, fetched * GRANULE, "{range:?}");
    }
    let has = |range| copy.granules.has(&range);
    assert!(has(0..4 * GRANULE) && !has(0..4 * GRANULE + 1));
}

/// > `--stage-wait` waits 60 seconds for an error of the storage or the server to pass.
#[test]
fn those_who_wait_for_all_of_it_wait_for_errors_to_pass() {
    let source = Distant::broken(LEN, 0..LEN as u64);
    let copy = copy_of(&[&source]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| copy.wait(Duration::from_secs(600), |_| {}));
        let _fill = Fill::start(&copy).unwrap();
        while copy.failing.lock().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!waiting.is_finished());
        source.mend();
        waiting.join().unwrap().unwrap();
    });
    assert!(copy.is_complete() && copy.failing.lock().is_none());
}

#[test]
fn only_readers_of_what_the_source_does_not_deliver_fail() {
    let source = Distant::broken(LEN, (2 << 20)..(2 << 20) + 1);
    let copy = copy_of(&[&source]);
    let fill = Fill::start(&copy).unwrap();
    let error = copy.wait(Duration::ZERO, |_| {}).unwrap_err();
    assert!(error.to_string().contains("a broken disk"), "{error}");
    read(&copy, 0, &source, 0..1 << 20).unwrap();
    read(&copy, 0, &source, LEN - 10..LEN).unwrap();
    for _ in 0..2 {
        let error = read(&copy, 0, &source, (2 << 20) - 5..(2 << 20) + 5).unwrap_err();
        assert!(error.to_string().contains("a broken disk"), "{error}");
        // In the same granule.
        read(&copy, 0, &source, (2 << 20) + 1..(2 << 20) + 5).unwrap();
    }
    source.mend();
    read(&copy, 0, &source, (2 << 20) - 5..(2 << 20) + 5).unwrap();
    // The fill tries again by itself.
    while !copy.is_complete() {
        thread::sleep(Duration::from_millis(10));
    }
    drop(fill);
    read(&copy, 0, &source, 0..LEN).unwrap();
    // What was read of the granule around the bad byte was not kept.
    assert_eq!(source.fetched.load(Ordering::Relaxed), LEN as u64 + 2 * 4);
}

#[test]
fn without_room_the_rest_is_read_from_the_source() {
    let source = Distant::new(LEN, Duration::ZERO);
    let is_full = Arc::new(AtomicBool::new(true));
    let room = Arc::clone(&is_full);
    let copy = copy_in(
        Box::new(move || room.load(Ordering::Relaxed).then(|| "no memory".to_owned())),
        &[&source],
    );
    read(&copy, 0, &source, 0..1).unwrap();
    let _fill = Fill::start(&copy).unwrap();
    let error = copy.wait(Duration::ZERO, |_| {}).unwrap_err();
    assert!(error.to_string().contains("no memory"), "{error}");
    let copied = copy.counts().copied;
    read_at_random(&copy, 0, &source, 20);
    assert_eq!(copy.counts().copied, copied, "nothing is kept");
    is_full.store(false, Ordering::Relaxed);
    while !copy.is_complete() {
        thread::sleep(Duration::from_millis(10));
    }
    read(&copy, 0, &source, 0..LEN).unwrap();
}

#[test]
fn a_copy_that_cannot_be_written_is_read_through() {
    let source = Distant::new(LEN, Duration::ZERO);
    // Its length cannot be set, so it is replaced later.
    let file = unlinked::create(&std::env::temp_dir()).unwrap();
    let bytes: Arc<dyn Source> = Arc::clone(&source) as _;
    let originals = vec![("original".to_owned(), LEN as u64, bytes)];
    let (room, scope): (Room, _) = (Box::new(|| None), FillScope::Everything);
    let copy = NearCopy::new(file.into(), "copy".into(), originals, room, scope).unwrap();
    let mut copy = Arc::into_inner(copy).unwrap();
    copy.file = File::options().read(true).write(true).open("/dev/full").ok().map(Arc::new);
    let copy = Arc::new(copy);
    let _fill = Fill::start(&copy).unwrap();
    let error = copy.wait(Duration::ZERO, |_| {}).unwrap_err();
    assert!(error.to_string().contains("cannot write the copy"), "{error}");
    read_at_random(&copy, 0, &source, 20);
    assert_eq!(copy.counts().copied, 0);
}

#[test]
fn a_source_that_changes_is_never_mixed() {
    let source = Distant::new(LEN, Duration::ZERO);
    let copy = copy_of(&[&source]);
    read(&copy, 0, &source, 0..10).unwrap();
    source.has_changed.store(true, Ordering::Relaxed);
    let fill = Fill::start(&copy).unwrap();
    assert_eq!(copy.wait(Duration::ZERO, |_| {}).unwrap_err().kind(), Kind::Changed);
    // The source may have reported the change late.
    for range in [0..10, LEN - 10..LEN] {
        let error = read(&copy, 0, &source, range).unwrap_err();
        assert_eq!(error.kind(), Kind::Changed);
    }
    drop(fill);

    // Others are not affected.
    let sources = [(); 3].map(|()| Distant::new(LEN, Duration::ZERO));
    let copy = copy_of(&sources.each_ref());
    sources[1].has_changed.store(true, Ordering::Relaxed);
    let _fill = Fill::start(&copy).unwrap();
    assert_eq!(copy.wait(Duration::ZERO, |_| {}).unwrap_err().kind(), Kind::Changed);
    while copy.schedule.lock().stage != Stage::Closed {
        thread::sleep(Duration::from_millis(1));
    }
    for number in [0, 2] {
        read(&copy, number, &sources[number], 0..LEN).unwrap();
    }
    assert_eq!(read(&copy, 1, &sources[1], 0..1).unwrap_err().kind(), Kind::Changed);

    // The change is seen only when all is there.
    let source = Distant::new(LEN, Duration::ZERO);
    let copy = copy_of(&[&source]);
    read(&copy, 0, &source, 0..LEN).unwrap();
    source.has_changed.store(true, Ordering::Relaxed);
    let _fill = Fill::start(&copy).unwrap();
    assert_eq!(copy.wait(Duration::ZERO, |_| {}).unwrap_err().kind(), Kind::Changed);
    let error = read(&copy, 0, &source, 0..10).unwrap_err();
    assert_eq!(error.kind(), Kind::Changed);
    assert!(error.to_string().contains("original: rewritten"), "{error}");
}

#[test]
fn what_is_announced_is_fetched_before_the_rest() {
    let source = Distant::new(64 << 20, Duration::from_millis(2));
    let copy = copy_of(&[&source]);
    copy.will_need(0, &((60 << 20)..(60 << 20) + 1));
    copy.will_need(0, &((70 << 20)..u64::MAX));
    copy.will_need(1, &(0..1));
    let _fill = Fill::start(&copy).unwrap();
    let range = (60 << 20)..(60 << 20) + GRANULE;
    while !copy.granules.has(&range) {
        thread::sleep(Duration::from_micros(100));
    }
    let copied = copy.counts().copied;
    assert!(copied < 50 << 20, "{copied}");
}

/// Waits until `copy` has `expected` bytes.
fn wait_for(copy: &NearCopy, expected: u64) {
    while copy.counts().copied < expected {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(copy.counts().copied, expected);
}

#[test]
fn a_copy_on_demand_has_what_was_read_announced_or_scanned() {
    let sources = [0; 2].map(|_| Distant::new(LEN, Duration::from_millis(1)));
    let copy = copy_for(FillScope::Announced, Box::new(|| None), &[&sources[0], &sources[1]]);
    let _fill = Fill::start(&copy).unwrap();
    read(&copy, 0, &sources[0], 5..6).unwrap();
    wait_for(&copy, GRANULE);
    copy.will_need(0, &(2 * GRANULE..4 * GRANULE));
    wait_for(&copy, 3 * GRANULE);
    copy.begin_scan(1);
    wait_for(&copy, 3 * GRANULE + LEN as u64);
    copy.end_scan(1);
    // The other one goes on as before, and its source stays open.
    read(&copy, 0, &sources[0], 0..LEN).unwrap();
    assert_eq!(copy.counts().copied, 2 * LEN as u64);
    assert!(copy.is_complete() && copy.parts.iter().all(|part| part.source().unwrap().is_some()));
}

#[test]
fn a_scan_that_ends_early_fetches_no_more() {
    let source = Distant::new(8 * LEN, Duration::from_millis(20));
    let copy = copy_for(FillScope::Announced, Box::new(|| None), &[&source]);
    let _fill = Fill::start(&copy).unwrap();
    copy.begin_scan(0);
    while copy.counts().copied == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    copy.end_scan(0);
    // What is under way ends.
    while copy
        .schedule
        .lock()
        .free(&(0..8 * LEN as u64))
        .is_none_or(|free| free != (0..8 * LEN as u64))
    {
        thread::sleep(Duration::from_millis(1));
    }
    let copied = copy.counts().copied;
    thread::sleep(Duration::from_millis(60));
    assert_eq!(copy.counts().copied, copied);
    assert!(copied < 8 * LEN as u64);
}

#[test]
fn tables_are_fetched_together_with_those_after_them() {
    let source = Distant::with_tables(LEN);
    let copy = copy_for(FillScope::Announced, Box::new(|| None), &[&source]);
    let mut found = [0; 10];
    let mut read = |offset: u64, what| {
        copy.read_exact_at(0, &mut found, offset, copy.file.as_ref().unwrap(), what)
    };
    read(20 * GRANULE, Wanted::Contents).unwrap();
    assert_eq!(copy.counts().copied, GRANULE);
    read(GRANULE + 5, Wanted::Tables).unwrap();
    assert_eq!(copy.counts().copied, GRANULE + TABLES);
    // As far as what is there.
    read(18 * GRANULE, Wanted::Tables).unwrap();
    assert_eq!(copy.counts().copied, 3 * GRANULE + TABLES);
    // As far as the end.
    read(LEN as u64 - 10, Wanted::Tables).unwrap();
    assert_eq!(copy.counts().copied, 4 * GRANULE + TABLES);
}

#[test]
fn tables_of_a_copy_without_room_stay_in_memory() {
    let source = Distant::with_tables(LEN);
    let copy = copy_for(FillScope::Announced, Box::new(|| Some("no room".into())), &[&source]);
    let mut found = [0; 10];
    for at in 0..1000_u64 {
        let offset = 100_000 + at * 10;
        copy.read_exact_at(0, &mut found, offset, copy.file.as_ref().unwrap(), Wanted::Tables)
            .unwrap();
        assert_eq!(found[..], source.bytes[offset as usize..][..10]);
    }
    assert_eq!(copy.counts().copied, 0);
    assert_eq!(source.fetched.load(Ordering::Relaxed), TABLES);
    copy.read_exact_at(0, &mut found, LEN as u64 - 10, copy.file.as_ref().unwrap(), Wanted::Tables)
        .unwrap();
    assert_eq!(found[..], source.bytes[LEN - 10..]);
    read(&copy, 0, &source, 100_000..100_010).unwrap();
    assert_eq!(source.fetched.load(Ordering::Relaxed), TABLES + 20, "contents are not");
}
