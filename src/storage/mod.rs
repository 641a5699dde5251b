//! Where the bytes of an archive come from: files, copies, memory, and windows into them.
//!
//! Invariant: a read fills the whole buffer or fails, and may run from any number of threads at
//! once.

use crate::error::Result;

mod archives;
mod changes;
mod directory;
#[cfg(test)]
mod faulty;
mod file;
mod in_memory;
#[cfg(any(test, fuzzing))]
mod mem;
mod metered;
mod new_file;
mod page_cache;
mod pool;
mod spilled;
mod trust;
mod unlinked;
mod window;

pub use archives::{copied_len, copy, open_files, read_all};
pub use changes::Changes;
pub use directory::{Appended, Directory, Readers};
#[cfg(test)]
pub use faulty::{Faults, FaultyStorage};
pub use file::{FileStorage, Identity, Origin};
pub use in_memory::InMemory;
#[cfg(any(test, fuzzing))]
pub use mem::MemStorage;
pub use metered::Metered;
pub use new_file::{Existing, NewFile};
pub use spilled::{Spill, Spilled};
pub use trust::{first_untrusted, is_served_by_another, is_trusted, is_unmapped};
pub use unlinked::{free_bytes, is_in_memory, reserve, unlinked};
pub use window::Window;

/// Bytes that can be read at any offset.
pub trait Storage: Send + Sync {
    /// Size in bytes.
    fn len(&self) -> u64;

    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// # Errors
    /// `Corrupt` if the storage ends before the buffer is full; `Io` if the system reports an
    /// error.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// Announces that this range will be read soon. Advice, which may be ignored.
    fn will_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Frees memory that is kept only for speed. Does not affect the storage below.
    fn release(&self) {}

    /// Whether the storage has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
