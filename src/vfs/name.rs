//! The name of a directory entry.
//!
//! Owns what a name may be; leaves lookups and limits of a format to the format.
//! Invariant: a `Name` is 1 to 255 bytes, without '/' and NUL, and neither `.` nor `..`.

/// A valid name of one directory entry, any bytes but '/' and NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// The longest name Linux knows (NAME_MAX), bytes.
    pub const MAX: usize = 255;

    /// `bytes` as a name, or `None` where Linux could not show it as one entry of a directory.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let sound = !bytes.is_empty()
            && bytes.len() <= Self::MAX
            && bytes != b"."
            && bytes != b".."
            && !bytes.iter().any(|&byte| byte == b'/' || byte == 0);
        sound.then_some(Self(bytes))
    }

    /// The bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_could_leave_its_directory() {
        for bytes in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", &[b'x'; 256]] {
            assert_eq!(Name::parse(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn takes_any_other_bytes_up_to_255() {
        for bytes in [&b"a"[..], b"...", b"\xff\xfe", b" ", b"a\nb", &[b'x'; 255]] {
            assert_eq!(Name::parse(bytes).map(Name::as_bytes), Some(bytes));
        }
    }
}
