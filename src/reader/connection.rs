//! Answers the requests of one client.

use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;

use super::Describe;
use super::direct::DirectReads;
use super::protocol::{self, Operation, READ_MAX, Request};
use crate::error::Result;
use crate::sync::Arc;
use crate::vfs::{self, Entry, FileKind, Scratch, Tree, joined};

/// Serves `client` until it closes the connection.
pub(super) fn serve(
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
        Ok(payload) => protocol::succeed(client, 0, &payload),
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
        return protocol::succeed(client, attr.size, b"");
    }
    let crc32 = if offset == 0 { tree.stored_crc32(attr.ino) } else { Ok(None) };
    let read = crc32.and_then(|crc32| {
        let bytes = vfs::read_some(tree, attr.ino, offset, wanted, scratch)?;
        Ok((crc32, bytes))
    });
    match read {
        Ok((crc32, bytes)) => protocol::send_part(client, (attr.size, crc32), bytes.as_slice()),
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
