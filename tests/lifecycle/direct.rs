//! `archfs run --direct`: what a command reads from the archive itself, and that it never gets
//! other bytes than through the mount.

use std::fs;
use std::io::{Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::mount::CleanUp;
use crate::support::stage::{Stage, Talker, said, stage_as_user, stage_with};
use crate::support::{archfs, image, run, source, tar, wait_until};

/// Size of a hole in bytes.
const HOLE: u64 = 1 << 30;

/// Sizes of files around pages and blocks.
const SIZES: [usize; 10] =
    [1, 4095, 4096, 4097, 100_000, 131_071, 131_072, 131_073, 400_000, 2_000_000];

/// Reads all files below a directory in several ways, and prints a digest for each way.
const READ_ALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/direct/read-all");

/// Opens all files below a directory as Python programs do, and prints how many.
const OPEN_ALL: &str = r"
import os, sys
files = [os.path.join(at, name) for at, _, names in os.walk(sys.argv[1]) for name in names]
print(sum(len(open(file, 'rb').read()) > 0 for file in files for _ in range(20)))
";

fn make_source(directory: &Path, seed: u64) -> PathBuf {
    let made = directory.join(format!("source-{seed}"));
    fs::create_dir_all(made.join("below")).unwrap();
    for (number, size) in SIZES.into_iter().enumerate() {
        let bytes = source::noise(seed * 100 + number as u64, size);
        fs::write(made.join(format!("below/noise-{number}")), bytes).unwrap();
    }
    fs::write(made.join("text"), "line\n".repeat(100_000)).unwrap();
    fs::write(made.join("empty"), "").unwrap();
    made
}

/// A tar of files that differ for each seed but for their names and sizes.
fn make_tar(directory: &Path, seed: u64) -> PathBuf {
    let (source, tar) = (make_source(directory, seed), directory.join(format!("{seed}.tar")));
    run(Command::new("tar")
        .arg("-C")
        .arg(&source)
        .arg("--sort=name")
        .arg("-cf")
        .arg(&tar)
        .arg("."));
    tar
}

fn tar_stage() -> Option<Stage> {
    stage_with(|work| make_tar(work, 1))
}

fn read_all(directory: &Path) -> String {
    let output = run(Command::new(READ_ALL).arg(directory));
    String::from_utf8(output.stdout).unwrap()
}

/// `archfs run --direct` with these options, archives and command; its statistics are in
/// `numbers`.
fn run_direct(stage: &Stage, words: &[&Path], command: &[&str]) -> Output {
    let mut archfs = archfs();
    archfs.args(["run", "--direct", "--stats-json"]).arg(stage.work.path().join("numbers"));
    archfs.args(words).arg(&stage.mount_point).arg("--").args(command);
    archfs.env("ARCHFS_DIRECT", "check").output().unwrap()
}

/// A statistic of the last mount, by its path in the JSON.
fn number(stage: &Stage, path: &str) -> u64 {
    let text = fs::read_to_string(stage.work.path().join("numbers")).unwrap();
    let stats: serde_json::Value = serde_json::from_str(&text).unwrap();
    stats.pointer(path).unwrap().as_u64().unwrap()
}

#[test]
fn a_command_reads_the_bytes_of_the_mount() {
    let Some(stage) = tar_stage() else { return };
    let work = stage.work.path();
    let source = make_source(work, 1);
    let expected = read_all(&source);
    let image = image::make(work, "a.sqfs", &source, &["-comp", "zstd", "-noD", "-noF"]);
    let tails = image::make(work, "b.sqfs", &source, &["-comp", "zstd", "-always-use-fragments"]);
    let copies = work.join("copies");
    fs::create_dir(&copies).unwrap();
    for words in [
        &[stage.image.as_path()][..],
        &[&image],
        &[&tails],
        &[Path::new("--stage"), &copies, &stage.image],
        &[&stage.image, &image],
        &[Path::new("-oallow_other"), &stage.image],
    ] {
        let mount_point = stage.mount_point.to_str().unwrap();
        let output = run_direct(&stage, words, &[READ_ALL, mount_point]);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{words:?}");
        // The table is made while the command starts, so the first reads may miss it.
        let (reads, bytes) = (number(&stage, "/direct_reads"), number(&stage, "/direct_bytes"));
        assert!(reads > 100 && bytes > 1 << 20, "{words:?}: {reads} reads, {bytes} bytes");
        assert!(stage.is_gone());
    }
}

/// The table is made while the copy has nothing but what was read to open the archive.
#[test]
fn a_copy_is_read_directly_while_it_is_filled() {
    let Some(stage) = tar_stage() else { return };
    let copies = stage.work.path().join("copies");
    fs::create_dir(&copies).unwrap();
    // A large hole, first in the order of the archive, which takes a while to copy.
    let archive = stage.work.path().join("large.tar");
    let mut file = fs::File::create(&archive).unwrap();
    file.write_all(&tar::header("zeros", b'0', "", HOLE)).unwrap();
    file.seek_relative(HOLE as i64).unwrap();
    std::io::copy(&mut fs::File::open(&stage.image).unwrap(), &mut file).unwrap();
    let mount_point = stage.mount_point.to_str().unwrap();
    let below = stage.mount_point.join("below");
    let script = format!(
        "{READ_ALL} {} > {}/first; {READ_ALL} {0} > {1}/second",
        below.display(),
        stage.work.path().display()
    );
    let words = [Path::new("--stage"), &copies, &archive];
    let output = run_direct(&stage, &words, &["sh", "-c", &script, mount_point]);
    assert!(output.status.success(), "{}", said(&output));
    let expected = read_all(&make_source(stage.work.path(), 1).join("below"));
    for turn in ["first", "second"] {
        assert_eq!(fs::read_to_string(stage.work.path().join(turn)).unwrap(), expected, "{turn}");
    }
    let (reads, bytes) = (number(&stage, "/direct_reads"), number(&stage, "/direct_bytes"));
    assert!(reads > 100 && bytes > 1 << 20, "{reads} reads, {bytes} bytes");
}

#[test]
fn opening_files_in_python_makes_no_request() {
    let Some(stage) = tar_stage() else { return };
    let mount_point = stage.mount_point.to_str().unwrap();
    let output = run_direct(&stage, &[&stage.image], &["python3", "-c", OPEN_ALL, mount_point]);
    assert!(output.status.success(), "{}", said(&output));
    let opened: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    assert!(opened >= 200, "{opened}");
    let others = number(&stage, "/requests/other");
    assert!(others < 50, "Python before 3.14 asks whether each file is a terminal: {others}");
}

#[test]
fn an_ordinary_user_reads_directly() {
    let Some(stage) = stage_as_user() else { return };
    let mount_point = stage.mount_point.to_str().unwrap();
    let output =
        run_direct(&stage, &[&stage.image], &["cat", &format!("{mount_point}/folder/data")]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(output.stdout == source::noise(1, 300_000));
}

/// Reads `mount/./below/noise-4` at each line of input, and prints device, inode and digest. A read
/// that fails prints the error.
const READ_AT_EACH_LINE: &str = r"
import hashlib, os, sys
print('started', flush=True)
for line in sys.stdin:
    try:
        descriptor = os.open('mount/below/noise-4', os.O_RDONLY)
        status, data = os.fstat(descriptor), b''
        while part := os.read(descriptor, 1 << 20):
            data += part
        os.close(descriptor)
        print(status.st_dev, status.st_ino, hashlib.sha256(data).hexdigest(), flush=True)
    except OSError as error:
        print('-', '-', error.strerror, flush=True)
";

struct Reader(Talker);

impl Reader {
    /// A reader below `archfs run --direct`, which has read directly.
    fn start(stage: &Stage) -> Self {
        let script = "exec $ARCHFS run --direct $IMAGE mount -- python3 -c \"$SCRIPT\"";
        let mut command = stage.bash(script);
        let mut reader = Self(Talker::start(command.env("SCRIPT", READ_AT_EACH_LINE)));
        assert_eq!(reader.0.line(), "started");
        wait_until("it reads directly", || {
            reader.read();
            let output = run(archfs().args(["stats", "--json"]).arg(&stage.mount_point));
            let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            stats["direct_reads"].as_u64().unwrap() > 0
        });
        reader
    }

    /// Device and inode of the file, and the digest of its bytes, or the error.
    fn read(&mut self) -> (String, String) {
        self.0.write("again\n");
        let line = self.0.line();
        let mut words = line.splitn(3, ' ');
        let id = format!("{} {}", words.next().unwrap(), words.next().unwrap());
        (id, words.next().unwrap().to_owned())
    }
}

#[test]
fn another_archive_with_the_same_device_number_is_not_taken_for_the_first() {
    let Some(stage) = tar_stage() else { return };
    let other = make_tar(stage.work.path(), 2);
    let mut reader = Reader::start(&stage);
    let first = reader.read();
    let _clean_up = CleanUp(stage.mount_point.clone());
    // The kernel gives the device number to the next mount. Mounts of other tests may take it, so
    // this tries until it comes back.
    let device = first.0.split(' ').next().unwrap();
    let has_device = || {
        run(archfs().args(["unmount", "--lazy"]).arg(&stage.mount_point));
        run(archfs().args(["mount", "--keep"]).arg(&other).arg(&stage.mount_point));
        fs::metadata(&stage.mount_point).unwrap().dev().to_string() == device
    };
    wait_until("the device number comes back", has_device);
    let second = reader.read();
    assert_eq!(first.0, second.0, "otherwise this shows nothing");
    assert_ne!(first.1, second.1);
    let digest = run(Command::new("sha256sum").arg(stage.mount_point.join("below/noise-4")));
    assert!(digest.stdout.starts_with(second.1.as_bytes()));
}

#[test]
fn reads_fail_when_the_daemon_was_killed() {
    let Some(stage) = tar_stage() else { return };
    let mut reader = Reader::start(&stage);
    let (_, digest) = reader.read();
    assert_eq!(digest.len(), 64);
    rustix::process::kill_process(stage.daemon(), rustix::process::Signal::KILL).unwrap();
    wait_until("reads fail", || reader.read().0 == "- -");
    // Opened before, so that only the read can tell.
    let script = "exec 7< mount/below/noise-4; kill -9 $($ARCHFS list --json | \
                  python3 -c 'import json, sys; print([d for d in map(json.loads, sys.stdin) \
                  if d[\"mountpoint\"].startswith(\"'$PWD'\")][0][\"daemon\"])'); \
                  sleep 0.2; head -c 10 <&7 && echo still; true";
    drop(reader);
    let mut command = stage.bash("$ARCHFS run --direct $IMAGE mount -- bash -c \"$SCRIPT\"");
    let output = command.env("SCRIPT", script).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("still"), "{}", said(&output));
    assert!(said(&output).contains("Transport endpoint is not connected"), "{}", said(&output));
}

#[test]
fn an_archive_that_is_rewritten_in_place_gives_errors_as_through_the_mount() {
    let Some(stage) = tar_stage() else { return };
    let other = make_tar(stage.work.path(), 2);
    let mut reader = Reader::start(&stage);
    fs::write(&stage.image, fs::read(other).unwrap()).unwrap();
    wait_until("reads fail", || reader.read().1 == "Input/output error");
}

#[test]
fn a_rewritten_archive_stays_so_when_its_time_is_set_back() {
    let Some(stage) = tar_stage() else { return };
    let (other, times) = (make_tar(stage.work.path(), 2), stage.work.path().join("times"));
    run(Command::new("touch").arg("-r").arg(&stage.image).arg(&times));
    let mut reader = Reader::start(&stage);
    fs::write(&stage.image, fs::read(other).unwrap()).unwrap();
    // The daemon notices it in a read.
    wait_until("a read through the mount fails", || {
        let output = Command::new("cat").arg(stage.mount_point.join("below/noise-9")).output();
        !output.unwrap().status.success()
    });
    run(Command::new("touch").arg("-r").arg(&times).arg(&stage.image));
    assert_eq!(reader.read().1, "Input/output error");
}

/// The reads before have shown the daemon nothing: it must notice by the change time alone.
#[test]
fn an_archive_whose_time_was_set_back_at_once_gives_errors_and_not_its_new_bytes() {
    let Some(stage) = tar_stage() else { return };
    let (other, times) = (make_tar(stage.work.path(), 2), stage.work.path().join("times"));
    assert_eq!(fs::metadata(&other).unwrap().len(), fs::metadata(&stage.image).unwrap().len());
    run(Command::new("touch").arg("-r").arg(&stage.image).arg(&times));
    let mut reader = Reader::start(&stage);
    let (_, digest) = reader.read();
    fs::write(&stage.image, fs::read(other).unwrap()).unwrap();
    run(Command::new("touch").arg("-r").arg(&times).arg(&stage.image));
    // The kernel may have the old bytes, from a read before the table was ready.
    let now = reader.read().1;
    assert!(now == digest || now == "Input/output error", "{now}");
    let output = Command::new("cat").arg(stage.mount_point.join("below/noise-9")).output().unwrap();
    assert!(said(&output).contains("Input/output error"), "{}", said(&output));
}

#[test]
fn a_new_mode_of_the_archive_ends_direct_reads_but_not_the_mount() {
    let Some(stage) = tar_stage() else { return };
    let mut reader = Reader::start(&stage);
    let (_, digest) = reader.read();
    run(Command::new("chmod").arg("600").arg(&stage.image));
    fs::hard_link(&stage.image, stage.work.path().join("link")).unwrap();
    assert_eq!(reader.read().1, digest);
    let bytes = run(Command::new("cat").arg(stage.mount_point.join("below/noise-9"))).stdout;
    assert_eq!(bytes.len(), SIZES[9]);
    drop(reader);
    let path = stage.mount_point.join("below/noise-9");
    let output = run_direct(&stage, &[&stage.image], &["cat", path.to_str().unwrap()]);
    assert!(output.status.success() && output.stdout == bytes, "{}", said(&output));
}

#[test]
fn a_mount_that_was_unmounted_by_hand_is_not_read_any_more() {
    let Some(stage) = tar_stage() else { return };
    let (other, second) = (make_tar(stage.work.path(), 2), stage.work.path().join("second"));
    let mut reader = Reader::start(&stage);
    let (id, digest) = reader.read();
    let device = id.split(' ').next().unwrap();
    run(Command::new("umount").arg(&stage.mount_point));
    let _clean_up = [CleanUp(second.clone()), CleanUp(stage.mount_point.clone())];
    let has_device = || {
        run(archfs().args(["unmount", "--lazy"]).arg(&second));
        run(archfs().args(["mount", "--keep"]).arg(&other).arg(&second));
        fs::metadata(&second).unwrap().dev().to_string() == device
    };
    run(archfs().args(["mount", "--keep"]).arg(&other).arg(&second));
    wait_until("the device number comes back", has_device);
    // The reader opens `mount/below/noise-4`.
    fs::create_dir_all(&stage.mount_point).unwrap();
    run(Command::new("mount").arg("--bind").arg(&second).arg(&stage.mount_point));
    let found = reader.read();
    run(Command::new("umount").arg(&stage.mount_point));
    assert_eq!(found.0, id, "otherwise this shows nothing");
    assert_ne!(found.1, digest);
}

#[test]
fn direct_reads_keep_a_mount_from_being_idle() {
    let Some(stage) = tar_stage() else { return };
    // Python may take seconds to start on a busy machine.
    let script =
        "exec $ARCHFS run --direct --idle-timeout 6s $IMAGE mount -- python3 -c \"$SCRIPT\"";
    let keeps_reading = "
import os, time
descriptor, until = os.open('mount/below/noise-4', os.O_RDONLY), time.monotonic() + 9
while time.monotonic() < until:
    assert len(os.pread(descriptor, 100, 5)) == 100
    time.sleep(0.1)
os.close(descriptor)
assert os.path.ismount('mount'), 'it counted as idle'
";
    let output = stage.bash(script).env("SCRIPT", keeps_reading).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn says_when_it_has_no_effect() {
    let Some(stage) = tar_stage() else { return };
    let work = stage.work.path();
    run(Command::new("gzip").arg("-k").arg(&stage.image));
    let (compressed, device) = (work.join("1.tar.gz"), work.join("no-exports.sqfs"));
    let source = make_source(work, 1);
    image::make(work, "no-exports.sqfs", &source, &["-noD", "-noF", "-no-exports"]);
    let none = "no file of the mount can be read directly";
    for (words, why) in [
        (&[Path::new("--private"), &stage.image][..], "the mount is private"),
        (&[&compressed], none),
        (&[&device], none),
    ] {
        let output = run_direct(&stage, words, &["true"]);
        let expected = format!("--direct has no effect: {why}");
        assert!(said(&output).contains(&expected), "{words:?}: {}", said(&output));
    }
}

#[test]
fn a_part_of_an_archive_and_many_archives_are_read_directly() {
    let Some(stage) = tar_stage() else { return };
    let (work, mount_point) = (stage.work.path(), stage.mount_point.to_str().unwrap());
    let expected = read_all(&make_source(work, 1).join("below"));
    let words = [Path::new("--subdir"), Path::new("below"), &stage.image];
    let output = run_direct(&stage, &words, &[READ_ALL, mount_point]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", said(&output));
    assert!(number(&stage, "/direct_reads") > 0);
    // An image within a file, and more archives than a process gets.
    let source = make_source(work, 1);
    let image = image::make(work, "a.sqfs", &source, &["-noD", "-noF"]);
    let mut bytes = vec![7; 4096];
    bytes.extend(fs::read(image).unwrap());
    fs::write(work.join("within"), bytes).unwrap();
    let words = [Path::new("--offset"), Path::new("4096"), &work.join("within")];
    let output = run_direct(&stage, &words, &[READ_ALL, mount_point]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), read_all(&source), "{}", said(&output));
    assert!(number(&stage, "/direct_reads") > 0);
    let (all, archives) = (work.join("all"), make_parts(work, 20));
    let words: Vec<_> = archives.iter().map(PathBuf::as_path).collect();
    let output = run_direct(&stage, &words, &[READ_ALL, mount_point]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), read_all(&all), "{}", said(&output));
    assert!(number(&stage, "/direct_reads") > 0 && number(&stage, "/served_bytes") > 0);
}

/// Reads the files of all archives, and then opens as many files as it can. Prints how many.
const OPEN_MANY: &str = r"
import os, sys
paths = [f'{sys.argv[1]}/{number}/file' for number in range(16)]
for path in paths * 40:
    with open(path, 'rb') as file:
        assert len(file.read()) == 50000
files = []
try:
    while True:
        files.append(os.open(paths[len(files) % 16], os.O_RDONLY))
except OSError as error:
    print(len(files), error.errno)
";

#[test]
fn a_command_with_few_descriptors_keeps_most_of_them() {
    let Some(stage) = tar_stage() else { return };
    let archives = make_parts(stage.work.path(), 16);
    let words: Vec<_> = archives.iter().map(PathBuf::as_path).collect();
    let mount_point = stage.mount_point.to_str().unwrap();
    let script = "ulimit -n 64; export ARCHFS_DIRECT=$0; exec python3 -c \"$1\" \"$2\"";
    let opened = ["off", "on"].map(|setting| {
        let command = ["sh", "-c", script, setting, OPEN_MANY, mount_point];
        let output = run_direct(&stage, &words, &command);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (count, error) = text.trim().split_once(' ').unwrap_or_else(|| panic!("{text}"));
        assert_eq!(error, "24", "EMFILE");
        assert_eq!(number(&stage, "/direct_reads") > 0, setting == "on");
        count.parse::<u32>().unwrap()
    });
    assert_eq!(opened[1], opened[0] - 64 / 8, "an eighth of the limit: {opened:?}");
}

/// Archives with a file each, `NUMBER/file`, which are in the directory `all` as well.
fn make_parts(work: &Path, count: u64) -> Vec<PathBuf> {
    let (all, parts) = (work.join("all"), work.join("parts"));
    fs::create_dir_all(&parts).unwrap();
    let make = |number: u64| {
        fs::create_dir_all(all.join(number.to_string())).unwrap();
        let bytes = source::noise(500 + number, 50_000);
        fs::write(all.join(format!("{number}/file")), bytes).unwrap();
        let part = parts.join(format!("{number}.tar"));
        let mut tar = Command::new("tar");
        run(tar.arg("-C").arg(&all).arg("-cf").arg(&part).arg(number.to_string()));
        part
    };
    (0..count).map(make).collect()
}

/// In a /tmp of its own, because other tests have mounts as well.
#[test]
fn gc_removes_the_library_when_nothing_is_mounted() {
    let Some(stage) = tar_stage() else { return };
    let script = "
        mount -t tmpfs tmpfs /tmp
        here=$(mktemp -d -p /dev/shm)
        trap 'rmdir $here' EXIT
        $ARCHFS run --direct $IMAGE $here/mount -- bash -c '$ARCHFS gc; ls $LD_PRELOAD'
        ls -d /tmp/archfs-*
        $ARCHFS gc
        ! ls -d /tmp/archfs-*";
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-ec", script]);
    let image = fs::canonicalize(&stage.image).unwrap();
    // The image is below /tmp, which the script hides.
    let copy = PathBuf::from(format!("/dev/shm/archfs-test-{}.tar", std::process::id()));
    fs::copy(image, &copy).unwrap();
    command.env("ARCHFS", env!("CARGO_BIN_EXE_archfs")).env("IMAGE", &copy);
    let output = command.output().unwrap();
    fs::remove_file(copy).unwrap();
    assert!(output.status.success(), "{}", said(&output));
}
