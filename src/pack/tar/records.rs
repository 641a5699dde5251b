//! The records of a pax extended header (POSIX.1-2017, pax, "pax Extended Header").
//!
//! Owns how a keyword and a value become a record; leaves which ones are needed to `header`.
//! Invariant: the length in front of a record counts all of it, itself included.

/// Records one behind the other.
#[derive(Default)]
pub(super) struct Records(Vec<u8>);

impl Records {
    /// Adds one; the value may hold any bytes, for its length is told.
    pub(super) fn add(&mut self, keyword: &[u8], value: &[u8]) {
        // The blank, the '=' and the newline.
        let rest = keyword.len() + value.len() + 3;
        let digits = |number: usize| number.to_string().len();
        // The length of the length may grow by what it adds.
        let len = rest + digits(rest + digits(rest));
        self.0.extend(len.to_string().bytes());
        self.0.push(b' ');
        self.0.extend(keyword);
        self.0.push(b'=');
        self.0.extend(value);
        self.0.push(b'\n');
    }

    /// Adds an extended attribute as star and GNU tar do; the latter writes '=' and '%' of a name
    /// as `%3D` and `%25`, for a keyword ends with the first '='.
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

    /// The body of an extended header; empty where none is needed.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Whether a header block holds the text as well as a record would: only records have a character
/// set, and bytes that are no text have none.
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
            let told: String = bytes.iter().map(|&b| b as char).take_while(|&c| c != ' ').collect();
            assert_eq!(told.parse::<usize>().unwrap(), bytes.len());
        }
    }
}
