//! Compares mounted images with their source tree and with the kernel's SquashFS.
//!
//! The matrix has six compressors, three block sizes, three ways to use fragments, and images with
//! and without extended attributes and an export table. Other tests have a directory of 100,000
//! names and a sparse file of 5 GiB. `oracle.rs` compares with libsquashfs.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{SeekFrom, seek};

use crate::support::mount::Mounted;
use crate::support::skip::skip_part;
use crate::support::snapshot::{Depth, assert_same, take};
use crate::support::{archfs, image, run, skip_without_mounts, source, work_directory};

const BLOCKS: [&str; 3] = ["4096", "131072", "1048576"];

fn matrix(compressor: &'static str) {
    if skip_without_mounts() {
        return;
    }
    let tree = source::varied();
    let expected = [Depth::Everything, Depth::NoXattrs].map(|depth| take(&tree, depth));
    let work = work_directory();
    for options in image::matrix(compressor) {
        let image = image::of_varied(&options);
        let mounted = Mounted::archfs(&image, &work.path().join("mount"), &[]);
        let (nth, depth) = match options.contains(&"-no-xattrs") {
            false => (0, Depth::Everything),
            true => (1, Depth::NoXattrs),
        };
        let found = take(mounted.path(), depth);
        assert_same(&options.join(" "), &expected[nth], &found);
    }
}

#[test]
fn every_gzip_image_shows_its_source() {
    matrix("gzip");
}

#[test]
fn every_lzma_image_shows_its_source() {
    matrix("lzma");
}

#[test]
fn every_lzo_image_shows_its_source() {
    matrix("lzo");
}

#[test]
fn every_xz_image_shows_its_source() {
    matrix("xz");
}

#[test]
fn every_lz4_image_shows_its_source() {
    matrix("lz4");
}

#[test]
fn every_zstd_image_shows_its_source() {
    matrix("zstd");
}

#[test]
fn other_mksquashfs_options_show_the_same_tree() {
    if skip_without_mounts() {
        return;
    }
    let tree = source::varied();
    let expected = take(&tree, Depth::Everything);
    let work = work_directory();
    for options in [
        "-comp zstd -noI -noD -noF -noX",
        "-comp gzip -noI",
        "-comp gzip -noD",
        "-comp gzip -noF -noX",
        "-comp zstd -no-duplicates",
        "-comp zstd -nopad",
        "-comp zstd -no-sparse",
        "-comp zstd -no-tailends -b 64K",
        "-comp gzip -Xcompression-level 1 -Xwindow-size 8",
        "-comp lzo -Xalgorithm lzo1x_1",
        "-comp lz4 -Xhc",
        "-comp xz -Xbcj x86 -Xdict-size 50%",
        "-comp zstd -Xcompression-level 22 -b 16K",
    ] {
        let words: Vec<_> = options.split(' ').collect();
        let image = image::make(work.path(), "image.sqfs", &tree, &words);
        let mounted = Mounted::archfs(&image, &work.path().join("mount"), &[]);
        assert_same(options, &expected, &take(mounted.path(), Depth::Everything));
    }
}

/// Compares an image with the kernel's view of it. Returns whether this kernel mounts it.
fn compare_with_kernel(what: &str, image: &Path, work: &Path) -> bool {
    let kernel = match Mounted::kernel(image, &work.join("kernel")) {
        Ok(kernel) => kernel,
        Err(why) => {
            skip_part(&format!("this kernel does not mount {what}: {why}"));
            return false;
        }
    };
    let mounted = Mounted::archfs(image, &work.join("mount"), &[]);
    let expected = take(kernel.path(), Depth::Everything);
    assert_same(what, &expected, &take(mounted.path(), Depth::Everything));
    // Sizes and link counts of directories come from the image, so they are compared only here.
    for (path, node) in &expected {
        if node.mode & 0o170_000 == 0o040_000 {
            let path = Path::new(std::str::from_utf8(path).unwrap());
            let [ours, theirs] =
                [&mounted, &kernel].map(|m| fs::metadata(m.path().join(path)).unwrap());
            assert_eq!(ours.nlink(), theirs.nlink(), "{what}: {}", path.display());
            assert_eq!(ours.size(), theirs.size(), "{what}: {}", path.display());
        }
    }
    true
}

#[test]
fn the_kernel_shows_the_same_tree() {
    if skip_without_mounts() {
        return;
    }
    let tree = source::varied();
    let work = work_directory();
    let mut compared = 0;
    for compressor in image::COMPRESSORS {
        let image = image::make(work.path(), "image.sqfs", &tree, &["-comp", compressor]);
        compared += usize::from(compare_with_kernel(compressor, &image, work.path()));
    }
    assert!(compared > 0, "this kernel mounts no SquashFS at all");
}

/// Those in tests/data/writers, those that squashfs-tools-ng makes, and those in the directory
/// `ARCHFS_IMAGES` (tests/corpora/writers).
#[test]
fn images_of_other_writers_are_read_as_by_the_kernel() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/writers");
    let mut directories = vec![kept, work.path().join("made")];
    directories.extend(std::env::var_os("ARCHFS_IMAGES").map(PathBuf::from));
    fs::create_dir(&directories[1]).unwrap();
    let archive = work.path().join("tree.tar");
    let tar = Command::new("tar")
        .args(["--xattrs", "--xattrs-include=*", "--format=posix", "-cf"])
        .arg(&archive)
        .arg("-C")
        .arg(source::varied())
        .arg(".")
        .status();
    assert!(tar.unwrap().success());
    for (program, options) in [("gensquashfs", &["-k", "-x", "-D"][..]), ("tar2sqfs", &["-e"])] {
        let mut command = Command::new(program);
        command.arg("-q").args(options);
        match program {
            "gensquashfs" => command.arg(source::varied()),
            _ => command.stdin(File::open(&archive).unwrap()),
        };
        command.arg(directories[1].join(format!("{program}.sqfs")));
        match command.status() {
            Ok(status) => assert!(status.success(), "{program}"),
            Err(why) => skip_part(&format!("{program}: {why}")),
        }
    }
    let mut compared = 0;
    for directory in directories {
        for entry in fs::read_dir(directory).unwrap() {
            let image = entry.unwrap().path();
            if image.extension().is_some_and(|extension| extension == "sqfs") {
                let name = image.file_name().unwrap().to_str().unwrap();
                if compare_with_kernel(name, &image, work.path()) {
                    println!("as the kernel: {name}");
                    compared += 1;
                }
                run(archfs().args(["verify", "--quiet"]).arg(&image));
            }
        }
    }
    assert!(compared > 0, "this kernel mounts none of them");
}

#[test]
fn lists_and_looks_up_a_hundred_thousand_names() {
    if skip_without_mounts() {
        return;
    }
    let tree = source::large();
    let directory = "hundred-thousand";
    let names = |root: &Path| -> Vec<_> {
        fs::read_dir(root.join(directory)).unwrap().map(|e| e.unwrap().file_name()).collect()
    };
    let expected: BTreeSet<_> = names(&tree).into_iter().collect();
    let work = work_directory();
    for &compressor in image::some_compressors() {
        let options = ["-comp", compressor];
        let image = image::make(work.path(), "image.sqfs", &tree.join(directory), &options);
        let mount_point = work.path().join("mount");
        let mounted = Mounted::archfs(&image, &mount_point, &[]);
        let listed: Vec<_> =
            fs::read_dir(mounted.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(listed.len(), 100_000, "{compressor}: each name once");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected, "{compressor}");
        // A new mount looks up every name separately, through the directory index.
        drop(mounted);
        let mounted = Mounted::archfs(&image, &mount_point, &[]);
        for name in expected.iter().step_by(97) {
            let found = fs::symlink_metadata(mounted.path().join(name));
            assert!(found.is_ok(), "{compressor}: {name:?}");
        }
        for missing in ["", "0", "00000", "50000-", "50000-65", "99999-9", "zzz"] {
            let path = mounted.path().join(format!("{missing}x"));
            assert!(fs::symlink_metadata(path).is_err(), "{compressor}: {missing}");
        }
    }
}

/// > `st_blocks` does not count holes.
#[test]
fn a_sparse_file_of_5_gib_keeps_its_data_and_holes() {
    if skip_without_mounts() {
        return;
    }
    let tree = source::large();
    let work = work_directory();
    for (nth, &compressor) in image::some_compressors().iter().enumerate() {
        let options = ["-comp", compressor, "-b", BLOCKS[nth % 3], "-e", "hundred-thousand"];
        let image = image::make(work.path(), "image.sqfs", &tree, &options);
        let mounted = Mounted::archfs(&image, &work.path().join("mount"), &[]);
        let [ours, theirs] =
            [mounted.path(), &tree].map(|root| File::open(root.join("sparse-5g")).unwrap());
        let found = ours.metadata().unwrap();
        assert_eq!(found.len(), 5 << 30);
        assert!(found.blocks() * 512 <= 8 << 20, "{} blocks", found.blocks());
        let mut data = 0;
        let mut at = 0;
        while let Ok(start) = seek(&ours, SeekFrom::Data(at)) {
            let end = seek(&ours, SeekFrom::Hole(start)).unwrap();
            assert!(start >= at && end > start && end <= 5 << 30, "{at} {start} {end}");
            data += end - start;
            at = end;
        }
        assert!((1..=6 << 20).contains(&data), "{data} bytes of data");
        let mut buffers = [vec![0; 1 << 20], vec![0; 1 << 20]];
        let mib = 1_u64 << 20;
        let around = [0, 1, 3 << 30, (3 << 30) - 5, (4 << 30) - mib / 2, (5 << 30) - mib, 2 << 30];
        for offset in around {
            let [a, b] = &mut buffers;
            ours.read_exact_at(a, offset).unwrap();
            theirs.read_exact_at(b, offset).unwrap();
            assert!(a == b, "{compressor}: other bytes within 1 MiB of {offset}");
        }
    }
}

#[test]
fn mounts_an_image_at_an_offset() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let image = image::small(work.path());
    let bytes = fs::read(&image).unwrap();
    for (offset, option) in [(1, "--offset=1"), (4096, "--offset=4K"), (70_000, "-ooffset=70000")] {
        let inside = work.path().join("inside");
        fs::write(&inside, [vec![b'x'; offset], bytes.clone()].concat()).unwrap();
        let mounted = Mounted::archfs(&inside, &work.path().join("mount"), &[option]);
        assert_eq!(fs::read(mounted.path().join("hello")).unwrap(), b"hello, world\n");
    }
}

/// > `uid=` and `gid=` show all files as owned by that user or group.
#[test]
fn subdir_and_uid_gid_options_change_root_and_owners() {
    if skip_without_mounts() {
        return;
    }
    let tree = source::varied();
    let work = work_directory();
    let image = image::make(work.path(), "image.sqfs", &tree, &["-comp", "zstd"]);
    let mount_point = work.path().join("mount");
    for option in ["--subdir=many", "-osubdir=/deep/../link-folder/"] {
        let mounted = Mounted::archfs(&image, &mount_point, &[option]);
        let mut expected = take(&tree.join("many"), Depth::Everything);
        let mut found = take(mounted.path(), Depth::Everything);
        // Only one of the three hard links is inside this directory.
        for snapshot in [&mut expected, &mut found] {
            snapshot.values_mut().for_each(|node| node.links.clear());
        }
        assert_same(option, &expected, &found);
        assert_eq!(fs::metadata(mounted.path()).unwrap().ino(), 1);
    }
    let mounted = Mounted::archfs(&image, &mount_point, &["-ouid=1234,gid=5678"]);
    for (_, node) in take(mounted.path(), Depth::NoXattrs) {
        assert_eq!((node.uid, node.gid), (1234, 5678));
    }
}
