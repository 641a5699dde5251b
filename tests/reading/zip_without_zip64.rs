//! ZIP archives of more than 4 GiB without ZIP64 records, as the archive program of macOS writes
//! them: offsets and lengths are recorded modulo 4 GiB. 7-Zip reads all of an archive for that, so it
//! is asked only if ARCHFS_LONG_TESTS is set.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use archfs::formats::OpenOptions;
use archfs::vfs::{Scratch, resolve};
use crc32fast::Hasher;

use crate::support::{archfs, run, tree, work_directory};

const GIB: u64 = 1 << 30;

/// An archive that is being written.
struct Maker {
    file: File,
    len: u64,
    directory: Vec<u8>,
    count: u16,
}

/// The checksum of `count` pieces, each of which has the checksum `piece`.
fn repeated(piece: &Hasher, count: u64) -> Hasher {
    let (mut sum, mut power, mut left) = (Hasher::new(), piece.clone(), count);
    while left > 0 {
        if left % 2 == 1 {
            sum.combine(&power);
        }
        power.combine(&power.clone());
        left /= 2;
    }
    sum
}

fn of_bytes(bytes: &[u8]) -> Hasher {
    let mut sum = Hasher::new();
    sum.update(bytes);
    sum
}

fn zeros(len: u64) -> Hasher {
    repeated(&of_bytes(&[0; 4096]), len / 4096)
}

impl Maker {
    fn new(path: &Path) -> Self {
        Self { file: File::create(path).unwrap(), len: 0, directory: Vec::new(), count: 0 }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.file.write_all_at(bytes, self.len).unwrap();
        self.len += bytes.len() as u64;
    }

    /// Adds a member of `packed` and a hole of `hole` bytes, which have `size` bytes and this
    /// checksum when they are decoded.
    fn add(&mut self, name: &str, method: u16, (packed, hole): (&[u8], u64), size: u64, sum: u32) {
        let offset = self.len as u32;
        let lens = [(packed.len() as u64 + hole) as u32, size as u32];
        let numbers = [sum, lens[0], lens[1]].map(u32::to_le_bytes).concat();
        // Version, flags (a data descriptor), method, time and date.
        let start = [&[20, 0, 8, 0][..], &method.to_le_bytes(), &[0, 0x60, 0x21, 0x5a]].concat();
        let name_len = (name.len() as u16).to_le_bytes();
        let local = [b"PK\x03\x04", &start[..], &[0; 12], &name_len, &[0; 2], name.as_bytes()];
        self.write(&local.concat());
        self.write(packed);
        self.len += hole;
        self.write(&[b"PK\x07\x08", &numbers[..]].concat());
        let rest = [&[0; 8][..], &0x81a4_0000_u32.to_le_bytes(), &offset.to_le_bytes()].concat();
        let entry = [b"PK\x01\x02", &[21, 3][..], &start, &numbers, &name_len, &rest];
        self.directory.extend([&entry.concat()[..], name.as_bytes()].concat());
        self.count += 1;
    }

    fn add_stored(&mut self, name: &str, bytes: &[u8], hole: u64) {
        let mut sum = of_bytes(bytes);
        sum.combine(&zeros(hole));
        self.add(name, 0, (bytes, hole), bytes.len() as u64 + hole, sum.finalize());
    }

    fn finish(mut self) {
        let (offset, count) = (self.len as u32, self.count.to_le_bytes());
        let directory = std::mem::take(&mut self.directory);
        let len = directory.len() as u32;
        let end = [b"PK\x05\x06\0\0\0\0", &count[..], &count, &len.to_le_bytes()];
        let end = [&end.concat()[..], &offset.to_le_bytes(), &[0; 2]].concat();
        self.write(&[directory, end].concat());
    }
}

fn by_archfs(archive: &Path, name: &str) -> Vec<u8> {
    run(archfs().arg("cat").arg(archive).arg(name)).stdout
}

/// All of the archive is read by archfs and, if it can read such archives, by 7-Zip.
fn verify_if_long(archive: &Path, is_read_by_7_zip: bool) {
    if std::env::var_os("ARCHFS_LONG_TESTS").is_none() {
        return;
    }
    run(archfs().args(["verify", "-q"]).arg(archive));
    if is_read_by_7_zip {
        run(Command::new("7z").arg("t").arg(archive));
    }
}

#[test]
fn offsets_of_more_than_4_gib_are_those_of_the_members_in_order() {
    let work = work_directory();
    // Holes of 1 GiB each: offsets alone are too large. One of 5 GiB: its lengths are as well.
    for (nth, holes) in [vec![GIB; 5], vec![0, 5 * GIB, 0]].into_iter().enumerate() {
        let archive = work.path().join(format!("{nth}.zip"));
        let mut maker = Maker::new(&archive);
        for (nth, &hole) in holes.iter().enumerate() {
            maker.add_stored(&format!("d/small{nth}"), format!("file {nth}\n").as_bytes(), 0);
            maker.add_stored(&format!("d/big{nth}"), b"head", hole);
        }
        maker.add_stored("d/last", b"the last file\n", 0);
        maker.finish();
        let listed = run(archfs().args(["ls", "-l"]).arg(&archive).arg("d")).stdout;
        let listed = String::from_utf8(listed).unwrap();
        for (nth, hole) in holes.iter().enumerate() {
            let text = format!("file {nth}\n");
            assert_eq!(by_archfs(&archive, &format!("d/small{nth}")), text.as_bytes());
            let size = (hole + 4).to_string();
            let line = listed.lines().find(|line| line.ends_with(&format!("big{nth}"))).unwrap();
            assert!(line.split_whitespace().any(|word| word == size), "{size}: {line}");
        }
        assert_eq!(by_archfs(&archive, "d/last"), b"the last file\n");
        // 7-Zip extracts the second one as well, but says that its headers are wrong.
        verify_if_long(&archive, nth == 0);
    }
}

/// An archive with a member of 4 GiB and 4096 bytes of zeros, compressed by DEFLATE.
fn with_long_deflated(directory: &Path) -> PathBuf {
    const BLOCK: u64 = 16 << 20;
    // A block that ends at a byte can be repeated.
    let script = "import sys, zlib
def deflated(size, flush):
    encoder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return encoder.compress(bytes(size)) + encoder.flush(flush)
block, last = deflated(1 << 24, zlib.Z_FULL_FLUSH), deflated(4096, zlib.Z_FINISH)
sys.stdout.buffer.write(block * 256 + last)";
    let packed = run(Command::new("python3").args(["-c", script])).stdout;
    let size = 256 * BLOCK + 4096;
    let archive = directory.join("deflated.zip");
    let mut maker = Maker::new(&archive);
    maker.add_stored("first", b"first\n", 0);
    maker.add("big", 8, (&packed, 0), size, zeros(size).finalize());
    maker.add_stored("last", b"last\n", 0);
    maker.finish();
    archive
}

#[test]
fn a_compressed_member_of_more_than_4_gib_has_its_whole_length() {
    let work = work_directory();
    let archive = with_long_deflated(work.path());
    let tree = tree::open(std::slice::from_ref(&archive), OpenOptions::default()).unwrap();
    let attr = resolve(tree.as_ref(), b"big").unwrap();
    assert_eq!(attr.size, (4 * GIB) + 4096);
    let mut scratch = Scratch::default();
    let end = tree.read(attr.ino, attr.size - 10, 100, &mut scratch).unwrap();
    assert_eq!(end.as_slice(), [0; 10]);
    assert_eq!(
        tree::contents(tree.as_ref(), resolve(tree.as_ref(), b"last").unwrap().ino).unwrap(),
        b"last\n"
    );
    verify_if_long(&archive, true);
}
