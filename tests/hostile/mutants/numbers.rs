//! Maps an inode number shown by archfs back to an inode reference.
//!
//! Written independently of src/formats/squashfs/inode.rs: by the mutant's export table, or from
//! the number itself if the table does not have the inode. A wrong reference names another object,
//! so its facts would differ and fail the test.

use std::cell::RefCell;
use std::collections::HashMap;

use archfs::codecs::Codec;

use super::field::field;
use super::image::codec;
use super::layout::BLOCK;

const NO_TABLE: u64 = u64::MAX;

/// If the image has an export table, numbers made from a reference start above all 32-bit numbers.
const BEHIND_STORED: u64 = 1 << 32;

/// Without an export table they start above the root's number, 1.
const BEHIND_ROOT: u64 = 2;

/// The number for all references past the end of a metadata block.
const NOWHERE: u64 = 1 << 46;

/// A decoded metadata block, and the position of the next one.
type Decoded = Option<(Vec<u8>, usize)>;

/// The inode numbers of an image.
pub(crate) struct Numbers {
    pub(crate) root: u64,
    /// The number stored in the root inode, if the export table maps it to the root.
    root_number: Option<u64>,
    /// Positions of the blocks of the export table.
    exports: Option<Vec<u64>>,
    count: u64,
    /// The bytes of the image, up to the length in the superblock.
    bytes: Vec<u8>,
    codec: Codec,
    blocks: RefCell<HashMap<usize, Decoded>>,
}

impl Numbers {
    /// Takes the bytes of an image that archfs has opened.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let number = |at, width| field(at, width).read(bytes);
        let (count, root, used) = (number(4, 4), number(32, 8), number(40, 8) as usize);
        let (inodes, list) = (number(64, 8), number(88, 8));
        let mut numbers = Self {
            root,
            root_number: None,
            exports: None,
            count,
            bytes: bytes[..used].to_vec(),
            codec: codec(number(20, 2) as usize),
            blocks: RefCell::default(),
        };
        let len = count.div_ceil(BLOCK as u64 / 8) * 8;
        // A list that does not fit counts as a missing table.
        if list != NO_TABLE && list.checked_add(len).is_some_and(|end| end <= used as u64) {
            let list = &bytes[list as usize..(list + len) as usize];
            numbers.exports =
                Some(list.as_chunks().0.iter().map(|at| u64::from_le_bytes(*at)).collect());
        }
        let record = numbers.metadata::<16>(inodes + (root >> 16), (root & 0xffff) as usize);
        let number = field(12, 4).read(&record.expect("the root of an opened image"));
        numbers.root_number = (numbers.exported(number) == Some(root)).then_some(number);
        numbers
    }

    /// The reference of the inode with that number. `None` for the number that all impossible
    /// references share.
    ///
    /// # Panics
    ///
    /// If no inode can have that number.
    pub(crate) fn reference(&self, number: u64) -> Option<u64> {
        if number == 1 {
            return Some(self.root);
        }
        let behind = if self.exports.is_some() { BEHIND_STORED } else { BEHIND_ROOT };
        if let Some(made) = number.checked_sub(behind) {
            let (block, offset) = (made / BLOCK as u64, made % BLOCK as u64);
            return (made != NOWHERE).then_some(block << 16 | offset);
        }
        let stored = if Some(number) == self.root_number { 1 } else { number };
        let exported = self.exported(stored);
        Some(exported.unwrap_or_else(|| panic!("inode {number} is shown, and none has it")))
    }

    /// The export table's reference for the inode that stores `stored`.
    fn exported(&self, stored: u64) -> Option<u64> {
        let index = stored.checked_sub(1).filter(|index| *index < self.count)?;
        let (nth, within) = (index / (BLOCK as u64 / 8), index % (BLOCK as u64 / 8));
        let start = *self.exports.as_ref()?.get(nth as usize)?;
        self.metadata(start, within as usize * 8).map(u64::from_le_bytes)
    }

    /// `N` bytes of metadata, which may continue in the next block.
    fn metadata<const N: usize>(&self, start: u64, mut offset: usize) -> Option<[u8; N]> {
        let mut found = Vec::new();
        let mut start = usize::try_from(start).ok()?;
        while found.len() < N {
            let mut blocks = self.blocks.borrow_mut();
            let (block, next) =
                blocks.entry(start).or_insert_with(|| self.decoded(start)).as_ref()?;
            found.extend(block.get(offset..)?.iter().take(N - found.len()));
            (start, offset) = (*next, 0);
        }
        found.try_into().ok()
    }

    fn decoded(&self, start: usize) -> Decoded {
        let behind = self.bytes.get(start..)?;
        let word = u16::from_le_bytes(*behind.first_chunk()?) as usize;
        let len = word & 0x7fff;
        let stored = behind.get(2..2 + len)?;
        let mut block = vec![0; BLOCK];
        let decoded = match word & 0x8000 {
            0 => self.codec.decode(stored, &mut block).ok()?,
            _ => {
                block.get_mut(..len)?.copy_from_slice(stored);
                len
            }
        };
        block.truncate(decoded);
        (decoded > 0).then_some((block, start + 2 + len))
    }
}
