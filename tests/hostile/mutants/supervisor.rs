//! Runs the workers and restarts those that crash or hang.
//!
//! The test fails on a crash, a hang, too much memory, a wrong answer, or too few mutants that
//! could be read.

use std::io::{BufRead, BufReader, Write, stderr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::MUTANTS;
use super::rules::Format;
use super::table::{Done, Table};
use super::worker::{ORDER, Order};

/// CPU time that archfs may use for one mutant.
const PROCESSOR_MICROS: u64 = 5_000_000;

/// Wall-clock time after which archfs or the other reader counts as hanging, even on a busy
/// machine.
const HANGING: Duration = Duration::from_secs(120);

/// Resident memory allowed while a mutant is read: the cache, the program, the sound archives.
const MEMORY_KIB: u64 = 192 << 10;

/// Failures that are printed; more are only counted.
const TOLD: usize = 40;

/// Has workers read the mutants of `format`, made of the archives in `directory`.
pub(crate) fn run(format: Format, directory: &Path, oracle: &str) {
    let text = format!("{format:?}").to_lowercase();
    let number = |name: &str| Some(std::env::var(name).ok()?.parse::<u64>().expect(name));
    let seed = number("ARCHFS_SEED").unwrap_or(1);
    let (mut first, mut end) = (0, number("ARCHFS_MUTANTS").unwrap_or(MUTANTS));
    if let Ok(one) = std::env::var("ARCHFS_MUTANT") {
        let Some(one) = one.strip_prefix(&format!("{text}:")) else {
            return;
        };
        first = one.parse().expect("ARCHFS_MUTANT=FORMAT:NUMBER");
        end = first + 1;
    }
    let workers = thread::available_parallelism().map_or(2, |count| count.get() as u64);
    let workers = workers.min(end - first);
    let (table, failures) = (Mutex::new(Table::default()), Mutex::new(Vec::new()));
    let since = Instant::now();
    thread::scope(|scope| {
        for worker in 0..workers {
            let order = Order {
                format,
                seed,
                first: first + worker,
                step: workers,
                end,
                directory: directory.to_owned(),
                oracle: oracle.to_owned(),
            };
            let (table, failures) = (&table, &failures);
            scope.spawn(move || watch(order, table, failures));
        }
    });
    let (table, failures) = (table.into_inner().unwrap(), failures.into_inner().unwrap());
    let seconds = since.elapsed().as_secs();
    say(&format!("mutants of {text}, ARCHFS_SEED={seed}, {seconds} s\n{table}"));
    for failure in failures.iter().take(TOLD) {
        say(&format!("{failure}\n"));
    }
    if end - first == 1 {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mutant-{text}-{first}"));
        std::fs::copy(directory.join(format!("mutant-{first}")), &kept).unwrap();
        say(&format!("the mutant is kept as {}\n", kept.display()));
    }
    assert!(
        failures.is_empty(),
        "{} failures; to see one again: ARCHFS_SEED={seed} ARCHFS_MUTANT={text}:NUMBER",
        failures.len()
    );
    let sum = table.sum();
    assert_eq!(sum.mutants, end - first, "some were not read");
    if sum.mutants >= 1000 {
        let healthy = (sum.partly + sum.whole) * 100 / sum.mutants;
        assert!(healthy >= 40, "only {healthy} % could be opened: this tells too little");
        let facts = sum.right / sum.mutants;
        assert!(facts >= 100, "only {facts} facts a mutant: this tells too little");
        let allowed = table.by_rule() * 100;
        assert!(allowed <= sum.right * 2, "rules allow more than 2 % of what is compared");
    }
}

/// Runs workers until all mutants of `order` have been read.
fn watch(mut order: Order, table: &Mutex<Table>, failures: &Mutex<Vec<String>>) {
    let fail = |failure: String| failures.lock().unwrap().push(failure);
    while order.first < order.end {
        let (mut child, lines) = start(&order);
        let mut current = order.first;
        let ended = loop {
            let line = match lines.recv_timeout(HANGING) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => break format!("hangs for {HANGING:?}"),
                Err(RecvTimeoutError::Disconnected) => break String::from("crashed"),
            };
            let (what, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match what {
                "begin" => current = rest.parse().expect("a number"),
                "read" => {}
                "wrong" => fail(format!("wrong: {rest}")),
                "note" => say(&format!("{rest}\n")),
                "done" => {
                    let done = Done::of_text(rest);
                    if done.peak_kib > MEMORY_KIB {
                        fail(format!("mutant {current} took {} KiB", done.peak_kib));
                    }
                    if done.micros > PROCESSOR_MICROS {
                        fail(format!("mutant {current} took {} microseconds", done.micros));
                    }
                    table.lock().unwrap().add(&done);
                    order.first = current + order.step;
                }
                "end" => break String::new(),
                other => panic!("a worker says {other:?}"),
            }
        };
        let _ = child.kill();
        let status = child.wait().expect("a child");
        if ended.is_empty() {
            return;
        }
        fail(format!("mutant {current}: {ended}, {status}"));
        order.first = current + order.step;
    }
}

/// A worker, and the lines it prints.
fn start(order: &Order) -> (Child, Receiver<String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["mutants::worker", "--exact", "--ignored", "--nocapture"])
        .env(ORDER, order.to_text())
        // Each malloc arena takes 64 MiB of address space.
        .env("MALLOC_ARENA_MAX", "4")
        // Times in ZIP archives are local.
        .env("TZ", "UTC")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program");
    let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            if let Some(line) = line.strip_prefix('@')
                && sender.send(line.to_owned()).is_err()
            {
                return;
            }
        }
    });
    (child, lines)
}

/// Writes past the test's output capture, because the numbers are of interest after a success as
/// well.
fn say(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}
