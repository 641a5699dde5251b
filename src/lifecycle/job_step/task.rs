//! The daemon as a task of the step, and its reports to the launcher.
//!
//! It writes `started` and waits for `begin`. It mounts, writes `ready` and waits for `hold`. Then
//! it writes `holding` and closes its descriptors to srun. If its standard input ends before
//! `hold`, the launcher has ended, so the task unmounts and exits.

use std::fs::File;
use std::io::{self, BufRead, PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::process::{Signal, geteuid, getpid, kill_process};

use super::super::daemon;
use super::progress::{BEGIN, HOLD, Message, Progress};
use crate::error::{Error, Result};
use crate::lifecycle::plan::{DaemonPlan, StepTask};
use crate::lifecycle::ready::Ready;
use crate::os::process::{ProcessId, timespec};
use crate::os::signal;
use crate::sync::{Arc, AtomicBool, Ordering};

/// How often a task reports that it is still opening the archives.
const BEAT: Duration = Duration::from_secs(5);

/// A task of the step.
#[derive(Clone, Debug)]
pub struct Task {
    node: String,
    is_holding: Arc<AtomicBool>,
}

impl Task {
    /// The task of this process.
    pub fn own() -> Self {
        let node = std::env::var("SLURMD_NODENAME")
            .unwrap_or_else(|_| rustix::system::uname().nodename().to_string_lossy().into_owned());
        Self { node, is_holding: Arc::new(AtomicBool::new(false)) }
    }

    /// Reports to the launcher, and waits until all nodes have reported. Returns the plan, or
    /// `None` if the launcher has ended.
    pub fn begin_to_mount(&self) -> Result<Option<DaemonPlan<StepTask>>> {
        self.report(Progress::Started);
        let plan = DaemonPlan::read_from(&mut io::stdin().lock())?;
        Ok(plan.filter(|_| is_told_to_begin()))
    }

    /// Reports to the launcher, and waits until all nodes have reported; `false` if the launcher
    /// has ended.
    pub fn begin_to_unmount(&self) -> bool {
        self.report(Progress::Started);
        is_told_to_begin()
    }

    /// Serves as `archfs mount --foreground` does.
    pub fn serve(
        &self,
        DaemonPlan { mount, role, .. }: &DaemonPlan<StepTask>,
        progress: &crate::progress::Progress,
    ) -> Result<()> {
        let holder = role.until_pid.map(ProcessId::of).transpose()?;
        let failed = |error| Error::io("cannot report to the launcher", error);
        // `watch` sends it, and a shell that starts tasks in the background ignores it.
        signal::restore_default(Signal::INT.as_raw());
        let (ready, writer) = io::pipe().map_err(failed)?;
        let mut announced = Ready::new(u32::try_from(writer.as_raw_fd()).ok(), None);
        let watcher = {
            let (task, log) = (self.clone(), role.script_log.clone());
            thread::Builder::new().name("step".into()).spawn(move || task.watch(ready, log))
        };
        let watcher = watcher.map_err(failed)?;
        let served = daemon::serve_in_foreground(mount, holder, &mut announced, progress, || ());
        drop(writer);
        let _ = watcher.join();
        served
    }

    /// Reports that it has failed with `status`, after it has printed the error; `false` if the
    /// launcher no longer waits, so that only the exit status can report it.
    pub fn fail(&self, status: u8) -> bool {
        let is_awaited = !self.is_holding.load(Ordering::Relaxed);
        if is_awaited {
            self.report(Progress::Failed(status));
        }
        is_awaited
    }

    /// Reports success.
    pub fn finish(&self) {
        self.report(Progress::Done);
    }

    fn report(&self, progress: Progress) {
        let message = Message { node: self.node.clone(), progress };
        // One write, so that srun reads a whole line.
        let _ = io::stdout().lock().write_all(format!("{message}\n").as_bytes());
    }

    /// Waits for `ready` from the daemon in this process, and for `hold` from the launcher.
    fn watch(&self, mut ready: PipeReader, log: Option<(u64, String)>) {
        let stdin = io::stdin();
        let mut is_ready = false;
        loop {
            let mut watched = [
                PollFd::new(&ready, PollFlags::IN),
                PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN),
            ];
            let limit = (!is_ready).then(|| timespec(BEAT));
            let Ok(count) = poll(&mut watched, limit.as_ref()) else { continue };
            let [daemon, launcher] = watched.map(|descriptor| !descriptor.revents().is_empty());
            if count == 0 {
                self.report(Progress::Opening);
            } else if daemon {
                // The end of the pipe without a line means that the daemon has ended.
                if !matches!(ready.read(&mut [0; 16]), Ok(1..)) {
                    return;
                }
                is_ready = true;
                self.report(Progress::Ready);
            } else if launcher {
                let mut line = String::new();
                let _ = stdin.lock().read_line(&mut line);
                if is_ready && line.trim_end() == HOLD {
                    self.is_holding.store(true, Ordering::Relaxed);
                    self.report(Progress::Holding);
                    let _ = detach(log);
                } else {
                    // The launcher has ended: unmount at once.
                    let _ = kill_process(getpid(), Signal::INT);
                }
                return;
            }
        }
    }
}

/// Waits for the launcher.
fn is_told_to_begin() -> bool {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).is_ok() && line.trim_end() == BEGIN
}

/// Closes the descriptors to srun. From now on warnings go to the script's output, if that is a
/// file.
fn detach(log: Option<(u64, String)>) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let log = log.and_then(|(inode, path)| open_log(Path::new(&path), inode));
    rustix::stdio::dup2_stderr(log.as_ref().unwrap_or(&null))?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    crate::log::keep_messages(log.is_some());
    Ok(())
}

/// The inode and the path of this process's standard error, if it is a file opened for appending.
/// Then other processes can append to it as well.
pub(super) fn script_log() -> Option<(u64, String)> {
    let stderr = rustix::stdio::stderr();
    let found = rustix::fs::fstat(stderr).ok()?;
    let flags = rustix::fs::fcntl_getfl(stderr).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(found.st_mode).is_file();
    let path = std::fs::read_link("/proc/self/fd/2").ok()?;
    (is_file && flags.contains(OFlags::APPEND))
        .then(|| Some((found.st_ino, path.to_str()?.to_owned())))?
}

/// Opens `path` for appending, if it is the file `inode` on this node as well, and belongs to this
/// user.
fn open_log(path: &Path, inode: u64) -> Option<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().append(true).custom_flags(flags).open(path).ok()?;
    let found = file.metadata().ok()?;
    let is_log = found.is_file() && found.ino() == inode && found.uid() == geteuid().as_raw();
    is_log.then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_was_replaced_is_not_written() {
        let work = tempfile::tempdir().unwrap();
        let (log, other) = (work.path().join("log"), work.path().join("other"));
        std::fs::write(&log, "").unwrap();
        let inode = log.metadata().unwrap().ino();
        assert!(open_log(&log, inode).is_some());
        std::fs::rename(&log, &other).unwrap();
        std::fs::write(&log, "").unwrap();
        assert!(open_log(&log, inode).is_none() && open_log(&other, inode).is_some());
        std::fs::remove_file(&log).unwrap();
        std::os::unix::fs::symlink("other", &log).unwrap();
        assert!(open_log(&log, inode).is_none());
    }
}
