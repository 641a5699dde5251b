//! `--stage` copies archives while they are mounted, or before; `--readahead all` reads them.
//!
//! The copy is private, has no name, and is freed however the daemon ends. Limits of control groups
//! are faked: a mount namespace has a directory in place of /sys/fs/cgroup.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::support::mount::{CleanUp, Mounted, is_mounted, listed, unmount};
use crate::support::page_cache::{IdlePagesStay, PAGE, forget, resident_pages};
use crate::support::skip::skip;
use crate::support::snapshot::{Depth, assert_same, take};
use crate::support::stage::{end, processes_about, shell, stop, tell};
use crate::support::{
    archfs, image, run, skip_without_mounts, source, tar, wait_until, work_directory,
};

/// Cache size for tests that measure memory.
const CACHE: u64 = 4 << 20;

/// An empty file system in memory, removed when dropped.
struct Tmpfs(PathBuf);

/// Waits until the copy is complete.
const WAIT: &str = "--stage-wait";

impl Tmpfs {
    fn new(mount_point: PathBuf, bytes: u64) -> Self {
        fs::create_dir(&mount_point).unwrap();
        let mut mount = Command::new("mount");
        run(mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(&mount_point));
        Self(mount_point)
    }

    /// Bytes used by its files, named or unlinked.
    fn used(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.0).unwrap();
        (found.f_blocks - found.f_bfree) * found.f_frsize
    }

    fn option(&self) -> String {
        format!("--stage={}", self.0.display())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A directory with files of all kinds and sizes.
fn tree(work: &Path) -> PathBuf {
    let root = work.join("tree");
    fs::create_dir_all(root.join("folder/empty")).unwrap();
    for (number, len) in [0, 1, 4095, 4096, 300_000, 5_000_000].into_iter().enumerate() {
        let name = format!("folder/{len}");
        fs::write(root.join(name), source::noise(number as u64 + 1, len)).unwrap();
    }
    fs::write(root.join("text"), "hello, world\n".repeat(20_000)).unwrap();
    root
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The output of an `archfs mount` that must exit with status 1.
fn refused(archive: &Path, mount_point: &Path, options: &[&str]) -> String {
    let output =
        archfs().arg("mount").args(options).arg(archive).arg(mount_point).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(!is_mounted(mount_point) && !mount_point.exists(), "{said}");
    said
}

/// Mode, link count and size of the files below `directory` that process `id` has open.
fn held(id: u32, directory: &Path) -> Vec<(u32, u64, u64)> {
    let descriptors = fs::read_dir(format!("/proc/{id}/fd")).unwrap();
    let paths = descriptors.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| fs::read_link(path).is_ok_and(|target| target.starts_with(directory)))
        .map(|path| fs::metadata(path).unwrap())
        .map(|found| (found.mode() & 0o7777, found.nlink(), found.len()))
        .collect()
}

/// > An archive that `--stage` has copied to its end is not affected.
#[test]
fn a_staged_archive_does_not_depend_on_the_original() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = tree(work.path());
    let image = image::make(work.path(), "image.sqfs", &tree, &["-comp", "zstd"]);
    let stored = work.path().join("stored.tar");
    tar::pack(&stored, &tree);
    let packed = work.path().join("packed.tar.gz");
    run(Command::new("sh").args(["-c", "gzip -c < $0 > $1"]).arg(&stored).arg(&packed));
    let within = work.path().join("within.sif");
    let bytes = [vec![7; 10_001], fs::read(&image).unwrap()].concat();
    fs::write(&within, bytes).unwrap();
    let mount_point = work.path().join("mount");
    for (archive, options) in
        [(image, &[][..]), (stored, &[]), (packed, &[]), (within, &["--offset=10001"])]
    {
        let plain = Mounted::archfs(&archive, &mount_point, options);
        let expected = take(plain.path(), Depth::Everything);
        drop(plain);
        let len = fs::metadata(&archive).unwrap().len();
        let tmpfs = Tmpfs::new(work.path().join("near"), 64 << 20);
        let mounted =
            Mounted::archfs(&archive, &mount_point, &[options, &[&tmpfs.option(), WAIT]].concat());
        assert_eq!(fs::read_dir(&tmpfs.0).unwrap().count(), 0, "it has a name");
        assert_eq!(held(mounted.daemon(), &tmpfs.0), [(0o600, 0, len)]);
        assert_eq!(held(mounted.daemon(), &archive), [], "the original is still open");
        // The original is no longer read.
        File::options().write(true).open(&archive).unwrap().set_len(0).unwrap();
        fs::remove_file(&archive).unwrap();
        assert_same(
            &archive.display().to_string(),
            &expected,
            &take(mounted.path(), Depth::Everything),
        );
        assert!(tmpfs.used() >= len);
        drop(mounted);
        assert_eq!(tmpfs.used(), 0);
        drop(tmpfs);
        fs::remove_dir(work.path().join("near")).unwrap();
    }
}

#[test]
fn tasks_of_a_shared_mount_share_one_copy_until_the_last_ends() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let image = image::small(work.path());
    let len = fs::metadata(&image).unwrap().len();
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    // There is room for two copies.
    let tmpfs = Tmpfs::new(work.path().join("near"), 16 * len);
    let line = format!("$ARCHFS mount -q {} {WAIT} small.sqfs mount", tmpfs.option());
    let mut tasks = [(); 2].map(|()| shell(work.path()));
    thread::scope(|scope| {
        for task in &mut tasks {
            scope.spawn(|| assert_eq!(tell(task, &line), "done 0\n"));
        }
    });
    let holders = || listed(&mount_point).map(|row| row["holders"].as_array().unwrap().len());
    assert_eq!((tmpfs.used(), holders()), (len, Some(2)));
    let [first, last] = tasks;
    end(first);
    wait_until("one of them holds it", || holders() == Some(1));
    assert_eq!(tmpfs.used(), len);
    assert_eq!(fs::read(mount_point.join("hello")).unwrap(), b"hello, world\n");
    end(last);
    wait_until("the room is given back", || tmpfs.used() == 0);
    assert!(!is_mounted(&mount_point));
}

#[test]
fn a_slow_copy_shows_a_progress_bar() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    // It turns out not to be an archive.
    let archive = work.path().join("huge");
    File::create(&archive).unwrap().set_len(1 << 30).unwrap();
    let tmpfs = Tmpfs::new(work.path().join("near"), 2 << 30);
    let mount_point = work.path().join("mount");
    let mount = |options: &str| {
        let program = env!("CARGO_BIN_EXE_archfs");
        let (archive, shown) = (archive.display(), mount_point.display());
        let line = format!("{program} mount {options} {} {WAIT} {archive} {shown}", tmpfs.option());
        let mut terminal = Command::new("script");
        // Not as the last command, which the shell would exec.
        terminal.args(["-qefc", &format!("{line}; echo ended"), "/dev/null"]);
        terminal.env("SHELL", "/bin/bash").stdin(Stdio::null()).stdout(Stdio::piped());
        let child = terminal.spawn().unwrap();
        wait_until("it is at work", || tmpfs.used() > 0);
        // Stopped for a second, so that every copy takes longer than that.
        let words = [mount_point.to_str().unwrap(), "--daemon="];
        let daemons = processes_about(&words).into_iter().filter_map(Pid::from_raw);
        let daemons: Vec<_> = daemons.collect();
        assert_eq!(daemons.len(), 1, "{daemons:?}");
        stop(daemons[0]);
        thread::sleep(Duration::from_millis(1100));
        kill_process(daemons[0], Signal::CONT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(!is_mounted(&mount_point) && tmpfs.used() == 0);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = mount("");
    let copying = format!("copying to {}", tmpfs.0.display());
    assert!(said.contains(&copying) && said.contains("% of 1.0 GiB"), "{said:?}");
    let said = mount("-q");
    assert!(!said.contains("copying to"), "{said:?}");
}

#[test]
fn the_copy_is_freed_when_the_daemon_is_killed() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archive = large(work.path());
    let mount_point = work.path().join("mount");
    let tmpfs = Tmpfs::new(work.path().join("near"), ROOM);
    let stage = tmpfs.option();
    for options in [&[stage.as_str()][..], &[&stage, WAIT]] {
        let mounted = Mounted::archfs(&archive, &mount_point, options);
        wait_until("it is at work", || tmpfs.used() > 0);
        kill_process(Pid::from_raw(mounted.daemon() as i32).unwrap(), Signal::KILL).unwrap();
        wait_until("the room is given back", || tmpfs.used() == 0);
        assert_eq!(fs::read_dir(&tmpfs.0).unwrap().count(), 0);
    }
}

/// Size of the zeros in the archive that `large` makes, and room for it in memory, in bytes.
const ZEROS: u64 = 1 << 30;
const ROOM: u64 = ZEROS + (1 << 20);

/// A tar whose copy takes a while, with a small file behind a large one.
fn large(work: &Path) -> PathBuf {
    let path = work.join("large.tar");
    let mut file = File::create(&path).unwrap();
    file.write_all(&tar::header("zeros", b'0', "", ZEROS)).unwrap();
    file.set_len(512 + ZEROS).unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(&tar::of(&[("last", b"the end\n")])).unwrap();
    path
}

/// Bytes that `archfs list` reports as copied, and in total.
fn staged(mount_point: &Path) -> Option<(u64, u64)> {
    let staged = &listed(mount_point)?["staged"];
    Some((staged["copied_bytes"].as_u64()?, staged["total_bytes"].as_u64()?))
}

/// A mount of the archive of `large` whose copy has only begun, and which logs to a file.
struct Copying {
    mounted: Mounted,
    tmpfs: Tmpfs,
    archive: PathBuf,
    log: PathBuf,
    /// The last field, so that the directory is removed last.
    _work: tempfile::TempDir,
}

impl Copying {
    fn begin() -> Self {
        let work = work_directory();
        let archive = large(work.path());
        let mount_point = work.path().join("mount");
        let log = work.path().join("log");
        let tmpfs = Tmpfs::new(work.path().join("near"), ROOM);
        let options = [tmpfs.option(), format!("--log-file={}", log.display())];
        // Several times, because this process may not run while all is copied.
        let mounted = (0..10).find_map(|_| {
            let options = options.each_ref().map(String::as_str);
            let mounted = Mounted::archfs(&archive, &mount_point, &options);
            let (copied, total) = staged(&mount_point).unwrap();
            (copied < total / 2).then_some(mounted)
        });
        Self { mounted: mounted.expect("half is left"), tmpfs, archive, log, _work: work }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.path().join(name)
    }

    fn is_complete(&self) -> bool {
        staged(self.mounted.path()).is_some_and(|(copied, total)| copied == total)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Reads all zeros. Returns how many there are.
    fn read_zeros(&self) -> std::io::Result<u64> {
        std::io::copy(&mut File::open(self.path("zeros"))?, &mut std::io::sink())
    }
}

#[test]
fn a_staged_archive_is_read_before_it_is_copied() {
    if skip_without_mounts() {
        return;
    }
    let copying = Copying::begin();
    let len = fs::metadata(&copying.archive).unwrap().len();
    let mount_point = copying.mounted.path();
    let row = || {
        let table = String::from_utf8(run(archfs().arg("list")).stdout).unwrap();
        let is_row = |line: &&str| line.starts_with(mount_point.to_str().unwrap());
        table.lines().find(is_row).unwrap().to_owned()
    };
    assert!(row().contains("% staged"), "{}", row());
    assert_eq!(fs::read(copying.path("last")).unwrap(), b"the end\n");
    let held_by = |directory: &Path| held(copying.mounted.daemon(), directory);
    assert_ne!(held_by(&copying.archive), [], "the original is closed");
    wait_until("all is copied", || copying.is_complete());
    wait_until("the original is closed", || held_by(&copying.archive).is_empty());
    assert_eq!(held_by(&copying.tmpfs.0), [(0o600, 0, len)]);
    fs::remove_file(&copying.archive).unwrap();
    assert_eq!(copying.read_zeros().unwrap(), ZEROS);
    assert_eq!(fs::read(copying.path("last")).unwrap(), b"the end\n");
    let stats = run(archfs().args(["stats", "--json"]).arg(mount_point)).stdout;
    let stats: serde_json::Value = serde_json::from_slice(&stats).unwrap();
    assert_eq!(stats["staged"]["copied_bytes"].as_u64(), Some(len));
    assert!(!row().contains("staged"), "{}", row());
}

#[test]
fn without_a_copy_no_progress_is_reported() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let mount_point = work.path().join("mount");
    let _mounted = Mounted::archfs(&image::small(work.path()), &mount_point, &[]);
    assert!(listed(&mount_point).unwrap()["staged"].is_null());
}

#[test]
fn a_copy_that_runs_out_of_space_is_continued_when_there_is_some() {
    if skip_without_mounts() {
        return;
    }
    let copying = Copying::begin();
    // It takes no time, and half of the space, or less if more than half is copied already.
    let other = copying.tmpfs.0.join("other");
    let file = File::create(&other).unwrap();
    let mut len = ZEROS / 2;
    while rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len).is_err() {
        len /= 2;
        assert!(len > 0, "all is copied already");
    }
    drop(file);
    let warnings = || copying.log().matches("cannot write the copy").count();
    wait_until("the copy is full", || warnings() > 0);
    assert!(!copying.is_complete());
    assert_eq!(copying.read_zeros().unwrap(), ZEROS, "reads do not depend on the copy");
    assert_eq!(fs::read(copying.path("last")).unwrap(), b"the end\n");
    fs::remove_file(&other).unwrap();
    wait_until("all is copied", || copying.is_complete());
    assert_eq!(warnings(), 1);
}

#[test]
fn a_copy_in_memory_stops_when_the_job_needs_the_memory() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archive = large(work.path());
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    let tmpfs = Tmpfs::new(work.path().join("near"), ROOM);
    let stage = tmpfs.option();
    for groups in limits(work.path(), ROOM + CACHE) {
        // The command takes the memory, asks what is copied, and asks again later.
        let script = "
            for file in $(find $1 -name 'memory.limit_in_bytes' -o -name memory.max); do
                cat $file > $(dirname $file)/memory.usage_in_bytes
                cat $file > $(dirname $file)/memory.current
                echo > $(dirname $file)/memory.stat
            done
            sleep 1; $2 stats --json $3; sleep 1; $2 stats --json $3; cat $3/last";
        let bind = "mount --bind \"$1\" /sys/fs/cgroup && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", bind, "sh"]).arg(&groups);
        command.arg(env!("CARGO_BIN_EXE_archfs")).args(["run", &stage]);
        let log = work.path().join("log");
        command.arg(format!("--log-file={}", log.display()));
        command.arg(format!("--cache={CACHE}")).arg(&archive).arg(&mount_point);
        command.args(["--", "sh", "-c", script, "sh"]).arg(&groups);
        let output = command.arg(env!("CARGO_BIN_EXE_archfs")).arg(&mount_point).output().unwrap();
        assert!(output.status.success(), "{}: {}", output.status, stderr(&output));
        let said = fs::read_to_string(&log).unwrap();
        fs::remove_file(&log).unwrap();
        let answers = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("the limit of the job leaves only"), "{said}\n{answers}");
        let lines: Vec<_> = answers.lines().collect();
        let copied = |line: &str| -> u64 {
            let stats: serde_json::Value = serde_json::from_str(line).unwrap();
            stats["staged"]["copied_bytes"].as_u64().unwrap()
        };
        assert_eq!(copied(lines[0]), copied(lines[1]), "it goes on");
        assert!(copied(lines[0]) < ZEROS);
        assert_eq!(lines[2], "the end");
        wait_until("the room is given back", || tmpfs.used() == 0);
    }
}

#[test]
fn an_archive_that_is_rewritten_while_it_is_copied_is_never_mixed() {
    if skip_without_mounts() {
        return;
    }
    let copying = Copying::begin();
    assert_eq!(fs::read(copying.path("last")).unwrap(), b"the end\n");
    File::options().append(true).open(&copying.archive).unwrap().write_all(b"x").unwrap();
    wait_until("the change is found", || copying.log().contains("reads of it now fail with EIO"));
    let said = copying.log();
    assert!(said.contains("large.tar: rewritten in place since it was opened"), "{said}");
    let error = copying.read_zeros().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
}

#[test]
fn a_copy_one_page_over_the_limit_is_refused() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let image = image::small(work.path());
    let mount_point = work.path().join("mount");
    let len = fs::metadata(&image).unwrap().len();
    assert_eq!(len % PAGE, 0, "images are padded to pages");
    {
        let exact = Tmpfs::new(work.path().join("exact"), len);
        let mounted = Mounted::archfs(&image, &mount_point, &[&exact.option(), WAIT]);
        assert_eq!(fs::read(mount_point.join("hello")).unwrap(), b"hello, world\n");
        assert_eq!(exact.used(), len);
        drop(mounted);
    }
    let small = Tmpfs::new(work.path().join("small"), len - PAGE);
    let said = refused(&image, &mount_point, &[&small.option()]);
    assert!(said.contains(&format!("--stage {}", small.0.display())), "{said}");
    assert!(said.contains(&format!("the copy takes {len} bytes")), "{said}");
    assert!(said.contains(&format!("{} bytes", len - PAGE)), "{said}");
    assert!(said.contains("hint: ") && said.contains("$TMPDIR"), "{said}");
    assert_eq!(small.used(), 0);
    // A copy on a disk counts against no other limit.
    let disk = work.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let option = format!("--stage={}", disk.display());
    drop(Mounted::archfs(&image, &mount_point, &[&option]));
    assert_eq!(fs::read_dir(&disk).unwrap().count(), 0);
}

/// Directories like /sys/fs/cgroup, one for each hierarchy that may limit memory here, in which
/// this process has `left` bytes left.
fn limits(work: &Path, left: u64) -> Vec<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    // systemd may mount version 2 beside version 1 here.
    let two = if Path::new("/sys/fs/cgroup/unified").exists() { "unified" } else { "" };
    let mut made = Vec::new();
    for line in own.lines() {
        let fields: Vec<_> = line.splitn(3, ':').collect();
        let (root, limit, usage) = match fields[1] {
            "" => (two, "memory.max", "memory.current"),
            "memory" => ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            _ => continue,
        };
        let fake = work.join(format!("groups-{}-{left}", made.len()));
        let group = fake.join(root).join(fields[2].trim_start_matches('/'));
        fs::create_dir_all(&group).unwrap();
        let (pages, taken) = (5000, 7000);
        fs::write(group.join(limit), format!("{}\n", left + taken)).unwrap();
        fs::write(group.join(usage), format!("{}\n", taken + pages)).unwrap();
        let names = ["active_file", "total_active_file"];
        let stat: String = names.iter().map(|name| format!("{name} {pages}\n")).collect();
        fs::write(group.join("memory.stat"), stat).unwrap();
        made.push(fake);
    }
    assert!(!made.is_empty(), "no control group here may limit memory:\n{own}");
    made
}

/// `archfs run OPTIONS archive mount_point -- cat mount_point/hello` under fake limits. The command
/// reads only after `before_reading`.
fn limited_after(
    before_reading: impl FnOnce(),
    groups: &Path,
    archive: &Path,
    mount_point: &Path,
    options: &[&str],
) -> Output {
    let [started, go] = ["started", "go"].map(|name| mount_point.with_extension(name));
    let script = "mount --bind \"$1\" /sys/fs/cgroup && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(groups);
    command.arg(env!("CARGO_BIN_EXE_archfs")).arg("run").args(options);
    command.arg(format!("--cache={CACHE}")).arg(archive).arg(mount_point).arg("--");
    // It ends by itself if the test fails.
    let wait = "touch \"$0\"; for i in $(seq 12000); do [ ! -e \"$1\" ] || break; sleep 0.01; done; exec cat \"$2\"";
    command.args(["sh", "-c", wait]).args([&started, &go]).arg(mount_point.join("hello"));
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may fail to mount.
    while !started.exists() && running.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(10));
    }
    before_reading();
    fs::write(&go, "").unwrap();
    let output = running.wait_with_output().unwrap();
    for file in [started, go] {
        let _ = fs::remove_file(file);
    }
    output
}

/// The same at once.
fn limited(groups: &Path, archive: &Path, mount_point: &Path, options: &[&str]) -> Output {
    limited_after(|| (), groups, archive, mount_point, options)
}

#[test]
fn a_copy_one_byte_over_the_job_memory_is_refused() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let image = image::small(work.path());
    let len = fs::metadata(&image).unwrap().len();
    let mount_point = work.path().join("mount");
    let tmpfs = Tmpfs::new(work.path().join("near"), 64 << 20);
    let stage = tmpfs.option();
    for (what, options) in [
        ("--stage", &[stage.as_str()][..]),
        // A copy in memory counts as loaded.
        ("--stage", &[&stage, "--preload"]),
    ] {
        for groups in limits(work.path(), len + CACHE) {
            let output = limited(&groups, &image, &mount_point, options);
            assert!(output.status.success(), "{options:?}: {}", stderr(&output));
            assert_eq!(output.stdout, b"hello, world\n");
        }
        for groups in limits(work.path(), len + CACHE - 1) {
            let output = limited(&groups, &image, &mount_point, options);
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(121), "{options:?}: {said}");
            assert!(output.stdout.is_empty() && !mount_point.exists());
            assert!(said.contains(&format!("archfs: error: {what}")), "{said}");
            for size in [len, CACHE, len + CACHE - 1] {
                assert!(said.contains(&format!("{size} bytes")), "{size}: {said}");
            }
            assert!(said.contains("the limit of the job leaves"), "{said}");
            assert!(said.contains("hint: "), "{said}");
        }
    }
    // A disk is not memory of the job.
    let disk = format!("--stage={}", work.path().display());
    for groups in limits(work.path(), 1) {
        let output = limited(&groups, &image, &mount_point, &[&disk]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert_eq!(tmpfs.used(), 0);
}

#[test]
fn preload_reads_the_part_that_fits_into_the_job_memory() {
    if skip_without_mounts() {
        return;
    }
    const FITS: u64 = 20 << 20;
    let _idle_pages_stay = IdlePagesStay::new();
    let work = work_directory();
    let archive = work.path().join("data.tar");
    let contents = source::noise(1, 3 * FITS as usize / 2);
    fs::write(&archive, tar::of(&[("noise", &contents), ("hello", b"hello, world\n")])).unwrap();
    let mount_point = work.path().join("mount");
    let pages = || resident_pages(&archive) * PAGE;
    let len = fs::metadata(&archive).unwrap().len();
    for (left, says, preloaded) in [
        (len + CACHE, None, len..=len.next_multiple_of(PAGE)),
        // Half of it, and what the file system read besides.
        (FITS + CACHE, Some("reading at most 10.0 MiB ahead"), 10 << 20..=16 << 20),
        (CACHE, Some("reading nothing ahead"), 0..=4 << 20),
    ] {
        for groups in limits(work.path(), left) {
            if !forget(&archive) {
                skip(&format!("{} keeps files in memory", work.path().display()));
                return;
            }
            let read_ahead = || {
                let deadline = Instant::now() + Duration::from_secs(60);
                while pages() < *preloaded.start() && Instant::now() < deadline {
                    thread::sleep(Duration::from_millis(10));
                }
                // It could read more.
                thread::sleep(Duration::from_millis(300));
            };
            let output = limited_after(read_ahead, &groups, &archive, &mount_point, &["--preload"]);
            let said = stderr(&output);
            assert!(output.status.success(), "{left}: {said}");
            assert_eq!(output.stdout, b"hello, world\n");
            assert_eq!(said.contains("archfs: warning: --readahead: "), says.is_some(), "{said}");
            assert!(said.contains(says.unwrap_or_default()), "{said}");
            let pages = pages();
            assert!(preloaded.contains(&pages), "{left}: {pages} of {len}");
        }
    }
}

#[test]
fn a_thousand_shards_become_one_copy_with_few_open_files() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let contents = |number: u64| source::noise(number + 1, 100 + number as usize * 7 % 9000);
    let shards: Vec<_> = (0..1000)
        .map(|number| {
            let path = work.path().join(format!("shard-{number:04}.tar"));
            let name = format!("{number:04}.jpg");
            fs::write(&path, tar::of(&[(&name, &contents(number))])).unwrap();
            path
        })
        .collect();
    let mount_point = work.path().join("mount");
    let tmpfs = Tmpfs::new(work.path().join("near"), 64 << 20);
    let before = ["prlimit", "--nofile=256:256"];
    let stage = tmpfs.option();
    for preload in [&[][..], &["--preload"]] {
        let options = [&[stage.as_str(), WAIT], preload].concat();
        let mounted = Mounted::several(&before, &shards, &mount_point, &options);
        let held = held(mounted.daemon(), &tmpfs.0);
        assert!(matches!(held.as_slice(), [(0o600, 0, _)]), "{held:?}");
        let open = fs::read_dir(format!("/proc/{}/fd", mounted.daemon())).unwrap().count();
        assert!(open < 100, "{open} files open");
        if !preload.is_empty() {
            for shard in &shards {
                fs::remove_file(shard).unwrap();
            }
        }
        for number in 0..1000 {
            let found = fs::read(mount_point.join(format!("{number:04}.jpg"))).unwrap();
            assert!(found == contents(number), "{number}");
        }
    }
    wait_until("the room is given back", || tmpfs.used() == 0);
}

/// Whether this kernel reports what is in the page cache without loading it (docs/CACHE.md).
fn has_cachestat() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap());
    [numbers.next(), numbers.next()] >= [Some(6_u32), Some(5)]
}

#[test]
fn preload_fills_the_page_cache_and_stage_leaves_it_as_it_was() {
    if skip_without_mounts() {
        return;
    }
    let _idle_pages_stay = IdlePagesStay::new();
    let work = work_directory();
    let archives: Vec<_> = ["a", "b"]
        .map(|name| {
            let path = work.path().join(name);
            fs::write(&path, tar::of(&[(name, &source::noise(1, 30_000_000))])).unwrap();
            path
        })
        .to_vec();
    let pages = fs::metadata(&archives[0]).unwrap().len().div_ceil(PAGE);
    let mount_point = work.path().join("mount");
    if !archives.iter().all(|path| forget(path)) {
        skip(&format!("{} keeps files in memory", work.path().display()));
        return;
    }
    let tmpfs = Tmpfs::new(work.path().join("near"), 128 << 20);
    drop(Mounted::several(&[], &archives, &mount_point, &[&tmpfs.option(), WAIT]));
    assert_eq!(archives.iter().map(|path| resident_pages(path)).sum::<u64>(), 0);
    // Another process uses one of the files.
    fs::read(&archives[1]).unwrap();
    drop(Mounted::several(&[], &archives, &mount_point, &[&tmpfs.option(), WAIT]));
    let resident = || [0, 1].map(|number| resident_pages(&archives[number]));
    let [other, used] = resident();
    assert_eq!(used, pages);
    if has_cachestat() {
        assert_eq!(other, 0);
    }

    for _ in 0..2 {
        assert!(archives.iter().all(|path| forget(path)));
        let preload = ["env", "ARCHFS_PRELOAD=1"];
        let _mounted = Mounted::several(&preload, &archives, &mount_point, &[]);
        wait_until("all is in memory", || resident() == [pages; 2]);
    }
}

#[test]
fn a_staged_tar_uses_the_index_beside_the_original() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archive = work.path().join("data.tar");
    let names: Vec<_> = (0..1500).map(|number| format!("{number:04}")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), name.as_bytes())).collect();
    fs::write(&archive, tar::of(&files)).unwrap();
    let index = work.path().join("data.tar.archfs-index");
    let near = work.path().join("near");
    fs::create_dir(&near).unwrap();
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    for turn in ["made", "used"] {
        let log = work.path().join(turn);
        let options = [format!("--log-file={}", log.display()), "--verbose".into()];
        let mut command = archfs();
        command.env("ARCHFS_STAGE", &near).args(["mount", "--keep"]).args(&options);
        run(command.arg(&archive).arg(&mount_point));
        assert_eq!(fs::read(mount_point.join("0777")).unwrap(), b"0777");
        unmount(&mount_point);
        assert!(index.exists());
        let said = fs::read_to_string(&log).unwrap();
        assert_eq!(said.contains("index saved"), turn == "made", "{turn}: {said}");
        assert!(!said.contains("not used"), "{said}");
    }
    // The same without a copy.
    let log = work.path().join("plain");
    let option = format!("--log-file={}", log.display());
    drop(Mounted::archfs(&archive, &mount_point, &[&option]));
    assert_eq!(fs::read_to_string(&log).unwrap(), "");
    assert_eq!(fs::read_dir(&near).unwrap().count(), 0);
}

#[test]
fn an_archive_that_grows_while_it_is_copied_is_refused() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let archive = large(work.path());
    let tmpfs = Tmpfs::new(work.path().join("near"), ROOM);
    let ended = AtomicBool::new(false);
    let said = thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = OpenOptions::new().append(true).open(&archive).unwrap();
            while !ended.load(Ordering::Relaxed) {
                file.write_all(b"x").unwrap();
            }
        });
        let mount_point = work.path().join("mount");
        let mount = || refused(&archive, &mount_point, &[&tmpfs.option(), WAIT]);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(mount));
        ended.store(true, Ordering::Relaxed);
        outcome
    });
    let said = said.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert!(said.contains("large.tar: rewritten in place since it was opened"), "{said}");
    assert_eq!(tmpfs.used(), 0);
}

#[test]
fn a_bad_stage_directory_is_reported() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let image = image::small(work.path());
    let mount_point = work.path().join("mount");
    let missing = work.path().join("missing");
    for (directory, why) in [
        (missing.to_str().unwrap(), "no such directory"),
        (image.to_str().unwrap(), "not a directory"),
        ("/proc", "cannot create a file"),
    ] {
        let said = refused(&image, &mount_point, &["--stage", directory]);
        let expected = format!("archfs: error: --stage {directory}: {why}");
        assert!(said.starts_with(&expected), "{said}");
    }
    let said = refused(&missing, &mount_point, &["--stage=/dev/shm", "--preload"]);
    assert!(said.contains("missing: no such file"), "{said}");
}

#[test]
fn a_signal_while_copying_an_archive_ends_the_command_at_once() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    // Takes a second or more, and turns out not to be an archive.
    let archive = work.path().join("huge");
    File::create(&archive).unwrap().set_len(2 << 30).unwrap();
    let tmpfs = Tmpfs::new(work.path().join("near"), 3 << 30);
    let mount_point = work.path().join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    for foreground in [true, false] {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL] {
            let what = format!("{signal:?}, foreground: {foreground}");
            let mut command = Command::new("env");
            command.arg("--default-signal").arg(env!("CARGO_BIN_EXE_archfs")).arg("mount");
            command.args(foreground.then_some("--foreground")).args([&tmpfs.option(), WAIT]);
            command.arg(&archive).arg(&mount_point).stderr(Stdio::null());
            let mut child =
                std::os::unix::process::CommandExt::process_group(&mut command, 0).spawn().unwrap();
            wait_until("it is at work", || tmpfs.used() > 0);
            // Foreground: only the daemon. Background: both, like Ctrl-C, or only the launcher.
            let pid = Pid::from_child(&child);
            match signal {
                Signal::INT => kill_process_group(pid, signal).unwrap(),
                _ => kill_process(pid, signal).unwrap(),
            }
            let status = child.wait().unwrap();
            assert_eq!(status.signal(), Some(signal.as_raw()), "{what}: {status}");
            wait_until(&format!("{what}: the room is given back"), || tmpfs.used() == 0);
            assert!(!is_mounted(&mount_point) && !mount_point.exists(), "{what}");
        }
    }
}
