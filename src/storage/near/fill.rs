//! The threads that fetch what no reader has fetched yet.

use std::ops::Range;
use std::time::Instant;

use super::NearCopy;
use super::part::{CopiedArchive, Flight};
use super::schedule::{ArchiveFill, Next, Stage};
use crate::error::{Error, Kind, Result};
use crate::remote::Requester;
use crate::stats::StageCounts;
use crate::sync::{Arc, thread};
use crate::units::{Size, format_duration};

/// Threads. More than there are streams of whole pieces, for what is left between bytes that
/// readers have fetched.
const THREADS: usize = 20;

/// The fill of a copy, which goes on until this is dropped.
#[derive(Debug)]
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
    while let Some((part, flight)) = next_flight(copy, start) {
        let range = flight.range.clone();
        // Shared, because not all threads have a whole piece at the same time.
        let mut buffer = copy.buffers.lock().pop().unwrap_or_default();
        let outcome = match resize(&mut buffer, flight.len()) {
            Ok(buffer) => copy.fetch(part, flight, buffer),
            Err(error) => Err(error),
        };
        copy.buffers.lock().push(buffer);
        match outcome {
            Ok(()) => {
                let could_not = copy.schedule.lock().succeed();
                // Another thread may have set it after its failure was counted, and a success too.
                *copy.failing.lock() = None;
                if could_not {
                    log::info!("{}: the archives can be read again", copy.name);
                }
            }
            // Said already.
            Err(error) if error.kind() == Kind::Changed => {}
            Err(error) => fail(copy, part, &range, error),
        }
    }
    copy.buffers.lock().clear();
}

/// The first `len` bytes of `buffer`, which grows as needed.
fn resize(buffer: &mut Vec<u8>, len: usize) -> Result<&mut [u8]> {
    let more = len.saturating_sub(buffer.len());
    let reserved = buffer.try_reserve_exact(more);
    reserved.map_err(|_| Error::new(Kind::Io, "no memory for a buffer"))?;
    buffer.resize(buffer.len() + more, 0);
    Ok(&mut buffer[..len])
}

/// Notes that `range` could not be fetched.
fn fail(copy: &NearCopy, part: &CopiedArchive, range: &Range<u64>, error: Error) {
    if copy.schedule.lock().fail(range, part.extent(), Instant::now()) {
        let StageCounts { copied, total } = copy.counts();
        let (copied, total) = (Size(copied), Size(total));
        let name = &copy.name;
        log::warn!("{name}: {error}; {copied} of {total} are copied, trying again");
    }
    // Others do not pass.
    match error.kind() {
        Kind::Io => drop(copy.failing.lock().get_or_insert((error, Instant::now()))),
        _ => drop(copy.failure.lock().get_or_insert(error)),
    }
    copy.progressed.notify_all();
}

/// What this thread fetches next. `None` if nothing is left, or the fill was stopped.
fn next_flight(copy: &NearCopy, start: Instant) -> Option<(&CopiedArchive, Flight<'_>)> {
    let mut schedule = copy.schedule.lock();
    while schedule.stage == Stage::Filling {
        let now = Instant::now();
        if schedule.is_look_due(now) {
            schedule = copy.look_for_room(schedule);
            continue;
        }
        let nothing = ArchiveFill { end: u64::MAX, is_wanted: false, is_filled: false };
        let extent = |offset| copy.part(offset).map_or(nothing, CopiedArchive::extent);
        match schedule.next(&copy.granules, extent, now) {
            Next::Fetch(range) => {
                let part = copy.part(range.start)?;
                schedule.begin(range.clone(), Requester::Fill, now);
                return Some((part, Flight { copy, range, requester: Requester::Fill }));
            }
            // More may be announced.
            Next::End if !copy.parts.iter().all(CopiedArchive::is_filled) => {
                copy.progressed.wait(&mut schedule);
            }
            Next::Wait(None) => copy.progressed.wait(&mut schedule),
            Next::Wait(Some(until)) => {
                let left = until.saturating_duration_since(now);
                copy.progressed.wait_for(&mut schedule, left);
            }
            Next::End => {
                schedule.stage = Stage::Closing;
                drop(schedule);
                close(copy, start);
                return None;
            }
        }
    }
    None
}

/// Closes the sources. All bytes are there, except those of archives that were rewritten.
fn close(copy: &NearCopy, start: Instant) {
    for part in &copy.parts {
        // Each read has checked it. Some network file systems learn of a change only later.
        if let Ok(Some(source)) = part.source()
            && let Err(error) = source.check_version()
            && error.kind() == Kind::Changed
        {
            copy.give_up(part, &error);
        }
        *part.source.lock() = None;
    }
    if copy.is_complete() {
        let time = format_duration(start.elapsed());
        log::info!("{}: archives copied in {time}", copy.name);
    }
    copy.schedule.lock().stage = Stage::Closed;
    copy.landed.notify_all();
    copy.progressed.notify_all();
}
