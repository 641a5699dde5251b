//! The process that lists all directories of a mount, so that the kernel has all names and inodes.
//!
//! The kernel asks for attributes with a listing (READDIRPLUS) at the start of a directory, and
//! later only if the names that it got were used (FUSE_READDIRPLUS_AUTO). So this asks for the
//! attributes of one name after each part of a listing. They are there already, so no request
//! follows.
//!
//! Invariant: only directories on the given device are opened, one at a time, so nothing but the
//! mount itself is read, and it is busy only while this runs.

use std::ffi::{CStr, CString, OsStr};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags, RawDir, fadvise, fstat, open, statat};

/// Bytes of one part of a listing. Since Linux 6.13 one request may fill all of it.
const PART_BYTES: usize = 64 << 10;

/// Lists everything below `mount_point`, as long as that is on `device` and the other end of
/// standard input is open. Writes the number of names to standard input, which is a socket.
pub fn read_names(mount_point: &Path, device: u64) -> io::Result<()> {
    let daemon = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut lister =
        Lister { daemon, device, buffer: vec![MaybeUninit::uninit(); PART_BYTES], names: 0 };
    let mut pending = vec![mount_point.to_owned()];
    while let Some(directory) = pending.pop() {
        if !lister.list(&directory, &mut pending)? {
            return Ok(());
        }
    }
    lister.daemon.write_all(&lister.names.to_ne_bytes())
}

struct Lister {
    daemon: UnixStream,
    device: u64,
    buffer: Vec<MaybeUninit<u8>>,
    names: u64,
}

impl Lister {
    /// Lists `directory`, and adds its subdirectories to `pending`. Returns whether to go on.
    fn list(&mut self, directory: &Path, pending: &mut Vec<PathBuf>) -> io::Result<bool> {
        // A faulty directory does not hide the others.
        let Some(opened) = self.open(directory) else { return Ok(true) };
        // Otherwise the kernel would answer from a listing that it has, which has no attributes.
        let _ = fadvise(&opened, 0, None, Advice::DontNeed);
        let mut last: Option<CString> = None;
        let mut entries = RawDir::new(&opened, &mut self.buffer);
        while let Some(entry) = entries.next() {
            let Ok(entry) = entry else { return Ok(true) };
            let (name, kind) = (entry.file_name(), entry.file_type());
            let is_dot = matches!(name.to_bytes(), b"." | b"..");
            if !is_dot {
                self.names = self.names.saturating_add(1);
                if kind == FileType::Directory {
                    pending.push(directory.join(OsStr::from_bytes(name.to_bytes())));
                }
                // Any name will do.
                if last.is_none() {
                    last = Some(name.to_owned());
                }
            }
            if entries.is_buffer_empty() {
                if let Some(name) = last.take() {
                    let _ = use_name(&opened, &name);
                }
                if has_ended(&self.daemon) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn open(&self, directory: &Path) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = open(directory, flags, Mode::empty()).ok()?;
        (fstat(&opened).ok()?.st_dev == self.device).then_some(opened)
    }
}

fn use_name(directory: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|_| ())
}

/// Whether the daemon has ended or wants this to end.
fn has_ended(daemon: &UnixStream) -> bool {
    let mut watched = [PollFd::new(daemon, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut watched, Some(&at_once)), Ok(1..))
}
