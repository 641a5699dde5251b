//! A record file: its name, and its content, which describes a mount.
//!
//! Each mount point has a record file, `KEY.mount`, and the socket of its daemon, `KEY.socket`. The
//! files of a private mount, and of one that is unmounted but still served, are named
//! `KEY-PROCESS`.
//!
//! The text has one key and value per line. It is updated in place, because the file is also the
//! lock of the mount point. The last line is a checksum, so a reader that sees half an update can
//! tell and retry. Values that change have a fixed width, so an update needs no space on a full
//! file system.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::os::kernel_file;
use crate::os::mountinfo::{self, MountId};
use crate::os::process::ProcessId;
use crate::os::record_directory::{SOCKET_SUFFIX, node};

pub(super) const RECORD_SUFFIX: &str = ".mount";

/// The maximum size of a record in bytes, enough for some 100,000 archives.
const RECORD_SIZE_MAX: u64 = 32 << 20;

/// The first line. It changes with the format, so versions of archfs with different formats do not
/// read each other's records.
const VERSION: &str = "archfs 2";

/// The width of the values that change, in characters.
const WIDTH: usize = 48;

/// The description of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The daemon or, before that runs, the process that starts it. The lock shows whether it is
    /// alive, not this.
    pub(crate) process: ProcessId,
    /// The mount; `None` until the daemon has mounted.
    pub(crate) mount: Option<MountId>,
    /// Whether the daemon creates, or has created, the directory at the mount point. Written just
    /// before it does.
    pub(crate) creates_directory: bool,
    /// Whether the daemon is unmounting, which may take the kernel seconds.
    pub(crate) is_ending: bool,
    /// The node on which the daemon runs; nodes may share /tmp.
    pub(crate) node: String,
    /// The job whose cache budget the daemon shares; `None` if it has its own.
    pub(crate) job: Option<String>,
    /// Equal for mounts that show the same; see `identity`.
    pub(crate) identity: String,
    pub(crate) archives: Vec<PathBuf>,
    pub(crate) mount_point: PathBuf,
}

impl Record {
    /// Whether the daemon runs, or ran, on this node.
    pub(crate) fn is_of_this_node(&self) -> bool {
        self.node == node()
    }

    /// The record of a mount at `mount_point` for tests.
    #[cfg(test)]
    pub(super) fn for_tests(mount_point: &Path) -> Self {
        Self {
            process: "1:1".parse().unwrap(),
            mount: None,
            creates_directory: false,
            is_ending: false,
            node: node(),
            job: None,
            identity: "x".to_owned(),
            archives: vec![],
            mount_point: mount_point.to_owned(),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mount = match &self.mount {
            Some(MountId { id, device }) => format!("{id} {device}"),
            None => "-".to_owned(),
        };
        let process = self.process.to_string();
        let [creates, ending] =
            [self.creates_directory, self.is_ending].map(|is| if is { "yes" } else { "no" });
        let mut text = format!(
            "{VERSION}\nprocess {process:WIDTH$}\nmount {mount:WIDTH$}\ncreates {creates:3}\nending {ending:3}\n\
             node {}\njob {}\nidentity {}\n",
            self.node,
            self.job.as_deref().unwrap_or("-"),
            self.identity
        )
        .into_bytes();
        let archives = self.archives.iter().map(|path| ("archive ", path));
        for (key, path) in archives.chain([("mount-point ", &self.mount_point)]) {
            text.extend(key.as_bytes());
            text.extend(mountinfo::escape(path.as_os_str().as_bytes()));
            text.push(b'\n');
        }
        let sum = xxh3_64(&text);
        text.extend(format!("end {sum:016x}\n").as_bytes());
        text
    }

    /// The record in `text`; `None` if the text is incomplete or of another version.
    pub(super) fn decode(text: &[u8]) -> Option<Self> {
        let end = text.windows(5).rposition(|window| window == b"\nend ")? + 1;
        let (body, sum) = text.split_at(end);
        let sum = std::str::from_utf8(sum).ok()?.strip_prefix("end ")?;
        if u64::from_str_radix(sum.trim_end(), 16).ok()? != xxh3_64(body)
            || !body.starts_with(format!("{VERSION}\n").as_bytes())
        {
            return None;
        }
        let values = |key: &'static str| {
            body.split(|&byte| byte == b'\n')
                .filter_map(move |line| line.strip_prefix(key.as_bytes())?.strip_prefix(b" "))
        };
        let key = |key| Some(std::str::from_utf8(values(key).next()?).ok()?.trim_end());
        let path = |escaped: &[u8]| PathBuf::from(mountinfo::unescape(escaped));
        let mount = match key("mount")?.split_once(' ') {
            Some((id, device)) => Some(MountId { id: id.parse().ok()?, device: device.to_owned() }),
            None => None,
        };
        Some(Self {
            process: key("process")?.parse().ok()?,
            mount,
            creates_directory: key("creates")? == "yes",
            is_ending: key("ending")? == "yes",
            node: key("node")?.to_owned(),
            job: key("job").filter(|job| *job != "-").map(str::to_owned),
            identity: key("identity")?.to_owned(),
            archives: values("archive").map(path).collect(),
            mount_point: path(values("mount-point").next()?),
        })
    }
}

/// The kernel's id of the current boot of this node.
pub(super) fn boot() -> String {
    let boot = kernel_file::read_text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

/// The key of a mount point: a digest of its path, the mount namespace and the boot of the node.
/// The same path is another directory in a container, and nodes may share /tmp.
fn key(mount_point: &Path) -> String {
    let mut digest = Xxh3::new();
    let namespace = fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
    for part in [mount_point.as_os_str(), namespace.as_os_str(), boot().as_ref()] {
        digest.update(part.as_encoded_bytes());
        digest.update(b"\0");
    }
    format!("{:032x}", digest.digest128())
}

pub(super) fn record_name(mount_point: &Path) -> String {
    key(mount_point) + RECORD_SUFFIX
}

pub(super) fn private_record_name(record: &Record) -> String {
    format!("{}{}{RECORD_SUFFIX}", private_prefix(&record.mount_point), record.process)
}

/// Whether the record file `record_name` is not the lock of a mount point.
pub(super) fn is_private(record_name: &str) -> bool {
    record_name.contains('-')
}

/// The prefix of the names of the record files of private mounts at `mount_point`.
pub(super) fn private_prefix(mount_point: &Path) -> String {
    key(mount_point) + "-"
}

pub(super) fn socket_name(record_name: &str) -> String {
    record_name.strip_suffix(RECORD_SUFFIX).unwrap_or(record_name).to_owned() + SOCKET_SUFFIX
}

pub(super) fn record_name_of_socket(socket_name: &str) -> String {
    socket_name.strip_suffix(SOCKET_SUFFIX).unwrap_or(socket_name).to_owned() + RECORD_SUFFIX
}

/// The record in `file`; `None` if it is being written, or its writer was killed.
pub(super) fn read_record(file: &File) -> Option<Record> {
    let len = file.metadata().ok()?.len();
    let mut text = vec![0; usize::try_from(len.min(RECORD_SIZE_MAX)).ok()?];
    file.read_exact_at(&mut text, 0).ok()?;
    Record::decode(&text)
}

pub(super) fn is_named(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(opened), Ok(named)) => (opened.dev(), opened.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(mount_point: &str, archives: Vec<PathBuf>) -> Record {
        Record {
            process: "12:34".parse().unwrap(),
            mount: None,
            creates_directory: true,
            is_ending: false,
            node: node(),
            job: Some("group-1".to_owned()),
            identity: "ab-cd".to_owned(),
            archives,
            mount_point: mount_point.into(),
        }
    }

    #[test]
    fn keeps_any_path_and_updates_in_place() {
        for path in ["/a", "/a b\nmount-point c", "/x\\012\nprocess 1:1", "/\n", "/\nend 12"] {
            for archives in [vec![], vec![PathBuf::from(path), "/b".into()]] {
                let before = record(path, archives);
                let text = before.encode();
                assert_eq!(Record::decode(&text), Some(before.clone()));
                let mount = Some(MountId { id: u64::MAX, device: "0:53".into() });
                let process = format!("{}:{}", i32::MAX, u64::MAX).parse().unwrap();
                let after =
                    Record { mount, process, creates_directory: false, is_ending: true, ..before };
                assert_eq!(after.encode().len(), text.len());
                assert_eq!(Record::decode(&after.encode()), Some(after));
            }
        }
    }

    #[test]
    fn rejects_half_an_update() {
        let before = record("/a", vec!["/b".into()]).encode();
        let after = Record { creates_directory: false, ..record("/a", vec!["/b".into()]) }.encode();
        let first = before.iter().zip(&after).position(|(before, after)| before != after).unwrap();
        for cut in first + 1..before.len() - 16 {
            assert_eq!(Record::decode(&[&after[..cut], &before[cut..]].concat()), None, "{cut}");
        }
        for cut in 0..before.len() - 1 {
            assert_eq!(Record::decode(&before[..cut]), None, "{cut}");
        }
        assert_eq!(Record::decode(b"daemon x\nplace /a"), None);
    }
}
