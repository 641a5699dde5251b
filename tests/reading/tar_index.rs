//! Saved indexes: made once, used by later commands, and never used for another archive.
//!
//! To prove that an index is used, a test changes a name in the archive at an offset that is not
//! sampled and keeps length and mtime. The index has the old name, a scan finds the new one. If the
//! ctime counts too, the test changes a name in the index instead.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support;
use crate::support::mount::{CleanUp, unmount_by};
use crate::support::node::{self, OTHER, OWNER};
use crate::support::{archfs, run, skip_without_mounts, wait_until, work_directory};

/// Members of the usual archive: enough for an index, so that only a few are sampled.
const MEMBERS: usize = 1200;

/// A member that is not sampled, and its changed name.
const UNSAMPLED: usize = 10;
const OLD_NAME: &str = "f00010";
const NEW_NAME: &str = "g00010";

/// Its name in a changed index, which sorts between its neighbors.
const NAME_IN_INDEX: &str = "f0000x";

/// The ustar header of a file.
fn header(name: &str, size: usize) -> [u8; 512] {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000644\0");
    header[108..116].copy_from_slice(b"0000007\0");
    header[116..124].copy_from_slice(b"0000010\0");
    header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    header[136..148].copy_from_slice(b"00000000001\0");
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

fn name(number: usize) -> String {
    format!("f{number:05}")
}

/// A tar of `count` files, each a header and a block with its number.
fn tar(count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * 1024 + 1024);
    for number in 0..count {
        let data = format!("data {number}");
        bytes.extend(header(&name(number), data.len()));
        bytes.extend(data.as_bytes());
        bytes.resize((number + 1) * 1024, 0);
    }
    bytes.resize(count * 1024 + 1024, 0);
    bytes
}

/// An archive in its own directory, and directories for the user's home and cache.
struct Stage {
    directory: PathBuf,
    archive: PathBuf,
    index: PathBuf,
    home: PathBuf,
    work: tempfile::TempDir,
}

impl Stage {
    fn new(count: usize) -> Self {
        Self::of("data.tar", &tar(count))
    }

    fn of(name: &str, bytes: &[u8]) -> Self {
        let work = work_directory();
        let [directory, home] = ["directory", "home"].map(|name| work.path().join(name));
        fs::create_dir(&directory).unwrap();
        fs::create_dir(&home).unwrap();
        let archive = directory.join(name);
        fs::write(&archive, bytes).unwrap();
        let index = directory.join(format!("{name}.archfs-index"));
        Self { directory, archive, index, home, work }
    }

    fn command(&self, mut command: Command) -> Command {
        command.env("HOME", &self.home).env("XDG_CACHE_HOME", self.home.join("cache"));
        for name in ["ARCHFS_INDEX", "ARCHFS_NESTED", "ARCHFS_OFFSET"] {
            command.env_remove(name);
        }
        command
    }

    fn archfs(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(archfs());
        command.args(arguments).arg(&self.archive);
        command
    }

    /// Runs `archfs ls -lR` as user `id`, from a copy of the program in an accessible directory.
    fn ls_as(&self, id: u32) -> Command {
        let program = self.work.path().join("archfs");
        if !program.exists() {
            support::copy_program(&program);
            fs::set_permissions(self.work.path(), Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = self.command(Command::new("setpriv"));
        command.args([&format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups"]);
        command.arg(program).args(["ls", "-lR"]).arg(&self.archive);
        command
    }

    /// The listing and the stderr.
    fn ls(&self) -> (String, String) {
        listed(&mut self.archfs(&["ls", "-lR"]))
    }

    /// Makes the index ahead of time and returns its bytes.
    fn make_index(&self) -> Vec<u8> {
        run(&mut self.archfs(&["index"]));
        fs::read(&self.index).unwrap()
    }

    /// Changes a name that is not sampled, and keeps length and mtime.
    fn rename_unsampled(&self) {
        self.overwrite(UNSAMPLED as u64 * 1024, &header(NEW_NAME, "data 10".len()));
    }

    /// Changes the name only in the index, and checks that `list` shows that name.
    fn assert_used(&self, index: &Path, list: &dyn Fn() -> (String, String)) {
        let good = fs::read(index).unwrap();
        let mut bytes = good.clone();
        let at = bytes.windows(OLD_NAME.len()).position(|name| name == OLD_NAME.as_bytes());
        bytes[at.unwrap()..][..OLD_NAME.len()].copy_from_slice(NAME_IN_INDEX.as_bytes());
        let file = File::options().write(true).open(index).unwrap();
        file.write_all_at(&sealed(&bytes), 0).unwrap();
        let (found, said) = list();
        assert!(found.contains(NAME_IN_INDEX) && !found.contains(OLD_NAME), "{found}");
        assert_eq!(said, "");
        file.write_all_at(&good, 0).unwrap();
    }

    fn overwrite(&self, at: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(&self.archive).unwrap();
        let time = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(bytes, at).unwrap();
        file.set_modified(time).unwrap();
    }

    /// Lists with an index that must not be used: a note is printed, the listing is right, and the
    /// index is valid afterward.
    fn assert_rebuilt(&self, what: &str, expected: &str, good: &[u8]) {
        let (found, said) = self.ls();
        assert!(said.contains("made again"), "{what}: no note: {said}");
        assert!(found == expected, "{what}: another listing");
        assert!(fs::symlink_metadata(&self.index).unwrap().is_file(), "{what}");
        assert!(fs::read(&self.index).unwrap() == good, "{what}: the index left is not good");
        self.assert_nothing_else(what);
    }

    fn assert_archive_alone(&self) {
        assert_eq!(names_in(&self.directory), slice::from_ref(&self.archive));
    }

    /// Checks that there is nothing but the archive and its index.
    fn assert_nothing_else(&self, what: &str) {
        assert_eq!(names_in(&self.directory), [self.archive.clone(), self.index.clone()], "{what}");
    }
}

/// The files in a directory, sorted.
fn names_in(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn text(output: &Output) -> (String, String) {
    let [out, err] = [&output.stdout, &output.stderr];
    (String::from_utf8(out.clone()).unwrap(), String::from_utf8(err.clone()).unwrap())
}

/// The stdout and stderr of a command that must succeed.
fn listed(command: &mut Command) -> (String, String) {
    text(&run(command))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Bytes of an index's tail: its numbers, followed by their hash.
const NUMBERS: usize = 11 * 8;
const TAIL: usize = NUMBERS + 32;

/// Bytes of data for each checksum.
const BLOCK: usize = 16 << 10;

/// An index taken apart: header, data, and the numbers of the tail. The second number is the length
/// of the nodes, the last that of the seek points, which end the data.
struct Parts {
    start: Vec<u8>,
    data: Vec<u8>,
    numbers: [u64; 11],
}

impl Parts {
    fn of(index: &[u8]) -> Self {
        let tail = index.len() - TAIL;
        let number = |nth: usize| index[tail + 8 * nth..][..8].try_into().unwrap();
        let numbers: [u64; 11] = std::array::from_fn(|nth| u64::from_le_bytes(number(nth)));
        let (start, rest) = index.split_at(start_len(index));
        let data = numbers[1..].iter().sum::<u64>() as usize;
        Self { start: start.to_vec(), data: rest[..data].to_vec(), numbers }
    }

    /// The index with correct checksums.
    fn sealed(&self) -> Vec<u8> {
        let Self { start, data, numbers } = self;
        let sum = |block: &[u8]| crc32fast::hash(block).to_le_bytes();
        let sums: Vec<u8> = data.chunks(BLOCK).flat_map(sum).collect();
        let numbers = numbers.map(u64::to_le_bytes).concat();
        let hash = blake3::hash(&[&start[..], &sums, &numbers].concat());
        [start, data, &sums, &numbers, &hash.as_bytes()[..]].concat()
    }

    fn seek_points(&mut self) -> &mut [u8] {
        let at = self.data.len() - self.numbers[10] as usize;
        &mut self.data[at..]
    }

    fn set_seek_points(&mut self, points: &[u8]) {
        self.data.truncate(self.data.len() - self.numbers[10] as usize);
        self.data.extend(points);
        self.numbers[10] = points.len() as u64;
    }
}

/// Bytes before the data of an index.
fn start_len(index: &[u8]) -> usize {
    72 + 40 * u32::from_le_bytes(index[68..72].try_into().unwrap()) as usize
}

/// Corrects the checksums of an index.
fn sealed(index: &[u8]) -> Vec<u8> {
    Parts::of(index).sealed()
}

#[test]
fn an_index_is_written_beside_the_archive_and_used_afterward() {
    let stage = Stage::new(MEMBERS);
    fs::set_permissions(&stage.archive, Permissions::from_mode(0o664)).unwrap();
    let (first, said) = stage.ls();
    assert_eq!(said, "");
    let names: Vec<_> = first.lines().map(|line| line.split(' ').next_back().unwrap()).collect();
    assert_eq!(names, (0..MEMBERS).map(name).collect::<Vec<_>>());
    stage.assert_nothing_else("after the first");
    // The index has the permissions of the archive.
    assert_eq!(mode(&stage.index), 0o644);

    stage.rename_unsampled();
    assert_eq!(stage.ls(), (first.clone(), String::new()), "with the index");
    fs::remove_file(&stage.index).unwrap();
    let (without, _) = stage.ls();
    assert_ne!(without, first);
    assert!(without.contains(NEW_NAME) && !without.contains(OLD_NAME));
}

/// > For an index beside the archive, length, time and samples are enough if only the user, root
/// > and the owner of the archive can write there.
#[test]
fn a_mount_uses_the_index_and_serves_the_members_that_it_finds() {
    if skip_without_mounts() {
        return;
    }
    let stage = Stage::new(MEMBERS);
    stage.make_index();
    stage.rename_unsampled();
    let mount_point = stage.work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    let read = |name: &str| fs::read_to_string(mount_point.join(name));
    let mount = || listed(stage.archfs(&["mount", "--keep"]).arg(&mount_point)).1;
    assert!(!mount().contains("made again"));
    assert_eq!(fs::read_dir(&mount_point).unwrap().count(), MEMBERS);
    assert_eq!(read("f01199").unwrap(), "data 1199");
    assert_eq!(read(OLD_NAME).unwrap_err().raw_os_error(), Some(5));
    unmount_by(stage.command(archfs()).arg("unmount").arg(&mount_point));
    assert!(mount().contains("it contradicts the archive; made again"));
    assert_eq!(read(NEW_NAME).unwrap(), "data 10");
    unmount_by(stage.command(archfs()).arg("unmount").arg(&mount_point));
}

/// Members of `exchanged` that a sample of an index may be of.
const SAMPLED: usize = 200;

/// A tree with pairs of files whose headers differ only in their names: plain, with long names, and
/// sparse.
fn tree_of_pairs(work: &Path) -> (PathBuf, [[String; 2]; 3]) {
    let tree = work.join("tree");
    fs::create_dir(&tree).unwrap();
    let long = "z".repeat(150);
    let pairs = [
        [1, 2].map(|n| format!("z{n}")),
        [1, 2].map(|n| format!("{long}{n}")),
        [1, 2].map(|n| format!("zs{n}")),
    ];
    for number in 0..SAMPLED {
        fs::write(tree.join(name(number)), support::source::noise(number as u64 + 1, 500)).unwrap();
    }
    fs::write(tree.join("f00000"), support::source::noise(9, 100_000)).unwrap();
    for (number, name) in pairs[..2].iter().flatten().enumerate() {
        fs::write(tree.join(name), support::source::noise(number as u64 + 1000, 1000)).unwrap();
    }
    for (number, name) in pairs[2].iter().enumerate() {
        let file = File::create(tree.join(name)).unwrap();
        // More pieces than a header of the old format has.
        for piece in 0..8 {
            let bytes = support::source::noise(number as u64 + 2000 + piece, 4096);
            file.write_all_at(&bytes, piece * (128 << 10)).unwrap();
        }
    }
    fs::write(tree.join("z".repeat(200)), support::source::noise(77, 2000)).unwrap();
    run(Command::new("find").arg(&tree).args(["-exec", "touch", "-d", "@1000000000", "{}", "+"]));
    (tree, pairs)
}

/// Where the members of a tar start with all their headers, as Python says.
fn member_starts(tar: &Path) -> Vec<usize> {
    let script =
        "import sys, tarfile\nfor member in tarfile.open(sys.argv[1]): print(member.offset)";
    let output = run(Command::new("python3").args(["-c", script]).arg(tar));
    text(&output).0.lines().map(|line| line.parse().unwrap()).collect()
}

/// The parts of `bytes` between these offsets, with the second and the third exchanged.
fn exchanged(bytes: &[u8], [first, second, end]: [usize; 3]) -> Vec<u8> {
    assert_eq!(second - first, end - second, "of the same length");
    [&bytes[..first], &bytes[second..end], &bytes[first..second], &bytes[end..]].concat()
}

/// `stage` again with `bytes` in place of its archive, of the same time, and its index.
fn copied(stage: &Stage, bytes: &[u8]) -> Stage {
    let copy = Stage::of(stage.archive.file_name().unwrap().to_str().unwrap(), bytes);
    let time = fs::metadata(&stage.archive).unwrap().modified().unwrap();
    File::options().write(true).open(&copy.archive).unwrap().set_modified(time).unwrap();
    fs::copy(&stage.index, &copy.index).unwrap();
    copy
}

/// Reads `name` of an archive whose index says wrongly where it is.
fn assert_refused(copy: &Stage, name: &str, expected: &[u8]) {
    let other = run(copy.archfs(&["cat"]).arg("f00007"));
    assert_eq!((other.stdout.len(), stderr(&other).as_str()), (500, ""), "what is right is read");
    let refused = copy.archfs(&["cat"]).arg(name).output().unwrap();
    let said = stderr(&refused);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{name}: {said}");
    assert_eq!(said.matches("is of another version of the archive").count(), 1, "{name}: {said}");
    let again = run(copy.archfs(&["cat"]).arg(name));
    assert!(again.stdout == expected, "{name}: other bytes");
    assert!(stderr(&again).contains("it contradicts the archive; made again"), "{name}");
}

/// > If an index may be of another version (beside a copied archive or a URL), the first read of each
/// > member compares its headers in the archive with those in the index, except of a file that is
/// > one hole. If they differ, the read gives EIO, and the next mount makes a new index.
#[test]
fn an_index_of_a_copy_gives_no_bytes_of_another_member() {
    let work = work_directory();
    let (tree, pairs) = tree_of_pairs(work.path());
    let posix =
        |version: &str| ["--format=posix".to_owned(), format!("--sparse-version={version}")];
    let gnu = ["--format=gnu".to_owned(), "--sparse".to_owned()];
    for options in [gnu, posix("0.1"), posix("1.0")] {
        let tar = work.path().join("data.tar");
        let script = "cd \"$0\" && LC_ALL=C tar --sort=name --sparse -cf \"$1\" \"$2\" \"$3\" *";
        run(Command::new("sh").args(["-c", script]).args([&tree, &tar]).args(&options));
        let bytes = fs::read(&tar).unwrap();
        let starts = member_starts(&tar);
        let stage = Stage::of("data.tar", &bytes);
        stage.make_index();
        // The same bytes.
        let copy = copied(&stage, &bytes);
        let target = copy.work.path().join("extracted");
        let (_, said) = listed(copy.archfs(&["extract", "--quiet"]).arg(&target));
        assert_eq!(said, "", "the index is used");
        run(Command::new("diff").arg("-r").arg(&tree).arg(&target));
        // As `ls` sorts them.
        let mut names: Vec<_> = pairs.iter().flatten().collect();
        names.sort();
        for pair in &pairs {
            let at = SAMPLED + names.iter().position(|name| **name == pair[0]).unwrap();
            let places = [starts[at], starts[at + 1], starts[at + 2]];
            let copy = copied(&stage, &exchanged(&bytes, places));
            assert_refused(&copy, &pair[1], &fs::read(tree.join(&pair[1])).unwrap());
        }
    }
}

#[test]
fn an_index_of_a_compressed_copy_gives_no_bytes_of_another_member() {
    let work = work_directory();
    let (tree, pairs) = tree_of_pairs(work.path());
    let tar = work.path().join("data.tar");
    support::tar::pack(&tar, &tree);
    let (bytes, starts) = (fs::read(&tar).unwrap(), member_starts(&tar));
    let names = fs::read_dir(&tree).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    let at = names.iter().position(|name| *name == pairs[0][0]).unwrap();
    let (first, second, end) = (starts[at], starts[at + 1], starts[at + 2]);
    let frames = [&bytes[..first], &bytes[first..second], &bytes[second..end], &bytes[end..]];
    let [start, one, other, rest] = frames.map(|bytes| compressed("zstd", bytes));
    assert_eq!(one.len(), other.len());
    let stage = Stage::of("data.tar.zst", &[&start[..], &one, &other, &rest].concat());
    stage.make_index();
    let copy = copied(&stage, &[&start[..], &other, &one, &rest].concat());
    assert_refused(&copy, "z1", &fs::read(tree.join("z1")).unwrap());
}

/// An archive in an archive is found by its headers as well.
#[test]
fn an_index_of_a_copy_opens_no_other_inner_archive() {
    let work = work_directory();
    let mut bytes: Vec<u8> =
        (0..40).flat_map(|n| support::tar::member(&name(n), b'0', "", b"x")).collect();
    let first = bytes.len();
    for inner in ["z1", "z2"] {
        let path = work.path().join("inner.zip");
        let script = "import sys, zipfile\nwith zipfile.ZipFile(sys.argv[1], 'w') as z: z.writestr('which', sys.argv[2] * 500)";
        run(Command::new("python3").args(["-c", script]).arg(&path).arg(inner));
        bytes.extend(support::tar::member(
            &format!("{inner}.zip"),
            b'0',
            "",
            &fs::read(&path).unwrap(),
        ));
    }
    let (end, second) = (bytes.len(), first + (bytes.len() - first) / 2);
    bytes.resize(end + 1024, 0);
    let mut stage = Stage::of("data.tar", &bytes);
    stage.index = stage.directory.join("data.tar.recursive.archfs-index");
    run(&mut stage.archfs(&["index", "--nested"]));
    let mut copy = copied(&stage, &exchanged(&bytes, [first, second, end]));
    copy.index = copy.directory.join("data.tar.recursive.archfs-index");
    fs::copy(&stage.index, &copy.index).unwrap();
    let mut cat = copy.archfs(&["cat", "--nested"]);
    let refused = cat.arg("z1/which").output().unwrap();
    assert!(refused.stdout.is_empty(), "{}", text(&refused).1);
    assert!(text(&refused).1.contains("is of another version of the archive"));
    assert_eq!(listed(copy.archfs(&["cat", "--nested"]).arg("z1/which")).0, "z1".repeat(500));
}

/// Members of an archive whose index is read block by block.
const MANY: usize = 25_000;

/// Mounts with a large index and reads the node of `f00010`; then `harm` changes the index. What
/// was not read before must give EIO, with the remedy in the log.
fn assert_survives(what: &str, harm: &dyn Fn(&File, u64)) {
    let stage = Stage::new(MANY);
    let good = stage.make_index();
    assert!(Parts::of(&good).data.len() > 1 << 20, "checked as a whole");
    let log = stage.work.path().join("log");
    let mount_point = stage.work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    let log_file = format!("--log-file={}", log.display());
    let mut mount = stage.archfs(&["mount", "--keep", "--cache-idle=0", &log_file]);
    run(mount.arg(&mount_point));
    assert_eq!(fs::metadata(mount_point.join(OLD_NAME)).unwrap().len(), 7);

    // Written in place, because the daemon has this file open.
    let file = File::options().write(true).open(&stage.index).unwrap();
    harm(&file, good.len() as u64);
    // Its node was read before, its data was not.
    assert_eq!(fs::read_to_string(mount_point.join(OLD_NAME)).unwrap(), "data 10", "{what}");
    let mut failed = 0;
    for number in (0..MANY).step_by(500) {
        match fs::read_to_string(mount_point.join(name(number))) {
            Ok(found) => assert_eq!(found, format!("data {number}"), "{what}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5), "{what}: {error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 10, "{what}: {failed} lookups failed");
    assert_eq!(fs::read_to_string(mount_point.join(OLD_NAME)).unwrap(), "data 10", "{what}");
    // The daemon looks for the path of the file before it logs the failure.
    wait_until("the log names the index and the remedy", || {
        let said = fs::read_to_string(&log).unwrap();
        said.contains("data.tar.archfs-index") && said.contains("run `archfs index` again")
    });
    unmount_by(stage.command(archfs()).arg("unmount").arg(&mount_point));
    // The remedy works.
    assert!(stage.make_index() == good);
    run(stage.archfs(&["mount", "--keep"]).arg(&mount_point));
    assert_eq!(fs::read_to_string(mount_point.join("f24999")).unwrap(), "data 24999");
    unmount_by(stage.command(archfs()).arg("unmount").arg(&mount_point));
}

/// > An index that is truncated or overwritten during use gives EIO for its unread parts, and never
/// > another file.
#[test]
fn an_index_truncated_while_mounted_gives_eio() {
    if !skip_without_mounts() {
        assert_survives("cut short", &|file, len| file.set_len(len / 2).unwrap());
        assert_survives("empty", &|file, _| file.set_len(0).unwrap());
    }
}

#[test]
fn an_index_overwritten_while_mounted_gives_eio() {
    if !skip_without_mounts() {
        assert_survives("overwritten", &|file, len| {
            file.write_all_at(&support::source::noise(3, len as usize), 0).unwrap();
        });
        // A valid index of an archive with other names.
        let other = Stage::of("data.tar", &renamed(MANY)).make_index();
        assert_survives("another", &|file, _| file.write_all_at(&other, 0).unwrap());
    }
}

/// An archive of `count` members with other names.
fn renamed(count: usize) -> Vec<u8> {
    let mut bytes = tar(count);
    for number in 0..count {
        let renamed = header(&format!("h{number:05}"), format!("data {number}").len());
        bytes[number * 1024..][..512].copy_from_slice(&renamed);
    }
    bytes
}

#[test]
fn damage_to_a_large_index_affects_only_its_block() {
    let stage = Stage::new(MANY);
    let (expected, _) = stage.ls();
    let good = fs::read(&stage.index).unwrap();
    let mut bytes = good.clone();
    // In the data, which is verified block by block: part of the nodes.
    let middle = start_len(&good) + 500_000;
    bytes[middle] ^= 4;
    fs::write(&stage.index, &bytes).unwrap();
    let output = stage.archfs(&["ls", "-lR"]).output().unwrap();
    let (_, said) = text(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains("the index is damaged") && said.contains("run `archfs index` again"),
        "{said}"
    );
    let read = run(stage.archfs(&["cat"]).arg("f24999")).stdout;
    assert_eq!(read, b"data 24999", "elsewhere");
    // In the checksums: the whole index is rejected.
    let mut bytes = good.clone();
    let last = bytes.len() - TAIL - 1;
    bytes[last] ^= 4;
    fs::write(&stage.index, &bytes).unwrap();
    stage.assert_rebuilt("a checksum", &expected, &good);
}

#[test]
fn a_small_archive_gets_no_automatic_index() {
    // The root counts as a member.
    for (count, made) in [(10, false), (998, false), (999, true)] {
        let stage = Stage::new(count);
        let (found, said) = stage.ls();
        assert_eq!((found.lines().count(), said.as_str()), (count, ""));
        assert_eq!(stage.index.exists(), made, "{count} files");
    }
    let stage = Stage::new(10);
    let index_path = stage.work.path().join("named");
    listed(stage.archfs(&["ls"]).arg("--index").arg(&index_path));
    assert!(index_path.exists(), "asked for by its name");
    stage.make_index();
}

#[test]
fn an_index_is_rebuilt_when_the_archive_changed() {
    let stage = Stage::new(MEMBERS);
    let mut before = stage.make_index();
    let mut expect = |what: &str, shows: &str| {
        let (found, said) = stage.ls();
        assert!(said.contains("changed since") && said.contains("made again"), "{what}: {said}");
        assert!(found.contains(shows), "{what}");
        let index = fs::read(&stage.index).unwrap();
        assert!(index != before, "{what}: the same index");
        before = index;
        assert_eq!(stage.ls(), (found, String::new()), "{what}, again");
    };
    let file = File::options().write(true).open(&stage.archive).unwrap();
    let time = file.metadata().unwrap().modified().unwrap();

    // The first member is replaced: length and mtime stay, but its block is always sampled.
    stage.overwrite(0, &header("first", "data 0".len()));
    expect("a sampled block", "first");

    // A member is added, and the mtime is kept.
    let end = MEMBERS as u64 * 1024;
    file.write_all_at(&header("added", 0), end).unwrap();
    file.write_all_at(&[0; 1024], end + 512).unwrap();
    file.set_modified(time).unwrap();
    expect("another length", "added");

    // The smallest change of time in both directions; the changed name is not sampled.
    for (at, time) in [(11, time + Duration::from_nanos(1)), (12, time - Duration::from_secs(1))] {
        let new = format!("new-{at}");
        file.write_all_at(&header(&new, "data 10".len()), at * 1024).unwrap();
        file.set_modified(time).unwrap();
        expect("another time", &new);
    }
}

#[test]
fn a_replaced_archive_does_not_use_the_old_index() {
    let stage = Stage::new(MEMBERS);
    stage.make_index();
    let time = fs::metadata(&stage.archive).unwrap().modified().unwrap();
    let other = stage.work.path().join("other");
    let mut bytes = tar(MEMBERS);
    for number in 0..MEMBERS {
        bytes[number * 1024..][..512].copy_from_slice(&header(&format!("o{number}"), 3));
    }
    fs::write(&other, bytes).unwrap();
    File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
    fs::rename(&other, &stage.archive).unwrap();
    let (found, said) = stage.ls();
    assert!(said.contains("made again"), "{said}");
    assert!(found.lines().all(|line| line.contains(" o")));
}

#[test]
fn a_damaged_index_is_rebuilt_with_a_note() {
    let stage = Stage::new(MEMBERS);
    let (expected, _) = stage.ls();
    let good = fs::read(&stage.index).unwrap();
    let check = |what: &str, bytes: &[u8]| {
        fs::write(&stage.index, bytes).unwrap();
        stage.assert_rebuilt(what, &expected, &good);
    };
    let start = start_len(&good);
    let lens = (0..start + 24).step_by(7).chain((start + 24..good.len()).step_by(4999));
    let tail = good.len() - TAIL;
    for len in lens.chain([3, 4, 8, 12, tail - 1, tail, tail + 1, good.len() - 1]) {
        check(&format!("cut at {len}"), &good[..len]);
    }
    let positions = (0..start + 24).step_by(3).chain((start + 24..good.len()).step_by(3001));
    for at in positions.chain((tail - 8..good.len()).step_by(5)).chain([good.len() - 1]) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        check(&format!("byte {at}"), &bytes);
    }
    check("longer", &[&good[..], b"x"].concat());
    check("twice", &good.repeat(2));
    check("zeros", &vec![0; good.len()]);
    check("garbage", &support::source::noise(1, good.len()));
    check("a tar", &tar(3));
}

#[test]
fn an_index_of_another_version_or_with_other_options_is_rebuilt() {
    let stage = Stage::new(MEMBERS);
    let (expected, _) = stage.ls();
    let good = fs::read(&stage.index).unwrap();
    for (what, at, byte) in [
        ("version 0", 8, 0),
        ("an earlier version", 8, 4),
        ("a later version", 8, 6),
        ("a version far off", 11, 1),
        ("made with --recursive", 12, 1),
        ("unknown flags", 12, 2),
    ] {
        let mut bytes = good.clone();
        bytes[at] = byte;
        fs::write(&stage.index, sealed(&bytes)).unwrap();
        stage.assert_rebuilt(what, &expected, &good);
    }
    // Only compressed archives have seek points.
    let mut parts = Parts::of(&good);
    parts.set_seek_points(&[0; 4]);
    fs::write(&stage.index, parts.sealed()).unwrap();
    stage.assert_rebuilt("seek points", &expected, &good);
    // A wrong length of the archive.
    let mut parts = Parts::of(&good);
    parts.numbers[0] ^= 1;
    fs::write(&stage.index, parts.sealed()).unwrap();
    stage.assert_rebuilt("another decoded length", &expected, &good);
}

#[test]
fn other_files_with_the_name_of_the_index_are_replaced() {
    let stage = Stage::new(MEMBERS);
    let (expected, _) = stage.ls();
    let good = fs::read(&stage.index).unwrap();
    let elsewhere = stage.work.path().join("elsewhere");

    fs::write(&elsewhere, "precious").unwrap();
    fs::remove_file(&stage.index).unwrap();
    symlink(&elsewhere, &stage.index).unwrap();
    stage.assert_rebuilt("a link to something else", &expected, &good);
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "precious");

    fs::remove_file(&stage.index).unwrap();
    symlink(&stage.index, &stage.index).unwrap();
    stage.assert_rebuilt("a link to itself", &expected, &good);

    fs::remove_file(&stage.index).unwrap();
    symlink(stage.work.path().join("missing"), &stage.index).unwrap();
    stage.assert_rebuilt("a link to nothing", &expected, &good);
    assert!(!stage.work.path().join("missing").exists());

    // A pipe without a writer must not block any command.
    fs::remove_file(&stage.index).unwrap();
    run(Command::new("mkfifo").arg(&stage.index));
    let mut limited = stage.command(Command::new("timeout"));
    limited.arg("30").arg(env!("CARGO_BIN_EXE_archfs")).args(["ls", "-lR"]).arg(&stage.archive);
    let (found, said) = listed(&mut limited);
    assert!(said.contains("not a regular file") && said.contains("made again"), "{said}");
    assert!(found == expected && fs::read(&stage.index).unwrap() == good);

    fs::rename(&stage.index, &elsewhere).unwrap();
    symlink(&elsewhere, &stage.index).unwrap();
    stage.assert_rebuilt("a link to a good index", &expected, &good);
    assert!(fs::read(&elsewhere).unwrap() == good);
}

#[test]
fn a_directory_with_the_name_of_the_index_moves_it_to_the_cache() {
    let stage = Stage::new(MEMBERS);
    fs::create_dir(&stage.index).unwrap();
    let (expected, said) = stage.ls();
    assert!(said.contains("not a regular file"), "{said}");
    assert_eq!(expected.lines().count(), MEMBERS);
    let cached = names_in(&stage.home.join("cache/archfs"));
    assert_eq!(cached.len(), 1);
    stage.assert_used(&cached[0], &|| (stage.ls().0, String::new()));
    stage.assert_nothing_else("a directory");
}

/// > archfs uses an index only if root, the user or the owner of the archive wrote it.
#[test]
fn a_read_only_directory_moves_the_index_to_the_users_cache() {
    let Some(()) = node::enter() else { return };
    for with_xdg in [true, false] {
        let stage = Stage::new(MEMBERS);
        chown(&stage.home, Some(OWNER), Some(OWNER)).unwrap();
        let ls = || {
            let mut command = stage.ls_as(OWNER);
            if !with_xdg {
                command.env_remove("XDG_CACHE_HOME");
            }
            listed(&mut command)
        };
        let (expected, said) = ls();
        assert_eq!((expected.lines().count(), said.as_str()), (MEMBERS, ""));
        stage.assert_archive_alone();
        let cache = stage.home.join(if with_xdg { "cache/archfs" } else { ".cache/archfs" });
        let [index] = &names_in(&cache)[..] else { panic!("not one file in the cache") };
        assert!(index.to_str().unwrap().ends_with("-data.tar.archfs-index"), "{index:?}");
        assert_eq!((mode(&cache), mode(index)), (0o700, 0o600));
        assert_eq!(fs::metadata(index).unwrap().uid(), OWNER);
        stage.assert_used(index, &ls);
    }
}

#[test]
fn a_full_disk_moves_the_index_to_the_cache_and_leaves_nothing() {
    if skip_without_mounts() {
        return;
    }
    let stage = Stage::new(MEMBERS);
    let full = stage.work.path().join("full");
    fs::create_dir(&full).unwrap();
    let _clean_up = CleanUp(full.clone());
    // Space for the archive and 15 KiB.
    let options = format!("mode=755,size={}k", MEMBERS + 16);
    run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(&full));
    let archive = full.join("data.tar");
    fs::copy(&stage.archive, &archive).unwrap();
    let ls = || listed(stage.command(archfs()).args(["ls", "-lR"]).arg(&archive));
    let (expected, said) = ls();
    assert_eq!((expected.lines().count(), said.as_str()), (MEMBERS, ""));
    assert_eq!(names_in(&full), slice::from_ref(&archive));
    let cached = names_in(&stage.home.join("cache/archfs"));
    assert_eq!(cached.len(), 1);
    stage.assert_used(&cached[0], &ls);
}

#[test]
fn archives_with_the_same_name_have_separate_indexes_in_the_cache() {
    let Some(()) = node::enter() else { return };
    let stage = Stage::new(MEMBERS);
    let second = Stage { home: stage.home.clone(), ..Stage::new(MEMBERS + 1) };
    chown(&stage.home, Some(OWNER), Some(OWNER)).unwrap();
    // Both homes belong to the first user, who can enter the directory.
    for (stage, count) in [(&stage, MEMBERS), (&second, MEMBERS + 1), (&stage, MEMBERS)] {
        let (found, said) = listed(&mut stage.ls_as(OWNER));
        assert_eq!((found.lines().count(), said.as_str()), (count, ""));
    }
    assert_eq!(names_in(&stage.home.join("cache/archfs")).len(), 2);
}

#[test]
fn a_relative_or_linked_path_uses_the_index_beside_the_archive() {
    let stage = Stage::new(MEMBERS);
    let listed_in = |directory: &Path, name: &str| {
        let mut command = stage.command(archfs());
        listed(command.args(["ls", "-lR", name]).current_dir(directory))
    };
    let (expected, said) = listed_in(&stage.directory, "data.tar");
    assert_eq!((expected.lines().count(), said.as_str()), (MEMBERS, ""));
    stage.assert_nothing_else("named from its directory");
    stage.rename_unsampled();
    assert_eq!(stage.ls(), (expected.clone(), String::new()), "named in full");
    assert_eq!(listed_in(&stage.home, "../directory/data.tar"), (expected, String::new()));

    symlink(&stage.archive, stage.home.join("link.tar")).unwrap();
    assert!(listed_in(&stage.home, "link.tar").0.contains(OLD_NAME));
    assert_eq!(names_in(&stage.home), [stage.home.join("link.tar")]);
    stage.assert_nothing_else("named through a link");
}

#[test]
fn without_a_writable_directory_for_the_index_it_works_with_a_note() {
    let Some(()) = node::enter() else { return };
    let stage = Stage::new(MEMBERS);
    for home in [None, Some("relative"), Some("/dev/null")] {
        let mut command = stage.ls_as(OWNER);
        command.env_remove("HOME").env_remove("XDG_CACHE_HOME");
        command.envs(home.map(|home| ("HOME", home))).current_dir(&stage.directory);
        let (found, said) = listed(&mut command);
        assert_eq!(found.lines().count(), MEMBERS, "{home:?}");
        assert!(said.contains("cannot write"), "{home:?}: {said}");
        assert!(said.lines().nth(1).unwrap().starts_with("archfs: hint: use --index"), "{said}");
        assert_eq!(said.lines().count(), 2, "{home:?}: {said}");
    }
    stage.assert_archive_alone();
}

#[test]
fn a_named_index_is_kept_only_there() {
    let stage = Stage::new(MEMBERS);
    let index_path = stage.work.path().join("named");
    let ls = || listed(stage.archfs(&["ls", "-lR"]).arg("--index").arg(&index_path));
    let (expected, said) = ls();
    assert_eq!(said, "");
    assert_eq!(mode(&index_path), 0o600);
    stage.assert_archive_alone();
    assert_eq!(names_in(&stage.home), [""; 0].map(PathBuf::from));
    assert!(expected.contains(OLD_NAME));
    stage.assert_used(&index_path, &ls);
    stage.make_index();
    stage.rename_unsampled();
    // An index beside the archive, which has the old name, is not used.
    let (found, said) = ls();
    assert!(said.contains("made of another file, or the archive has changed"), "{said}");
    assert!(said.contains("made again") && found.contains(NEW_NAME), "{said}");
    fs::write(&index_path, "garbage").unwrap();
    let (found, said) = ls();
    assert!(said.contains("made again") && found.contains(NEW_NAME), "{said}");
}

#[test]
fn an_unwritable_named_index_is_a_note_for_ls_and_an_error_for_index() {
    let stage = Stage::new(MEMBERS);
    let nowhere = stage.work.path().join("missing/index");
    for (arguments, status) in [(["ls", "--index"], 0), (["index", "--index"], 1)] {
        let mut command = stage.command(archfs());
        let output = command.args(arguments).arg(&nowhere).arg(&stage.archive).output().unwrap();
        let (_, said) = text(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains("missing/index: cannot write"), "{arguments:?}: {said}");
    }
    stage.assert_archive_alone();
}

/// > archfs uses an index only if root, the user or the owner of the archive wrote it.
#[test]
fn an_index_written_by_another_user_is_not_used() {
    let Some(()) = node::enter() else { return };
    let stage = Stage::new(MEMBERS);
    let theirs = stage.make_index();
    chown(&stage.home, Some(OWNER), Some(OWNER)).unwrap();
    let ls = || listed(&mut stage.ls_as(OWNER));
    stage.assert_used(&stage.index, &ls);

    // As in /tmp: everyone may add files, and may not replace those of others.
    fs::set_permissions(&stage.directory, Permissions::from_mode(0o1777)).unwrap();
    stage.assert_used(&stage.index, &ls);
    chown(&stage.index, Some(OTHER), Some(OTHER)).unwrap();
    let (found, said) = ls();
    assert!(said.contains("another user"), "{said}");
    assert!(found.contains(OLD_NAME));
    assert!(fs::read(&stage.index).unwrap() == theirs, "it was replaced");
    assert_eq!(names_in(&stage.home.join("cache/archfs")).len(), 1);
    stage.assert_nothing_else("a sticky directory");
    // The owner of an archive decides its contents anyway.
    chown(&stage.archive, Some(OTHER), Some(OTHER)).unwrap();
    fs::set_permissions(&stage.directory, Permissions::from_mode(0o755)).unwrap();
    stage.assert_used(&stage.index, &ls);
}

/// A copy of the archive of `stage` in a directory of `owner`, with the same length and mtime, in
/// which the names of two unsampled members are exchanged.
fn forged_copy(stage: &Stage, owner: u32) -> PathBuf {
    let directory = stage.work.path().join("forged");
    fs::create_dir(&directory).unwrap();
    let copy = directory.join("data.tar");
    let mut bytes = fs::read(&stage.archive).unwrap();
    for (at, named) in [(10, 11), (11, 10)] {
        bytes[at * 1024..][..512].copy_from_slice(&header(&name(named), "data 10".len()));
    }
    fs::write(&copy, bytes).unwrap();
    let time = fs::metadata(&stage.archive).unwrap().modified().unwrap();
    File::options().write(true).open(&copy).unwrap().set_modified(time).unwrap();
    for path in [&directory, &copy] {
        chown(path, Some(owner), Some(owner)).unwrap();
    }
    copy
}

/// The member `name`, as user `id` reads it with `options`.
fn cat_as(
    stage: &Stage,
    id: u32,
    archive: &Path,
    name: &str,
    options: &[&str],
) -> (String, String) {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups"]);
    command.arg(stage.work.path().join("archfs")).arg("cat").args(options);
    listed(stage.command(command).arg(archive).arg(name))
}

/// > **Saved indexes**: an index names the inode, owner and ctime of its archive. archfs does not
/// > use the index of another file, even of a copy with the same length and time.
#[test]
fn an_index_of_a_forged_copy_is_not_used_for_the_original() {
    let Some(()) = node::enter() else { return };
    let stage = Stage::new(MEMBERS);
    chown(&stage.home, Some(OWNER), Some(OWNER)).unwrap();
    listed(&mut stage.ls_as(OWNER));
    let copy = forged_copy(&stage, OTHER);
    let read = |archive: &Path, options: &[&str]| cat_as(&stage, OWNER, archive, OLD_NAME, options);
    // The user reads the copy, and names the same index for both archives.
    let index = stage.home.join("index");
    let named = format!("--index={}", index.display());
    assert_eq!(read(&copy, &[&named]).0, "data 11");
    assert_eq!(names_in(copy.parent().unwrap()), slice::from_ref(&copy), "nothing left there");
    let of_copy = fs::read(&index).unwrap();
    let (found, said) = read(&stage.archive, &[&named]);
    assert_eq!(found, "data 10");
    assert!(said.contains("made of another file"), "{said}");
    // Another user renames the user's index of the copy to the name beside the original.
    fs::set_permissions(&stage.directory, Permissions::from_mode(0o1777)).unwrap();
    let _ = fs::remove_file(&stage.index);
    fs::write(&stage.index, &of_copy).unwrap();
    chown(&stage.index, Some(OWNER), Some(OWNER)).unwrap();
    fs::remove_dir_all(stage.home.join("cache")).unwrap();
    let (found, said) = read(&stage.archive, &[]);
    assert_eq!(found, "data 10");
    assert!(said.contains("made of another file"), "{said}");
}

/// > archfs writes an index only beside the archive that it read, even if the path of the directory
/// > has changed since.
#[test]
fn a_directory_swapped_for_a_link_redirects_no_index() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let stage = Stage::of("data.tar", &empty_files(20_000));
    let precious = stage.work.path().join("precious");
    fs::create_dir(&precious).unwrap();
    let link = stage.work.path().join("link");
    symlink(&precious, &link).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let exchange = scope.spawn(|| {
            let mut count = 0_u64;
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &stage.directory, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                std::thread::sleep(Duration::from_micros(300));
                count += 1;
            }
            if count % 2 == 1 {
                renameat_with(CWD, &stage.directory, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for _ in 0..40 {
            // It may find no archive.
            stage.archfs(&["index", "--quiet"]).output().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        exchange.join().unwrap();
    });
    assert_eq!(names_in(&precious), [""; 0].map(PathBuf::from));
    assert!(fs::symlink_metadata(&stage.directory).unwrap().is_dir());
}

/// > An index has the group of its archive, and no wider permissions.
#[test]
fn an_index_has_the_permissions_of_its_archive() {
    let Some(()) = node::enter() else { return };
    let stage = Stage::new(MEMBERS);
    for (mode, expected) in [(0o640, 0o640), (0o600, 0o600), (0o644, 0o644), (0o664, 0o644)] {
        chown(&stage.archive, None, Some(OTHER)).unwrap();
        fs::set_permissions(&stage.archive, Permissions::from_mode(mode)).unwrap();
        stage.make_index();
        let found = fs::metadata(&stage.index).unwrap();
        assert_eq!(found.mode() & 0o7777, expected, "{mode:o}");
        assert!(expected & 0o040 == 0 || found.gid() == OTHER, "{mode:o}");
    }
    // Only the owner can enter the directory.
    fs::set_permissions(&stage.directory, Permissions::from_mode(0o700)).unwrap();
    stage.make_index();
    assert_eq!(mode(&stage.index) & 0o007, 0);
}

/// > Root writes no index into a directory of another user.
#[test]
fn root_writes_no_index_into_a_users_directory() {
    let Some(()) = node::enter() else { return };
    let stage = Stage::new(MEMBERS);
    chown(&stage.directory, Some(OWNER), Some(OWNER)).unwrap();
    chown(&stage.archive, Some(OWNER), Some(OWNER)).unwrap();
    for command in [["ls", "-lR"], ["index", "--quiet"]] {
        run(&mut stage.archfs(&command));
        stage.assert_archive_alone();
    }
    assert_eq!(names_in(&stage.home.join("cache/archfs")).len(), 1);
}

/// > On a FUSE file system, a process decides about the owner of a file, so archfs uses and writes
/// > no index beside the archive.
#[test]
fn a_fuse_file_system_has_no_index_beside_the_archive() {
    if skip_without_mounts() {
        return;
    }
    let stage = Stage::new(MEMBERS);
    let mut other = stage.make_index();
    let at = other.windows(OLD_NAME.len()).position(|name| name == OLD_NAME.as_bytes()).unwrap();
    other[at..][..OLD_NAME.len()].copy_from_slice(NAME_IN_INDEX.as_bytes());
    fs::write(&stage.index, sealed(&other)).unwrap();
    assert!(stage.ls().0.contains(NAME_IN_INDEX), "used on another file system");
    let image = support::image::make(stage.work.path(), "image.sqfs", &stage.directory, &[]);
    let mount_point = stage.work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    run(archfs().args(["mount", "--keep", "-q"]).arg(&image).arg(&mount_point));
    let mut command = stage.command(archfs());
    let (found, said) = listed(command.args(["ls", "-lR"]).arg(mount_point.join("data.tar")));
    assert!(found.contains(OLD_NAME) && said.is_empty(), "{said}");
    assert_eq!(names_in(&stage.home.join("cache/archfs")).len(), 1);
    unmount_by(archfs().arg("unmount").arg(&mount_point));
}

/// A group-writable directory gets no index unless the owner of the archive asks for one.
#[test]
fn a_group_writable_directory_gets_an_index_only_on_request_of_the_owner() {
    let stage = Stage::new(MEMBERS);
    fs::set_permissions(&stage.directory, Permissions::from_mode(0o775)).unwrap();
    stage.ls();
    stage.assert_archive_alone();
    stage.make_index();
    let ls = || stage.ls();
    stage.assert_used(&stage.index, &ls);
    // Asking covers that one file, because others could have planted it.
    stage.rename_unsampled();
    let (found, _) = stage.ls();
    assert!(found.contains(NEW_NAME));
}

#[test]
fn an_archive_swapped_for_a_pipe_blocks_no_command() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let stage = Stage::new(10);
    let pipe = stage.work.path().join("pipe");
    run(Command::new("mkfifo").arg(&pipe));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &stage.archive, CWD, &pipe, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for _ in 0..100 {
            let mut limited = stage.command(Command::new("timeout"));
            limited.arg("30").arg(env!("CARGO_BIN_EXE_archfs")).arg("ls").arg(&stage.archive);
            let status = limited.output().unwrap().status;
            // 2: a pipe is a usage error.
            assert!(matches!(status.code(), Some(0 | 2)), "{status}");
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn twelve_processes_read_correctly_while_the_index_is_deleted() {
    let stage = Stage::new(MEMBERS);
    let (expected, _) = stage.ls();
    let good = fs::read(&stage.index).unwrap();
    fs::remove_file(&stage.index).unwrap();
    let done = AtomicBool::new(false);
    let deleted = std::thread::scope(|scope| {
        let deleter = scope.spawn(|| {
            let mut deleted = 0;
            while !done.load(Ordering::Relaxed) {
                deleted += usize::from(fs::remove_file(&stage.index).is_ok());
                std::thread::yield_now();
            }
            deleted
        });
        let users: Vec<_> = (0..12)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..6 {
                        assert!(stage.ls() == (expected.clone(), String::new()));
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = users.into_iter().map(|user| user.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok), "a wrong answer");
        deleter.join().unwrap()
    });
    assert!(deleted > 1, "deleted {deleted} times");
    assert_eq!(stage.ls(), (expected, String::new()));
    assert!(fs::read(&stage.index).unwrap() == good);
    stage.assert_nothing_else("afterward");
}

#[test]
fn twelve_processes_without_an_index_leave_one_complete_index() {
    let stage = Stage::new(MEMBERS);
    std::thread::scope(|scope| {
        let users: Vec<_> = (0..12).map(|_| scope.spawn(|| stage.ls())).collect();
        let mut answers: Vec<_> = users.into_iter().map(|user| user.join().unwrap()).collect();
        answers.dedup();
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].0.lines().count(), MEMBERS);
        assert_eq!(answers[0].1, "");
    });
    stage.assert_nothing_else("afterward");
    let left = fs::read(&stage.index).unwrap();
    assert!(left == stage.make_index());
}

/// A tar of `count` empty files: the largest index for the length of an archive.
fn empty_files(count: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..count).flat_map(|number| header(&name(number), 0)).collect();
    bytes.resize((count + 2) * 512, 0);
    bytes
}

#[test]
fn a_process_killed_while_writing_leaves_no_partial_index() {
    let stage = Stage::of("data.tar", &empty_files(60_000));
    let good = stage.make_index();
    assert!(good.len() > 2 << 20, "written in several steps");
    let temporary = || {
        let mut paths = names_in(&stage.directory);
        paths.retain(|path| *path != stage.archive && *path != stage.index);
        paths
    };
    // A write fails in the header, the data, the checksums, the tail, and at the last byte; first
    // with a valid index, then with none.
    let len = good.len();
    let ends = [10, 1000, 1_500_000, len - TAIL - 10, len - TAIL + 10, len - 20, len - 1];
    let both = ends.iter().map(|end| (true, end)).chain(ends.iter().map(|end| (false, end)));
    for (there_is_one, end) in both {
        if !there_is_one {
            let _ = fs::remove_file(&stage.index);
        }
        let mut limited = stage.command(Command::new("prlimit"));
        limited.arg(format!("--fsize={end}")).arg("--core=0").arg(env!("CARGO_BIN_EXE_archfs"));
        let output = limited.arg("index").arg(&stage.archive).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("data.tar.archfs") && said.contains("File too large"), "{said}");
        assert_eq!(stage.index.exists(), there_is_one);
        assert!(!there_is_one || fs::read(&stage.index).unwrap() == good);
        assert!(temporary().is_empty(), "nothing is left of it: {:?}", temporary());
    }
    // SIGKILL as soon as it has an unnamed file open in the directory.
    let mut interrupted = 0;
    for _ in 0..100 {
        let mut child = stage.archfs(&["index", "--quiet"]).spawn().unwrap();
        let descriptors = format!("/proc/{}/fd", child.id());
        let writes = || {
            let entries = fs::read_dir(&descriptors).into_iter().flatten().flatten();
            let mut links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
            links.any(|link| {
                link.starts_with(&stage.directory)
                    && link != stage.directory
                    && link != stage.archive
            })
        };
        let mut met_it = false;
        while !met_it && child.try_wait().unwrap().is_none() {
            met_it = writes();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // It may have just finished.
        interrupted += u32::from(met_it && !stage.index.exists());
        assert!(temporary().is_empty(), "nothing is left of it: {:?}", temporary());
        match fs::read(&stage.index) {
            Ok(found) => assert!(found == good, "half an index"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
        }
        let _ = fs::remove_file(&stage.index);
        if interrupted >= 5 {
            break;
        }
    }
    assert!(interrupted >= 5, "of a hundred kills, {interrupted} met it writing");
    assert!(stage.make_index() == good);
    stage.assert_nothing_else("afterward");
}

#[test]
fn archfs_index_builds_and_rebuilds_indexes() {
    let stage = Stage::new(MEMBERS);
    let (out, said) = text(&run(&mut stage.archfs(&["index"])));
    assert_eq!(out, "");
    assert!(said.contains(&format!("{} files and directories indexed", MEMBERS + 1)), "{said}");
    assert!(said.contains(&format!("index saved as {}\n", stage.index.display())), "{said}");
    stage.assert_nothing_else("made");
    stage.rename_unsampled();
    assert!(stage.ls().0.contains(OLD_NAME), "used");
    let quiet = text(&run(&mut stage.archfs(&["index", "--quiet"])));
    assert_eq!(quiet, (String::new(), String::new()));
    assert!(stage.ls().0.contains(NEW_NAME), "made again although there was one");

    let small = Stage::new(3);
    run(stage.archfs(&["index"]).arg(&small.archive));
    small.assert_nothing_else("a small one, of several");
}

#[test]
fn recursive_mounts_have_a_separate_index() {
    let stage = Stage::new(MEMBERS);
    let mut bytes = tar(MEMBERS);
    bytes.truncate(MEMBERS * 1024);
    let inner = tar(20);
    bytes.extend(header("inner.tar", inner.len()));
    bytes.extend(inner);
    bytes.resize(bytes.len().next_multiple_of(512) + 1024, 0);
    fs::write(&stage.archive, bytes).unwrap();
    run(&mut stage.archfs(&["index", "--recursive"]));
    let recursive = stage.directory.join("data.tar.recursive.archfs-index");
    assert_eq!(names_in(&stage.directory), [stage.archive.clone(), recursive.clone()]);
    stage.make_index();
    stage.rename_unsampled();
    let (flat, said) = stage.ls();
    assert!(flat.contains("inner.tar") && flat.contains(OLD_NAME) && said.is_empty(), "{said}");
    let (deep, said) = listed(&mut stage.archfs(&["ls", "-lR", "--recursive"]));
    assert!(deep.contains("inner/f00019") && !deep.contains("inner.tar"));
    assert!(deep.contains(OLD_NAME) && said.is_empty(), "{said}");
    // An index for the other mode is detected.
    fs::copy(&recursive, &stage.index).unwrap();
    let (again, said) = stage.ls();
    assert!(said.contains("another choice of --nested"), "{said}");
    assert!(again.contains("inner.tar"));
}

#[test]
fn one_index_path_for_several_archives_is_a_usage_error() {
    let stage = Stage::new(3);
    let index_path = stage.work.path().join("index");
    let mut command = stage.archfs(&["index"]);
    let output = command.arg(&stage.archive).arg("--index").arg(&index_path).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).1.contains("--index takes one archive"));
    assert!(!index_path.exists());
    stage.assert_archive_alone();
}

/// Compresses `bytes` with a program that reads its stdin.
fn compressed(program: &str, bytes: &[u8]) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    run(Command::new(program).arg("-c").stdin(File::open(file.path()).unwrap())).stdout
}

#[test]
fn a_compressed_archive_is_decoded_once_then_opened_by_its_index() {
    for (program, suffix) in [("gzip", "gz"), ("zstd", "zst"), ("xz", "xz"), ("bzip2", "bz2")] {
        // Bytes that do not compress, so that most of the file is not sampled.
        let mut bytes = tar(20);
        let noise = support::source::noise(7, 3 << 20);
        bytes.truncate(20 * 1024);
        bytes.extend(header("noise", noise.len()));
        bytes.extend(&noise);
        bytes.resize(bytes.len() + 1024, 0);
        let stage = Stage::of(&format!("data.tar.{suffix}"), &compressed(program, &bytes));
        run(&mut stage.archfs(&["index"]));
        stage.assert_nothing_else(program);
        let (expected, said) = stage.ls();
        assert_eq!((expected.lines().count(), said.as_str()), (21, ""), "{program}");
        let read = stage.archfs(&["cat"]).arg("noise").output().unwrap();
        assert!(read.stdout == noise, "{program}: other bytes through the index");

        // Damage in an unsampled part: a scan stops there, but the index has the members after it.
        let len = fs::metadata(&stage.archive).unwrap().len();
        stage.overwrite(len / 2 + 5000, &[0xff; 64]);
        assert_eq!(stage.ls(), (expected.clone(), String::new()), "{program}: with the index");
        fs::remove_file(&stage.index).unwrap();
        let without = stage.archfs(&["ls", "-lR"]).output().unwrap();
        assert!(
            !without.status.success() || text(&without) != (expected, String::new()),
            "{program}: a scan met no damage"
        );
    }
}

#[test]
fn damaged_seek_points_are_rebuilt() {
    let stage = Stage::of("data.tar.gz", &compressed("gzip", &tar(5000)));
    let (expected, _) = stage.ls();
    let good = fs::read(&stage.index).unwrap();
    let len = Parts::of(&good).numbers[10] as usize;
    assert!(len > 40, "{len} bytes of seek points");
    let end = start_len(&good) + Parts::of(&good).data.len();
    let at = end - len;
    let check = |what: &str, bytes: Vec<u8>| {
        fs::write(&stage.index, bytes).unwrap();
        stage.assert_rebuilt(what, &expected, &good);
        let read = run(stage.archfs(&["cat"]).arg("f04999")).stdout;
        assert_eq!(read, b"data 4999", "{what}");
    };
    // Container, kind, decoded length, count, and the offsets of the first seek point.
    for (what, offset) in [
        ("container", 0),
        ("kind", 1),
        ("length", 2),
        ("count", 10),
        ("a count far off", 17),
        ("the first point", 18),
        ("the last bytes", len - 1),
    ] {
        let mut bytes = good.clone();
        bytes[at + offset] ^= 0x55;
        check(&format!("{what}, unsealed"), bytes.clone());
        if what != "the last bytes" {
            let mut parts = Parts::of(&good);
            parts.seek_points()[offset] ^= 0x55;
            check(what, parts.sealed());
        }
    }
    let points = Parts::of(&good).seek_points().to_vec();
    for (what, points) in
        [("no seek points", vec![]), ("bytes behind them", [&points[..], &[0]].concat())]
    {
        let mut parts = Parts::of(&good);
        parts.set_seek_points(&points);
        check(what, parts.sealed());
    }
    for cut in [at + 1, at + len / 2, at + len] {
        check(&format!("cut at {cut}"), good[..cut].to_vec());
    }
}

#[test]
fn a_named_index_path_with_another_file_is_not_overwritten() {
    let stage = Stage::new(MEMBERS);
    let archive = fs::read(&stage.archive).unwrap();
    let precious = stage.work.path().join("precious");
    fs::write(&precious, "a dataset").unwrap();
    for path in [&precious, &stage.archive] {
        let before = fs::read(path).unwrap();
        let option = format!("--index={}", path.display());
        let output = stage.archfs(&["index", &option]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output).1);
        assert!(text(&output).1.contains("not overwritten, because it is not an index"));
        let (out, said) = listed(&mut stage.archfs(&["ls", "-lR", &option]));
        assert!(out.contains(OLD_NAME) && said.contains("not overwritten"), "{said}");
        assert!(fs::read(path).unwrap() == before);
    }
    assert!(fs::read(&stage.archive).unwrap() == archive);
    // It may be an empty file, as from mktemp, or an old index.
    fs::write(&precious, "").unwrap();
    for _ in 0..2 {
        run(&mut stage.archfs(&["index", &format!("--index={}", precious.display())]));
    }
    assert!(fs::metadata(&precious).unwrap().len() > 1000);
}

#[test]
fn a_world_writable_index_is_not_used() {
    let stage = Stage::new(MEMBERS);
    stage.make_index();
    fs::set_permissions(&stage.index, PermissionsExt::from_mode(0o666)).unwrap();
    let (out, said) = stage.ls();
    assert!(out.contains(OLD_NAME) && said.contains("other users may write to it"), "{said}");
    assert_eq!(fs::metadata(&stage.index).unwrap().permissions().mode() & 0o777, 0o644);
}

#[test]
fn an_image_needs_no_index() {
    let stage = Stage::new(3);
    let image = support::image::small(stage.work.path());
    let output = archfs().arg("index").arg(&image).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).1.contains("a SquashFS image, which needs no index"),
        "{}",
        text(&output).1
    );
}
