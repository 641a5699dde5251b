//! Serves reads of archives to processes of this user over a socket, where nothing can be mounted.
//!
//! Each client has a thread and a connection, and waits for the reply to its last request.
//! `protocol` has the messages, `connection` answers them. Clients can read files that the archives
//! store as they are by themselves, with the tables of `direct` and `path_table`.
//! Invariant: only this user's processes are served, and only they keep the server from exiting. It
//! exits when no client has been connected for a while.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::error::Result;
use crate::os::peer_credentials::{self, PeerCredentials};
use crate::os::process::timespec;
use crate::sync::Arc;
use crate::vfs::{Attr, Tree};

mod connection;
mod direct;
mod path_table;
mod protocol;

use direct::DirectReads;

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
            connection::serve(&client, &tree, &direct, describe);
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
    peer_credentials::of(client).is_ok_and(PeerCredentials::is_own)
}
