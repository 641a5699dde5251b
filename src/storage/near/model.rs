//! Models of a copy, for many interleavings of readers and the fill (see the essay in
//! `sync::model`).

use std::time::Instant;

use super::*;
use crate::sync::model::check;
use crate::sync::thread;

/// Three granules and a byte.
const LEN: u64 = 3 * GRANULE + 1;

/// A source in memory that counts how often each granule is fetched.
#[derive(Default)]
struct Counting {
    /// Guards the counts. No other lock is taken while it is held.
    fetched: Mutex<[u32; 4]>,
    /// Fetches that fail.
    failing: Mutex<u32>,
}

fn byte(offset: u64) -> u8 {
    (offset % 251) as u8
}

impl Source for Counting {
    fn fetch(&self, buffer: &mut [u8], offset: u64, _: Requester) -> Result<()> {
        thread::yield_now();
        {
            let mut failing = self.failing.lock();
            if *failing > 0 {
                *failing -= 1;
                return Err(Error::new(Kind::Io, "a broken disk"));
            }
        }
        let numbers = offset / GRANULE..(offset + buffer.len() as u64).div_ceil(GRANULE);
        for number in numbers {
            self.fetched.lock()[number as usize] += 1;
        }
        for (place, offset) in buffer.iter_mut().zip(offset..) {
            *place = byte(offset);
        }
        Ok(())
    }

    fn check_version(&self) -> Result<()> {
        Ok(())
    }

    fn tables_at_once(&self) -> u64 {
        0
    }
}

fn copy_of(source: &Arc<Counting>) -> Arc<NearCopy> {
    let file = unlinked::create("/dev/shm".as_ref()).unwrap();
    let bytes: Arc<dyn Source> = Arc::clone(source) as _;
    let originals = vec![("original".to_owned(), LEN, bytes)];
    NearCopy::new(file.into(), "copy".into(), originals, Box::new(|| None), FillScope::Everything)
        .unwrap()
}

fn read(copy: &Arc<NearCopy>, range: Range<u64>) -> Result<()> {
    let mut found = vec![0; (range.end - range.start) as usize];
    copy.read_exact_at(0, &mut found, range.start, copy.file.as_ref().unwrap(), Wanted::Contents)?;
    assert!(found.iter().zip(range).all(|(found, offset)| *found == byte(offset)));
    Ok(())
}

#[test]
fn each_granule_is_fetched_once_and_the_source_is_closed() {
    check(|| {
        let source = Arc::new(Counting::default());
        let copy = copy_of(&source);
        let readers = [0..GRANULE + 1, GRANULE - 1..LEN].map(|range| {
            let copy = Arc::clone(&copy);
            thread::spawn(move || read(&copy, range).unwrap())
        });
        let fills = [(); 2].map(|()| {
            let copy = Arc::clone(&copy);
            thread::spawn(move || fill::run(&copy, Instant::now()))
        });
        for thread in readers.into_iter().chain(fills) {
            thread.join().unwrap();
        }
        assert_eq!(*source.fetched.lock(), [1; 4]);
        assert_eq!(copy.counts().copied, LEN);
        assert!(copy.parts[0].source.lock().is_none());
        assert!(copy.schedule.lock().stage == Stage::Closed);
    });
}

/// A reader whose bytes another thread failed to fetch does not wait for ever.
#[test]
fn a_failed_fetch_wakes_the_readers_that_wait_for_it() {
    check(|| {
        let source = Arc::new(Counting::default());
        *source.failing.lock() = 1;
        let copy = copy_of(&source);
        let readers = [(); 3].map(|()| {
            let copy = Arc::clone(&copy);
            thread::spawn(move || read(&copy, 0..2 * GRANULE).is_err())
        });
        let failed = readers.map(|reader| reader.join().unwrap());
        // None if another one has fetched them before the first returns its error.
        assert!(failed.into_iter().filter(|failed| *failed).count() <= 1);
        assert_eq!(source.fetched.lock()[..2], [1; 2]);
    });
}
