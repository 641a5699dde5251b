//! The threads that fetch what no reader has fetched yet.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::NearCopy;
use super::part::{CopiedArchive, Flight};
use super::schedule::{ArchiveFill, Next, Stage};
use crate::error::{Error, Kind, Result};
use crate::remote::Requester;
use crate::stats::StageCounts;
use crate::sync::{Arc, thread};
use crate::together::Run;
use crate::units::{Size, format_duration};

/// Threads. More than there are streams of whole pieces, for what is left between bytes that
/// readers have fetched.
const THREADS: usize = 20;

/// How long a thread waits for readers.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The time between two looks for other nodes of the job.
const GATHERING_STEP: Duration = Duration::from_millis(20);

/// The fill of a copy, which goes on until this is dropped.
#[derive(Debug)]
pub struct Fill(Arc<NearCopy>);

impl Fill {
    /// Starts to fill `copy`.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn start(copy: &Arc<NearCopy>) -> Result<Self> {
        let fill = Self::on_demand(copy);
        fill.begin()?;
        Ok(fill)
    }

    /// Starts its first thread.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn begin(&self) -> Result<()> {
        let copy = &self.0;
        copy.schedule.lock().threads.running += 1;
        let failed = |error| Error::io(format!("{}: cannot start a thread", copy.name), error);
        spawn(copy).map_err(failed)
    }

    /// Fills `copy` when there is something to fetch. Threads start then, and end some seconds
    /// after it.
    pub fn on_demand(copy: &Arc<NearCopy>) -> Self {
        copy.schedule.lock().threads.most = THREADS;
        Self(Arc::clone(copy))
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.0.schedule.lock().stage = Stage::Stopped;
        self.0.progressed.notify_all();
    }
}

/// Starts a thread of the fill of `copy`, which is counted already.
pub(super) fn spawn(copy: &Arc<NearCopy>) -> io::Result<()> {
    let thread = thread::Builder::new().name("fill".into());
    let for_thread = Arc::clone(copy);
    let started = thread.spawn(move || {
        run(&for_thread, Instant::now());
        for_thread.schedule.lock().threads.running -= 1;
    });
    started.map(drop).inspect_err(|_| copy.schedule.lock().threads.running -= 1)
}

pub(super) fn run(copy: &Arc<NearCopy>, start: Instant) {
    while let Some((part, flight)) = next_flight(copy, start) {
        let range = flight.range.clone();
        let outcome = match &copy.file {
            Some(_) => {
                // Shared, because not all threads have a whole piece at the same time.
                let mut buffer = copy.buffers.lock().pop().unwrap_or_default();
                let fetched = resize(&mut buffer, flight.len());
                let outcome = fetched.and_then(|buffer| copy.fetch(part, flight, buffer));
                copy.buffers.lock().push(buffer);
                outcome
            }
            None => copy.load(part, flight),
        };
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
    if copy.schedule.lock().fail(range, part.extent(range.start), Instant::now()) {
        let StageCounts { copied, total } = copy.counts();
        let (copied, total) = (Size(copied), Size(total));
        let name = &copy.name;
        match (error.kind(), &copy.file) {
            // archfs ends, and its connections with it.
            (Kind::Interrupted, _) => {}
            (_, Some(_)) => {
                log::warn!("{name}: {error}; {copied} of {total} are here, trying again");
            }
            // Readers read the archive itself, and get the error of what they need.
            (_, None) => log::info!("{name}: {error}, trying again"),
        }
    }
    // Others do not pass.
    match error.kind() {
        Kind::Io | Kind::Unreachable => {
            let _ = copy.failing.lock().get_or_insert((error, Instant::now()));
        }
        _ => drop(copy.failure.lock().get_or_insert(error)),
    }
    copy.progressed.notify_all();
}

/// What this thread fetches next. `None` if nothing is left, for some time if that may change, or
/// the fill was stopped.
fn next_flight<'c>(
    copy: &'c Arc<NearCopy>,
    start: Instant,
) -> Option<(&'c CopiedArchive, Flight<'c>)> {
    let mut schedule = copy.schedule.lock();
    let mut idle_since = None;
    while schedule.stage == Stage::Filling {
        let now = Instant::now();
        if schedule.is_look_due(now) {
            schedule = copy.look_for_room(schedule);
            continue;
        }
        // Readers do not wait for that.
        if copy.parts.iter().any(CopiedArchive::is_gathering) {
            schedule.threads.idle += 1;
            copy.progressed.wait_for(&mut schedule, GATHERING_STEP);
            schedule.threads.idle -= 1;
            continue;
        }
        schedule.keeps_own_only = copy.keeps_own_only();
        let nothing = ArchiveFill {
            start: 0,
            end: u64::MAX,
            run: Run { end: u64::MAX, is_own: true },
            nodes: 1,
            is_wanted: false,
            is_filled: false,
        };
        let extent = |offset| copy.part(offset).map_or(nothing, |part| part.extent(offset));
        schedule.unused = copy.unused_bytes();
        let until = match schedule.next(&copy.granules, extent, now) {
            Next::Fetch(range) => {
                let part = copy.part(range.start)?;
                schedule.begin(range.clone(), Requester::Fill, now);
                copy.wake(schedule);
                return Some((part, Flight { copy, range, requester: Requester::Fill }));
            }
            Next::Wait(until) => until,
            // More may be announced or asked for.
            Next::End if !copy.parts.iter().all(CopiedArchive::is_filled) => None,
            // If a node ends, this one owns some of its parts.
            Next::End if copy.keeps_own_only() => Some(now + IDLE_MAX),
            Next::End => {
                schedule.stage = Stage::Closing;
                drop(schedule);
                close(copy, start);
                return None;
            }
        };
        // Without a time, another thread wakes this one. If the fill only follows readers, there
        // may be none for hours.
        let idle_end = *idle_since.get_or_insert(now) + IDLE_MAX;
        let follows = schedule.threads.most > 0 && copy.unused.is_some() && until.is_none();
        if follows && now >= idle_end {
            return None;
        }
        schedule.threads.idle += 1;
        match until.or(follows.then_some(idle_end)) {
            None => copy.progressed.wait(&mut schedule),
            Some(until) => {
                copy.progressed.wait_for(&mut schedule, until.saturating_duration_since(now));
            }
        }
        schedule.threads.idle -= 1;
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
        if let Some(shared) = &part.shared {
            shared.close_storage();
        }
    }
    if copy.is_complete() {
        let time = format_duration(start.elapsed());
        let done = if copy.file.is_some() { "copied" } else { "read" };
        log::info!("{}: archives {done} in {time}", copy.name);
    }
    copy.schedule.lock().stage = Stage::Closed;
    copy.landed.notify_all();
    copy.progressed.notify_all();
}
