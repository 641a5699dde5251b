//! Metadata blocks, each 8 KiB before compression, one after the other in a chain (squashfs.rst,
//! section 3.1), and the tables that are found through a list of their blocks (sections 3.6 and
//! 3.8): fragments, inodes by number, owners, extended attributes.
//!
//! Invariants: a position stays valid, because a full block never moves. The list of blocks comes
//! directly after the blocks, as Linux expects.

use std::collections::HashMap;

use super::blocks::Fragment;
use crate::codecs::Encoder;
use crate::error::{Error, Kind, Result};
use crate::pack::catalog::{Catalog, cannot_spill};
use crate::pack::output::Output;
use crate::spilled::Spilled;
use crate::vfs::is_linux_xattr;

/// Bytes of a block before compression.
pub(super) const BLOCK: usize = 8192;

/// Set in the size of an uncompressed block.
const UNCOMPRESSED: u16 = 0x8000;

/// A position in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Offset of its block in the stored chain.
    pub(super) block: u64,
    /// Offset in the uncompressed block.
    pub(super) offset: u16,
}

impl Position {
    /// The position as an on-disk reference: 48 bits of the block, 16 of the offset.
    pub(super) fn reference(self) -> u64 {
        self.block << 16 | u64::from(self.offset)
    }

    /// The position with this reference.
    pub(super) fn of(reference: u64) -> Self {
        Self { block: reference >> 16, offset: (reference & 0xffff) as u16 }
    }

    /// The offset of the block in 32 bits, as directories store it.
    pub(super) fn block32(self, table: &str) -> Result<u32> {
        u32::try_from(self.block).map_err(|_| {
            let message =
                format!("the {table} table would take more than 4 GiB, the limit of SquashFS");
            Error::new(Kind::InvalidInput, message)
        })
    }
}

/// A chain under construction.
#[derive(Default)]
pub(super) struct Chain {
    stored: Spilled<u8>,
    /// The block that is being filled: less than `BLOCK` bytes between calls.
    open: Vec<u8>,
    /// Offset of each block from the start of the chain.
    starts: Vec<u64>,
    /// Bytes before compression.
    len: u64,
}

impl Chain {
    pub(super) fn position(&self) -> Position {
        Position { block: self.stored.len() as u64, offset: self.open.len() as u16 }
    }

    /// Bytes so far, before compression.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn put(&mut self, encoder: &mut Encoder, mut bytes: &[u8]) -> Result<()> {
        self.len += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - self.open.len()));
            self.open.extend_from_slice(now);
            bytes = later;
            if self.open.len() == BLOCK {
                self.close(encoder)?;
            }
        }
        Ok(())
    }

    /// The stored chain, and the offset of each of its blocks.
    pub(super) fn finish(mut self, encoder: &mut Encoder) -> Result<(Spilled<u8>, Vec<u64>)> {
        if !self.open.is_empty() {
            self.close(encoder)?;
        }
        Ok((self.stored, self.starts))
    }

    fn close(&mut self, encoder: &mut Encoder) -> Result<()> {
        self.starts.push(self.stored.len() as u64);
        // A block is at most 8192 bytes long, so the upper bit of its length is free.
        let len = self.open.len();
        let (size_field, bytes) = match encoder.encode(&self.open, len - 1)? {
            Some(compressed) => (compressed.len() as u16, compressed),
            None => (len as u16 | UNCOMPRESSED, &self.open[..]),
        };
        let kept = self.stored.extend_from_slice(&size_field.to_le_bytes());
        kept.and_then(|()| self.stored.extend_from_slice(bytes)).map_err(cannot_spill)?;
        self.open.clear();
        Ok(())
    }
}

/// Writes `records` and the list of their blocks, and returns the offset of the list.
pub(super) fn write(records: &[u8], encoder: &mut Encoder, output: &mut Output) -> Result<u64> {
    let offsets = blocks(records, encoder, output)?;
    let list = output.len();
    output.append(&offsets)?;
    Ok(list)
}

/// Writes `records` and returns the list of their blocks without writing it.
pub(super) fn blocks(
    records: &[u8],
    encoder: &mut Encoder,
    output: &mut Output,
) -> Result<Vec<u8>> {
    let mut chain = Chain::default();
    chain.put(encoder, records)?;
    let (stored, starts) = chain.finish(encoder)?;
    let table_start = output.len();
    output.append(&stored)?;
    Ok(starts.iter().flat_map(|start| (table_start + start).to_le_bytes()).collect())
}

pub(super) fn fragments(fragments: &[Fragment]) -> Vec<u8> {
    let mut records = Vec::with_capacity(fragments.len() * 16);
    for fragment in fragments {
        records.extend(fragment.start.to_le_bytes());
        records.extend(fragment.size_field.to_le_bytes());
        records.extend([0; 4]);
    }
    records
}

/// The table of owners: users and groups together, each once.
#[derive(Default)]
pub(super) struct Owners {
    numbers: HashMap<u32, u16>,
    records: Vec<u8>,
}

impl Owners {
    /// The index of `id`, which is added if it is new.
    pub(super) fn number(&mut self, id: u32) -> Result<u16> {
        if let Some(&number) = self.numbers.get(&id) {
            return Ok(number);
        }
        // The superblock has 16 bits for the count.
        let number = u16::try_from(self.numbers.len()).ok().filter(|&number| number < u16::MAX);
        let number = number.ok_or_else(|| {
            let message = "a SquashFS image has at most 65535 different users and groups";
            Error::new(Kind::InvalidInput, message)
                .with_hint("give all files one owner: --owner UID:GID")
        })?;
        self.numbers.insert(id, number);
        self.records.extend(id.to_le_bytes());
        Ok(number)
    }

    pub(super) fn count(&self) -> u16 {
        self.numbers.len() as u16
    }

    pub(super) fn records(&self) -> &[u8] {
        &self.records
    }
}

/// The prefixes that have a number. Attributes with other prefixes cannot be stored.
const PREFIXES: [(&[u8], u16); 3] = [(b"user.", 0), (b"trusted.", 1), (b"security.", 2)];

/// Maximum length of a value, bytes (XATTR_SIZE_MAX of Linux).
const XATTR_VALUE_MAX: usize = 65536;

/// The table of extended attributes. Each set of the catalog is stored once, when its first inode
/// is written.
#[derive(Default)]
pub(super) struct Xattrs {
    pairs: Chain,
    /// Records of the id table: reference of a set, number of pairs, bytes of the names.
    ids: Vec<u8>,
    /// By the number in the catalog: the number in this table, if anything of the set could be
    /// stored, and how many attributes could not.
    known: HashMap<u32, (Option<u32>, u64)>,
    /// Attributes that could not be stored, counted once for each inode that has them.
    pub(super) skipped: u64,
}

impl Xattrs {
    /// The number in this table of a set of the catalog.
    pub(super) fn number(
        &mut self,
        catalog: &Catalog,
        encoder: &mut Encoder,
        set: u32,
    ) -> Result<Option<u32>> {
        let (number, skipped) = match self.known.get(&set) {
            Some(&known) => known,
            None => {
                let stored = self.store(catalog.xattrs(set), encoder)?;
                self.known.insert(set, stored);
                stored
            }
        };
        self.skipped += skipped;
        Ok(number)
    }

    fn store(
        &mut self,
        set: &[(Vec<u8>, Vec<u8>)],
        encoder: &mut Encoder,
    ) -> Result<(Option<u32>, u64)> {
        let reference = self.pairs.position().reference();
        let (mut count, mut size, mut skipped) = (0_u32, 0_u32, 0);
        for (name, value) in set {
            let Some((kind, rest)) = split(name).filter(|_| value.len() <= XATTR_VALUE_MAX) else {
                skipped += 1;
                continue;
            };
            let mut pair = Vec::with_capacity(8 + rest.len() + value.len());
            pair.extend(kind.to_le_bytes());
            pair.extend((rest.len() as u16).to_le_bytes());
            pair.extend_from_slice(rest);
            pair.extend((value.len() as u32).to_le_bytes());
            pair.extend_from_slice(value);
            self.pairs.put(encoder, &pair)?;
            count += 1;
            // The size that listxattr(2) reports: the names, each with a NUL.
            size = size.saturating_add(name.len() as u32 + 1);
        }
        if count == 0 {
            return Ok((None, skipped));
        }
        let number = (self.ids.len() / 16) as u32;
        self.ids.extend(reference.to_le_bytes());
        self.ids.extend(count.to_le_bytes());
        self.ids.extend(size.to_le_bytes());
        Ok((Some(number), skipped))
    }

    /// Writes the table and returns its offset, if there are any attributes.
    pub(super) fn write(self, encoder: &mut Encoder, output: &mut Output) -> Result<Option<u64>> {
        if self.ids.is_empty() {
            return Ok(None);
        }
        let start = output.len();
        let (pairs, _) = self.pairs.finish(encoder)?;
        output.append(&pairs)?;
        let offsets = blocks(&self.ids, encoder, output)?;
        let table = output.len();
        output.append(&start.to_le_bytes())?;
        output.append(&((self.ids.len() / 16) as u32).to_le_bytes())?;
        output.append(&[0; 4])?;
        output.append(&offsets)?;
        Ok(Some(table))
    }
}

/// The number of a name's prefix, and the rest of the name.
fn split(name: &[u8]) -> Option<(u16, &[u8])> {
    let found =
        PREFIXES.iter().find_map(|&(prefix, kind)| Some((kind, name.strip_prefix(prefix)?)));
    found.filter(|_| is_linux_xattr(name) && !name.contains(&0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codecs::{Codec, Method};

    fn decoded(mut stored: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let (mut all, mut lens) = (Vec::new(), Vec::new());
        while let [low, high, rest @ ..] = stored {
            let size_field = u16::from_le_bytes([*low, *high]);
            let (block, later) = rest.split_at(usize::from(size_field & !UNCOMPRESSED));
            let mut bytes = block.to_vec();
            if size_field & UNCOMPRESSED == 0 {
                bytes = vec![0; BLOCK];
                let len = Codec::Zstd.decode(block, &mut bytes).unwrap();
                bytes.truncate(len);
            }
            lens.push(bytes.len());
            all.extend(bytes);
            stored = later;
        }
        (all, lens)
    }

    #[test]
    fn all_blocks_but_the_last_are_full() {
        for method in [Method::Zstd(3), Method::None] {
            for len in [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 5] {
                let bytes: Vec<u8> = (0..len).map(|n| (n / 7 % 251) as u8).collect();
                let mut encoder = Encoder::new(method).unwrap();
                for step in [1, 1000, BLOCK, len] {
                    let mut chain = Chain::default();
                    for part in bytes.chunks(step) {
                        chain.put(&mut encoder, part).unwrap();
                    }
                    assert_eq!(chain.len(), len as u64);
                    let (stored, starts) = chain.finish(&mut encoder).unwrap();
                    let (back, lens) = decoded(&stored);
                    assert_eq!(back, bytes);
                    assert_eq!(lens.len(), len.div_ceil(BLOCK));
                    assert_eq!(starts.len(), lens.len());
                    assert!(lens[..lens.len() - 1].iter().all(|&len| len == BLOCK));
                }
            }
        }
    }

    #[test]
    fn a_full_block_ends_where_the_next_begins() {
        let mut encoder = Encoder::new(Method::None).unwrap();
        let mut chain = Chain::default();
        chain.put(&mut encoder, &[7; BLOCK - 1]).unwrap();
        assert_eq!(chain.position(), Position { block: 0, offset: BLOCK as u16 - 1 });
        chain.put(&mut encoder, &[7]).unwrap();
        let next = Position { block: BLOCK as u64 + 2, offset: 0 };
        assert_eq!(chain.position(), next);
        assert_eq!(next.reference(), 8194 << 16);
        assert!(Position { block: u64::from(u32::MAX), offset: 1 }.block32("x").is_ok());
        assert!(Position { block: 1 << 32, offset: 1 }.block32("x").is_err());
    }

    #[test]
    fn limits_owners_to_65535() {
        let mut owners = Owners::default();
        for id in 0..65_535 {
            assert_eq!(owners.number(id * 3).unwrap(), id as u16);
        }
        assert_eq!(owners.number(0).unwrap(), 0);
        assert_eq!((owners.count(), owners.records().len()), (65_535, 65_535 * 4));
        assert_eq!(owners.number(1).unwrap_err().kind(), Kind::InvalidInput);
    }

    #[test]
    fn names_are_split_at_a_known_prefix() {
        assert_eq!(split(b"user.a.b"), Some((0, &b"a.b"[..])));
        assert_eq!(split(b"trusted.x"), Some((1, &b"x"[..])));
        assert_eq!(split(b"security.selinux"), Some((2, &b"selinux"[..])));
        for none in [&b"system.posix_acl_access"[..], b"user.", b"user", b"", b"user.a\0b"] {
            assert_eq!(split(none), None, "{none:?}");
        }
    }

    #[test]
    fn counts_attributes_that_cannot_be_stored() {
        let mut encoder = Encoder::new(Method::None).unwrap();
        let mut xattrs = Xattrs::default();
        let pair = |name: &[u8], len| (name.to_vec(), vec![1; len]);
        let only = [pair(b"system.x", 1), pair(b"user.large", XATTR_VALUE_MAX + 1)];
        assert_eq!(xattrs.store(&only, &mut encoder).unwrap(), (None, 2));
        let both = [pair(b"system.x", 1), pair(b"user.large", XATTR_VALUE_MAX)];
        assert_eq!(xattrs.store(&both, &mut encoder).unwrap(), (Some(0), 1));
        assert_eq!(xattrs.store(&both[1..], &mut encoder).unwrap(), (Some(1), 0));
    }
}
