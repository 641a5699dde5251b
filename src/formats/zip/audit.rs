//! Compares the local headers and the data descriptors with the central directory. No reader needs
//! them to agree, but programs that read an archive as a stream see what the local headers say.

use super::directory::{CentralDirectory, SPAN};
use super::entry::{Entry, EntryWalk};
use super::local::{LocalHeader, Packed};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index};
use crate::formats::index::members::components_of;
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::{Finding, Location};

/// The signature of a data descriptor, which may be missing (APPNOTE 4.3.9.3).
const DESCRIPTOR: [u8; 4] = *b"PK\x07\x08";

/// Length of the longest data descriptor, bytes.
const DESCRIPTOR_MAX: u64 = 24;

/// Reports each member whose local header or data descriptor contradicts its entry.
pub(super) fn compare(
    storage: &Arc<dyn Storage>,
    directory: &CentralDirectory,
    found: &mut dyn FnMut(Finding),
) {
    let mut walk = EntryWalk::new(storage, directory);
    // The member before: where its header is and its data ends, and its path.
    let mut before: Option<(u64, u64, Vec<u8>)> = None;
    loop {
        match walk.next() {
            Ok(None) => break,
            Ok(Some((_, entry))) => {
                // Encrypted headers say nothing. Opening reports entries outside of the archive.
                let packed = entry.packed(directory);
                let (false, Ok(packed)) = (entry.is_encrypted(), packed) else { continue };
                let compared = difference(storage.as_ref(), directory, packed, &entry);
                let path = components_of(&entry.path()).join(&b'/');
                if let Some((header, end, path)) = before.take()
                    && (header.saturating_add(1)..end).contains(&packed.header)
                {
                    // Its local header is longer than the one that its entry has room for.
                    let what = "its data runs into the next member";
                    found(Finding::damage(Location::Path(path), what));
                }
                match compared {
                    Ok((end, what)) => {
                        let location = || Location::Path(path.clone());
                        what.into_iter().for_each(|what| found(Finding::damage(location(), what)));
                        before = Some((packed.header, end, path));
                    }
                    Err(error) => found(Finding::from_error(Location::Path(path), &error)),
                }
            }
            Err(error) => {
                found(Finding::from_error(Location::Archive, &error));
                break;
            }
        }
    }
}

/// Where the data `packed` of `entry` ends, and what differs between it and its local header.
fn difference(
    storage: &dyn Storage,
    directory: &CentralDirectory,
    packed: Packed,
    entry: &Entry<'_>,
) -> Result<(u64, Option<&'static str>)> {
    let local = LocalHeader::read(storage, packed.header)?;
    let end = local.data_end(packed, directory.start)?;
    if !local.has_name(storage, packed.header, entry.name)? {
        return Ok((end, Some("its local header has another name")));
    }
    // Short ones are modulo 4 GiB in an archive without ZIP64 (`Wraps`).
    let recorded = |long: u64| if entry.has_short_lens() { long % SPAN } else { long };
    let is_same = |short: u32, long: u64| short == u32::MAX || u64::from(short) == recorded(long);
    let has_crc32 = local.crc32 == entry.crc32;
    let has_lens = is_same(local.compressed, entry.compressed) && is_same(local.size, entry.size);
    let what = match (has_crc32, has_lens) {
        (true, true) => None,
        // The numbers are after the data. Some programs set this flag and write no descriptor, but
        // the numbers in the local header, which are right then.
        _ if entry.has_descriptor() => descriptor_difference(storage, directory, end, entry)?,
        (false, _) => Some("its local header has another checksum"),
        (true, false) => Some("its local header has another length"),
    };
    Ok((end, what))
}

/// What differs between `entry` and the data descriptor at `at`.
fn descriptor_difference(
    storage: &dyn Storage,
    directory: &CentralDirectory,
    at: u64,
    entry: &Entry<'_>,
) -> Result<Option<&'static str>> {
    let len = directory.start.saturating_sub(at).min(DESCRIPTOR_MAX);
    let mut bytes = [0; 24];
    let (bytes, _) = bytes.split_at_mut_checked(index(len)).unwrap_or_default();
    storage.read_exact_at(bytes, at)?;
    let without = bytes.strip_prefix(&DESCRIPTOR).unwrap_or(bytes);
    // Without a signature, the checksum may look like one.
    let is_right = [&*bytes, without].into_iter().any(|bytes| {
        let read = |is_long: bool| {
            let mut reader = Reader::new("data descriptor", bytes);
            let crc32 = reader.u32()?;
            let mut next = || if is_long { reader.u64() } else { reader.u32().map(u64::from) };
            Ok::<_, Error>((crc32, next()?, next()?))
        };
        // Short ones are modulo 4 GiB in an archive without ZIP64 (`Wraps`).
        let expected = |is_long: bool| {
            let is_modulo = entry.has_short_lens() && !is_long;
            let recorded = |len: u64| if is_modulo { len % SPAN } else { len };
            (entry.crc32, recorded(entry.compressed), recorded(entry.size))
        };
        let is_same = |is_long: bool| read(is_long).is_ok_and(|read| read == expected(is_long));
        [false, true].into_iter().any(is_same)
    });
    Ok((!is_right).then_some("its data descriptor contradicts the central directory"))
}
