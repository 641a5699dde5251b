//! Reads files that the kernel generates, in /proc and /sys.
//!
//! stat(2) reports length 0 for them, so the standard library needs ten or more calls for such a
//! file: it reads 32 bytes, then 32, 64 and so on.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Initial buffer size in bytes; larger than most of these files.
const INITIAL_CAPACITY: usize = 4096;

/// Reads all of `path`.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(INITIAL_CAPACITY);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads all of `path` as text.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The value of the line `name` in the status file of `process`, a directory of /proc (proc(5)).
pub fn status(process: &Path, name: &str) -> Option<String> {
    let text = read_text(process.join("status")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// The same for this process.
pub fn own_status(name: &str) -> Option<String> {
    status(Path::new("/proc/self"), name)
}

/// An amount of memory in the status file of this process, in bytes.
pub fn own_memory(name: &str) -> Option<u64> {
    own_status(name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The umask of this process.
pub fn umask() -> u32 {
    let mask = own_status("Umask");
    mask.and_then(|mask| u32::from_str_radix(&mask, 8).ok()).unwrap_or(0o077)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_status() {
        assert!(matches!(own_status("NoNewPrivs").as_deref(), Some("0" | "1")));
        assert_eq!(own_status("None"), None);
    }
}
