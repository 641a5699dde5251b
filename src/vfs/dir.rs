//! Directory entries and the cookies that name places between them.
//!
//! Owns `.` and `..`, which no format stores; leaves the rest of a cookie's meaning to each format.
//! Invariant: cookies 0 and 1 stand before and after `.`; cookie 2 is a format's own start.

use super::{FileKind, Ino, Name};

/// A place in a directory between two entries, for telldir(3): opaque but for the three first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Before `.`, where every directory starts.
    pub const BEFORE_DOT: Self = Self(0);
    /// After `.`, before `..`.
    pub const AFTER_DOT: Self = Self(1);
    /// After `..`: the first entry that a format stores comes next.
    pub const START: Self = Self(2);
}

/// One entry of a directory.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The inode it names.
    pub ino: Ino,
    /// The kind of that inode.
    pub kind: FileKind,
    /// Its name.
    pub name: Name<'a>,
    /// The place behind it.
    pub next: Cookie,
}

/// `.` or `..`, which belong to every listing and to no archive.
#[derive(Clone, Copy, Debug)]
pub struct Dot {
    /// Its name.
    pub name: &'static [u8],
    /// The place behind it.
    pub next: Cookie,
}

const DOT: Dot = Dot { name: b".", next: Cookie::AFTER_DOT };
const DOT_DOT: Dot = Dot { name: b"..", next: Cookie::START };

/// The dots still due at `cookie`, and the cookie at which a format's own entries go on.
pub fn dots(cookie: Cookie) -> (&'static [Dot], Cookie) {
    match cookie {
        Cookie::BEFORE_DOT => (&[DOT, DOT_DOT], Cookie::START),
        Cookie::AFTER_DOT => (&[DOT_DOT], Cookie::START),
        other => (&[], other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_come_first_and_once() {
        let names = |cookie| dots(cookie).0.iter().map(|dot| dot.name).collect::<Vec<_>>();
        assert_eq!(names(Cookie::BEFORE_DOT), [&b"."[..], b".."]);
        assert_eq!(names(Cookie::AFTER_DOT), [b".."]);
        assert!(names(Cookie::START).is_empty());
        assert_eq!(dots(Cookie::AFTER_DOT).1, Cookie::START);
        assert_eq!(dots(Cookie(77)).1, Cookie(77));
    }
}
