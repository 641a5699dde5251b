//! A small image, its mount point, and the scripts that mount it.
//!
//! Starts programs as a job does: shells that run on, as root or as an ordinary user. Mounts are
//! unmounted even if the test fails.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::mount::{CleanUp, daemon_of, is_mounted};
use super::{
    archfs, image, run, skip_without_mounts, skip_without_user_mounts, wait_until, work_directory,
};

/// A small image and its mount point, in a directory of their own.
pub struct Stage {
    pub image: PathBuf,
    pub mount_point: PathBuf,
    // In this order: unmounted before the directory is removed.
    _clean_up: CleanUp,
    pub work: tempfile::TempDir,
}

/// `None` unless the tests run as root and root can mount.
pub fn stage() -> Option<Stage> {
    (!skip_without_mounts()).then(|| make(image::small))
}

/// The same for tests that need no root. `None` if the user who runs them cannot mount.
pub fn stage_as_user() -> Option<Stage> {
    (!skip_without_user_mounts()).then(|| make(image::small))
}

/// `stage` with another image.
pub fn stage_with(image: impl FnOnce(&Path) -> PathBuf) -> Option<Stage> {
    (!skip_without_mounts()).then(|| make(image))
}

fn make(image: impl FnOnce(&Path) -> PathBuf) -> Stage {
    let work = work_directory();
    let image = image(work.path());
    let mount_point = work.path().join("mount");
    Stage { image, _clean_up: CleanUp(mount_point.clone()), mount_point, work }
}

impl Stage {
    pub fn mount(&self, options: &[&str]) -> Output {
        let mut command = archfs();
        command.arg("mount").args(options).arg(&self.image).arg(&self.mount_point).output().unwrap()
    }

    pub fn run(&self, command: &[&str]) -> Output {
        let mut archfs = archfs();
        archfs.arg("run").arg(&self.image).arg(&self.mount_point).arg("--").args(command);
        archfs.output().unwrap()
    }

    /// A bash script that runs in the directory, with $ARCHFS and $IMAGE; the mount point is
    /// `mount`.
    pub fn bash(&self, script: &str) -> Command {
        // The process that started the tests may ignore some signals (nohup, a shell's background
        // job), and children inherit that.
        let mut command = Command::new("env");
        command.args(["--default-signal", "bash", "-c", script]).current_dir(self.work.path());
        command.env("ARCHFS", env!("CARGO_BIN_EXE_archfs")).env("IMAGE", &self.image);
        command.env_remove("SLURM_TASK_PID");
        command
    }

    /// A fifo in the directory, on which a script waits until it is written to.
    pub fn fifo(&self, name: &str) -> PathBuf {
        let path = self.work.path().join(name);
        run(Command::new("mkfifo").arg("--mode=666").arg(&path));
        path
    }

    pub fn is_gone(&self) -> bool {
        !is_mounted(&self.mount_point) && fs::symlink_metadata(&self.mount_point).is_err()
    }

    /// Reads in another process. A file open in this process would also be open for a moment in
    /// every program that a concurrent test starts, and keep the mount in use.
    pub fn assert_readable(&self) {
        let output = run(Command::new("cat").arg(self.mount_point.join("hello")));
        assert_eq!(output.stdout, b"hello, world\n");
    }

    /// archfs with these arguments; if it hangs, it is ended after half a minute with status 124.
    pub fn ends(&self, words: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.args(["-k", "1", "30", env!("CARGO_BIN_EXE_archfs")]).args(words);
        command.current_dir(self.work.path()).output().unwrap()
    }

    /// The PID of the daemon, from `archfs list`.
    pub fn daemon(&self) -> Pid {
        Pid::from_raw(daemon_of(&self.mount_point).expect("a daemon")).unwrap()
    }
}

/// A stopped daemon; continued when dropped.
pub struct Stopped(Pid);

impl Stopped {
    pub fn new(daemon: Pid) -> Self {
        stop(daemon);
        Self(daemon)
    }

    /// Stops the daemon of the stage and waits until the kernel's cache of the root has expired, so
    /// that stat(2) hangs. It expires after half of `--idle-timeout`.
    pub fn and_forgotten(stage: &Stage) -> Self {
        let stopped = Self::new(stage.daemon());
        wait_until("stat(2) hangs", || {
            let status =
                Command::new("timeout").args(["0.2", "stat"]).arg(&stage.mount_point).output();
            status.unwrap().status.code() == Some(124)
        });
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Stops a daemon. kill(2) returns before its threads stop, and until then they answer requests.
pub fn stop(daemon: Pid) {
    kill_process(daemon, Signal::STOP).unwrap();
    wait_until("all threads have stopped", || are_threads_stopped(daemon));
}

fn are_threads_stopped(process: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).unwrap();
    threads.flatten().all(|thread| {
        // The state follows the name, which is in parentheses (proc_pid_stat(5)). A thread that
        // waits for storage (D) stops before it runs its own code again.
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .is_none_or(|fields| fields.is_empty() || fields.starts_with(['T', 'D']))
    })
}

pub fn has_ended(process: Pid) -> bool {
    !Path::new(&format!("/proc/{}", process.as_raw_nonzero())).exists()
}

/// What was printed to standard error, without errno numbers.
pub fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!text.contains("(os error "), "{text}");
    text
}

/// A shell that runs the lines written to it, like a job script.
pub fn shell(work: &Path) -> Child {
    let mut shell = Command::new("bash");
    shell.current_dir(work).stdin(Stdio::piped()).stdout(Stdio::piped());
    shell.env("ARCHFS", env!("CARGO_BIN_EXE_archfs")).env_remove("SLURM_TASK_PID");
    shell.spawn().unwrap()
}

/// Runs a line in the shell and returns the last line it prints.
pub fn tell(shell: &mut Child, line: &str) -> String {
    writeln!(shell.stdin.as_mut().unwrap(), "{line}; echo done $?").unwrap();
    let mut answer = String::new();
    let stdout = shell.stdout.as_mut().unwrap();
    let mut byte = [0];
    while !answer.ends_with('\n') {
        stdout.read_exact(&mut byte).unwrap();
        answer.push(byte[0].into());
    }
    answer
}

/// Lets the shell exit.
pub fn end(mut shell: Child) {
    drop(shell.stdin.take());
    shell.wait().unwrap();
}

/// A program whose output is read line by line.
pub struct Talker {
    child: Child,
    lines: std::io::Lines<BufReader<Box<dyn Read>>>,
}

impl Talker {
    /// Reads its stdout and writes to its stdin.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout: Box<dyn Read> = Box::new(child.stdout.take().unwrap());
        Self { child, lines: BufReader::new(stdout).lines() }
    }

    /// Reads its stderr.
    pub fn complaining(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr: Box<dyn Read> = Box::new(child.stderr.take().unwrap());
        Self { child, lines: BufReader::new(stderr).lines() }
    }

    /// The next line.
    pub fn line(&mut self) -> String {
        self.lines.next().expect("a line before the end").unwrap()
    }

    /// The next line that contains `word`.
    pub fn line_with(&mut self, word: &str) -> String {
        let mut seen = Vec::new();
        while let Some(line) = self.lines.next().transpose().unwrap() {
            if line.contains(word) {
                return line;
            }
            seen.push(line);
        }
        panic!("no line with {word:?}: {seen:?}")
    }

    /// Writes to its stdin.
    pub fn write(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Whether it has exited.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Closes its stdin and waits for it.
    pub fn end(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

/// Processes whose command line contains all of `words`.
pub fn processes_about(words: &[&str]) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name();
        name.to_str()?.parse::<i32>().ok()
    });
    let is_about = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        words.iter().all(|word| line.contains(word))
    };
    pids.filter(is_about).collect()
}
