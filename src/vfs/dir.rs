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
