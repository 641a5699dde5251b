//! The table of extended attributes (squashfs.rst, section 3.8).
//!
//! Invariant: each set of the catalog is stored once, when its first inode is written.

use std::collections::HashMap;

use crate::codecs::Encoder;
use crate::error::Result;
use crate::pack::catalog::Catalog;
use crate::pack::output::Output;
use crate::vfs::is_linux_xattr;

use super::metadata::Chain;
use super::tables;

/// The prefixes that have a number. Attributes with other prefixes cannot be stored.
const PREFIXES: [(&[u8], u16); 3] = [(b"user.", 0), (b"trusted.", 1), (b"security.", 2)];

/// Maximum length of a value, bytes (XATTR_SIZE_MAX of Linux).
const VALUE: usize = 65536;

/// The table under construction.
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
            let Some((kind, rest)) = split(name).filter(|_| value.len() <= VALUE) else {
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
        let offsets = tables::blocks(&self.ids, encoder, output)?;
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
    use crate::codecs::Method;

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
        let only = [pair(b"system.x", 1), pair(b"user.large", VALUE + 1)];
        assert_eq!(xattrs.store(&only, &mut encoder).unwrap(), (None, 2));
        let both = [pair(b"system.x", 1), pair(b"user.large", VALUE)];
        assert_eq!(xattrs.store(&both, &mut encoder).unwrap(), (Some(0), 1));
        assert_eq!(xattrs.store(&both[1..], &mut encoder).unwrap(), (Some(1), 0));
    }
}
