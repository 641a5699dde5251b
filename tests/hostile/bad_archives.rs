//! Checks every hostile archive in tests/data/bad (made by tests/data/make-bad) on the command line
//! and on a mount.
//!
//! Each is reported as its manifest says, within limits of time and memory, and undamaged files
//! beside the damage are read correctly.

use std::collections::BTreeMap;
use std::fs::{self, FileTimes};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::lgetxattr;
use serde_json::Value;

use crate::support::mount::{CleanUp, Mounted, is_mounted};
use crate::support::skip::skip_part;
use crate::support::{run, skip_without_mounts, wait_until, work_directory};

/// CPU time that a command may use, in seconds; far more than any needs. Wall-clock time depends on
/// the load of the machine, so SECONDS only ends a command that hangs.
const CPU_SECONDS: u32 = 60;
const SECONDS: u32 = 300;

/// The limit for a mount and all requests to it.
const PATIENCE: Duration = Duration::from_secs(600);

/// What archfs returns for damage: EIO, and exit status 3.
const EIO: i32 = 5;
const STATUS: i32 = 3;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bad")
}

/// An archive of the corpus.
struct Case {
    manifest: Value,
    archive: PathBuf,
}

/// A fault that the manifest expects.
struct Fault<'c> {
    does: &'c str,
    path: &'c str,
    says: Vec<&'c str>,
}

impl Case {
    /// All cases, with their files copied to `work` and given the times of the manifest.
    fn all(work: &Path) -> Vec<Self> {
        let text = fs::read(directory().join("MANIFEST.json")).unwrap();
        let Value::Array(list) = serde_json::from_slice(&text).unwrap() else { panic!("no list") };
        for entry in fs::read_dir(directory()).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, work.join(path.file_name().unwrap())).unwrap();
        }
        let case = |manifest: Value| {
            let archive = work.join(manifest["file"].as_str().unwrap());
            if let Some(seconds) = manifest["modified"].as_u64() {
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
                let file = fs::File::options().write(true).open(&archive).unwrap();
                file.set_times(FileTimes::new().set_modified(time)).unwrap();
            }
            Self { manifest, archive }
        };
        list.into_iter().map(case).collect()
    }

    fn name(&self) -> &str {
        self.manifest["file"].as_str().unwrap()
    }

    fn strings(list: &Value) -> Vec<&str> {
        list.as_array()
            .map_or(Vec::new(), |list| list.iter().map(|item| item.as_str().unwrap()).collect())
    }

    fn faults(&self) -> Vec<Fault<'_>> {
        let list = self.manifest["faults"].as_array().map_or(&[][..], Vec::as_slice);
        let mut faults = Vec::new();
        for fault in list {
            let (does, path) = (fault["do"].as_str(), fault["path"].as_str());
            let says = Self::strings(&fault["says"]);
            faults.push(Fault { does: does.unwrap(), path: path.unwrap_or_default(), says });
        }
        faults
    }

    fn is_refused(&self) -> bool {
        self.faults().iter().any(|fault| fault.does == "open")
    }

    /// Undamaged files: path, length and checksum.
    fn healthy(&self) -> Vec<(&str, u64, u32)> {
        let Some(files) = self.manifest["healthy"].as_object() else { return Vec::new() };
        let mut list = Vec::new();
        for (path, file) in files {
            let number = |name: &str| file[name].as_u64().unwrap();
            let sum = u32::try_from(number("crc32")).unwrap();
            list.push((path.as_str(), number("length"), sum));
        }
        list
    }

    /// `archfs COMMAND [OPTIONS] ARCHIVE REST` within the limits of time and memory.
    fn call(&self, command: &str, rest: &[&str]) -> Output {
        // The buffers of the mount's event loops alone take about 300 MiB of address space.
        let loops = if command == "mount" { 768 } else { 0 };
        let memory = (self.manifest["memory"].as_u64().unwrap() + loops) * 1024;
        let script = format!(
            "ulimit -d {memory} && ulimit -t {CPU_SECONDS} && exec timeout -s KILL {SECONDS} \"$@\""
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_archfs"), command]);
        shell.args(Self::strings(&self.manifest["options"])).arg(&self.archive).args(rest);
        shell.output().unwrap()
    }

    /// Checks how the command line reports the fault.
    fn check_command(&self, fault: &Fault<'_>) {
        let (output, status) = match fault.does {
            "open" => (self.call("ls", &["-R"]), STATUS),
            "note" => (self.call("ls", &["-R"]), 0),
            "read" => (self.call("cat", &[fault.path]), STATUS),
            "list" => (self.call("ls", &[fault.path]), STATUS),
            "stat" | "readlink" => (self.call("ls", &["-l", fault.path]), STATUS),
            // No command prints extended attributes.
            _ => return,
        };
        let stderr = String::from_utf8(output.stderr).unwrap();
        let Fault { does, path, .. } = fault;
        let what = format!("{}, {does} {path}: {stderr}", self.name());
        // What is missing is an error, after which `ls` goes on.
        let is_error = stderr.lines().any(|line| line.starts_with("archfs: error: "));
        let status = if is_error { STATUS } else { status };
        assert_eq!(output.status.code(), Some(status), "{what}");
        assert!(does != &"note" || !output.stdout.is_empty(), "{what}");
        let says = fault.says_to_users();
        assert!(says.iter().all(|words| stderr.contains(words)), "{what}\nnot all of {says:?}");
        let shown = self.archive.display().to_string();
        for line in stderr.lines().filter(|line| line.contains(&shown)) {
            let index = format!("{shown}.archfs-index");
            let times = line.replace(&index, "").matches(&shown).count();
            assert!(times <= 1, "{what}\nnames the archive {times} times");
        }
    }

    fn check_commands(&self) {
        self.faults().iter().for_each(|fault| self.check_command(fault));
        for (path, length, sum) in self.healthy() {
            let output = self.call("cat", &[path]);
            assert!(output.status.success(), "{}: {path}: {output:?}", self.name());
            let found = (output.stdout.len() as u64, crc32fast::hash(&output.stdout));
            assert_eq!(found, (length, sum), "{}: {path} has other bytes", self.name());
        }
        let expected = Self::strings(&self.manifest["lists"]);
        if !expected.is_empty() {
            let output = self.call("ls", &["-R"]);
            let listed = String::from_utf8(output.stdout).unwrap();
            assert_eq!(listed.lines().collect::<Vec<_>>(), expected, "{}", self.name());
        }
    }

    /// Checks how a mount reports the faults, and its log.
    fn check_mounted(&self, mount_point: &Path) {
        let name = self.name();
        let log = mount_point.with_extension("log");
        let mount_point_text = mount_point.to_str().unwrap();
        let log_text = log.to_str().unwrap();
        let options = [
            mount_point_text,
            "--keep",
            "--partial",
            "-v",
            "--log-file",
            log_text,
            "--cache",
            "64M",
        ];
        let output = self.call("mount", &options);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if self.is_refused() {
            assert_eq!(output.status.code(), Some(STATUS), "{name}: {stderr}");
            assert!(
                self.faults().iter().all(|fault| fault.is_reported_in(&stderr)),
                "{name}: {stderr}"
            );
            assert!(!is_mounted(mount_point), "{name} is refused and mounted");
            return;
        }
        assert!(output.status.success(), "{name}: {stderr}");
        for fault in self.faults() {
            if let Some(outcome) = fault.ask(mount_point) {
                let error = outcome.err().map(|error| error.raw_os_error());
                let Fault { does, path, .. } = &fault;
                assert_eq!(error, Some(Some(EIO)), "{name}: {does} {path}");
            }
            let mut logged = String::new();
            // The path of a damaged file is looked up before the fault is logged.
            wait_until(&format!("{name} logs all of {:?}", fault.says), || {
                logged = fs::read_to_string(&log).unwrap_or_default() + &stderr;
                fault.is_reported_in(&logged)
            });
            assert!(!logged.contains("os error"), "{name}: {logged}");
        }
        for (path, length, sum) in self.healthy() {
            let bytes =
                fs::read(mount_point.join(path)).unwrap_or_else(|e| panic!("{name}: {path}: {e}"));
            let found = (bytes.len() as u64, crc32fast::hash(&bytes));
            assert_eq!(found, (length, sum), "{name}: {path} has other bytes");
        }
        // Walks the whole tree, as `find` does. Every error must be EIO.
        let mut directories = vec![mount_point.to_owned()];
        while let Some(directory) = directories.pop() {
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(EIO), "{name}: {}", directory.display());
                    continue;
                }
            };
            for entry in entries {
                match entry.and_then(|entry| Ok((entry.path(), entry.file_type()?))) {
                    Ok((path, kind)) if kind.is_dir() => directories.push(path),
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.raw_os_error(), Some(EIO), "{name}: {error}"),
                }
            }
        }
    }
}

impl Fault<'_> {
    fn is_reported_in(&self, text: &str) -> bool {
        self.says.iter().all(|words| text.contains(words))
    }

    /// The words that a user sees without `-v`: no offsets, and nothing after the error of a codec.
    fn says_to_users(&self) -> Vec<&str> {
        let codec = self.says.iter().position(|words| words.contains("cannot decode it"));
        let plain = self.says.iter().take(codec.map_or(usize::MAX, |at| at + 1));
        plain.filter(|words| !words.contains("0x")).copied().collect()
    }

    /// Accesses what is damaged on the mount; `None` if only opening the archive fails.
    fn ask(&self, mount_point: &Path) -> Option<io::Result<()>> {
        let path = mount_point.join(self.path);
        Some(match self.does {
            "open" | "note" => return None,
            // Not read into memory: some files claim to be larger than any memory.
            "read" => fs::File::open(path)
                .and_then(|file| io::copy(&mut BufReader::new(file), &mut io::sink()))
                .map(|_| ()),
            "list" => {
                fs::read_dir(path).and_then(|mut entries| entries.try_for_each(|e| e.map(|_| ())))
            }
            "stat" => fs::symlink_metadata(path).map(|_| ()),
            "readlink" => fs::read_link(path).map(|_| ()),
            other => {
                let attribute = other.strip_prefix("xattr:").expect("an operation");
                let mut value = [0_u8; 70_000];
                lgetxattr(path, attribute, &mut value).map(|_| ()).map_err(io::Error::from)
            }
        })
    }
}

/// Runs `check` on all cases, several at once, and returns how many there were.
fn each(cases: Vec<Case>, check: impl Fn(&Case) + Sync) -> usize {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(case);
                }
            });
        }
    });
    cases.len()
}

fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.file_name().unwrap().into(), fs::read(&path).unwrap())).collect()
}

#[test]
fn make_bad_reproduces_the_corpus() {
    let work = work_directory();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/make-bad");
    run(Command::new("python3").arg(script).arg(work.path()));
    let (made, kept) = (files(work.path()), files(&directory()));
    assert_eq!(made.keys().collect::<Vec<_>>(), kept.keys().collect::<Vec<_>>());
    let different: Vec<_> = made.iter().filter(|&(name, bytes)| kept[name] != *bytes).collect();
    let names: Vec<_> = different.iter().map(|(name, _)| name).collect();
    assert!(names.is_empty(), "tests/data/make-bad makes other bytes of {names:?}");
}

#[test]
fn commands_report_the_damage_and_its_path_within_limits() {
    let work = work_directory();
    let count = each(Case::all(work.path()), Case::check_commands);
    assert!(count > 100, "{count} cases");
}

#[test]
fn mounts_return_eio_for_damage_and_correct_bytes_elsewhere() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    each(Case::all(work.path()), |case| {
        let mount_point = work.path().join(format!("{}.mount", case.name()));
        let _clean_up = CleanUp(mount_point.clone());
        // A mount that hangs must not hang the test.
        thread::scope(|scope| {
            let (done, finished) = mpsc::channel();
            scope.spawn(move || {
                case.check_mounted(&mount_point);
                let _ = done.send(());
            });
            if let Err(mpsc::RecvTimeoutError::Timeout) = finished.recv_timeout(PATIENCE) {
                eprintln!("{}: does not answer", case.name());
                std::process::abort();
            }
        });
    });
}

#[test]
fn other_programs_accept_the_undamaged_archives() {
    let work = work_directory();
    let mut checked = 0;
    for case in Case::all(work.path()) {
        if case.manifest["sound"] != Value::Bool(true) {
            continue;
        }
        checked += 1;
        let target = work.path().join(format!("{}.unpacked", case.name()));
        let compare = |mount_point: &Path| {
            for (path, length, sum) in case.healthy() {
                let bytes = fs::read(mount_point.join(path)).unwrap();
                let found = (bytes.len() as u64, crc32fast::hash(&bytes));
                assert_eq!(found, (length, sum), "{}: {path}", case.name());
            }
        };
        if case.name().ends_with(".tar") {
            fs::create_dir(&target).unwrap();
            run(Command::new("tar").arg("-C").arg(&target).arg("-xf").arg(&case.archive));
            compare(&target);
            continue;
        }
        let mut command = Command::new("unsquashfs");
        run(command.args(["-quiet", "-no-progress", "-d"]).arg(&target).arg(&case.archive));
        compare(&target);
        if skip_without_mounts() {
            continue;
        }
        let mount_point = work.path().join("kernel");
        match Mounted::kernel(&case.archive, &mount_point) {
            Ok(mounted) => compare(mounted.path()),
            Err(why) => skip_part(&format!("the kernel cannot mount SquashFS: {why}")),
        }
    }
    assert_eq!(checked, 4);
}
