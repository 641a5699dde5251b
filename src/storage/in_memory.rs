//! Immutable bytes in memory.

use super::Storage;
use crate::error::{Error, Result};

/// Bytes in memory.
#[derive(Debug)]
pub struct InMemory {
    bytes: Vec<u8>,
}

impl InMemory {
    /// Storage that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }
}

impl Storage for InMemory {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let range = self.bytes.get(start..start.saturating_add(buffer.len()));
        buffer.copy_from_slice(range.ok_or_else(|| Error::corrupt("unexpected end of file"))?);
        Ok(())
    }
}
