//! Lists that may be longer than memory.
//!
//! Problem: while the tree of 14 million members is made, its parts take more than 1 GB. A job that
//! has less is killed, although most of the parts are not touched most of the time.
//!
//! Idea: a short list is in memory. A long one is in a temporary file without a name, which is
//! mapped. So it still looks like memory, and the kernel writes pages of it to the disk when it
//! wants the memory for something else. It counts as page cache, which a control group takes back
//! before it kills.
//!
//! Cost: if the kernel cannot give a mapped page back, it kills the process (SIGBUS), and what it
//! could not write out is lost. So only file systems are used that give a file its blocks when they
//! are asked for (fallocate): ext4 and XFS. A full disk is an error there. Whether the disk refused
//! a page is asked before a list is believed (`check`). A read error still kills the process, as
//! with swap. Everywhere else (tmpfs, overlayfs, network) lists stay in memory, and they go back to
//! it where a file cannot grow and there is memory enough.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use memmap2::MmapMut;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::unlinked::{allocate, has_blocks, unlinked};
use crate::memory;
use crate::sync::Arc;

/// Bytes of a list from which on it is in a file. An index has six large lists.
const AFTER: usize = 1 << 20;

/// A file grows by its own length, and by no more than this, bytes.
const STEP_MAX: u64 = 256 << 20;

/// Where long lists go.
#[derive(Clone, Debug)]
pub struct Spill {
    directory: Arc<PathBuf>,
    after: usize,
}

impl Spill {
    /// Into files in `directory`, from `after` bytes on.
    #[cfg(test)]
    pub fn new(directory: impl Into<PathBuf>, after: usize) -> Self {
        Self { directory: Arc::new(directory.into()), after }
    }

    /// A file of room for `len` bytes; `None` where lists must stay in memory.
    fn file(&self, len: u64) -> Option<Mapped> {
        let file = unlinked(&self.directory).ok().filter(has_blocks)?;
        Mapped::new(file, len).ok()
    }
}

impl Default for Spill {
    /// Into the directory for temporary files.
    fn default() -> Self {
        Self { directory: Arc::new(std::env::temp_dir()), after: AFTER }
    }
}

/// What a list can be of: values of which each pattern of bits is one.
pub trait Value: Copy + FromBytes + IntoBytes + Immutable + KnownLayout {}
impl<T: Copy + FromBytes + IntoBytes + Immutable + KnownLayout> Value for T {}

/// A list in memory or in a file.
#[derive(Debug)]
pub struct Spilled<T> {
    held: Held<T>,
    spill: Spill,
}

#[derive(Debug)]
enum Held<T> {
    Memory(Vec<T>),
    /// The file begins with the bytes of so many values.
    File(Mapped, usize),
}

/// A file that this process alone has, and its bytes.
#[derive(Debug)]
struct Mapped {
    file: File,
    map: MmapMut,
}

impl Mapped {
    /// The file with room for `len` bytes, mapped.
    fn new(file: File, len: u64) -> io::Result<Self> {
        let map = mapped(&file, len)?;
        Ok(Self { file, map })
    }

    fn grow(&mut self, len: u64) -> io::Result<()> {
        self.map = mapped(&self.file, len)?;
        Ok(())
    }

    /// Whether the disk took all that was written out so far.
    #[expect(unsafe_code, reason = "rustix has no sync_file_range(2)")]
    fn check(&self) -> io::Result<()> {
        let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
        // SAFETY: it takes numbers alone, of a file that is open.
        match unsafe { libc::sync_file_range(self.file.as_raw_fd(), 0, 0, wait) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The bytes of `file`, which gets room for `len`.
#[expect(unsafe_code, reason = "a mapping is sound only if nobody cuts the file")]
fn mapped(file: &File, len: u64) -> io::Result<MmapMut> {
    allocate(file, len)?;
    // SAFETY: the file has no name, so no process can open it but one that may trace this one, and
    // this one neither writes to it nor cuts it but through its mapping.
    let map = unsafe { MmapMut::map_mut(file) }?;
    match u64::try_from(map.len()) {
        Ok(found) if found >= len => Ok(map),
        _ => Err(io::ErrorKind::StorageFull.into()),
    }
}

impl<T: Value> Spilled<T> {
    /// A list of nothing, which goes where `spill` says when it becomes long.
    pub fn new(spill: &Spill) -> Self {
        Self { held: Held::Memory(Vec::new()), spill: spill.clone() }
    }

    /// A list of nothing with room for `len` values.
    ///
    /// # Errors
    /// The error of the system if there is no room for them.
    pub fn with_capacity(len: usize, spill: &Spill) -> io::Result<Self> {
        let mut list = Self::new(spill);
        list.make_room(len)?;
        Ok(list)
    }

    /// `len` times `value`.
    ///
    /// # Errors
    /// The error of the system if there is no room for them.
    pub fn filled(value: T, len: usize, spill: &Spill) -> io::Result<Self> {
        let mut list = Self::with_capacity(len, spill)?;
        match &mut list.held {
            Held::Memory(values) => values.resize(len, value),
            Held::File(_, count) => {
                *count = len;
                list.fill(value);
            }
        }
        Ok(list)
    }

    /// Adds `value`.
    ///
    /// # Errors
    /// The error of the system if there is no room for it.
    pub fn push(&mut self, value: T) -> io::Result<()> {
        self.extend_from_slice(&[value])
    }

    /// Adds copies of all `values`.
    ///
    /// # Errors
    /// The error of the system if there is no room for them.
    pub fn extend_from_slice(&mut self, values: &[T]) -> io::Result<()> {
        self.make_room(values.len())?;
        match &mut self.held {
            Held::Memory(known) => known.extend_from_slice(values),
            Held::File(file, count) => {
                let at = count.saturating_mul(size_of::<T>());
                let bytes = values.as_bytes();
                let room = file.map.get_mut(at..at.saturating_add(bytes.len()));
                let room = room.ok_or(io::ErrorKind::StorageFull)?;
                room.copy_from_slice(bytes);
                *count = count.saturating_add(values.len());
            }
        }
        Ok(())
    }

    /// Whether what the kernel wrote out of the list can be read back.
    ///
    /// # Errors
    /// That of the disk.
    pub fn check(&self) -> io::Result<()> {
        match &self.held {
            Held::Memory(_) => Ok(()),
            Held::File(file, _) => file.check(),
        }
    }

    /// Makes room for `more` values.
    fn make_room(&mut self, more: usize) -> io::Result<()> {
        let needed = self.len().saturating_add(more).saturating_mul(size_of::<T>());
        let len = u64::try_from(needed).unwrap_or(u64::MAX);
        match &mut self.held {
            Held::Memory(_) if needed <= self.spill.after => Ok(()),
            Held::Memory(values) => match self.spill.file(grown(len)) {
                Some(mut file) => {
                    let bytes = values.as_slice().as_bytes();
                    if let Some(room) = file.map.get_mut(..bytes.len()) {
                        room.copy_from_slice(bytes);
                    }
                    self.held = Held::File(file, values.len());
                    Ok(())
                }
                None => self.stay_in_memory(more, len, io::ErrorKind::OutOfMemory.into()),
            },
            Held::File(file, _) if needed <= file.map.len() => Ok(()),
            Held::File(file, _) => match file.grow(grown(len)) {
                Ok(()) => Ok(()),
                Err(error) => self.stay_in_memory(more, len, error),
            },
        }
    }

    /// Has a list that will have `len` bytes in memory from now on, if there is enough; else gives
    /// `error`.
    fn stay_in_memory(&mut self, more: usize, len: u64, error: io::Error) -> io::Result<()> {
        // It grows by doubling.
        if memory::headroom().is_some_and(|left| left.bytes / 3 < len) {
            return Err(error);
        }
        let mut values = Vec::new();
        if values.try_reserve_exact(self.len().saturating_add(more)).is_err() {
            return Err(error);
        }
        values.extend_from_slice(self);
        self.held = Held::Memory(values);
        // Do not try a file again.
        self.spill.after = usize::MAX;
        Ok(())
    }

    #[cfg(test)]
    fn is_in_file(&self) -> bool {
        matches!(self.held, Held::File(..))
    }
}

/// How long a file becomes that must have room for `needed` bytes.
fn grown(needed: u64) -> u64 {
    needed.saturating_add(needed.min(STEP_MAX))
}

impl<T: Value> Deref for Spilled<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.held {
            Held::Memory(values) => values,
            Held::File(file, count) => {
                let bytes = file.map.get(..count.saturating_mul(size_of::<T>()));
                // A mapping begins at a page, so the values are aligned.
                <[T]>::ref_from_bytes(bytes.unwrap_or_default()).unwrap_or_default()
            }
        }
    }
}

impl<T: Value> DerefMut for Spilled<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.held {
            Held::Memory(values) => values,
            Held::File(file, count) => {
                let bytes = file.map.get_mut(..count.saturating_mul(size_of::<T>()));
                <[T]>::mut_from_bytes(bytes.unwrap_or_default()).unwrap_or_default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// In the target directory, for /tmp may be in memory; `None` where that is on no file system
    /// that lists are kept on.
    fn on_disk() -> Option<tempfile::TempDir> {
        let target = std::env::current_exe().unwrap();
        let work = tempfile::tempdir_in(target.parent().unwrap()).unwrap();
        let is_used = has_blocks(&unlinked(work.path()).unwrap());
        if !is_used {
            eprintln!("SKIPPED: the target directory is not on ext4 or XFS");
        }
        is_used.then_some(work)
    }

    #[test]
    fn a_long_list_goes_to_a_file_and_stays_the_same() {
        let Some(work) = on_disk() else { return };
        let spill = Spill::new(work.path(), 4000);
        let mut list = Spilled::new(&spill);
        let values: Vec<u32> = (0..100_000).map(|value| value * 7).collect();
        for (count, &value) in (1..).zip(&values) {
            list.push(value).unwrap();
            assert_eq!(list.is_in_file(), count > 1000, "{count}");
        }
        assert_eq!(*list, values);
        list.extend_from_slice(&values).unwrap();
        list.sort_unstable();
        assert_eq!(list.len(), 200_000);
        assert!(list.chunks(2).all(|pair| pair[0] == pair[1]));
        assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0, "it has no name");
    }

    #[test]
    fn a_filled_list_is_where_its_length_puts_it() {
        let Some(work) = on_disk() else { return };
        let spill = Spill::new(work.path(), 4000);
        for (len, is_in_file) in [(1000, false), (1001, true)] {
            let list = Spilled::filled(u32::MAX, len, &spill).unwrap();
            assert_eq!((list.len(), list.is_in_file()), (len, is_in_file));
            assert!(list.iter().all(|&value| value == u32::MAX));
        }
    }

    #[test]
    fn stays_in_memory_where_a_file_would_be_in_memory_or_cannot_be() {
        for directory in [Path::new("/dev/shm"), Path::new("/nowhere")] {
            let spill = Spill::new(directory, 0);
            let mut list = Spilled::new(&spill);
            (0..10_000_u64).for_each(|value| list.push(value).unwrap());
            assert!(!list.is_in_file());
            assert_eq!(list.last(), Some(&9999));
        }
    }

    #[test]
    fn a_file_that_cannot_be_so_long_is_an_error() {
        let file = unlinked(Path::new("/dev/shm")).unwrap();
        let error = Mapped::new(file, u64::MAX >> 2).unwrap_err();
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::FileTooLarge];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
}
