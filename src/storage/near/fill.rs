//! The threads that fetch what no reader has fetched yet.

use std::time::Instant;

use super::schedule::{By, Next, Stage};
use super::{Flight, NearCopy, Part};
use crate::error::{Error, Kind, Result};
use crate::stats::StageCounts;
use crate::sync::{Arc, Ordering, thread};
use crate::units::{Size, format_duration};

/// Threads. More than there are streams of whole pieces, for what is left between bytes that
/// readers have fetched.
const THREADS: usize = 20;

/// The fill of a copy, which goes on until this is dropped.
pub struct Fill(Arc<NearCopy>);

impl Fill {
    /// Starts to fill `copy`.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn start(copy: &Arc<NearCopy>) -> Result<Self> {
        let fill = Self(Arc::clone(copy));
        let start = Instant::now();
        for number in 0..THREADS {
            let copy = Arc::clone(copy);
            let thread = thread::Builder::new().name("stage".into());
            match thread.spawn(move || run(&copy, start)) {
                Err(error) if number == 0 => {
                    let context = format!("{}: cannot start a thread", fill.0.name);
                    return Err(Error::io(context, error));
                }
                // Fewer do as well.
                Err(_) => break,
                Ok(_) => {}
            }
        }
        Ok(fill)
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.0.schedule.lock().stage = Stage::Stopped;
        self.0.progressed.notify_all();
    }
}

pub(super) fn run(copy: &NearCopy, start: Instant) {
    while let Some(flight) = next_flight(copy, start) {
        let len = flight.len();
        // Shared, because not all threads have a whole piece at the same time.
        let mut buffer = copy.buffers.lock().pop().unwrap_or_default();
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let Some(part) = copy.part(flight.range.start) else { return };
        let outcome = copy.fetch(part, flight, &mut buffer[..len]);
        copy.buffers.lock().push(buffer);
        if let Err(error) = outcome {
            fail(copy, error);
        } else if copy.schedule.lock().succeed() {
            log::info!("{}: the archives can be read again", copy.name);
        }
    }
}

fn fail(copy: &NearCopy, error: Error) {
    // No later version is the one that was opened.
    let is_for_good = error.kind() == Kind::Changed;
    let is_news = {
        let mut schedule = copy.schedule.lock();
        let is_first = schedule.fail(Instant::now());
        let was_filling = schedule.stage == Stage::Filling;
        if is_for_good && was_filling {
            schedule.stage = Stage::Stopped;
        }
        is_first || is_for_good && was_filling
    };
    if is_news {
        report(copy, &error, is_for_good);
    }
    copy.failure.lock().get_or_insert(error);
    copy.progressed.notify_all();
}

/// What this thread fetches next. `None` if nothing is left, or the fill was stopped.
fn next_flight(copy: &NearCopy, start: Instant) -> Option<Flight<'_>> {
    let mut schedule = copy.schedule.lock();
    while schedule.stage == Stage::Filling {
        if copy.granules.is_full() {
            schedule.stage = Stage::Closing;
            drop(schedule);
            close(copy, start);
            return None;
        }
        let now = Instant::now();
        if schedule.is_look_due(now) {
            // Reads files of /proc and /sys, so not under the lock.
            drop(schedule);
            if let Some(why) = (copy.room)() {
                copy.wait_for_room(&why);
            }
            schedule = copy.schedule.lock();
            continue;
        }
        let part_end = |offset| copy.part(offset).map_or(offset, Part::end);
        match schedule.next(&copy.granules, part_end, now) {
            Next::Fetch(range) => {
                schedule.begin(range.clone(), By::Fill, now);
                return Some(Flight { copy, range });
            }
            Next::Wait(None) => copy.progressed.wait(&mut schedule),
            Next::Wait(Some(until)) => {
                let left = until.saturating_duration_since(now);
                copy.progressed.wait_for(&mut schedule, left);
            }
        }
    }
    None
}

/// Closes the sources. All bytes are there.
fn close(copy: &NearCopy, start: Instant) {
    for part in &copy.parts {
        let source = part.source.lock().take();
        let Some(source) = source else { continue };
        // Each read has checked it. Some network file systems learn of a change only later.
        if let Err(error) = source.check_version()
            && error.kind() == Kind::Changed
        {
            part.is_mixed.store(true, Ordering::Relaxed);
            report(copy, &error, true);
            copy.failure.lock().get_or_insert(error);
        }
    }
    let time = format_duration(start.elapsed());
    log::info!("{}: archives copied in {time}", copy.name);
    copy.buffers.lock().clear();
    copy.schedule.lock().stage = Stage::Closed;
    copy.landed.notify_all();
    copy.progressed.notify_all();
}

/// Says that the source failed; `is_for_good` if it will not be tried again.
fn report(copy: &NearCopy, error: &Error, is_for_good: bool) {
    let StageCounts { copied, total } = copy.counts();
    let (copied, total) = (Size(copied), Size(total));
    let name = &copy.name;
    match is_for_good {
        true => log::error!(
            "{name}: {error}; {copied} of {total} are copied, and reads of the rest fail with EIO"
        ),
        false => log::warn!("{name}: {error}; {copied} of {total} are copied, trying again"),
    }
}
