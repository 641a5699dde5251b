//! The credentials of the process at the other end of a Unix socket.
//!
//! rustix stores the process id in a type that cannot be zero. But the kernel reports zero for a
//! process that this PID namespace does not show, for example one of the outer namespace.
#![expect(unsafe_code, reason = "rustix has no SO_PEERCRED that accepts a process id of zero")]

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The credentials of a process, from when it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerCredentials {
    /// The process; `None` if this PID namespace does not show it.
    pub(crate) pid: Option<i32>,
    /// The effective user.
    pub(crate) uid: u32,
}

impl PeerCredentials {
    /// Whether the process is of this user.
    pub(crate) fn is_own(self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }
}

/// The credentials of the process at the other end of `stream` (SO_PEERCRED, unix(7)).
pub(crate) fn of(stream: &UnixStream) -> io::Result<PeerCredentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = libc::socklen_t::try_from(size_of_val(&found)).unwrap_or_default();
    // SAFETY: the kernel writes at most `size` bytes to `found`, which is that large, and any bytes
    // are valid for its integers. The descriptor is open.
    let status = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut size,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials { pid: (found.pid > 0).then_some(found.pid), uid: found.uid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_process_at_the_other_end() {
        let (stream, _other) = UnixStream::pair().unwrap();
        let own = PeerCredentials {
            pid: Some(rustix::process::getpid().as_raw_nonzero().get()),
            uid: rustix::process::geteuid().as_raw(),
        };
        assert_eq!(of(&stream).unwrap(), own);
    }
}
