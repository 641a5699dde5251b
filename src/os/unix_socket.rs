//! Unix sockets (unix(7)): descriptors, and the credentials of the process at the other end.
//!
//! Each message with descriptors carries data, because one without data may be lost.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

pub(crate) fn send(socket: impl AsFd, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
    send_with(socket, b"d", &[descriptor]).map(|_| ())
}

/// The maximum number of descriptors of `send_with`.
pub(crate) const DESCRIPTORS_MAX: usize = 32;

/// Sends `bytes` over `socket`, with `descriptors`; returns how many bytes were sent. The
/// descriptors arrive with the first byte.
///
/// # Errors
/// The error of the system call, for example EPIPE; ENOBUFS for too many descriptors.
pub(crate) fn send_with(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if descriptors.len() > DESCRIPTORS_MAX
        || !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
    {
        return Err(Errno::NOBUFS);
    }
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL))
}

/// Receives a descriptor from `socket`; `None` if the other end closes the socket without sending
/// one.
pub(crate) fn receive(socket: impl AsFd) -> Result<Option<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    retry_on_intr(|| {
        let mut buffers = [IoSliceMut::new(&mut byte)];
        recvmsg(&socket, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptor)
}

/// The credentials of a process, from when it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerCredentials {
    /// The process; `None` if this PID namespace does not show it.
    pub(crate) pid: Option<i32>,
    pub(crate) uid: u32,
}

impl PeerCredentials {
    /// Whether the process is of this user.
    pub(crate) fn is_own(self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }
}

/// The credentials of the process at the other end of `stream` (SO_PEERCRED, unix(7)).
///
/// rustix stores the process id in a type that cannot be zero. But the kernel reports zero for a
/// process that this PID namespace does not show, for example one of the outer namespace.
#[expect(unsafe_code, reason = "rustix has no SO_PEERCRED that accepts a process id of zero")]
pub(crate) fn credentials_of_peer(stream: &UnixStream) -> io::Result<PeerCredentials> {
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
    use std::fs::File;
    use std::io::Read;

    use super::*;

    #[test]
    fn receives_only_a_descriptor_that_was_sent() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&ours, File::open("/proc/self/comm").unwrap().as_fd()).unwrap();
        let mut text = String::new();
        let received = receive(&theirs).unwrap().unwrap();
        File::from(received).read_to_string(&mut text).unwrap();
        assert!(!text.is_empty());
        drop(ours);
        assert!(receive(&theirs).unwrap().is_none());
    }

    #[test]
    fn names_the_process_at_the_other_end() {
        let (stream, _other) = UnixStream::pair().unwrap();
        let own = PeerCredentials {
            pid: Some(rustix::process::getpid().as_raw_nonzero().get()),
            uid: rustix::process::geteuid().as_raw(),
        };
        assert_eq!(credentials_of_peer(&stream).unwrap(), own);
    }
}
