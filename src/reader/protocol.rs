//! The messages between the server and its clients (`python/archfs/_reader.py`).
//!
//! | request | bytes |
//! |---|---|
//! | length of the rest | 4 |
//! | operation: 1 read, 2 describe, 3 list, 4 direct | 1 |
//! | offset in the file | 8 |
//! | bytes wanted at most | 8 |
//! | path in the archive | the rest |
//!
//! | reply | bytes |
//! |---|---|
//! | status: 0 success, 1 failure | 1 |
//! | size of the file | 8 |
//! | length of the payload | 8 |
//! | CRC-32 of the whole file, plus 2^32; 0 if there is none | 8 |
//! | payload | |
//!
//! Integers are little-endian. The payload of a read is a part of the file: as much as was wanted,
//! but at most `READ_MAX` bytes. If it starts at offset 0, and the archive has a checksum of the
//! file that the server does not check, the reply has it for the client. The payload of the other
//! operations is JSON, one object a line, as `archfs ls --json` prints it; it describes the target
//! of a symbolic link. The payload of a failure is an object with the keys `errno`, `message` and
//! `hint`.
//!
//! A client that asks for direct reads gets no payload, but `LATER`, `READY` or `NEVER` as the
//! size. With `READY` come descriptors: the table of paths (`direct`), that of positions
//! (`direct::Table`) and the archives.
//!
//! A client and its server are the same version of archfs, so the messages have no version.

use std::io::{self, IoSlice, Read, Write};

use serde::Serialize;

use crate::error::Error;

/// Most bytes that one reply carries.
pub(super) const READ_MAX: u32 = 1 << 20;

/// Most bytes of a request without its length: a path of PATH_MAX and more.
const REQUEST_MAX: usize = 64 << 10;

/// Tells a checksum from none.
const HAS_CHECKSUM: u64 = 1 << 32;

const FIXED: usize = 17;

/// Answers to a client that asks for direct reads: ask again, here they are, read by requests.
pub(super) const LATER: u64 = 0;
pub(super) const READY: u64 = 1;
pub(super) const NEVER: u64 = 2;

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) path: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read { offset: u64, size: u64 },
    Describe,
    List,
    Direct,
}

impl Request {
    /// Reads a request; `None` if the client has closed the connection or sent nonsense.
    pub(super) fn read(client: &mut impl Read) -> Option<Self> {
        let mut length = [0; 4];
        client.read_exact(&mut length).ok()?;
        let length = usize::try_from(u32::from_le_bytes(length)).ok()?;
        if !(FIXED..=REQUEST_MAX).contains(&length) {
            return None;
        }
        let mut rest = vec![0; length];
        client.read_exact(&mut rest).ok()?;
        let (fixed, path) = rest.split_first_chunk::<FIXED>()?;
        let number = |at: usize| Some(u64::from_le_bytes(*fixed.get(at..)?.first_chunk()?));
        let operation = match fixed[0] {
            1 => Operation::Read { offset: number(1)?, size: number(9)? },
            2 => Operation::Describe,
            3 => Operation::List,
            4 => Operation::Direct,
            _ => return None,
        };
        Some(Self { operation, path: path.to_vec() })
    }
}

/// Sends a successful reply: the size of the file, its checksum, and the payload.
pub(super) fn succeed(
    client: &mut impl Write,
    (size, crc32): (u64, Option<u32>),
    payload: &[u8],
) -> io::Result<()> {
    send(client, &header(0, size, payload.len() as u64, crc32), payload)
}

pub(super) fn fail(client: &mut impl Write, error: &Error) -> io::Result<()> {
    #[derive(Serialize)]
    struct Failure<'e> {
        errno: i32,
        message: String,
        hint: Option<&'e str>,
    }
    let failure =
        Failure { errno: error.kind().errno(), message: error.to_string(), hint: error.hint() };
    let payload = serde_json::to_vec(&failure)?;
    send(client, &header(1, 0, payload.len() as u64, None), &payload)
}

/// What comes before the payload of a reply.
pub(super) fn header(status: u8, size: u64, length: u64, crc32: Option<u32>) -> Vec<u8> {
    let checksum = checksum(crc32).to_le_bytes();
    [&[status][..], &size.to_le_bytes(), &length.to_le_bytes(), &checksum].concat()
}

/// A checksum as replies and tables have it: 0 for none.
pub(super) fn checksum(crc32: Option<u32>) -> u64 {
    crc32.map_or(0, |crc32| HAS_CHECKSUM | u64::from(crc32))
}

fn send(client: &mut impl Write, header: &[u8], payload: &[u8]) -> io::Result<()> {
    let mut parts = [IoSlice::new(header), IoSlice::new(payload)];
    let mut left = &mut parts[..];
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match client.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut left, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: u8, offset: u64, size: u64, path: &[u8]) -> Vec<u8> {
        let length = u32::try_from(FIXED + path.len()).unwrap();
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.push(operation);
        bytes.extend(offset.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend(path);
        bytes
    }

    #[test]
    fn reads_requests_and_rejects_nonsense() {
        let sent = request(1, 5, u64::MAX, b"a/\xff");
        let read = Request::read(&mut &sent[..]).unwrap();
        let operation = Operation::Read { offset: 5, size: u64::MAX };
        assert_eq!(read, Request { operation, path: b"a/\xff".to_vec() });
        let root = Request::read(&mut &request(3, 0, 0, b"")[..]).unwrap();
        assert_eq!(root, Request { operation: Operation::List, path: Vec::new() });
        let longest = request(2, 0, 0, &vec![b'a'; REQUEST_MAX - FIXED]);
        assert!(Request::read(&mut &longest[..]).is_some());
        let longer = request(2, 0, 0, &vec![b'a'; REQUEST_MAX - FIXED + 1]);
        for bytes in [
            longer,
            request(5, 0, 0, b"a"),
            (16_u32).to_le_bytes().to_vec(),
            [&16_u32.to_le_bytes()[..], &[1; 16]].concat(),
            sent[..sent.len() - 1].to_vec(),
            Vec::new(),
        ] {
            assert_eq!(Request::read(&mut &bytes[..]), None, "{bytes:?}");
        }
    }

    /// Takes three bytes at a time, and none every other time.
    struct Slow(Vec<u8>, bool);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let taken = bytes.len().min(3);
            self.0.extend(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn sends_all_of_a_reply() {
        let mut client = Slow(Vec::new(), false);
        succeed(&mut client, (300, None), b"payload").unwrap();
        let header = [&[0][..], &300_u64.to_le_bytes(), &7_u64.to_le_bytes(), &[0; 8]].concat();
        assert_eq!(client.0, [&header[..], b"payload"].concat());
        let mut client = Slow(Vec::new(), false);
        succeed(&mut client, (0, Some(5)), b"").unwrap();
        assert_eq!(client.0[17..], [5, 0, 0, 0, 1, 0, 0, 0]);
    }
}
