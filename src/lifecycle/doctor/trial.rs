//! Really mounting a small archive, in each way there is.
//!
//! Owns the archive, the choice of its place, and the processes that try. Each way is what a person
//! would type, as a process of its own, so that what is tried is what a job will meet, and one that
//! hangs or moves into a namespace takes nothing with it.
//! Invariants: each attempt ends in time; what it mounted is gone when it returns, and with this
//! process at the latest.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};

use super::places::{Place, State};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::system::process::ProcessId;

/// How long one process may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The file in the archive, and what is in it.
const NAME: &str = "hello";
const TEXT: &[u8] = b"archfs can read this\n";

/// A block of a tar, bytes.
const BLOCK: usize = 512;

/// How this program has to be called for each step.
#[derive(Clone, Copy)]
pub struct Steps {
    /// Mounts an archive at a place until the process of that number ends.
    pub mount: fn(&Path, &Path, i32) -> Vec<OsString>,
    /// Checks the mount at a mount point, as `check_mount` does.
    pub check: fn(&Path) -> Vec<OsString>,
    /// Unmounts a place.
    pub unmount: fn(&Path) -> Vec<OsString>,
    /// Runs this program with the last arguments while the archive is mounted.
    pub run: fn(&Path, &Path, Vec<OsString>) -> Vec<OsString>,
    /// The same where only the command sees the mount.
    pub run_private: fn(&Path, &Path, Vec<OsString>) -> Vec<OsString>,
    /// Enters a namespace, as `check_namespace` does.
    pub namespace: fn() -> Vec<OsString>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// `archfs mount`.
    pub mount: Tried,
    /// `archfs run`.
    pub run: Tried,
    /// `archfs run --private`.
    pub run_private: Tried,
    /// A namespace alone.
    pub namespace: Tried,
}

/// What came of one way.
pub type Tried = std::result::Result<(), Failure>;

/// Why a way does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was said.
    pub said: String,
    /// What was said to do about it.
    pub hint: Option<String>,
    /// Whether the process that tries could not even be started, so that nothing is known of the
    /// way.
    pub is_unknown: bool,
}

impl Failure {
    fn new(said: String) -> Self {
        Self { said, hint: None, is_unknown: false }
    }
}

impl Trial {
    /// Tries all ways in the first of `places` where a folder can be made.
    pub fn hold(places: &[Place], steps: &Steps) -> Self {
        let namespace = attempt(&(steps.namespace)());
        let scene = match Scene::set_in_one(places) {
            Ok(scene) => scene,
            Err(failure) => {
                let [mount, run, run_private] = [(); 3].map(|()| Err(failure.clone()));
                return Self { mount, run, run_private, namespace };
            }
        };
        let (archive, place) = (&scene.archive, &scene.place);
        let check = || [vec![OsString::from("/proc/self/exe")], (steps.check)(place)].concat();
        Self {
            mount: scene.try_to_mount(steps),
            run: attempt(&(steps.run)(archive, place, check())),
            run_private: attempt(&(steps.run_private)(archive, place, check())),
            namespace,
        }
    }

    /// Whether each process that tries was started, so that what failed tells of the node.
    pub fn is_known(&self) -> bool {
        let all = [&self.mount, &self.run, &self.run_private, &self.namespace];
        !all.into_iter().any(|tried| tried.as_ref().is_err_and(|failure| failure.is_unknown))
    }
}

/// An archive and a place for its mount. Neither has a name on any disk, so nothing is left of them
/// however this process ends; the folder at the place is made and removed by who mounts there.
struct Scene {
    archive: PathBuf,
    place: PathBuf,
    _memory: OwnedFd,
}

impl Scene {
    /// In the first place where a folder can be made.
    fn set_in_one(places: &[Place]) -> std::result::Result<Self, Failure> {
        let mut first = None;
        for place in places.iter().filter(|place| matches!(place.state, State::Writable(_))) {
            match Self::set(&place.path) {
                Ok(scene) => return Ok(scene),
                Err(error) => first = first.or(Some(Failure::new(error.to_string()))),
            }
        }
        Err(first.unwrap_or_else(|| Failure::new("there is no folder to mount in".to_owned())))
    }

    fn set(folder: &Path) -> Result<Self> {
        let failed =
            |error| Error::io(format!("{}: can not try to mount", folder.display()), error);
        // Gone again at once: this is for a name that nobody has.
        let made = tempfile::Builder::new().prefix("archfs-doctor-").tempdir_in(folder);
        let place = made.map_err(failed)?.path().to_owned();
        let memory =
            memfd_create("trial.tar", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        // For other processes of this user as well, as long as this one lives.
        let own = rustix::process::getpid().as_raw_nonzero();
        let archive = PathBuf::from(format!("/proc/{own}/fd/{}", memory.as_raw_fd()));
        fs::write(&archive, tar()).map_err(failed)?;
        Ok(Self { archive, place, _memory: memory })
    }

    fn try_to_mount(&self, steps: &Steps) -> Tried {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        attempt(&(steps.mount)(&self.archive, &self.place, own))?;
        let read = attempt(&(steps.check)(&self.place));
        read.and(attempt(&(steps.unmount)(&self.place)))
    }
}

/// Runs this program with `arguments`. An error is the first line of what it said.
fn attempt(arguments: &[OsString]) -> Tried {
    let failed = |error: std::io::Error| Failure {
        is_unknown: true,
        ..Failure::new(format!("can not start archfs: {error}"))
    };
    // A file and no pipe: whoever holds it open lets nobody wait.
    let said = memfd_create("said", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    let mut said = File::from(said);
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(said.try_clone().map_err(failed)?);
    // A person's options would make it another trial.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_option(name)) {
        command.env_remove(name);
    }
    let mut process = command.spawn().map_err(failed)?;
    let watched = i32::try_from(process.id()).ok().and_then(|pid| ProcessId::of(pid).ok());
    // One that has ended already is none any more.
    let has_ended = watched.is_none_or(|it| it.wait_for_end(Some(PATIENCE)).unwrap_or(true));
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
    let first = |mark: &str| text.lines().find_map(|line| line.strip_prefix(mark));
    let said = match (has_ended, first("archfs: ")) {
        (false, _) => format!("nothing came of it in {} seconds", PATIENCE.as_secs()),
        (true, Some(line)) => line.to_owned(),
        (true, None) => format!("archfs ended with {status}"),
    };
    // Whoever reads this has asked the doctor.
    let hint = first("hint: ").and_then(|hint| hint.split("archfs doctor tells").next());
    let hint = hint.map(|hint| hint.trim_end_matches("; ").to_owned());
    Err(Failure { hint: hint.filter(|hint| !hint.is_empty()), ..Failure::new(said) })
}

fn is_option(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"ARCHFS_")
}

/// Checks that the mount at `mount_point` lists and reads as the archive of the trial.
///
/// Both are tried: on some kernels files can be read while no directory can be listed.
///
/// # Errors
/// `Io`; `Corrupt` if the names or the bytes are not those of the archive.
pub fn check_mount(mount_point: &Path) -> Result<()> {
    let failed = |path: &Path, what: &str, error| {
        Error::io(format!("{}: mounted, but cannot be {what}", path.display()), error)
    };
    let differs = |path: &Path, what: &str| {
        Err(Error::new(Kind::Corrupt, format!("{}: mounted, but {what} differs", path.display())))
    };
    let entries = fs::read_dir(mount_point)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    let names: Vec<OsString> = entries.map_err(|error| failed(mount_point, "listed", error))?;
    if names != [NAME] {
        return differs(mount_point, "its listing");
    }
    let file = mount_point.join(NAME);
    let found = fs::read(&file).map_err(|error| failed(&file, "read", error))?;
    if found != TEXT {
        return differs(&file, "its content");
    }
    Ok(())
}

/// A tar of that file (POSIX.1-2017, pax, ustar Interchange Format).
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
        // The sum is counted with spaces in its place.
        (148, b"        "),
        (156, b"0"),
        (257, b"ustar\x0000"),
    ];
    for (at, bytes) in fields {
        header[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend(TEXT);
    // Up to the next block, and two empty ones at the end.
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
    fn the_archive_is_one_with_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let scene = Scene::set(folder.path()).unwrap();
        let options = OpenOptions::default();
        let archives = std::slice::from_ref(&scene.archive);
        let tree = formats::open(archives, &options, &Progress::default()).unwrap();
        let attr = vfs::resolve(tree.as_ref(), NAME.as_bytes()).unwrap();
        assert_eq!(attr.size, TEXT.len() as u64);
    }

    #[test]
    fn a_place_that_can_not_be_used_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let place = |path: &Path| Place { path: path.to_owned(), state: State::Writable(0) };
        let gone = place(&folder.path().join("gone"));
        let scene = Scene::set_in_one(&[gone.clone(), place(folder.path())]).unwrap();
        assert!(scene.place.starts_with(folder.path()) && !scene.place.exists());
        let failure = Scene::set_in_one(&[gone]).err().unwrap();
        assert!(failure.said.contains("gone: can not try to mount"), "{failure:?}");
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
