//! Mounts a small archive in each way that archfs offers.
//!
//! Each attempt runs the command that a user would type, in a process of its own. So the trial
//! tests what a job will do, and an attempt that hangs or enters a namespace does not affect this
//! process.
//!
//! Invariants: each attempt ends within a time limit. Its mount is unmounted when the attempt
//! returns or, if that fails, when this process ends.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};

use super::resources::{MountParent, MountParentState, unused_name};
use crate::error::{Error, Kind, Result, reason};
use crate::log::{Label, parse_line};
use crate::os::process::{self, ProcessId};

/// How long one process may take.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The name and the content of the file in the archive.
const NAME: &str = "hello";
const TEXT: &[u8] = b"archfs can read this\n";

/// The size of a tar block in bytes.
const BLOCK: usize = 512;

pub(crate) struct Trial {
    pub(crate) mount: Tried,
    pub(crate) run: Tried,
    pub(crate) run_private: Tried,
    /// Only entering a namespace.
    pub(crate) namespace: Tried,
}

pub(crate) type Tried = std::result::Result<(), Failure>;

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The error that archfs printed, and its hint.
    pub(crate) said: String,
    pub(crate) hint: Option<String>,
    /// Whether the process could not be started, so that the result is unknown.
    pub(crate) is_unknown: bool,
}

impl Failure {
    fn new(said: String) -> Self {
        Self { said, hint: None, is_unknown: false }
    }
}

impl Trial {
    /// Makes all attempts in the first of `parents` in which a directory can be created.
    pub(crate) fn hold(parents: &[MountParent]) -> Self {
        let namespace = attempt(&words(&["doctor", "--step", "namespace"], &[]));
        let setup = match Setup::create_in_first(parents) {
            Ok(setup) => setup,
            Err(failure) => {
                let [mount, run, run_private] = [(); 3].map(|()| Err(failure.clone()));
                return Self { mount, run, run_private, namespace };
            }
        };
        Self {
            mount: setup.try_to_mount(),
            run: setup.try_to_run(&["run", "--quiet"]),
            run_private: setup.try_to_run(&["run", "--private", "--quiet"]),
            namespace,
        }
    }

    pub(crate) fn works(&self) -> bool {
        self.mount.is_ok() || self.run.is_ok() || self.run_private.is_ok()
    }

    /// Whether all processes could be started, so that a failure shows a problem of the node.
    pub(super) fn is_known(&self) -> bool {
        let all = [&self.mount, &self.run, &self.run_private, &self.namespace];
        !all.into_iter().any(|tried| tried.as_ref().is_err_and(|failure| failure.is_unknown))
    }
}

/// An archive in memory and the path of a mount point that does not exist. So nothing is left on
/// disk, however this process ends. The process that mounts creates the mount point and removes it.
struct Setup {
    archive: PathBuf,
    mount_point: PathBuf,
    _memory: OwnedFd,
}

impl Setup {
    /// Creates it in the first of `parents` in which a directory can be created.
    fn create_in_first(parents: &[MountParent]) -> std::result::Result<Self, Failure> {
        let mut first = None;
        for parent in
            parents.iter().filter(|parent| matches!(parent.state, MountParentState::Writable(_)))
        {
            match Self::create_in(&parent.path) {
                Ok(setup) => return Ok(setup),
                Err(error) => first = first.or(Some(Failure::new(error.to_string()))),
            }
        }
        Err(first.unwrap_or_else(|| Failure::new("no directory to mount in".to_owned())))
    }

    fn create_in(directory: &Path) -> Result<Self> {
        let failed = |error| {
            Error::io(format!("{}: cannot create a mount point", directory.display()), error)
        };
        let mount_point = unused_name(directory).map_err(failed)?;
        let memory =
            memfd_create("trial.tar", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        // Other processes of this user can open this path as long as this process runs.
        let own = rustix::process::getpid().as_raw_nonzero();
        let archive = PathBuf::from(format!("/proc/{own}/fd/{}", memory.as_raw_fd()));
        fs::write(&archive, tar()).map_err(failed)?;
        Ok(Self { archive, mount_point, _memory: memory })
    }

    fn try_to_mount(&self) -> Tried {
        let own = rustix::process::getpid().as_raw_nonzero().to_string();
        let (archive, mount_point) = (&self.archive, &self.mount_point);
        attempt(&words(&["mount", "--quiet", "--until-pid", &own], &[archive, mount_point]))?;
        let read = attempt(&self.check());
        read.and(attempt(&words(&["unmount", "--lazy"], &[mount_point])))
    }

    /// Mounts while it runs the command that checks the mount.
    fn try_to_run(&self, run: &[&str]) -> Tried {
        let paths: [&Path; 4] =
            [&self.archive, &self.mount_point, "--".as_ref(), process::OWN_PROGRAM.as_ref()];
        attempt(&[words(run, &paths), self.check()].concat())
    }

    /// Checks the mount, as `check_mount` does.
    fn check(&self) -> Vec<OsString> {
        words(&["doctor", "--step", "read", "--mount-point"], &[&self.mount_point])
    }
}

fn words(arguments: &[&str], paths: &[&Path]) -> Vec<OsString> {
    arguments.iter().map(OsString::from).chain(paths.iter().map(OsString::from)).collect()
}

/// Runs this program with `arguments`. The error is the first one that it prints.
fn attempt(arguments: &[OsString]) -> Tried {
    let failed = |error: std::io::Error| Failure {
        is_unknown: true,
        ..Failure::new(format!("cannot start archfs: {}", reason(&error)))
    };
    // A file instead of a pipe, because a process that keeps a pipe open would block the reader.
    let said = memfd_create("said", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    let mut said = File::from(said);
    let mut command = process::own_program(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(said.try_clone().map_err(failed)?);
    // Options of the user would change the trial.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_option(name)) {
        command.env_remove(name);
    }
    let mut process = command.spawn().map_err(failed)?;
    let watched = i32::try_from(process.id()).ok().and_then(|pid| ProcessId::of(pid).ok());
    // A process that has already ended has no identity.
    let has_ended =
        watched.is_none_or(|process| process.wait_for_end(Some(TIME_LIMIT)).unwrap_or(true));
    if !has_ended {
        let _ = process.kill();
    }
    let status = process.wait().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let mut text = Vec::new();
    let _ = said.rewind().and_then(|()| said.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text).into_owned();
    let first = |wanted: Label| {
        let mut lines = text.lines().filter_map(parse_line);
        lines.find_map(|(label, text)| (label == wanted).then_some(text))
    };
    let said = match (has_ended, first(Label::Error)) {
        (false, _) => format!("no result after {} s", TIME_LIMIT.as_secs()),
        (true, Some(line)) => line.to_owned(),
        (true, None) => format!("archfs failed ({status})"),
    };
    // The user is running the doctor, so remove the advice to run it.
    let hint = first(Label::Hint).and_then(|hint| hint.split("run `archfs doctor`").next());
    let hint = hint.map(|hint| hint.trim_end_matches("; ").to_owned());
    Err(Failure { hint: hint.filter(|hint| !hint.is_empty()), ..Failure::new(said) })
}

fn is_option(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"ARCHFS_")
}

/// Checks that the mount at `mount_point` lists and reads as the archive of the trial.
///
/// It tests both, because on some kernels files can be read but directories cannot be listed.
///
/// # Errors
/// `Io`; `Corrupt` if the names or the bytes are not those of the archive.
pub(crate) fn check_mount(mount_point: &Path) -> Result<()> {
    let failed = |path: &Path, action: &str, error| {
        Error::io(format!("{}: mounted, but cannot be {action}", path.display()), error)
    };
    let differs = |path: &Path, part: &str| {
        Err(Error::new(
            Kind::Corrupt,
            format!("{}: mounted, but the {part} differs", path.display()),
        ))
    };
    let entries = fs::read_dir(mount_point)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    let names: Vec<OsString> = entries.map_err(|error| failed(mount_point, "listed", error))?;
    if names != [NAME] {
        return differs(mount_point, "listing");
    }
    let file = mount_point.join(NAME);
    let found = fs::read(&file).map_err(|error| failed(&file, "read", error))?;
    if found != TEXT {
        return differs(&file, "content");
    }
    Ok(())
}

/// A tar archive of the file (POSIX.1-2017, pax, ustar Interchange Format).
fn tar() -> Vec<u8> {
    let mut header = [0_u8; BLOCK];
    let size = format!("{:011o}", TEXT.len());
    let fields: [(usize, &[u8]); 9] = [
        (0, NAME.as_bytes()),
        (100, b"0000644"),
        (108, b"0000000"),
        (116, b"0000000"),
        (124, size.as_bytes()),
        (136, b"00000000000"),
        // The checksum counts its own field as spaces.
        (148, b"        "),
        (156, b"0"),
        (257, b"ustar\x0000"),
    ];
    for (offset, bytes) in fields {
        header[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend(TEXT);
    // Pads the file to a block, and adds the two empty blocks at the end.
    archive.resize(4 * BLOCK, 0);
    archive
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::{self, OpenOptions};
    use crate::progress::Progress;
    use crate::vfs;

    #[test]
    fn the_archive_contains_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let setup = Setup::create_in(directory.path()).unwrap();
        let options = OpenOptions::default();
        let archives = std::slice::from_ref(&setup.archive);
        let tree = formats::open(archives, &options, &Progress::default()).unwrap();
        let attr = vfs::resolve(tree.as_ref(), NAME.as_bytes()).unwrap();
        assert_eq!(attr.size, TEXT.len() as u64);
    }

    #[test]
    fn skips_an_unusable_directory() {
        let directory = tempfile::tempdir().unwrap();
        let parent = |path: &Path| MountParent {
            path: path.to_owned(),
            state: MountParentState::Writable(0),
        };
        let missing = parent(&directory.path().join("gone"));
        let setup = Setup::create_in_first(&[missing.clone(), parent(directory.path())]).unwrap();
        assert!(setup.mount_point.starts_with(directory.path()) && !setup.mount_point.exists());
        let failure = Setup::create_in_first(&[missing]).err().unwrap();
        assert!(failure.said.contains("gone: cannot create a mount point"), "{failure:?}");
    }

    #[test]
    fn a_mount_passes_only_if_it_lists_and_reads_as_the_archive() {
        let work = tempfile::tempdir().unwrap();
        let directory = work.path();
        let file = directory.join(NAME);
        let kind = |path: &Path| check_mount(path).unwrap_err().kind();
        assert_eq!(kind(&directory.join("gone")), Kind::Io);
        assert_eq!(kind(directory), Kind::Corrupt);
        fs::write(&file, "other bytes").unwrap();
        assert_eq!(kind(directory), Kind::Corrupt);
        fs::write(&file, TEXT).unwrap();
        check_mount(directory).unwrap();
        fs::write(directory.join("second"), TEXT).unwrap();
        assert_eq!(kind(directory), Kind::Corrupt);
    }
}
