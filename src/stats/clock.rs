//! How the time of a load divides into reading the archive and decoding.
//!
//! A load reads and decodes on one thread. So each thread adds up the time that it spent reading,
//! and what remains of a load is decoding.

use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    /// Time that this thread has spent reading archives.
    static READING: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Adds time that this thread spent reading an archive.
pub(super) fn add_reading(time: Duration) {
    READING.set(READING.get().saturating_add(time));
}

/// Measures how long a load decodes. Start and end it on the same thread.
#[derive(Debug)]
pub struct LoadClock {
    start: Instant,
    reading: Duration,
}

impl LoadClock {
    /// Starts a load.
    pub fn start() -> Self {
        Self { start: Instant::now(), reading: READING.get() }
    }

    /// Time since the start, without the reads of this thread.
    pub fn decoding(&self) -> Duration {
        let reading = READING.get().saturating_sub(self.reading);
        self.start.elapsed().saturating_sub(reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_is_not_decoding() {
        let clock = LoadClock::start();
        std::thread::sleep(Duration::from_millis(20));
        assert!(clock.decoding() >= Duration::from_millis(20));
        add_reading(Duration::from_secs(1));
        assert_eq!(clock.decoding(), Duration::ZERO);
        // Another thread's reads are not those of this load.
        let clock = LoadClock::start();
        std::thread::spawn(|| add_reading(Duration::from_secs(1))).join().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        assert!(clock.decoding() > Duration::ZERO);
    }
}
