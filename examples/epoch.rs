//! One epoch of a training job as the file system sees it: processes that open, read and close
//! files in shuffled order. The reader of `scripts/bench` and `scripts/bench-tar`; it is made to
//! cost little itself.
//!
//! Usage: epoch walk ROOT
//!        epoch read ROOT LIST PROCESSES SEED
//!
//! LIST holds paths below ROOT, one a line. Prints one line of numbers: files, bytes, seconds,
//! checksum.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["walk", root] => walk_timed(Path::new(root)),
        ["read", root, list, processes, seed] => {
            read_timed(root, list, processes.parse().unwrap(), seed);
        }
        ["worker", root, list, processes, seed, nth] => worker(
            Path::new(root),
            list,
            processes.parse().unwrap(),
            seed.parse().unwrap(),
            nth.parse().unwrap(),
        ),
        _ => panic!("usage: epoch walk ROOT | epoch read ROOT LIST PROCESSES SEED"),
    }
}

fn report(files: u64, bytes: u64, start: Instant, checksum: u64) {
    println!("{files} {bytes} {} {checksum:016x}", start.elapsed().as_secs_f64());
}

/// Lists every folder and asks for the attributes of everything in it.
fn walk_timed(root: &Path) {
    let start = Instant::now();
    let mut counts = (0, 0);
    walk(root, &mut counts);
    report(counts.0, counts.1, start, counts.0 ^ counts.1);
}

fn walk(folder: &Path, counts: &mut (u64, u64)) {
    for entry in fs::read_dir(folder).unwrap() {
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

/// Starts the workers, lets them go at once when all are ready, and adds up what they read.
fn read_timed(root: &str, list: &str, processes: usize, seed: &str) {
    let mut workers: Vec<Child> = (0..processes)
        .map(|nth| {
            Command::new(std::env::current_exe().unwrap())
                .args(["worker", root, list, &processes.to_string(), seed, &nth.to_string()])
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

/// Reads every `processes`-th file of the shuffled list, from the `nth` on.
fn worker(root: &Path, list: &str, processes: usize, seed: u64, nth: usize) {
    let text = fs::read_to_string(list).unwrap();
    let mut files: Vec<(usize, PathBuf)> =
        text.lines().enumerate().map(|(number, line)| (number, root.join(line))).collect();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for last in (1..files.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        files.swap(last, (state % (last as u64 + 1)) as usize);
    }
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
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

/// All bytes in words of eight, added up: as fast as memory, and sees any changed byte.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let whole = words.iter().map(|word| u64::from_le_bytes(*word)).fold(0_u64, u64::wrapping_add);
    rest.iter().fold(whole, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}
