//! Files in memory that other processes can map.
#![expect(unsafe_code, reason = "a mapping that other processes read")]

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

/// An empty file in memory, without a name in any directory.
pub(crate) fn create() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let created = match memfd_create("archfs", flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3.
        Err(Errno::INVAL) => memfd_create("archfs", flags),
        created => created,
    };
    Ok(File::from(created?))
}

/// Fixes the length of `file`, so that no process that maps it gets SIGBUS.
pub(crate) fn seal_length(file: &File) -> io::Result<()> {
    Ok(fcntl_add_seals(file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW)?)
}

/// Fixes the length of `file`, and from Linux 5.1 on lets nothing write to it but mappings that are
/// there already.
pub(crate) fn seal_for_others(file: &File) -> io::Result<()> {
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    match fcntl_add_seals(file, all) {
        Err(Errno::INVAL) => seal_length(file),
        sealed => Ok(sealed?),
    }
}

/// Fixes the length and the contents of `file`.
pub(crate) fn seal(file: &File) -> io::Result<()> {
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    Ok(fcntl_add_seals(file, all)?)
}

const WORD: u64 = 8;

/// Words before those with bits.
const HEAD: usize = 1;

/// Bits in memory that other processes can map and read, in words of 64. The lowest bit of a word
/// is the first.
///
/// The first word is zero as long as the bits are valid. Invariants: a bit that another process
/// sees set stays set; bits that are void stay void.
#[derive(Debug)]
pub struct SharedBits {
    file: File,
    map: MmapRaw,
    words: usize,
}

impl SharedBits {
    /// `count` bits, none set.
    pub fn new(count: u64) -> io::Result<Self> {
        let words = count.div_ceil(64).saturating_add(HEAD as u64);
        let bytes = words.checked_mul(WORD).ok_or(io::ErrorKind::FileTooLarge)?;
        let len = usize::try_from(bytes).map_err(io::Error::other)?;
        let file = create()?;
        file.set_len(bytes)?;
        seal_length(&file)?;
        let map = MmapOptions::new().len(len).map_raw(&file)?;
        Ok(Self { file, map, words: len / size_of::<u64>() })
    }

    /// The file that holds them.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Says that the bits are not valid any more.
    pub fn make_void(&self) {
        if let Some(word) = self.at(0) {
            word.store(1, Ordering::SeqCst);
        }
    }

    /// The word with this number; zeros past the end. What was written before the bits in it were
    /// set can be read.
    pub fn word(&self, number: usize) -> u64 {
        self.at(number.saturating_add(HEAD)).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Sets the bits of `mask` in the word with this number. Returns those that were not set.
    pub fn set(&self, number: usize, mask: u64) -> u64 {
        let word = self.at(number.saturating_add(HEAD));
        word.map_or(0, |word| mask & !word.fetch_or(mask, Ordering::AcqRel))
    }

    /// Clears the bits of `mask` in the word with this number. Returns those that were set. Not for
    /// bits that another process reads.
    pub fn clear(&self, number: usize, mask: u64) -> u64 {
        let word = self.at(number.saturating_add(HEAD));
        word.map_or(0, |word| mask & word.fetch_and(!mask, Ordering::AcqRel))
    }

    fn at(&self, number: usize) -> Option<&AtomicU64> {
        if number >= self.words {
            return None;
        }
        // SAFETY: the map is page-aligned and has `words` words, and its length is sealed. All
        // processes access it only atomically.
        Some(unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(number)) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn another_process_sees_what_is_set() {
        let bits = SharedBits::new(129).unwrap();
        assert_eq!(bits.set(2, 0b101), 0b101);
        assert_eq!(bits.set(2, 0b111), 0b010);
        assert_eq!([0, 2, 3, usize::MAX].map(|number| bits.word(number)), [0, 0b111, 0, 0]);
        assert_eq!(bits.set(3, 1), 0);
        let seen = |offset| {
            let mut word = [0; 8];
            bits.file().read_exact_at(&mut word, offset).unwrap();
            u64::from_ne_bytes(word)
        };
        assert_eq!([0, 24].map(seen), [0, 0b111]);
        bits.make_void();
        assert_eq!([0, 24].map(seen), [1, 0b111]);
        assert!(bits.file().set_len(0).is_err(), "its length is sealed");
        SharedBits::new(u64::MAX).unwrap_err();
        assert_eq!(SharedBits::new(0).unwrap().word(0), 0);
    }
}
