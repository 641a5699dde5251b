//! Reports to waiting processes that files can be read: the line `ready` at a descriptor
//! (`--ready-fd`), and a character in a named pipe (`-o notify_pipe`, as squashfuse has it).
//!
//! Opening a named pipe waits until a process opens it for reading, which may be after
//! `archfs mount` has returned. So another process, `archfs notify`, waits.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::inherited;
use crate::os::process;

/// How long a named pipe may have no reader, and the longest time between two checks.
const READER_LIMIT: Duration = Duration::from_secs(600);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Where processes wait until files can be read. Nothing is reported twice.
#[derive(Debug, Default)]
pub struct Ready {
    descriptor: Option<u32>,
    pipe: Option<PathBuf>,
}

/// What a process reads from the named pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountStatus {
    /// Files can be read.
    Mounted,
    /// Nothing is mounted.
    Failed,
}

impl MountStatus {
    /// The character that squashfuse writes (squashfuse 0.5.0, `fuseprivate.h`).
    fn character(self) -> u8 {
        match self {
            Self::Mounted => b's',
            Self::Failed => b'f',
        }
    }
}

impl Ready {
    /// Reports to an inherited descriptor and to a named pipe.
    pub fn new(descriptor: Option<u32>, pipe: Option<PathBuf>) -> Self {
        Self { descriptor, pipe }
    }

    /// Checks that both exist, before anything else is done.
    ///
    /// # Errors
    /// `NotFound` if one does not; `InvalidInput` if the pipe is another file; `Io`.
    pub fn check(&mut self) -> Result<()> {
        // No failure is reported to a file that is not a pipe.
        if let Some(pipe) = self.pipe.take() {
            let (kind, what) = match fs::metadata(&pipe) {
                Ok(found) if found.file_type().is_fifo() => (None, ""),
                Ok(_) => (Some(Kind::InvalidInput), "not a named pipe"),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    (Some(Kind::NotFound), "no such named pipe")
                }
                Err(error) => return Err(Error::io(pipe.display().to_string(), error)),
            };
            if let Some(kind) = kind {
                let context = format!("{}: {what}", pipe.display());
                return Err(Error::new(kind, context).with_hint("create it with mkfifo"));
            }
            self.pipe = Some(pipe);
        }
        self.descriptor.map(ready_file).transpose().map(|_| ())
    }

    /// Reports that files can be read.
    ///
    /// Fails with `Io` if the descriptor has no reader, or the pipe cannot be written.
    pub(crate) fn announce(&mut self) -> Result<()> {
        if let Some(number) = self.descriptor.take() {
            ready_file(number)?
                .write_all(b"ready\n")
                .map_err(|error| Error::io("cannot write to --ready-fd", error))?;
        }
        self.pipe.take().map_or(Ok(()), |pipe| start_notifier(&pipe, MountStatus::Mounted))
    }

    /// Reports to the named pipe that nothing is mounted, unless files could be read before.
    pub fn report_failure(&mut self) -> Result<()> {
        self.pipe.take().map_or(Ok(()), |pipe| start_notifier(&pipe, MountStatus::Failed))
    }
}

fn ready_file(number: u32) -> Result<File> {
    let duplicate = inherited::duplicate(number.try_into().unwrap_or(-1));
    duplicate.map(File::from).map_err(|error| error.within(format!("--ready-fd {number}")))
}

/// Starts the process that waits for a reader of `pipe`.
fn start_notifier(pipe: &Path, status: MountStatus) -> Result<()> {
    let mut command = process::silent_own_program(["notify"]);
    if status == MountStatus::Failed {
        command.arg("--failed");
    }
    let failed = |error| Error::io(format!("{}: cannot notify", pipe.display()), error);
    let mut process = command.arg("--").arg(pipe).spawn().map_err(failed)?;
    // A process in the foreground serves on, and reaps it. If no thread can be started, it stays
    // a zombie until then.
    let _ = thread::Builder::new().name("notify".into()).spawn(move || process.wait());
    Ok(())
}

/// Waits until a process opens the named pipe for reading, and writes the status. Gives up if the
/// pipe is removed, or after `READER_LIMIT`, so that no process is left behind.
///
/// # Errors
/// `Io`, also if the pipe was removed; `TimedOut`.
pub fn notify(path: &Path, status: MountStatus) -> Result<()> {
    // The caller waits for the end of some other pipe that this process has inherited.
    inherited::close_all(&[]);
    let failed = |error| Error::io(path.display().to_string(), error);
    let deadline = Instant::now() + READER_LIMIT;
    let mut pause = Duration::from_millis(1);
    // Opening it as usual would wait for ever.
    let mut open = OpenOptions::new();
    open.write(true).custom_flags(libc::O_NONBLOCK);
    loop {
        match open.open(path) {
            Ok(mut pipe) => {
                // Another file may be there now.
                if !pipe.metadata().map_err(failed)?.file_type().is_fifo() {
                    let context = format!("{}: not a named pipe", path.display());
                    return Err(Error::new(Kind::InvalidInput, context));
                }
                return pipe.write_all(&[status.character()]).map_err(failed);
            }
            Err(error) if error.raw_os_error() != Some(libc::ENXIO) => return Err(failed(error)),
            Err(_) if Instant::now() >= deadline => {
                let context = format!("{}: no process has read it", path.display());
                return Err(Error::new(Kind::TimedOut, context));
            }
            Err(_) => thread::sleep(pause),
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
