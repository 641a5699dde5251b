//! What a scan found: members in the order of the archive, packed.
//!
//! Owns the words for a member between the scan and the tree; knows no blocks and no tree.
//! Invariant: every range of a member lies within the bytes kept here.

use std::ops::Range;

use super::sparse::Segment;
use crate::vfs::Timestamp;

/// What a member becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Regular,
    Directory,
    Symlink,
    /// Another name of the member whose path is the link.
    HardLink,
    CharDevice,
    BlockDevice,
    Fifo,
    /// An archive stored as it is, to be shown as a folder.
    Archive(Inner),
}

/// The format of an archive within an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inner {
    Tar,
    SquashFs,
}

/// Where the contents of a member are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// It has none; a device has its number.
    Device(u32),
    /// `size` bytes at this place of the archive.
    Stored(u64),
    /// The sparse map of this number in `Members`.
    Sparse(usize),
}

/// One member. Paths are as in the archive: neither cleaned nor checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// Where its first header is, extensions included.
    pub(super) start: u64,
    pub(super) kind: Kind,
    pub(super) permissions: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Bytes of a file, with its holes.
    pub(super) size: u64,
    pub(super) modified: Timestamp,
    pub(super) body: Body,
    /// Where `Members` keeps the path (and how long it is), the target behind it, and the
    /// attributes.
    pub(super) path: (usize, usize),
    pub(super) link: usize,
    pub(super) xattrs: Option<usize>,
}

/// Extended attributes: name and value.
pub(super) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Members in order.
#[derive(Default)]
pub(super) struct Members {
    list: Vec<Member>,
    /// Paths, each followed by the target of its link.
    bytes: Vec<u8>,
    sparse: Vec<Vec<Segment>>,
    xattrs: Vec<Xattrs>,
    /// Bytes that maps and attributes take, about.
    weight: usize,
}

/// Bytes of maps and attributes that a list holds before it is heavy.
const HEAVY: usize = 16 << 20;

/// What of a new member lies outside its record.
pub(super) struct Parts<'p> {
    pub(super) path: &'p [u8],
    pub(super) link: &'p [u8],
    pub(super) sparse: Option<Vec<Segment>>,
    pub(super) xattrs: Xattrs,
}

impl Member {
    /// A member of which `Members::push` fills in what lies outside.
    pub(super) fn new(start: u64, kind: Kind) -> Self {
        Self {
            start,
            kind,
            permissions: 0,
            uid: 0,
            gid: 0,
            size: 0,
            modified: Timestamp { seconds: 0, nanoseconds: 0 },
            body: Body::Device(0),
            path: (0, 0),
            link: 0,
            xattrs: None,
        }
    }
}

impl Members {
    pub(super) fn push(&mut self, member: Member, parts: Parts<'_>) {
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

    pub(super) fn list(&self) -> &[Member] {
        &self.list
    }

    /// Whether it should go into the tree although it is short.
    pub(super) fn is_heavy(&self) -> bool {
        self.weight >= HEAVY
    }

    /// Pieces of the member's sparse map; 0 where it has none.
    pub(super) fn pieces(&self, member: &Member) -> usize {
        match member.body {
            Body::Sparse(number) => self.sparse(number).len(),
            _ => 0,
        }
    }

    pub(super) fn path(&self, member: &Member) -> &[u8] {
        let (start, len) = member.path;
        self.slice(start..start.saturating_add(len))
    }

    /// The target of a link.
    pub(super) fn link(&self, member: &Member) -> &[u8] {
        let (start, len) = member.path;
        let start = start.saturating_add(len);
        self.slice(start..start.saturating_add(member.link))
    }

    pub(super) fn sparse(&self, number: usize) -> &[Segment] {
        self.sparse.get(number).map_or(&[], Vec::as_slice)
    }

    pub(super) fn xattrs(&self, member: &Member) -> &[(Vec<u8>, Vec<u8>)] {
        member.xattrs.and_then(|number| self.xattrs.get(number)).map_or(&[], Vec::as_slice)
    }

    /// Where in the archive the member's data ends; 0 where it has none.
    pub(super) fn data_end(&self, member: &Member) -> u64 {
        match member.body {
            Body::Stored(at) => at.saturating_add(member.size),
            Body::Sparse(number) => {
                self.sparse(number).last().map_or(0, |last| last.at.saturating_add(last.len))
            }
            Body::Device(_) => 0,
        }
    }

    /// Takes the last member back: its data turned out to be missing.
    pub(super) fn pop(&mut self) {
        self.list.pop();
    }

    pub(super) fn clear(&mut self) {
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
