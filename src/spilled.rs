//! Lists that may be larger than memory.
//!
//! Problem: while the tree of an archive with 14 million members is built, its tables take more
//! than 1 GB. A job with less memory is killed, although most of the tables are rarely touched.
//!
//! Idea: a short list is in memory. A long list is in a mapped, unnamed temporary file. It still
//! looks like memory, and the kernel writes its pages to disk when it needs the memory elsewhere.
//! It counts as page cache, which a control group reclaims before it kills.
//!
//! Cost: if the kernel cannot read a mapped page back, it kills the process (SIGBUS), and pages it
//! could not write out are lost. So only file systems are used whose fallocate allocates the blocks
//! up front: ext4 and XFS. There a full disk is an error at allocation. `check` asks whether the
//! disk refused a page before a list is trusted. A read error still kills the process, as with
//! swap. Everywhere else (tmpfs, overlayfs, network) lists stay in memory. If a file cannot grow
//! and there is enough memory, its list moves back to memory.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use memmap2::MmapMut;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::os::memory;
use crate::os::unlinked::{self, allocate, has_blocks};
use crate::sync::Arc;

/// List size in bytes from which it moves to a file. An index has six large lists. Unit tests have
/// lists on both sides of it.
const AFTER: usize = if cfg!(test) { 1 << 12 } else { 1 << 20 };

/// A file grows by its own length, but by at most this, in bytes.
const STEP_MAX: u64 = 256 << 20;

/// Where long lists are put.
#[derive(Clone, Debug)]
pub struct Spill {
    directory: Arc<PathBuf>,
    after: usize,
}

impl Spill {
    /// Puts lists of `after` bytes or more into files in `directory`.
    #[cfg(test)]
    pub fn new(directory: impl Into<PathBuf>, after: usize) -> Self {
        Self { directory: Arc::new(directory.into()), after }
    }

    /// A file with room for `len` bytes. `None` if lists must stay in memory.
    fn file(&self, len: u64) -> Option<Mapped> {
        let created = unlinked::create(&self.directory);
        let mapped = created.and_then(|file| match has_blocks(&file) {
            true => Mapped::new(file, len).map(Some),
            false => Ok(None),
        });
        let directory = self.directory.display();
        mapped.unwrap_or_else(|error| {
            log::info!("a list stays in memory, because it cannot be in {directory}: {error}");
            None
        })
    }
}

impl Default for Spill {
    /// The directory for temporary files.
    fn default() -> Self {
        Self { directory: Arc::new(std::env::temp_dir()), after: AFTER }
    }
}

/// Types a list can hold: every bit pattern is a valid value.
pub trait Value: Copy + FromBytes + IntoBytes + Immutable + KnownLayout {}
impl<T: Copy + FromBytes + IntoBytes + Immutable + KnownLayout> Value for T {}

/// A list in memory or in a file.
#[derive(Debug)]
pub struct Spilled<T> {
    values: Values<T>,
    spill: Spill,
}

#[derive(Debug)]
enum Values<T> {
    Memory(Vec<T>),
    /// The file, and the number of values at its start.
    File(Mapped, usize),
}

/// A mapped file that only this process can open.
#[derive(Debug)]
struct Mapped {
    file: File,
    map: MmapMut,
}

impl Mapped {
    /// Maps the file, with room for `len` bytes.
    fn new(file: File, len: u64) -> io::Result<Self> {
        let map = mapped(&file, len)?;
        Ok(Self { file, map })
    }

    fn grow(&mut self, len: u64) -> io::Result<()> {
        self.map = mapped(&self.file, len)?;
        Ok(())
    }

    /// Whether the disk accepted all pages written back so far.
    #[expect(unsafe_code, reason = "rustix has no sync_file_range(2)")]
    fn check(&self) -> io::Result<()> {
        let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
        // SAFETY: it takes only numbers and an open descriptor.
        match unsafe { libc::sync_file_range(self.file.as_raw_fd(), 0, 0, wait) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Maps `file` after extending it to `len` bytes.
#[expect(unsafe_code, reason = "a mapping is sound only if no process truncates the file")]
fn mapped(file: &File, len: u64) -> io::Result<MmapMut> {
    allocate(file, len)?;
    // SAFETY: the file has no name, so only a process that may trace this one could open it. This
    // process writes to it only through the mapping, and never truncates it.
    let map = unsafe { MmapMut::map_mut(file) }?;
    match u64::try_from(map.len()) {
        Ok(found) if found >= len => Ok(map),
        _ => Err(io::ErrorKind::StorageFull.into()),
    }
}

impl<T: Value> Default for Spilled<T> {
    fn default() -> Self {
        Self::new(&Spill::default())
    }
}

impl<T: Value> Spilled<T> {
    /// An empty list, which moves to `spill` when it becomes long.
    pub fn new(spill: &Spill) -> Self {
        Self { values: Values::Memory(Vec::new()), spill: spill.clone() }
    }

    /// An empty list with room for `len` values.
    pub fn with_capacity(len: usize, spill: &Spill) -> io::Result<Self> {
        let mut list = Self::new(spill);
        list.make_room(len)?;
        Ok(list)
    }

    /// A list of `len` copies of `value`.
    pub fn filled(value: T, len: usize, spill: &Spill) -> io::Result<Self> {
        let mut list = Self::with_capacity(len, spill)?;
        match &mut list.values {
            Values::Memory(values) => values.resize(len, value),
            Values::File(_, count) => {
                *count = len;
                list.fill(value);
            }
        }
        Ok(list)
    }

    /// Appends `value`.
    pub fn push(&mut self, value: T) -> io::Result<()> {
        self.extend_from_slice(&[value])
    }

    /// Appends all `values`.
    pub fn extend_from_slice(&mut self, values: &[T]) -> io::Result<()> {
        self.make_room(values.len())?;
        match &mut self.values {
            Values::Memory(known) => known.extend_from_slice(values),
            Values::File(file, count) => {
                let offset = count.saturating_mul(size_of::<T>());
                let bytes = values.as_bytes();
                let target = file.map.get_mut(offset..offset.saturating_add(bytes.len()));
                let target = target.ok_or(io::ErrorKind::StorageFull)?;
                target.copy_from_slice(bytes);
                *count = count.saturating_add(values.len());
            }
        }
        Ok(())
    }

    /// Checks that the disk accepted what the kernel wrote out of the list.
    pub fn check(&self) -> io::Result<()> {
        match &self.values {
            Values::Memory(_) => Ok(()),
            Values::File(file, _) => file.check(),
        }
    }

    /// Makes room for `more` more values.
    fn make_room(&mut self, more: usize) -> io::Result<()> {
        let needed = self.len().saturating_add(more).saturating_mul(size_of::<T>());
        let len = u64::try_from(needed).unwrap_or(u64::MAX);
        match &mut self.values {
            Values::Memory(_) if needed <= self.spill.after => Ok(()),
            Values::Memory(values) => match self.spill.file(grown(len)) {
                Some(mut file) => {
                    let bytes = values.as_slice().as_bytes();
                    if let Some(target) = file.map.get_mut(..bytes.len()) {
                        target.copy_from_slice(bytes);
                    }
                    self.values = Values::File(file, values.len());
                    Ok(())
                }
                None => self.stay_in_memory(more, len, io::ErrorKind::OutOfMemory.into()),
            },
            Values::File(file, _) if needed <= file.map.len() => Ok(()),
            Values::File(file, _) => match file.grow(grown(len)) {
                Ok(()) => Ok(()),
                Err(error) => self.stay_in_memory(more, len, error),
            },
        }
    }

    /// Moves the list to memory for good, if there is enough for `len` bytes. Otherwise returns
    /// `error`.
    fn stay_in_memory(&mut self, more: usize, len: u64, error: io::Error) -> io::Result<()> {
        // A list in memory grows by doubling, so it needs up to three times its size.
        if memory::headroom().is_some_and(|left| left.bytes / 3 < len) {
            return Err(error);
        }
        let mut values = Vec::new();
        if values.try_reserve_exact(self.len().saturating_add(more)).is_err() {
            return Err(error);
        }
        values.extend_from_slice(self);
        self.values = Values::Memory(values);
        // Does not try a file again.
        self.spill.after = usize::MAX;
        Ok(())
    }

    #[cfg(test)]
    fn is_in_file(&self) -> bool {
        matches!(self.values, Values::File(..))
    }
}

/// The length of a file that must have room for `needed` bytes.
fn grown(needed: u64) -> u64 {
    needed.saturating_add(needed.min(STEP_MAX))
}

impl<T: Value> Deref for Spilled<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.values {
            Values::Memory(values) => values,
            Values::File(file, count) => {
                let bytes = file.map.get(..count.saturating_mul(size_of::<T>()));
                // A mapping begins at a page boundary, so the values are aligned.
                <[T]>::ref_from_bytes(bytes.unwrap_or_default()).unwrap_or_default()
            }
        }
    }
}

impl<T: Value> DerefMut for Spilled<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.values {
            Values::Memory(values) => values,
            Values::File(file, count) => {
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

    /// A directory on disk: the target directory, because /tmp may be in memory. `None` if its file
    /// system is not ext4 or XFS.
    fn on_disk() -> Option<tempfile::TempDir> {
        let target = std::env::current_exe().unwrap();
        let work = tempfile::tempdir_in(target.parent().unwrap()).unwrap();
        let is_used = has_blocks(&unlinked::create(work.path()).unwrap());
        if !is_used {
            eprintln!("SKIPPED: the target directory is not on ext4 or XFS");
        }
        is_used.then_some(work)
    }

    #[test]
    fn a_long_list_moves_to_a_file_unchanged() {
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
    fn a_filled_list_is_in_memory_or_in_a_file_by_its_length() {
        let Some(work) = on_disk() else { return };
        let spill = Spill::new(work.path(), 4000);
        for (len, is_in_file) in [(1000, false), (1001, true)] {
            let list = Spilled::filled(u32::MAX, len, &spill).unwrap();
            assert_eq!((list.len(), list.is_in_file()), (len, is_in_file));
            assert!(list.iter().all(|&value| value == u32::MAX));
        }
    }

    #[test]
    fn stays_in_memory_if_no_file_on_disk_can_be_created() {
        for directory in [Path::new("/dev/shm"), Path::new("/nowhere")] {
            let spill = Spill::new(directory, 0);
            let mut list = Spilled::new(&spill);
            (0..10_000_u64).for_each(|value| list.push(value).unwrap());
            assert!(!list.is_in_file());
            assert_eq!(list.last(), Some(&9999));
        }
    }

    #[test]
    fn a_file_that_cannot_grow_is_an_error() {
        let file = unlinked::create(Path::new("/dev/shm")).unwrap();
        let error = Mapped::new(file, u64::MAX >> 2).unwrap_err();
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::FileTooLarge];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
}
