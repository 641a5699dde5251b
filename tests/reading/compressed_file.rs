//! A compressed file without a tar in it, such as data.csv.gz, is a tree of that one file.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::mount::Mounted;
use crate::support::pack::{BZIP2, GZIP, LZ4, LZMA, Packer, XZ, ZSTD};
use crate::support::stage::said;
use crate::support::{archfs, run, skip_without_mounts, work_directory};

/// One way of each container, and the usual end of its names.
const WAYS: [(Packer, &str); 7] = [
    (GZIP[0], "gz"),
    (BZIP2[0], "bz2"),
    (XZ[0], "xz"),
    (ZSTD[0], "zst"),
    (LZ4[0], "lz4"),
    (LZMA[0], "lzma"),
    (LZMA[1], "lz"),
];

/// Lines of a table, 5 MB.
fn table() -> Vec<u8> {
    let lines =
        (0..200_000_u64).map(|n| format!("{n},{},{}\n", n * n, n.wrapping_mul(2_654_435_761)));
    lines.collect::<String>().into_bytes()
}

/// Compresses `contents` as `work/name`, with gzip.
fn gzipped(work: &Path, name: &str, contents: &[u8]) -> PathBuf {
    let plain = work.join("plain");
    fs::write(&plain, contents).unwrap();
    GZIP[0].pack(&plain, &work.join(name)).expect("gzip is everywhere")
}

/// The output of `archfs cat archive path`.
fn cat(archive: &Path, path: &str) -> Vec<u8> {
    run(archfs().arg("cat").arg(archive).arg(path)).stdout
}

#[test]
fn a_compressed_file_is_one_file_with_its_own_attributes() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let plain = work.path().join("plain");
    let table = table();
    fs::write(&plain, &table).unwrap();
    for (packer, suffix) in WAYS {
        let target = work.path().join(format!("data.csv.{suffix}"));
        let Some(archive) = packer.pack(&plain, &target) else { continue };
        fs::set_permissions(&archive, fs::Permissions::from_mode(0o640)).unwrap();
        // The second mount has a saved index, and other attributes than it had when that was made.
        for round in 0..2 {
            if round == 1 {
                run(archfs().arg("index").arg(&archive));
                fs::set_permissions(&archive, fs::Permissions::from_mode(0o600)).unwrap();
            }
            let expected = fs::metadata(&archive).unwrap();
            let mounted = Mounted::archfs(&archive, &work.path().join("mount"), &[]);
            let names: Vec<_> = fs::read_dir(mounted.path()).unwrap().collect();
            assert_eq!(names.len(), 1, "{suffix}, {round}");
            let shown = mounted.path().join("data.csv");
            let found = fs::metadata(&shown).unwrap();
            let attributes =
                |of: &fs::Metadata| (of.uid(), of.gid(), of.mode(), of.mtime(), of.mtime_nsec());
            assert_eq!(attributes(&found), attributes(&expected), "{suffix}, {round}");
            let file = File::open(&shown).unwrap();
            for offset in [4_000_000, 0, 2_500_001] {
                let mut read = vec![0; 10_000];
                file.read_exact_at(&mut read, offset).unwrap();
                let at = usize::try_from(offset).unwrap();
                assert_eq!(read, table[at..at + 10_000], "{suffix}, {round}, {offset}");
            }
            assert!(fs::read(&shown).unwrap() == table, "{suffix}, {round}");
        }
        let info = said_on_stdout(archfs().arg("info").arg(&archive));
        assert!(info.contains("one file in ") && info.contains("index"), "{suffix}: {info}");
        let verified = run(archfs().arg("verify").arg(&archive));
        assert!(said(&verified).contains("1 file"), "{suffix}: {}", said(&verified));
    }
}

fn said_on_stdout(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).unwrap()
}

#[test]
fn names_of_archives_and_of_other_files_are_no_lone_files() {
    let work = work_directory();
    let contents = b"hello, this is no tar\n";
    for name in [
        "data.tar.gz",
        "data.tgz",
        "data.sqfs.gz",
        "data.zip.gz",
        ".gz",
        "data",
        "data.gzip",
        "..gz",
        "...gz",
    ] {
        let archive = gzipped(work.path(), name, contents);
        let output = archfs().arg("ls").arg(&archive).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{name}");
        assert!(
            said(&output).contains("gzip data, but no tar inside"),
            "{name}: {}",
            said(&output)
        );
    }
}

/// Contents that look like something else: nothing, zeros like an empty tar, a gzip member.
#[test]
fn any_contents_are_shown_as_they_are() {
    let work = work_directory();
    let inner = fs::read(gzipped(work.path(), "inner", b"inner")).unwrap();
    let zeros = vec![0; 3 << 20];
    let contents: [(&str, &[u8]); 4] =
        [("empty", b""), ("short", b"x"), ("zeros.raw", &zeros), ("twice.txt.gz", &inner)];
    for (name, expected) in contents {
        let archive = gzipped(work.path(), &format!("{name}.gz"), expected);
        let listed = said_on_stdout(archfs().arg("ls").arg(&archive));
        assert_eq!(listed, format!("{name}\n"));
        assert!(cat(&archive, name) == expected, "{name}");
    }
}

/// A tar stays a tar, whatever its file is called.
#[test]
fn a_tar_with_the_name_of_a_file_is_a_tar() {
    let work = work_directory();
    fs::write(work.path().join("member"), "of a tar").unwrap();
    let archive = work.path().join("backup.gz");
    run(Command::new("tar").arg("-C").arg(work.path()).arg("-czf").arg(&archive).arg("member"));
    assert_eq!(cat(&archive, "member"), b"of a tar");
}

/// The bytes before the damage are there with `--partial` only.
#[test]
fn a_damaged_file_is_refused() {
    let work = work_directory();
    let table = table();
    let archive = gzipped(work.path(), "data.csv.gz", &table);
    let bytes = fs::read(&archive).unwrap();
    fs::write(&archive, &bytes[..bytes.len() / 2]).unwrap();
    let output =
        archfs().arg("extract").arg(&archive).arg(work.path().join("new")).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let part = work.path().join("part");
    let output = archfs().args(["extract", "--partial"]).arg(&archive).arg(&part).output().unwrap();
    let found = fs::read(part.join("data.csv"))
        .unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
    assert!((1_000_000..table.len()).contains(&found.len()), "{} bytes", found.len());
    assert!(found == table[..found.len()]);
}

/// Alone, its contents are packed. Beside other sources it is a file of the dataset.
#[test]
fn pack_opens_only_a_single_one() {
    let work = work_directory();
    let archive = gzipped(work.path(), "data.csv.gz", b"1,2,3\n");
    let other = work.path().join("other");
    fs::write(&other, "other").unwrap();
    let image = work.path().join("new.sqfs");
    run(archfs().arg("pack").arg(&archive).arg(&image));
    assert_eq!(cat(&image, "data.csv"), b"1,2,3\n");
    let both = work.path().join("both.sqfs");
    run(archfs().arg("pack").args([&archive, &other, &both]));
    assert_eq!(cat(&both, "data.csv.gz"), fs::read(&archive).unwrap());
}

/// A saved index is that of the compressed bytes, and two names may lead to them.
#[test]
fn a_saved_index_brings_no_name() {
    let work = work_directory();
    let archive = gzipped(work.path(), "one.csv.gz", b"1,2,3\n");
    run(archfs().arg("index").arg(&archive));
    for (link, found) in [("two.csv.gz", Some("two.csv")), ("two.tar.gz", None)] {
        let link = work.path().join(link);
        std::os::unix::fs::symlink(&archive, &link).unwrap();
        let output = archfs().arg("ls").arg(&link).output().unwrap();
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.success().then_some(listed.trim()), found, "{}", said(&output));
    }
    run(archfs().arg("verify").arg(work.path().join("two.csv.gz")));
}

/// Two streams of few bytes are one file, as `xz -d` has it.
#[test]
fn short_streams_one_after_the_other_are_one_file() {
    let work = work_directory();
    for (packer, suffix) in WAYS {
        let archive = work.path().join(format!("log.{suffix}"));
        let mut bytes = Vec::new();
        for line in ["first\n", "second\n"] {
            let (plain, part) = (work.path().join("plain"), work.path().join("part"));
            fs::write(&plain, line).unwrap();
            let Some(part) = packer.pack(&plain, &part) else { continue };
            bytes.extend(fs::read(part).unwrap());
        }
        // .lzma has one stream.
        if bytes.is_empty() || suffix == "lzma" {
            continue;
        }
        fs::write(&archive, bytes).unwrap();
        assert_eq!(cat(&archive, "log"), b"first\nsecond\n", "{suffix}");
    }
}

/// Without one right checksum, `--partial` has nothing to show.
#[test]
fn a_wrong_checksum_of_all_is_refused_with_partial_as_well() {
    let work = work_directory();
    let archive = gzipped(work.path(), "data.csv.gz", &table());
    let mut bytes = fs::read(&archive).unwrap();
    let checksum = bytes.len() - 6;
    bytes[checksum] ^= 1;
    fs::write(&archive, bytes).unwrap();
    let output = archfs()
        .args(["extract", "--partial"])
        .arg(&archive)
        .arg(work.path().join("new"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("any byte may be wrong"), "{}", said(&output));
}
