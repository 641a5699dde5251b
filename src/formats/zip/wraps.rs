//! What numbers of entries lack that are recorded modulo 4 GiB. `member_order` finds it.

use std::collections::BTreeMap;

use crate::error::{Error, Kind};
use crate::formats::bytes::length;

/// Offsets and lengths are recorded modulo this.
pub(super) const SPAN: u64 = 1 << 32;

/// What to add to the numbers of entries, by the offsets of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wraps {
    /// The entries from which on offsets are `SPAN` larger than before, ascending. An entry occurs
    /// several times if it is several `SPAN` further.
    offsets: Vec<u64>,
    /// The lengths of members of `SPAN` and more: of their data, and decoded.
    lens: BTreeMap<u64, (u64, u64)>,
}

impl Wraps {
    /// Makes the member of an entry longer if more than a `SPAN` follows its recorded end.
    pub(super) fn extend(&mut self, (at, compressed, size): (u64, u64, u64), gap: u64) {
        if gap >= SPAN {
            let long = compressed.saturating_add(gap.saturating_sub(gap % SPAN));
            self.lens.insert(at, (long, size));
        }
    }

    /// Corrects the numbers of the entry at `at`: the length of the decoded data, that of the data,
    /// and the offset of the local header.
    pub(super) fn resolve(&self, at: u64, [size, compressed, offset]: [&mut u64; 3]) {
        let turns = self.offsets.partition_point(|&first| first <= at);
        *offset = offset.saturating_add(length(turns).saturating_mul(SPAN));
        if let Some(&lens) = self.lens.get(&at) {
            (*compressed, *size) = lens;
        }
    }

    /// The local headers of the entry at `at` and of those behind it are a `SPAN` further.
    pub(super) fn turn(&mut self, at: u64) {
        self.offsets.push(at);
    }

    /// Whether the data of the member of the entry at `at` is longer than recorded.
    pub(super) fn is_long(&self, at: u64) -> bool {
        self.lens.contains_key(&at)
    }

    /// Sets the lengths of a member: of its data, and decoded.
    pub(super) fn set_lens(&mut self, at: u64, lens: (u64, u64)) {
        self.lens.insert(at, lens);
    }
}

/// The error for an archive with numbers that do not fit.
pub(super) fn no_zip64(what: &str) -> Error {
    Error::new(
        Kind::Unsupported,
        format!("{what}: probably made by the archive program of macOS, which writes no ZIP64"),
    )
    .with_hint("make it again with `ditto -c -k`, zip or 7z")
}
