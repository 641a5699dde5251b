//! The names of members: bytes whose encoding the archive often does not say.
//!
//! An entry with flag 11 has its name in UTF-8 (APPNOTE, appendix D). Without it, programs on Unix
//! store the bytes that the file system has, and programs on DOS should store code page 437. In
//! fact, programs on Windows store the code page of their country.

use std::str::FromStr;

use encoding_rs::Encoding;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind};
use crate::units::counted;

/// The encoding of names that are not marked as UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameEncoding {
    /// Code page 437, of DOS.
    CodePage437,
    /// One of the Encoding Standard of WHATWG.
    Standard(&'static Encoding),
}

/// Names of code pages that the Encoding Standard does not have.
const CODE_PAGES: [(&str, &str); 5] = [
    ("cp932", "shift_jis"),
    ("cp936", "gbk"),
    ("cp949", "euc-kr"),
    ("cp950", "big5"),
    ("utf8", "utf-8"),
];

/// Encodings that a note proposes, if all names that look wrong are valid in them.
const PROPOSED: [&str; 8] =
    ["utf-8", "gbk", "big5", "shift_jis", "euc-kr", "cp866", "cp1251", "latin1"];

impl FromStr for NameEncoding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.to_ascii_lowercase();
        if ["cp437", "ibm437", "437"].contains(&text.as_str()) {
            return Ok(Self::CodePage437);
        }
        let code_page = CODE_PAGES.iter().find(|(name, _)| *name == text);
        let label = code_page.map_or(text.as_str(), |(_, label)| label);
        let known = Encoding::for_label_no_replacement(label.as_bytes());
        // The separator of a path must be one byte.
        known.filter(|encoding| encoding.is_ascii_compatible()).map(Self::Standard).ok_or_else(
            || {
                "no such encoding; for example gbk, big5, shift_jis, euc-kr, cp866, cp437 or latin1"
                    .to_owned()
            },
        )
    }
}

impl NameEncoding {
    fn name(self) -> &'static str {
        match self {
            Self::CodePage437 => "cp437",
            Self::Standard(encoding) => encoding.name(),
        }
    }

    /// `name` in UTF-8. `None` if it is not valid in this encoding.
    fn decode(self, name: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::CodePage437 => Some(from_code_page_437(name)),
            Self::Standard(encoding) => {
                let text = encoding.decode_without_bom_handling_and_without_replacement(name)?;
                Some(text.into_owned().into_bytes())
            }
        }
    }
}

/// A name as an entry has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name<'e> {
    pub(super) bytes: &'e [u8],
    /// It in UTF-8, if the entry is marked so or has that as well.
    pub(super) utf8: Option<&'e [u8]>,
    /// What made the entry (APPNOTE 4.4.2.2).
    pub(super) system: u8,
    /// What the user says of names that are not marked.
    pub(super) encoding: Option<NameEncoding>,
}

impl Name<'_> {
    /// It as a path of Linux.
    pub(super) fn path(self) -> Vec<u8> {
        let Self { bytes, system, .. } = self;
        let mut path = match (self.utf8, self.decoded()) {
            (Some(path), _) => path.to_vec(),
            (None, Some(path)) => path,
            _ if self.is_known() || is_unix(system) => bytes.to_vec(),
            _ => from_code_page_437(bytes),
        };
        // Some programs on Windows store its separator, against APPNOTE 4.4.17.1.
        if system == DOS && !path.contains(&b'/') {
            path.iter_mut().filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'/');
        }
        path
    }

    /// Whether its bytes need no decoding.
    fn is_known(self) -> bool {
        self.utf8.is_some()
            || self.bytes.is_ascii()
            || is_unix(self.system) && str::from_utf8(self.bytes).is_ok()
    }

    /// It in the encoding that the user says.
    fn decoded(self) -> Option<Vec<u8>> {
        self.encoding.filter(|_| !self.is_known())?.decode(self.bytes)
    }

    /// Whether it will look wrong: most letters of code page 437 are below 0xb0, and what follows
    /// are lines of tables, Greek letters and signs, few of which are usual in names. Other names
    /// are valid UTF-8 hardly by chance.
    fn looks_wrong(self) -> bool {
        /// Sharp s, the micro, plus or minus, and degree signs, a point, and square.
        const USUAL: [u8; 6] = [0xe1, 0xe6, 0xf1, 0xf8, 0xfa, 0xfd];
        let is_sign = |byte: &u8| (0xb0..0xff).contains(byte) && !USUAL.contains(byte);
        match self.encoding {
            _ if self.is_known() => false,
            Some(_) => self.decoded().is_none(),
            None if is_unix(self.system) => true,
            None => self.bytes.iter().any(is_sign) || str::from_utf8(self.bytes).is_ok(),
        }
    }
}

/// Counts names that look wrong.
#[derive(Debug, Default)]
pub(super) struct WrongNames {
    count: u64,
    /// The first of them.
    example: String,
    /// Those of `PROPOSED` in which all of them are valid.
    fitting: Vec<(&'static str, NameEncoding)>,
}

impl WrongNames {
    pub(super) fn add(&mut self, name: Name<'_>) {
        if !name.looks_wrong() {
            return;
        }
        if self.count == 0 {
            self.example = String::from_utf8_lossy(&name.path()).escape_debug().to_string();
            let known = |label: &'static str| Some((label, label.parse().ok()?));
            self.fitting = PROPOSED.into_iter().filter_map(known).collect();
        }
        self.count = self.count.saturating_add(1);
        self.fitting.retain(|(_, encoding)| encoding.decode(name.bytes).is_some());
    }

    /// A note about them, with what to do. `None` if all names look right.
    pub(super) fn note(&self, encoding: Option<NameEncoding>) -> Option<Error> {
        let Self { count, example, fitting } = self;
        if *count == 0 {
            return None;
        }
        let names = counted(*count, "name");
        if let Some(encoding) = encoding {
            let context =
                format!("{names} not valid in {}, such as \"{example}\"", encoding.name());
            return Some(Error::new(Kind::Unsupported, context));
        }
        let mut proposed: Vec<_> = fitting.iter().map(|(label, _)| *label).collect();
        if proposed.first() == Some(&"utf-8") {
            proposed.truncate(1);
        }
        let proposed = proposed.join(" or ");
        let context = format!(
            "{names} in an unknown encoding, such as \"{example}\"; for example, try --names {proposed}"
        );
        Some(Error::new(Kind::Unsupported, context))
    }
}

/// The systems that made an entry and whose names are bytes (APPNOTE 4.4.2.2): Unix, BeOS, OS X.
const UNIX: u8 = 3;
const BE_OS: u8 = 16;
const OS_X: u8 = 19;

/// DOS, and also most programs on Windows.
pub(super) const DOS: u8 = 0;

/// Code page 437 from 0x80 on, as Unicode code points (CP437.TXT of the Unicode consortium).
const UPPER_HALF: [u16; 128] = [
    0x00c7, 0x00fc, 0x00e9, 0x00e2, 0x00e4, 0x00e0, 0x00e5, 0x00e7, 0x00ea, 0x00eb, 0x00e8, 0x00ef,
    0x00ee, 0x00ec, 0x00c4, 0x00c5, 0x00c9, 0x00e6, 0x00c6, 0x00f4, 0x00f6, 0x00f2, 0x00fb, 0x00f9,
    0x00ff, 0x00d6, 0x00dc, 0x00a2, 0x00a3, 0x00a5, 0x20a7, 0x0192, 0x00e1, 0x00ed, 0x00f3, 0x00fa,
    0x00f1, 0x00d1, 0x00aa, 0x00ba, 0x00bf, 0x2310, 0x00ac, 0x00bd, 0x00bc, 0x00a1, 0x00ab, 0x00bb,
    0x2591, 0x2592, 0x2593, 0x2502, 0x2524, 0x2561, 0x2562, 0x2556, 0x2555, 0x2563, 0x2551, 0x2557,
    0x255d, 0x255c, 0x255b, 0x2510, 0x2514, 0x2534, 0x252c, 0x251c, 0x2500, 0x253c, 0x255e, 0x255f,
    0x255a, 0x2554, 0x2569, 0x2566, 0x2560, 0x2550, 0x256c, 0x2567, 0x2568, 0x2564, 0x2565, 0x2559,
    0x2558, 0x2552, 0x2553, 0x256b, 0x256a, 0x2518, 0x250c, 0x2588, 0x2584, 0x258c, 0x2590, 0x2580,
    0x03b1, 0x00df, 0x0393, 0x03c0, 0x03a3, 0x03c3, 0x00b5, 0x03c4, 0x03a6, 0x0398, 0x03a9, 0x03b4,
    0x221e, 0x03c6, 0x03b5, 0x2229, 0x2261, 0x00b1, 0x2265, 0x2264, 0x2320, 0x2321, 0x00f7, 0x2248,
    0x00b0, 0x2219, 0x00b7, 0x221a, 0x207f, 0x00b2, 0x25a0, 0x00a0,
];

/// Whether names of entries that `system` made are bytes of a Unix file system.
pub(super) fn is_unix(system: u8) -> bool {
    matches!(system, UNIX | BE_OS | OS_X)
}

fn from_code_page_437(name: &[u8]) -> Vec<u8> {
    let decoded = |&byte: &u8| match byte.checked_sub(0x80) {
        None => char::from(byte),
        Some(upper) => {
            let code_point = UPPER_HALF.get(usize::from(upper)).copied().unwrap_or(0);
            char::from_u32(code_point.into()).unwrap_or_default()
        }
    };
    name.iter().map(decoded).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name<'n>(bytes: &'n [u8], system: u8, encoding: Option<&str>) -> Name<'n> {
        let encoding = encoding.map(|text| text.parse().unwrap());
        Name { bytes, utf8: None, system, encoding }
    }

    #[test]
    fn names_of_dos_are_in_code_page_437() {
        let text = |bytes: &[u8]| String::from_utf8(name(bytes, DOS, None).path()).unwrap();
        assert_eq!(text(b"gr\x81n"), "gr\u{fc}n");
        assert_eq!(text(b"\xff\x80"), "\u{a0}\u{c7}");
        assert_eq!(text(b"a\\b\\c.jpg"), "a/b/c.jpg");
        assert_eq!(text(b"a/b\\c.jpg"), "a/b\\c.jpg");
    }

    #[test]
    fn names_of_unix_are_bytes() {
        let utf8 = "gr\u{fc}n".as_bytes();
        assert_eq!(name(b"gr\xfcn", UNIX, None).path(), b"gr\xfcn");
        assert_eq!(name(utf8, OS_X, None).path(), utf8);
        assert_eq!(name(b"a\\b", UNIX, None).path(), b"a\\b");
        assert_eq!(Name { utf8: Some(utf8), ..name(b"gr", DOS, None) }.path(), utf8);
    }

    #[test]
    fn the_user_knows_the_encoding() {
        let text = |bytes, system, encoding| {
            String::from_utf8(name(bytes, system, Some(encoding)).path()).unwrap()
        };
        let (gbk, japanese) = (b"\xce\xc4\xbc\xfe.txt", b"\x95\x5c\x8e\xa6\\a");
        assert_eq!(text(gbk, DOS, "gbk"), "\u{6587}\u{4ef6}.txt");
        assert_eq!(text(gbk, UNIX, "CP936"), "\u{6587}\u{4ef6}.txt");
        // The second byte of the first character is that of a backslash.
        assert_eq!(text(japanese, DOS, "shift_jis"), "\u{8868}\u{793a}/a");
        assert_eq!(text(b"\x8f\xe0\xa8", DOS, "cp866"), "\u{41f}\u{440}\u{438}");
        assert_eq!(text(b"gr\xfcn", UNIX, "latin1"), "gr\u{fc}n");
        assert_eq!(text(b"gr\x81n", UNIX, "cp437"), "gr\u{fc}n");
        // What is marked, or valid UTF-8 from Unix, is known.
        assert_eq!(text("\u{fc}".as_bytes(), UNIX, "gbk"), "\u{fc}");
        assert_eq!(text("\u{fc}\u{fc}".as_bytes(), DOS, "utf-8"), "\u{fc}\u{fc}");
        for unknown in ["", "utf-16", "iso-2022-jp", "klingon", "replacement"] {
            assert!(unknown.parse::<NameEncoding>().is_err(), "{unknown}");
        }
    }

    #[test]
    fn names_that_look_wrong_are_counted() {
        let note = |names: &[(&[u8], u8)], encoding: Option<&str>| {
            let mut wrong = WrongNames::default();
            names.iter().for_each(|(bytes, system)| wrong.add(name(bytes, *system, encoding)));
            let note = wrong.note(encoding.map(|text| text.parse().unwrap()));
            note.map(|note| note.to_string())
        };
        let gbk: (&[u8], u8) = (b"\xce\xc4\xbc\xfe", DOS);
        assert_eq!(
            note(&[(b"gr\x81n", DOS), (b"gro\xe1", DOS), (b"20\xf8C\xab", DOS)], None),
            None
        );
        let found = note(&[gbk, (b"a", DOS), (b"\xbc\xfe", UNIX)], None).unwrap();
        assert!(found.starts_with("2 names in an unknown encoding, such as \"\u{256c}"), "{found}");
        let proposed = "gbk or big5 or euc-kr or cp866 or cp1251 or latin1";
        assert!(found.ends_with(&format!("; for example, try --names {proposed}")), "{found}");
        let found = note(&[("\u{6587}".as_bytes(), DOS)], None).unwrap();
        assert!(found.ends_with("; for example, try --names utf-8"), "{found}");
        assert_eq!(note(&[gbk], Some("gbk")), None);
        let found = note(&[gbk, (b"\xff\xff", DOS)], Some("gbk")).unwrap();
        assert_eq!(found, "1 name not valid in GBK, such as \"\\u{a0}\\u{a0}\"");
    }
}
