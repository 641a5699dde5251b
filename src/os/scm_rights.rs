//! Passes descriptors to another process with SCM_RIGHTS (unix(7)).
//!
//! Each message carries data, because a message without data may be lost.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends `descriptor` over `socket`.
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
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent,
        }
    }
}

/// Receives a descriptor from `socket`; `None` if the other end closes the socket without sending
/// one.
pub(crate) fn receive(socket: impl AsFd) -> Result<Option<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        let mut buffers = [IoSliceMut::new(&mut byte)];
        match recvmsg(&socket, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

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
}
