//! Makes images with mksquashfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{run, source};

/// The six compressors of the format.
pub const COMPRESSORS: [&str; 6] = ["gzip", "lzma", "lzo", "xz", "lz4", "zstd"];

/// Compressors for a test of what is the same with each: all only if ARCHFS_LONG_TESTS is set.
pub fn some_compressors() -> &'static [&'static str] {
    match std::env::var_os("ARCHFS_LONG_TESTS") {
        Some(_) => &COMPRESSORS,
        None => &["gzip", "lz4", "zstd"],
    }
}

/// Makes the image `name` of `source` in `directory`.
pub fn make(directory: &Path, name: &str, source: &Path, options: &[&str]) -> PathBuf {
    let image = directory.join(name);
    let _ = fs::remove_file(&image);
    let mut command = Command::new("mksquashfs");
    command.arg(source).arg(&image).args(["-quiet", "-no-progress"]).args(options);
    run(command.args(fast_level(options)));
    image
}

/// Options for the lowest level, which readers cannot tell from the default. Compressing would take a
/// large part of all tests. With ARCHFS_LONG_TESTS, the default level is used.
fn fast_level(options: &[&str]) -> &'static [&'static str] {
    let compressor = options.iter().position(|option| *option == "-comp");
    let compressor = compressor.map_or("gzip", |place| options[place + 1]);
    let has_own = options.iter().any(|option| option.starts_with("-X"));
    let is_fast = std::env::var_os("ARCHFS_LONG_TESTS").is_none() && !has_own;
    match compressor {
        "gzip" | "zstd" | "lzo" if is_fast => &["-Xcompression-level", "1"],
        _ => &[],
    }
}

/// The options of all images of `source::varied` with a compressor: block sizes, ways to use fragments, and
/// tables that are left out. These are the same whatever the compressor, so only gzip gets all combinations,
/// unless ARCHFS_LONG_TESTS is set. With the others they take turns.
pub fn matrix(compressor: &'static str) -> Vec<Vec<&'static str>> {
    let is_full = compressor == "gzip" || std::env::var_os("ARCHFS_LONG_TESTS").is_some();
    let tables = [&[][..], &["-no-xattrs"], &["-no-exports"], &["-no-xattrs", "-no-exports"]];
    let mut matrix = Vec::new();
    for block in ["4096", "131072", "1048576"] {
        for fragments in [&[][..], &["-no-fragments"], &["-always-use-fragments"]] {
            let turn = matrix.len() % tables.len();
            for left_out in if is_full { &tables[..] } else { &tables[turn..=turn] } {
                let options = [&["-comp", compressor, "-b", block], fragments, left_out];
                matrix.push(options.concat());
            }
        }
    }
    matrix
}

/// An image of `source::varied`, kept in target/tmp. The tests that go through all combinations of
/// options need the same images, and making one takes longer than reading it.
pub fn of_varied(options: &[&str]) -> PathBuf {
    let version = run(Command::new("mksquashfs").arg("-version"));
    let version = String::from_utf8(version.stdout).unwrap();
    let version = version.split_whitespace().nth(2).expect("the version of mksquashfs");
    let name = format!("varied-{version}{}.sqfs", options.concat());
    source::made_file(&name, |target| {
        let (directory, name) = (target.parent().unwrap(), target.file_name().unwrap());
        make(directory, name.to_str().unwrap(), &source::varied(), options);
    })
}

/// An image of a few small files, for tests whose subject is the mount.
pub fn small(directory: &Path) -> PathBuf {
    let source = directory.join("small-source");
    fs::create_dir_all(source.join("folder")).unwrap();
    fs::write(source.join("hello"), "hello, world\n").unwrap();
    fs::write(source.join("folder/data"), source::noise(1, 300_000)).unwrap();
    make(directory, "small.sqfs", &source, &["-comp", "zstd"])
}

/// An image `text.sqfs` whose file `dir/file` has a damaged block.
pub fn damaged(directory: &Path) -> PathBuf {
    let source = directory.join("text");
    fs::create_dir_all(source.join("dir")).unwrap();
    fs::write(source.join("dir/file"), "words that compress ".repeat(10_000)).unwrap();
    let options = ["-comp", "zstd", "-no-fragments", "-b", "1M"];
    let image = make(directory, "text.sqfs", &source, &options);
    // The first data block follows the superblock and the compressor options, if any.
    let mut bytes = fs::read(&image).unwrap();
    bytes[110..140].fill(0xaa);
    fs::write(&image, bytes).unwrap();
    image
}
