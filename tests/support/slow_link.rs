//! A connection that takes time: a delay for each request, and a bandwidth for all together.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are transferred at once, if the bandwidth is limited.
pub(crate) const SLICE: usize = 64 << 10;

pub(crate) struct SlowLink {
    latency: Duration,
    /// Time that a slice takes; `None` without a limit.
    slice_time: Option<Duration>,
    /// When the slices end that were granted so far.
    busy_until: Mutex<Instant>,
}

impl SlowLink {
    pub(crate) fn new(milliseconds: f64, megabytes_per_second: Option<f64>) -> Self {
        Self {
            latency: Duration::from_secs_f64(milliseconds / 1e3),
            slice_time: megabytes_per_second
                .map(|rate| Duration::from_secs_f64(SLICE as f64 / rate / 1e6)),
            busy_until: Mutex::new(Instant::now()),
        }
    }

    /// Waits until a request has arrived.
    pub(crate) fn request(&self) {
        thread::sleep(self.latency);
    }

    /// Waits as long as the transfer of `bytes` takes. A slice at a time, so that concurrent
    /// transfers get equal shares.
    pub(crate) fn transfer(&self, bytes: usize) {
        let Some(slice_time) = self.slice_time else { return };
        for _ in 0..bytes.div_ceil(SLICE) {
            let end = {
                let mut busy_until = self.busy_until.lock().unwrap();
                *busy_until = (*busy_until).max(Instant::now()) + slice_time;
                *busy_until
            };
            thread::sleep(end.saturating_duration_since(Instant::now()));
        }
    }
}
