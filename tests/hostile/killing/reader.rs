//! Processes that read the mount and compare the bytes with the source.
//!
//! Killing a daemon causes read errors, so errors are only counted. A wrong byte always fails the
//! test.
//!
//! A reader creates `begun.PART.PID` after its first correct read and writes its result to
//! `ended.PART.PID`. The first wrong bytes are in `wrong.PART.PID`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::plan::Random;
use crate::support::source::noise;

/// Ways to read.
pub(crate) const WAYS: [&str; 3] = ["by-path", "inside", "open"];
/// Reads everything once and fails at the first error.
pub(crate) const ONCE: &str = "once";

const FILES: u64 = 12;
const PIECE: u64 = 96 << 10;

/// Makes the source files. Some compress, so that decoding takes time.
pub(crate) fn make_source(directory: &Path) {
    fs::create_dir(directory).unwrap();
    for number in 0..FILES {
        let len = 600_000 + 123_457 * number as usize;
        let mut bytes = noise(number + 1, len);
        if number % 3 != 0 {
            bytes.iter_mut().for_each(|byte| *byte = b'a' + (*byte & 7));
        }
        fs::write(directory.join(format!("file-{number}")), bytes).unwrap();
    }
}

/// Settings of a reader, from its environment.
struct Reader {
    mount_point: PathBuf,
    source: PathBuf,
    results: PathBuf,
    /// Suffix of the names of its result files.
    part: String,
    /// Correct reads and errors so far.
    reads: u64,
    errors: u64,
    last_error: String,
}

pub(crate) fn main() {
    let Some(mount_point) = std::env::var_os("READ_MOUNT_POINT") else {
        return;
    };
    let path = |name: &str| PathBuf::from(std::env::var_os(name).expect(name));
    let text = |name: &str| std::env::var(name).expect(name);
    let reader = Reader {
        mount_point: mount_point.into(),
        source: path("READ_SOURCE"),
        results: path("READ_RESULTS"),
        part: format!("{}.{}", text("READ_PART"), std::process::id()),
        reads: 0,
        errors: 0,
        last_error: String::new(),
    };
    let way = text("READ_WAY");
    if way == ONCE {
        std::process::exit(reader.once());
    }
    reader.until_stopped(&way, text("READ_SEED").parse().unwrap());
    std::process::exit(0);
}

impl Reader {
    fn once(mut self) -> i32 {
        for number in 0..FILES {
            let name = format!("file-{number}");
            let read =
                File::open(self.mount_point.join(&name)).and_then(|file| self.all(&name, &file));
            if let Err(error) = read {
                eprintln!("reader: {name}: {error}");
                return 3;
            }
        }
        if let Err(error) = self.list(&self.mount_point.clone()) {
            eprintln!("reader: listing: {error}");
            return 3;
        }
        0
    }

    fn until_stopped(mut self, way: &str, seed: u64) {
        let mut random = Random(seed ^ u64::from(std::process::id()));
        let mount_point = match way {
            // This keeps the mount in use, and works after a lazy unmount.
            "inside" if std::env::set_current_dir(&self.mount_point).is_ok() => PathBuf::from("."),
            _ => self.mount_point.clone(),
        };
        let kept = (way == "open").then(|| File::open(mount_point.join("file-1")).ok()).flatten();
        let stop = self.results.join("stop");
        while !stop.exists() {
            let name = format!("file-{}", random.below(FILES));
            let chance = random.below(16);
            let read = match (&kept, chance) {
                (_, 0) => self.list(&mount_point),
                (_, 1) => {
                    File::open(mount_point.join(&name)).and_then(|file| self.all(&name, &file))
                }
                (Some(file), 2..6) => self.piece("file-1", file, &mut random),
                _ => File::open(mount_point.join(&name))
                    .and_then(|file| self.piece(&name, &file, &mut random)),
            };
            match read {
                Ok(()) => {
                    if self.reads == 0 {
                        self.write("begun", "");
                    }
                    self.reads += 1;
                    // The library needs a moment to map its table, and reading this file takes time.
                    if self.reads.is_power_of_two() && reads_directly() {
                        self.write("direct", "");
                    }
                }
                Err(error) => {
                    self.errors += 1;
                    self.last_error = error.to_string();
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        let text = format!("reads {} errors {} {}", self.reads, self.errors, self.last_error);
        self.write("ended", &text);
    }

    fn piece(&mut self, name: &str, file: &File, random: &mut Random) -> io::Result<()> {
        let source = File::open(self.source.join(name)).expect("the source");
        let start = random.below(source.metadata().expect("the source").len());
        self.compare(name, file, &source, start, PIECE)
    }

    fn all(&mut self, name: &str, file: &File) -> io::Result<()> {
        let source = File::open(self.source.join(name)).expect("the source");
        let len = source.metadata().expect("the source").len();
        if file.metadata()?.len() != len {
            self.wrong(&format!("{name}: size"));
        }
        // Also past the end of the file.
        (0..=len)
            .step_by(PIECE as usize)
            .try_for_each(|start| self.compare(name, file, &source, start, PIECE))
    }

    fn compare(
        &mut self,
        name: &str,
        file: &File,
        source: &File,
        start: u64,
        len: u64,
    ) -> io::Result<()> {
        let read = |file: &File| -> io::Result<Vec<u8>> {
            let mut bytes = vec![0; len as usize];
            let mut filled = 0;
            while filled < bytes.len() {
                match file.read_at(&mut bytes[filled..], start + filled as u64) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            bytes.truncate(filled);
            Ok(bytes)
        };
        let (found, expected) = (read(file)?, read(source).expect("the source"));
        if found != expected {
            let (found_len, len) = (found.len(), expected.len());
            let same = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
            self.wrong(&format!(
                "{name} at {start}: {found_len} bytes instead of {len}, differing from {same} on"
            ));
        }
        Ok(())
    }

    fn list(&mut self, directory: &Path) -> io::Result<()> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(directory)? {
            names.insert(entry?.file_name().to_string_lossy().into_owned());
        }
        if names.is_empty() {
            return Err(io::Error::other("an empty directory, so nothing is mounted"));
        }
        let expected: BTreeSet<_> = (0..FILES).map(|number| format!("file-{number}")).collect();
        if names != expected {
            self.wrong(&format!("listing: {names:?}"));
        }
        Ok(())
    }

    fn wrong(&self, what: &str) {
        eprintln!("reader: wrong: {what}");
        self.write("wrong", what);
        std::process::exit(7);
    }

    fn write(&self, kind: &str, text: &str) {
        fs::write(self.results.join(format!("{kind}.{}", self.part)), text).expect("the results");
    }
}

/// Whether the library of `run --direct` has mapped the table of positions into this process.
fn reads_directly() -> bool {
    fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains("/memfd:archfs"))
}
