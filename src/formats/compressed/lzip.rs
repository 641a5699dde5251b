//! Lzip files (lzip 1.24 manual, "File format"). One may have several members, one after the other.

use super::container::Container;
use super::streams::StreamFormat;
use super::undivided::UndividedFormat;
use crate::codecs::{Streaming, lzip_stream};
use crate::error::Result;
use crate::formats::cursor::Cursor;

const MAGIC: &[u8] = b"LZIP";

pub(super) struct Lzip;

impl UndividedFormat for Lzip {
    const ADVICE: &'static str = "re-pack it for random access: lzip -dc FILE | xz -T0 > NEW";

    fn recognizes(head: &[u8]) -> bool {
        head.starts_with(MAGIC)
    }
}

impl StreamFormat for Lzip {
    const CONTAINER: Container = Container::Lzip;
    const PADDING_MAX: Option<u64> = None;
    const DECODER_PER_STREAM: bool = true;

    fn decoder(memory: u64) -> Result<Box<dyn Streaming>> {
        Ok(Box::new(lzip_stream(memory)?))
    }

    fn is_stream(cursor: &mut Cursor) -> Result<bool> {
        Ok(cursor.peek(MAGIC.len())? == MAGIC)
    }
}
