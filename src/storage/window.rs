//! A part of other storage: an image at an offset inside a larger file.
//!
//! Invariant: nothing outside the window can be read through it.

use super::Storage;
use crate::error::{Error, Kind, Result};
use crate::sync::Arc;

/// The bytes of `inner` from an offset to its end, or to a cut.
pub struct Window {
    inner: Arc<dyn Storage>,
    start: u64,
    len: u64,
}

impl Window {
    /// The part of `inner` from byte `start` on.
    ///
    /// # Errors
    /// `InvalidInput` if `start` is past the end.
    pub fn new(inner: Arc<dyn Storage>, start: u64) -> Result<Self> {
        let total = inner.len();
        let len = total.checked_sub(start).ok_or_else(|| {
            let context = format!("offset {start} lies past the end of the file ({total} bytes)");
            Error::new(Kind::InvalidInput, context)
        })?;
        Ok(Self { inner, start, len })
    }

    /// Cuts the window to its first `len` bytes.
    ///
    /// # Errors
    /// `InvalidInput` if it is shorter.
    pub fn cut(self, len: u64) -> Result<Self> {
        if len > self.len {
            let context = format!("{len} bytes wanted, {} are there", self.len);
            return Err(Error::new(Kind::InvalidInput, context));
        }
        Ok(Self { len, ..self })
    }
}

impl Storage for Window {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let wanted = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        let inside = offset.checked_add(wanted).is_some_and(|end| end <= self.len);
        match self.start.checked_add(offset) {
            Some(start) if inside => self.inner.read_exact_at(buffer, start),
            _ => {
                Err(Error::corrupt(format!("{wanted} bytes at {offset:#x} lie outside the image")))
            }
        }
    }

    fn will_need(&self, offset: u64, len: u64) {
        let inside = len.min(self.len.saturating_sub(offset));
        self.inner.will_need(self.start.saturating_add(offset), inside);
    }
}
