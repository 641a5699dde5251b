//! Runs the programs that compress a tar.
//!
//! If a program is missing, the test says so, and fails in CI.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::run;
use super::skip::skip_part;

/// A way to compress a file: the program, and a shell line in which $1 is the file and $2 the
/// compressed file.
#[derive(Clone, Copy, Debug)]
pub struct Packer {
    pub program: &'static str,
    pub line: &'static str,
}

const fn packer(program: &'static str, line: &'static str) -> Packer {
    Packer { program, line }
}

pub const GZIP: &[Packer] = &[
    packer("gzip", "gzip -1 -c < $1 > $2"),
    packer("gzip", "gzip -9 -c < $1 > $2"),
    packer("pigz", "pigz -c < $1 > $2"),
    packer("pigz", "pigz -i -b 128 -c < $1 > $2"),
    packer("bgzip", "bgzip -c < $1 > $2"),
    packer("gzip", "split -b 3000000 --filter='gzip -c' $1 > $2"),
];

pub const BZIP2: &[Packer] = &[
    packer("bzip2", "bzip2 -1 -c < $1 > $2"),
    packer("bzip2", "bzip2 -9 -c < $1 > $2"),
    packer("pbzip2", "pbzip2 -c < $1 > $2"),
    packer("lbzip2", "lbzip2 -c < $1 > $2"),
];

pub const XZ: &[Packer] = &[
    packer("xz", "xz -1 -T1 -c < $1 > $2"),
    packer("xz", "xz -0 -T0 --block-size=1MiB -c < $1 > $2"),
    packer("xz", "xz -0 --x86 --lzma2=preset=0 -c < $1 > $2"),
    packer("pixz", "pixz -1 $1 $2"),
];

pub const ZSTD: &[Packer] = &[
    packer("zstd", "zstd -q -c < $1 > $2"),
    packer("zstd", "zstd -q --content-size --no-check -c $1 > $2"),
    packer("zstd", "zstd -q --long -c < $1 > $2"),
    packer("pzstd", "pzstd -q -c $1 > $2"),
    packer("zstd", "split -b 300000 --filter='zstd -q -c' $1 > $2"),
];

pub const LZ4: &[Packer] = &[
    packer("lz4", "lz4 -B4 -c < $1 > $2"),
    packer("lz4", "lz4 -B7 -c < $1 > $2"),
    packer("lz4", "lz4 -BD -c < $1 > $2"),
    packer("lz4", "lz4 -B5 -BX --content-size -c $1 > $2"),
    packer("lz4", "lz4 -l -c < $1 > $2"),
    packer("lz4", "split -b 3000000 --filter='lz4 -c' $1 > $2"),
];

/// The predecessor of xz, and a rival of it.
pub const LZMA: &[Packer] = &[
    packer("xz", "xz --format=lzma -1 -c < $1 > $2"),
    packer("lzip", "lzip -1 -c < $1 > $2"),
    packer("lzip", "split -b 3000000 --filter='lzip -1 -c' $1 > $2"),
];

impl Packer {
    /// Compresses `file` to `target`; `None`, with a message, if the program is missing.
    pub fn pack(&self, file: &Path, target: &Path) -> Option<PathBuf> {
        if !is_there(self.program) {
            return None;
        }
        let mut shell = Command::new("bash");
        shell.args(["-ec", self.line, "bash"]).arg(file).arg(target);
        run(&mut shell);
        Some(target.to_owned())
    }
}

/// Whether `program` is installed.
pub fn is_there(program: &str) -> bool {
    let mut shell = Command::new("sh");
    let found = shell.args(["-c", "command -v \"$1\"", "sh", program]).output().unwrap();
    if found.status.success() {
        return true;
    }
    // Some of these have no package in other distributions.
    let rare = ["bgzip", "lbzip2", "pbzip2", "pixz", "pzstd"].contains(&program);
    let may_lack = rare && !Path::new("/etc/debian_version").exists();
    assert!(
        std::env::var_os("CI").is_none() || may_lack,
        "CI must have {program}: scripts/install-deps test"
    );
    skip_part(&format!("{program} is not installed, so what it writes is not tested"));
    false
}

/// A seekable zstd file (zstd_seekable_compression_format.md): frames of `frame` bytes and a table.
pub fn seekable_zstd(bytes: &[u8], frame: usize) -> Vec<u8> {
    let (mut out, mut table) = (Vec::new(), Vec::new());
    for part in bytes.chunks(frame) {
        let packed = zstd::bulk::compress(part, 3).unwrap();
        for size in [packed.len(), part.len()] {
            table.extend(u32::try_from(size).unwrap().to_le_bytes());
        }
        out.extend(packed);
    }
    out.extend(0x184d_2a5e_u32.to_le_bytes());
    out.extend(u32::try_from(table.len() + 9).unwrap().to_le_bytes());
    out.extend(&table);
    out.extend(u32::try_from(table.len() / 8).unwrap().to_le_bytes());
    out.push(0);
    out.extend(0x8f92_eab1_u32.to_le_bytes());
    out
}
