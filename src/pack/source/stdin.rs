//! An archive from standard input.
//!
//! Packing reads files in an order of its own, and reads large ones twice. So what comes from a
//! pipe is first copied to an unlinked file in the directory of the new archive, which needs as
//! much space as the input. A regular file is read where it is.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio;
use rustix::termios::isatty;

use crate::error::{Error, Kind, Result};
use crate::os::directory::parent_of;
use crate::os::unlinked;
use crate::pack::Job;
use crate::storage::FileStorage;

/// The name of standard input in messages.
pub(super) const NAME: &str = "standard input";

/// Bytes per read.
const STEP: usize = 1 << 20;

/// How long one wait for input lasts. After it, the job is checked for an interrupt.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What standard input contains. `archive` is the archive to be made.
///
/// Fails with `Usage` if it is a terminal; `Interrupted`; `Io`, also if the directory of `archive`
/// is full.
pub(super) fn read(job: &Job<'_>, archive: Option<&Path>) -> Result<FileStorage> {
    let input = stdio::stdin();
    if isatty(input) {
        return Err(Error::new(Kind::Usage, format!("{NAME}: is a terminal"))
            .with_hint("archfs pack - train.sqfs < train.tar"));
    }
    let mut input = File::from(input.as_fd().try_clone_to_owned().map_err(cannot_read)?);
    let is_regular = input.metadata().map_err(cannot_read)?.is_file();
    if !(is_regular && input.stream_position().map_err(cannot_read)? == 0) {
        input = copied(job, input, archive.map_or(Path::new("."), parent_of))?;
    }
    FileStorage::of(input, PathBuf::from(NAME)).map_err(cannot_read)
}

/// A copy of the rest of `input`, in an unlinked file in `directory`.
fn copied(job: &Job<'_>, mut input: File, directory: &Path) -> Result<File> {
    job.progress.begin("reading standard input");
    let cannot_write = |error: io::Error| {
        let context = format!("{}: cannot copy {NAME} to it", directory.display());
        Error::io(context, error)
    };
    let mut copy = unlinked::create(directory).map_err(cannot_write)?;
    let mut buffer = vec![0; STEP];
    loop {
        job.check()?;
        let mut waiting = [PollFd::new(&input, PollFlags::IN)];
        match poll(&mut waiting, Some(&WAIT)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(cannot_read(error.into())),
        }
        let count = match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(cannot_read(error)),
        };
        copy.write_all(&buffer[..count]).map_err(cannot_write)?;
        job.progress.advance(count as u64);
    }
    copy.seek(SeekFrom::Start(0)).map_err(cannot_write)?;
    Ok(copy)
}

fn cannot_read(error: io::Error) -> Error {
    Error::io(format!("{NAME}: cannot read"), error)
}
