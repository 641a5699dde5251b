//! The records of a pax extended header (POSIX.1-2017, pax, "pax Extended Header").
//!
//! Invariant: the length at the start of a record counts the whole record, including itself.

/// Records, one after the other.
#[derive(Default)]
pub(super) struct Records(Vec<u8>);

impl Records {
    /// Adds a record. The value may contain any bytes because the record has a length.
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
