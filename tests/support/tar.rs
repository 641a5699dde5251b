//! Makes tar archives, with GNU tar or byte by byte.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::run;

/// Makes a tar of the contents of `directory` with GNU tar, sorted by name.
pub fn pack(archive: &Path, directory: &Path) {
    let script = "cd \"$1\" && tar --sort=name --format=gnu --sparse --xattrs -cf \"$2\" *";
    run(Command::new("sh").args(["-c", script, "sh"]).arg(directory).arg(archive));
}

/// A tar.gz that takes some time to open: one member of zeros, `times` times 256 MiB.
pub fn slow_archive(directory: &Path, times: usize) -> PathBuf {
    compressed_zeros(directory, "slow.tar.gz", "gzip -1", times)
}

/// The same as a tar.bz2, which takes some ten times as long for each 256 MiB, and is small.
pub fn slower_archive(directory: &Path, times: usize) -> PathBuf {
    compressed_zeros(directory, "slow.tar.bz2", "bzip2", times)
}

/// The tar ends after its member, without an end mark.
fn compressed_zeros(directory: &Path, name: &str, compress: &str, times: usize) -> PathBuf {
    let path = directory.join(name);
    let script = "cd \"$1\"; truncate -s $((268435456 * $3)) zeros; tar -cf - zeros | head -c 512 | $2 > head; \
                  head -c 268435456 /dev/zero | $2 > piece; rm zeros";
    let mut make = Command::new("sh");
    run(make.args(["-c", script, "sh"]).arg(directory).args([compress, &times.to_string()]));
    let mut out = File::create(&path).unwrap();
    out.write_all(&fs::read(directory.join("head")).unwrap()).unwrap();
    let piece = fs::read(directory.join("piece")).unwrap();
    for _ in 0..times {
        out.write_all(&piece).unwrap();
    }
    path
}

/// A tar of regular files.
pub fn of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        files.iter().flat_map(|(name, data)| member(name, b'0', "", data)).collect();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// One member: header and padded data.
pub fn member(name: &str, kind: u8, link: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = header(name, kind, link, data.len() as u64).to_vec();
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// The header of a member with `len` bytes of data.
pub fn header(name: &str, kind: u8, link: &str, len: u64) -> [u8; 512] {
    let mut header = [0_u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000644\0");
    header[108..116].copy_from_slice(b"0000007\0");
    header[116..124].copy_from_slice(b"0000010\0");
    header[124..136].copy_from_slice(format!("{len:011o}\0").as_bytes());
    header[136..148].copy_from_slice(b"00000000001\0");
    header[156] = kind;
    header[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}
