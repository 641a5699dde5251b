//! `archfs info`: its counts match `find`, and its read costs match what decoding takes.
//!
//! mksquashfs, unsquashfs and a zlib script serve as oracles. Odd and hostile archives are
//! included.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::pack::seekable_zstd;
use crate::support::{archfs, image, run, source, tar, work_directory};

fn call(archive: &Path, options: &[&str]) -> Output {
    archfs().arg("info").args(options).arg(archive).output().unwrap()
}

/// The JSON for an archive; `info` must succeed.
fn info(archive: &Path, options: &[&str]) -> Value {
    let output = call(archive, &[&["--json"], options].concat());
    assert!(output.status.success(), "{}: {output:?}", archive.display());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "one object");
    serde_json::from_str(&text).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn an_archive_whose_files_are_all_encrypted_gets_no_ratio_and_no_advice() {
    let work = work_directory();
    let (file, archive) = (work.path().join("a.txt"), work.path().join("all.zip"));
    fs::write(&file, "a secret").unwrap();
    run(Command::new("zip").args(["-qjP", "password"]).arg(&archive).arg(&file));
    let output = call(&archive, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let (size, last) = (fs::metadata(&archive).unwrap().len(), text.lines().last().unwrap());
    assert!(text.contains(&format!("\nsize         {size} B for 0 B of files\n")), "{text}");
    assert_eq!(last, "random read  decompresses nothing", "{text}");
    assert!(output.status.success());
}

/// The counts that `find` would give for a directory, with the keys of the JSON.
fn counts(root: &Path) -> Value {
    let [mut files, mut directories, mut links, mut devices, mut fifos, mut sockets] = [0_u64; 6];
    let (mut hard_links, mut bytes, mut largest) = (0_u64, 0, 0);
    let mut inodes = BTreeSet::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let found = path.symlink_metadata().unwrap();
        let kind = found.file_type();
        let is_first = inodes.insert(found.ino());
        hard_links += u64::from(!is_first);
        if kind.is_dir() {
            directories += 1;
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if kind.is_file() {
            files += 1;
            bytes += if is_first { found.len() } else { 0 };
            largest = largest.max(found.len());
        } else if kind.is_symlink() {
            links += 1;
        } else if kind.is_fifo() {
            fifos += 1;
        } else if kind.is_socket() {
            sockets += 1;
        } else {
            devices += 1;
        }
    }
    json!({
        "files": files, "folders": directories, "links": links, "devices": devices, "fifos": fifos,
        "sockets": sockets, "hard_links": hard_links, "file_bytes": bytes, "file_largest": largest,
    })
}

/// The entries of `info` whose keys are in `expected`.
fn same_keys(info: &Value, expected: &Value) -> Value {
    let keys = expected.as_object().unwrap().keys();
    keys.map(|key| (key.clone(), info[key].clone())).collect::<serde_json::Map<_, _>>().into()
}

/// The value after `label` in the output of `unsquashfs -s`.
fn superblock(image: &Path, label: &str) -> String {
    let output = run(Command::new("unsquashfs").arg("-s").arg(image));
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix(label));
    line.unwrap_or_else(|| panic!("no {label} in {text}")).trim().to_owned()
}

/// Mean, percentile and maximum of bytes decoded for a file, by the script that decodes every
/// block.
fn decoded(image: &Path) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/decode_cost.py");
    let output = run(Command::new("python3").arg(script).arg(image));
    let text = String::from_utf8(output.stdout).unwrap();
    statistics(text.lines().map(|line| line.parse().unwrap()).collect())
}

fn statistics(mut costs: Vec<u64>) -> Value {
    costs.sort_unstable();
    let count = costs.len() as u64;
    // The smallest value that 99 of 100 do not exceed.
    let is_enough = |&&cost: &&u64| {
        let within = costs.iter().filter(|&&other| other <= cost).count() as u64;
        within * 100 >= count * 99
    };
    let mean = costs.iter().sum::<u64>() / count;
    json!({ "mean": mean, "p99": costs.iter().find(is_enough), "worst": costs.last() })
}

/// Checks that uncompressed bytes, compressed bytes and holes add up to the files, and so do the
/// size classes.
fn check_sums(info: &Value) {
    let (image, bytes) = (&info["squashfs"], number(&info["file_bytes"]));
    let stored = ["plain", "compressed", "holes"].map(|key| number(&image[key]));
    assert_eq!(stored.iter().sum::<u64>(), bytes, "{info}");
    let sizes = info["sizes"].as_array().unwrap();
    let sum = |key: &str| sizes.iter().map(|class| number(&class[key])).sum::<u64>();
    assert_eq!(sum("bytes"), bytes);
    assert!(sum("files") <= number(&info["files"]), "a file with two names is one");
}

#[test]
fn counts_of_images_match_the_source() {
    let work = work_directory();
    let source = source::varied();
    let expected = counts(&source);
    let mut odd = image::COMPRESSORS.map(|name| vec!["-comp", name]).to_vec();
    odd.push(vec!["-comp", "zstd", "-b", "4K", "-no-fragments", "-no-exports"]);
    odd.push(vec!["-comp", "gzip", "-always-use-fragments", "-noI", "-noD", "-noF", "-noX"]);
    odd.push(vec!["-comp", "zstd", "-no-xattrs", "-no-duplicates", "-nopad"]);
    for options in odd {
        let image = image::make(work.path(), "info.sqfs", &source, &options);
        let info = info(&image, &[]);
        assert_eq!(same_keys(&info, &expected), expected, "{options:?}");
        check_sums(&info);
        assert_eq!(info["format"], "squashfs");
        assert_eq!(info["bytes"], fs::metadata(&image).unwrap().len());
        let found = &info["squashfs"];
        let says = |label: &str| superblock(&image, label);
        assert_eq!(found["compressor"], says("Compression"), "{options:?}");
        assert_eq!(found["block_size"].to_string(), says("Block size"), "{options:?}");
        assert_eq!(found["fragments"]["blocks"].to_string(), says("Number of fragments"));
        assert_eq!(found["fragments"]["blocks"], found["fragments"]["used"]);
        assert_eq!(found["owners"].to_string(), says("Number of ids"));
        assert_eq!(found["exportable"], !options.contains(&"-no-exports"));
        let xattrs = found["xattrs"].as_u64().unwrap_or(0);
        assert_eq!(xattrs > 0, !options.contains(&"-no-xattrs"), "{options:?}");
        let names = ["files", "folders", "links", "devices", "fifos", "sockets"];
        let inodes =
            names.map(|key| number(&info[key])).iter().sum::<u64>() - number(&info["hard_links"]);
        assert_eq!(inodes.to_string(), says("Number of inodes"));
    }
}

#[test]
fn the_read_cost_matches_decoding_every_block() {
    let work = work_directory();
    for source in [source::varied(), Path::new(env!("CARGO_MANIFEST_DIR")).join("src")] {
        for options in [
            &["-b", "128K"][..],
            &["-b", "4K"],
            &["-b", "1M", "-always-use-fragments"],
            &["-b", "64K", "-no-fragments"],
            &["-no-duplicates", "-always-use-fragments"],
            &["-noD"],
            &["-noF"],
        ] {
            let options = [&["-comp", "gzip"], options].concat();
            let image = image::make(work.path(), "cost.sqfs", &source, &options);
            let info = info(&image, &[]);
            assert_eq!(info["decoded"], decoded(&image), "{options:?}");
            check_sums(&info);
        }
    }
}

#[test]
fn reports_uncompressed_blocks_holes_and_duplicates() {
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("noise"), source::noise(1, 200_000)).unwrap();
    let text = "the same words again\n".repeat(20_000);
    fs::write(source.join("text"), &text).unwrap();
    fs::write(source.join("twin"), &text).unwrap();
    let hole = fs::File::create(source.join("hole")).unwrap();
    hole.set_len(1 << 20).unwrap();
    let options = ["-comp", "zstd", "-no-fragments", "-b", "128K", "-Xcompression-level", "3"];
    let image = image::make(work.path(), "shares.sqfs", &source, &options);
    let info = info(&image, &[]);
    let found = &info["squashfs"];
    assert_eq!(found["plain"], 200_000);
    assert_eq!(found["compressed"], 2 * text.len());
    assert_eq!(found["shared"], text.len());
    assert_eq!(found["holes"], 1 << 20);
    assert_eq!(found["options"], "level 3");
    let len = text.len() as u64;
    assert_eq!(info["decoded"], json!({ "mean": 2 * len / 4, "p99": len, "worst": len }));

    // Also in fragments: two equal tails are stored once.
    let small = work.path().join("small");
    fs::create_dir(&small).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(small.join(name), "x".repeat(1000)).unwrap();
    }
    fs::write(small.join("d"), "y".repeat(500)).unwrap();
    let image = image::make(work.path(), "ends.sqfs", &small, &["-comp", "lz4", "-Xhc"]);
    let info = info_of_tails(&image);
    assert_eq!(info["decoded"], json!({ "mean": 1500, "p99": 1500, "worst": 1500 }));
}

fn info_of_tails(image: &Path) -> Value {
    let info = info(image, &[]);
    let found = &info["squashfs"];
    assert_eq!((number(&found["shared"]), &found["options"]), (2000, &json!("hc")));
    let expected = json!({ "blocks": 1, "used": 1, "compressed": 1, "bytes": 1500, "files": 4 });
    assert_eq!(found["fragments"], expected);
    info
}

#[test]
fn counts_of_tars_match_the_source_without_decoding() {
    let work = work_directory();
    let source = source::varied();
    let archive = work.path().join("info.tar");
    let script = "cd \"$1\" && tar --format=gnu --sparse --xattrs -cf \"$2\" . 2> /dev/null";
    run(Command::new("sh").args(["-c", script, "sh"]).arg(&source).arg(&archive));
    // A tar has no sockets, and GNU tar writes each name of a fifo as a separate fifo.
    let mut expected = counts(&source);
    expected["sockets"] = 0.into();
    expected["hard_links"] = (number(&expected["hard_links"]) - 1).into();
    let index = work.path().join("index");
    let options = ["--index", index.to_str().unwrap()];
    for _ in 0..2 {
        let info = info(&archive, &options);
        assert_eq!(same_keys(&info, &expected), expected);
        assert_eq!(info["decoded"], json!({ "mean": 0, "p99": 0, "worst": 0 }));
        assert_eq!(info["bytes"], fs::metadata(&archive).unwrap().len());
        assert_eq!(info["tar"]["container"], Value::Null);
        assert_eq!(info["tar"]["chunks"], Value::Null);
        assert_eq!(info["tar"]["indexed"], true, "a named index is made, and then used");
        assert_eq!(info["tar"]["xattrs"], true);
        assert!(number(&info["tar"]["holes"]) > 25 << 20);
    }
}

#[test]
fn a_file_in_a_compressed_tar_costs_its_chunks() {
    let work = work_directory();
    const FRAME: usize = 1_500_000;
    let sizes = [0_usize, 10, 400_000, 2_000_000, 3_000_000, 1, 1_499_000];
    let data: Vec<_> = sizes.iter().map(|&size| source::noise(size as u64, size)).collect();
    let names: Vec<_> = (0..sizes.len()).map(|nth| format!("file{nth}")).collect();
    let files: Vec<_> =
        names.iter().zip(&data).map(|(name, data)| (&name[..], &data[..])).collect();
    let bytes = tar::of(&files);
    let archive = work.path().join("frames.tar.zst");
    fs::write(&archive, seekable_zstd(&bytes, FRAME)).unwrap();
    let (mut costs, mut at) = (Vec::new(), 0);
    for size in sizes {
        at += 512;
        let first = at / FRAME * FRAME;
        let end = (at + size).div_ceil(FRAME) * FRAME;
        costs.push(if size == 0 { 0 } else { (end.min(bytes.len()) - first) as u64 });
        at += size.next_multiple_of(512);
    }
    let info = info(&archive, &[]);
    assert_eq!(info["decoded"], statistics(costs));
    assert_eq!(info["tar"]["container"], "zstd");
    assert_eq!(info["tar"]["bytes"], bytes.len());
    assert_eq!(info["tar"]["chunks"], bytes.len().div_ceil(FRAME));
    assert_eq!(info["tar"]["largest_chunk"], FRAME);
    assert_eq!(info["tar"]["spooled"], false);

    // One frame or block, so every read decodes the whole archive.
    let plain = work.path().join("plain.tar");
    fs::write(&plain, tar::of(&[("a", &[7; 3000]), ("b", &[8; 5000])])).unwrap();
    let len = fs::metadata(&plain).unwrap().len();
    for program in ["xz -0", "bzip2", "lz4", "gzip"] {
        let compressed = work.path().join("one.tar.compressed");
        let script = format!("{program} < \"$1\" > \"$2\"");
        run(Command::new("sh").args(["-c", &script, "sh"]).arg(&plain).arg(&compressed));
        let info = self::info(&compressed, &[]);
        let cost = json!({ "mean": len, "p99": len, "worst": len });
        assert_eq!((&info["decoded"], &info["tar"]["chunks"]), (&cost, &json!(1)), "{program}");
        assert_eq!(info["tar"]["container"], program.split(' ').next().unwrap());
        assert_eq!(info["bytes"], fs::metadata(&compressed).unwrap().len());
    }
}

#[test]
fn reports_that_a_giant_frame_is_decoded_at_each_mount() {
    let work = work_directory();
    let archive = work.path().join("giant.tar.zst");
    let script = "cd \"$1\"; truncate -s 100M zeros; tar -cf - zeros | zstd -q -1 > \"$2\"";
    run(Command::new("sh").args(["-c", script, "sh"]).arg(work.path()).arg(&archive));
    let info = info(&archive, &[]);
    assert_eq!((&info["tar"]["spooled"], &info["tar"]["chunks"]), (&json!(true), &Value::Null));
    let advice = info["advice"][0].as_str().unwrap();
    assert!(advice.contains("temporary file") && advice.contains("archfs pack"), "{advice}");
}

#[test]
fn advice_appears_only_if_it_would_help() {
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir(&source).unwrap();
    for nth in 0..300 {
        fs::write(source.join(format!("{nth}")), format!("{nth} ").repeat(1000)).unwrap();
    }
    let advice = |options: &[&str]| {
        let image = image::make(work.path(), "my data.sqfs", &source, options);
        let output = call(&image, &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let large = advice(&["-comp", "zstd", "-b", "1M"]);
    assert!(large.contains("my data.sqfs' new.sqfs` would"), "{large}");
    assert!(large.contains("estimate"), "{large}");
    let small = advice(&["-comp", "zstd", "-b", "32K"]);
    assert!(
        small.contains("packing it again gains nothing") && !small.contains("archfs pack"),
        "{small}"
    );
    let plain = advice(&["-comp", "zstd", "-noD", "-noF"]);
    assert!(plain.contains("reads decompress nothing"), "{plain}");
    let slow = advice(&["-comp", "gzip", "-b", "32K"]);
    assert!(slow.contains("zstd, which decompresses faster than gzip"), "{slow}");
}

#[test]
fn a_python_environment_is_advised_to_be_packed_fast() {
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir_all(source.join("env/lib")).unwrap();
    for nth in 0..200 {
        fs::write(source.join(format!("env/lib/{nth}.py")), format!("{nth} ").repeat(9000))
            .unwrap();
    }
    let advice = |archive: &Path| {
        let text = info(archive, &[])["advice"].to_string();
        text.contains("--fast")
    };
    let (plain, environment) = (work.path().join("plain.tar.gz"), work.path().join("env.tar.gz"));
    let pack = |archive: &Path| {
        run(Command::new("tar").arg("-C").arg(&source).arg("-czf").arg(archive).arg("env"));
    };
    pack(&plain);
    fs::create_dir(source.join("env/conda-meta")).unwrap();
    pack(&environment);
    assert!(advice(&environment) && !advice(&plain));
    let packed = work.path().join("env.sqfs");
    run(archfs().args(["pack", "-q", "--fast"]).arg(&source).arg(&packed));
    assert!(!advice(&packed), "it was packed so");
}

#[test]
fn counts_the_methods_of_a_zip_archive() {
    let work = work_directory();
    let (source, archive) = (work.path().join("source"), work.path().join("data.zip"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("text"), "some text\n".repeat(1000)).unwrap();
    fs::write(source.join("noise"), source::noise(1, 5000)).unwrap();
    let words = ["-q", "-r", archive.to_str().unwrap(), "."];
    run(Command::new("zip").args(words).current_dir(&source));
    let info = info(&archive, &[]);
    assert_eq!(
        (&info["format"], &info["files"], &info["folders"]),
        (&json!("zip"), &json!(2), &json!(1))
    );
    let methods = info["zip"]["methods"].as_array().unwrap();
    let row =
        |nth: usize| (&methods[nth]["method"], &methods[nth]["files"], &methods[nth]["bytes"]);
    assert_eq!(row(0), (&json!("stored"), &json!(1), &json!(5000)));
    assert_eq!(row(1), (&json!("deflate"), &json!(1), &json!(10_000)));
    assert_eq!(info["decoded"]["worst"], json!(10_000), "a whole member");
    let text = String::from_utf8(call(&archive, &[]).stdout).unwrap();
    assert!(text.contains("67% deflate (1 file, compressed to "), "{text}");
}

#[test]
fn the_text_fits_a_screen() {
    let work = work_directory();
    let source = source::varied();
    let odd = image::make(work.path(), "odd.sqfs", &source, &["-comp", "xz", "-Xbcj", "x86,arm"]);
    let large = image::make(work.path(), "large.sqfs", &source::large(), &["-comp", "gzip"]);
    let archive = work.path().join("all.tar.gz");
    let script = "tar -C \"$1\" -cf - . 2> /dev/null | gzip -1 > \"$2\"";
    run(Command::new("sh").args(["-c", script, "sh"]).arg(&source).arg(&archive));
    for archive in [odd, large, archive] {
        let output = call(&archive, &[]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.is_ascii());
        assert!(text.lines().count() <= 30, "{} lines:\n{text}", text.lines().count());
        let is_path = |line: &str| line.contains(archive.to_str().unwrap());
        let wide = text.lines().filter(|line| line.len() > 80 && !is_path(line));
        assert_eq!(wide.collect::<Vec<_>>(), Vec::<&str>::new());
        assert!(text.contains("file size      files       bytes  part of the files\n"), "{text}");
    }
}

#[test]
fn nested_archives_are_reported_under_their_paths() {
    let work = work_directory();
    let inner = tar::of(&[("one", b"1"), ("two", b"22")]);
    let source = work.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "text").unwrap();
    let image = image::make(work.path(), "inner.sqfs", &source, &[]);
    let image = fs::read(image).unwrap();
    let outer = work.path().join("outer.tar");
    fs::write(&outer, tar::of(&[("in/a.tar", &inner), ("in/b.sqfs", &image)])).unwrap();
    assert_eq!(info(&outer, &[])["within"], json!([]));
    let info = info(&outer, &["--recursive"]);
    let within = info["within"].as_array().unwrap();
    let found: Vec<_> = within
        .iter()
        .map(|row| (row["path"].as_str().unwrap(), &row["format"], number(&row["file_bytes"])))
        .collect();
    assert!(found.contains(&("in/b", &json!("squashfs"), 4)), "{found:?}");
    assert_eq!(info["archive"], outer.to_str().unwrap());
    assert!(within.iter().all(|row| row["archive"] == Value::Null));
}

#[test]
fn reports_an_image_at_an_offset() {
    let work = work_directory();
    let image = image::small(work.path());
    let mut bytes = vec![7; 4096];
    bytes.extend(fs::read(&image).unwrap());
    let shifted = work.path().join("shifted");
    fs::write(&shifted, bytes).unwrap();
    assert_eq!(call(&shifted, &[]).status.code(), Some(3));
    let (mut one, mut other) = (info(&image, &[]), info(&shifted, &["--offset", "4K"]));
    for info in [&mut one, &mut other] {
        info["archive"] = Value::Null;
        info["advice"] = Value::Null;
    }
    assert_eq!(one, other);
}

#[test]
fn failures_have_one_line_and_the_status_of_their_cause() {
    let work = work_directory();
    let image = image::small(work.path());
    let mut bytes = fs::read(&image).unwrap();
    let at = u64::from_le_bytes(bytes[64..72].try_into().unwrap()) as usize;
    bytes[at + 2..at + 40].fill(0x55);
    let damaged = work.path().join("damaged.sqfs");
    fs::write(&damaged, &bytes).unwrap();
    let text = work.path().join("text");
    fs::write(&text, "no archive at all").unwrap();
    for (archive, status) in [(work.path().join("missing"), 1), (text, 3), (damaged, 3)] {
        let output = call(&archive, &["--json"]);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert_eq!(output.stdout, b"");
        let stderr = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<_> = stderr.lines().collect();
        assert!(
            lines[0].starts_with("archfs: error: ") && lines[0].contains(archive.to_str().unwrap())
        );
        assert!(lines[1..].iter().all(|line| line.starts_with("archfs: hint: ")), "{stderr}");
        assert!(lines.len() <= 2, "{stderr}");
    }
}

#[test]
fn hostile_archives_are_reported_or_refused_within_limits() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bad");
    let work = work_directory();
    let text = fs::read(directory.join("MANIFEST.json")).unwrap();
    let Value::Array(cases) = serde_json::from_slice(&text).unwrap() else { panic!("no list") };
    let (mut reported, mut refused) = (0, 0);
    for case in &cases {
        let name = case["file"].as_str().unwrap();
        // A copy, because an index may be saved beside it.
        let archive: PathBuf = work.path().join(name);
        fs::copy(directory.join(name), &archive).unwrap();
        let memory = number(&case["memory"]) * 1024;
        let script = format!("ulimit -d {memory} && ulimit -t 60 && exec timeout 300 \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_archfs"), "info", "--json"]);
        if let Some(options) = case["options"].as_array() {
            shell.args(options.iter().map(|option| option.as_str().unwrap()));
        }
        let output = shell.arg(&archive).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.signal(), None, "{name}: {stderr}");
        assert!(!stderr.contains("panicked"), "{name}: {stderr}");
        match output.status.code() {
            Some(0) => {
                reported += 1;
                let text = String::from_utf8(output.stdout).unwrap();
                let value: Value = serde_json::from_str(&text).unwrap();
                assert!(value["files"].is_u64(), "{name}: {text}");
            }
            Some(3) => {
                refused += 1;
                assert!(stderr.contains("archfs: error: "), "{name}: {stderr}");
            }
            other => panic!("{name}: status {other:?}: {stderr}"),
        }
        let faults = case["faults"].as_array().map_or(&[][..], Vec::as_slice);
        if faults.iter().any(|fault| fault["do"] == "open") {
            assert_eq!(output.status.code(), Some(3), "{name}: {stderr}");
        }
    }
    assert!(reported > 100 && refused > 30, "{reported} told, {refused} refused");
}

/// The rows that `--top` must list for a directory: size, number of files and path, the largest
/// first.
fn largest(root: &Path) -> [Vec<(u64, u64, String)>; 2] {
    let script = "import os, sys
root = os.fsencode(sys.argv[1])
files, directories = [], []
def walk(path):
    size = count = 0
    for entry in os.scandir(path):
        if entry.is_dir(follow_symlinks=False):
            found = walk(entry.path)
            size, count = size + found[0], count + found[1]
        elif entry.is_file(follow_symlinks=False):
            length = entry.stat(follow_symlinks=False).st_size
            files.append((length, 1, os.path.relpath(entry.path, root)))
            size, count = size + length, count + 1
    if path != root:
        directories.append((size, count, os.path.relpath(path, root)))
    return size, count
walk(root)
for rows in files, directories:
    rows.sort(key=lambda row: (-row[0], row[2]))
    print([[size, count, path.decode(errors='replace')] for size, count, path in rows])";
    let output = run(Command::new("python3").args(["-c", script]).arg(root));
    let text = String::from_utf8(output.stdout).unwrap().replace('\'', "\"");
    let mut lists = text.lines().map(|line| serde_json::from_str(line).unwrap());
    [lists.next().unwrap(), lists.next().unwrap()]
}

#[test]
fn top_lists_the_largest_files_and_directories() {
    let work = work_directory();
    let tree = work.path().join("tree");
    for (path, size) in
        [("a/b/large", 9000), ("a/b/c/x", 50), ("a/y", 50), ("d/1", 3000), ("d/2", 3000), ("e", 7)]
    {
        fs::create_dir_all(tree.join(path).parent().unwrap()).unwrap();
        fs::write(tree.join(path), vec![b'x'; size]).unwrap();
    }
    fs::create_dir(tree.join("empty")).unwrap();
    std::os::unix::fs::symlink("a/b/large", tree.join("link")).unwrap();
    let image = image::make(work.path(), "tree.sqfs", &tree, &[]);
    let archive = work.path().join("tree.tar");
    run(Command::new("tar").arg("-C").arg(&tree).arg("-cf").arg(&archive).arg("."));
    let [files, directories] = largest(&tree);
    assert_eq!((files.len(), directories.len()), (6, 5));
    for archive in [&image, &archive] {
        for (option, count) in [("--top", 10), ("--top=3", 3), ("--top=0", 0)] {
            let found = info(archive, &[option]);
            let rows = |key: &str| found[key].as_array().unwrap().clone();
            let expected = files.iter().take(count);
            let expected: Vec<_> =
                expected.map(|(bytes, _, path)| json!({"path": path, "bytes": bytes})).collect();
            assert_eq!(rows("largest_files"), expected);
            let expected = directories
                .iter()
                .take(count)
                .map(|(bytes, files, path)| json!({"path": path, "files": files, "bytes": bytes}));
            assert_eq!(rows("largest_directories"), expected.collect::<Vec<_>>());
        }
        let text = String::from_utf8(call(archive, &["--top=1"]).stdout).unwrap();
        let end = "largest files\n     8.7 KiB  a/b/large\n\n\
                   largest directories, with everything below them\n     8.8 KiB        3 files  a\n";
        assert!(text.ends_with(end), "{text}");
        assert!(info(archive, &[]).get("largest_files").is_none());
    }
}
