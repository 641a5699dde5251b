//! The header of a tar member (POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended
//! Header").
//!
//! Invariant: a header depends only on its member. Records are used only for what ustar cannot
//! hold: long or non-ASCII names, large numbers, fractions of a second, attributes and sparse
//! files.

use crate::vfs::Timestamp;

/// The unit of a tar archive, bytes.
pub(crate) const BLOCK: usize = 512;

/// Bytes of the name field, and of the field for the directories before the name.
const NAME: usize = 100;
const PREFIX: usize = 155;

/// The largest numbers in a field of 8 bytes and in one of 12: octal digits and a NUL.
const SHORT_MAX: u64 = 0o7_777_777;
const LONG_MAX: u64 = 0o77_777_777_777;

/// The type flag of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Flag {
    File = b'0',
    HardLink = b'1',
    Symlink = b'2',
    CharDevice = b'3',
    BlockDevice = b'4',
    Directory = b'5',
    Fifo = b'6',
}

/// A member without its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Header<'m> {
    pub(crate) flag: Flag,
    /// Without a leading slash. The path of a directory ends with a slash.
    pub(crate) path: &'m [u8],
    /// The target of a link: the path of a member, or the target of a symbolic link.
    pub(crate) target: &'m [u8],
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: Timestamp,
    /// Bytes stored after the header.
    pub(crate) size: u64,
    /// Size of a sparse file, whose map comes before its bytes; otherwise `None`.
    pub(crate) real_size: Option<u64>,
    /// Device number as the kernel encodes it.
    pub(crate) device: u32,
    pub(crate) xattrs: &'m [(Vec<u8>, Vec<u8>)],
}

impl Header<'_> {
    /// The blocks before the data: the records, if needed, and the header block.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let records = self.records().into_bytes();
        let mut blocks = Vec::with_capacity(BLOCK);
        if !records.is_empty() {
            let name = beside(self.path, b"PaxHeaders");
            let size = records.len() as u64;
            blocks.extend(block(&Fields { flag: b'x', name: &name, size, ..self.fields() }));
            blocks.extend(&records);
            pad(&mut blocks);
        }
        let fields = self.fields();
        let flag = self.flag as u8;
        blocks.extend(match (self.real_size, split(self.path)) {
            (Some(_), _) => {
                let name = beside(self.path, b"GNUSparseFile.0");
                block(&Fields { flag, name: &name, ..fields })
            }
            (None, Some((prefix, name))) => block(&Fields { flag, prefix, name, ..fields }),
            // Readers that ignore records get as much of the name as fits.
            (None, None) => block(&Fields { flag, name: self.path, ..fields }),
        });
        blocks
    }

    /// The records for everything that ustar cannot hold.
    fn records(&self) -> Records {
        let mut records = Records::default();
        let long_path = split(self.path).is_none();
        let long_target = self.target.len() > NAME;
        let sparse = self.real_size.is_some();
        let needs_record = |text: &[u8], long: bool| long || !is_ascii_or_binary(text);
        let path_in_record = sparse || needs_record(self.path, long_path);
        let target_in_record = needs_record(self.target, long_target);
        let names = [(self.path, path_in_record), (self.target, target_in_record)];
        // Records are UTF-8 unless hdrcharset says otherwise (pax, "hdrcharset").
        if names
            .iter()
            .any(|(text, needs_record)| *needs_record && std::str::from_utf8(text).is_err())
        {
            records.add(b"hdrcharset", b"BINARY");
        }
        if path_in_record && !sparse {
            records.add(b"path", self.path);
        }
        if target_in_record {
            records.add(b"linkpath", self.target);
        }
        if self.size > LONG_MAX {
            records.add(b"size", self.size.to_string().as_bytes());
        }
        for (key, number) in [(b"uid", self.uid), (b"gid", self.gid)] {
            if u64::from(number) > SHORT_MAX {
                records.add(key, number.to_string().as_bytes());
            }
        }
        let Timestamp { seconds, nanoseconds } = self.modified;
        if nanoseconds != 0 || u64::try_from(seconds).map_or(true, |seconds| seconds > LONG_MAX) {
            records.add(b"mtime", decimal(self.modified).as_bytes());
        }
        if let Some(size) = self.real_size {
            // GNU tar's manual, "Storing Sparse Files", "PAX Format, Version 1.0".
            records.add(b"GNU.sparse.major", b"1");
            records.add(b"GNU.sparse.minor", b"0");
            records.add(b"GNU.sparse.name", self.path);
            records.add(b"GNU.sparse.realsize", size.to_string().as_bytes());
        }
        for (name, value) in self.xattrs {
            records.add_xattr(name, value);
        }
        records
    }

    /// The fields that the header of the records shares.
    fn fields(&self) -> Fields<'_> {
        // A reader that ignores records must not map an owner that is too large to root.
        let owner = |number: u32| u64::from(number).min(SHORT_MAX);
        let long = |number: u64| if number > LONG_MAX { 0 } else { number };
        Fields {
            flag: self.flag as u8,
            prefix: b"",
            name: b"",
            target: self.target,
            permissions: self.permissions,
            uid: owner(self.uid),
            gid: owner(self.gid),
            modified: u64::try_from(self.modified.seconds).unwrap_or(0).min(LONG_MAX),
            size: long(self.size),
            device: self.device,
        }
    }
}

pub(crate) fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
}

pub(crate) fn padding(len: u64) -> &'static [u8] {
    let missing = len.next_multiple_of(BLOCK as u64) - len;
    &[0; BLOCK][..missing as usize]
}

/// The fields of a header block. Numbers fit their fields.
struct Fields<'f> {
    flag: u8,
    prefix: &'f [u8],
    name: &'f [u8],
    target: &'f [u8],
    permissions: u16,
    uid: u64,
    gid: u64,
    modified: u64,
    size: u64,
    device: u32,
}

fn block(fields: &Fields<'_>) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |offset: usize, len: usize, bytes: &[u8]| {
        let len = len.min(bytes.len());
        block[offset..offset + len].copy_from_slice(&bytes[..len]);
    };
    let short = |number: u64| format!("{number:07o}");
    let long = |number: u64| format!("{number:011o}");
    // The kernel's 32-bit encoding: 12 bits of the major number inside 20 of the minor one.
    let major = u64::from(fields.device >> 8 & 0xfff);
    let minor = u64::from(fields.device & 0xff | fields.device >> 12 & 0xf_ff00);
    put(0, NAME, fields.name);
    put(100, 8, short(fields.permissions.into()).as_bytes());
    put(108, 8, short(fields.uid).as_bytes());
    put(116, 8, short(fields.gid).as_bytes());
    put(124, 12, long(fields.size).as_bytes());
    put(136, 12, long(fields.modified).as_bytes());
    // The checksum is computed with spaces in its own field.
    put(148, 8, b"        ");
    put(156, 1, &[fields.flag]);
    if fields.flag != b'x' {
        put(157, NAME, fields.target);
    }
    put(257, 8, b"ustar\x0000");
    if matches!(fields.flag, b'3' | b'4') {
        put(329, 8, short(major).as_bytes());
        put(337, 8, short(minor).as_bytes());
    }
    put(345, PREFIX, fields.prefix);
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Splits a path into the prefix and name fields; `None` if it does not fit.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.len() <= NAME {
        return Some((b"", path));
    }
    // The separating slash is stored in neither field. The slash that ends a directory stays.
    let first = path.len().checked_sub(NAME + 1)?;
    let last = (path.len() - 2).min(PREFIX);
    let slash = (first..=last).find(|&index| index > 0 && path[index] == b'/')?;
    Some((&path[..slash], &path[slash + 1..]))
}

/// The name in a header whose records have the real name: inside a directory called `directory`,
/// next to the member.
fn beside(path: &[u8], directory: &[u8]) -> Vec<u8> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let name_start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let mut name = [&path[..name_start], directory, b"/", &path[name_start..]].concat();
    name.truncate(NAME);
    // The truncated name must not look like a directory.
    while name.last() == Some(&b'/') {
        name.pop();
    }
    name
}

fn decimal(time: Timestamp) -> String {
    let nanoseconds = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let amount = nanoseconds.unsigned_abs();
    let text = format!("{sign}{}.{:09}", amount / 1_000_000_000, amount % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub(crate) const NO_XATTRS: &[(Vec<u8>, Vec<u8>)] = &[];

/// Records, one after the other.
#[derive(Default)]
pub(super) struct Records(Vec<u8>);

impl Records {
    /// Adds a record. Its length counts the whole record, including the length itself. The value
    /// may contain any bytes because the record has a length.
    pub(super) fn add(&mut self, keyword: &[u8], value: &[u8]) {
        // The space, the '=' and the newline.
        let rest = keyword.len() + value.len() + 3;
        let digits = |number: usize| number.to_string().len();
        // The digits of the length may add a digit.
        let len = rest + digits(rest + digits(rest));
        self.0.extend(len.to_string().bytes());
        self.0.push(b' ');
        self.0.extend(keyword);
        self.0.push(b'=');
        self.0.extend(value);
        self.0.push(b'\n');
    }

    /// Adds an extended attribute as star and GNU tar do. GNU tar writes '=' and '%' in a name as
    /// `%3D` and `%25`, because the first '=' ends the keyword.
    pub(super) fn add_xattr(&mut self, name: &[u8], value: &[u8]) {
        let mut keyword = b"SCHILY.xattr.".to_vec();
        for &byte in name {
            match byte {
                b'=' => keyword.extend(b"%3D"),
                b'%' => keyword.extend(b"%25"),
                _ => keyword.push(byte),
            }
        }
        self.add(&keyword, value);
    }

    /// The body of an extended header; empty if none is needed.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Whether a header block can hold the text without loss. Only records have a character set, and
/// bytes that are not UTF-8 need none.
pub(super) fn is_ascii_or_binary(text: &[u8]) -> bool {
    text.is_ascii() || std::str::from_utf8(text).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(path: &[u8]) -> Header<'_> {
        Header {
            flag: Flag::File,
            path,
            target: b"",
            permissions: 0o644,
            uid: 0,
            gid: 0,
            modified: Timestamp { seconds: 1, nanoseconds: 0 },
            size: 0,
            real_size: None,
            device: 0,
            xattrs: NO_XATTRS,
        }
    }

    /// The records, and the block after them.
    fn parts(header: &Header<'_>) -> (String, [u8; BLOCK]) {
        let bytes = header.encode();
        assert_eq!(bytes.len() % BLOCK, 0);
        let last = bytes[bytes.len() - BLOCK..].try_into().unwrap();
        let text = match bytes.len() {
            BLOCK => String::new(),
            len => {
                assert_eq!(bytes[156], b'x');
                let text = String::from_utf8_lossy(&bytes[BLOCK..len - BLOCK]);
                text.trim_end_matches('\0').into()
            }
        };
        (text, last)
    }

    fn field(block: &[u8; BLOCK], offset: usize, len: usize) -> String {
        String::from_utf8_lossy(&block[offset..offset + len]).trim_end_matches('\0').into()
    }

    #[test]
    fn long_names_are_split_up_to_their_limits() {
        let a = |len: usize| "a".repeat(len);
        let (n100, n101) = (a(100), a(101));
        for (path, prefix, name) in [
            (n100.clone(), "", Some(n100.as_str())),
            (n101.clone(), "", None),
            (format!("d/{n100}"), "d", Some(&n100)),
            (format!("d/{n101}"), "", None),
            (format!("{}/{n100}", a(155)), &a(155), Some(&n100)),
            (format!("{}/{n100}", a(156)), "", None),
            (format!("{}/b", a(155)), &a(155), Some("b")),
            (format!("{}/b", a(156)), "", None),
            (format!("{}/", a(99)), "", Some(&format!("{}/", a(99)))),
            // The only slash is the one at the end.
            (format!("{}/", a(100)), "", None),
            (format!("d/{}/", a(99)), "d", Some(&format!("{}/", a(99)))),
            // A path with several slashes is split at the first one that works.
            (format!("{}/{}/b", a(60), a(60)), &a(60), Some(&format!("{}/b", a(60)))),
        ] {
            let (records, block) = parts(&header(path.as_bytes()));
            assert_eq!(records.is_empty(), name.is_some(), "{path}");
            match name {
                Some(name) => assert_eq!(field(&block, 0, 100), name, "{path}"),
                None => assert!(records.contains(&format!(" path={path}\n")), "{path}"),
            }
            assert_eq!(field(&block, 345, 155), prefix, "{path}");
        }
    }

    #[test]
    fn numbers_move_to_records_one_past_their_fields() {
        for (size, field_text, record) in [
            ((8_u64 << 30) - 1, "77777777777", ""),
            (8 << 30, "00000000000", "19 size=8589934592\n"),
        ] {
            let (records, block) = parts(&Header { size, ..header(b"a") });
            assert_eq!((records.as_str(), field(&block, 124, 12)), (record, field_text.into()));
        }
        for (id, field_text, record) in
            [(2_097_151, "7777777", ""), (2_097_152, "7777777", "15 uid=2097152\n15 gid=2097152\n")]
        {
            let (records, block) = parts(&Header { uid: id, gid: id, ..header(b"a") });
            assert_eq!(records, record);
            assert_eq!(field(&block, 108, 8), field_text);
            assert_eq!(field(&block, 116, 8), field_text);
        }
    }

    #[test]
    fn times_are_exact_on_both_sides_of_1970() {
        for (seconds, nanoseconds, record) in [
            (0, 0, ""),
            ((8 << 30) - 1, 0, ""),
            (8 << 30, 0, "20 mtime=8589934592\n"),
            (-1, 0, "12 mtime=-1\n"),
            (-1, 500_000_000, "14 mtime=-0.5\n"),
            (-2, 999_999_999, "22 mtime=-1.000000001\n"),
            (1, 1, "21 mtime=1.000000001\n"),
            (10, 250_000_000, "15 mtime=10.25\n"),
        ] {
            let modified = Timestamp { seconds, nanoseconds };
            let (records, block) = parts(&Header { modified, ..header(b"a") });
            assert_eq!(records, record, "{seconds} {nanoseconds}");
            let expected = u64::try_from(seconds).unwrap_or(0).min(LONG_MAX);
            assert_eq!(field(&block, 136, 12), format!("{expected:011o}"));
        }
    }

    #[test]
    fn non_ascii_names_use_records_unless_they_are_not_utf8_and_fit() {
        assert_eq!(parts(&header("\u{e9}".as_bytes())).0, "11 path=\u{e9}\n");
        let (records, block) = parts(&header(b"\xff"));
        assert_eq!((records.as_str(), block[0]), ("", 0xff));
        let long = [b"\xff".as_slice(), &[b'a'; 100]].concat();
        assert!(parts(&header(&long)).0.starts_with("21 hdrcharset=BINARY\n111 path="));
    }

    #[test]
    fn devices_are_stored_as_major_and_minor() {
        // Major 259, minor 0x12345, in the kernel's encoding.
        let device = 0x45 | 259 << 8 | 0x123 << 20;
        let (_, block) = parts(&Header { flag: Flag::BlockDevice, device, ..header(b"a") });
        assert_eq!(field(&block, 329, 8), format!("{:07o}", 259));
        assert_eq!(field(&block, 337, 8), format!("{:07o}", 0x12345));
    }

    #[test]
    fn attributes_keep_their_bytes_and_links_their_targets() {
        let xattrs = vec![(b"user.a=%".to_vec(), b"\0\n".to_vec())];
        let target = [b'a'; 101];
        let (records, _) = parts(&Header { xattrs: &xattrs, target: &target, ..header(b"a") });
        let expected = format!(
            "115 linkpath={}\n32 SCHILY.xattr.user.a%3D%25=\0\n\n",
            String::from_utf8_lossy(&target)
        );
        assert_eq!(records, expected);
        let (records, block) = parts(&Header { target: &target[..100], ..header(b"a") });
        assert_eq!((records.as_str(), field(&block, 157, 100).len()), ("", 100));
    }

    #[test]
    fn lengths_count_their_own_digits() {
        for len in (0..20).chain(80..110).chain(980..1010).chain(9980..10_010) {
            let mut records = Records::default();
            records.add(b"k", &vec![b'v'; len]);
            let bytes = records.into_bytes();
            let length: String =
                bytes.iter().map(|&b| b as char).take_while(|&c| c != ' ').collect();
            assert_eq!(length.parse::<usize>().unwrap(), bytes.len());
        }
    }
}
