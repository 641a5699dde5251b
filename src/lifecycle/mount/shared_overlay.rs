//! A writable layer over a mount that all processes see: fuse-overlayfs answers its connection.
//!
//! Without root, an overlay of the kernel is visible only in a mount namespace of its own. So the
//! connection of the mount point goes to fuse-overlayfs. That program runs in a mount namespace
//! with a second mount of the archives, which the daemon serves.
//!
//! In that namespace a tmpfs has the directories `lower`, for the archives, and `layer`.
//!
//! The namespace must not keep the mounts of the node alive. It is made before the mount point gets
//! its connection, and other mounts of archfs are detached there. Where the kernel does not allow
//! that, in a user namespace, they are detached when others unmount them, if the node shares its
//! mounts with new namespaces, as systemd does.
//!
//! Invariants: when the mount has ended, fuse-overlayfs exits, its namespace ends, and with it the
//! connection that the daemon serves. If the daemon is killed, the kernel kills fuse-overlayfs.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

use super::attach::{directory_at, mount_here};
use super::namespace;
use super::overlay::{
    HeldLayer, LayerWriter, NAMESPACE_HINT, UPPER, Upper, WORK, in_memory, reopened,
};
use crate::error::{Error, Kind, Result, reason};
use crate::lifecycle::plan::{Layer, Restrictions};
use crate::os::mountinfo::{self, MountEntry};
use crate::os::process::own_program;
use crate::os::{path_walk, signal, unix_socket};

/// The program that answers the connection of the mount point.
const PROGRAM: &str = "fuse-overlayfs";

/// The first word of the command line by which archfs executes itself to become that program.
pub const SERVE_OVERLAY: &str = "serve-overlay";

/// Directories of the tmpfs.
const LOWER: &str = "lower";
const LAYER: &str = "layer";

/// Directories that are usually empty. The tmpfs is mounted at the first that is.
const EMPTY_DIRECTORIES: [&str; 4] = ["/mnt", "/media", "/srv", "/opt"];

/// Between an error and its hint, in the line that archfs prints before it is fuse-overlayfs.
const HINT: &str = "\u{1f}";

/// How long fuse-overlayfs may take until it answers. It opens the layer, and reads the root of
/// the archives.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How often this process checks whether fuse-overlayfs has exited.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// How long fuse-overlayfs may take to exit after the mount has ended, or after SIGKILL.
const EXIT_LIMIT: Duration = Duration::from_secs(5);

/// A process in a namespace that has the archives and the layer. It waits for the connection of the
/// mount point.
pub(crate) struct Prepared {
    socket: UnixStream,
    server: OverlayServer,
}

impl Prepared {
    /// Starts a process for `layer` over archives that will be mounted at `mount_point`, a
    /// directory. `identity` is that of the archives. Returns also their connection in the
    /// namespace, which the caller must serve.
    ///
    /// Fails with `CannotMount` if the node, the user or the layer does not allow it; `Busy` if
    /// another job uses the layer; `Io`.
    pub(crate) fn new(
        mount_point: &Path,
        layer: &Layer,
        identity: &str,
    ) -> Result<(Self, OwnedFd)> {
        let failed = |error: io::Error| Error::io(format!("cannot start {PROGRAM}"), error);
        let program = find()?;
        let held = HeldLayer::take(layer)?;
        held.check(identity, LayerWriter::FuseOverlayfs)?;
        let (socket, theirs) = UnixStream::pair().map_err(failed)?;
        socket.set_read_timeout(Some(START_LIMIT)).map_err(failed)?;
        let messages = memfd_create("archfs-messages", MemfdFlags::CLOEXEC);
        let messages = File::from(messages.map_err(|errno| failed(errno.into()))?);
        let [layer, lock] = held.pass_on().map_err(failed)?;
        let words = [SERVE_OVERLAY.into(), layer, lock, mount_point.into(), program.into()];
        let process = own_program(words)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(messages.try_clone().map_err(failed)?)
            .spawn();
        // No other program that this process starts inherits the lock.
        held.close_on_exec().map_err(failed)?;
        let process = process.map_err(failed)?;
        let mut server = OverlayServer { process, messages, _layer: held };
        match unix_socket::receive(&socket) {
            Ok(Some(connection)) => Ok((Self { socket, server }, connection)),
            // The process has printed an error and exits.
            Ok(None) => Err(server.failure()),
            Err(Errno::AGAIN) => {
                Err(Error::new(Kind::TimedOut, "--overlay: the layer does not answer"))
            }
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Lets the process answer `connection`, that of the mount point.
    pub(crate) fn serve(self, connection: OwnedFd) -> Result<OverlayServer> {
        let passed = unix_socket::send(&self.socket, connection.as_fd());
        passed.map_err(|errno| Error::io(format!("cannot start {PROGRAM}"), errno.into()))?;
        Ok(self.server)
    }
}

/// The process that answers the connection of a mount point. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct OverlayServer {
    process: Child,
    /// What it wrote to standard error.
    messages: File,
    /// Locked until it has exited.
    _layer: HeldLayer,
}

impl OverlayServer {
    /// Waits until files can be read at `mount_point`. Other threads of this process must serve the
    /// archives. Stops if `is_ending` returns whether this process was asked to end.
    ///
    /// Fails with `CannotMount` if the process exits instead; `TimedOut`; `Io`.
    pub(crate) fn wait_until_answers(
        &mut self,
        mount_point: &Path,
        is_ending: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let (sender, answer) = channel();
        let path = mount_point.to_owned();
        let no_answer = format!("{}: {PROGRAM} does not answer", mount_point.display());
        thread::Builder::new()
            .spawn(move || {
                let _ = sender.send(fs::symlink_metadata(path).map(drop));
            })
            .map_err(|error| Error::io(&no_answer, error))?;
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match answer.recv_timeout(CHECK_INTERVAL) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => {
                    let status = self.exit_status_within(EXIT_LIMIT);
                    let failed = Error::io(&no_answer, error);
                    return Err(status.map_or(failed, |status| self.failed_with(status)));
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {
                    if let Some(status) = self.exit_status_within(Duration::ZERO) {
                        return Err(self.failed_with(status));
                    }
                    if is_ending() {
                        // The session also ends because the process exits.
                        let failed = Error::new(Kind::Io, format!("{no_answer} before the end"));
                        let status = self.exit_status_within(EXIT_LIMIT / 5);
                        return Err(status.map_or(failed, |status| self.failed_with(status)));
                    }
                }
                Err(_) => return Err(Error::new(Kind::TimedOut, no_answer)),
            }
        }
    }

    /// Waits until the process has exited after its mount has ended. Fails if it has failed.
    pub(crate) fn finish(mut self) -> Result<()> {
        match self.exit_status_within(EXIT_LIMIT) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failed_with(status)),
            None => {
                log::warn!("{PROGRAM} does not exit; killing it");
                Ok(())
            }
        }
    }

    /// Why the process could not answer, or exited.
    pub(crate) fn failure(&mut self) -> Error {
        match self.exit_status_within(EXIT_LIMIT) {
            Some(status) => self.failed_with(status),
            None => Error::new(Kind::CannotMount, format!("{PROGRAM} does not answer")),
        }
    }

    /// The error for a process that exited with `status`, with the last line that it wrote.
    fn failed_with(&mut self, status: ExitStatus) -> Error {
        let mut text = Vec::new();
        let _ = self
            .messages
            .seek(SeekFrom::End(-4096))
            .or_else(|_| self.messages.seek(SeekFrom::Start(0)));
        let _ = self.messages.read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        // libfuse warns of a mount option that it does not know.
        let mut lines = text.lines().filter(|line| !line.contains("unknown argument ignored"));
        let last = lines.rfind(|line| !line.trim().is_empty());
        match last.and_then(|line| line.split_once(HINT)) {
            Some((why, "")) => Error::new(Kind::CannotMount, why),
            Some((why, hint)) => Error::new(Kind::CannotMount, why).with_hint(hint),
            None => {
                let why =
                    last.map(|line| line.trim_start_matches(PROGRAM).trim_start_matches(": "));
                let why = why.map_or_else(String::new, |why| format!("{why}; "));
                Error::new(Kind::CannotMount, format!("{PROGRAM}: {why}{status}"))
            }
        }
    }

    fn exit_status_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.process.try_wait() {
                Ok(None) if Instant::now() < deadline => thread::sleep(CHECK_INTERVAL),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }
}

impl Drop for OverlayServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        // A process that waits for a dead file server does not exit. It keeps the lock.
        let _ = self.exit_status_within(EXIT_LIMIT);
    }
}

/// One of `EMPTY_DIRECTORIES`, without symbolic links.
fn empty_directory() -> Option<PathBuf> {
    let is_empty =
        |path: &PathBuf| fs::read_dir(path).is_ok_and(|mut files| files.next().is_none());
    EMPTY_DIRECTORIES.iter().filter_map(|path| fs::canonicalize(path).ok()).find(is_empty)
}

/// The program in PATH, or in a directory of the system: PATH is often short in batch jobs. One
/// that other users can replace is not run.
fn find() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(["/usr/bin", "/usr/local/bin"].map(PathBuf::from))
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(PROGRAM))
        .filter(|program| program.is_file());
    let mut rejected = None;
    for program in found {
        match path_walk::first_untrusted(&program) {
            None => return Ok(fs::canonicalize(&program).unwrap_or(program)),
            Some(weak) => rejected = rejected.or(Some((program, weak))),
        }
    }
    let (context, hint) = match rejected {
        Some((program, weak)) => (
            format!(
                "--overlay: {}: not run, because other users may replace {}, or this user namespace \
                 does not map its owner",
                program.display(),
                weak.display()
            ),
            "`archfs run --overlay` does not need it",
        ),
        None => (
            format!("--overlay: {PROGRAM} not found on this node"),
            "`archfs run --overlay` does not need it; or install it, for example with conda, and add \
             it to PATH",
        ),
    };
    Err(Error::new(Kind::CannotMount, context).with_hint(hint))
}

/// Becomes fuse-overlayfs, in a namespace of its own. `Prepared::new` has started this process;
/// `layer` and `lock` are as `HeldLayer::pass_on` returns them. Returns only on failure, and prints
/// why.
pub fn serve_overlay(
    (layer, lock): (&Path, &OsStr),
    mount_point: &Path,
    program: &Path,
) -> io::Result<()> {
    let Err(error) = serve(layer, lock, mount_point, program) else { return Ok(()) };
    let hint = error.hint().unwrap_or_default();
    io::stderr().write_all(format!("{error}{HINT}{hint}\n").as_bytes())
}

fn serve(layer: &Path, lock: &OsStr, mount_point: &Path, program: &Path) -> Result<()> {
    let name = if layer.as_os_str().is_empty() { Path::new("tmp") } else { layer };
    let failed = |why: &dyn Display| {
        Error::new(Kind::CannotMount, format!("--overlay {}: {why}", name.display()))
    };
    let io_failed = |error: io::Error| failed(&reason(&error));
    let failed_with = |errno: Errno| failed(&reason(errno));
    let stdin = rustix::stdio::stdin().try_clone_to_owned().map_err(io_failed)?;
    let socket = UnixStream::from(stdin);
    namespace::enter().map_err(|error| error.with_hint(NAMESPACE_HINT))?;
    // Only now: a process in a new user namespace loses it. `receive` notices an earlier end.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let is_superfluous = |other: &MountEntry| {
        other.is_archfs()
            && ![layer, program].iter().any(|path| path.starts_with(&other.mount_point))
    };
    for other in mountinfo::all()?.into_iter().filter(is_superfluous) {
        let _ = unmount(&other.mount_point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
    // In this namespace, because a mount of another one cannot be bound, and before the tmpfs.
    let kept = match layer.as_os_str().is_empty() {
        true => None,
        false => Some(reopened(layer, lock).map_err(io_failed)?),
    };
    let directory = empty_directory().unwrap_or_else(|| mount_point.to_owned());
    let root = in_memory(&directory_at(&directory).map_err(io_failed)?, &directory)?;
    for name in [LOWER, LAYER] {
        root.create(name.as_ref()).map_err(io_failed)?;
    }
    if let Some(kept) = kept {
        mount_bind(kept.path(), directory.join(LAYER)).map_err(failed_with)?;
    }
    let layer = directory_at(&directory.join(LAYER)).map_err(io_failed)?;
    let upper = Upper::create(&layer).map_err(io_failed)?;
    let lower = directory.join(LOWER);
    let archives = mount_here(&lower, Path::new("archfs"), Restrictions::default())?;
    unix_socket::send(&socket, archives.as_fd()).map_err(failed_with)?;
    // Otherwise the connection would outlive the daemon.
    drop(archives);
    let Some(connection) = unix_socket::receive(&socket).map_err(failed_with)? else {
        // The mount point has no connection, and the daemon says why.
        return Ok(());
    };
    let lower = directory_at(&lower).map_err(io_failed)?;
    upper.show_like(&lower).map_err(io_failed)?;
    drop(upper);
    for descriptor in [layer.as_fd(), lower.as_fd(), connection.as_fd()] {
        fcntl_setfd(descriptor, FdFlags::empty()).map_err(failed_with)?;
    }
    let (lower_path, layer_path) = (lower.path(), layer.path());
    let (lower_path, layer_path) = (lower_path.display(), layer_path.display());
    // Without noacl it asks for access control lists, of which archives have none, and takes that
    // answer for an error. With writeback, writes would be lost when the daemon ends.
    let options = format!(
        "lowerdir={lower_path},upperdir={layer_path}/{UPPER},workdir={layer_path}/{WORK},noacl,\
         writeback=0"
    );
    // It ends with the mount. Batch systems send signals to all processes of a job.
    let _ = setsid();
    // The daemon ignores all others, and this process inherits that.
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGXFSZ] {
        signal::ignore(signal);
    }
    let connection = format!("/dev/fd/{}", connection.as_raw_fd());
    let mut command = Command::new(program);
    command.args(["-f", "-o", &options, &connection]).current_dir("/").stdin(Stdio::null());
    Err(failed(&format_args!("{}: {}", program.display(), reason(command.exec()))))
}
