//! Mounts with the set-uid helper fusermount3 or fusermount, as an ordinary user does.
//!
//! The helper mounts, and sends the descriptor of the connection over the socket whose number is in
//! _FUSE_COMMFD (libfuse, lib/mount.c). Its message on standard error becomes the error. The helper
//! inherits only standard streams and that socket; its standard input is the lock of the mount
//! point, also when it unmounts.
//!
//! PATH comes from a job script, and may contain directories that other users can write to. archfs
//! uses only absolute directories of PATH, and of those only a helper that no user but root and
//! this one can have changed (`path_walk::first_untrusted`). In a user namespace that does not map
//! root, no helper of the system qualifies.
//!
//! A set-uid helper comes first, because PATH may contain a libfuse package whose helper has no
//! right to mount. It needs no environment and gets none. Any other helper has only the rights of
//! the user. It may be a container's replacement that finds its server through a variable, so it
//! gets the user's environment.
//!
//! The set-uid helper of the system is looked for first, without PATH. The directories of PATH may
//! be on a network file system, and if its server hangs, so would an unmount.
//!
//! If the daemon is killed, the helper outlives it. A helper that mounts cannot send the
//! descriptor, and unmounts again. One that unmounts continues. Until then it holds the lock, so no
//! other process can mount there, and lose its mount to that helper.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::error::{Error, Kind, Result, reason};
use crate::lifecycle::Restrictions;
use crate::lifecycle::mount::{Detach, busy, device};
use crate::os::mountinfo;
use crate::os::unix_socket;
use crate::os::{path_walk, trust};

/// The names of the helper, newest first.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Directories of the system. They are searched for a set-uid helper before PATH, and for any
/// helper after it, because PATH is often short in batch jobs.
const DIRECTORIES: [&str; 4] = ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin"];

/// The file in which a set-uid helper looks up the owner of a mount before it unmounts it. It
/// mounts without that file.
const TABLE: &str = "/etc/mtab";

/// How often to try to unmount if a signal ends the helper. Some batch systems find the processes
/// of a job by their parents, so they send SIGTERM to the helper as well, and may do so repeatedly.
const ATTEMPTS: usize = 10;

/// How long to try to start the helper for an unmount if the user has too many processes, or the
/// node too little memory. When a job ends, that passes.
const START_PATIENCE: Duration = Duration::from_secs(5);
const START_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Mounts at `mount_point` with the helper, which holds `lock` while it runs. Returns the daemon's
/// end of the connection.
pub(crate) fn mount(
    mount_point: &Path,
    source: &Path,
    restrictions: Restrictions,
    lock: OwnedFd,
) -> Result<OwnedFd> {
    device::check()?;
    let helper = Helper::find()?;
    helper.check_table(Path::new(TABLE))?;
    let failed = |error: Errno| {
        Error::io(format!("{}: cannot connect to fusermount", mount_point.display()), error.into())
    };
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
    // The helper must inherit this end of the socket.
    fcntl_setfd(&theirs, FdFlags::empty()).map_err(failed)?;
    let mut child = helper
        .command()
        .arg("-o")
        .arg(options(source, restrictions))
        .arg("--")
        .arg(mount_point)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(lock)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| helper.cannot_run(error))?;
    drop(theirs);
    let connection = unix_socket::receive(&ours);
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut said);
    }
    let _ = child.wait();
    match connection {
        Ok(Some(connection)) => Ok(connection),
        Ok(None) => Err(refused(mount_point, &said)),
        Err(error) => Err(failed(error)),
    }
}

/// Unmounts `mount_point` with the helper, which holds `lock` while it runs.
pub(crate) fn unmount(mount_point: &Path, how: Detach, lock: Option<BorrowedFd<'_>>) -> Result<()> {
    unmount_with(&Helper::find()?, mount_point, how, lock)
}

fn unmount_with(
    helper: &Helper,
    mount_point: &Path,
    how: Detach,
    lock: Option<BorrowedFd<'_>>,
) -> Result<()> {
    let before = mountinfo::topmost(mount_point)?;
    for _ in 0..ATTEMPTS {
        let mut command = helper.command();
        command.arg("-u").args((how == Detach::Lazily).then_some("-z")).arg("--").arg(mount_point);
        let lock = lock.map(|lock| lock.try_clone_to_owned()).transpose();
        let output = lock.and_then(|lock| {
            output_patiently(command.stdin(lock.map_or_else(Stdio::null, Stdio::from)))
        });
        let output = output.map_err(|error| helper.cannot_run(error))?;
        if output.status.success() {
            return Ok(());
        }
        if let Some(signal) = output.status.signal() {
            log::debug!("{}: signal {signal} killed fusermount", mount_point.display());
            if mountinfo::topmost(mount_point)? != before {
                return Ok(());
            }
            continue;
        }
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if message.contains("busy") {
            return Err(busy(mount_point));
        }
        return Err(Error::new(
            Kind::Io,
            format!("{}: cannot unmount: {message}", mount_point.display()),
        ));
    }
    let context = format!("{}: cannot unmount: signals kill fusermount", mount_point.display());
    Err(Error::new(Kind::Io, context))
}

/// Runs `command`. If the system lacks what it needs to start it, tries that for some time.
fn output_patiently(command: &mut Command) -> io::Result<Output> {
    let deadline = Instant::now() + START_PATIENCE;
    loop {
        match command.output() {
            Err(error) if is_shortage(&error) && Instant::now() < deadline => {
                log::debug!("fusermount: cannot be started yet: {error}");
                thread::sleep(START_RETRY_INTERVAL);
            }
            output => return output,
        }
    }
}

/// Whether too few processes or too little memory is left. More may be left in a moment.
fn is_shortage(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AGAIN | Errno::NOMEM))
}

/// The options for the helper. A backslash escapes a comma or backslash in a name.
fn options(source: &Path, restrictions: Restrictions) -> OsString {
    let mut bytes = if restrictions.allows_changes { b"rw".to_vec() } else { b"ro".to_vec() };
    bytes.extend(b",nosuid,nodev,subtype=archfs");
    if restrictions.no_exec {
        bytes.extend(b",noexec");
    }
    restrictions.options().for_each(|option| bytes.extend(option.bytes()));
    bytes.extend(b",fsname=");
    for &byte in source.as_os_str().as_bytes() {
        if matches!(byte, b',' | b'\\') {
            bytes.push(b'\\');
        }
        bytes.push(byte);
    }
    OsString::from_vec(bytes)
}

/// The helper of this node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Helper {
    pub(crate) path: PathBuf,
    pub(crate) is_set_uid: bool,
}

impl Helper {
    /// The first helper that is set-user-ID root or, if there is none, the first other one.
    pub(crate) fn find() -> Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self::find_in(&path, &DIRECTORIES.map(PathBuf::from))
    }

    fn find_in(path: &OsStr, system: &[PathBuf]) -> Result<Self> {
        let mut of_system = helpers_in(system);
        if let Some(path) = of_system
            .find(|helper| is_set_uid_root(helper) && path_walk::first_untrusted(helper).is_none())
        {
            return Ok(Self { path, is_set_uid: true });
        }
        let all: Vec<PathBuf> = std::env::split_paths(path).chain(system.iter().cloned()).collect();
        let (mut not_set_uid, mut rejected) = (None, None);
        for helper in helpers_in(&all) {
            let is_set_uid = is_set_uid_root(&helper);
            match path_walk::first_untrusted(&helper) {
                None if is_set_uid => return Ok(Self { path: helper, is_set_uid }),
                None => not_set_uid = not_set_uid.or(Some(helper)),
                Some(weak) => rejected = rejected.or(Some((helper, weak))),
            }
        }
        match (not_set_uid, rejected) {
            (Some(path), _) => Ok(Self { path, is_set_uid: false }),
            (None, Some((helper, weak))) => Err(unsafe_to_run(&helper, &weak)),
            (None, None) => Err(missing()),
        }
    }

    /// A command that runs the helper; without environment if it is set-uid.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if self.is_set_uid {
            command.env_clear();
        }
        command
    }

    /// Checks that the helper will be able to unmount, before it mounts.
    fn check_table(&self, table: &Path) -> Result<()> {
        match fs::File::open(table) {
            Err(error) if self.is_set_uid => {
                let (helper, table) = (self.path.display(), table.display());
                let context = format!(
                    "{helper}: not run, because it could not unmount: {table}: {}",
                    reason(error)
                );
                Err(Error::new(Kind::CannotMount, context).with_hint(
                    "use `archfs run`, which needs no fusermount, or ask for a link from /etc/mtab to \
                     /proc/self/mounts",
                ))
            }
            _ => Ok(()),
        }
    }

    fn cannot_run(&self, error: io::Error) -> Error {
        let context = format!("{}: cannot run", self.path.display());
        Error::new(Kind::CannotMount, context)
            .with_source(error)
            .with_hint("use `archfs run`, which needs no fusermount, or ask the administrator to install fuse3")
    }
}

/// The files in `directories` that have the name of a helper, newest names first.
fn helpers_in(directories: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
    let of_name = |name| directories.iter().map(move |directory| directory.join(name));
    let all = HELPERS.into_iter().flat_map(of_name);
    all.filter(|helper| helper.is_absolute() && helper.is_file())
}

fn missing() -> Error {
    Error::new(Kind::CannotMount, "fusermount3: not found on this node, and fusermount neither").with_hint(
        "use `archfs run`, which needs no fusermount, or ask the administrator to install fuse3 on the \
             compute nodes",
    )
}

fn unsafe_to_run(helper: &Path, weak: &Path) -> Error {
    let is_unmapped = fs::symlink_metadata(weak).is_ok_and(|file| trust::is_unmapped(file.uid()));
    let (helper, weak) = (helper.display(), weak.display());
    if is_unmapped {
        let context =
            format!("{helper}: not run: this user namespace does not map the owner of {weak}");
        return Error::new(Kind::CannotMount, context)
            .with_hint("use `archfs run`, which needs no fusermount");
    }
    let context = format!("{helper}: not run, because other users may replace {weak}");
    Error::new(Kind::CannotMount, context).with_hint(
        "remove that directory from PATH, or use `archfs run`, which needs no fusermount",
    )
}

fn is_set_uid_root(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.uid() == 0 && found.mode() & 0o4000 != 0)
}

fn refused(mount_point: &Path, printed: &str) -> Error {
    let first = printed.lines().next().unwrap_or("fusermount gave no reason").trim();
    let reason = first.split_once(": ").map_or(first, |(_, reason)| reason);
    let context = format!("{}: cannot mount: {reason}", mount_point.display());
    let error = Error::new(Kind::CannotMount, context);
    if reason.contains("user_allow_other") {
        error.with_hint("leave out allow_other, or ask for user_allow_other in /etc/fuse.conf")
    } else if reason.contains("mounting over filesystem type") {
        error.with_hint("mount under /dev/shm or /tmp instead, or use `archfs run --private`")
    } else if reason.contains("too many FUSE") {
        error.with_hint(
            "unmount mounts that you no longer need (archfs list), or use `archfs run --private`",
        )
    } else if reason.contains("mountpoint") || reason.contains("mount point") {
        error.with_hint("use a directory of yours as the mount point, for example under /dev/shm")
    } else {
        error.with_hint("try `archfs run`, which can mount without fusermount")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::fd::AsFd;

    use super::*;

    #[test]
    fn hint_depends_on_the_error_of_the_helper() {
        let hint = |said: &str| {
            let error = refused(Path::new("/m"), said);
            error.hint().unwrap_or_default().to_owned()
        };
        let own = "fusermount3: user has no write access to mountpoint /m\n";
        assert!(hint(own).contains("a directory of yours"));
        assert!(hint("fusermount3: bad mount point `/m': gone").contains("a directory of yours"));
        let many = "fusermount3: too many FUSE filesystems mounted; mount_max=N can be set";
        assert!(hint(many).contains("archfs list"));
        let other = "fusermount3: mount failed: Operation not permitted";
        assert!(hint(other).contains("archfs run"));
        let text = refused(Path::new("/m"), other).to_string();
        assert_eq!(text, "/m: cannot mount: mount failed: Operation not permitted");
    }

    #[test]
    fn escapes_commas_and_backslashes() {
        let options = options(Path::new("/a,b\\c d.sqfs"), Restrictions::default());
        assert_eq!(options, "ro,nosuid,nodev,subtype=archfs,fsname=/a\\,b\\\\c d.sqfs");
    }

    /// Searches a directory of mode `mode` with a helper of mode `helper_mode` in it.
    fn found_in(mode: u32, helper_mode: u32) -> (PathBuf, Result<Helper>) {
        let work = tempfile::tempdir().unwrap();
        let directory = fs::canonicalize(work.path()).unwrap().join("bin");
        fs::create_dir(&directory).unwrap();
        let helper = directory.join("fusermount3");
        fs::write(&helper, "").unwrap();
        fs::set_permissions(&helper, fs::Permissions::from_mode(helper_mode)).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
        let found = Helper::find_in(directory.as_os_str(), &[]);
        (helper, found)
    }

    #[test]
    fn prefers_a_set_uid_helper_and_rejects_one_that_others_may_replace() {
        let is_found = |found: &Result<Helper>, helper: &Path| {
            found.as_ref().is_ok_and(|found| found.path == helper)
        };
        let (helper, found) = found_in(0o755, 0o755);
        assert!(is_found(&found, &helper), "a node without a set-uid helper uses this: {found:?}");
        for (mode, helper_mode) in [(0o777, 0o4755), (0o777, 0o755), (0o755, 0o4757)] {
            let (helper, found) = found_in(mode, helper_mode);
            assert!(!is_found(&found, &helper), "{mode:o} {helper_mode:o} {found:?}");
        }
        if rustix::process::geteuid().is_root() {
            let (helper, found) = found_in(0o755, 0o4755);
            assert!(is_found(&found, &helper), "{found:?}");
        }
    }

    #[test]
    fn a_set_uid_helper_gets_no_environment_but_the_socket() {
        let environment = |is_set_uid| {
            let helper = Helper { path: "/usr/bin/env".into(), is_set_uid };
            let output = helper.command().env("_FUSE_COMMFD", "3").output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert_eq!(environment(true), "_FUSE_COMMFD=3\n");
        assert!(environment(false).contains("PATH="));
    }

    #[test]
    fn the_helper_holds_the_lock_while_it_unmounts() {
        let work = tempfile::tempdir().unwrap();
        let [path, lock, seen] = ["helper", "lock", "seen"].map(|name| work.path().join(name));
        let script = format!("#!/bin/sh\nreadlink /proc/self/fd/0 > {}\n", seen.display());
        // Written by another process: a child of this one may have it open for a moment.
        let copy = "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"";
        let mut write = Command::new("sh");
        write.args(["-c", copy, "sh", &script]).arg(&path);
        assert!(write.status().unwrap().success());
        let helper = Helper { path, is_set_uid: false };
        let locked = fs::File::create(&lock).unwrap();
        let stdin_of = |lock| {
            unmount_with(&helper, Path::new("/nonexistent"), Detach::Lazily, lock).unwrap();
            PathBuf::from(fs::read_to_string(&seen).unwrap().trim_end())
        };
        assert_eq!(stdin_of(Some(locked.as_fd())), fs::canonicalize(&lock).unwrap());
        assert_eq!(stdin_of(None), Path::new("/dev/null"));
    }

    #[test]
    fn refuses_to_mount_if_a_set_uid_helper_could_not_unmount() {
        let (table, missing) = (Path::new("/proc/self/mounts"), Path::new("/nonexistent/mtab"));
        let helper = |is_set_uid| Helper { path: "/bin/fusermount3".into(), is_set_uid };
        assert!(helper(true).check_table(table).is_ok());
        assert!(helper(false).check_table(missing).is_ok());
        let error = helper(true).check_table(missing).unwrap_err();
        assert_eq!(error.kind(), Kind::CannotMount);
        assert!(error.to_string().contains("/nonexistent/mtab: No such file"), "{error}");
    }

    #[test]
    fn ignores_relative_directories_in_path() {
        let found = |path: &str| Helper::find_in(OsStr::new(path), &[]).ok();
        assert_eq!(found(".:bin::../../../../../../../usr/bin/"), None);
    }

    #[test]
    fn the_set_uid_helper_of_the_system_comes_before_path() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: only root can make a set-uid helper");
        }
        let work = tempfile::tempdir().unwrap();
        let [first, system] = ["first", "system"].map(|name| {
            let directory = fs::canonicalize(work.path()).unwrap().join(name);
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("fusermount3"), "").unwrap();
            directory
        });
        let make = |directory: &Path, mode| {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(directory.join("fusermount3"), mode).unwrap();
        };
        let found = || {
            let system = std::slice::from_ref(&system);
            Helper::find_in(first.as_os_str(), system).unwrap().path
        };
        make(&first, 0o4755);
        make(&system, 0o4755);
        assert!(found().starts_with(&system));
        make(&system, 0o755);
        assert!(found().starts_with(&first), "a set-uid helper comes first");
        make(&first, 0o755);
        assert!(found().starts_with(&first), "PATH may have a container's replacement");
    }

    #[test]
    fn a_shortage_of_processes_or_memory_passes_and_other_errors_do_not() {
        let is_shortage = |errno: Errno| is_shortage(&errno.into());
        assert!(is_shortage(Errno::AGAIN) && is_shortage(Errno::NOMEM));
        assert!(!is_shortage(Errno::NOENT) && !is_shortage(Errno::ACCESS));
    }
}
