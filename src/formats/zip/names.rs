//! Names of entries in UTF-8 or in the encoding of the system that made the archive.
//!
//! An entry with flag 11 has its name in UTF-8 (APPNOTE, appendix D). Without it, programs on Unix
//! store the bytes that the file system has, and programs on DOS store code page 437.

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

/// The path of an entry with the name `name`, which `system` made.
pub(super) fn path_of(name: &[u8], is_utf8: bool, system: u8) -> Vec<u8> {
    let mut path = match is_utf8 || is_unix(system) || name.is_ascii() {
        true => name.to_vec(),
        false => from_code_page_437(name),
    };
    // Some programs on Windows store its separator, against APPNOTE 4.4.17.1.
    if system == DOS && !path.contains(&b'/') {
        path.iter_mut().filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'/');
    }
    path
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

    #[test]
    fn names_of_dos_are_in_code_page_437() {
        let text = |name: &[u8]| String::from_utf8(path_of(name, false, DOS)).unwrap();
        assert_eq!(text(b"gr\x81n"), "gr\u{fc}n");
        assert_eq!(text(b"\xff\x80"), "\u{a0}\u{c7}");
        assert_eq!(text(b"a\\b\\c.jpg"), "a/b/c.jpg");
        assert_eq!(text(b"a/b\\c.jpg"), "a/b\\c.jpg");
    }

    #[test]
    fn names_of_unix_are_bytes() {
        assert_eq!(path_of(b"gr\xfcn", false, UNIX), b"gr\xfcn");
        assert_eq!(path_of("gr\u{fc}n".as_bytes(), false, OS_X), "gr\u{fc}n".as_bytes());
        assert_eq!(path_of(b"a\\b", false, UNIX), b"a\\b");
        assert_eq!(path_of("gr\u{fc}n".as_bytes(), true, DOS), "gr\u{fc}n".as_bytes());
    }
}
