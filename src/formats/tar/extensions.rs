//! What extension headers say instead of the member's own header.
//!
//! Owns the keywords of pax (POSIX.1-2017), of GNU tar (GNU.sparse.*), star (SCHILY.xattr.*) and
//! libarchive (LIBARCHIVE.xattr.*); leaves reading them to `chain`.
//! Invariant: a record with an empty value takes back what records said before, as POSIX demands.

use std::collections::BTreeMap;

use super::header::owner;
use super::members::Xattrs;
use super::{acl, pax, sparse};
use crate::error::{Error, Result};
use crate::formats::bytes::index;
use crate::formats::limits::{TAR_PATH_MAX, XATTR_LIST_MAX, XATTR_VALUE_MAX};
use crate::vfs::Timestamp;

/// Values that win over a header's.
#[derive(Clone, Debug, Default)]
pub(super) struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    /// Of GNU tar's headers L and K, which count where no record says a path or a target, whatever
    /// their order: so GNU tar has it. tarfile goes by the first of them.
    pub(super) long_name: Option<Vec<u8>>,
    pub(super) long_link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) modified: Option<Timestamp>,
    /// By name; the later of two values of one name counts.
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Bytes of their names, a NUL behind each.
    xattr_names: usize,
    pub(super) sparse: SparseWords,
}

/// What GNU tar says of a sparse member in pax records.
#[derive(Clone, Debug, Default)]
pub(super) struct SparseWords {
    /// The real path; the header has a made-up one.
    name: Option<Vec<u8>>,
    /// The size with the holes.
    pub(super) real_size: Option<u64>,
    /// Versions 0.0 and 0.1: the pieces.
    pub(super) pieces: Option<Vec<(u64, u64)>>,
    /// Version 0.0: an offset whose length is still to come.
    offset: Option<u64>,
    /// Version 1.0, whose map stands before the data.
    pub(super) has_preface: bool,
}

impl Extensions {
    /// Takes what the records in `body` say.
    ///
    /// # Errors
    /// `Corrupt` where they are none.
    pub(super) fn take(&mut self, body: &[u8]) -> Result<()> {
        for record in pax::records(body) {
            let pax::Record { keyword, value } = record?;
            let number = || pax::number(value);
            let bytes = || (!value.is_empty()).then(|| value.to_vec());
            match keyword {
                b"path" => self.path = bytes(),
                b"linkpath" => self.link = bytes(),
                // Where the next header is depends on it, so it can not be passed over.
                b"size" => self.size = said_size(value)?,
                b"uid" => self.uid = number().map(numbered_owner),
                b"gid" => self.gid = number().map(numbered_owner),
                b"mtime" => self.modified = pax::time(value),
                acl::TEXT if value.is_empty() => _ = self.xattrs.remove(keyword),
                // One that is too long to be kept is one that cannot be understood.
                acl::TEXT if value.len() > index(XATTR_VALUE_MAX) => {
                    self.set_xattr(keyword.to_vec(), b"?".to_vec());
                }
                acl::TEXT => self.set_xattr(keyword.to_vec(), value.to_vec()),
                _ => {
                    if let Some(name) = keyword.strip_prefix(b"SCHILY.xattr.") {
                        self.set_xattr(plain_keyword(name), value.to_vec());
                    } else if let Some(name) = keyword.strip_prefix(b"LIBARCHIVE.xattr.") {
                        if let Some(decoded) = pax::base64(value) {
                            self.set_xattr(pax::unescaped(name), decoded);
                        }
                    } else if let Some(word) = keyword.strip_prefix(b"GNU.sparse.") {
                        self.sparse.take(word, value)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The path that wins over the header's.
    pub(super) fn path(&self) -> Option<&[u8]> {
        let Self { path, long_name, .. } = self;
        self.sparse.name.as_ref().or(path.as_ref()).or(long_name.as_ref()).map(Vec::as_slice)
    }

    /// The target of a link that wins over the header's.
    pub(super) fn link(&self) -> Option<&[u8]> {
        self.link.as_ref().or(self.long_link.as_ref()).map(Vec::as_slice)
    }

    /// Whether nothing was said.
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            path,
            link,
            long_name,
            long_link,
            size,
            uid,
            gid,
            modified,
            xattrs,
            xattr_names: _,
            sparse,
        } = self;
        path.is_none()
            && link.is_none()
            && long_name.is_none()
            && long_link.is_none()
            && size.is_none()
            && uid.is_none()
            && gid.is_none()
            && modified.is_none()
            && xattrs.is_empty()
            && sparse.is_empty()
    }

    /// What global records say that holds for every member: owners and times. A path, a size or a
    /// map for all members alike is nobody's wish; tells whether there was anything of that kind.
    pub(super) fn take_global(&mut self, body: &[u8]) -> Result<bool> {
        let mut said =
            Self { uid: self.uid, gid: self.gid, modified: self.modified, ..Self::default() };
        said.take(body)?;
        let Self { uid, gid, modified, .. } = said;
        let kept = Self { uid, gid, modified, ..Self::default() };
        let others = Self { uid: None, gid: None, modified: None, ..said };
        *self = kept;
        Ok(!others.is_empty())
    }

    /// The extended attributes.
    pub(super) fn xattrs(&self) -> Xattrs {
        self.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Keeps an attribute, unless Linux could not show it.
    fn set_xattr(&mut self, name: Vec<u8>, value: Vec<u8>) {
        let fits = !name.is_empty()
            && name.len() <= 255
            && !name.contains(&0)
            && value.len() <= index(XATTR_VALUE_MAX);
        let behind = self.xattr_names.saturating_add(name.len()).saturating_add(1);
        if !fits {
            self.xattrs.remove(&name);
        } else if let Some(known) = self.xattrs.get_mut(&name) {
            *known = value;
        } else if behind <= XATTR_LIST_MAX {
            self.xattr_names = behind;
            self.xattrs.insert(name, value);
        }
    }
}

impl SparseWords {
    /// Whether nothing was said.
    fn is_empty(&self) -> bool {
        let Self { name, real_size, pieces, offset, has_preface } = self;
        name.is_none()
            && real_size.is_none()
            && pieces.is_none()
            && offset.is_none()
            && !has_preface
    }

    fn take(&mut self, word: &[u8], value: &[u8]) -> Result<()> {
        let number = || pax::number(value);
        match word {
            b"name" if value.len() <= TAR_PATH_MAX => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.real_size = number(),
            b"map" => self.pieces = Some(sparse::listed(value)?),
            // A map of no pieces has no other record: the file is one hole.
            b"numblocks" => _ = self.pieces.get_or_insert_default(),
            b"offset" => self.offset = number(),
            b"numbytes" => {
                let pieces = self.pieces.get_or_insert_default();
                pieces.extend(self.offset.take().zip(number()));
                sparse::checked_count(pieces.len())?;
            }
            b"major" => self.has_preface = number() == Some(1),
            _ => {}
        }
        Ok(())
    }
}

/// The size that a record says; an empty one takes it back.
fn said_size(value: &[u8]) -> Result<Option<u64>> {
    match pax::number(value) {
        None if !value.is_empty() => {
            let shown = value.get(..value.len().min(32)).unwrap_or_default().escape_ascii();
            Err(Error::corrupt(format!("pax header: size {shown} is no number")))
        }
        size => Ok(size),
    }
}

fn numbered_owner(number: u64) -> u32 {
    owner(i64::try_from(number).unwrap_or(-1))
}

/// The name of an attribute from a keyword of GNU tar (1.29 and later, `xattr_decode_keyword`) and
/// libarchive, which can not hold `=` and so has `%3D` for that and `%25` for `%`.
fn plain_keyword(keyword: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(keyword.len());
    let mut rest = keyword;
    while let Some((&first, behind)) = rest.split_first() {
        let (byte, left) = match rest {
            [b'%', b'3', b'D', left @ ..] => (b'=', left),
            [b'%', b'2', b'5', left @ ..] => (b'%', left),
            _ => (first, behind),
        };
        name.push(byte);
        rest = left;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(keyword: &str, value: &str) -> Vec<u8> {
        let body = format!(" {keyword}={value}\n");
        let mut len = body.len();
        while len != body.len() + len.to_string().len() {
            len = body.len() + len.to_string().len();
        }
        format!("{len}{body}").into_bytes()
    }

    fn said(records: &[(&str, &str)]) -> Extensions {
        let mut extensions = Extensions::default();
        let body: Vec<u8> = records.iter().flat_map(|(k, v)| record(k, v)).collect();
        extensions.take(&body).unwrap();
        extensions
    }

    #[test]
    fn the_later_record_wins_and_an_empty_one_takes_back() {
        let found = said(&[("path", "a"), ("path", "b"), ("uid", "5"), ("uid", ""), ("x", "y")]);
        assert_eq!(found.path(), Some(&b"b"[..]));
        assert_eq!(found.uid, None);
        assert!(said(&[("comment", "nothing")]).is_empty());
        assert!(said(&[("path", "a"), ("path", "")]).is_empty());
        assert!(!said(&[("GNU.sparse.name", "a")]).is_empty());
        assert!(!said(&[("GNU.sparse.offset", "0")]).is_empty());
    }

    #[test]
    fn a_size_is_a_number_or_taken_back() {
        let largest = u64::MAX.to_string();
        assert_eq!(said(&[("size", &largest)]).size, Some(u64::MAX));
        assert_eq!(said(&[("size", "5"), ("size", "")]).size, None);
        for size in ["-5", "18446744073709551616", "5 ", "0x5"] {
            let error = Extensions::default().take(&record("size", size)).unwrap_err();
            assert_eq!(error.to_string(), format!("pax header: size {size} is no number"));
        }
    }

    #[test]
    fn the_name_of_a_sparse_member_wins_over_its_path() {
        let found = said(&[("GNU.sparse.name", "real"), ("path", "GNUSparseFile.7/real")]);
        assert_eq!(found.path(), Some(&b"real"[..]));
    }

    #[test]
    fn a_long_name_counts_where_no_record_says_another() {
        let mut found = said(&[("path", "pax"), ("linkpath", "pax-target")]);
        found.long_name = Some(b"long".to_vec());
        found.long_link = Some(b"long-target".to_vec());
        assert_eq!(found.path(), Some(&b"pax"[..]));
        assert_eq!(found.link(), Some(&b"pax-target"[..]));
        found.take(&[record("path", ""), record("linkpath", "")].concat()).unwrap();
        assert_eq!(found.path(), Some(&b"long"[..]));
        assert_eq!(found.link(), Some(&b"long-target"[..]));
        assert!(!found.is_empty());
    }

    #[test]
    fn collects_the_pieces_of_version_0_0() {
        let word = |word: &'static str| match word {
            "o" => "GNU.sparse.offset",
            _ => "GNU.sparse.numbytes",
        };
        let found = said(&[(word("o"), "0"), (word("n"), "5"), (word("o"), "9"), (word("n"), "1")]);
        assert_eq!(found.sparse.pieces, Some(vec![(0, 5), (9, 1)]));
        assert!(!found.sparse.is_empty());
    }

    #[test]
    fn keeps_attributes_that_linux_can_show() {
        let found = said(&[
            ("SCHILY.xattr.user.a", "1"),
            ("LIBARCHIVE.xattr.user.b%3D", "aGk="),
            ("SCHILY.xattr.user.a", "2"),
            ("SCHILY.xattr.", "no name"),
            ("SCHILY.xattr.user.c%3D%25%3d%3", "as GNU tar has it"),
        ]);
        let expected = [("user.a", "2"), ("user.b=", "hi"), ("user.c=%%3d%3", "as GNU tar has it")]
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        assert_eq!(found.xattrs(), expected);
        let longest = "v".repeat(64 << 10);
        assert_eq!(said(&[("SCHILY.xattr.user.a", &longest)]).xattrs.len(), 1);
        assert_eq!(said(&[("SCHILY.xattr.user.a", &(longest + "v"))]).xattrs.len(), 0);
    }
}
