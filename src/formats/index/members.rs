//! Plain records of what a scan found: members in the order of the archive, in a compact form.
//!
//! Invariant: every range in a member is within the bytes kept here.

use super::node::Headers;
use crate::vfs::Timestamp;
use std::ops::Range;

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Regular,
    Directory,
    Symlink,
    /// Another name of the member at the link's target path.
    HardLink,
    CharDevice,
    BlockDevice,
    Fifo,
    /// An archive, stored uncompressed, to be shown as a directory.
    Archive(Inner),
}

/// The format of an archive within an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inner {
    /// A tar. Its members go into the same tree.
    Tar,
    /// An image, a ZIP archive or a compressed tar. It is opened by itself.
    Separate,
}

/// Where the contents of a member are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// No contents. For a device, its number.
    Device(u32),
    /// `size` bytes at this offset in the archive.
    Stored(u64),
    /// A sparse map, by its number in `Members`.
    Sparse(usize),
    /// `size` bytes after a header of unknown length, which is at this offset in the archive.
    AfterHeader(u64),
    /// Bytes that the entry at this offset in the archive describes.
    Described(u64),
}

/// A part of a file that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Offset in the file, bytes.
    pub(crate) offset: u64,
    /// Length in bytes, at least one.
    pub(crate) len: u64,
    /// Offset in the archive, bytes.
    pub(crate) archive_offset: u64,
}

impl Segment {
    /// The end of the segment in the file.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// One member. Its path is as in the archive: neither normalized nor checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    /// Offset of its first header, which may be an extension.
    pub(crate) start: u64,
    pub(crate) kind: Kind,
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Size of a file with its holes, bytes.
    pub(crate) size: u64,
    pub(crate) modified: Timestamp,
    pub(crate) body: Body,
    /// The headers before its data.
    pub(crate) headers: Headers,
    /// Position in `Members`: the start and length of the path, the length of the link target after
    /// it, and the number of the attributes.
    pub(crate) path: (usize, usize),
    pub(crate) link: usize,
    pub(crate) xattrs: Option<usize>,
}

/// Extended attributes: name and value.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A list of members.
#[derive(Default)]
pub(crate) struct Members {
    list: Vec<Member>,
    /// Paths, each followed by the target of its link.
    bytes: Vec<u8>,
    sparse: Vec<Vec<Segment>>,
    xattrs: Vec<Xattrs>,
    /// Approximate size of maps and attributes, bytes.
    weight: usize,
}

/// A list with at least this much in maps and attributes is heavy, bytes.
const HEAVY: usize = 16 << 20;

/// The parts of a new member that are not in its record.
pub(crate) struct Parts<'p> {
    pub(crate) path: &'p [u8],
    pub(crate) link: &'p [u8],
    pub(crate) sparse: Option<Vec<Segment>>,
    pub(crate) xattrs: Xattrs,
}

impl Member {
    /// A member without the fields that `Members::push` fills in.
    pub(crate) fn new(start: u64, kind: Kind) -> Self {
        Self {
            start,
            kind,
            permissions: 0,
            uid: 0,
            gid: 0,
            size: 0,
            modified: Timestamp { seconds: 0, nanoseconds: 0 },
            body: Body::Device(0),
            headers: Headers::default(),
            path: (0, 0),
            link: 0,
            xattrs: None,
        }
    }
}

impl Members {
    pub(crate) fn push(&mut self, member: Member, parts: Parts<'_>) {
        let path = (self.bytes.len(), parts.path.len());
        self.bytes.extend(parts.path);
        self.bytes.extend(parts.link);
        let xattrs =
            parts.xattrs.iter().map(|(name, value)| name.len().saturating_add(value.len()));
        let pieces = parts.sparse.as_ref().map_or(0, Vec::len);
        let added =
            xattrs.sum::<usize>().saturating_add(pieces.saturating_mul(size_of::<Segment>()));
        self.weight = self.weight.saturating_add(added);
        let body = match parts.sparse {
            Some(map) => {
                self.sparse.push(map);
                Body::Sparse(self.sparse.len().saturating_sub(1))
            }
            None => member.body,
        };
        let xattrs = (!parts.xattrs.is_empty()).then(|| {
            self.xattrs.push(parts.xattrs);
            self.xattrs.len().saturating_sub(1)
        });
        self.list.push(Member { body, path, link: parts.link.len(), xattrs, ..member });
    }

    pub(crate) fn list(&self) -> &[Member] {
        &self.list
    }

    /// Whether the list takes much memory even if it is short.
    pub(crate) fn is_heavy(&self) -> bool {
        self.weight >= HEAVY
    }

    /// Number of pieces in the member's sparse map, 0 if it has none.
    pub(crate) fn segment_count(&self, member: &Member) -> usize {
        match member.body {
            Body::Sparse(number) => self.sparse(number).len(),
            _ => 0,
        }
    }

    pub(crate) fn path(&self, member: &Member) -> &[u8] {
        let (start, len) = member.path;
        self.slice(start..start.saturating_add(len))
    }

    /// The target of a link.
    pub(crate) fn link(&self, member: &Member) -> &[u8] {
        let (start, len) = member.path;
        let start = start.saturating_add(len);
        self.slice(start..start.saturating_add(member.link))
    }

    pub(crate) fn sparse(&self, number: usize) -> &[Segment] {
        self.sparse.get(number).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn xattrs(&self, member: &Member) -> &[(Vec<u8>, Vec<u8>)] {
        member.xattrs.and_then(|number| self.xattrs.get(number)).map_or(&[], Vec::as_slice)
    }

    /// The end of the member's data in the archive, 0 if it has none.
    pub(crate) fn data_end(&self, member: &Member) -> u64 {
        match member.body {
            Body::Stored(start) => start.saturating_add(member.size),
            Body::Sparse(number) => self
                .sparse(number)
                .last()
                .map_or(0, |last| last.archive_offset.saturating_add(last.len)),
            Body::Device(_) | Body::AfterHeader(_) | Body::Described(_) => 0,
        }
    }

    /// Removes the last member, because its data is missing.
    pub(crate) fn pop(&mut self) {
        self.list.pop();
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.bytes.clear();
        self.sparse.clear();
        self.xattrs.clear();
        self.weight = 0;
    }

    fn slice(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }
}

/// The components of `path`, normalized as text: `.` and empty ones vanish, and `..` removes the
/// component before it, if there is one.
pub(crate) fn components_of(path: &[u8]) -> Vec<&[u8]> {
    let mut names = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    names
}

/// `path` for messages, shortened if it is very long.
pub(crate) fn shown(path: &[u8]) -> String {
    match path.split_at_checked(200) {
        Some((start, rest)) if !rest.is_empty() => format!("{}...", start.escape_ascii()),
        _ => path.escape_ascii().to_string(),
    }
}

/// The ends of the names of archives. Those of tars are ones that GNU tar knows.
const SUFFIXES: [&[u8]; 21] = [
    b".tar",
    b".zip",
    b".sqfs",
    b".squashfs",
    b".sqsh",
    b".sfs",
    b".tar.gz",
    b".tgz",
    b".taz",
    b".tar.bz2",
    b".tbz2",
    b".tbz",
    b".tz2",
    b".tar.xz",
    b".txz",
    b".tar.zst",
    b".tzst",
    b".tar.lz4",
    b".tar.lzma",
    b".tlz",
    b".tar.lz",
];

/// The path of the directory that shows the archive at `path`: without `.tar`, `.tar.gz`, `.zip`,
/// `.sqfs` and the like.
pub(crate) fn archive_stem(path: &[u8]) -> Option<&[u8]> {
    let stem = SUFFIXES.iter().find_map(|suffix| path.strip_suffix(*suffix))?;
    // Without its suffix, `...tar` would be `..`.
    let name = stem.rsplit(|&byte| byte == b'/').next();
    name.is_some_and(|name| !matches!(name, b"" | b"." | b"..")).then_some(stem)
}
