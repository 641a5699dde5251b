//! Parsers of option values for clap.

use crate::error::{Error, Kind, Result};
use crate::os::processors::Cores;
use crate::together::Bandwidth;
pub(super) use crate::units::{parse_size as size, parse_time as time};

pub(super) fn threads(text: &str) -> Result<usize> {
    match text.parse() {
        Ok(count @ 1..=1024) => Ok(count),
        _ => Err(Error::new(Kind::Usage, format!("{text:?} is not a number of threads"))
            .with_hint("give a number from 1 to 1024")),
    }
}

/// Parses a share of a link, such as `50%`, or bytes per second, such as `200M`.
///
/// Fails with `Usage` for anything else, and for nothing.
pub(super) fn bandwidth(text: &str) -> Result<Bandwidth> {
    let share = text.strip_suffix('%').map(str::parse);
    match (share, size(text)) {
        (Some(Ok(percent @ 1..=100)), _) => Ok(Bandwidth::Share(percent)),
        (None, Ok(rate @ 1..)) => Ok(Bandwidth::Rate(rate)),
        _ => Err(Error::new(Kind::Usage, format!("{text:?} is not a bandwidth")).with_hint(
            "give percent of the link, for example 50%, or bytes per second, for example 200M",
        )),
    }
}

/// Parses a list of CPU cores.
///
/// Fails with `Usage` for anything but numbers and ranges from 0 to 1023, or `all`.
pub(super) fn cores(text: &str) -> Result<Cores> {
    text.parse().map_err(|()| {
        Error::new(Kind::Usage, format!("{text:?} is not a list of CPU cores"))
            .with_hint("give numbers and ranges, for example 0-3,8, or all")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bandwidth_is_a_share_or_a_rate() {
        let found = ["1%", "100%", "200M"].map(|text| bandwidth(text).unwrap());
        assert_eq!(found, [Bandwidth::Share(1), Bandwidth::Share(100), Bandwidth::Rate(200 << 20)]);
    }
}
