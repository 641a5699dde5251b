//! The pax records of GNU tar for a sparse member: versions 0.0, 0.1 and 1.0 of its format
//! ("GNU tar manual", "Storing Sparse Files").

use super::pax;
use crate::error::{Error, Result};
use crate::formats::limits::{MEMBER_PATH_MAX, TAR_SPARSE_MAX};

/// The records of GNU tar for a sparse member.
#[derive(Clone, Debug, Default)]
pub(super) struct SparseRecords {
    /// The real path. The path in the header is artificial.
    pub(super) name: Option<Vec<u8>>,
    /// Size of the file with its holes.
    pub(super) real_size: Option<u64>,
    /// Versions 0.0 and 0.1: the pieces.
    pub(super) pieces: Option<Vec<(u64, u64)>>,
    /// Version 0.0: an offset whose length has not been read yet.
    offset: Option<u64>,
    /// Version 1.0: the map is before the data.
    pub(super) has_preface: bool,
}

impl SparseRecords {
    /// Whether no values are set.
    pub(super) fn is_empty(&self) -> bool {
        let Self { name, real_size, pieces, offset, has_preface } = self;
        name.is_none()
            && real_size.is_none()
            && pieces.is_none()
            && offset.is_none()
            && !has_preface
    }

    /// Applies the record `GNU.sparse.` followed by `suffix`.
    pub(super) fn apply(&mut self, suffix: &[u8], value: &[u8]) -> Result<()> {
        let number = || pax::number(value);
        match suffix {
            b"name" if value.len() <= MEMBER_PATH_MAX => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.real_size = number(),
            b"map" => self.pieces = Some(parse_list(value)?),
            // A map without pieces has no other record: the file is one hole.
            b"numblocks" => _ = self.pieces.get_or_insert_default(),
            b"offset" => self.offset = number(),
            b"numbytes" => {
                let pieces = self.pieces.get_or_insert_default();
                pieces.extend(self.offset.take().zip(number()));
                check_count(pieces.len())?;
            }
            b"major" => self.has_preface = number() == Some(1),
            _ => {}
        }
        Ok(())
    }
}

/// Version 0.1: decodes `OFFSET,LENGTH,OFFSET,LENGTH...` from one record.
fn parse_list(text: &[u8]) -> Result<Vec<(u64, u64)>> {
    let mut numbers = text.split(|&byte| byte == b',').map(pax::number);
    let mut pieces = Vec::new();
    if text.is_empty() {
        return Ok(pieces);
    }
    while let Some(offset) = numbers.next() {
        let piece = offset.zip(numbers.next().flatten());
        pieces.push(piece.ok_or_else(|| Error::corrupt("sparse map: no list of pairs"))?);
        check_count(pieces.len())?;
    }
    Ok(pieces)
}

/// Rejects more pieces than memory should be spent on.
pub(super) fn check_count(count: usize) -> Result<()> {
    if count <= TAR_SPARSE_MAX {
        return Ok(());
    }
    Err(Error::corrupt(format!("sparse map: {count} segments, limit {TAR_SPARSE_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_list_of_pairs() {
        assert_eq!(parse_list(b"0,512,1024,1").unwrap(), [(0, 512), (1024, 1)]);
        assert_eq!(parse_list(b"").unwrap(), []);
        for text in [&b"1"[..], b"1,2,3", b"1,x", b",", b"1,2,"] {
            assert!(parse_list(text).is_err(), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn accepts_as_many_pieces_as_the_limit_and_no_more() {
        assert!(check_count(TAR_SPARSE_MAX).is_ok());
        assert!(check_count(TAR_SPARSE_MAX + 1).is_err());
    }
}
