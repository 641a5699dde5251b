//! A process that opens and reads mutants, and asks the other reader about each.
//!
//! It limits its address space and measures peak memory. It prints each step, so the supervisor
//! knows which mutant crashed or hung. A panic ends the process, as it would end a mount.

use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use archfs::formats::{self, OpenOptions};
use archfs::progress::Progress;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::facts::{Facts, Naming};
use super::numbers::Numbers;
use super::oracle::Oracle;
use super::population::{Mutant, Population};
use super::rules::Format;
use super::verdict::Verdict;

/// Address space that archfs may use, including thread stacks.
const ADDRESSES: u64 = 1 << 30;

/// The cache for decoded blocks. Small, so that it is full.
const CACHE: u64 = 4 << 20;

/// The variable with the worker's orders.
pub(crate) const ORDER: &str = "ARCHFS_MUTANT_ORDER";

/// Mutants `first`, `first + step`, and so on below `end`.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) format: Format,
    pub(crate) seed: u64,
    pub(crate) first: u64,
    pub(crate) step: u64,
    pub(crate) end: u64,
    /// The directory of the sound archives, and of the mutants.
    pub(crate) directory: PathBuf,
    pub(crate) oracle: String,
}

impl Order {
    pub(crate) fn to_text(&self) -> String {
        let Self { format, seed, first, step, end, directory, oracle } = self;
        format!("{format:?}\t{seed}\t{first}\t{step}\t{end}\t{}\t{oracle}", directory.display())
    }

    pub(crate) fn of_text(text: &str) -> Self {
        let parts: Vec<&str> = text.split('\t').collect();
        let number = |nth: usize| parts[nth].parse().expect("a number");
        Self {
            format: match parts[0] {
                "Tar" => Format::Tar,
                "Zip" => Format::Zip,
                _ => Format::Squashfs,
            },
            seed: number(1),
            first: number(2),
            step: number(3),
            end: number(4),
            directory: PathBuf::from(parts[5]),
            oracle: parts[6].to_owned(),
        }
    }
}

/// Carries out the orders.
pub(crate) fn work(order: &Order) {
    let limit = Rlimit { current: Some(ADDRESSES), maximum: Some(ADDRESSES) };
    setrlimit(Resource::As, limit).expect("a limit");
    let mut oracle = Oracle::new(&order.oracle);
    let population = Population::load(order.format, &order.directory);
    let path = order.directory.join(format!("mutant-{}", order.first));
    let sound: Vec<Facts> = population
        .sound()
        .map(|(name, bytes)| {
            fs::write(&path, bytes).unwrap();
            let opened = open(order.format, &path, bytes, 0);
            let facts = opened.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(facts.refused.is_empty(), "{name}: {:?}", facts.refused);
            facts
        })
        .collect();
    let mut number = order.first;
    while number < order.end {
        let Mutant { seed, bytes } = population.mutant(order.seed, number);
        fs::write(&path, &bytes).unwrap();
        say(&format!("begin {number}"));
        let _ = fs::write("/proc/self/clear_refs", "5");
        let since = processor_micros();
        let opened = open(order.format, &path, &bytes, number);
        let micros = processor_micros() - since;
        let peak = peak_kib();
        say(&format!("read {number}"));
        let name = population.name(seed);
        match opened {
            Err(error) => {
                log(order, &format!("{name}: not opened: {error}"));
                say(&format!("done {number} {name} refused {micros} {peak} 0 0"));
            }
            Ok(ours) => {
                let theirs = oracle.ask(path.to_str().expect("a plain path"));
                let verdict = Verdict::of(order.format, &ours, &theirs, &sound[seed], name);
                let outcome = if ours.refused.is_empty() { "whole" } else { "partly" };
                for (key, why) in &ours.refused {
                    log(order, &format!("{name}: {key} refused: {why}"));
                }
                for fault in &ours.findings {
                    log(order, &format!("{name}: told {:?}: {}", fault.location, fault.what));
                }
                for wrong in verdict.wrong.iter().take(8) {
                    say(&format!("wrong {number} {name} {wrong}"));
                }
                let disputes: Vec<_> = verdict
                    .disputes
                    .iter()
                    .map(|(rule, count)| format!("{count}={rule}"))
                    .collect();
                say(&format!(
                    "done {number} {name} {outcome} {micros} {peak} {} {} {}",
                    verdict.right,
                    verdict.wrong.len(),
                    disputes.join("|")
                ));
            }
        }
        number += order.step;
    }
    say("end");
}

/// All facts that archfs returns for the archive at `path` with contents `bytes`.
fn open(format: Format, path: &Path, bytes: &[u8], number: u64) -> archfs::error::Result<Facts> {
    let options = OpenOptions { cache_bytes: CACHE, partial: true, ..OpenOptions::default() };
    let tree = formats::open(&[path.to_owned()], &options, &Progress::default())?;
    Ok(match format {
        Format::Squashfs => {
            let numbers = Numbers::of(bytes);
            Facts::of(tree.as_ref(), Naming::Reference(&numbers), number)
        }
        Format::Tar | Format::Zip => Facts::of(tree.as_ref(), Naming::Path, number),
    })
}

/// CPU time of all threads of this process, in microseconds. Unlike wall-clock time, it does not
/// depend much on the load of the machine.
fn processor_micros() -> i64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

/// Peak resident memory since the last call, in KiB.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().split(' ').next()?.parse().ok());
    number.unwrap_or(0)
}

/// Writes whole lines past the test's output capture.
fn say(line: &str) {
    let _ = stdout().write_all(format!("@{line}\n").as_bytes());
}

/// Printed only when a single mutant is replayed.
fn log(order: &Order, line: &str) {
    if order.first + 1 == order.end {
        say(&format!("note {line}"));
    }
}
