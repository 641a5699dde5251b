//! Mounts of compressed tars: memory is bounded by the cache, and no part of the archive is read
//! repeatedly.

use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::mount::Mounted;
use crate::support::{pack, run, skip_without_mounts, source, tree, work_directory};

/// Bytes of each file.
const FILE: usize = 2_000_000;

/// Number of files in the tar. All of them together would not fit into the memory that is allowed.
fn files() -> u64 {
    if std::env::var_os("ARCHFS_LONG_TESTS").is_some() { 300 } else { 150 }
}

/// A quarter of noise, and text that contains its position; it compresses to about a third.
fn contents(number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FILE + 4096);
    for part in 0.. {
        if bytes.len() >= FILE {
            break;
        }
        bytes.extend(source::noise(number * 1_000_003 + part, 1024));
        for line in 0..60 {
            bytes.extend(format!("line {line} of part {part} of file {number} of all\n").bytes());
        }
    }
    bytes.truncate(FILE);
    bytes
}

/// The compressed tar and the list for read_shuffled.py.
fn compressed_tar(program: &'static str, line: &str) -> Option<(PathBuf, PathBuf)> {
    if skip_without_mounts() || !pack::is_there(program) {
        return None;
    }
    let list = source::made_file(&format!("cost-{}.list", files()), |target| {
        let row = |number| {
            let sum = crc32fast::hash(&contents(number));
            format!("{sum} {}\n", tree::hex(format!("f{number:03}").as_bytes()))
        };
        fs::write(target, (0..files()).map(row).collect::<String>()).unwrap();
    });
    let archive = source::made_file(&format!("cost-{}.tar.{program}", files()), |target| {
        let work = work_directory();
        for number in 0..files() {
            fs::write(work.path().join(format!("f{number:03}")), contents(number)).unwrap();
        }
        let mut shell = Command::new("bash");
        let script = format!("tar -C $1 --sort=name -cf - . | {line} > $2");
        run(shell.args(["-ec", &script, "bash"]).arg(work.path()).arg(target));
    });
    Some((archive, list))
}

/// A mount with a cache of 64 MiB, and its daemon.
struct Served {
    daemon: String,
    mounted: Mounted,
    _work: tempfile::TempDir,
}

impl Served {
    fn new(archive: &Path) -> Self {
        let work = work_directory();
        let index = work.path().join("index").display().to_string();
        let mount_point = work.path().join("mount");
        let mounted =
            Mounted::archfs(archive, &mount_point, &["--cache", "64M", "--index", &index]);
        let is_daemon = |process: &str| {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            words.next() == Some(b"archfs")
                && words.any(|word| word == mount_point.as_os_str().as_bytes())
        };
        let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
        let mut names = processes.map(|name| name.into_string().unwrap());
        let daemon = names.find(|name| is_daemon(name)).expect("the daemon of the mount");
        Self { daemon, mounted, _work: work }
    }

    /// The number in the line of /proc/PID/NAME that starts with `key`.
    fn number(&self, name: &str, key: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/{name}", self.daemon)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }
}

#[test]
fn mount_memory_is_bounded_by_its_cache() {
    for (program, line) in [("gzip", "gzip -1 -c"), ("xz", "xz -0 -T0 --block-size=8MiB -c")] {
        let Some((archive, list)) = compressed_tar(program, line) else { return };
        let served = Served::new(&archive);
        let opened = served.number("status", "VmHWM:");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/read_shuffled.py");
        run(Command::new("python3").arg(script).arg(served.mounted.path()).arg(&list).arg("4"));
        let most = served.number("status", "VmHWM:");
        eprintln!("{program}: {opened} kB when opened, {most} kB when all was read");
        assert!(most < (64 + 150) << 10, "{program}: {most} kB, of them {opened} to open");
    }
}

#[test]
fn reading_in_archive_order_reads_the_archive_once() {
    for (program, line) in [("gzip", "gzip -1 -c"), ("xz", "xz -0 -T0 --block-size=8MiB -c")] {
        let Some((archive, _)) = compressed_tar(program, line) else { return };
        let len = fs::metadata(&archive).unwrap().len();
        let served = Served::new(&archive);
        let opened = served.number("io", "rchar:");
        assert!(opened < len + len / 10, "{program}: {opened} bytes to open {len}");
        let mut buffer = vec![0; 128 << 10];
        for number in 0..files() {
            let mut file =
                fs::File::open(served.mounted.path().join(format!("f{number:03}"))).unwrap();
            while file.read(&mut buffer).unwrap() > 0 {}
        }
        let read = served.number("io", "rchar:") - opened;
        eprintln!("{program}: {len} bytes, {opened} to open, {read} to read all in order");
        assert!(read < 2 * len, "{program}: {read} bytes of {len}");
    }
}
