//! Parses the records of a pax extended header: `LENGTH KEYWORD=VALUE\n` (POSIX.1-2017, pax,
//! "Extended Header"). `extensions` interprets the keywords.
//!
//! Invariant: a record never extends past the length it claims, nor past its header.

use crate::error::{Error, Result};
use crate::vfs::Timestamp;

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
    let len = usize::try_from(number(digits)?).ok()?;
    let (record, rest) = bytes.split_at_checked(len)?;
    let body = record.get(space.checked_add(1)?..)?.strip_suffix(b"\n")?;
    // A keyword cannot contain an equals sign. A value can.
    let equals = body.iter().position(|&byte| byte == b'=')?;
    let (keyword, value) = body.split_at_checked(equals)?;
    Some((Record { keyword, value: value.strip_prefix(b"=")? }, rest))
}

/// Parses decimal digits and nothing else.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
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
        digits => i64::try_from(number(digits.as_bytes())?).ok()?.checked_mul(sign)?,
    };
    let nine: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds = u32::try_from(number(nine.as_bytes())?).ok()?;
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
    let digit = |byte: u8| {
        let value = match byte {
            b'A'..=b'Z' => byte.checked_sub(b'A')?,
            b'a'..=b'z' => byte.checked_sub(b'a')?.checked_add(26)?,
            b'0'..=b'9' => byte.checked_sub(b'0')?.checked_add(52)?,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        Some(u32::from(value))
    };
    let end = text.iter().rposition(|&byte| byte != b'=').map_or(0, |at| at.saturating_add(1));
    let mut bytes = Vec::with_capacity(text.len());
    for group in text.get(..end)?.chunks(4) {
        let bits = group.iter().try_fold(0_u32, |bits, &byte| Some(bits << 6 | digit(byte)?))?;
        let missing = 4_usize.checked_sub(group.len())?;
        let bits = bits << missing.checked_mul(6)?;
        let [_, whole @ ..] = bits.to_be_bytes();
        // Four digits are three bytes, three are two, and two are one.
        bytes.extend(whole.get(..3_usize.checked_sub(missing).filter(|&count| count > 0)?)?);
    }
    Some(bytes)
}

/// Decodes `%XX`, which libarchive uses in the names of attributes.
pub(super) fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after_first)) = rest.split_first() {
        let code = after_first.first_chunk::<2>().filter(|_| first == b'%');
        let code = code.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { after_first.get(2..).unwrap_or_default() } else { after_first };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

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
