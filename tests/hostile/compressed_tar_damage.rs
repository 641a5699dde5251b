//! Compressed tars that are damaged, truncated, or not what their names say.
//!
//! A damaged archive shows what is intact, or fails with status 3. A listed file never has wrong
//! bytes, but reading it may fail.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use archfs::formats::OpenOptions;
use archfs::vfs::{Cookie, FileKind, Ino, Tree};

use crate::support::pack::{self, Packer};
use crate::support::{archfs, run, source, tree, work_directory};

/// Contents of the files of a small tar: noise and text in turn, some of several blocks.
fn files_of_compressed_tar() -> BTreeMap<Vec<u8>, Vec<u8>> {
    (0..60_u64)
        .map(|number| {
            let len = (number * 7919 % 40) as usize * 1000;
            let bytes = match number % 2 {
                0 => source::noise(number, len),
                _ => format!("file {number} ").into_bytes().repeat(len / 6),
            };
            (format!("f{number:02}").into_bytes(), bytes)
        })
        .collect()
}

/// The tar of those files.
fn stored(directory: &Path) -> PathBuf {
    let files = directory.join("files");
    fs::create_dir(&files).unwrap();
    for (name, bytes) in files_of_compressed_tar() {
        fs::write(files.join(String::from_utf8(name).unwrap()), bytes).unwrap();
    }
    let tar = directory.join("stored.tar");
    let mut command = Command::new("tar");
    run(command.arg("-C").arg(files).args(["--sort=name", "-cf"]).arg(&tar).arg("."));
    tar
}

/// The packers that write checksums: all of gzip, bzip2, xz and lz4 except `lz4 -l`, and two of
/// zstd.
fn checked_packers() -> Vec<Packer> {
    let all = [pack::GZIP, pack::BZIP2, pack::XZ, pack::LZ4].concat();
    let unchecked = ["lz4 -l"];
    let mut packers: Vec<_> = all
        .into_iter()
        .filter(|one| !unchecked.iter().any(|word| one.line.contains(word)))
        .collect();
    packers.push(pack::ZSTD[0]);
    packers
        .push(Packer { program: "pzstd", line: "split -b 200000 --filter='pzstd -q -c' $1 > $2" });
    packers
}

/// Number of listed files, and of those that could be read. What is read must match the source.
fn read_listed_files(what: &str, tree: &dyn Tree) -> (usize, usize) {
    let expected = files_of_compressed_tar();
    let mut listed = Vec::new();
    tree.read_dir(Ino::ROOT, Cookie::START, &mut |entry| {
        listed.push((entry.ino, entry.name.as_bytes().to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    let mut read = 0;
    for (ino, name) in &listed {
        if tree.attr(*ino).unwrap().kind != FileKind::Regular {
            continue;
        }
        if let Ok(bytes) = tree::contents(tree, *ino) {
            let shown = name.escape_ascii();
            assert!(expected.get(name) == Some(&bytes), "{what}: {shown} has other bytes");
            read += 1;
        }
    }
    (listed.len(), read)
}

fn remove_index(archive: &Path) {
    let mut index = archive.as_os_str().to_owned();
    index.push(".archfs-index");
    let _ = fs::remove_file(index);
}

/// Opens a damaged archive: the files that could be read, or none if it was refused.
fn open_damaged(what: &str, archive: &Path) -> Option<(usize, usize)> {
    remove_index(archive);
    let open = || tree::open(&[archive.to_owned()], OpenOptions::default());
    let first = open().map(|tree| read_listed_files(what, tree.as_ref()));
    let again = open().map(|tree| read_listed_files(what, tree.as_ref()));
    assert_eq!(first.as_ref().ok(), again.as_ref().ok(), "{what}: other when opened again");
    first.ok()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs `archfs ls`: status 0 and a note; or status 3, with a list of what is there, or with one line
/// and perhaps a hint.
fn assert_damage_reported(what: &str, archive: &Path) {
    remove_index(archive);
    let output = archfs().arg("ls").arg(archive).output().unwrap();
    let stderr = said(&output);
    let lines: Vec<_> = stderr.lines().collect();
    match output.status.code() {
        Some(0) => assert!(stderr.contains("damaged"), "{what}: {stderr}"),
        Some(3) if !output.stdout.is_empty() || stderr.contains("is missing") => {
            assert!(stderr.contains("archfs: error: "), "{what}: {stderr}");
            assert!(stderr.contains("missing"), "{what}: {stderr}");
        }
        Some(3) => assert!(
            lines.first().is_some_and(|line| line.starts_with("archfs: error: "))
                && lines.iter().skip(1).all(|line| line.starts_with("archfs: hint: "))
                && lines.len() <= 2,
            "{what}: {stderr}"
        ),
        other => panic!("{what}: status {other:?}, {stderr}"),
    }
    let path = archive.display().to_string();
    assert!(lines.iter().all(|line| line.matches(&path).count() < 2), "{what}: {stderr}");
}

#[test]
fn a_truncated_archive_shows_what_precedes_the_cut() {
    let work = work_directory();
    let tar = stored(work.path());
    let cut = work.path().join("cut");
    for packer in checked_packers() {
        let what = packer.line;
        let Some(archive) = packer.pack(&tar, &work.path().join("compressed")) else { continue };
        let bytes = fs::read(archive).unwrap();
        let mut most = 0;
        for tenth in 1..10 {
            fs::write(&cut, &bytes[..bytes.len() * tenth / 10]).unwrap();
            let what = format!("{what}, cut at {tenth}/10");
            if let Some((listed, read)) = open_damaged(&what, &cut) {
                assert_eq!(listed, read, "{what}: not all that is listed can be read");
                most = most.max(read);
            }
            if tenth % 4 == 1 {
                assert_damage_reported(&what, &cut);
            }
        }
        // The other archives may have only one block or frame.
        let several = ["gzip", "lz4 -B4", "pzstd"].iter().any(|word| what.contains(word));
        assert!(most > 30 || !several, "{what}: at most {most} files");
    }
}

#[test]
fn a_flipped_bit_never_gives_wrong_bytes() {
    let work = work_directory();
    let tar = stored(work.path());
    let bad = work.path().join("bad");
    for packer in checked_packers() {
        let Some(archive) = packer.pack(&tar, &work.path().join("compressed")) else { continue };
        let bytes = fs::read(archive).unwrap();
        for nth in 0..16 {
            let offset = (bytes.len() - 40) * nth / 16 + nth;
            let mut flipped = bytes.clone();
            flipped[offset] ^= 1 << (nth % 8);
            fs::write(&bad, flipped).unwrap();
            let what = format!("{}, byte {offset} of {} flipped", packer.line, bytes.len());
            open_damaged(&what, &bad);
        }
        let mut flipped = bytes.clone();
        flipped[bytes.len() / 2] ^= 0x10;
        fs::write(&bad, flipped).unwrap();
        assert_damage_reported(packer.line, &bad);
    }
}

#[test]
fn damage_in_a_member_loses_nothing_before_it() {
    let work = work_directory();
    let tar = stored(work.path());
    for (program, packing) in [("gzip", "gzip -c"), ("lz4", "lz4 -c"), ("bzip2", "bzip2 -c")] {
        let line = format!("split -b 200000 --filter='{packing}' $1 > $2");
        let packer = Packer { program, line: line.leak() };
        let Some(archive) = packer.pack(&tar, &work.path().join("compressed")) else { continue };
        let mut bytes = fs::read(&archive).unwrap();
        let offset = bytes.len() * 6 / 10;
        bytes[offset] ^= 0x20;
        fs::write(&archive, bytes).unwrap();
        let (listed, read) = open_damaged(program, &archive).expect("the part before the damage");
        assert!(listed == read && (15..50).contains(&read), "{program}: {read} of {listed}");
        assert_damage_reported(program, &archive);
    }
}

/// The status and output of `archfs ls`.
fn list(archive: &Path) -> (Option<i32>, String) {
    let output = archfs().arg("ls").arg(archive).output().unwrap();
    (output.status.code(), said(&output))
}

#[test]
fn other_compressed_files_are_refused_with_the_cause() {
    let work = work_directory();
    let at = |name: &str| work.path().join(name);
    let tar = stored(work.path());
    let shell = |line: &str, from: &Path, to: &Path| {
        run(Command::new("bash").args(["-ec", line, "bash"]).arg(from).arg(to));
    };
    fs::write(at("text"), "hello, this is no tar\n".repeat(100)).unwrap();
    for (tool, name) in
        [("gzip", "gzip"), ("bzip2", "bzip2"), ("xz", "xz"), ("zstd", "zstd"), ("lz4", "lz4")]
    {
        if !pack::is_there(tool) {
            continue;
        }
        let compressed = at("text.compressed");
        for from in [at("text"), PathBuf::from("/dev/null")] {
            shell(&format!("{tool} -c < $1 > $2"), &from, &compressed);
            let (status, stderr) = list(&compressed);
            assert_eq!(status, Some(3), "{tool}: {stderr}");
            assert!(stderr.contains(&format!("{name} data, but no tar inside")), "{stderr}");
        }
        shell(&format!("{tool} -c < $1 | gzip -c > $2"), &tar, &compressed);
        let (status, stderr) = list(&compressed);
        assert_eq!(status, Some(3), "{stderr}");
        assert!(
            stderr.contains(&format!("{name} data inside gzip data: compressed twice")),
            "{stderr}"
        );
    }
    fs::write(at("empty.tar.gz"), "").unwrap();
    let (status, stderr) = list(&at("empty.tar.gz"));
    assert!(status == Some(3) && stderr.contains("is empty"), "{stderr}");
}

#[test]
fn file_names_and_trailing_bytes_are_ignored() {
    let work = work_directory();
    let at = |name: &str| work.path().join(name);
    let tar = stored(work.path());
    let whole = tree::lines(tree::open_one(&tar).as_ref());
    let named = at("stored.tar.gz");
    fs::copy(&tar, &named).unwrap();
    assert_eq!(tree::lines(tree::open_one(&named).as_ref()), whole);

    let shell = |line: &str, to: &Path| {
        run(Command::new("bash").args(["-ec", line, "bash"]).arg(&tar).arg(to));
    };
    let compressed = at("compressed");
    for (line, warned) in [
        ("(gzip -c $1; head -c 5000 /dev/zero) > $2", false),
        ("(gzip -c $1; head -c 5000 $1) > $2", true),
        ("(bzip2 -c $1; head -c 5000 /dev/zero) > $2", false),
        ("(bzip2 -c $1; head -c 5000 $1) > $2", true),
        ("(xz -c $1; head -c 5000 /dev/zero) > $2", false),
        ("(xz -c $1; head -c 5000 $1) > $2", true),
        ("(zstd -q -c $1; head -c 5000 $1) > $2", true),
        ("tar -cf - -T /dev/null | cat $1 - | gzip -c > $2", false),
    ] {
        shell(line, &compressed);
        let _ = fs::remove_file(at("compressed.archfs-index"));
        let (status, stderr) = list(&compressed);
        assert_eq!(status, Some(0), "{line}: {stderr}");
        assert_eq!(stderr.contains("are ignored"), warned, "{line}: {stderr}");
        assert_eq!(tree::lines(tree::open_one(&compressed).as_ref()), whole, "{line}");
    }
    shell("tar -cf - -T /dev/null | gzip -c > $2", &compressed);
    assert_eq!(tree::lines(tree::open_one(&compressed).as_ref()).len(), 1);
}
