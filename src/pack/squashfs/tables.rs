//! Tables that are found through a list of their blocks (squashfs.rst, section 3.6): fragments,
//! inodes by number, owners.
//!
//! Invariant: the list of blocks comes directly after the blocks, as Linux expects.

use std::collections::HashMap;

use crate::codecs::Encoder;
use crate::error::{Error, Kind, Result};
use crate::pack::output::Output;

use super::fragments::Fragment;
use super::metadata::Chain;

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

/// The records of fragment blocks.
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

    /// Number of owners.
    pub(super) fn count(&self) -> u16 {
        self.numbers.len() as u16
    }

    /// All owners, by their index.
    pub(super) fn records(&self) -> &[u8] {
        &self.records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
