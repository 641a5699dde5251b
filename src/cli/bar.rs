//! Shows long waits: as a bar on a terminal, as lines in the log of a job.
//!
//! Invariant: a wait of less than a second shows nothing, one of less than five seconds nothing off
//! a terminal. The bar is cleared when it is dropped.

use std::fmt::Write;
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use super::term;
use crate::log::{Verbosity, printable, verbosity};
use crate::progress::Progress;
use crate::sync::Arc;
use crate::units::{format_duration, format_size};

const PATIENCE: Duration = Duration::from_secs(1);

const PERIOD: Duration = Duration::from_millis(100);

/// Phases that are shorter print no lines.
const LOG_PATIENCE: Duration = Duration::from_secs(5);

/// Time between two lines of a phase.
const LOG_PERIOD: Duration = Duration::from_secs(30);

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

    /// Shows `progress`, counted in bytes, in each phase that has a name, unless archfs is quiet.
    pub(super) fn watch(progress: &Arc<Progress>) -> Self {
        if verbosity() == Verbosity::Quiet {
            return Self { stop: None, thread: None };
        }
        let (stop, stopped) = channel::<()>();
        let progress = Arc::clone(progress);
        let show = if stderr().is_terminal() { draw } else { log };
        let show = move || show(&progress, &stopped);
        // Without a thread nothing is shown, and the work continues.
        let thread = thread::Builder::new().name("progress".into()).spawn(show).ok();
        Self { stop: Some(stop), thread }
    }
}

/// Whether the wait goes on after this time.
fn goes_on(stopped: &Receiver<()>, time: Duration) -> bool {
    stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
}

fn draw(progress: &Progress, stopped: &Receiver<()>) {
    let start = Instant::now();
    if !goes_on(stopped, PATIENCE) {
        return;
    }
    // indicatif draws to standard error, and only if it is a terminal.
    let (mut phase, mut bar) = (String::new(), ProgressBar::hidden());
    let mut since = start;
    while goes_on(stopped, PERIOD) {
        let now = progress.phase();
        let (done, total) = progress.now();
        // Rate and remaining time are unknown until something is done.
        let bar_style = match (done, total) {
            (_, 0) => elapsed_only(),
            (0, _) => style(""),
            _ => style("{pace}"),
        };
        if now != phase {
            bar.finish_and_clear();
            // The first phase may have begun before the bar appeared.
            let elapsed = since.elapsed();
            // Setting the message draws the bar, so set the rest first.
            bar = ProgressBar::new(total)
                .with_style(bar_style.clone())
                .with_elapsed(elapsed)
                .with_position(done.min(total));
            bar.set_message(printable(&now));
            phase = now;
        }
        bar.set_style(bar_style);
        bar.set_length(total);
        bar.set_position(done.min(total));
        since = Instant::now();
    }
    bar.finish_and_clear();
}

/// The style for waits of known length. Sizes have the form that they have in all messages.
fn style(estimate: &str) -> ProgressStyle {
    let template = format!("archfs: {{msg}} {{wide_bar}} {{percent}}% of {{size}}{estimate}");
    let style = ProgressStyle::with_template(&template).unwrap_or(ProgressStyle::default_bar());
    let size = |state: &ProgressState, text: &mut dyn Write| {
        let _ = text.write_str(&format_size(state.len().unwrap_or_default()));
    };
    // The rate of indicatif begins with the bar, and not with the phase.
    let pace = |state: &ProgressState, text: &mut dyn Write| {
        let (done, total) = (state.pos(), state.len().unwrap_or_default());
        let _ = text.write_str(&pace(done, total, state.elapsed()).unwrap_or_default());
    };
    style.with_key("size", size).with_key("pace", pace)
}

/// The style for waits of unknown length: only the elapsed time.
fn elapsed_only() -> ProgressStyle {
    ProgressStyle::with_template("archfs: {msg} ({elapsed})")
        .unwrap_or(ProgressStyle::default_bar())
}

fn log(progress: &Progress, stopped: &Receiver<()>) {
    let mut phase = Phase::default();
    let mut print = |line: String| term::print_note(&line);
    phase.look(progress, Instant::now(), &mut print);
    while goes_on(stopped, PERIOD) {
        phase.look(progress, Instant::now(), &mut print);
    }
    phase.end(Instant::now(), &mut print);
}

/// A phase of the work, as lines show it.
#[derive(Default)]
struct Phase {
    name: String,
    /// When it began, and when the next line is due. `None` before the first phase.
    times: Option<(Instant, Instant)>,
    done: u64,
    /// Since when that has not changed.
    still_since: Option<Instant>,
    has_lines: bool,
}

impl Phase {
    /// Prints a line if one is due.
    fn look(&mut self, progress: &Progress, now: Instant, print: &mut dyn FnMut(String)) {
        let (name, (done, total)) = (progress.phase(), progress.now());
        if self.times.is_none() || name != self.name {
            self.end(now, print);
            let times = Some((now, now + LOG_PATIENCE));
            *self = Self { name, times, done, still_since: Some(now), has_lines: false };
            return;
        }
        let since = self.still_since.filter(|_| done == self.done).unwrap_or(now);
        (self.done, self.still_since) = (done, Some(since));
        let Some((began, due)) = self.times.filter(|(_, due)| now >= *due) else { return };
        if self.name.is_empty() {
            return;
        }
        self.times = Some((began, due + LOG_PERIOD));
        self.has_lines = true;
        let [time, still] = [began, since].map(|start| now.saturating_duration_since(start));
        print(format!("{}: {}", printable(&self.name), so_far(done, total, time, still)));
    }

    /// Prints how long it took, if it has printed other lines.
    fn end(&mut self, now: Instant, print: &mut dyn FnMut(String)) {
        let Some((began, _)) = self.times.filter(|_| self.has_lines) else { return };
        let time = now.saturating_duration_since(began);
        let mut line = format!("{}: ended after {}", printable(&self.name), format_duration(time));
        if let Some(rate) = rate(self.done, time) {
            line.push_str(&format!(", {}/s", format_size(rate)));
        }
        print(line);
    }
}

/// How much is done, and how long the rest will take, unless nothing was done for the time `still`.
fn so_far(done: u64, total: u64, time: Duration, still: Duration) -> String {
    let elapsed = format!("{} so far", format_duration(time));
    if total == 0 {
        return elapsed;
    }
    let done = done.min(total);
    let percent = u128::from(done) * 100 / u128::from(total);
    let share = format!("{percent}% of {}, {elapsed}", format_size(total));
    if still >= LOG_PATIENCE && done < total {
        return format!("{share}, no progress for {}", format_duration(still));
    }
    share + &pace(done, total, time).unwrap_or_default()
}

/// The bytes per second, and the time that is left, if anything is done.
fn pace(done: u64, total: u64, time: Duration) -> Option<String> {
    let rate = rate(done, time)?;
    let left = match total.saturating_sub(done) / rate {
        seconds @ ..60 => format!("{seconds} s"),
        seconds => format_duration(Duration::from_secs(seconds)),
    };
    Some(format!(", {}/s, {left} left", format_size(rate)))
}

/// Bytes per second, if there are any.
fn rate(done: u64, time: Duration) -> Option<u64> {
    let milliseconds = time.as_millis().max(1);
    let rate = u128::from(done) * 1000 / milliseconds;
    u64::try_from(rate).ok().filter(|rate| *rate > 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of phases that are looked at each second. A phase is a name, bytes per second and
    /// seconds.
    fn lines(phases: &[(&str, u64, u64)]) -> Vec<String> {
        let progress = Progress::default();
        let (mut phase, mut found, start) = (Phase::default(), Vec::new(), Instant::now());
        let mut now = start;
        for (name, rate, seconds) in phases {
            progress.begin(*name);
            progress.expect(rate * 100);
            for _ in 0..=*seconds {
                phase.look(&progress, now, &mut |line| found.push(line));
                progress.advance(*rate);
                now += Duration::from_secs(1);
            }
        }
        phase.end(now, &mut |line| found.push(line));
        found
    }

    #[test]
    fn a_short_phase_prints_nothing() {
        assert!(lines(&[("one", 5, 4), ("two", 5, 4), ("", 0, 40)]).is_empty());
    }

    #[test]
    fn a_long_phase_prints_a_line_after_five_seconds_each_half_minute_and_at_its_end() {
        assert_eq!(
            lines(&[("short", 1, 3), ("copying", 1 << 20, 60), ("waiting", 0, 6)]),
            [
                "copying: 5% of 100.0 MiB, 5.0 s so far, 1.0 MiB/s, 1m 35s left",
                "copying: 35% of 100.0 MiB, 35.0 s so far, 1.0 MiB/s, 1m 5s left",
                "copying: ended after 1m 1s, 1007.2 KiB/s",
                "waiting: 5.0 s so far",
                "waiting: ended after 7.0 s",
            ]
        );
    }

    #[test]
    fn nothing_is_estimated_before_something_is_done() {
        assert_eq!(so_far(0, 2048, LOG_PATIENCE, Duration::ZERO), "0% of 2.0 KiB, 5.0 s so far");
        assert_eq!(
            so_far(9, 8, LOG_PATIENCE, LOG_PATIENCE),
            "100% of 8 B, 5.0 s so far, 1 B/s, 0 s left"
        );
    }

    #[test]
    fn nothing_is_estimated_while_nothing_is_done() {
        let still =
            |seconds| so_far(1 << 20, 2 << 20, 2 * LOG_PATIENCE, Duration::from_secs(seconds));
        assert_eq!(still(4), "50% of 2.0 MiB, 10.0 s so far, 102.3 KiB/s, 10 s left");
        assert_eq!(still(5), "50% of 2.0 MiB, 10.0 s so far, no progress for 5.0 s");
    }
}
