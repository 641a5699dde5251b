//! The table that says where the bytes of each file are.
//!
//! It is a file in memory with 16 bytes for each inode number, found by that number. `library.c`
//! maps it. The layout is in `library.c`, at `struct table`; both sides are of one version, because
//! the program contains the library.
//!
//! Invariant: after `build` nothing can change the table.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{OFlags, fcntl_getfl};

use crate::error::{Error, Kind, Result};
use crate::os::file_position::{FilePosition, Filled, Valid};
use crate::os::{memory, memory_file};
use crate::sync::Arc;
use crate::units::counted;
use crate::vfs::{Ino, StoredFile, Tree};

const MAGIC: [u8; 8] = *b"ARCHFSD1";

/// Bytes of a page of entries. Parts of the table begin at multiples of it.
const PAGE: usize = 4096;

/// Bytes of an entry, and of a tail.
const ENTRY: usize = 16;
const TAIL: usize = 24;

/// Offset of the descriptions of the archive files in the header, and bytes of one.
const FILES_OFFSET: usize = 56;
const FILE: usize = 56;

/// Offset of the granule size and the number of granules in the header.
const GRANULES_OFFSET: usize = FILES_OFFSET + FILES_MAX * FILE;

/// In place of the nanoseconds of a copy's modification time: times do not count, granules do.
const FILLED: u64 = u64::MAX;

/// The maximum number of archive files. Each costs the reading process a descriptor or two. Members
/// of further archives are read through the mount.
const FILES_MAX: usize = 16;

/// Bits of a location that hold the offset in the archive file; the file number is above them.
const OFFSET_BITS: u32 = 48;

/// The bit of a location that says that the offset is the number of a tail.
const HAS_TAIL: u64 = 1 << 63;

/// The maximum of inode numbers for each inode. Images without an export table have sparse
/// numbers; a table for them would take too much memory.
const SPARSENESS_MAX: u64 = 4;

/// Numbers that are always allowed, however few inodes there are.
const NUMBERS_MIN: u64 = 1 << 16;

/// The part of the memory left to the job that the table may take.
const HEADROOM_PART: u64 = 8;

/// A complete table.
#[derive(Debug)]
pub struct Table {
    file: File,
    archives: Vec<File>,
    /// The bits that say which parts of a copy among them are there.
    granules: Option<File>,
    count: u64,
}

impl Table {
    /// The table of the files of `tree` that can be read directly; `None` if there are none. Files
    /// of an archive that was changed since it was opened cannot.
    ///
    /// # Errors
    /// `Corrupt` or `Io` if the inodes cannot be read; `Io` if every archive was changed, which may
    /// be another name or mode that the next read accepts; `Unsupported` if the table would take
    /// too much memory.
    pub fn build(tree: &dyn Tree, device: u64) -> Result<Option<Self>> {
        let entries = entries(tree)?;
        let mut builder = Builder::new(entries)
            .map_err(|error| Error::io("cannot make the table of direct reads", error))?;
        tree.stored_files(&mut |ino, file| builder.add(ino, &file))?;
        builder
            .finish(device)
            .map_err(|error| Error::io("cannot make the table of direct reads", error))
    }

    /// The sealed file that holds it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The archive files, in the order of their numbers, open for reading only.
    pub fn archives(&self) -> &[File] {
        &self.archives
    }

    /// The bits that say which parts of a copy are there, if one of the files is a copy.
    pub fn granules(&self) -> Option<&File> {
        self.granules.as_ref()
    }

    /// Number of files that can be read directly.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// Whether `build` fails with `error` each time.
pub fn is_lasting(error: &Error) -> bool {
    error.is_damage() || error.kind() == Kind::Unsupported
}

fn entries(tree: &dyn Tree) -> Result<u64> {
    let refused = |why: &str| Err(Error::new(Kind::Unsupported, why));
    let (end, inodes) = (tree.numbers_end(), tree.totals().inodes);
    if end > inodes.saturating_mul(SPARSENESS_MAX).max(NUMBERS_MIN) {
        return refused("the inode numbers of the archive are sparse");
    }
    let len = end.saturating_mul(ENTRY as u64);
    let headroom = memory::headroom().map_or(u64::MAX, |headroom| headroom.bytes);
    if len > headroom / HEADROOM_PART {
        return refused("the table of its files would take too much memory");
    }
    Ok(end)
}

struct Builder {
    file: File,
    entries: u64,
    /// The page of entries that is being filled, and its number.
    page: Box<[u8; PAGE]>,
    number: u64,
    tails: Vec<u8>,
    /// The archive files in the order of their numbers, with their descriptions.
    archives: Vec<(FilePosition, [u8; FILE])>,
    /// Archive files that were rewritten since they were opened, or have other attributes. Their
    /// members are read through the mount.
    changed: Vec<FilePosition>,
    count: u64,
    failed: io::Result<()>,
}

impl Builder {
    fn new(entries: u64) -> io::Result<Self> {
        let file = memory_file::create()?;
        file.set_len(tails_offset(entries))?;
        let (page, number) = (Box::new([0; PAGE]), 0);
        let (tails, archives, changed) = (Vec::new(), Vec::new(), Vec::new());
        let failed = Ok(());
        Ok(Self { file, entries, page, number, tails, archives, changed, count: 0, failed })
    }

    fn add(&mut self, ino: Ino, file: &StoredFile) {
        if self.failed.is_ok() && ino.number() < self.entries {
            self.failed = self.try_add(ino, file);
        }
    }

    fn try_add(&mut self, ino: Ino, file: &StoredFile) -> io::Result<()> {
        let Some(head) = self.location(&file.head)? else { return Ok(()) };
        let location = match &file.tail {
            None => head,
            Some((head_len, tail)) => {
                let Some(tail) = self.location(tail)? else { return Ok(()) };
                let number = (self.tails.len() / TAIL) as u64;
                for value in [head, tail, *head_len] {
                    self.tails.extend(value.to_ne_bytes());
                }
                HAS_TAIL | 1 << OFFSET_BITS | number
            }
        };
        let offset = ino.number() * ENTRY as u64;
        self.turn_to(offset / PAGE as u64)?;
        let at = (offset % PAGE as u64) as usize;
        put_numbers(&mut self.page[at..at + ENTRY], &[location, file.size]);
        self.count += 1;
        Ok(())
    }

    /// Makes `number` the page that is filled. Inodes come mostly in ascending order, so a page is
    /// rarely filled twice.
    fn turn_to(&mut self, number: u64) -> io::Result<()> {
        if number == self.number {
            return Ok(());
        }
        self.write_page()?;
        self.number = number;
        let offset = self.page_offset();
        self.file.read_exact_at(&mut self.page[..], offset)
    }

    fn write_page(&self) -> io::Result<()> {
        self.file.write_all_at(&self.page[..], self.page_offset())
    }

    fn page_offset(&self) -> u64 {
        (self.number + 1) * PAGE as u64
    }

    /// The number for a position; `None` if the table has no room for the file, if the file was
    /// changed, or if the offset is too large.
    fn location(&mut self, position: &FilePosition) -> io::Result<Option<u64>> {
        let is_same = |other: &FilePosition| Arc::ptr_eq(&other.file, &position.file);
        let number = match self.archives.iter().position(|(other, _)| is_same(other)) {
            Some(number) => number,
            None if self.archives.len() == FILES_MAX || self.changed.iter().any(is_same) => {
                return Ok(None);
            }
            None => match description(position)? {
                Some(description) => {
                    self.archives.push((position.clone(), description));
                    self.archives.len() - 1
                }
                None => {
                    self.changed.push(position.clone());
                    return Ok(None);
                }
            },
        };
        Ok((position.offset >> OFFSET_BITS == 0)
            .then_some((number as u64 + 1) << OFFSET_BITS | position.offset))
    }

    fn finish(self, device: u64) -> io::Result<Option<Table>> {
        self.write_page()?;
        let Self { file, entries, tails, archives, changed, count, failed, .. } = self;
        failed?;
        if !changed.is_empty() {
            let changed = counted(changed.len() as u64, "archive");
            log::warn!("no direct reads of {changed}: rewritten, or with other attributes");
        }
        if count == 0 {
            return match changed.is_empty() {
                true => Ok(None),
                false => {
                    Err(io::Error::other("the archive was rewritten, or its attributes changed"))
                }
            };
        }
        let tails_offset = tails_offset(entries);
        file.write_all_at(&tails, tails_offset)?;
        let mut header = [0; PAGE];
        header[..8].copy_from_slice(&MAGIC);
        let values = [
            device,
            entries,
            PAGE as u64,
            (tails.len() / TAIL) as u64,
            tails_offset,
            archives.len() as u64,
        ];
        put_numbers(&mut header[8..], &values);
        for (slot, (_, description)) in header[FILES_OFFSET..].chunks_exact_mut(FILE).zip(&archives)
        {
            slot.copy_from_slice(description);
        }
        // All copies of a mount are in one file.
        let filled = archives.iter().find_map(|(archive, _)| match &archive.valid {
            Valid::Filled(filled) => Some(filled.clone()),
            Valid::Unmodified { .. } => None,
        });
        let granules = filled.as_ref().map(|filled| read_only(filled.bits.file())).transpose()?;
        if let (Some(Filled { granule, .. }), Some(granules)) = (&filled, &granules) {
            let count = granules.metadata()?.size().saturating_mul(8);
            put_numbers(&mut header[GRANULES_OFFSET..], &[*granule, count]);
        }
        file.write_all_at(&header, 0)?;
        memory_file::seal(&file)?;
        let archives = archives.iter().map(|(archive, _)| read_only(&archive.file));
        let archives = archives.collect::<io::Result<_>>()?;
        Ok(Some(Table { file, archives, granules, count }))
    }
}

/// What `library.c` compares after each read of an archive file: device, inode, size, and the times
/// of modification and change in seconds and nanoseconds. A program can set the modification time
/// back, but not the change time. Times of a copy do not count, because only the daemon writes it.
/// `None` if the file was changed since it was opened.
fn description(archive: &FilePosition) -> io::Result<Option<[u8; FILE]>> {
    let found = archive.file.metadata()?;
    let times = (
        (found.mtime(), u32::try_from(found.mtime_nsec()).unwrap_or(0)),
        found.ctime().wrapping_mul(1_000_000_000).wrapping_add(found.ctime_nsec()).cast_unsigned(),
    );
    let nanoseconds = match archive.valid {
        Valid::Unmodified { modified, changed } if (modified, changed) != times => {
            return Ok(None);
        }
        Valid::Unmodified { modified, .. } => u64::from(modified.1),
        Valid::Filled(_) => FILLED,
    };
    let mut bytes = [0; FILE];
    let values = [
        found.dev(),
        found.ino(),
        found.size(),
        found.mtime().cast_unsigned(),
        nanoseconds,
        found.ctime().cast_unsigned(),
        found.ctime_nsec().cast_unsigned(),
    ];
    put_numbers(&mut bytes, &values);
    Ok(Some(bytes))
}

fn put_numbers(bytes: &mut [u8], numbers: &[u64]) {
    for (slot, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
        *slot = number.to_ne_bytes();
    }
}

/// Opens `file` again for reading only: a staged copy and its bits are also open for writing.
pub(super) fn read_only(file: &File) -> io::Result<File> {
    let reopened = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    match reopened {
        // This user may not open it any more, for example because its mode has changed.
        Err(error) if !fcntl_getfl(file)?.contains(OFlags::RDWR) => {
            log::debug!("cannot open an archive again: {error}");
            file.try_clone()
        }
        reopened => reopened,
    }
}

/// Offset of the tails: after the header and the entries.
fn tails_offset(entries: u64) -> u64 {
    let entries = (entries * ENTRY as u64).next_multiple_of(PAGE as u64);
    PAGE as u64 + entries.max(PAGE as u64)
}
