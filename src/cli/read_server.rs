//! `archfs read-server`: started by the Python package to read archives without a mount. Not for
//! users.
//!
//! The process that the package starts prints the name of a socket. If no server listens at it, it
//! listens itself and starts another process, which opens the archives and serves. Clients that
//! connect before the archives are open wait.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;

use rustix::fd::OwnedFd;
use rustix::process::{getpid, setsid};

use super::bar::Bar;
use super::{args, ls};
use crate::error::{Error, Result};
use crate::lifecycle::{self, MountPlan};
use crate::os::peer_credentials::{self, PeerCredentials};
use crate::os::{own_program, raw_signals};
use crate::progress::Progress;
use crate::reader;
use crate::sync::Arc;
use crate::url;

/// Serve reads of archives at a socket (started by the Python package)
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    mount: args::MountArgs,

    /// Standard input is the socket, and standard output is a pipe to the process that waits until
    /// the archives are open
    #[arg(long)]
    inherited: bool,
}

/// Signals that a whole process group gets. The server ends with its clients.
const IGNORED: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

pub(super) fn run(args: &Args) -> Result<u8> {
    let plan = args.mount.plan_of(&args.mount.paths, PathBuf::new())?;
    if args.inherited { serve(&plan) } else { launch(&plan) }
}

/// Prints the name of the socket, and starts a server unless there is one. Returns its exit status
/// if it cannot open the archives.
fn launch(plan: &MountPlan) -> Result<u8> {
    let failed = |error| Error::io("cannot start to read without a mount", error);
    let mut name = lifecycle::read_socket_name(plan);
    let listener = match bind(&name) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => match is_own(&name) {
            true => None,
            // Any user can listen at any name.
            false => {
                name = format!("{name}-{}", getpid().as_raw_nonzero());
                Some(bind(&name).map_err(failed)?)
            }
        },
        bound => Some(bound.map_err(failed)?),
    };
    if let Some(listener) = listener
        && let Err(status) = start(listener).map_err(failed)?
    {
        return Ok(status);
    }
    println!("{name}");
    Ok(0)
}

fn bind(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Whether a process of this user listens at `name`, or none does any more.
fn is_own(name: &str) -> bool {
    let connected =
        SocketAddr::from_abstract_name(name).and_then(|name| UnixStream::connect_addr(&name));
    let peer = connected.and_then(|stream| peer_credentials::of(&stream));
    peer.map_or(true, PeerCredentials::is_own)
}

/// Starts the server with `listener` and waits until it has opened the archives. `Err` is its exit
/// status.
fn start(listener: UnixListener) -> io::Result<std::result::Result<(), u8>> {
    let (mut opened, theirs) = io::pipe()?;
    let arguments: Vec<OsString> = std::env::args_os().skip(2).collect();
    let mut server = own_program::command(["read-server", "--inherited"])
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

fn serve(plan: &MountPlan) -> Result<u8> {
    let failed = |error| Error::io("cannot read without a mount", error);
    IGNORED.into_iter().for_each(raw_signals::ignore);
    let _ = setsid();
    crate::log::start(plan.verbosity, None);
    let listener = rustix::io::dup(rustix::stdio::stdin()).map_err(|error| failed(error.into()))?;
    let progress = Arc::new(Progress::default());
    let bar = Bar::watch(&progress);
    let tree = lifecycle::open_to_read(plan, &progress)?;
    drop(bar);
    let _ = std::env::set_current_dir("/");
    detach().map_err(failed)?;
    reader::serve(tree, &UnixListener::from(listener), ls::json_line)
        .map(|()| 0)
        .map_err(|error| Error::io("cannot serve", error))
}

/// Reports that the archives are open, and closes standard input, output and error. From now on
/// clients get the errors of their requests.
fn detach() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let mut out = io::stdout();
    out.write_all(b"\n")?;
    out.flush()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
