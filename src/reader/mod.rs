//! Serves reads of archives to processes of this user over a socket, where nothing can be mounted.
//!
//! Each client has a thread and a connection, and waits for the reply to its last request.
//! `protocol` has the messages. Clients can read files that the archives store as they are by
//! themselves, with the tables of `direct`.
//!
//! Invariant: only this user's processes are served, and only they keep the server from exiting. It
//! exits when no client has been connected for a while.

use std::io::{self, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::error::Result;
use crate::os::process::timespec;
use crate::os::unix_socket::{self, PeerCredentials};
use crate::sync::Arc;
use crate::vfs::{self, Attr, Entry, FileKind, Scratch, Tree, joined};

mod direct;
mod protocol;

use direct::DirectReads;
use protocol::{Operation, READ_MAX, Request};

/// How long the server waits for a client when none is connected.
const LINGER: Duration = Duration::from_secs(5);

/// Describes an entry with this path, and its target if it is a symbolic link, as a line of JSON.
pub type Describe = fn(&Attr, &[u8], Option<&[u8]>) -> Result<Vec<u8>>;

/// Serves `tree` to the clients of `listener`, until there are none.
pub fn serve(tree: Arc<dyn Tree>, listener: &UnixListener, describe: Describe) -> io::Result<()> {
    // A client holds a clone of it while it is connected.
    let connected = Arc::new(());
    let direct = Arc::new(DirectReads::default());
    let mut idle_until = Instant::now() + LINGER;
    loop {
        let mut left = idle_until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            if Arc::strong_count(&connected) == 1 {
                return Ok(());
            }
            left = LINGER;
            idle_until = Instant::now() + LINGER;
        }
        let mut waiting = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut waiting, Some(&timespec(left))) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(error) if is_temporary(&error) => continue,
            Err(error) => return Err(error),
        };
        if !is_own(&client) {
            continue;
        }
        idle_until = Instant::now() + LINGER;
        let (tree, direct, connected) =
            (Arc::clone(&tree), Arc::clone(&direct), Arc::clone(&connected));
        let serve_client = move || {
            answer_requests(&client, &tree, &direct, describe);
            drop(connected);
        };
        // Without a thread the connection is closed, and the client reports that.
        let _ = thread::Builder::new().name("reader".into()).spawn(serve_client);
    }
}

/// Whether the next accept(2) may succeed: the client has gone, or descriptors are used up.
fn is_temporary(error: &io::Error) -> bool {
    let is_short = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM));
    if is_short {
        thread::sleep(Duration::from_millis(10));
    }
    is_short
        || matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}

/// The directory of the socket keeps other users away, unless it was opened to them.
fn is_own(client: &UnixStream) -> bool {
    unix_socket::credentials_of_peer(client).is_ok_and(PeerCredentials::is_own)
}

fn answer_requests(
    client: &UnixStream,
    tree: &Arc<dyn Tree>,
    direct: &Arc<DirectReads>,
    describe: Describe,
) {
    let (shared, tree) = (tree, tree.as_ref());
    let mut requests = BufReader::new(client);
    let mut scratch = Scratch::default();
    while let Some(request) = Request::read(&mut requests) {
        let mut client = client;
        let answered = match request.operation {
            Operation::Read { offset, size } => {
                read(&mut client, tree, &request.path, (offset, size), &mut scratch)
            }
            Operation::Describe => {
                answer(&mut client, described(tree, &request.path, &request.path, describe))
            }
            Operation::List => answer(&mut client, listed(tree, &request.path, describe)),
            Operation::Direct => direct.answer(client, shared),
        };
        if answered.is_err() {
            return;
        }
    }
}

fn answer(client: &mut impl Write, result: Result<Vec<u8>>) -> io::Result<()> {
    match result {
        Ok(payload) => protocol::succeed(client, (0, None), &payload),
        Err(error) => protocol::fail(client, &error),
    }
}

/// Sends the size of a file and a part of its contents. The client checks what it reads as a whole.
fn read(
    client: &mut impl Write,
    tree: &dyn Tree,
    path: &[u8],
    (offset, size): (u64, u64),
    scratch: &mut Scratch,
) -> io::Result<()> {
    let attr = match vfs::resolve_file(tree, path) {
        Ok(attr) => attr,
        Err(error) => return protocol::fail(client, &error),
    };
    let left = attr.size.saturating_sub(offset).min(size);
    let wanted = u32::try_from(left).unwrap_or(u32::MAX).min(READ_MAX);
    if wanted == 0 {
        return protocol::succeed(client, (attr.size, None), b"");
    }
    let crc32 = if offset == 0 { tree.stored_crc32(attr.ino) } else { Ok(None) };
    let read = crc32.and_then(|crc32| {
        let bytes = vfs::read_some(tree, attr.ino, offset, wanted, scratch)?;
        Ok((crc32, bytes))
    });
    match read {
        Ok((crc32, bytes)) => protocol::succeed(client, (attr.size, crc32), bytes.as_slice()),
        Err(error) => protocol::fail(client, &error.within(String::from_utf8_lossy(path))),
    }
}

/// The object at `path`, as `name`. A link whose target is missing describes itself.
fn described(tree: &dyn Tree, path: &[u8], name: &[u8], describe: Describe) -> Result<Vec<u8>> {
    let attr = vfs::resolve(tree, path)?;
    if attr.kind != FileKind::Symlink {
        return describe(&attr, name, None);
    }
    let target = tree.read_link(attr.ino)?;
    let attr = vfs::resolve_through(tree, path).unwrap_or(attr);
    describe(&attr, name, Some(&target))
}

/// The entries of the directory at `path`, a line each.
fn listed(tree: &dyn Tree, path: &[u8], describe: Describe) -> Result<Vec<u8>> {
    let directory = vfs::resolve_through(tree, path)?;
    let mut lines = Vec::new();
    for Entry { ino, kind, name } in vfs::entries(tree, directory.ino)? {
        let line = match kind {
            FileKind::Symlink => described(tree, &joined(path, &name), &name, describe)?,
            _ => describe(&tree.attr(ino)?, &name, None)?,
        };
        lines.extend(line);
        lines.push(b'\n');
    }
    Ok(lines)
}
