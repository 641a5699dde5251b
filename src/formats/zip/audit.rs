//! Compares the local headers and the data descriptors with the central directory. No reader needs
//! them to agree, but programs that read an archive as a stream see what the local headers say.

use super::end::CentralDirectory;
use super::entry::Entry;
use super::entry_walk::EntryWalk;
use super::local::{FIXED, LocalHeader, Packed};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, length};
use crate::formats::index::paths::components_of;
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
    directory: CentralDirectory,
    found: &mut dyn FnMut(Finding),
) {
    let mut walk = EntryWalk::new(storage, directory);
    loop {
        match walk.next() {
            Ok(None) => break,
            Ok(Some((_, entry))) => {
                // Encrypted headers say nothing. Opening reports entries outside of the archive.
                let packed = entry.packed(&directory);
                let (false, Ok(packed)) = (entry.is_encrypted(), packed) else { continue };
                let difference = difference(storage.as_ref(), &directory, packed, &entry);
                let location = || Location::Path(components_of(&entry.path()).join(&b'/'));
                match difference {
                    Ok(None) => {}
                    Ok(Some(what)) => found(Finding::damage(location(), what)),
                    Err(error) => found(Finding::from_error(location(), &error)),
                }
            }
            Err(error) => {
                found(Finding::from_error(Location::Archive, &error));
                break;
            }
        }
    }
}

/// What differs between `entry` and the local header of its data `packed`.
fn difference(
    storage: &dyn Storage,
    directory: &CentralDirectory,
    packed: Packed,
    entry: &Entry<'_>,
) -> Result<Option<&'static str>> {
    let mut bytes = vec![0; FIXED];
    storage.read_exact_at(&mut bytes, packed.header)?;
    let local = LocalHeader::parse(&bytes)?;
    let end = local.data_end(packed, directory)?;
    let mut name = vec![0; usize::from(local.name_len)];
    storage.read_exact_at(&mut name, packed.header.saturating_add(length(FIXED)))?;
    if name != entry.name {
        return Ok(Some("its local header has another name"));
    }
    let is_same = |short: u32, long: u64| short == u32::MAX || u64::from(short) == long;
    let has_crc32 = local.crc32 == entry.crc32;
    let has_lens = is_same(local.compressed, entry.compressed) && is_same(local.size, entry.size);
    match (has_crc32, has_lens) {
        (true, true) => Ok(None),
        // The numbers are after the data. Some programs set this flag and write no descriptor, but
        // the numbers in the local header, which are right then.
        _ if entry.has_descriptor() => descriptor_difference(storage, directory, end, entry),
        (false, _) => Ok(Some("its local header has another checksum")),
        (true, false) => Ok(Some("its local header has another length")),
    }
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
    let (bytes, _) = bytes.split_at_mut_checked(super::index(len)).unwrap_or_default();
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
        let expected = (entry.crc32, entry.compressed, entry.size);
        [false, true].into_iter().any(|is_long| read(is_long).is_ok_and(|read| read == expected))
    });
    Ok((!is_right).then_some("its data descriptor contradicts the central directory"))
}
