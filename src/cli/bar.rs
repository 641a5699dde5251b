//! A progress bar for long waits.
//!
//! Invariant: nothing is drawn unless standard error is a terminal and the wait takes over a
//! second. The line is cleared when the bar is dropped.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::log::printable;
use crate::progress::Progress;
use crate::sync::Arc;

/// Shorter waits show no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time between two updates.
const PERIOD: Duration = Duration::from_millis(100);

/// Shows a `Progress` until it is dropped.
pub(super) struct Bar {
    /// Dropping it stops the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Bar {
    /// Shows `message` and the elapsed time of a wait of unknown length.
    pub(super) fn wait(message: &str) -> Self {
        let progress = Arc::new(Progress::default());
        progress.begin(message);
        Self::watch(&progress)
    }

    /// Shows `progress`, counted in bytes, in each phase that has a name.
    pub(super) fn watch(progress: &Arc<Progress>) -> Self {
        let (stop, stopped) = channel::<()>();
        let progress = Arc::clone(progress);
        let start = Instant::now();
        let draw = move || {
            if stopped.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            // indicatif draws to standard error, and only if it is a terminal.
            let (mut phase, mut bar) = (String::new(), ProgressBar::hidden());
            let mut since = start;
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let now = progress.phase();
                let (done, total) = progress.now();
                // Rate and remaining time are unknown until something is done.
                let bar_style = match (done, total) {
                    (_, 0) => elapsed_only(),
                    (0, _) => style(""),
                    _ => style(", {bytes_per_sec}, {eta} left"),
                };
                if now != phase {
                    bar.finish_and_clear();
                    // The first phase may have begun before the bar appeared.
                    let elapsed = since.elapsed();
                    // Setting the message draws the bar, so set its style first.
                    bar =
                        ProgressBar::new(total).with_style(bar_style.clone()).with_elapsed(elapsed);
                    bar.set_message(printable(&now));
                    phase = now;
                }
                bar.set_style(bar_style);
                bar.set_length(total);
                bar.set_position(done.min(total));
                since = Instant::now();
            }
            bar.finish_and_clear();
        };
        // Without a thread there is no bar, and the work continues.
        let thread = thread::Builder::new().name("progress".into()).spawn(draw).ok();
        Self { stop: Some(stop), thread }
    }
}

fn style(estimate: &str) -> ProgressStyle {
    let template =
        format!("archfs: {{msg}} {{wide_bar}} {{percent}}% of {{total_bytes}}{estimate}");
    ProgressStyle::with_template(&template).unwrap_or(ProgressStyle::default_bar())
}

/// The style for waits of unknown length: only the elapsed time.
fn elapsed_only() -> ProgressStyle {
    ProgressStyle::with_template("archfs: {msg} ({elapsed})")
        .unwrap_or(ProgressStyle::default_bar())
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic while drawing is already reported, and does not affect the work.
            let _ = thread.join();
        }
    }
}
