//! The table "What archfs checks" of docs/FORMATS.md: commands that read to the end notice a wrong
//! bit in everything that the table calls checked, and in each checksum itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{archfs, image, run, tar, work_directory};

const PATH: &str = "dir/data";

/// Text that compresses.
fn text(len: usize) -> Vec<u8> {
    let lines = (0_u64..).map(|line| format!("{line} of 7: {}\n", line * line * 7));
    lines.flat_map(String::into_bytes).take(len).collect()
}

fn directory_of(work: &Path, contents: &[u8]) -> PathBuf {
    let directory = work.join("source");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(directory.join("dir")).unwrap();
    fs::write(directory.join(PATH), contents).unwrap();
    directory
}

fn with_flipped(bytes: &[u8], at: &[usize]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    at.iter().for_each(|&at| bytes[at] ^= 0x10);
    bytes
}

fn position(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).position(|found| found == wanted).unwrap()
}

/// The commands that read a whole archive, or all of its file.
const COMMANDS: [&str; 5] = ["verify", "extract", "pack", "pack to a tar", "cat"];

/// Runs a command of `COMMANDS`. Returns its output, and whether it made the file or the archive.
fn call(command: &str, archive: &Path) -> (Output, bool) {
    let made = archive.with_file_name(match command {
        "pack" => "made.sqfs",
        "pack to a tar" => "made.tar",
        _ => "made",
    });
    let mut program = archfs();
    match command {
        "verify" => program.args(["verify", "-q"]).arg(archive),
        "extract" => program.args(["extract", "-q"]).arg(archive).arg(&made),
        "cat" => program.arg("cat").arg(archive).arg(PATH),
        "pack" => program.args(["pack", "-q", "-c", "none"]).arg(archive).arg(&made),
        _ => program.args(["pack", "-q"]).arg(archive).arg(&made),
    };
    let output = program.output().unwrap();
    let is_made = if command == "extract" { made.join(PATH).exists() } else { made.exists() };
    let _ = fs::remove_file(&made);
    let _ = fs::remove_dir_all(&made);
    (output, is_made)
}

/// What a message names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    Member,
    /// A checksum of all bytes does not say where the damage is.
    Archive,
}

/// Asserts that each command notices each of `flips`, bits that are wrong together.
fn assert_caught(archive: &Path, named: Named, flips: &[&[usize]]) {
    assert_caught_by(&COMMANDS, archive, named, flips);
}

fn assert_caught_by(commands: &[&str], archive: &Path, named: Named, flips: &[&[usize]]) {
    let what = archive.display();
    let sound = fs::read(archive).unwrap();
    let (output, _) = call("verify", archive);
    assert_eq!(output.status.code(), Some(0), "{what}: {output:?}");
    for flip in flips {
        fs::write(archive, with_flipped(&sound, flip)).unwrap();
        for &command in commands {
            let (output, is_made) = call(command, archive);
            let said = [&output.stdout[..], &output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            let what = format!("{what}: {command}, wrong bits in the bytes {flip:?}");
            // A member that is missing because of the damage has no path.
            let is_missing = named == Named::Archive && said.contains("no such path");
            let status = if command == "cat" && is_missing { 1 } else { 3 };
            assert_eq!(output.status.code(), Some(status), "{what}: {said}");
            assert!(!is_made, "{what}: {said}");
            let name = archive.file_name().unwrap().to_str().unwrap();
            assert!(
                said.contains(if named == Named::Member { PATH } else { name }),
                "{what}: {said}"
            );
            if command == "cat" {
                assert!(output.stdout.is_empty() || output.stdout.len() > 1 << 20, "{what}");
            }
        }
    }
    fs::write(archive, sound).unwrap();
}

/// Asserts that no command can notice `flip`.
fn assert_missed(archive: &Path, flip: usize) {
    let sound = fs::read(archive).unwrap();
    fs::write(archive, with_flipped(&sound, &[flip])).unwrap();
    for command in COMMANDS {
        let (output, is_made) = call(command, archive);
        assert_eq!(output.status.code(), Some(0), "{}: {command}: {output:?}", archive.display());
        assert_eq!(is_made, !["verify", "cat"].contains(&command), "{command}");
    }
}

/// The checksum at the end of zlib data (RFC 1950).
fn adler32(bytes: &[u8]) -> u32 {
    let (mut low, mut high) = (1_u32, 0_u32);
    for &byte in bytes {
        low = (low + u32::from(byte)) % 65_521;
        high = (high + low) % 65_521;
    }
    high << 16 | low
}

#[test]
fn wrong_bits_in_images_are_noticed_where_their_blocks_have_checksums() {
    let work = work_directory();
    let text = text(100_000);
    let source = directory_of(work.path(), &text);
    let image = |comp: &str, more: &[&str]| {
        let options = [&["-comp", comp, "-no-fragments"], more].concat();
        image::make(work.path(), &format!("{comp}.sqfs"), &source, &options)
    };
    for (compressor, checksum) in
        [("gzip", adler32(&text).to_be_bytes()), ("xz", crc32fast::hash(&text).to_le_bytes())]
    {
        let image = image(compressor, &[]);
        let at = position(&fs::read(&image).unwrap(), &checksum);
        assert_caught(&image, Named::Member, &[&[at], &[at / 2]]);
    }
    let image = image("zstd", &["-noD"]);
    let at = position(&fs::read(&image).unwrap(), &text[50_000..50_100]);
    assert_missed(&image, at);
}

#[test]
fn wrong_bits_in_headers_of_a_tar_are_noticed_but_not_in_contents() {
    let work = work_directory();
    let archive = work.path().join("data.tar");
    let text = text(100_000);
    let bytes = tar::of(&[("first", b"first"), (PATH, &text), ("last", b"last")]);
    fs::write(&archive, &bytes).unwrap();
    assert_missed(&archive, position(&bytes, &text[50_000..50_100]));
    // The name in the header of the second member. `cat` cannot know that the member was there.
    fs::write(&archive, with_flipped(&bytes, &[position(&bytes, PATH.as_bytes())])).unwrap();
    for (command, status) in [("verify", 3), ("extract", 3), ("pack", 3), ("cat", 1)] {
        let (output, is_made) = call(command, &archive);
        let said = [&output.stdout[..], &output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(output.status.code(), Some(status), "{command}: {said}");
        assert!(said.contains("header") && !is_made, "{command}: {said}");
    }
}

#[test]
fn wrong_bits_in_compressed_tars_and_their_checksums_are_noticed() {
    let work = work_directory();
    let stored = work.path().join("stored");
    fs::write(&stored, tar::of(&[(PATH, &text(100_000))])).unwrap();
    let compressed = |name: &str, script: &str| {
        let archive = work.path().join(name);
        run(Command::new("sh").args(["-ec", script, "sh"]).arg(&stored).arg(&archive));
        let bytes = fs::read(&archive).unwrap();
        (archive, bytes)
    };
    let u32_at = |bytes: &[u8], at: usize| {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
    };
    for (name, script) in [
        ("gz.tar.gz", "gzip -c < $1 > $2"),
        ("two.tar.gz", "(head -c 50000 $1 | gzip -c; tail -c +50001 $1 | gzip -c) > $2"),
    ] {
        let (archive, bytes) = compressed(name, script);
        // The CRC-32 of the last member, its length, and data.
        let len = bytes.len();
        assert_caught(&archive, Named::Archive, &[&[len - 8], &[len - 4], &[len / 3]]);
    }
    let (archive, bytes) = compressed("bz2.tar.bz2", "bzip2 -c < $1 > $2");
    // The CRC of the first block, and data.
    assert_caught(&archive, Named::Archive, &[&[12], &[bytes.len() / 2]]);
    // That of the stream. The blocks are right, so `cat` prints the error and the file.
    assert_caught_by(&COMMANDS[..4], &archive, Named::Archive, &[&[bytes.len() - 3]]);
    for check in ["crc32", "crc64", "sha256"] {
        let script = format!("xz -C {check} -c < $1 > $2");
        let (archive, bytes) = compressed(&format!("{check}.tar.xz"), &script);
        // The footer has the length of the index, before which the check of the last block is.
        let end = bytes.len() - 12 - (u32_at(&bytes, bytes.len() - 8) + 1) * 4;
        assert_caught(&archive, Named::Archive, &[&[end - 1], &[bytes.len() / 2]]);
    }
    let (archive, bytes) = compressed("zst.tar.zst", "zstd -q -c < $1 > $2");
    assert_caught(&archive, Named::Archive, &[&[bytes.len() - 1], &[bytes.len() / 2]]);
    let (archive, bytes) = compressed("lz4.tar.lz4", "lz4 -q -c < $1 > $2");
    assert_caught(&archive, Named::Archive, &[&[bytes.len() - 1], &[bytes.len() / 2]]);
    // A frame header of 7 bytes, and the length of a block, whose checksum follows it.
    let (archive, bytes) = compressed("blocks.tar.lz4", "lz4 -q -BX --no-frame-crc -c < $1 > $2");
    let end = 7 + 4 + u32_at(&bytes, 7);
    assert_caught(&archive, Named::Archive, &[&[end], &[end / 2]]);
    let (archive, bytes) = compressed("lz.tar.lz", "lzip -c < $1 > $2");
    assert_caught(&archive, Named::Archive, &[&[bytes.len() - 20], &[bytes.len() / 2]]);
}

/// Makes the archive `kind` of the files in `source` with Python. Returns the positions of the
/// checksum of the file in its local header and in its entry.
fn zip_of(archive: &Path, source: &Path, kind: &str) -> (usize, usize) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/zip_make.py");
    run(Command::new("python3").arg(script).arg(archive).arg(source).arg(kind));
    let bytes = fs::read(archive).unwrap();
    let entry = bytes.windows(PATH.len()).rposition(|found| found == PATH.as_bytes()).unwrap();
    // Before the name are 30 bytes of the local header, and 46 of the entry.
    (position(&bytes, PATH.as_bytes()) - 30 + 14, entry - 46 + 16)
}

#[test]
fn wrong_bits_in_zip_members_and_their_checksums_are_noticed() {
    let work = work_directory();
    // The second is large: extract writes it in parts, and compressed it has seek points.
    for len in [100_000, (16 << 20) + 3_000_000] {
        let text = text(len);
        let source = directory_of(work.path(), &text);
        for kind in ["stored", "stored-stream", "deflated", "bzip2", "lzma"] {
            if len > 100_000 && !["stored", "deflated"].contains(&kind) {
                continue;
            }
            let archive = work.path().join(format!("{kind}.zip"));
            let (local, entry) = zip_of(&archive, &source, kind);
            let checksums = [local, entry];
            // With a data descriptor, the local header has none.
            let checksums = if kind == "stored-stream" { &checksums[1..] } else { &checksums };
            let flips: [&[usize]; 2] = [&[entry / 4 * 3], checksums];
            let flips = if len > 100_000 { &flips[..1] } else { &flips[..] };
            assert_caught(&archive, Named::Member, flips);
        }
    }
}
