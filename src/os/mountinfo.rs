//! The mount table in /proc/self/mountinfo (proc_pid_mountinfo(5)).
//!
//! It is used instead of querying the path itself, because on a stale FUSE mount stat(2) fails and
//! on a hung one it hangs. Invariant: of several mounts at one mount point, the last is the visible
//! one.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::{Error, Result};
use crate::os::kernel_file;

/// The type of archfs mounts: FUSE, subtype archfs.
pub(crate) const TYPE: &str = "fuse.archfs";

const PATH: &str = "/proc/self/mountinfo";

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// Unique among the mounts that exist now.
    pub(crate) id: u64,
    /// Major and minor number of the file system's device, such as `0:53`. Each FUSE mount has its
    /// own.
    pub(crate) device: String,
    /// The part of the file system that is mounted, as a path from its root.
    pub(crate) root: OsString,
    pub(crate) mount_point: PathBuf,
    pub(crate) kind: String,
    pub(crate) source: OsString,
    /// Options of the file system, such as `rw,user_id=0,group_id=0`.
    pub(crate) options: String,
}

impl MountEntry {
    pub(crate) fn is_archfs(&self) -> bool {
        self.kind == TYPE
    }

    /// The number of the device as stat(2) returns it.
    pub(crate) fn device_number(&self) -> Option<u64> {
        let (major, minor) = self.device.split_once(':')?;
        Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    }

    pub(crate) fn is_fuse(&self) -> bool {
        matches!(self.kind.as_str(), "fuse" | "fuseblk") || self.kind.starts_with("fuse.")
    }

    /// The user who mounted it, if it is a FUSE mount.
    pub(crate) fn owner(&self) -> Option<u32> {
        let user = self.options.split(',').find_map(|option| option.strip_prefix("user_id="));
        user?.parse().ok()
    }

    /// Whether this user mounted it with archfs.
    pub(crate) fn is_own(&self) -> bool {
        self.is_archfs() && self.owner() == Some(geteuid().as_raw())
    }

    /// Whether this user may unmount it with archfs.
    pub(crate) fn may_unmount(&self) -> bool {
        self.is_archfs() && (geteuid().is_root() || self.is_own())
    }

    /// A description for messages.
    pub(crate) fn describe(&self) -> String {
        format!("{} ({})", self.source.to_string_lossy(), self.kind)
    }
}

/// A mount, distinct from all others that exist now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountId {
    pub(crate) id: u64,
    /// Major and minor number of the file system's device, `0:53`.
    pub(crate) device: String,
}

impl MountId {
    pub(crate) fn of(entry: &MountEntry) -> Self {
        Self { id: entry.id, device: entry.device.clone() }
    }
}

/// The visible mount at `mount_point`, an absolute path without symbolic links.
pub(crate) fn topmost(mount_point: &Path) -> Result<Option<MountEntry>> {
    find(|entry| entry.mount_point == mount_point)
}

/// The last mount that `is_meant` accepts. Some callers unmount or exit if there is none, so an
/// absence counts only if a second read of the whole table confirms it.
pub(crate) fn find(is_meant: impl Fn(&MountEntry) -> bool) -> Result<Option<MountEntry>> {
    find_in(&mut read_once, is_meant)
}

/// The id of the mount that `file` was opened on. The kernel knows it without asking the file
/// system.
pub(crate) fn id_of(file: BorrowedFd<'_>) -> std::io::Result<u64> {
    let text = kernel_file::read_text(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| ErrorKind::InvalidData.into())
}

/// A file on which poll(2) reports an exceptional condition after each change of the mounts.
pub(crate) fn changes() -> Result<File> {
    File::open(PATH).map_err(|error| Error::io(format!("cannot open {PATH}"), error))
}

/// All mounts, oldest first.
pub(crate) fn all() -> Result<Vec<MountEntry>> {
    whole(&mut read_once)
}

/// One read of the table.
struct Snapshot {
    text: Vec<u8>,
    /// Whether the table changed between the open and the end of the read. Then lines may be
    /// missing: one read(2) returns one page at most, and before Linux 5.8 the next read continues
    /// at a line number, which is wrong after an earlier mount was removed.
    has_changed: bool,
}

/// The maximum number of reads of a table that keeps changing.
const READS_MAX: usize = 16;

/// Buffer size in bytes: enough for the tables of most nodes. The kernel fills at most a page at a
/// time.
const BUFFER: usize = 64 << 10;

fn read_once() -> Result<Snapshot> {
    let failed = |error| Error::io(format!("cannot read {PATH}"), error);
    let mut file = changes()?;
    let mut text = Vec::new();
    loop {
        let start = text.len();
        text.resize(start + BUFFER, 0);
        match file.read(&mut text[start..]) {
            Ok(0) => {
                text.truncate(start);
                break;
            }
            Ok(count) => text.truncate(start + count),
            Err(error) if error.kind() == ErrorKind::Interrupted => text.truncate(start),
            Err(error) => return Err(failed(error)),
        }
    }
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let changed = poll(&mut [PollFd::new(&file, PollFlags::PRI)], Some(&now));
    Ok(Snapshot { text, has_changed: changed.is_ok_and(|count| count > 0) })
}

/// The table as of one moment, unless it keeps changing.
fn whole(read: &mut dyn FnMut() -> Result<Snapshot>) -> Result<Vec<MountEntry>> {
    let mut snapshot = read()?;
    for _ in 1..READS_MAX {
        if !snapshot.has_changed {
            break;
        }
        snapshot = read()?;
    }
    Ok(entries(&snapshot.text).collect())
}

fn find_in(
    read: &mut dyn FnMut() -> Result<Snapshot>,
    is_meant: impl Fn(&MountEntry) -> bool,
) -> Result<Option<MountEntry>> {
    match whole(read)?.into_iter().rfind(&is_meant) {
        Some(found) => Ok(Some(found)),
        None => Ok(whole(read)?.into_iter().rfind(&is_meant)),
    }
}

/// The lines of `text`, a table of mounts.
pub(crate) fn entries(text: &[u8]) -> impl Iterator<Item = MountEntry> {
    text.split(|&byte| byte == b'\n').filter_map(entry)
}

fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let id = text(fields.next()?).parse().ok()?;
    let _parent = fields.next()?;
    let device = text(fields.next()?);
    let root = unescape(fields.next()?);
    let mount_point = PathBuf::from(unescape(fields.next()?));
    // Optional fields end with a dash; the type, source and options of the file system follow.
    fields.find(|field| *field == b"-")?;
    let kind = text(fields.next()?);
    let source = unescape(fields.next()?);
    let options = text(fields.next()?);
    Some(MountEntry { id, device, root, mount_point, kind, source, options })
}

/// Escapes newlines and backslashes in `bytes` as the kernel does: `\012` and `\134`.
pub(crate) fn escape(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().fold(Vec::with_capacity(bytes.len()), |mut escaped, &byte| {
        match byte {
            b'\n' | b'\\' => escaped.extend(format!("\\{byte:03o}").into_bytes()),
            byte => escaped.push(byte),
        }
        escaped
    })
}

/// Decodes `\040` for a space, and the escapes for tab, newline and backslash.
pub(crate) fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

type Answer = rustix::io::Result<()>;

thread_local! {
    /// Probes by this thread that have no answer yet.
    static PENDING: RefCell<Vec<(MountId, Receiver<Answer>)>> = const { RefCell::new(Vec::new()) };
}

/// Probes a mount, for a limited time.
///
/// The kernel may answer stat(2) from its cache, even for a stale mount, but it passes statfs(2) on
/// to the daemon. A daemon that is stopped or hangs does not answer, and the call returns only with
/// an answer or when the process ends. So a thread of its own makes the call, and no other thread
/// waits for it. If no daemon has read the request, the kernel drops it when this process exits; a
/// stopped daemon reads none.
///
/// Invariant: a probe returns within its limit, and repeated probes of a mount share one thread.
impl MountEntry {
    /// The answer of the mount; `None` if there is none within `limit`.
    pub(crate) fn probe(&self, limit: Duration) -> Option<Answer> {
        let mount = MountId::of(self);
        let earlier = PENDING.with_borrow_mut(|pending| {
            let index = pending.iter().position(|(earlier, _)| *earlier == mount)?;
            Some(pending.swap_remove(index).1)
        });
        let answer = earlier.or_else(|| start_probe(&self.mount_point))?;
        match answer.recv_timeout(limit) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => {
                PENDING.with_borrow_mut(|pending| pending.push((mount, answer)));
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Whether the mount is stale. ECONNABORTED counts, which the kernel returns while a daemon
    /// exits.
    pub(crate) fn is_stale(&self, limit: Duration) -> bool {
        matches!(self.probe(limit), Some(Err(Errno::NOTCONN | Errno::CONNABORTED)))
    }
}

/// Starts a probe in a new thread; `None` if no thread can be started.
fn start_probe(mount_point: &Path) -> Option<Receiver<Answer>> {
    let (sender, answer) = channel();
    let mount_point = mount_point.to_owned();
    let probe = move || {
        // The caller may have given up.
        let _ = sender.send(statfs(&mount_point).map(drop));
    };
    thread::Builder::new().spawn(probe).ok().map(|_| answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 25 0:53 / /tmp/a\\040b\\134c rw,nosuid,nodev shared:7 master:2 - fuse.archfs /d/x\\054y.sqfs ro,user_id=1000,group_id=5
91 25 0:54 /a\\040b /tmp/a\\040b\\134c rw - tmpfs tmpfs rw
";

    #[test]
    fn decodes_mount_points_sources_and_owners() {
        let all: Vec<_> = entries(TEXT).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[1].mount_point, Path::new("/tmp/a b\\c"));
        assert_eq!(
            (all[1].root.as_os_str(), all[2].root.as_os_str()),
            ("/".as_ref(), "/a b".as_ref())
        );
        assert_eq!(all[1].source, "/d/x,y.sqfs");
        assert_eq!((all[1].id, all[1].device.as_str()), (90, "0:53"));
        assert!(all[1].is_archfs());
        assert_eq!(all[1].owner(), Some(1000));
        assert_eq!(all[0].owner(), None);
    }

    #[test]
    fn leaves_a_backslash_that_starts_no_escape() {
        assert_eq!(unescape(b"a\\9bc\\"), "a\\9bc\\");
        assert_eq!(unescape(b"\\012"), "\n");
    }

    /// A reader that returns each of `texts` once, and then always the last one.
    fn reads(texts: &[(&'static [u8], bool)]) -> impl FnMut() -> Result<Snapshot> {
        let mut texts: Vec<_> = texts.iter().rev().copied().collect();
        move || {
            let (text, has_changed) = match &texts[..] {
                [last] => *last,
                _ => texts.pop().unwrap(),
            };
            Ok(Snapshot { text: text.to_vec(), has_changed })
        }
    }

    const INCOMPLETE: &[u8] = b"25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n";

    #[test]
    fn an_incomplete_read_does_not_prove_absence() {
        let is_meant = |entry: &MountEntry| entry.id == 90;
        let found = |texts| find_in(&mut reads(texts), is_meant).unwrap().is_some();
        assert!(found(&[(INCOMPLETE, false), (TEXT, false)]));
        assert!(found(&[(INCOMPLETE, true), (INCOMPLETE, true), (TEXT, false)]));
        assert!(!found(&[(TEXT, true), (INCOMPLETE, false)]), "an end of the mount is seen");
        assert!(!found(&[(INCOMPLETE, true)]), "a table that always changes costs no endless loop");
    }

    #[test]
    fn a_table_that_changed_during_the_read_is_read_again() {
        let ids = |texts: &[_]| -> Vec<_> {
            whole(&mut reads(texts)).unwrap().iter().map(|entry| entry.id).collect()
        };
        assert_eq!(ids(&[(INCOMPLETE, true), (TEXT, false)]), [25, 90, 91]);
        assert_eq!(ids(&[(INCOMPLETE, false), (TEXT, false)]), [25]);
    }

    #[test]
    fn finds_the_mounts_of_this_machine() {
        assert_eq!(topmost(Path::new("/proc")).unwrap().unwrap().kind, "proc");
        assert_eq!(topmost(Path::new("/no such place")).unwrap(), None);
    }
}
