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
//! Cost: touching a mapped page that the file does not have ends the process (SIGBUS). No other
//! process can open the file to cut it, and its room is taken before it is mapped, so that a full
//! disk is an error. What is left is a disk that fails to give pages back, as with swap. Where room
//! cannot be taken ahead, or files are in memory anyway (tmpfs), lists stay in memory. They go back
//! to it where a file cannot grow and there is memory enough.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use memmap2::MmapMut;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::unlinked::{allocate, is_in_memory, unlinked};
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

    /// A file of room for `len` bytes; `None` where lists had better stay in memory.
    fn file(&self, len: u64) -> Option<Mapped> {
        let file = unlinked(&self.directory).ok().filter(|file| !is_in_memory(file))?;
        Mapped::grown(file, len).ok()
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
    #[expect(unsafe_code, reason = "a mapping is sound only if nobody cuts the file")]
    fn grown(file: File, len: u64) -> io::Result<Self> {
        allocate(&file, len)?;
        // SAFETY: the file has no name, so no other process can open it, and this one neither
        // writes to it nor cuts it but through this mapping.
        let map = unsafe { MmapMut::map_mut(&file) }?;
        Ok(Self { file, map })
    }
}

impl<T: Value> Spilled<T> {
    /// A list of nothing, which goes where `spill` says when it becomes long.
    pub fn new(spill: &Spill) -> Self {
        Self { held: Held::Memory(Vec::new()), spill: spill.clone() }
    }

    /// `len` times `value`.
    ///
    /// # Errors
    /// What the system says where there is no room for it.
    pub fn filled(value: T, len: usize, spill: &Spill) -> io::Result<Self> {
        let mut list = Self::new(spill);
        list.make_room(len)?;
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
    /// What the system says where there is no room for it.
    pub fn push(&mut self, value: T) -> io::Result<()> {
        self.extend_from_slice(&[value])
    }

    /// Adds copies of all `values`.
    ///
    /// # Errors
    /// What the system says where there is no room for them.
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

    /// Sees to room for `more` values.
    fn make_room(&mut self, more: usize) -> io::Result<()> {
        let needed = self.len().saturating_add(more).saturating_mul(size_of::<T>());
        match &mut self.held {
            Held::Memory(_) if needed <= self.spill.after => Ok(()),
            Held::Memory(values) => {
                let len = u64::try_from(needed).unwrap_or(u64::MAX);
                match self.spill.file(grown(len)) {
                    Some(mut file) => {
                        let bytes = values.as_slice().as_bytes();
                        if let Some(room) = file.map.get_mut(..bytes.len()) {
                            room.copy_from_slice(bytes);
                        }
                        self.held = Held::File(file, values.len());
                    }
                    // It is not asked again.
                    None => self.spill.after = usize::MAX,
                }
                Ok(())
            }
            Held::File(file, _) if needed <= file.map.len() => Ok(()),
            Held::File(file, _) => {
                let len = u64::try_from(needed).unwrap_or(u64::MAX);
                match Mapped::grown(file.file.try_clone()?, grown(len)) {
                    Ok(longer) => *file = longer,
                    Err(error) => self.back_to_memory(len, error)?,
                }
                Ok(())
            }
        }
    }

    /// Goes on in memory with a list of `len` bytes, whose file could not grow for `error`.
    fn back_to_memory(&mut self, len: u64, error: io::Error) -> io::Result<()> {
        // It grows by doubling.
        if memory::left().is_some_and(|left| left.bytes / 3 < len) {
            return Err(error);
        }
        self.held = Held::Memory(self.to_vec());
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

    /// In the target directory, for /tmp may be in memory.
    fn on_disk() -> tempfile::TempDir {
        tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
    }

    #[test]
    fn a_long_list_goes_to_a_file_and_stays_the_same() {
        let work = on_disk();
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
        let work = on_disk();
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
    fn a_full_disk_is_an_error() {
        // A disk could be full for others meanwhile; a tmpfs refuses before it takes anything.
        let file = unlinked(Path::new("/dev/shm")).unwrap();
        let room = super::super::free_bytes(&file).unwrap().unwrap();
        let error = Mapped::grown(file, room.saturating_mul(2)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
