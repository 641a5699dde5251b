//! Decodes a member from its header and extensions, which `chain` reads, and adds it to the list.
//!
//! It also reads the map of a sparse member and recognizes an archive within the archive.

use super::extensions::Extensions;
use super::header::{Header, MemberType, padded};
use super::source::{self, Source};
use super::sparse::{self, Sparse};
use super::{HEAD, recognizes};
use crate::error::{Error, Kind as ErrorKind, Result};
use crate::formats::bytes::index;
use crate::formats::compressed::Container;
use crate::formats::index::HeaderRun;
use crate::formats::index::members::{
    Body, Inner, Kind, Member, Members, Parts, Segment, archive_stem, shown,
};
use crate::formats::limits::{FILE_SIZE_MAX, MEMBER_PATH_MAX};
use crate::formats::squashfs::SquashFs;
use crate::formats::zip;
use crate::vfs::Timestamp;

/// The header of a member, with its extensions.
pub(super) struct MemberHeader<'h> {
    pub(super) header: Header<'h>,
    pub(super) kind: MemberType,
    pub(super) extensions: &'h Extensions,
    pub(super) path: Vec<u8>,
    /// Offset of the first header, which may be an extension.
    pub(super) start: u64,
    /// Offset of the data.
    pub(super) data: u64,
    /// All headers, up to the data.
    pub(super) headers: HeaderRun,
}

/// What a step along the chain of headers found.
#[derive(Debug)]
pub(super) enum Step {
    /// A member, added to the list.
    Member,
    /// A volume label or the like, or a member that cannot be shown, with the reason.
    Skipped(Option<Skip>),
    /// The end of the archive, at a point where a header could start.
    End,
    /// Zeros instead of a header.
    Zeros,
    /// Other data instead of a header.
    Garbage,
    /// A header that contradicts itself, with the reason. The path is empty if it is unknown.
    Damaged { path: Vec<u8>, error: Error },
    /// The archive ends before the data of this member does.
    Truncated(Vec<u8>),
}

/// What is left out, and its path, if it has one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Skip {
    pub(super) what: String,
    pub(super) path: Option<Vec<u8>>,
}

/// The detail of an error in the header at `start`.
pub(super) fn header_at(start: u64) -> String {
    format!("header at {start:#x}")
}

/// Whether to recognize archives within an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nesting {
    Ignore,
    Recognize,
}

impl<'h> MemberHeader<'h> {
    /// Length of the data in the archive, bytes.
    fn stored_len(&self) -> Result<u64> {
        // Before POSIX, a directory was a file whose name ends with a slash.
        let is_old_directory = self.header.is_plain_file() && self.path.ends_with(b"/");
        match self.extensions.size {
            _ if !self.header.has_data() || is_old_directory => Ok(0),
            Some(size) => Ok(size),
            None => self.header.size(),
        }
    }

    /// The target, if it is a link.
    fn link(&self) -> &'h [u8] {
        self.extensions.link().unwrap_or_else(|| self.header.link())
    }

    /// A member with the fields that all kinds of members have.
    fn member(&self, kind: Kind) -> Member {
        let &Self { header, extensions, start, .. } = self;
        let time = || Timestamp { seconds: header.modified(), nanoseconds: 0 };
        Member {
            permissions: header.permissions(),
            uid: extensions.uid.unwrap_or_else(|| header.uid()),
            gid: extensions.gid.unwrap_or_else(|| header.gid()),
            modified: extensions.modified.unwrap_or_else(time),
            ..Member::new(start, kind)
        }
    }

    /// A file of `size` bytes whose data are stored.
    fn file(&self, kind: Kind, size: u64) -> Member {
        let headers = self.headers.headers();
        Member { size, body: Body::Stored(self.data), headers, ..self.member(kind) }
    }

    fn parts<'p>(&'p self, link: &'p [u8], sparse: Option<Vec<Segment>>) -> Parts<'p> {
        Parts { path: &self.path, link, sparse, xattrs: self.extensions.xattrs() }
    }

    fn skipped(self, what: impl Into<String>) -> Step {
        Step::Skipped(Some(Skip { what: what.into(), path: Some(self.path) }))
    }

    fn damaged(self, error: Error) -> Step {
        let member = format!("damaged member \"{}\"", shown(&self.path));
        let error = error.within(member).with_detail(header_at(self.start));
        Step::Damaged { path: self.path, error }
    }
}

/// Adds a member of an archive that ends at `end`. Also returns the end of its data.
///
/// Fails with `Io` if the archive cannot be read. Damage is a `Step`, not an error.
pub(super) fn add_member(
    found: MemberHeader<'_>,
    end: u64,
    nesting: Nesting,
    source: &mut dyn Source,
    members: &mut Members,
) -> Result<(Step, u64)> {
    let data = found.data;
    let stored = match found.stored_len() {
        Ok(stored) => stored,
        Err(error) => return Ok((found.damaged(error), data)),
    };
    let next = data.saturating_add(padded(stored));
    let limit = source.end().map_or(end, |known| known.min(end));
    if data.saturating_add(stored) > limit {
        return Ok((add_truncated(found, limit, nesting, source, members)?, limit));
    }
    if stored > FILE_SIZE_MAX {
        return Ok((found.damaged(Error::corrupt("larger than a file can be")), next));
    }
    let link = found.link();
    if found.path.len() > MEMBER_PATH_MAX || link.len() > MEMBER_PATH_MAX {
        return Ok((found.skipped(format!("paths over {MEMBER_PATH_MAX} bytes")), next));
    }
    let kind = match found.kind {
        MemberType::Regular if found.path.ends_with(b"/") => Kind::Directory,
        MemberType::Regular | MemberType::GnuSparse => {
            return add_file(found, stored, limit, nesting, source, members);
        }
        MemberType::Directory => Kind::Directory,
        MemberType::Symlink => Kind::Symlink,
        MemberType::HardLink => Kind::HardLink,
        MemberType::Fifo => Kind::Fifo,
        MemberType::CharDevice => Kind::CharDevice,
        MemberType::BlockDevice => Kind::BlockDevice,
        MemberType::Other => {
            let step = match found.header.left_out() {
                Some(what) => found.skipped(what),
                None => Step::Skipped(None),
            };
            return Ok((step, next));
        }
    };
    let mut member = found.member(kind);
    if matches!(kind, Kind::CharDevice | Kind::BlockDevice) {
        let Some(number) = found.header.device() else {
            return Ok((found.skipped("devices with numbers too large for Linux"), next));
        };
        member.body = Body::Device(number);
    }
    let link = if matches!(kind, Kind::Symlink | Kind::HardLink) { link } else { &[] };
    members.push(member, found.parts(link, None));
    Ok((Step::Member, next))
}

/// Adds a member whose data continues past `limit`, if it is a tar: of a truncated inner tar, the
/// complete members can still be shown.
fn add_truncated(
    found: MemberHeader<'_>,
    limit: u64,
    nesting: Nesting,
    source: &mut dyn Source,
    members: &mut Members,
) -> Result<Step> {
    let rest = limit.saturating_sub(found.data);
    if nesting == Nesting::Recognize
        && found.kind == MemberType::Regular
        && inner_format(&found.path, found.data, rest, limit, source)? == Some(Inner::Tar)
    {
        let member = found.file(Kind::Archive(Inner::Tar), rest);
        members.push(member, found.parts(&[], None));
        return Ok(Step::Member);
    }
    Ok(Step::Truncated(found.path))
}

/// Adds a regular file, which may be sparse, with `stored` bytes of data. Also returns the end of
/// its data.
fn add_file(
    mut found: MemberHeader<'_>,
    stored: u64,
    limit: u64,
    nesting: Nesting,
    source: &mut dyn Source,
    members: &mut Members,
) -> Result<(Step, u64)> {
    let data = found.data;
    let next = data.saturating_add(padded(stored));
    let records = &found.extensions.sparse;
    match sparse::read(found.header, records, stored, limit, source, &mut found.headers) {
        Ok(Some(map)) => return Ok(add_sparse(found, map, limit, members)),
        Ok(None) => {}
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            // Not before the end of the map: a stream cannot go back.
            let reached = found.headers.end();
            return Ok((found.damaged(error), next.max(reached)));
        }
        Err(error) => return Err(error),
    }
    let inner = match nesting {
        Nesting::Recognize => inner_format(&found.path, data, stored, limit, source)?,
        Nesting::Ignore => None,
    };
    let member = found.file(inner.map_or(Kind::Regular, Kind::Archive), stored);
    members.push(member, found.parts(&[], None));
    Ok((Step::Member, next))
}

/// Adds a sparse file. Also returns the end of its data.
fn add_sparse(
    found: MemberHeader<'_>,
    map: Sparse,
    limit: u64,
    members: &mut Members,
) -> (Step, u64) {
    if map.end > limit {
        return (Step::Truncated(found.path), limit);
    }
    let member = found.file(Kind::Regular, map.size);
    members.push(member, found.parts(&[], Some(map.segments)));
    (Step::Member, padded(map.end))
}

/// The format of an archive within the archive, if both its name and its first bytes show it.
fn inner_format(
    path: &[u8],
    data: u64,
    stored: u64,
    limit: u64,
    source: &mut dyn Source,
) -> Result<Option<Inner>> {
    if archive_stem(path).is_none() {
        return Ok(None);
    }
    let head = HEAD.min(index(stored));
    let Some(head) = source::before(source, data, head, limit)? else {
        return Ok(None);
    };
    if SquashFs::recognizes(head) || zip::recognizes(head) || Container::is_at_start(head) {
        return Ok(Some(Inner::Separate));
    }
    Ok(recognizes(head).then_some(Inner::Tar))
}
