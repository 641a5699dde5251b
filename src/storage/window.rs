//! A part of other storage: an image that lies at an offset inside a larger file.
//!
//! Owns the shift of offsets. Invariant: nothing before the window can be read through it.

use super::Storage;
use crate::error::{Error, Kind, Result};
use crate::sync::Arc;

/// The bytes of `inner` from an offset to its end.
pub struct Window {
    inner: Arc<dyn Storage>,
    start: u64,
    len: u64,
}

impl Window {
    /// The part of `inner` from `start`, bytes.
    ///
    /// # Errors
    /// `InvalidInput` where `start` lies past the end.
    pub fn new(inner: Arc<dyn Storage>, start: u64) -> Result<Self> {
        let total = inner.len();
        let len = total.checked_sub(start).ok_or_else(|| {
            let context = format!("offset {start} lies past the end of the file ({total} bytes)");
            Error::new(Kind::InvalidInput, context)
        })?;
        Ok(Self { inner, start, len })
    }
}

impl Storage for Window {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let start = self.start.checked_add(offset).ok_or_else(|| {
            Error::corrupt(format!("offset {offset:#x} is past what a file can hold"))
        })?;
        self.inner.read_exact_at(buffer, start)
    }
}
