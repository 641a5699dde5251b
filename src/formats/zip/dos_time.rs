//! Times of DOS: local time with a resolution of two seconds (APPNOTE 4.4.6).
//!
//! Invariant: the time zone is that of the process, as with unzip and bsdtar.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::vfs::Timestamp;

/// 1980-01-01, where times of DOS start, in UTC. Shown for dates that do not exist.
const EPOCH: Timestamp = Timestamp { seconds: 315_532_800, nanoseconds: 0 };

/// Converts times of DOS.
pub(super) struct DosTime {
    zone: TimeZone,
}

impl DosTime {
    /// For the time zone of the process.
    pub(super) fn new() -> Self {
        Self { zone: TimeZone::system() }
    }

    /// The time that `time` and `date` of an entry mean.
    pub(super) fn convert(&self, time: u16, date: u16) -> Timestamp {
        let field = |bits: u16, shift: u32, mask: u16| {
            i8::try_from(bits.checked_shr(shift).unwrap_or(0) & mask).unwrap_or(0)
        };
        let years = i16::try_from(date >> 9).unwrap_or(0);
        let civil = DateTime::new(
            years.saturating_add(1980),
            field(date, 5, 15),
            field(date, 0, 31),
            field(time, 11, 31),
            field(time, 5, 63),
            field(time, 0, 31).saturating_mul(2),
            0,
        );
        let zoned = civil.and_then(|civil| self.zone.to_timestamp(civil));
        zoned.map_or(EPOCH, |time| Timestamp { seconds: time.as_second(), nanoseconds: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_local_times_and_survives_dates_that_do_not_exist() {
        let utc = DosTime { zone: TimeZone::UTC };
        let seconds = |time, date| utc.convert(time, date).seconds;
        // 2021-03-04 05:06:08.
        assert_eq!(seconds(5 << 11 | 6 << 5 | 4, 41 << 9 | 3 << 5 | 4), 1_614_834_368);
        assert_eq!(seconds(0, 1 << 5 | 1), EPOCH.seconds);
        assert_eq!(utc.convert(0, 0), EPOCH, "month 0");
        assert_eq!(utc.convert(u16::MAX, u16::MAX), EPOCH, "hour 31");
        let east = DosTime { zone: TimeZone::fixed(jiff::tz::offset(2)) };
        assert_eq!(east.convert(0, 1 << 5 | 1).seconds, EPOCH.seconds - 7200);
    }
}
