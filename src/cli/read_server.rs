//! `archfs read-server`: started by the Python package to read archives without a mount. Not for
//! users.
//!
//! The process that the package starts prints the path of a socket. If no server listens at it, it
//! listens itself and starts another process, which opens the archives and serves. Clients that
//! connect before the archives are open wait.
//!
//! The socket is in the record directory, which is closed to other users. At an abstract name, they
//! could listen first, or fill the queue of connections. A process makes its socket under a name of
//! its own, and links it to the common name when it listens. So a socket without a listener is one
//! that was left behind.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{getpid, setsid};

use super::bar::Bar;
use super::{args, ls};
use crate::error::{Error, Result};
use crate::lifecycle::{self, MountPlan};
use crate::os::{process, signal};
use crate::progress::Progress;
use crate::reader;
use crate::sync::Arc;
use crate::url;

/// Serve reads of archives at a socket (started by the Python package)
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    mount: args::MountArgs,

    /// Standard input is the socket at this path, and standard output is a pipe to the process that
    /// waits until the archives are open
    #[arg(long, value_name = "SOCKET")]
    inherited: Option<PathBuf>,
}

/// Signals that a whole process group gets. The server ends with its clients.
const IGNORED: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

pub(super) fn run(args: &Args) -> Result<u8> {
    let plan = args.mount.plan_of(&args.mount.paths, PathBuf::new())?;
    match &args.inherited {
        Some(path) => serve(&plan, SocketFile(path.clone())),
        None => launch(&plan),
    }
}

/// Removes the socket at the end, and its directory if that is empty.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = self.0.parent().map(fs::remove_dir);
    }
}

/// Prints the path of the socket, and starts a server unless there is one. Returns its exit status
/// if it cannot open the archives.
fn launch(plan: &MountPlan) -> Result<u8> {
    let failed = |error| Error::io("cannot start to read without a mount", error);
    let listen = |path: &Path| Ok((path.to_owned(), listener_unless_served(path)?));
    let (path, listener) = lifecycle::at_read_socket(plan, listen)?;
    if let Some(listener) = listener
        && let Err(status) = start(listener, &path).map_err(failed)?
    {
        return Ok(status);
    }
    let line = [path.as_os_str().as_bytes(), b"\n"].concat();
    io::stdout().write_all(&line).map_err(failed)?;
    Ok(0)
}

/// A socket at `path`; `None` if a server listens there.
fn listener_unless_served(path: &Path) -> io::Result<Option<UnixListener>> {
    while !is_served(path)? {
        let own = own_name(path);
        let _ = fs::remove_file(&own);
        let listener = UnixListener::bind(&own)?;
        let linked = fs::hard_link(&own, path);
        let _ = fs::remove_file(&own);
        match linked {
            Ok(()) => return Ok(Some(listener)),
            // Another process was faster, or `archfs gc` removed it before it listened.
            Err(error)
                if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Whether a server listens at `path`. Removes a socket that a server has left behind.
fn is_served(path: &Path) -> io::Result<bool> {
    match lifecycle::try_connect(path) {
        // The queue is full.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(Errno::CONNREFUSED) => {
            // Another process may have replaced it since. Then the caller finds that it has.
            lifecycle::remove_stale_socket(path)?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// A name beside `path` that no other process uses.
fn own_name(path: &Path) -> PathBuf {
    let mut name = OsString::from(format!("{}-", getpid().as_raw_nonzero()));
    name.push(path.file_name().unwrap_or_default());
    path.with_file_name(name)
}

/// Starts the server with `listener` and waits until it has opened the archives. `Err` is its exit
/// status.
fn start(listener: UnixListener, path: &Path) -> io::Result<std::result::Result<(), u8>> {
    let (mut opened, theirs) = io::pipe()?;
    let arguments: Vec<OsString> = std::env::args_os().skip(2).collect();
    let mut server = process::own_program(["read-server", "--inherited"])
        .arg(path)
        .args(arguments)
        .envs(url::environment())
        .stdin(OwnedFd::from(listener))
        .stdout(Stdio::from(theirs))
        .spawn()?;
    if matches!(opened.read(&mut [0]), Ok(1)) {
        return Ok(Ok(()));
    }
    let status = server.wait()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(Err(status.unwrap_or(1)))
}

fn serve(plan: &MountPlan, socket_file: SocketFile) -> Result<u8> {
    let failed = |error| Error::io("cannot read without a mount", error);
    IGNORED.into_iter().for_each(signal::ignore);
    let _ = setsid();
    crate::log::start(plan.verbosity, None);
    let listener = rustix::io::dup(rustix::stdio::stdin()).map_err(|error| failed(error.into()))?;
    let progress = Arc::new(Progress::default());
    let bar = Bar::watch(&progress);
    let tree = lifecycle::open_to_read(plan, &progress)?;
    drop(bar);
    let _ = std::env::set_current_dir("/");
    detach().map_err(failed)?;
    let listener = UnixListener::from(listener);
    let served = reader::serve(tree, &listener, ls::json_line);
    // While it still listens, so that no other process takes it for one that was left behind.
    drop(socket_file);
    served.map(|()| 0).map_err(|error| Error::io("cannot serve", error))
}

/// Reports that the archives are open, and closes standard input, output and error. From now on
/// clients get the errors of their requests.
fn detach() -> io::Result<()> {
    let null = fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let mut out = io::stdout();
    out.write_all(b"\n")?;
    out.flush()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
