//! Makes images with mksquashfs.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{run, source};

/// The six compressors of the format.
pub const COMPRESSORS: [&str; 6] = ["gzip", "lzma", "lzo", "xz", "lz4", "zstd"];

/// Makes the image `name` of `source` in `directory`.
pub fn make(directory: &Path, name: &str, source: &Path, options: &[&str]) -> PathBuf {
    let image = directory.join(name);
    let _ = std::fs::remove_file(&image);
    let mut command = Command::new("mksquashfs");
    command.arg(source).arg(&image).args(["-quiet", "-no-progress"]).args(options);
    run(&mut command);
    image
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
    std::fs::create_dir_all(source.join("folder")).unwrap();
    std::fs::write(source.join("hello"), "hello, world\n").unwrap();
    std::fs::write(source.join("folder/data"), source::noise(1, 300_000)).unwrap();
    make(directory, "small.sqfs", &source, &["-comp", "zstd"])
}
