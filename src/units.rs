//! Parses and formats sizes and times for people.
//!
//! Sizes take K, M, G, T (powers of 1024); times take s, m, h. Invariant: a value that overflows is
//! an error, never a smaller number.

use std::fmt;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use crate::error::{Error, Kind, Result};

/// Parses a size in bytes, such as `512`, `64K` or `4G`; whole numbers only.
pub fn parse_size(text: &str) -> Result<u64> {
    let invalid = || {
        Error::new(Kind::Usage, format!("{text:?} is not a size"))
            .with_hint("give a whole number, with K, M, G or T if it is not in bytes: 512M")
    };
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    let (digits, shift) = match upper.char_indices().last() {
        Some((index, 'K')) => (&upper[..index], 10),
        Some((index, 'M')) => (&upper[..index], 20),
        Some((index, 'G')) => (&upper[..index], 30),
        Some((index, 'T')) => (&upper[..index], 40),
        _ => (upper, 0),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid());
    }
    let number: u64 = digits.parse().map_err(|_| invalid())?;
    number.checked_mul(1 << shift).ok_or_else(invalid)
}

/// The longest time, in seconds: a year.
const TIME_MAX: u64 = 365 * 24 * 3600;

/// Parses a time such as `20`, `90s`, `15m` or `2h`. A plain number means seconds.
///
/// # Errors
/// `Usage` for anything else, and for more than a year.
pub fn parse_time(text: &str) -> Result<Duration> {
    let invalid = || {
        Error::new(Kind::Usage, format!("{text:?} is not a time"))
            .with_hint("give a whole number, with s, m or h if it is not in seconds: 15m")
    };
    let text = text.trim();
    let (digits, unit) = match text.char_indices().last() {
        Some((index, 's')) => (&text[..index], 1),
        Some((index, 'm')) => (&text[..index], 60),
        Some((index, 'h')) => (&text[..index], 3600),
        _ => (text, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid());
    }
    let number: u64 = digits.parse().map_err(|_| invalid())?;
    let seconds = number.checked_mul(unit).filter(|&seconds| seconds <= TIME_MAX);
    seconds.map(Duration::from_secs).ok_or_else(invalid)
}

/// Formats a count with a regular noun: `1 file`, `2 files`.
pub fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Formats a count of directories: `1 directory`, `2 directories`.
pub fn counted_directories(count: u64) -> String {
    format!("{count} {}", if count == 1 { "directory" } else { "directories" })
}

/// `process` or `processes`, for a list of `count` of them.
pub fn processes(count: usize) -> &'static str {
    if count == 1 { "process" } else { "processes" }
}

/// Quotes a path for a shell, for a command that a user copies.
pub fn quoted(path: impl fmt::Display) -> String {
    let path = path.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/+,:=@".contains(c);
    let is_option = path.starts_with('-');
    match !path.is_empty() && !is_option && path.chars().all(is_plain) {
        true => path,
        false if is_option => format!("'./{}'", path.replace('\'', "'\\''")),
        false => format!("'{}'", path.replace('\'', "'\\''")),
    }
}

/// Formats a part of a whole in percent: `0%`, `67%`, `100%`.
pub fn format_percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

/// Formats a size: `0 B`, `1.5 KiB`, `137.4 GiB`.
pub fn format_size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut tenths, mut unit) = (bytes / 1024 * 10 + bytes % 1024 * 10 / 1024, 0);
    while tenths >= 10_240 && unit + 1 < units.len() {
        (tenths, unit) = (tenths / 1024, unit + 1);
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, units[unit])
}

/// Formats a time: `0.8 us`, `3.1 ms`, `1.5 s`, `2m 3s`, `2h 3m`, `1d 2h`.
pub fn format_duration(time: Duration) -> String {
    let (seconds, nanoseconds) = (time.as_secs(), u64::from(time.subsec_nanos()));
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match (seconds, nanoseconds) {
        (0, ..1_000_000) => format!("{}.{} us", nanoseconds / 1000, nanoseconds % 1000 / 100),
        (0, _) => format!("{}.{} ms", nanoseconds / 1_000_000, nanoseconds / 100_000 % 10),
        (1..60, _) => format!("{seconds}.{} s", nanoseconds / 100_000_000),
        (60..3600, _) => format!("{minutes}m {}s", seconds % 60),
        (3600..86400, _) => format!("{hours}h {}m", minutes % 60),
        _ => format!("{}d {}h", hours / 24, hours % 24),
    }
}

/// Formats a time of day for a log: `2026-11-23T22:15:07Z`.
pub fn format_utc(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Formats a size in bytes, both exactly and rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        write!(f, "{bytes} bytes")?;
        if bytes >= 1024 { write!(f, " ({})", format_size(bytes)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_paths_for_a_shell() {
        for (path, text) in [
            ("/a/data-1.sqfs", "/a/data-1.sqfs"),
            ("my data", "'my data'"),
            ("it's", "'it'\\''s'"),
            ("-x", "'./-x'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(path), text);
        }
    }

    #[test]
    fn parses_numbers_with_and_without_a_unit() {
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
    fn shows_sizes_with_a_few_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1023.9 KiB"),
            (1 << 20, "1.0 MiB"),
            (137 << 30, "137.0 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn counts_in_singular_and_plural() {
        assert_eq!(counted(0, "file"), "0 files");
        assert_eq!(counted(1, "file"), "1 file");
        assert_eq!(counted(2, "file"), "2 files");
    }

    #[test]
    fn shows_times_with_a_few_digits() {
        for (nanoseconds, text) in [
            (0, "0.0 us"),
            (850, "0.8 us"),
            (180_399, "180.3 us"),
            (999_999, "999.9 us"),
            (3_100_000, "3.1 ms"),
            (1_500_000_000, "1.5 s"),
            (123 * 1_000_000_000, "2m 3s"),
            (7_384_200_000_000, "2h 3m"),
            (93_600_000_000_000, "1d 2h"),
        ] {
            assert_eq!(format_duration(Duration::from_nanos(nanoseconds)), text);
        }
    }

    #[test]
    fn shows_dates_as_date_does() {
        // As `date -u -d @N +%FT%TZ` prints them.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(format_utc(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn rejects_invalid_and_too_large_sizes() {
        for text in
            ["", "K", "-1", "+1", "1.5G", "1 G", "G1", "1X", "16777216T", "99999999999999999999"]
        {
            assert_eq!(parse_size(text).unwrap_err().kind(), Kind::Usage, "{text}");
        }
    }

    #[test]
    fn parses_times_up_to_a_year() {
        for (text, seconds) in
            [("0", 0), ("20", 20), ("90s", 90), ("15m", 900), ("8760h", TIME_MAX)]
        {
            assert_eq!(parse_time(text).unwrap(), Duration::from_secs(seconds), "{text}");
        }
        for text in ["", "s", "-1", "1.5m", "1d", "8761h", "99999999999999999999"] {
            assert_eq!(parse_time(text).unwrap_err().kind(), Kind::Usage, "{text}");
        }
    }

    #[test]
    fn shows_sizes_to_the_byte_and_in_the_largest_unit() {
        for (bytes, shown) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1024 bytes (1.0 KiB)"),
            ((1 << 20) - 1, "1048575 bytes (1023.9 KiB)"),
            (150 << 30, "161061273600 bytes (150.0 GiB)"),
            (u64::MAX, "18446744073709551615 bytes (15.9 EiB)"),
        ] {
            assert_eq!(Size(bytes).to_string(), shown);
        }
    }
}
