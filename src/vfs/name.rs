//! The name of a directory entry.
//!
//! Invariant: a `Name` is 1 to 255 bytes, without '/' and NUL, and neither `.` nor `..`.

/// A valid directory entry name: any bytes except '/' and NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// The longest name Linux supports (NAME_MAX), in bytes.
    pub const MAX: usize = 255;

    /// `bytes` as a name, or `None` if Linux could not show it as a directory entry.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let is_valid = !bytes.is_empty()
            && bytes.len() <= Self::MAX
            && bytes != b"."
            && bytes != b".."
            && !bytes.iter().any(|&byte| byte == b'/' || byte == 0);
        is_valid.then_some(Self(bytes))
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
    fn rejects_names_that_could_leave_the_directory() {
        for bytes in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", &[b'x'; 256]] {
            assert_eq!(Name::parse(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn accepts_any_other_bytes_up_to_255() {
        for bytes in [&b"a"[..], b"...", b"\xff\xfe", b" ", b"a\nb", &[b'x'; 255]] {
            assert_eq!(Name::parse(bytes).map(Name::as_bytes), Some(bytes));
        }
    }
}
