//! A file, or an archive at a URL, as the original of a near copy.

use super::{FileStorage, Handle};
use crate::error::Result;
use crate::remote;
use crate::storage::Storage;
use crate::storage::changes::Attributes;
use crate::storage::near::{By, Source};

/// Bytes of tables that are asked of a server at once. In the time of one request it sends about as
/// much.
const REMOTE_TABLES: u64 = 256 << 10;

impl Source for FileStorage {
    fn fetch(&self, buffer: &mut [u8], offset: u64, by: By) -> Result<()> {
        if let Handle::Remote(file) = &self.handle {
            let waiting = match by {
                By::Reader => remote::Waiting::Reader,
                By::Fill => remote::Waiting::Background,
            };
            return file.read_exact_at(buffer, offset, waiting);
        }
        // A file that is read from its copy should not occupy the page cache as well. But other
        // jobs may be reading the same file, so pages that were cached before stay. One byte stands
        // for all, and is looked at first, because the kernel reads ahead. If the system cannot
        // say, the pages are dropped: to read them again only costs time.
        let last = offset.saturating_add(buffer.len() as u64).saturating_sub(1);
        let was_cached = self.are_cached(std::iter::once(last)).first() == Some(&true);
        self.read_contents_at(buffer, offset)?;
        if !was_cached {
            self.drop_cached(offset, buffer.len() as u64);
        }
        Ok(())
    }

    fn check_version(&self) -> Result<()> {
        let Some(version) = &self.version else { return Ok(()) };
        // Opens it by its path, because some network file systems ask their server only then.
        match self.open_again() {
            Ok((file, found, origin)) if found.is_file_of(&self.identity) => {
                version.compare(Attributes::of(&found, &origin), &file, &self.path)
            }
            // Another file has its name now. The open one cannot be found by that.
            _ => version.check_now(&self.opened()?.0, &self.path),
        }
    }

    fn note_opened(&self) {
        FileStorage::note_opened(self);
    }

    fn tables_at_once(&self) -> u64 {
        if self.is_remote() { REMOTE_TABLES } else { 0 }
    }
}
