//! The values of extension headers, which replace those in a member's own header, and the records
//! of a pax header that contain them: `LENGTH KEYWORD=VALUE\n` (POSIX.1-2017, pax, "Extended
//! Header").
//!
//! The keywords are those of pax (POSIX.1-2017), GNU tar (GNU.sparse.*), star (SCHILY.xattr.*) and
//! libarchive (LIBARCHIVE.xattr.*). `chain` reads the headers.
//!
//! Invariants: a record never extends past the length it claims, nor past its header. A record with
//! an empty value revokes earlier records, as POSIX demands.

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, NO_PAD};
use percent_encoding::percent_decode;

use super::header::{decimal, id_or_nobody};
use super::sparse::SparseRecords;
use crate::error::{Error, Result};
use crate::formats::bytes::index;
use crate::formats::index::ACL_TEXT;
use crate::formats::index::members::Xattrs;
use crate::formats::limits::{XATTR_LIST_MAX, XATTR_VALUE_MAX};
use crate::vfs::Timestamp;

/// The SELinux context in archives of `tar --selinux`.
const SELINUX_CONTEXT: &[u8] = b"RHT.security.selinux";

/// Values that replace those of a header.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    /// From GNU tar's headers L and K. They count only if no record gives a path or target, in
    /// whatever order, as in GNU tar. (Python's tarfile takes the first of them.)
    pub(super) long_name: Option<Vec<u8>>,
    pub(super) long_link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) modified: Option<Timestamp>,
    /// Extended attributes by name. A later value replaces an earlier one.
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Length of all their names, each with a NUL.
    xattr_names_len: usize,
    pub(super) sparse: SparseRecords,
}

impl Extensions {
    /// Forgets all records except those of `globals`. GNU tar's long names stay.
    pub(super) fn replace_records(&mut self, globals: &Self) {
        let (long_name, long_link) = (self.long_name.take(), self.long_link.take());
        *self = Self { long_name, long_link, ..globals.clone() };
    }

    /// Applies the records in `body`.
    pub(super) fn apply(&mut self, body: &[u8]) -> Result<()> {
        for record in records(body) {
            let Record { keyword, value } = record?;
            let number = || decimal(value);
            let bytes = || (!value.is_empty()).then(|| value.to_vec());
            match keyword {
                b"path" => self.path = bytes(),
                b"linkpath" => self.link = bytes(),
                // The offset of the next header depends on it, so an invalid one cannot be skipped.
                b"size" => self.size = parse_size(value)?,
                b"uid" => self.uid = number().map(owner_from),
                b"gid" => self.gid = number().map(owner_from),
                b"mtime" => self.modified = time(value),
                ACL_TEXT if value.is_empty() => _ = self.xattrs.remove(keyword),
                // An ACL that is too long to keep becomes one that cannot be parsed.
                ACL_TEXT if value.len() > index(XATTR_VALUE_MAX) => {
                    self.set_xattr(keyword.to_vec(), b"?".to_vec());
                }
                ACL_TEXT => self.set_xattr(keyword.to_vec(), value.to_vec()),
                _ => {
                    if let Some(name) = keyword.strip_prefix(b"SCHILY.xattr.") {
                        self.set_xattr(unescape_keyword(name), value.to_vec());
                    } else if let Some(name) = keyword.strip_prefix(b"LIBARCHIVE.xattr.") {
                        if let Some(decoded) = base64(value) {
                            self.set_xattr(unescaped(name), decoded);
                        }
                    } else if keyword == SELINUX_CONTEXT {
                        // The kernel returns it with a NUL.
                        let value =
                            if value.is_empty() { Vec::new() } else { [value, b"\0"].concat() };
                        self.set_xattr(b"security.selinux".to_vec(), value);
                    } else if let Some(suffix) = keyword.strip_prefix(b"GNU.sparse.") {
                        self.sparse.apply(suffix, value)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The path that replaces the header's.
    pub(super) fn path(&self) -> Option<&[u8]> {
        let Self { path, long_name, .. } = self;
        self.sparse.name.as_ref().or(path.as_ref()).or(long_name.as_ref()).map(Vec::as_slice)
    }

    /// The target of a link that replaces the header's.
    pub(super) fn link(&self) -> Option<&[u8]> {
        self.link.as_ref().or(self.long_link.as_ref()).map(Vec::as_slice)
    }

    /// Whether no values are set.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self { xattr_names_len: self.xattr_names_len, ..Self::default() }
    }

    /// Applies global records that make sense for all members: owners and times. Returns whether
    /// there were others, such as a path or a size.
    pub(super) fn apply_global(&mut self, body: &[u8]) -> Result<bool> {
        let mut all =
            Self { uid: self.uid, gid: self.gid, modified: self.modified, ..Self::default() };
        all.apply(body)?;
        let Self { uid, gid, modified, .. } = all;
        let kept = Self { uid, gid, modified, ..Self::default() };
        let others = Self { uid: None, gid: None, modified: None, ..all };
        *self = kept;
        Ok(!others.is_empty())
    }

    /// The extended attributes.
    pub(super) fn xattrs(&self) -> Xattrs {
        self.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Keeps an attribute, unless Linux cannot show it.
    fn set_xattr(&mut self, name: Vec<u8>, value: Vec<u8>) {
        let fits = !name.is_empty()
            && name.len() <= 255
            && !name.contains(&0)
            && value.len() <= index(XATTR_VALUE_MAX);
        let names_len = self.xattr_names_len.saturating_add(name.len()).saturating_add(1);
        if !fits {
            self.xattrs.remove(&name);
        } else if let Some(known) = self.xattrs.get_mut(&name) {
            *known = value;
        } else if names_len <= XATTR_LIST_MAX {
            self.xattr_names_len = names_len;
            self.xattrs.insert(name, value);
        }
    }
}

/// Parses a size. An empty value revokes it.
fn parse_size(value: &[u8]) -> Result<Option<u64>> {
    match decimal(value) {
        None if !value.is_empty() => {
            let shown = value.get(..value.len().min(32)).unwrap_or_default().escape_ascii();
            Err(Error::corrupt(format!("pax header: size {shown} is not a number")))
        }
        size => Ok(size),
    }
}

fn owner_from(number: u64) -> u32 {
    id_or_nobody(i64::try_from(number).unwrap_or(-1))
}

/// Decodes the name of an attribute in a keyword of GNU tar (1.29 and later,
/// `xattr_decode_keyword`) or libarchive. A keyword cannot contain `=`, so `%3D` stands for `=` and
/// `%25` for `%`.
fn unescape_keyword(keyword: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(keyword.len());
    let mut rest = keyword;
    while let Some((&first, after_first)) = rest.split_first() {
        let (byte, remaining) = match rest {
            [b'%', b'3', b'D', remaining @ ..] => (b'=', remaining),
            [b'%', b'2', b'5', remaining @ ..] => (b'%', remaining),
            _ => (first, after_first),
        };
        name.push(byte);
        rest = remaining;
    }
    name
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) keyword: &'a [u8],
    /// Any bytes. An empty value revokes earlier ones.
    pub(super) value: &'a [u8],
}

/// The records in `bytes`, in order.
pub(super) fn records(mut bytes: &[u8]) -> impl Iterator<Item = Result<Record<'_>>> {
    std::iter::from_fn(move || {
        // Some programs pad the body with NULs.
        if bytes.is_empty() || bytes.first() == Some(&0) {
            return None;
        }
        match split(bytes) {
            Some((record, rest)) => {
                bytes = rest;
                Some(Ok(record))
            }
            None => {
                let shown = bytes.get(..bytes.len().min(32)).unwrap_or_default().escape_ascii();
                bytes = &[];
                Some(Err(Error::corrupt(format!("pax header: \"{shown}\" is not a record"))))
            }
        }
    })
}

/// The first record, and the bytes after it.
fn split(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let space = bytes.iter().take(20).position(|&byte| byte == b' ')?;
    let (digits, _) = bytes.split_at_checked(space)?;
    let len = usize::try_from(decimal(digits)?).ok()?;
    let (record, rest) = bytes.split_at_checked(len)?;
    let body = record.get(space.checked_add(1)?..)?.strip_suffix(b"\n")?;
    // A keyword cannot contain an equals sign. A value can.
    let equals = body.iter().position(|&byte| byte == b'=')?;
    let (keyword, value) = body.split_at_checked(equals)?;
    Some((Record { keyword, value: value.strip_prefix(b"=")? }, rest))
}

/// Parses a time: seconds since 1970, possibly negative, with an optional fraction of any length.
pub(super) fn time(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    // A sign or a point alone has no meaning. An empty value revokes a time.
    if !text.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let (sign, digits) = match whole.strip_prefix('-') {
        Some(digits) => (-1_i64, digits),
        None => (1, whole),
    };
    let seconds = match digits {
        "" => 0,
        digits => i64::try_from(decimal(digits.as_bytes())?).ok()?.checked_mul(sign)?,
    };
    let nine: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds = u32::try_from(decimal(nine.as_bytes())?).ok()?;
    // Nanoseconds count forward, even before 1970.
    match (sign, nanoseconds) {
        (1, _) | (_, 0) => Some(Timestamp { seconds, nanoseconds }),
        _ => Some(Timestamp {
            seconds: seconds.checked_sub(1)?,
            nanoseconds: 1_000_000_000_u32.checked_sub(nanoseconds)?,
        }),
    }
}

/// Decodes base 64, which libarchive uses for attributes. Padding is optional.
pub(super) fn base64(text: &[u8]) -> Option<Vec<u8>> {
    const CONFIG: GeneralPurposeConfig = NO_PAD.with_decode_allow_trailing_bits(true);
    let end = text.iter().rposition(|&byte| byte != b'=').map_or(0, |at| at.saturating_add(1));
    GeneralPurpose::new(&STANDARD, CONFIG).decode(text.get(..end)?).ok()
}

/// Decodes `%XX`, which libarchive uses in the names of attributes.
pub(super) fn unescaped(text: &[u8]) -> Vec<u8> {
    percent_decode(text).collect()
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

    fn parsed(records: &[(&str, &str)]) -> Extensions {
        let mut extensions = Extensions::default();
        let body: Vec<u8> = records.iter().flat_map(|(k, v)| record(k, v)).collect();
        extensions.apply(&body).unwrap();
        extensions
    }

    #[test]
    fn the_later_record_wins_and_an_empty_one_revokes() {
        let found = parsed(&[("path", "a"), ("path", "b"), ("uid", "5"), ("uid", ""), ("x", "y")]);
        assert_eq!(found.path(), Some(&b"b"[..]));
        assert_eq!(found.uid, None);
        assert!(parsed(&[("comment", "nothing")]).is_empty());
        assert!(parsed(&[("path", "a"), ("path", "")]).is_empty());
        assert!(!parsed(&[("GNU.sparse.name", "a")]).is_empty());
        assert!(!parsed(&[("GNU.sparse.offset", "0")]).is_empty());
    }

    #[test]
    fn a_size_is_a_number_or_revoked() {
        let largest = u64::MAX.to_string();
        assert_eq!(parsed(&[("size", &largest)]).size, Some(u64::MAX));
        assert_eq!(parsed(&[("size", "5"), ("size", "")]).size, None);
        for size in ["-5", "18446744073709551616", "5 ", "0x5"] {
            let error = Extensions::default().apply(&record("size", size)).unwrap_err();
            assert_eq!(error.to_string(), format!("pax header: size {size} is not a number"));
        }
    }

    #[test]
    fn the_name_of_a_sparse_member_wins_over_its_path() {
        let found = parsed(&[("GNU.sparse.name", "real"), ("path", "GNUSparseFile.7/real")]);
        assert_eq!(found.path(), Some(&b"real"[..]));
    }

    #[test]
    fn a_long_name_counts_unless_a_record_gives_another() {
        let mut found = parsed(&[("path", "pax"), ("linkpath", "pax-target")]);
        found.long_name = Some(b"long".to_vec());
        found.long_link = Some(b"long-target".to_vec());
        assert_eq!(found.path(), Some(&b"pax"[..]));
        assert_eq!(found.link(), Some(&b"pax-target"[..]));
        found.apply(&[record("path", ""), record("linkpath", "")].concat()).unwrap();
        assert_eq!(found.path(), Some(&b"long"[..]));
        assert_eq!(found.link(), Some(&b"long-target"[..]));
        assert!(!found.is_empty());
    }

    #[test]
    fn collects_the_pieces_of_version_0_0() {
        let keyword = |short: &'static str| match short {
            "o" => "GNU.sparse.offset",
            _ => "GNU.sparse.numbytes",
        };
        let found = parsed(&[
            (keyword("o"), "0"),
            (keyword("n"), "5"),
            (keyword("o"), "9"),
            (keyword("n"), "1"),
        ]);
        assert_eq!(found.sparse.pieces, Some(vec![(0, 5), (9, 1)]));
        assert_ne!(found.sparse, SparseRecords::default());
    }

    #[test]
    fn keeps_attributes_that_linux_can_show() {
        let found = parsed(&[
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
        assert_eq!(parsed(&[("SCHILY.xattr.user.a", &longest)]).xattrs.len(), 1);
        assert_eq!(parsed(&[("SCHILY.xattr.user.a", &(longest + "v"))]).xattrs.len(), 0);
    }

    fn all(bytes: &[u8]) -> Vec<Option<(&[u8], &[u8])>> {
        records(bytes).map(|r| r.ok().map(|r| (r.keyword, r.value))).collect()
    }

    #[test]
    fn cuts_records_apart_by_their_lengths() {
        let bytes = b"11 path=a\n\n12 x=\n=y\0z\xff\n";
        assert_eq!(
            all(bytes),
            [Some((&b"path"[..], &b"a\n"[..])), Some((&b"x"[..], &b"\n=y\0z\xff"[..]))]
        );
        assert_eq!(all(b"7 a=\n\n"), [None]);
        assert_eq!(all(b"5 a=\n\0\0\0"), [Some((&b"a"[..], &b""[..]))]);
    }

    #[test]
    fn refuses_a_record_that_lies_about_its_length() {
        for bytes in
            [&b"99 a=b\n"[..], b"0 a=b\n", b"2 a=b\n", b"6 a=bc\n", b"-6 a=b\n", b"x", b"6 abcd\n"]
        {
            assert_eq!(all(bytes), [None], "{}", bytes.escape_ascii());
        }
        assert_eq!(all(b"99999999999999999999999 a=b\n"), [None]);
    }

    #[test]
    fn reads_times_before_and_after_1970() {
        let parts = |text: &[u8]| time(text).map(|t| (t.seconds, t.nanoseconds));
        assert_eq!(parts(b"1350244992.023960108"), Some((1_350_244_992, 23_960_108)));
        assert_eq!(parts(b"7"), Some((7, 0)));
        assert_eq!(parts(b"1.5"), Some((1, 500_000_000)));
        assert_eq!(parts(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(parts(b"-3"), Some((-3, 0)));
        assert_eq!(parts(b"1.99999999999999"), Some((1, 999_999_999)));
        for text in
            [&b""[..], b"-", b".", b"x", b"1.x", b"--1", b"9223372036854775808", b"1e3", b"\xff"]
        {
            assert_eq!(parts(text), None);
        }
    }

    #[test]
    fn decodes_base_64_and_percent_escapes() {
        assert_eq!(base64(b"aGVsbG8"), Some(b"hello".to_vec()));
        assert_eq!(base64(b"aGVsbG8="), Some(b"hello".to_vec()));
        assert_eq!(base64(b"AP+/"), Some(vec![0, 0xff, 0xbf]));
        assert_eq!(base64(b""), Some(vec![]));
        assert_eq!(base64(b"a"), None);
        assert_eq!(base64(b"a*bc"), None);
        assert_eq!(unescaped(b"user.%41%zz%"), b"user.A%zz%");
    }
}
