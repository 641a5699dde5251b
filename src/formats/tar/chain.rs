//! The chain of headers: steps from one member to the next and skips the data.
//!
//! It combines blocks that belong together: extensions before a member, and sparse maps. `walk`
//! handles the end of an archive and damage, `scan` nested archives.
//!
//! Invariant: each step ends after it starts, so a chain is finite.

use super::extensions::Extensions;
use super::header::{self, BLOCK, BLOCK_LEN, Block, BlockKind, Header, Type, padded};
use super::source::{self, Source};
use super::sparse;
use super::{HEAD, recognises};
use crate::error::{Error, Kind as ErrorKind, Result};
use crate::formats::bytes::index;
use crate::formats::index::members::{Body, Inner, Kind, Member, Members, Parts, Segment};
use crate::formats::index::paths::{archive_stem, shown};
use crate::formats::limits::{
    FILE_SIZE_MAX, MEMBER_PATH_MAX, TAR_EXTENSION_MAX, TAR_EXTENSIONS_MAX,
};
use crate::formats::squashfs::SquashFs;
use crate::formats::zip;
use crate::vfs::Timestamp;

/// A position in the chain of headers.
pub(super) struct Chain {
    /// Offset of the next block.
    offset: u64,
    /// End of the archive that this chain runs through.
    end: u64,
    /// Records of the global headers so far.
    globals: Extensions,
    nesting: Nesting,
}

/// Whether to recognise archives within an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nesting {
    Ignore,
    Recognise,
}

/// What a step found.
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

/// A header with its extensions.
struct Found<'f> {
    header: Header<'f>,
    extensions: &'f Extensions,
    path: Vec<u8>,
    /// Offset of the first header, which may be an extension.
    start: u64,
    data: u64,
}

impl Chain {
    /// A chain from `offset` to `end`.
    pub(super) fn new(offset: u64, end: u64, nesting: Nesting) -> Self {
        Self { offset, end, globals: Extensions::default(), nesting }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Continues at `offset`, unless the chain is already past it.
    pub(super) fn skip_to(&mut self, offset: u64) {
        self.offset = self.offset.max(offset);
    }

    /// Whether there was a global header. A chain that starts later would not know of it.
    pub(super) fn has_globals(&self) -> bool {
        !self.globals.is_empty()
    }

    /// Steps to the next member and adds it to `members`.
    ///
    /// # Errors
    /// `Io` if the archive cannot be read. Damage is a `Step`, not an error.
    pub(super) fn step(&mut self, source: &mut dyn Source, members: &mut Members) -> Result<Step> {
        let start = self.offset;
        let mut extensions: Option<Extensions> = None;
        let mut offset = start;
        let (mut extension_count, mut extension_bytes) = (0_u32, 0_u64);
        loop {
            let Some(block) = self.block(source, offset)? else {
                return Ok(if offset == start { Step::End } else { Step::Truncated(Vec::new()) });
            };
            let Some(header) = Header::parse(&block) else {
                return Ok(match header::classify(&block) {
                    _ if offset != start => {
                        let error = Error::corrupt("an extension without its member");
                        self.damaged_at(offset, error)
                    }
                    BlockKind::Zeros => Step::Zeros,
                    _ => Step::Garbage,
                });
            };
            let data = offset.saturating_add(BLOCK_LEN);
            match header.kind() {
                Type::Pax | Type::PaxGlobal | Type::LongName | Type::LongLink => {
                    let len = match header.size() {
                        Ok(len) if len <= TAR_EXTENSION_MAX => len,
                        Ok(len) => {
                            let error = Error::corrupt(format!(
                                "an extension of {len} bytes, limit {TAR_EXTENSION_MAX}"
                            ));
                            return Ok(self.damaged_at(data.saturating_add(padded(len)), error));
                        }
                        Err(error) => return Ok(self.damaged_at(data, error)),
                    };
                    let next = data.saturating_add(padded(len));
                    extension_count = extension_count.saturating_add(1);
                    extension_bytes = extension_bytes.saturating_add(len);
                    if extension_count > TAR_EXTENSIONS_MAX || extension_bytes > TAR_EXTENSION_MAX {
                        let error = Error::corrupt("too many extensions before one member");
                        return Ok(self.damaged_at(next, error));
                    }
                    // The name ends at its NUL. GNU tar and Python also ignore a size that is too
                    // small.
                    let read_len = match header.kind() {
                        Type::LongName | Type::LongLink => padded(len),
                        _ => len,
                    };
                    let Some(body) = self.bytes(source, data, index(read_len))? else {
                        return Ok(Step::Truncated(Vec::new()));
                    };
                    let current = extensions.get_or_insert_with(|| self.globals.clone());
                    let applied = match header.kind() {
                        // It replaces the records of an earlier one, as in GNU tar and bsdtar.
                        Type::Pax => {
                            current.replace_records(&self.globals);
                            current.apply(body)
                        }
                        Type::LongName => {
                            current.long_name = Some(header::until_nul(body).to_vec());
                            Ok(())
                        }
                        Type::LongLink => {
                            current.long_link = Some(header::until_nul(body).to_vec());
                            Ok(())
                        }
                        _ => match self.globals.apply_global(body) {
                            // A global header belongs to no member, so a guessed chain may start
                            // right after it.
                            Ok(has_others) => {
                                self.offset = next;
                                let what = "global records other than owners and times";
                                let skip =
                                    has_others.then(|| Skip { what: what.into(), path: None });
                                return Ok(Step::Skipped(skip));
                            }
                            Err(error) => Err(error),
                        },
                    };
                    if let Err(error) = applied {
                        return Ok(self.damaged_at(next, error));
                    }
                    offset = next;
                }
                _ => {
                    let mut path = Vec::new();
                    let none = Extensions::default();
                    let globals = (!self.globals.is_empty()).then_some(&self.globals);
                    let extensions = extensions.as_ref().or(globals).unwrap_or(&none);
                    match extensions.path() {
                        Some(extended) => path.extend(extended),
                        None => header.path(&mut path),
                    }
                    let found = Found { header, extensions, path, start, data };
                    let (step, next) = member(found, self.end, self.nesting, source, members)?;
                    self.offset = next;
                    return Ok(step);
                }
            }
        }
    }

    /// The bytes at `offset`, or `None` if this archive ends before they do.
    fn bytes<'s>(
        &self,
        source: &'s mut dyn Source,
        offset: u64,
        len: usize,
    ) -> Result<Option<&'s [u8]>> {
        source::before(source, offset, len, self.end)
    }

    fn block(&self, source: &mut dyn Source, offset: u64) -> Result<Option<Block>> {
        Ok(self.bytes(source, offset, BLOCK)?.and_then(|bytes| bytes.first_chunk().copied()))
    }

    /// Reports damage, and continues at `next` or later.
    fn damaged_at(&mut self, next: u64, error: Error) -> Step {
        let start = self.offset;
        self.offset = next.max(start.saturating_add(BLOCK_LEN));
        let error = error.within("damaged header").with_detail(header_at(start));
        Step::Damaged { path: Vec::new(), error }
    }
}

/// The detail of an error in the header at `start`.
fn header_at(start: u64) -> String {
    format!("header at {start:#x}")
}

/// Adds the member to `members`. Also returns the end of its data.
fn member(
    found: Found<'_>,
    end: u64,
    nesting: Nesting,
    source: &mut dyn Source,
    members: &mut Members,
) -> Result<(Step, u64)> {
    let Found { header, extensions, path, start, data } = found;
    let damaged = |error: Error, next: u64| {
        let member = format!("damaged member \"{}\"", shown(&path));
        let error = error.within(member).with_detail(header_at(start));
        (Step::Damaged { path: path.clone(), error }, next)
    };
    // Before POSIX, a directory was a file whose name ends with a slash.
    let is_old_directory = header.is_plain_file() && path.ends_with(b"/");
    let has_data = header.has_data() && !is_old_directory;
    let stored = match (has_data, extensions.size, header.size()) {
        (false, ..) => 0,
        (true, Some(size), _) | (true, None, Ok(size)) => size,
        (true, None, Err(error)) => return Ok(damaged(error, data)),
    };
    let next = data.saturating_add(padded(stored));
    let limit = source.end().map_or(end, |known| known.min(end));
    if data.saturating_add(stored) > limit {
        // Of a truncated inner tar, the complete members can still be shown.
        let rest = limit.saturating_sub(data);
        if nesting == Nesting::Recognise
            && header.kind() == Type::Regular
            && inner_format(&path, data, rest, limit, source)? == Some(Inner::Tar)
        {
            let kind = Kind::Archive(Inner::Tar);
            let member = Member {
                kind,
                size: rest,
                body: Body::Stored(data),
                ..base_member(header, extensions, start)
            };
            members.push(member, parts(&path, &[], None, extensions));
            return Ok((Step::Member, limit));
        }
        return Ok((Step::Truncated(path), limit));
    }
    if stored > FILE_SIZE_MAX {
        return Ok(damaged(Error::corrupt("larger than a file can be"), next));
    }
    let link = extensions.link().unwrap_or_else(|| header.link());
    if path.len() > MEMBER_PATH_MAX || link.len() > MEMBER_PATH_MAX {
        let what = format!("paths over {MEMBER_PATH_MAX} bytes");
        return Ok((Step::Skipped(Some(Skip { what, path: Some(path) })), next));
    }
    let mut member = base_member(header, extensions, start);
    match header.kind() {
        Type::Other => {
            let skip = header.left_out().map(|what| Skip { what: what.into(), path: Some(path) });
            return Ok((Step::Skipped(skip), next));
        }
        Type::Regular if path.ends_with(b"/") => member.kind = Kind::Directory,
        Type::Regular | Type::GnuSparse => {
            member.size = stored;
            member.body = Body::Stored(data);
            let mut reached = data;
            let records = &extensions.sparse;
            let map = sparse::read(header, records, data, stored, limit, source, &mut reached);
            let map = match map {
                Ok(map) => map,
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    // Not before the end of the map: a stream cannot go back.
                    return Ok(damaged(error, next.max(reached)));
                }
                Err(error) => return Err(error),
            };
            if let Some(map) = map {
                if map.end > limit {
                    return Ok((Step::Truncated(path), limit));
                }
                member.size = map.size;
                members.push(member, parts(&path, &[], Some(map.segments), extensions));
                return Ok((Step::Member, padded(map.end)));
            }
            if nesting == Nesting::Recognise
                && let Some(inner) = inner_format(&path, data, stored, limit, source)?
            {
                member.kind = Kind::Archive(inner);
            }
        }
        Type::Directory => member.kind = Kind::Directory,
        Type::Symlink => member.kind = Kind::Symlink,
        Type::HardLink => member.kind = Kind::HardLink,
        Type::Fifo => member.kind = Kind::Fifo,
        Type::CharDevice => member.kind = Kind::CharDevice,
        Type::BlockDevice => member.kind = Kind::BlockDevice,
        // The caller handles these types. If the header has changed since then, it is skipped.
        Type::Pax | Type::PaxGlobal | Type::LongName | Type::LongLink => {
            return Ok((Step::Skipped(None), next));
        }
    }
    if matches!(member.kind, Kind::CharDevice | Kind::BlockDevice) {
        let Some(number) = header.device() else {
            let what = "devices with numbers too large for Linux".into();
            return Ok((Step::Skipped(Some(Skip { what, path: Some(path) })), next));
        };
        member.body = Body::Device(number);
    }
    let link = if matches!(member.kind, Kind::Symlink | Kind::HardLink) { link } else { &[] };
    members.push(member, parts(&path, link, None, extensions));
    Ok((Step::Member, next))
}

/// The fields that all kinds of members have, from the header and its extensions.
fn base_member(header: Header<'_>, extensions: &Extensions, start: u64) -> Member {
    let time = || Timestamp { seconds: header.modified(), nanoseconds: 0 };
    Member {
        permissions: header.permissions(),
        uid: extensions.uid.unwrap_or_else(|| header.uid()),
        gid: extensions.gid.unwrap_or_else(|| header.gid()),
        modified: extensions.modified.unwrap_or_else(time),
        ..Member::new(start, Kind::Regular)
    }
}

fn parts<'p>(
    path: &'p [u8],
    link: &'p [u8],
    sparse: Option<Vec<Segment>>,
    extensions: &Extensions,
) -> Parts<'p> {
    Parts { path, link, sparse, xattrs: extensions.xattrs() }
}

/// The format of an archive within the archive, if both its name and its first bytes show it.
fn inner_format(
    path: &[u8],
    data: u64,
    stored: u64,
    limit: u64,
    source: &mut dyn Source,
) -> Result<Option<Inner>> {
    if archive_stem(path).is_none() || stored < BLOCK_LEN {
        return Ok(None);
    }
    let head = HEAD.min(index(stored));
    let Some(head) = source::before(source, data, head, limit)? else {
        return Ok(None);
    };
    if SquashFs::recognises(head) || zip::recognises(head) {
        return Ok(Some(Inner::Separate));
    }
    Ok(recognises(head).then_some(Inner::Tar))
}
