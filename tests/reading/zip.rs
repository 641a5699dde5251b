//! Compares ZIP archives with what Info-ZIP's unzip, bsdtar and 7-Zip extract and Python's zipfile
//! reads. Archives come from zip, 7-Zip, bsdtar, Python and Java.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use archfs::error::Kind;
use archfs::formats::{self, OpenOptions};
use archfs::progress::Progress;
use archfs::vfs;

use crate::support::mount::Mounted;
use crate::support::skip::skip_part;
use crate::support::snapshot::{Depth, Snapshot, assert_same, take};
use crate::support::{archfs, run, skip_without_mounts, source, tree, work_directory};

/// Runs a program in the directory `directory`.
fn run_in(directory: &Path, program: &str, words: &[&str]) {
    run(Command::new(program).args(words).current_dir(directory));
}

/// Packs the varied files with `zip`, which skips pipes and sockets and reports them.
fn info_zip(archive: &Path, options: &[&str]) {
    let _ = fs::remove_file(archive);
    let mut command = Command::new("zip");
    command.args(["-q", "-r", "-y"]).args(options).arg(archive).arg(".");
    // Large files are mostly holes, which a ZIP archive does not have.
    command.args(["-x", "./special/*", "*sparse*"]).current_dir(source::varied());
    let status = command.output().unwrap().status;
    assert!(matches!(status.code(), Some(0 | 18)), "{command:?}: {status}");
}

/// The lines of zipfile for an archive.
fn python_lines(archive: &Path) -> BTreeMap<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/zip_tree.py");
    let output = run(Command::new("python3").arg(script).arg(archive));
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| line.split_once(' ').map(|(path, rest)| (path.into(), rest.into()));
    text.lines().filter_map(line).collect()
}

/// Compares with zipfile, except for directories that have no entry, which only archfs shows.
fn assert_as_python(what: &str, archive: &Path) {
    let expected = python_lines(archive);
    assert!(!expected.is_empty(), "{what}: Python finds no files");
    let mut found = BTreeMap::new();
    for (path, line) in tree::lines(tree::open_one(archive).as_ref()) {
        let words: Vec<_> = line.split(' ').collect();
        let [kind, _, _, _, size, _, crc, target] = words[..] else { panic!("{line}") };
        let size = if kind == "d" { "0" } else { size };
        found.insert(tree::hex(&path), format!("{kind} {size} {crc} {target}"));
    }
    for (path, line) in &expected {
        let found = found.get(path).map(|line| line.trim_end());
        assert_eq!(found, Some(line.trim_end()), "{what}: {path}");
    }
    for (path, line) in found.iter().filter(|(path, _)| !expected.contains_key(*path)) {
        let below = format!("{path}2f");
        let is_implied = path == "2f" || expected.keys().any(|other| other.starts_with(&below));
        assert!(line.starts_with("d ") && is_implied, "{what}: {path} is too many");
    }
}

/// A snapshot without what `forget` clears in each node.
fn snapshot(root: &Path, forget: fn(&[u8], &mut crate::support::snapshot::Node)) -> Snapshot {
    let mut snapshot = take(root, Depth::Everything);
    snapshot.iter_mut().for_each(|(path, node)| forget(path, node));
    snapshot
}

/// Checks that a mounted archive shows what `extract` extracts into an empty directory.
fn assert_as_extracted(
    what: &str,
    archive: &Path,
    work: &Path,
    forget: fn(&[u8], &mut crate::support::snapshot::Node),
    extract: impl FnOnce(&Path),
) {
    let directory = work.join("extracted");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    extract(&directory);
    let expected = snapshot(&directory, forget);
    assert!(expected.len() > 10, "{what}: nothing was extracted");
    let mounted = Mounted::archfs(archive, &work.join("mount"), &[]);
    assert_same(what, &expected, &snapshot(mounted.path(), forget));
}

/// The root has no entry, and no program sets the time of a symbolic link. To unzip, times before
/// 1970 are after 2038.
fn forget_little(path: &[u8], node: &mut crate::support::snapshot::Node) {
    if path.is_empty() || node.mode & 0o170_000 == 0o120_000 {
        (node.seconds, node.mode) = (0, node.mode & 0o170_000);
    }
    node.seconds = i64::from(node.seconds as u32);
}

#[test]
fn archives_of_info_zip_show_what_unzip_extracts() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archive = work.path().join("archive.zip");
    for options in [&["-0"][..], &["-6"], &["-9", "-Z", "bzip2"], &["-fz", "-0"]] {
        let what = options.join(" ");
        info_zip(&archive, options);
        assert_as_python(&what, &archive);
        assert_as_extracted(&what, &archive, work.path(), forget_little, |directory| {
            run(Command::new("unzip")
                .args(["-q", "-X", "-K", "-^"])
                .arg(&archive)
                .arg("-d")
                .arg(directory));
        });
        assert_sound(&archive);
    }
}

/// Some names have the byte of a backslash within a character.
#[test]
fn names_in_an_encoding_that_the_user_knows_are_those_of_bsdtar() {
    let script = "\
import sys, zipfile
class Unmarked(zipfile.ZipInfo):
    def _encodeFilenameFlags(self):
        return self.filename.encode(sys.argv[2]), 0
with zipfile.ZipFile(sys.argv[1], 'w') as archive:
    for number, name in enumerate(sys.argv[3:]):
        member = Unmarked(name)
        member.create_system = 0
        archive.writestr(member, f'{number}')
";
    let work = work_directory();
    let path = work.path().join("names.zip");
    for (encoding, names) in [
        ("gbk", ["文件/图片.jpg", "數據誠乗.txt"]),
        ("big5", ["許功蓋/檔案.jpg", "資料.txt"]),
        ("shift_jis", ["表示/ソース.jpg", "データ能力.txt"]),
        ("euc-kr", ["한국어/사진.jpg", "자료.txt"]),
        ("cp866", ["Файлы/снимок.jpg", "Ёжик.txt"]),
        ("utf-8", ["文件/grün.jpg", "Ёжик.txt"]),
    ] {
        run(Command::new("python3").args(["-c", script]).arg(&path).arg(encoding).args(names));
        let listed = run(Command::new("bsdtar")
            .args(["-t", "--options", &format!("zip:hdrcharset={encoding}"), "-f"])
            .arg(&path)
            .env("LC_ALL", "C.UTF-8"));
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert_eq!(listed.lines().collect::<Vec<_>>(), names, "bsdtar, {encoding}");
        let list = |options: &[&str]| archfs().args(["ls", "-R"]).args(options).arg(&path).output();
        let found = list(&["--names", encoding]).unwrap();
        let lines: BTreeSet<_> = str::from_utf8(&found.stdout).unwrap().lines().collect();
        let (directory, _) = names[0].split_once('/').unwrap();
        assert_eq!(lines, BTreeSet::from([directory, names[0], names[1]]), "{encoding}");
        let unknown = String::from_utf8(list(&[]).unwrap().stderr).unwrap();
        let (_, proposed) = unknown
            .split_once("; for example, try --names ")
            .unwrap_or_else(|| panic!("{unknown}"));
        assert!(proposed.trim_end().split(" or ").any(|one| one == encoding), "{unknown}");
        let to = work.path().join(format!("extracted-{encoding}"));
        run(archfs().args(["extract", "-q", "--names", encoding]).arg(&path).arg(&to));
        let image = work.path().join(format!("{encoding}.sqfs"));
        run(archfs().args(["pack", "-q", "--names", encoding]).arg(&path).arg(&image));
        for (number, name) in names.iter().enumerate() {
            assert_eq!(fs::read_to_string(to.join(name)).unwrap(), number.to_string());
            let printed = run(archfs().arg("cat").arg(&image).arg(name));
            assert_eq!(printed.stdout, number.to_string().as_bytes());
        }
    }
    let wrong = archfs().args(["ls", "--names", "klingon"]).arg(&path).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    let wrong = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.contains("no such encoding; for example gbk"), "{wrong}");
}

/// `archfs verify` finds no fault.
fn assert_sound(archive: &Path) {
    let output = run(archfs().arg("verify").arg(archive));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("no damage found"), "{text}");
}

#[test]
fn archives_of_7_zip_show_what_7_zip_extracts() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archive = work.path().join("archive.zip");
    let directory = work.path().join("files");
    plain_files(&directory);
    for method in ["Copy", "Deflate", "BZip2", "LZMA"] {
        let _ = fs::remove_file(&archive);
        let method_option = format!("-mm={method}");
        let words = ["a", "-bd", "-tzip", &method_option, archive.to_str().unwrap(), "."];
        run_in(&directory, "7z", &words);
        assert_as_python(method, &archive);
        // 7-Zip knows no owners.
        let forget = |path: &[u8], node: &mut crate::support::snapshot::Node| {
            forget_little(path, node);
            (node.uid, node.gid) = (0, 0);
        };
        assert_as_extracted(method, &archive, work.path(), forget, |directory| {
            let target = format!("-o{}", directory.display());
            run(Command::new("7z").args(["x", "-bd", &target]).arg(&archive));
        });
        assert_sound(&archive);
    }
}

/// Files without odd names or kinds: empty, small, larger than a chunk, larger than what is decoded
/// at once.
fn plain_files(directory: &Path) {
    fs::create_dir_all(directory.join("a/b")).unwrap();
    fs::write(directory.join("a/empty"), b"").unwrap();
    fs::write(directory.join("a/b/small"), b"hello\n").unwrap();
    fs::write(directory.join("a/grün"), source::noise(7, 100_000)).unwrap();
    let piece = [source::noise(3, 3000), vec![b'x'; 5000]].concat();
    fs::write(directory.join("large"), piece.repeat(3000)).unwrap();
    for nth in 0..20 {
        fs::write(directory.join(format!("a/b/{nth}.txt")), format!("number {nth}")).unwrap();
    }
    std::os::unix::fs::symlink("a/b/small", directory.join("link")).unwrap();
}

#[test]
fn archives_of_bsdtar_show_what_bsdtar_extracts() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archive = work.path().join("archive.zip");
    let directory = work.path().join("files");
    plain_files(&directory);
    for options in ["zip:compression=store", "zip:compression=deflate", "zip:zip64"] {
        let words = ["--format=zip", "--options", options, "-cf", archive.to_str().unwrap(), "."];
        run_in(&directory, "bsdtar", &words);
        assert_as_python(options, &archive);
        assert_as_extracted(options, &archive, work.path(), forget_little, |directory| {
            let words = ["-xpf", archive.to_str().unwrap()];
            run_in(directory, "bsdtar", &words);
        });
        assert_sound(&archive);
    }
}

#[test]
fn archives_of_python_show_what_python_reads() {
    let work = work_directory();
    let archive = work.path().join("archive.zip");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/zip_make.py");
    for kind in [
        "stored",
        "deflated",
        "bzip2",
        "lzma",
        "stored-stream",
        "deflated-stream",
        "stored-zip64",
        "deflated-zip64",
    ] {
        run(Command::new("python3").arg(&script).arg(&archive).arg(source::varied()).arg(kind));
        assert_as_python(kind, &archive);
        assert_sound(&archive);
    }
}

#[test]
fn archives_of_java_show_what_python_reads() {
    if Command::new("jar").arg("--version").output().is_err() {
        return skip_part("there is no jar");
    }
    let work = work_directory();
    let (archive, directory) = (work.path().join("archive.jar"), work.path().join("files"));
    plain_files(&directory);
    for flags in ["cfM", "cf0M"] {
        run_in(&directory, "jar", &[flags, archive.to_str().unwrap(), "."]);
        assert_as_python(flags, &archive);
        assert_sound(&archive);
    }
}

/// The archive `kind` of the files in `directory`, made by Python.
fn of_python(archive: &Path, directory: &Path, kind: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/zip_make.py");
    run(Command::new("python3").arg(script).arg(archive).arg(directory).arg(kind));
}

#[test]
fn an_archive_after_other_data_is_the_same_with_and_without_its_offset() {
    let work = work_directory();
    let (archive, directory) = (work.path().join("archive.zip"), work.path().join("files"));
    plain_files(&directory);
    of_python(&archive, &directory, "deflated");
    let expected = tree::lines(tree::open_one(&archive).as_ref());
    let bytes = fs::read(&archive).unwrap();
    let (with_program, with_text) = (work.path().join("program"), work.path().join("text.zip"));
    fs::write(&with_program, [&b"\x7fELF a program\n"[..], &[0; 5000], &bytes].concat()).unwrap();
    assert_eq!(tree::lines(tree::open_one(&with_program).as_ref()), expected);
    // `zip -A` makes the offsets count the program.
    run(Command::new("zip").args(["-q", "-A"]).arg(&with_program));
    assert_eq!(tree::lines(tree::open_one(&with_program).as_ref()), expected);
    let options = OpenOptions { offset: 5000 + 15, ..OpenOptions::default() };
    let within = tree::open(&[with_program], options).unwrap();
    assert_eq!(tree::lines(within.as_ref()), expected);
    // Data after the archive, as some servers append.
    fs::write(&with_text, [&bytes[..], &b"\n\n"[..]].concat()).unwrap();
    assert_eq!(tree::lines(tree::open_one(&with_text).as_ref()), expected);
}

#[test]
fn archives_within_archives_are_directories() {
    let work = work_directory();
    let (directory, outer) = (work.path().join("files"), work.path().join("outer"));
    fs::create_dir(&outer).unwrap();
    plain_files(&directory);
    let path = |name: &str| -> PathBuf { outer.join(name) };
    of_python(&path("stored.zip"), &directory, "stored");
    of_python(&path("deflated.zip"), &directory, "deflated");
    run(Command::new("tar").arg("-cf").arg(path("files.tar")).arg("-C").arg(&directory).arg("."));
    run(archfs().arg("pack").arg("-q").arg(&directory).arg(path("image.sqfs")));
    let (zip, tar) = (work.path().join("outer.zip"), work.path().join("outer.tar"));
    of_python(&zip, &outer, "deflated");
    run(Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(&outer).arg("."));
    let nested = OpenOptions { recursive: true, ..OpenOptions::default() };
    let contents = |tree: &dyn vfs::Tree, directory: &str| -> BTreeMap<Vec<u8>, String> {
        let below = format!("{directory}/").into_bytes();
        let lines = tree::lines(tree).into_iter();
        let lines = lines.filter_map(|(path, line)| {
            let words: Vec<_> = line.split(' ').collect();
            let is_file = words[0] != "d";
            let line = format!("{} {} {} {}", words[0], words[4], words[6], words[7]);
            Some((path.strip_prefix(&below[..])?.to_vec(), line)).filter(|_| is_file)
        });
        lines.collect()
    };
    for archive in [&zip, &tar] {
        let tree = tree::open(std::slice::from_ref(archive), nested.clone()).unwrap();
        let expected = contents(tree.as_ref(), "stored");
        assert!(expected.len() > 20);
        for directory in ["deflated", "files", "image"] {
            assert_eq!(contents(tree.as_ref(), directory), expected, "{directory}");
        }
        assert!(!tree::lines(tree.as_ref()).contains_key(&b"stored.zip"[..]));
        let flat = tree::lines(tree::open_one(archive).as_ref());
        assert_eq!(flat.len(), 5, "without --nested, archives are files: {flat:?}");
    }
    // Several archives of any format are one directory.
    let both = [path("stored.zip"), path("files.tar"), path("deflated.zip")];
    let merged = tree::open(&both, OpenOptions::default()).unwrap();
    assert_eq!(tree::lines(merged.as_ref()).len(), 28);
}

/// Members of an inner archive are decoded from members of the outer one, which must not wait for the
/// memory that the former hold.
#[test]
fn nested_compressed_archives_are_read_with_a_small_cache() {
    let work = work_directory();
    let (files, outer) = (work.path().join("files"), work.path().join("outer"));
    fs::create_dir(&files).unwrap();
    fs::create_dir(&outer).unwrap();
    for nth in 0..12 {
        let piece = [source::noise(nth, 40_000), vec![b'x'; 40_000]].concat();
        fs::write(files.join(format!("{nth}")), piece.repeat(8)).unwrap();
    }
    fs::write(files.join("large"), [source::noise(99, 3 << 20), vec![0; 9 << 20]].concat())
        .unwrap();
    for nth in 0..4 {
        of_python(&outer.join(format!("{nth}.zip")), &files, "deflated");
    }
    let (zip, tar) = (work.path().join("outer.zip"), work.path().join("outer.tar.gz"));
    of_python(&zip, &outer, "deflated");
    run(Command::new("tar").arg("-C").arg(&outer).arg("-czf").arg(&tar).arg("."));
    for archive in [&zip, &tar] {
        for (cache, threads) in [("16M", "1"), ("32M", "4"), ("64M", "8")] {
            let mut command = Command::new("timeout");
            command.args(["-s", "KILL", "200", env!("CARGO_BIN_EXE_archfs"), "verify", "--nested"]);
            command.args(["--cache", cache, "--threads", threads]).arg(archive);
            let text = String::from_utf8_lossy(&run(&mut command).stderr).into_owned();
            assert!(text.contains("no damage found: 52 files"), "{cache}: {text}");
        }
    }
}

#[test]
fn pack_and_extract_read_an_archive() {
    let work = work_directory();
    let (archive, directory) = (work.path().join("archive.zip"), work.path().join("files"));
    plain_files(&directory);
    info_zip_of(&directory, &archive);
    let (image, packed) = (work.path().join("image.sqfs"), work.path().join("packed.tar"));
    run(archfs().arg("pack").arg("-q").arg(&archive).arg(&image));
    run(archfs().arg("pack").arg("-q").arg(&archive).arg(&packed));
    let extracted = work.path().join("extracted");
    run(archfs().arg("extract").arg("-q").arg(&archive).arg(&extracted));
    let forget = |path: &[u8], node: &mut crate::support::snapshot::Node| {
        forget_little(path, node);
        node.links.clear();
    };
    let expected = snapshot(&directory, forget);
    assert_same("extract", &expected, &snapshot(&extracted, forget));
    let untarred = work.path().join("untarred");
    fs::create_dir(&untarred).unwrap();
    run(Command::new("tar").arg("-xpf").arg(&packed).arg("-C").arg(&untarred));
    assert_same("pack to tar", &expected, &snapshot(&untarred, forget));
    let unsquashed = work.path().join("unsquashed");
    run(Command::new("unsquashfs").args(["-n", "-d"]).arg(&unsquashed).arg(&image));
    assert_same("pack to an image", &expected, &snapshot(&unsquashed, forget));
    let listed = run(archfs().arg("cat").arg(&archive).arg("a/b/small"));
    assert_eq!(listed.stdout, b"hello\n");
}

/// To chown(2), the owner 2^32 - 1 means no change, which must not leave a set-uid bit with another
/// owner.
#[test]
fn an_owner_that_means_no_change_gets_no_set_uid_bit() {
    let work = work_directory();
    let (archive, extracted) = (work.path().join("archive.zip"), work.path().join("extracted"));
    let program = "import struct, sys, zipfile\n\
        with zipfile.ZipFile(sys.argv[1], 'w') as archive:\n\
        \x20   info = zipfile.ZipInfo('program')\n\
        \x20   info.create_system, info.external_attr = 3, 0o104755 << 16\n\
        \x20   info.extra = struct.pack('<HHBBIBI', 0x7875, 11, 1, 4, 0xffffffff, 4, 0xffffffff)\n\
        \x20   archive.writestr(info, b'text')\n";
    run(Command::new("python3").args(["-c", program]).arg(&archive));
    let attr = vfs::resolve(tree::open_one(&archive).as_ref(), b"program").unwrap();
    assert_eq!((attr.uid, attr.gid), (65_534, 65_534));
    run(archfs().args(["extract", "-q"]).arg(&archive).arg(&extracted));
    let found = fs::metadata(extracted.join("program")).unwrap();
    let is_set = std::os::unix::fs::MetadataExt::mode(&found) & 0o4000 != 0;
    let is_owned = std::os::unix::fs::MetadataExt::uid(&found) == 65_534;
    assert_eq!(is_set, is_owned, "only the owner of the archive may have the bit");
}

/// .npz, .jar and .docx are ZIP archives, but `archfs pack a.npz b.npz` means the files.
#[test]
fn pack_takes_one_of_several_files_built_on_zip_as_a_file() {
    let work = work_directory();
    let directory = work.path().join("files");
    plain_files(&directory);
    for name in ["a.npz", "b.jar", "c.zip"] {
        let archive = work.path().join(name);
        run_in(&directory, "zip", &["-q", "-r", archive.to_str().unwrap(), "a"]);
    }
    let packed = |sources: &[&str]| {
        let image = work.path().join("image.sqfs");
        let mut command = archfs();
        command.args(["pack", "-q", "--force"]).args(sources).arg(&image);
        run(command.current_dir(&work));
        let listed = run(archfs().arg("ls").arg(&image));
        String::from_utf8(listed.stdout).unwrap()
    };
    assert_eq!(packed(&["a.npz", "b.jar", "c.zip"]), "a\na.npz\nb.jar\n");
    assert_eq!(packed(&["a.npz"]), "a\n", "the only source is unpacked");
    assert_eq!(packed(&["--as-file", "a.npz"]), "a.npz\n");
}

fn info_zip_of(directory: &Path, archive: &Path) {
    run_in(directory, "zip", &["-q", "-r", "-y", archive.to_str().unwrap(), "."]);
}

/// Opens an archive as a mount does.
fn opened(archive: &Path, partial: bool) -> archfs::error::Result<usize> {
    let options = OpenOptions { partial, cache_bytes: 64 << 20, ..OpenOptions::default() };
    let tree = formats::open(&[archive.to_owned()], &options, &Progress::default())?;
    Ok(tree::lines(tree.as_ref()).len())
}

#[test]
fn what_archfs_cannot_read_is_refused_in_plain_words() {
    let work = work_directory();
    let (archive, directory) = (work.path().join("archive.zip"), work.path().join("files"));
    fs::create_dir(&directory).unwrap();
    let text = "text of some length\n".repeat(1000);
    fs::write(directory.join("text"), &text).unwrap();
    fs::write(directory.join("noise"), source::noise(1, 300_000)).unwrap();
    let path = archive.to_str().unwrap();
    let refuses = |what: &str, kind: Kind| {
        let error = opened(&archive, false).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.hint().is_some(), "{error}");
        fs::remove_file(&archive).unwrap();
    };
    run_in(&directory, "zip", &["-q", "-P", "secret", path, "text"]);
    run_in(&directory, "zip", &["-q", path, "noise"]);
    assert_eq!(opened(&archive, true).unwrap(), 2, "the root and the file without a password");
    refuses("cannot read encrypted files, such as \"text\"", Kind::Unsupported);
    run_in(&directory, "7z", &["a", "-bd", "-tzip", "-psecret", "-mem=AES256", path, "text"]);
    refuses("cannot read encrypted files, such as \"text\"", Kind::Unsupported);
    run_in(&directory, "7z", &["a", "-bd", "-tzip", "-mm=PPMd", path, "text"]);
    refuses("cannot read files compressed with PPMd, such as \"text\"", Kind::Unsupported);
    run_in(&directory, "7z", &["a", "-bd", "-tzip", "-mm=Deflate64", path, "text"]);
    refuses("cannot read files compressed with deflate64, such as \"text\"", Kind::Unsupported);
    run_in(&directory, "zip", &["-q", "-s", "64k", path, "noise", "text"]);
    refuses("a part of a split ZIP archive", Kind::Unsupported);
    fs::rename(archive.with_extension("z01"), &archive).unwrap();
    refuses("a part of a split ZIP archive", Kind::Unsupported);
    run_in(&directory, "zip", &["-q", "-s", "64k", path, "noise", "text"]);
    let joined = "cat archive.z0* archive.zip > joined; mv joined archive.zip; rm archive.z0*";
    run_in(work.path(), "sh", &["-ec", joined]);
    // What the hint recommends if only this file is left.
    run_in(work.path(), "bsdtar", &["-xOf", path, "text"]);
    refuses("the parts of a split ZIP archive, joined by cat", Kind::Unsupported);
    run_in(&directory, "zip", &["-q", path, "noise", "text"]);
    let bytes = fs::read(&archive).unwrap();
    fs::write(&archive, &bytes[..bytes.len() - 100]).unwrap();
    refuses("without the central directory at its end: cut off", Kind::Truncated);
}

#[test]
fn verify_finds_a_wrong_bit_in_stored_and_compressed_members() {
    let work = work_directory();
    let (archive, directory) = (work.path().join("archive.zip"), work.path().join("files"));
    plain_files(&directory);
    for kind in ["stored", "deflated", "stored-stream", "deflated-stream"] {
        of_python(&archive, &directory, kind);
        let mut bytes = fs::read(&archive).unwrap();
        // In the data of the largest file, and in that of a file of 100,000 bytes.
        let noise = source::noise(7, 100_000);
        let at = bytes.windows(64).position(|found| found == &noise[50_000..50_064]).unwrap();
        bytes[at] ^= 4;
        fs::write(&archive, &bytes).unwrap();
        let output = archfs().arg("verify").arg(&archive).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(3), "{kind}: {text}");
        assert!(text.contains("a/gr"), "{kind}: {text}");
        assert_eq!(text.lines().count(), 1, "{kind}: {text}");
        // Read in pieces, a stored file is served as it is, and a compressed one is an error.
        let tree = tree::open(std::slice::from_ref(&archive), OpenOptions::default()).unwrap();
        let file = vfs::resolve(tree.as_ref(), "a/grün".as_bytes()).unwrap();
        let read = tree::contents(tree.as_ref(), file.ino);
        assert_eq!(read.is_ok(), kind.starts_with("stored"), "{kind}");
    }
}
