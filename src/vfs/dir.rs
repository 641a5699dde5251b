//! Directory entries: their names, the cookies that mark positions between them, and all of them at
//! once. Walks over the directories of a tree.
//!
//! Formats do not store `.` and `..`; this file adds them. Invariants: a `Name` is 1 to 255 bytes,
//! without '/' and NUL, and neither `.` nor `..`. Cookies 0 and 1 are before and after `.`; from
//! cookie 2 on, the meaning is up to the format.

use std::collections::HashSet;
use std::ops::ControlFlow;

use super::{FileKind, Ino, Tree};
use crate::error::{Error, Kind, Result};

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

    /// Number of entries before it, in a listing whose cookies count `count` entries from `START`.
    ///
    /// # Errors
    /// `InvalidInput` if it is no position in such a listing.
    pub fn entries_before(self, count: usize) -> Result<usize> {
        let before = self.0.checked_sub(Self::START.0).and_then(|nth| usize::try_from(nth).ok());
        before.filter(|&before| before <= count).ok_or_else(|| {
            let context = format!("{} is not a position in this directory", self.0);
            Error::new(Kind::InvalidInput, context)
        })
    }
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

/// Most names that `list_root` reads. More would delay the mount of a flat dataset.
const ROOT_NAMES: usize = 10_000;

/// An entry with a name of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// The name in the directory.
    pub name: Vec<u8>,
}

/// The entries of the directory `ino`, without `.` and `..`, in the order of the tree.
pub fn entries(tree: &dyn Tree, ino: Ino) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    tree.read_dir(ino, Cookie::START, &mut |entry| {
        let name = entry.name.as_bytes().to_vec();
        entries.push(Entry { ino: entry.ino, kind: entry.kind, name });
        ControlFlow::Continue(())
    })?;
    Ok(entries)
}

/// Lists the first names of the root. The tables of an image are otherwise read when they are used.
pub fn list_root(tree: &dyn Tree) -> Result<()> {
    let mut names = 0;
    tree.read_dir(Ino::ROOT, Cookie::START, &mut |_| {
        names += 1;
        if names < ROOT_NAMES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
}

/// An iterator over directories to list, each of them once; directories found on the way are added.
/// It ends, even if a damaged archive has a cycle of directories. Each directory has a `Key`
/// by which the caller knows it: by default its path from the root, without a leading slash.
pub struct DirectoryWalk<Key = Vec<u8>> {
    seen: HashSet<Ino>,
    waiting: Vec<(Key, Ino)>,
}

impl DirectoryWalk {
    /// Starts a walk at the root, whose path is empty.
    pub fn from_root() -> Self {
        Self::from_root_at(Vec::new())
    }
}

impl<Key> DirectoryWalk<Key> {
    /// Starts a walk at the root, whose key is `root`.
    pub fn from_root_at(root: Key) -> Self {
        Self { seen: HashSet::from([Ino::ROOT]), waiting: vec![(root, Ino::ROOT)] }
    }

    /// Queues a directory. Returns false if it was seen before: a damaged archive may show a
    /// directory in two locations, or inside itself.
    pub fn add(&mut self, key: Key, ino: Ino) -> bool {
        let is_new = self.seen.insert(ino);
        if is_new {
            self.waiting.push((key, ino));
        }
        is_new
    }
}

/// Yields the key of a directory and its inode number.
impl<Key> Iterator for DirectoryWalk<Key> {
    type Item = (Key, Ino);

    fn next(&mut self) -> Option<Self::Item> {
        self.waiting.pop()
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

    #[test]
    fn dots_come_first_and_once() {
        let names = |cookie| dots(cookie).0.iter().map(|dot| dot.name).collect::<Vec<_>>();
        assert_eq!(names(Cookie::BEFORE_DOT), [&b"."[..], b".."]);
        assert_eq!(names(Cookie::AFTER_DOT), [b".."]);
        assert!(names(Cookie::START).is_empty());
        assert_eq!(dots(Cookie::AFTER_DOT).1, Cookie::START);
        assert_eq!(dots(Cookie(77)).1, Cookie(77));
    }

    #[test]
    fn a_directory_inside_itself_is_listed_once() {
        let mut walk = DirectoryWalk::from_root();
        let inner = Ino::new(7).unwrap();
        let mut listed = Vec::new();
        while let Some((path, ino)) = walk.next() {
            listed.push((path, ino));
            // Each of them lists the root and the directory.
            assert!(!walk.add(b"root".to_vec(), Ino::ROOT));
            assert_eq!(walk.add(b"inner".to_vec(), inner), ino == Ino::ROOT);
        }
        assert_eq!(listed, [(Vec::new(), Ino::ROOT), (b"inner".to_vec(), inner)]);
    }
}
