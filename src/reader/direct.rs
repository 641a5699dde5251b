//! What a client gets to read files itself: the table of paths, the table of direct reads, and the
//! archives. A thread makes the tables when the first client asks.
//!
//! The table of paths says where the inode number of a path is:
//!
//! | part | contents |
//! |---|---|
//! | header | magic, number of slots, offset of the paths; 8 bytes each |
//! | slots | where the path is plus 1 (0: empty), inode number, CRC-32, length; 8, 8, 4, 4 bytes |
//! | | what to compare a whole file with: its CRC-32 plus 2^32, or 0; 8 bytes |
//! | paths | the paths, without a leading slash |
//!
//! A path is in the slot CRC-32 modulo the number of slots, or in the next free one, and compared.
//! Numbers have the byte order of the machine.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use rustix::fd::{AsFd, BorrowedFd};

use super::protocol;
use crate::direct::{Table, is_lasting};
use crate::error::{Error, Kind, Result};
use crate::os::{memory, memory_file, unix_socket};
use crate::sync::{Arc, Mutex, thread};
use crate::vfs::{DirectoryWalk, Entry, FileKind, Ino, Tree, entries, joined};

/// The tables of one server.
#[derive(Default)]
pub(super) struct DirectReads {
    /// Held only to look at it or to replace it. No other lock is held with it.
    progress: Mutex<Progress>,
}

#[derive(Clone, Default)]
enum Progress {
    #[default]
    NotAsked,
    Building,
    Ready(Arc<Tables>),
    /// No file can be read directly, or there is not enough memory.
    Never,
}

struct Tables {
    paths: File,
    positions: Table,
}

impl DirectReads {
    /// Answers a client that asks: later, never, or with the descriptors.
    pub(super) fn answer(
        self: &Arc<Self>,
        client: &UnixStream,
        tree: &Arc<dyn Tree>,
    ) -> std::io::Result<()> {
        let progress = {
            let mut progress = self.progress.lock();
            if matches!(*progress, Progress::NotAsked) {
                *progress = self.begin(Arc::clone(tree));
            }
            progress.clone()
        };
        let (state, tables) = match progress {
            Progress::NotAsked | Progress::Building => (protocol::LATER, None),
            Progress::Never => (protocol::NEVER, None),
            Progress::Ready(tables) => (protocol::READY, Some(tables)),
        };
        let Some(tables) = tables else {
            return protocol::succeed(&mut &*client, (state, None), b"");
        };
        let mut descriptors: Vec<BorrowedFd<'_>> =
            vec![tables.paths.as_fd(), tables.positions.file().as_fd()];
        descriptors.extend(tables.positions.archives().iter().map(AsFd::as_fd));
        let header = protocol::header(0, state, 0, None);
        match unix_socket::send_with(client, &header, &descriptors)? {
            sent if sent == header.len() => Ok(()),
            _ => Err(std::io::ErrorKind::WriteZero.into()),
        }
    }

    fn begin(self: &Arc<Self>, tree: Arc<dyn Tree>) -> Progress {
        let direct = Arc::clone(self);
        let build = move || {
            let built = match tables(tree.as_ref()) {
                Ok(Some(tables)) => Progress::Ready(Arc::new(tables)),
                // Clients read through the server.
                Ok(None) => Progress::Never,
                Err(error) if is_lasting(&error) => Progress::Never,
                // Clients ask again, after some reads.
                Err(_) => Progress::NotAsked,
            };
            *direct.progress.lock() = built;
        };
        match thread::Builder::new().name("tables".into()).spawn(build) {
            Ok(_) => Progress::Building,
            Err(_) => Progress::NotAsked,
        }
    }
}

fn tables(tree: &dyn Tree) -> Result<Option<Tables>> {
    // Nothing is mounted, so there is no device number.
    let Some(positions) = Table::build(tree, 0)? else { return Ok(None) };
    Ok(Some(Tables { paths: build_paths(tree)?, positions }))
}

const MAGIC: [u8; 8] = *b"ARCHFSP1";
const HEADER: u64 = 24;
const SLOT: usize = 32;

/// Slots for each four files.
const SLOTS_FOR_4: u64 = 5;

/// The part of the memory left to the job that the table may take.
const HEADROOM_PART: u64 = 8;

/// The table of all regular files of `tree`.
///
/// Fails with `Unsupported` if it would take too much memory; `Corrupt` or `Io` if directories
/// cannot be read.
fn build_paths(tree: &dyn Tree) -> Result<File> {
    let most = memory::headroom().map_or(u64::MAX, |headroom| headroom.bytes) / HEADROOM_PART;
    let count = tree.totals().inodes.saturating_mul(SLOTS_FOR_4) / 4 + 1;
    let paths_at = count.saturating_mul(SLOT as u64).saturating_add(HEADER);
    if paths_at > most {
        return Err(too_large());
    }
    let failed = |error| Error::io("cannot make the table of paths", error);
    let file = memory_file::create().map_err(failed)?;
    let mut table = PathTable { slots: vec![0; (count as usize) * SLOT], count, len: 0 };
    (&file).seek(SeekFrom::Start(paths_at)).map_err(failed)?;
    let mut paths = BufWriter::new(&file);
    let mut walk = DirectoryWalk::from_root();
    while let Some((directory, ino)) = walk.next() {
        for Entry { ino, kind, name } in entries(tree, ino)? {
            let path = joined(&directory, &name);
            match kind {
                FileKind::Directory => _ = walk.add(path, ino),
                FileKind::Regular => {
                    let crc32 = tree.stored_crc32(ino)?;
                    if paths_at.saturating_add(table.len) > most || !table.add(ino, &path, crc32) {
                        return Err(too_large());
                    }
                    paths.write_all(&path).map_err(failed)?;
                }
                _ => {}
            }
        }
    }
    paths.flush().map_err(failed)?;
    drop(paths);
    file.write_all_at(&table.slots, HEADER).map_err(failed)?;
    let numbers = [count.to_ne_bytes(), paths_at.to_ne_bytes()].concat();
    file.write_all_at(&[&MAGIC[..], &numbers].concat(), 0).map_err(failed)?;
    memory_file::seal(&file).map_err(failed)?;
    Ok(file)
}

fn too_large() -> Error {
    Error::new(Kind::Unsupported, "the table of paths would take too much memory")
}

struct PathTable {
    slots: Vec<u8>,
    count: u64,
    len: u64,
}

impl PathTable {
    /// Adds a path, with the checksum that the client compares. Returns false if there is no free
    /// slot: a damaged archive may have more names than inodes.
    fn add(&mut self, ino: Ino, path: &[u8], crc32: Option<u32>) -> bool {
        let checksum = protocol::checksum(crc32);
        let crc = crc32fast::hash(path);
        let first = (u64::from(crc) % self.count) as usize;
        let slots = self.slots.as_chunks_mut::<SLOT>().0;
        let (before, from) = slots.split_at_mut(first);
        let free = from.iter_mut().chain(before).find(|slot| slot[..8] == [0; 8]);
        let (Some(slot), Ok(path_len)) = (free, u32::try_from(path.len())) else { return false };
        slot[..8].copy_from_slice(&(self.len + 1).to_ne_bytes());
        slot[8..16].copy_from_slice(&ino.number().to_ne_bytes());
        slot[16..20].copy_from_slice(&crc.to_ne_bytes());
        slot[20..24].copy_from_slice(&path_len.to_ne_bytes());
        slot[24..].copy_from_slice(&checksum.to_ne_bytes());
        self.len += path.len() as u64;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inode number in the slot of `path`, found as a client does.
    fn find(table: &PathTable, paths: &[u8], path: &[u8]) -> Option<u64> {
        let number = |bytes: &[u8]| u64::from_ne_bytes(*bytes.first_chunk().unwrap());
        let slots = table.slots.as_chunks::<SLOT>().0;
        let first = (u64::from(crc32fast::hash(path)) % table.count) as usize;
        let (before, from) = slots.split_at(first);
        for slot in from.iter().chain(before) {
            let at = usize::try_from(number(slot)).unwrap().checked_sub(1)?;
            if paths[at..].starts_with(path) && slot[20..24] == (path.len() as u32).to_ne_bytes() {
                return Some(number(&slot[8..]));
            }
        }
        None
    }

    #[test]
    fn each_path_is_found_until_the_table_is_full() {
        let mut table = PathTable { slots: vec![0; 3 * SLOT], count: 3, len: 0 };
        let mut paths = Vec::new();
        for (number, path) in [(1, &b"a"[..]), (2, b"a/b"), (3, b"\xff")] {
            assert!(table.add(Ino::new(number).unwrap(), path, (number == 2).then_some(7)));
            paths.extend(path);
        }
        assert_eq!(find(&table, &paths, b"a"), Some(1));
        assert_eq!(find(&table, &paths, b"a/b"), Some(2));
        assert_eq!(find(&table, &paths, b"\xff"), Some(3));
        assert_eq!(find(&table, &paths, b"none"), None);
        assert!(!table.add(Ino::new(4).unwrap(), b"more", None));
        let checksums = table.slots.as_chunks::<SLOT>().0.iter().map(|slot| &slot[24..]);
        let checksums: Vec<_> = checksums.filter(|checksum| *checksum != [0; 8]).collect();
        assert_eq!(checksums, [protocol::checksum(Some(7)).to_ne_bytes()]);
    }
}
