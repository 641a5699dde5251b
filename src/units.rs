//! Sizes and times as people write them.
//!
//! Owns parsing and showing: sizes take K, M, G, T (powers of 1024). Invariant: what does not fit
//! in 64 bits is an error, never a smaller number.

use std::fmt;

use crate::error::{Error, Kind, Result};

/// Parses a size in bytes, such as `512`, `64K` or `4G`; whole numbers only.
///
/// # Errors
/// `Usage` for anything else.
pub fn parse_size(text: &str) -> Result<u64> {
    let wrong = || {
        Error::new(Kind::Usage, format!("{text:?} is no size"))
            .with_hint("a whole number of bytes, or one with K, M, G or T behind it: 512M")
    };
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    let (digits, shift) = match upper.char_indices().last() {
        Some((at, 'K')) => (&upper[..at], 10),
        Some((at, 'M')) => (&upper[..at], 20),
        Some((at, 'G')) => (&upper[..at], 30),
        Some((at, 'T')) => (&upper[..at], 40),
        _ => (upper, 0),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// A size in bytes to be shown: to the byte, and so that a person can take it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        write!(f, "{bytes} bytes")?;
        let units = [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')];
        match units.into_iter().find(|&(shift, _)| bytes >> shift > 0) {
            Some((shift, unit)) => {
                let tenths = (u128::from(bytes) * 10) >> shift;
                write!(f, " ({}.{}{unit})", tenths / 10, tenths % 10)
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_numbers_with_and_without_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4k", 4096),
            ("64M", 64 << 20),
            ("2GiB", 2 << 30),
            ("1T", 1 << 40),
            ("3MB", 3 << 20),
            ("16777215T", 16_777_215 << 40),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size_or_too_large() {
        for text in
            ["", "K", "-1", "+1", "1.5G", "1 G", "G1", "1X", "16777216T", "99999999999999999999"]
        {
            assert_eq!(parse_size(text).unwrap_err().kind(), Kind::Usage, "{text}");
        }
    }

    #[test]
    fn shows_sizes_to_the_byte_and_in_the_largest_unit() {
        for (bytes, shown) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1024 bytes (1.0K)"),
            ((1 << 20) - 1, "1048575 bytes (1023.9K)"),
            (150 << 30, "161061273600 bytes (150.0G)"),
            (u64::MAX, "18446744073709551615 bytes (16777215.9T)"),
        ] {
            assert_eq!(Size(bytes).to_string(), shown);
        }
    }
}
