//! A progress bar for a wait that a person would notice.
//!
//! Owns when it appears and what it says; leaves drawing to indicatif.
//! Invariant: nothing is drawn unless standard error is a terminal and the wait takes over a
//! second, and the line is clean again when the bar is dropped.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::log::printable;
use crate::progress::Progress;
use crate::sync::Arc;

/// Waits shorter than this go without a bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time between two looks at the progress.
const PERIOD: Duration = Duration::from_millis(100);

/// Shows a `Progress` until it is dropped.
pub(super) struct Bar {
    /// Dropped, it tells the thread to end.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Bar {
    /// Shows that `what` is waited for, and for how long; its end is not known.
    pub(super) fn wait(what: &str) -> Self {
        let progress = Arc::new(Progress::default());
        progress.begin(what);
        Self::watch(&progress)
    }

    /// Watches `progress`, a number of bytes, in each phase that has a name.
    pub(super) fn watch(progress: &Arc<Progress>) -> Self {
        let (stop, stopped) = channel::<()>();
        let progress = Arc::clone(progress);
        let begun = Instant::now();
        let draw = move || {
            if stopped.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            // Drawn to standard error, and only if that is a terminal.
            let (mut phase, mut bar) = (String::new(), ProgressBar::hidden());
            let mut since = begun;
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let now = progress.phase();
                let (done, total) = progress.now();
                // How fast it is and how long it will take can be told once something is done.
                let fitting = match (done, total) {
                    (_, 0) => plain(),
                    (0, _) => style(""),
                    _ => style(", {bytes_per_sec}, {eta} left"),
                };
                if now != phase {
                    bar.finish_and_clear();
                    // The first phase may have begun before there was something to see.
                    let elapsed = since.elapsed();
                    // Its message draws it, so it has to look right from the start.
                    bar = ProgressBar::new(total).with_style(fitting.clone()).with_elapsed(elapsed);
                    bar.set_message(printable(&now));
                    phase = now;
                }
                bar.set_style(fitting);
                bar.set_length(total);
                bar.set_position(done.min(total));
                since = Instant::now();
            }
            bar.finish_and_clear();
        };
        // Without a thread there is no bar, and no harm.
        let thread = thread::Builder::new().name("progress".into()).spawn(draw).ok();
        Self { stop: Some(stop), thread }
    }
}

fn style(estimate: &str) -> ProgressStyle {
    let template =
        format!("archfs: {{msg}} {{wide_bar}} {{percent}}% of {{total_bytes}}{estimate}");
    ProgressStyle::with_template(&template).unwrap_or(ProgressStyle::default_bar())
}

/// For what has no end that is known: for how long it goes on.
fn plain() -> ProgressStyle {
    ProgressStyle::with_template("archfs: {msg} ({elapsed})")
        .unwrap_or(ProgressStyle::default_bar())
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic while drawing has been told, and means nothing for the work.
            let _ = thread.join();
        }
    }
}
