//! Directory entries, and the cookies that mark positions between them.
//!
//! Formats do not store `.` and `..`; this file adds them. Invariant: cookies 0 and 1 are before
//! and after `.`; from cookie 2 on, the meaning is up to the format.

use super::{FileKind, Ino, Name};

/// A position between two directory entries, as for telldir(3). Opaque except for the first three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Before `.`, where every listing starts.
    pub const BEFORE_DOT: Self = Self(0);
    /// After `.`, before `..`.
    pub const AFTER_DOT: Self = Self(1);
    /// After `..`: the format's first entry is next.
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
    /// The position after it.
    pub next: Cookie,
}

/// `.` or `..`, which are part of every listing but not stored in archives.
#[derive(Clone, Copy, Debug)]
pub struct Dot {
    /// Its name.
    pub name: &'static [u8],
    /// The position after it.
    pub next: Cookie,
}

const DOT: Dot = Dot { name: b".", next: Cookie::AFTER_DOT };
const DOT_DOT: Dot = Dot { name: b"..", next: Cookie::START };

/// The dots still to list at `cookie`, and the cookie at which the format's own entries continue.
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
