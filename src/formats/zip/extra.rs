//! The extra fields of an entry (64-bit sizes, times, owner, the name in UTF-8), and times of DOS.
//!
//! Sources: APPNOTE 6.3.10, 4.5; Info-ZIP's `extrafld.txt` for 0x5455, 0x5855, 0x7875 and 0x7075.
//!
//! Invariant: a field that is too short or unknown is ignored, as other programs do. Sizes that are
//! missing because of that stay at 0xffffffff, which no archive can satisfy.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::error::Result;
use crate::formats::bytes::Reader;
use crate::vfs::Timestamp;

const ZIP64: u16 = 0x0001;
const NTFS: u16 = 0x000a;
const UNIX: u16 = 0x000d;
const EXTENDED_TIMESTAMP: u16 = 0x5455;
const INFO_ZIP_UNIX_1: u16 = 0x5855;
const INFO_ZIP_UNICODE_PATH: u16 = 0x7075;
const INFO_ZIP_UNIX_3: u16 = 0x7875;

/// Seconds from 1601, where times of NTFS start, to 1970.
const NTFS_EPOCH: i64 = 11_644_473_600;

/// The extra fields that archfs uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extra<'e> {
    zip64: Option<&'e [u8]>,
    extended_timestamp: Option<u32>,
    ntfs: Option<Timestamp>,
    unix: Option<u32>,
    /// User and group.
    pub(super) owner: Option<(u32, u32)>,
    unicode_path: Option<(u32, &'e [u8])>,
}

impl<'e> Extra<'e> {
    /// Parses the extra fields in `bytes`.
    pub(super) fn parse(bytes: &'e [u8]) -> Self {
        let mut extra = Self::default();
        let mut reader = Reader::new("extra fields", bytes);
        while let (Ok(id), Ok(len)) = (reader.u16(), reader.u16()) {
            let Ok(field) = reader.bytes(len.into()) else { break };
            // A field that is too short leaves nothing behind.
            _ = extra.add(id, field);
        }
        extra
    }

    fn add(&mut self, id: u16, field: &'e [u8]) -> Result<()> {
        let mut reader = Reader::new("extra field", field);
        match id {
            // The bytes after a field of wrong length can look like a second one.
            ZIP64 => self.zip64 = self.zip64.or(Some(field)),
            // The central directory has the modification time, whatever other bits say.
            EXTENDED_TIMESTAMP => {
                let [flags] = reader.array()?;
                if flags & 1 != 0 {
                    self.extended_timestamp = Some(reader.u32()?);
                }
            }
            NTFS => {
                reader.u32()?;
                while let (Ok(tag), Ok(len)) = (reader.u16(), reader.u16()) {
                    let times = reader.bytes(len.into())?;
                    if tag == 1 {
                        let modified = Reader::new("NTFS times", times).u64()?;
                        self.ntfs = (modified > 0).then(|| ntfs_time(modified));
                    }
                }
            }
            UNIX => {
                reader.u32()?;
                self.unix = Some(reader.u32()?);
                if let (Ok(user), Ok(group)) = (reader.u16(), reader.u16()) {
                    self.owner = self.owner.or(Some((user.into(), group.into())));
                }
            }
            INFO_ZIP_UNIX_1 => {
                reader.u32()?;
                self.unix = Some(reader.u32()?);
            }
            INFO_ZIP_UNIX_3 => {
                let [1] = reader.array()? else { return Ok(()) };
                self.owner = Some((identifier(&mut reader)?, identifier(&mut reader)?));
            }
            INFO_ZIP_UNICODE_PATH => {
                let [1] = reader.array()? else { return Ok(()) };
                let crc = reader.u32()?;
                self.unicode_path = Some((crc, reader.bytes(reader.remaining())?));
            }
            _ => {}
        }
        Ok(())
    }

    /// The modification time, from the most exact field. Times of Unix have 32 bits and a sign, but
    /// programs write times from 2038 on without one. The time of DOS, `is_late` if it is in 2038
    /// or later, tells them apart: it cannot be before 1980.
    pub(super) fn modified(&self, is_late: bool) -> Option<Timestamp> {
        let unix = |bits: u32| {
            let signed = i64::from(i32::from_le_bytes(bits.to_le_bytes()));
            let seconds = if is_late { i64::from(bits) } else { signed };
            Timestamp { seconds, nanoseconds: 0 }
        };
        self.ntfs.or(self.extended_timestamp.or(self.unix).map(unix))
    }

    /// The name in UTF-8 of an entry with the name `name`, if it has one. A name that was changed
    /// without this field has another checksum.
    pub(super) fn unicode_path(&self, name: &[u8]) -> Option<&'e [u8]> {
        let (crc, path) = self.unicode_path?;
        (crc == crc32fast::hash(name) && std::str::from_utf8(path).is_ok()).then_some(path)
    }

    /// Whether there is a ZIP64 field.
    pub(super) fn has_zip64(&self) -> bool {
        self.zip64.is_some()
    }

    /// Replaces those of `numbers` that are 0xffffffff by the numbers of the ZIP64 field, which
    /// come in this order.
    pub(super) fn extend(&self, numbers: [&mut u64; 3]) {
        let mut reader = Reader::new("ZIP64 field", self.zip64.unwrap_or_default());
        for number in numbers {
            if *number == u64::from(u32::MAX)
                && let Ok(extended) = reader.u64()
            {
                *number = extended;
            }
        }
    }
}

/// A time of NTFS: the number of 100 ns since 1601.
fn ntfs_time(ticks: u64) -> Timestamp {
    let seconds = i64::try_from(ticks / 10_000_000).unwrap_or(i64::MAX);
    let nanoseconds = u32::try_from(ticks % 10_000_000).unwrap_or(0).saturating_mul(100);
    Timestamp { seconds: seconds.saturating_sub(NTFS_EPOCH), nanoseconds }
}

/// A user or group: its length in bytes, and the number. 65534 (nobody) if it does not fit.
fn identifier(reader: &mut Reader<'_>) -> Result<u32> {
    let [len] = reader.array()?;
    let bytes = reader.bytes(len.into())?;
    let (low, high) = bytes.split_at_checked(4).unwrap_or((bytes, &[]));
    let mut number = [0; 4];
    number.iter_mut().zip(low).for_each(|(to, from)| *to = *from);
    let number = u32::from_le_bytes(number);
    // To chown(2), the highest number means no change.
    let fits = high.iter().all(|&byte| byte == 0) && number != u32::MAX;
    Ok(if fits { number } else { 65_534 })
}

/// 1980-01-01, where times of DOS start, in UTC. Shown for dates that do not exist.
const EPOCH: Timestamp = Timestamp { seconds: 315_532_800, nanoseconds: 0 };

/// Converts times of DOS: local time with a resolution of two seconds (APPNOTE 4.4.6). The time
/// zone is that of the process, as with unzip and bsdtar.
pub(super) struct DosTime {
    zone: TimeZone,
}

impl DosTime {
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

    fn field(id: u16, bytes: &[u8]) -> Vec<u8> {
        [&id.to_le_bytes()[..], &(bytes.len() as u16).to_le_bytes(), bytes].concat()
    }

    #[test]
    fn takes_the_most_exact_time() {
        let time = |seconds, nanoseconds| Some(Timestamp { seconds, nanoseconds });
        let mut bytes = field(INFO_ZIP_UNIX_1, &[[9; 4], 5_i32.to_le_bytes()].concat());
        assert_eq!(Extra::parse(&bytes).modified(false), time(5, 0));
        bytes.extend(field(EXTENDED_TIMESTAMP, &[&[3][..], &(-7_i32).to_le_bytes()].concat()));
        assert_eq!(Extra::parse(&bytes).modified(false), time(-7, 0));
        assert_eq!(Extra::parse(&bytes).modified(true), time((1 << 32) - 7, 0));
        let ticks = (11_644_473_600_u64 + 3) * 10_000_000 + 4_567_890;
        let times = [&[0; 4][..], &[1, 0, 24, 0], &ticks.to_le_bytes(), &[0; 16]].concat();
        bytes.extend(field(NTFS, &times));
        assert_eq!(Extra::parse(&bytes).modified(false), time(3, 456_789_000));
        let absent = field(EXTENDED_TIMESTAMP, &[2, 1, 2, 3, 4]);
        assert_eq!(Extra::parse(&absent).modified(false), None, "only the time of access");
    }

    #[test]
    fn owners_have_any_length() {
        let owner = |bytes: &[u8]| Extra::parse(&field(INFO_ZIP_UNIX_3, bytes)).owner;
        assert_eq!(owner(&[1, 4, 1, 2, 0, 0, 2, 7, 0]), Some((513, 7)));
        assert_eq!(owner(&[1, 8, 1, 0, 0, 0, 1, 0, 0, 0, 1, 7]), Some((65_534, 7)));
        assert_eq!(owner(&[1, 0, 0]), Some((0, 0)));
        assert_eq!(owner(&[2, 1, 1, 1, 1]), None, "another version");
        assert_eq!(owner(&[1, 4, 1, 2, 0]), None, "too short");
    }

    #[test]
    fn the_zip64_field_has_only_the_numbers_that_do_not_fit() {
        let bytes = field(ZIP64, &[7_u64.to_le_bytes(), 8_u64.to_le_bytes()].concat());
        let extra = Extra::parse(&bytes);
        let (mut size, mut compressed, mut offset) = (0xffff_ffff, 3, 0xffff_ffff);
        extra.extend([&mut size, &mut compressed, &mut offset]);
        assert_eq!((size, compressed, offset), (7, 3, 8));
        let (mut size, mut compressed, mut offset) = (0xffff_ffff, 0xffff_ffff, 0xffff_ffff);
        extra.extend([&mut size, &mut compressed, &mut offset]);
        assert_eq!((size, compressed, offset), (7, 8, 0xffff_ffff), "the third is missing");
    }

    #[test]
    fn a_unicode_path_belongs_to_the_name_it_was_written_for() {
        let crc = crc32fast::hash(b"gr\x81n");
        let bytes = field(
            INFO_ZIP_UNICODE_PATH,
            &[&[1][..], &crc.to_le_bytes(), "gr\u{fc}n".as_bytes()].concat(),
        );
        assert_eq!(Extra::parse(&bytes).unicode_path(b"gr\x81n"), Some("gr\u{fc}n".as_bytes()));
        assert_eq!(Extra::parse(&bytes).unicode_path(b"blau"), None);
    }

    #[test]
    fn a_cut_field_ends_the_list() {
        let mut bytes = field(INFO_ZIP_UNIX_3, &[1, 1, 5, 1, 6]);
        bytes.extend([0x55, 0x54, 5, 0, 1]);
        let extra = Extra::parse(&bytes);
        assert_eq!((extra.owner, extra.modified(false)), (Some((5, 6)), None));
    }

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
