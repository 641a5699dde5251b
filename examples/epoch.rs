//! One epoch of a training job as the file system sees it: processes that open, read and close
//! files in shuffled order, or read one large file. `scripts/bench/run` uses it as its reader, so it is
//! written to cost little itself.
//!
//! Usage: epoch walk ROOT
//!        epoch read ROOT LIST PROCESSES SEED        all files of LIST, complete, in shuffled order
//!        epoch sequence FILE                        one file from start to end
//!        epoch offsets FILE PROCESSES COUNT SEED   COUNT random reads of 4 KiB per process
//!
//! LIST holds paths below ROOT, one per line. Prints one line of numbers: files (or reads), bytes,
//! seconds, checksum. The time runs from when all processes are ready until the last one is done.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Bytes per read of a sequential reader.
const SEQUENCE_BYTES: usize = 1 << 20;
const RANDOM_BYTES: usize = 4096;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["walk", root] => walk_timed(Path::new(root)),
        ["sequence", file] => sequence_timed(Path::new(file)),
        ["read", root, list, processes, seed] => {
            workers_timed(processes.parse().unwrap(), &["read-one", root, list, processes, seed]);
        }
        ["offsets", file, processes, count, seed] => {
            workers_timed(processes.parse().unwrap(), &["offsets-one", file, count, seed]);
        }
        ["read-one", root, list, processes, seed, nth] => read_one(
            Path::new(root),
            list,
            processes.parse().unwrap(),
            seed.parse().unwrap(),
            nth.parse().unwrap(),
        ),
        ["offsets-one", file, count, seed, nth] => random_reads_one(
            Path::new(file),
            count.parse().unwrap(),
            seed.parse::<u64>().unwrap() * 1000 + nth.parse::<u64>().unwrap(),
        ),
        _ => panic!("usage: epoch walk ROOT | read ROOT LIST PROCESSES SEED | sequence FILE | ..."),
    }
}

fn report(files: u64, bytes: u64, start: Instant, checksum: u64) {
    println!("{files} {bytes} {} {checksum:016x}", start.elapsed().as_secs_f64());
}

/// Lists every directory and stats everything in it.
fn walk_timed(root: &Path) {
    let start = Instant::now();
    let mut counts = (0, 0);
    walk(root, &mut counts);
    report(counts.0, counts.1, start, counts.0 ^ counts.1);
}

fn walk(directory: &Path, counts: &mut (u64, u64)) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let found = entry.metadata().unwrap();
        counts.0 += 1;
        if found.is_dir() {
            walk(&entry.path(), counts);
        } else {
            counts.1 += found.len();
        }
    }
}

/// Reads a file as `cat` does. The checksum does not depend on the sizes of the reads.
fn sequence_timed(path: &Path) {
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0; SEQUENCE_BYTES];
    let (mut bytes, mut checksum) = (0_u64, 0_u64);
    let start = Instant::now();
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read(&mut buffer[filled..]).unwrap() {
                0 => break,
                count => filled += count,
            }
        }
        if filled == 0 {
            break;
        }
        bytes += filled as u64;
        checksum = checksum.wrapping_mul(31).wrapping_add(sum(&buffer[..filled]));
    }
    report(1, bytes, start, checksum);
}

/// Starts the workers, releases them together when all are ready, and adds up their results. Each
/// gets `arguments` and its number.
fn workers_timed(processes: usize, arguments: &[&str]) {
    let mut workers: Vec<Child> = (0..processes)
        .map(|nth| {
            Command::new(std::env::current_exe().unwrap())
                .args(arguments)
                .arg(nth.to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut outputs: Vec<_> =
        workers.iter_mut().map(|worker| BufReader::new(worker.stdout.take().unwrap())).collect();
    let mut line = String::new();
    for output in &mut outputs {
        output.read_line(&mut line).unwrap();
    }
    let start = Instant::now();
    for worker in &mut workers {
        worker.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
    let (mut files, mut bytes, mut checksum) = (0, 0, 0_u64);
    for output in &mut outputs {
        line.clear();
        output.read_line(&mut line).unwrap();
        let numbers: Vec<u64> =
            line.split_whitespace().map(|number| number.parse().unwrap()).collect();
        files += numbers[0];
        bytes += numbers[1];
        checksum = checksum.wrapping_add(numbers[2]);
    }
    report(files, bytes, start, checksum);
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
}

/// Reads every `processes`-th file of the shuffled list, starting with the `nth`.
fn read_one(root: &Path, list: &str, processes: usize, seed: u64, nth: usize) {
    let text = fs::read_to_string(list).unwrap();
    let mut files: Vec<(usize, PathBuf)> =
        text.lines().enumerate().map(|(number, line)| (number, root.join(line))).collect();
    let mut random = Random::seeded(seed);
    for last in (1..files.len()).rev() {
        files.swap(last, random.below(last as u64 + 1) as usize);
    }
    wait_for_start();
    let mut buffer = Vec::new();
    let (mut count, mut bytes, mut checksum) = (0_u64, 0_u64, 0_u64);
    for (number, file) in files.iter().skip(nth).step_by(processes) {
        let mut file = File::open(file).unwrap();
        let size = file.metadata().unwrap().len() as usize;
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        file.read_exact(&mut buffer[..size]).unwrap();
        count += 1;
        bytes += size as u64;
        checksum = checksum.wrapping_add(sum(&buffer[..size]).wrapping_mul(*number as u64 | 1));
    }
    println!("{count} {bytes} {checksum}");
}

/// Reads 4 KiB at `count` random multiples of 4 KiB.
fn random_reads_one(path: &Path, count: u64, seed: u64) {
    let file = File::open(path).unwrap();
    let blocks = file.metadata().unwrap().len() / RANDOM_BYTES as u64;
    let mut random = Random::seeded(seed);
    let mut buffer = [0; RANDOM_BYTES];
    let mut checksum = 0_u64;
    wait_for_start();
    for _ in 0..count {
        let index = random.below(blocks);
        file.read_exact_at(&mut buffer, index * RANDOM_BYTES as u64).unwrap();
        checksum = checksum.wrapping_add(sum(&buffer).wrapping_mul(index | 1));
    }
    println!("{count} {} {checksum}", count * RANDOM_BYTES as u64);
}

fn wait_for_start() {
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Marsaglia's xorshift with 64 bits.
struct Random(u64);

impl Random {
    fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The sum of all 8-byte words: as fast as memory, and detects any changed byte.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let whole = words.iter().map(|word| u64::from_le_bytes(*word)).fold(0_u64, u64::wrapping_add);
    rest.iter().fold(whole, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}
