//! Nested archives, and many archives merged into one tree.
//!
//! Covers the layouts of common data sets (ImageNet's tar of tars, WebDataset's shards) and what
//! one archive can do to the files of another.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use archfs::formats::OpenOptions;
use archfs::vfs::{FileKind, Tree, resolve};

use crate::support::mount::{CleanUp, Mounted, is_mounted};
use crate::support::snapshot::{Depth, Snapshot, assert_same, take};
use crate::support::{archfs, image, run, skip_without_mounts, source, tar, tree, work_directory};

/// How deep nested archives are shown.
const NESTING_MAX: usize = 8;

fn recursive() -> OpenOptions {
    OpenOptions { recursive: true, ..OpenOptions::default() }
}

fn open_recursive(path: &Path) -> archfs::sync::Arc<dyn Tree> {
    tree::open(&[path.to_owned()], recursive()).unwrap()
}

/// The uncompressed archive, and one from each of `compressors`.
fn with_compressed(archive: &Path, compressors: &[&str]) -> Vec<PathBuf> {
    let mut made = vec![archive.to_owned()];
    for compressor in compressors {
        let program = compressor.split(' ').next().unwrap();
        let mut name = archive.as_os_str().to_owned();
        name.push(format!(".{program}"));
        let script = format!("{compressor} -c < \"$1\" > \"$2\"");
        run(Command::new("sh").args(["-c", &script, "sh"]).arg(archive).arg(&name));
        made.push(name.into());
    }
    made
}

fn contents(tree: &dyn Tree, path: &str) -> Vec<u8> {
    let attr = resolve(tree, path.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    tree::contents(tree, attr.ino).unwrap()
}

fn paths(tree: &dyn Tree) -> Vec<String> {
    tree::lines(tree).into_keys().map(|path| String::from_utf8(path).unwrap()).collect()
}

/// The stderr of a command that must succeed.
fn said(command: &mut Command) -> String {
    String::from_utf8(run(command).stderr).unwrap()
}

/// Drops the directories' own metadata, which differs if an archive became a directory.
fn files_of(mut snapshot: Snapshot) -> Snapshot {
    for node in snapshot.values_mut().filter(|node| node.mode & 0o170_000 == 0o040_000) {
        (node.mode, node.seconds) = (0o040_000, 0);
    }
    snapshot
}

#[test]
fn a_tar_of_class_tars_becomes_an_image_folder() {
    if skip_without_mounts() {
        return;
    }
    let loader = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/imagefolder.py");
    // Fewer and more archives than are scanned in parallel.
    for classes in [5, 40] {
        let work = work_directory();
        let [parts, extracted] = ["parts", "extracted"].map(|name| work.path().join(name));
        fs::create_dir(&parts).unwrap();
        for class in 0..classes {
            let name = format!("n{:08}", 1_440_764 + class * 17);
            let directory = work.path().join("class");
            fs::create_dir(&directory).unwrap();
            for number in 0..25 {
                let bytes = source::noise(class * 100 + number, 500 + number as usize * 331);
                fs::write(directory.join(format!("{name}_{number}.JPEG")), bytes).unwrap();
            }
            tar::pack(&parts.join(format!("{name}.tar")), &directory);
            fs::remove_dir_all(&directory).unwrap();
            // In two steps, the usual way without archfs.
            let to = extracted.join(&name);
            fs::create_dir_all(&to).unwrap();
            let mut unpack = Command::new("tar");
            run(unpack.arg("-xpf").arg(parts.join(format!("{name}.tar"))).arg("-C").arg(&to));
        }
        let train = work.path().join("train.tar");
        tar::pack(&train, &parts);
        let expected = files_of(take(&extracted, Depth::Everything));
        assert_eq!(expected.len() as u64, 1 + classes * 26);
        let load = |root: &Path| {
            run(Command::new("python3").arg(&loader).arg(root)).stdout.escape_ascii().to_string()
        };
        let loaded = load(&extracted);
        assert!(loaded.contains(&format!("{} files of {classes} classes", classes * 25)));
        for archive in with_compressed(&train, &["gzip", "xz --block-size=100KiB", "zstd"]) {
            let what = format!("{classes} classes, {}", archive.display());
            let mounted = Mounted::archfs(&archive, &work.path().join("mount"), &["--recursive"]);
            assert_same(&what, &expected, &files_of(take(mounted.path(), Depth::Everything)));
            assert_eq!(load(mounted.path()), loaded, "{what}");
        }
    }
}

/// The directories `parts/NAME` as compressed tars in `packed`, one for each way to compress.
fn compressed_parts(work: &Path) -> (PathBuf, PathBuf) {
    let (parts, packed) = (work.join("parts"), work.join("packed"));
    fs::create_dir(&packed).unwrap();
    for (nth, (compressor, suffix)) in [
        ("gzip", "tar.gz"),
        ("gzip -1", "tgz"),
        ("bzip2", "tar.bz2"),
        ("xz", "tar.xz"),
        ("xz --block-size=64KiB", "txz"),
        ("zstd -q", "tar.zst"),
        ("lz4 -q", "tar.lz4"),
        ("xz --format=lzma", "tar.lzma"),
        ("lzip", "tar.lz"),
        ("cat", "tar"),
    ]
    .into_iter()
    .enumerate()
    {
        let part = parts.join(format!("part{nth}"));
        fs::create_dir_all(part.join("below")).unwrap();
        let seed = nth as u64;
        fs::write(part.join("noise"), source::noise(seed, 400_000)).unwrap();
        fs::write(part.join("below/text"), format!("part {nth} ").repeat(40_000)).unwrap();
        fs::write(part.join("empty"), "").unwrap();
        let script = format!("tar -C \"$1\" -cf - . | {compressor} > \"$2.{suffix}\"");
        let to = packed.join(format!("part{nth}"));
        run(Command::new("sh").args(["-c", &script, "sh"]).arg(&part).arg(to));
    }
    (parts, packed)
}

#[test]
fn compressed_tars_in_an_archive_become_directories() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let (parts, packed) = compressed_parts(work.path());
    let outer = work.path().join("outer.tar");
    tar::pack(&outer, &packed);
    let mut archives = with_compressed(&outer, &["gzip", "xz", "zstd"]);
    archives.push(image::make(work.path(), "outer.sqfs", &packed, &["-comp", "gzip"]));
    let zip = work.path().join("outer.zip");
    run(Command::new("zip").args(["-qr"]).arg(&zip).arg(".").current_dir(&packed));
    archives.push(zip);
    let expected = files_of(take(&parts, Depth::Everything));
    for archive in archives {
        let what = archive.display().to_string();
        let mounted = Mounted::archfs(&archive, &work.path().join("mount"), &["--nested"]);
        let found = files_of(take(mounted.path(), Depth::Everything));
        assert_same(&what, &expected, &found);
        run(Command::new("diff").arg("-r").arg(&parts).arg(mounted.path()));
    }
}

#[test]
fn the_archives_of_a_directory_become_directories() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let (parts, packed) = compressed_parts(work.path());
    let extracted = work.path().join("extracted");
    // One is deeper, and there are files that are no archives.
    for directory in [&packed, &extracted] {
        fs::create_dir_all(directory.join("deeper/still")).unwrap();
    }
    for entry in fs::read_dir(&parts).unwrap() {
        let path = entry.unwrap().path();
        run(Command::new("cp").arg("-a").arg(&path).arg(&extracted));
    }
    fs::rename(packed.join("part3.tar.xz"), packed.join("deeper/still/part3.tar.xz")).unwrap();
    fs::rename(extracted.join("part3"), extracted.join("deeper/still/part3")).unwrap();
    image::make(&packed, "image.sqfs", &parts, &["-comp", "gzip"]);
    run(Command::new("cp").arg("-a").arg(&parts).arg(extracted.join("image")));
    fs::write(packed.join("README"), "no archive").unwrap();
    fs::write(packed.join("._part0.tar.gz"), "no archive, from macOS").unwrap();
    std::os::unix::fs::symlink(".", packed.join("loop")).unwrap();
    let mounted = Mounted::archfs(&packed, &work.path().join("mount"), &["--nested"]);
    run(Command::new("diff").arg("-r").arg(&extracted).arg(mounted.path()));
    drop(mounted);
    let mut command = archfs();
    command.args(["run", "-q", "--nested"]).arg(&packed).args(["--", "find", "{}", "-type", "f"]);
    let found = String::from_utf8(run(command.args(["-printf", "%P\\n"])).stdout).unwrap();
    let listed = run(archfs().args(["ls", "--nested", "-R"]).arg(&packed)).stdout;
    let listed = String::from_utf8(listed).unwrap();
    for line in found.lines() {
        assert!(listed.lines().any(|listed| listed == line), "{line}: {listed}");
    }
    assert_eq!(found.lines().count(), 3 * 10 + 3 * 10);
    let empty = work.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let output = archfs().args(["ls", "--nested"]).arg(&empty).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("empty: no archive in this directory"), "{said}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn an_empty_compressed_tar_in_an_archive_is_an_empty_directory() {
    let work = work_directory();
    let empty = gzip(&[0; 10_240]);
    let archive = work.path().join("outer.tar");
    fs::write(&archive, tar::of(&[("empty.tgz", &empty), ("beside", b"x")])).unwrap();
    assert_eq!(paths(&*open_recursive(&archive)), ["/", "beside", "empty"]);
}

#[test]
fn an_archive_of_a_directory_is_named_once() {
    let work = work_directory();
    let directory = work.path().join("directory");
    fs::create_dir_all(directory.join("below")).unwrap();
    fs::write(directory.join("below/a.tar"), tar::of(&[("file", b"a")])).unwrap();
    fs::write(directory.join("b.tar"), tar::of(&[("file", b"b")])).unwrap();
    for (paths, expected) in [
        (&[".", "below"][..], "below/a.tar: the same archive twice"),
        (&[".", "b.tar"][..], "b.tar: the same archive twice"),
        (&["--index", "i", "."][..], "take one archive, but several are given"),
        (&["--offset", "512", "."][..], "take one archive, but several are given"),
    ] {
        let mut command = archfs();
        command.args(["run", "--nested"]).args(paths).args(["/mount", "--", "true"]);
        let output = command.current_dir(&directory).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(122), "{paths:?}: {said}");
        assert!(said.contains(expected), "{paths:?}: {said}");
    }
}

#[test]
fn a_damaged_compressed_tar_in_an_archive_is_damage() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let (parts, packed) = compressed_parts(work.path());
    let whole = fs::read(packed.join("part0.tar.gz")).unwrap();
    fs::write(packed.join("part0.tar.gz"), &whole[..whole.len() / 2]).unwrap();
    let outer = work.path().join("outer.tar");
    tar::pack(&outer, &packed);
    let mount = |options: &[&str]| {
        let mut command = archfs();
        command.args(["run", "-q", "--nested"]).args(options).arg(&outer).args(["--", "cat"]);
        command.arg("{}/part4/below/text").output().unwrap()
    };
    let refused = mount(&[]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(123), "{said}");
    assert!(said.contains("outer.tar: part0: cut off: "), "{said}");
    let text = fs::read(parts.join("part4/below/text")).unwrap();
    assert!(mount(&["--partial"]).stdout == text);
}

/// `bytes`, compressed by gzip.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let work = work_directory();
    let path = work.path().join("part");
    fs::write(&path, bytes).unwrap();
    run(Command::new("gzip").arg("-nc").arg(path)).stdout
}

/// A tar of one file of `mebibytes` MiB of zeros, compressed to about a thousandth.
fn zeros(mebibytes: u64) -> Vec<u8> {
    let mut file = gzip(&tar::header("zeros", b'0', "", mebibytes << 20));
    let piece = gzip(&vec![0; 16 << 20]);
    file.extend(piece.repeat((mebibytes / 16) as usize));
    file.extend(gzip(&[0; 1024]));
    file
}

/// Most bytes are 1 GiB, and 256 for each byte of the archive.
#[test]
fn compressed_tars_in_an_archive_have_a_limit_together() {
    let work = work_directory();
    let archive = work.path().join("outer.tar");
    for (mebibytes, is_shown) in [(960, true), (1600, false)] {
        let inner = zeros(mebibytes);
        fs::write(&archive, tar::of(&[("bomb.tar.gz", &inner), ("beside", b"x")])).unwrap();
        let tree = open_recursive(&archive);
        assert_eq!(contents(&*tree, "beside"), b"x");
        assert_eq!(resolve(&*tree, b"bomb/zeros").is_ok(), is_shown, "{mebibytes}");
    }
    let output = archfs().args(["ls", "--nested", "--all"]).arg(&archive).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("bomb: the compressed tars in the archives of this mount are too large"),
        "{said}"
    );
    // It is a limit of archives in archives alone.
    fs::write(work.path().join("bomb.tar.gz"), zeros(1600)).unwrap();
    assert!(resolve(&*tree::open_one(&work.path().join("bomb.tar.gz")), b"zeros").is_ok());
}

/// A tar in as many compressed tars as `depth` says, each in the next.
fn with_compressed_levels(work: &Path, depth: usize) -> PathBuf {
    let archive = work.join("levels.tar");
    let mut bytes = tar::of(&[("file", b"innermost")]);
    for level in (1..=depth).rev() {
        bytes = tar::of(&[(&format!("l{level}.tar.gz"), &gzip(&bytes))]);
    }
    fs::write(&archive, bytes).unwrap();
    archive
}

#[test]
fn archives_nested_deeper_than_the_limit_are_files() {
    let work = work_directory();
    for depth in [NESTING_MAX, NESTING_MAX + 1] {
        let mut bytes = tar::of(&[("file", b"innermost")]);
        let innermost = bytes.clone();
        for level in (1..=depth).rev() {
            bytes = tar::of(&[(&format!("l{level}.tar"), &bytes), ("beside", b"x")]);
        }
        let archive = work.path().join("deep.tar");
        fs::write(&archive, bytes).unwrap();
        for archive in with_compressed(&archive, &["gzip"]) {
            let tree = open_recursive(&archive);
            let shown: Vec<_> = (1..=NESTING_MAX).map(|level| format!("l{level}")).collect();
            let way = shown.join("/");
            if depth == NESTING_MAX {
                assert_eq!(contents(&*tree, &format!("{way}/file")), b"innermost");
            } else {
                assert_eq!(contents(&*tree, &format!("{way}/l{depth}.tar")), innermost);
                assert_eq!(contents(&*tree, &format!("{way}/beside")), b"x");
            }
            assert_eq!(contents(&*tree, "l1/l2/beside"), b"x");
            let tree = open_recursive(&with_compressed_levels(work.path(), depth));
            let rest = if depth == NESTING_MAX { "file" } else { "l9.tar.gz" };
            assert!(resolve(&*tree, format!("{way}/{rest}").as_bytes()).is_ok(), "{depth}");
        }
    }
}

#[test]
fn without_recursive_an_inner_archive_is_a_file() {
    let work = work_directory();
    let inner = tar::of(&[("file", b"inside")]);
    let archive = work.path().join("outer.tar");
    fs::write(&archive, tar::of(&[("class.tar", &inner)])).unwrap();
    for archive in with_compressed(&archive, &["zstd"]) {
        let tree = tree::open_one(&archive);
        assert_eq!(paths(&*tree), ["/", "class.tar"]);
        assert_eq!(contents(&*tree, "class.tar"), inner);
        assert_eq!(paths(&*open_recursive(&archive)), ["/", "class", "class/file"]);
    }
}

#[test]
fn an_image_in_a_tar_shows_its_whole_tree() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let parts = work.path().join("parts");
    fs::create_dir_all(parts.join("folder")).unwrap();
    image::make(&parts, "folder/data.sqfs", &source::varied(), &["-comp", "zstd"]);
    fs::write(parts.join("folder/beside"), "x").unwrap();
    let archive = work.path().join("outer.tar");
    tar::pack(&archive, &parts);
    let expected = take(&source::varied(), Depth::Everything);
    for archive in with_compressed(&archive, &["gzip"]) {
        let mounted = Mounted::archfs(&archive, &work.path().join("mount"), &["--recursive"]);
        let found = take(&mounted.path().join("folder/data"), Depth::Everything);
        assert_same(&archive.display().to_string(), &expected, &found);
        assert_eq!(fs::read(mounted.path().join("folder/beside")).unwrap(), b"x");
        let names = fs::read_dir(mounted.path().join("folder")).unwrap().count();
        assert_eq!(names, 2);
    }
}

#[test]
fn an_image_in_an_image_is_decoded_through_both() {
    let work = work_directory();
    let (inner, outer) = (work.path().join("inner"), work.path().join("outer"));
    fs::create_dir(&inner).unwrap();
    fs::create_dir(&outer).unwrap();
    let text: String = (0..200_000).map(|line| format!("{line} lines so far\n")).collect();
    fs::write(inner.join("text"), &text).unwrap();
    // zstd still shrinks the output of lz4.
    image::make(&outer, "data.sqfs", &inner, &["-comp", "lz4"]);
    let archive = image::make(work.path(), "outer.sqfs", &outer, &["-comp", "zstd"]);
    let sizes =
        [outer.join("data.sqfs"), archive.clone()].map(|path| path.metadata().unwrap().len());
    assert!(sizes[1] < sizes[0] / 2, "{sizes:?}");
    assert!(contents(&*open_recursive(&archive), "data/text") == text.as_bytes());
}

#[test]
fn only_archives_become_directories() {
    let work = work_directory();
    let inner = tar::of(&[("file", b"inside")]);
    let archive = work.path().join("outer.tar");
    let files: &[(&str, &[u8])] = &[
        ("text.tar", b"this is no tar, although it is named as one, and longer than a block is"),
        ("long.tar", &[b'#'; 5000]),
        ("none.tar", b""),
        ("zeros.tar", &[0; 600]),
        ("named-otherwise", &inner),
        (".tar", &inner),
        ("empty.tar", &[0; 10_240]),
        ("no-image.sqfs", &inner[..300]),
    ];
    fs::write(&archive, tar::of(files)).unwrap();
    for archive in with_compressed(&archive, &["gzip"]) {
        let tree = open_recursive(&archive);
        for (name, data) in files.iter().filter(|(name, _)| *name != "empty.tar") {
            assert_eq!(contents(&*tree, name), *data, "{name}");
        }
        assert_eq!(resolve(&*tree, b"empty").unwrap().kind, FileKind::Directory);
        assert_eq!(paths(&*tree).len(), 1 + files.len());
    }
}

#[test]
fn members_of_a_nested_archive_stay_in_its_directory() {
    let work = work_directory();
    let odd = tar::of(&[
        ("../up", b"1"),
        ("../../../far/up", b"2"),
        ("/absolute", b"3"),
        ("a/../../b", b"4"),
    ]);
    let whole = tar::of(&[("file", b"x")]);
    let archive = work.path().join("outer.tar");
    let files: &[(&str, &[u8])] =
        &[("x/odd.tar", &odd), ("x/y/...tar", &whole), ("x/z/..tar", &whole), ("up", b"outer")];
    fs::write(&archive, tar::of(files)).unwrap();
    for archive in with_compressed(&archive, &["gzip"]) {
        let tree = open_recursive(&archive);
        let expected = [
            "/",
            "up",
            "x",
            "x/odd",
            "x/odd/absolute",
            "x/odd/b",
            "x/odd/far",
            "x/odd/far/up",
            "x/odd/up",
            "x/y",
            "x/y/...tar",
            "x/z",
            "x/z/..tar",
        ];
        assert_eq!(paths(&*tree), expected);
        assert_eq!(contents(&*tree, "up"), b"outer");
        assert_eq!(contents(&*tree, "x/y/...tar"), whole);
    }
}

#[test]
fn hard_links_in_a_nested_archive_stay_within_it() {
    let work = work_directory();
    let inner = [
        tar::member("first", b'0', "", b"inner"),
        tar::member("second", b'1', "first", b""),
        tar::member("third", b'1', "/../first", b""),
        tar::member("outside", b'1', "only-outer", b""),
    ];
    let archive = work.path().join("outer.tar");
    let files: &[(&str, &[u8])] =
        &[("first", b"outer"), ("only-outer", b"outer"), ("in.tar", &inner.concat())];
    fs::write(&archive, tar::of(files)).unwrap();
    for archive in with_compressed(&archive, &["gzip"]) {
        let tree = open_recursive(&archive);
        let expected = ["/", "first", "in", "in/first", "in/second", "in/third", "only-outer"];
        assert_eq!(paths(&*tree), expected);
        let attr = |path: &str| resolve(&*tree, path.as_bytes()).unwrap();
        assert_eq!(contents(&*tree, "in/third"), b"inner");
        assert_eq!((attr("in/first").nlink, attr("first").nlink), (3, 1));
        assert_eq!(attr("in/second").ino, attr("in/first").ino);
    }
}

#[test]
fn a_truncated_nested_archive_shows_its_intact_files_with_a_note() {
    let work = work_directory();
    let inner = tar::of(&[("a", &[b'a'; 700]), ("b", &[b'b'; 700]), ("c", b"c")]);
    let whole = tar::of(&[("d", b"d")]);
    let archive = work.path().join("outer.tar");
    // The archive ends within the data of the second file.
    let cut = &inner[..512 + 1024 + 512 + 512];
    let files: &[(&str, &[u8])] = &[("n01.tar", cut), ("n02.tar", &whole), ("e", b"e")];
    fs::write(&archive, tar::of(files)).unwrap();
    for archive in with_compressed(&archive, &["gzip"]) {
        let tree = open_recursive(&archive);
        assert_eq!(paths(&*tree), ["/", "e", "n01", "n01/a", "n02", "n02/d"]);
        assert_eq!(contents(&*tree, "n01/a"), [b'a'; 700]);
        let output = archfs().args(["ls", "--recursive"]).arg(&archive).output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        let stderr = String::from_utf8(output.stderr).unwrap();
        let expected = "in \"n01\": cut off: \"b\" and everything after it is missing";
        assert!(stderr.contains(expected), "{stderr}");
        assert!(!stderr.contains("n02"), "{stderr}");
    }
}

#[test]
fn a_nested_archive_merges_with_a_directory_of_its_name() {
    let work = work_directory();
    let inner = tar::of(&[("both", b"inner"), ("inner", b"inner")]);
    let archive = work.path().join("outer.tar");
    // Before and after the archive.
    let around: [&[(&str, &[u8])]; 2] = [
        &[
            ("x/both", b"outer"),
            ("x/outer", b"outer"),
            ("y", b"a file"),
            ("x.tar", &inner),
            ("y.tar", &inner),
        ],
        &[
            ("x.tar", &inner),
            ("y.tar", &inner),
            ("x/both", b"outer"),
            ("x/outer", b"outer"),
            ("y", b"a file"),
        ],
    ];
    for files in around {
        fs::write(&archive, tar::of(files)).unwrap();
        for archive in with_compressed(&archive, &["gzip"]) {
            let tree = open_recursive(&archive);
            let expected = ["/", "x", "x/both", "x/inner", "x/outer", "y", "y/both", "y/inner"];
            assert_eq!(paths(&*tree), expected, "{}", archive.display());
            // Members of a nested archive count as later ones, so `x/both` is its file.
            assert_eq!(contents(&*tree, "x/both"), b"inner", "{}", archive.display());
            let stderr = said(archfs().args(["ls", "--recursive"]).arg(&archive));
            assert!(stderr.contains("members whose path is also that of a directory"), "{stderr}");
        }
    }
}

/// Shards as WebDataset has them: numbered samples of two files.
fn shards(directory: &Path, count: usize, samples: usize) -> Vec<PathBuf> {
    (0..count)
        .map(|shard| {
            let files: Vec<_> = (shard * samples..(shard + 1) * samples)
                .flat_map(|sample| {
                    let picture = source::noise(sample as u64, 100 + sample % 2000);
                    let class = (sample % 10).to_string().into_bytes();
                    [(format!("{sample:06}.jpg"), picture), (format!("{sample:06}.cls"), class)]
                })
                .collect();
            let files: Vec<_> =
                files.iter().map(|(name, data)| (name.as_str(), &data[..])).collect();
            let path = directory.join(format!("shard-{shard:06}.tar"));
            fs::write(&path, tar::of(&files)).unwrap();
            path
        })
        .collect()
}

#[test]
fn many_processes_read_a_thousand_shards_with_few_open_files() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archives = shards(work.path(), 1000, 10);
    // Each process reads a part of all names, in steps of a stride, and prints the checksums.
    let reader = "import hashlib, os, sys\n\
        names = sorted(os.listdir(sys.argv[1]))\n\
        part, parts = int(sys.argv[2]), 4\n\
        mine = [names[nth * 7919 % len(names)] for nth in range(part, len(names), parts)]\n\
        for name in mine:\n\
        \x20   with open(os.path.join(sys.argv[1], name), 'rb') as file:\n\
        \x20       print(name, hashlib.md5(file.read()).hexdigest())\n";
    let unpacked = work.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    for sample in 0..10_000_usize {
        let picture = source::noise(sample as u64, 100 + sample % 2000);
        fs::write(unpacked.join(format!("{sample:06}.jpg")), picture).unwrap();
        fs::write(unpacked.join(format!("{sample:06}.cls")), (sample % 10).to_string()).unwrap();
    }
    let read = |root: &Path| -> BTreeSet<String> {
        let start = |part: u32| {
            let mut python = Command::new("python3");
            python.args(["-c", reader]).arg(root).arg(part.to_string());
            python.stdout(Stdio::piped()).spawn().unwrap()
        };
        let readers: Vec<_> = (0..4).map(start).collect();
        let lines = readers.into_iter().flat_map(|reader| {
            let output = reader.wait_with_output().unwrap();
            assert!(output.status.success());
            let text = String::from_utf8(output.stdout).unwrap();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        });
        lines.collect()
    };
    let expected = read(&unpacked);
    assert_eq!(expected.len(), 20_000);
    let mount_point = work.path().join("mount");
    for limited in [&["prlimit", "--nofile=256:256"][..], &[]] {
        let mounted = Mounted::several(limited, &archives, &mount_point, &[]);
        let open = Path::new("/proc").join(mounted.daemon().to_string()).join("fd");
        let count = || fs::read_dir(&open).unwrap().count();
        let first = count();
        assert!(read(&mount_point) == expected, "{limited:?}: other files");
        if !limited.is_empty() {
            assert!(first < 256 && count() < 256, "{first}, {} files open", count());
            // Half of the descriptor limit is for archives, and all of that half is used.
            assert!(count() > 100, "{} files open", count());
        }
    }
}

#[test]
fn compressed_shards_are_read_with_few_open_files() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archives = shards(work.path(), 300, 2);
    let mut packed = Vec::new();
    for (parts, (program, suffix)) in
        archives.chunks(100).zip([("gzip", "gz"), ("xz", "xz"), ("zstd --rm", "zst")])
    {
        let script = format!("{program} -q \"$@\"");
        run(Command::new("sh").args(["-c", &script, "sh"]).args(parts));
        packed.extend(parts.iter().map(|path| path.with_extension(format!("tar.{suffix}"))));
    }
    let mount_point = work.path().join("mount");
    for turn in ["scanned", "saved"] {
        let mounted =
            Mounted::several(&["prlimit", "--nofile=256:256"], &packed, &mount_point, &[]);
        let open = Path::new("/proc").join(mounted.daemon().to_string()).join("fd");
        assert_eq!(fs::read_dir(&mount_point).unwrap().count(), 1200, "{turn}");
        for sample in 0..600_usize {
            // Each read is in a different archive from the last.
            let sample = sample * 7919 % 600;
            let found = fs::read(mount_point.join(format!("{sample:06}.jpg"))).unwrap();
            assert!(found == source::noise(sample as u64, 100 + sample), "{turn}: {sample}");
        }
        let count = fs::read_dir(&open).unwrap().count();
        assert!(count > 100 && count < 256, "{turn}: {count} files open");
    }
}

/// Three archives of three formats that share directories.
fn mixed(work: &Path) -> Vec<PathBuf> {
    let file = |tree: &str, path: &str, text: &str| {
        let path = work.join(tree).join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for tree in ["first", "second", "third"] {
        file(tree, &format!("shared/{tree}"), tree);
        file(tree, "shared/same", tree);
        file(tree, &format!("alone-{tree}/file"), tree);
        let at = |path: &str| work.join(tree).join(path);
        fs::hard_link(at(&format!("shared/{tree}")), at(&format!("shared/{tree}-hard"))).unwrap();
        std::os::unix::fs::symlink("same", at(&format!("shared/{tree}-link"))).unwrap();
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(at("shared/same"), "user.tree", tree.as_bytes(), none).unwrap();
        rustix::fs::setxattr(at("shared"), "user.tree", tree.as_bytes(), none).unwrap();
        let hole = fs::File::create(at(&format!("shared/{tree}-sparse"))).unwrap();
        hole.set_len(10 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&hole, tree.as_bytes(), 5 << 20).unwrap();
    }
    file("first", "folder-then-file/hidden", "");
    file("second", "folder-then-file", "file");
    file("first", "file-then-folder", "hidden");
    file("third", "file-then-folder/file", "third");
    for nth in 0..5000 {
        let tree = ["first", "second", "third"][nth % 3];
        file(tree, &format!("many/{nth:04}"), "");
    }
    let image = image::make(work, "first.sqfs", &work.join("first"), &["-comp", "zstd"]);
    let [second, third] = ["second", "third"].map(|name| {
        let archive = work.join(format!("{name}.tar"));
        tar::pack(&archive, &work.join(name));
        archive
    });
    let third = with_compressed(&third, &["gzip"]).pop().unwrap();
    vec![image, second, third]
}

#[test]
fn archives_of_both_formats_merge_into_one_tree() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archives = mixed(work.path());
    let mount_point = work.path().join("mount");
    let mut mount = archfs();
    let stderr = {
        let _clean_up = CleanUp(mount_point.clone());
        said(mount.args(["mount", "--keep"]).args(&archives).arg(&mount_point))
    };
    // `same` in two archives, one directory and its file, and one file.
    for (later, files, path) in [
        ("second.tar", 1, "folder-then-file"),
        ("third.tar.gzip", 2, "file-then-folder"),
        ("third.tar.gzip", 1, "shared/same"),
    ] {
        let line = stderr.lines().find(|line| line.ends_with(path)).expect(path);
        let files = if files == 1 { "1 file" } else { "2 files" };
        assert!(line.contains(&format!("{later}: hides {files} of ")), "{line}");
    }
    assert!(stderr.contains("mounted 3 archives at "), "{stderr}");

    let mounted = Mounted::several(&[], &archives, &mount_point, &[]);
    let at = |path: &str| mounted.path().join(path);
    let read = |path: &str| fs::read_to_string(at(path)).unwrap();
    let names = |path: &str| -> Vec<String> {
        let entries = fs::read_dir(at(path)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let top = [
        "alone-first",
        "alone-second",
        "alone-third",
        "file-then-folder",
        "folder-then-file",
        "many",
        "shared",
    ];
    assert_eq!(names(""), top);
    let kinds = ["", "-hard", "-link", "-sparse"];
    let mut expected: Vec<_> = ["first", "second", "third"]
        .iter()
        .flat_map(|tree| kinds.map(|kind| format!("{tree}{kind}")))
        .chain(["same".to_owned()])
        .collect();
    expected.sort();
    assert_eq!(names("shared"), expected);
    assert_eq!(read("shared/same"), "third");
    assert_eq!(read("folder-then-file"), "file");
    assert_eq!(names("file-then-folder"), ["file"]);
    let xattr = |path: &str| {
        let mut value = [0; 20];
        let len = rustix::fs::getxattr(at(path), "user.tree", &mut value[..]).unwrap();
        value[..len].to_vec()
    };
    assert_eq!((xattr("shared/same"), xattr("shared")), (b"third".to_vec(), b"third".to_vec()));
    let mut inodes = BTreeMap::new();
    for tree in ["first", "second", "third"] {
        assert_eq!(read(&format!("alone-{tree}/file")), tree);
        assert_eq!(read(&format!("shared/{tree}-hard")), tree);
        let stat = |path: String| fs::symlink_metadata(at(&path)).unwrap();
        let both = ["", "-hard"].map(|kind| stat(format!("shared/{tree}{kind}")));
        assert_eq!((both[0].ino(), both[0].nlink()), (both[1].ino(), 2));
        assert_eq!(fs::read_link(at(&format!("shared/{tree}-link"))).unwrap(), Path::new("same"));
        let sparse = stat(format!("shared/{tree}-sparse"));
        assert_eq!(sparse.len(), 10 << 20);
        assert!(sparse.blocks() * 512 < 1 << 20, "{tree}: {} blocks", sparse.blocks());
        let bytes = fs::read(at(&format!("shared/{tree}-sparse"))).unwrap();
        assert_eq!(&bytes[5 << 20..][..tree.len()], tree.as_bytes());
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), tree.len());
    }
    for (path, node) in take(mounted.path(), Depth::NoXattrs) {
        inodes.insert(path, node.links);
    }
    let shared: Vec<_> = inodes.values().filter(|links| links.len() > 1).collect();
    assert_eq!(shared.len(), 6, "no two files have one number but the hard links");
}

#[test]
fn a_position_in_a_merged_directory_stays_valid() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archives = mixed(work.path());
    let mounted = Mounted::several(&[], &archives, &work.path().join("mount"), &[]);
    // telldir and seekdir, called from Python through libc.
    let program = "import ctypes, os, random, sys\n\
        c = ctypes.CDLL(None)\n\
        c.opendir.restype = c.readdir.restype = ctypes.c_void_p\n\
        c.telldir.restype = ctypes.c_long\n\
        c.opendir.argtypes = [ctypes.c_char_p]\n\
        c.readdir.argtypes = c.telldir.argtypes = [ctypes.c_void_p]\n\
        c.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]\n\
        directory = c.opendir(os.fsencode(sys.argv[1]))\n\
        def name():\n\
        \x20   entry = c.readdir(directory)\n\
        \x20   return ctypes.string_at(entry + 19) if entry else None\n\
        positions, names = [], []\n\
        while True:\n\
        \x20   positions.append(c.telldir(directory))\n\
        \x20   names.append(name())\n\
        \x20   if names[-1] is None: break\n\
        assert len(names) == len(set(names)) == 5003, len(names)\n\
        order = list(range(len(names)))\n\
        random.Random(1).shuffle(order)\n\
        for nth in order:\n\
        \x20   c.seekdir(directory, positions[nth])\n\
        \x20   assert name() == names[nth], nth\n";
    run(Command::new("python3").args(["-c", program]).arg(mounted.path().join("many")));
}

#[test]
fn subdir_and_owner_options_apply_to_several_archives() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archives = mixed(work.path());
    let options = ["--subdir=shared", "-o", "uid=4711,gid=4712"];
    let mounted = Mounted::several(&[], &archives, &work.path().join("mount"), &options);
    assert_eq!(fs::read(mounted.path().join("same")).unwrap(), b"third");
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 13);
    let found = take(mounted.path(), Depth::NoXattrs);
    assert!(found.values().all(|node| (node.uid, node.gid) == (4711, 4712)));
    drop(mounted);
    let options = ["--subdir=alone-second"];
    let mounted = Mounted::several(&[], &archives, &work.path().join("mount"), &options);
    assert_eq!(fs::read(mounted.path().join("file")).unwrap(), b"second");
}

#[test]
fn the_same_archive_twice_shows_its_files_once() {
    let work = work_directory();
    let archives = shards(work.path(), 1, 50);
    let once = tree::lines(&*tree::open(&archives, OpenOptions::default()).unwrap());
    let archives = [archives.clone(), archives].concat();
    let twice = tree::lines(&*tree::open(&archives, OpenOptions::default()).unwrap());
    let root = b"/".to_vec();
    let files = |lines: &BTreeMap<Vec<u8>, String>| {
        lines.clone().into_iter().filter(|(path, _)| *path != root).collect::<Vec<_>>()
    };
    assert_eq!(files(&once).len(), 100);
    assert_eq!(files(&once), files(&twice));
}

#[test]
fn archives_in_an_image_become_directories() {
    let work = work_directory();
    let [parts, outer] = ["parts", "outer"].map(|name| work.path().join(name));
    fs::create_dir_all(outer.join("deep")).unwrap();
    fs::create_dir_all(parts.join("folder")).unwrap();
    fs::write(parts.join("folder/file"), source::noise(3, 300_000)).unwrap();
    tar::pack(&outer.join("deep/a.tar"), &parts);
    let inner = image::make(&outer, "b.sqfs", &parts, &["-comp", "zstd"]);
    // A tar, and an image in a tar, in an image.
    let both = [
        ("a.tar", fs::read(outer.join("deep/a.tar")).unwrap()),
        ("b.sqfs", fs::read(inner).unwrap()),
    ];
    let both = both.each_ref().map(|(name, bytes)| (*name, bytes.as_slice()));
    fs::write(outer.join("t.tar"), tar::of(&both)).unwrap();
    fs::write(outer.join("none.tar"), "no tar").unwrap();
    fs::write(outer.join("plain"), "plain").unwrap();
    let archive = image::make(work.path(), "outer.sqfs", &outer, &["-comp", "zstd"]);
    let options = OpenOptions { recursive: true, ..OpenOptions::default() };
    let tree = tree::open(std::slice::from_ref(&archive), options).unwrap();
    let paths: Vec<_> = tree::lines(tree.as_ref()).into_keys().collect();
    let expected = [
        "/",
        "b",
        "b/folder",
        "b/folder/file",
        "deep",
        "deep/a",
        "deep/a/folder",
        "deep/a/folder/file",
        "none.tar",
        "plain",
        "t",
        "t/a",
        "t/a/folder",
        "t/a/folder/file",
        "t/b",
        "t/b/folder",
        "t/b/folder/file",
    ];
    assert_eq!(paths, expected.map(|path| path.as_bytes().to_vec()));
    for mount_point in ["b", "deep/a", "t/a", "t/b"] {
        let file = contents(&*tree, &format!("{mount_point}/folder/file"));
        assert!(file == source::noise(3, 300_000), "{mount_point}");
    }
    for hidden in ["b.sqfs", "deep/a.tar", "t.tar", "t/a.tar"] {
        assert!(resolve(tree.as_ref(), hidden.as_bytes()).is_err(), "{hidden}");
    }
    let plain = tree::lines(tree::open_one(&archive).as_ref());
    assert!(plain.contains_key(&b"t.tar"[..]) && !plain.contains_key(&b"t"[..]));
}

#[test]
fn an_image_in_one_of_several_archives_merges_with_the_others() {
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("sub/image"), "image").unwrap();
    fs::write(source.join("same"), "image").unwrap();
    let image = image::make(work.path(), "data.sqfs", &source, &["-comp", "gzip"]);
    let [first, second] = ["first.tar", "second.tar"].map(|name| work.path().join(name));
    let image = fs::read(image).unwrap();
    fs::write(&first, tar::of(&[("x/data.sqfs", &image), ("x/first", b"1")])).unwrap();
    fs::write(&second, tar::of(&[("x/data/sub/tar", b"2"), ("x/data/same", b"2")])).unwrap();
    for (archives, same) in [([&first, &second], b"2".as_slice()), ([&second, &first], b"image")] {
        let archives = archives.map(PathBuf::clone);
        let tree = tree::open(&archives, recursive()).unwrap();
        let expected = [
            "/",
            "x",
            "x/data",
            "x/data/same",
            "x/data/sub",
            "x/data/sub/image",
            "x/data/sub/tar",
            "x/first",
        ];
        assert_eq!(paths(&*tree), expected);
        assert_eq!(contents(&*tree, "x/data/same"), same);
        assert_eq!(contents(&*tree, "x/data/sub/image"), b"image");
    }
}

#[test]
fn run_takes_several_archives_and_offset_takes_one() {
    let work = work_directory();
    let archives = shards(work.path(), 2, 1);
    let image = image::small(work.path());
    let mount_point = work.path().join("mount");
    let mut refused = archfs();
    refused.args(["mount", "--offset=512"]).args(&archives).arg(&mount_point);
    let output = refused.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("--offset") && text.contains("several"), "{text}");
    assert!(!mount_point.exists());
    if skip_without_mounts() {
        return;
    }
    let _clean_up = CleanUp(mount_point.clone());
    let mut listing = archfs();
    listing
        .arg("run")
        .arg(&archives[0])
        .arg(&image)
        .arg(&mount_point)
        .args(["--", "ls"])
        .arg(&mount_point);
    let output = run(&mut listing);
    assert_eq!(output.stdout, b"000000.cls\n000000.jpg\nfolder\nhello\n");
    assert!(!is_mounted(&mount_point) && !mount_point.exists());
}

#[test]
fn an_unreadable_archive_is_named_and_nothing_is_mounted() {
    let work = work_directory();
    let mut archives = shards(work.path(), 30, 1);
    let mount_point = work.path().join("mount");
    let no_archive = work.path().join("notes.txt");
    fs::write(&no_archive, "no archive at all\n").unwrap();
    for bad in [work.path().join("missing.tar"), no_archive] {
        archives[17].clone_from(&bad);
        let _clean_up = CleanUp(mount_point.clone());
        let output = archfs().args(["mount", "--keep"]).args(&archives).arg(&mount_point).output();
        let output = output.unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{text}");
        assert!(text.contains(std::str::from_utf8(bad.as_os_str().as_bytes()).unwrap()), "{text}");
        assert!(!text.contains("shard-"), "{text}");
        assert!(!is_mounted(&mount_point) && !mount_point.exists());
    }
}
