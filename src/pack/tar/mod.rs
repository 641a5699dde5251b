//! Writes a tar archive (POSIX.1-2017, pax) that any tar can read.
//!
//! Invariants: members come in the order of names, a directory before its entries. They contain
//! nothing about the machine that packed them. A file that cannot be read is missing under all of
//! its names.
//!
//! The root is no member, because extracting an archive should not change the directory it is
//! extracted into. Equal files are stored once each: a hard link would save the space, but a write
//! to one copy would then change the other.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use self::body::{Body, SparseMap, changed, finish};
use self::header::{Flag, Header, NO_XATTRS};
use super::Job;
use super::catalog::{Catalog, InodeId, InodeKind, Walk};
use super::feed::{Part, feed};
use super::output::Output;
use crate::error::{Error, Result};
use crate::units::counted;
use crate::vfs::{FileKind, Timestamp};

pub(super) mod body;
pub(super) mod header;
#[cfg_attr(test, expect(clippy::single_range_in_vec_init, reason = "a list of one range is meant"))]
#[cfg(test)]
pub(super) mod tests;

/// What an archive contains, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Members {
    /// Names of regular files.
    pub files: u64,
    /// Regular files that are stored without their holes.
    pub sparse: u64,
    /// Bytes of the regular files, holes included.
    pub bytes: u64,
    /// Directories, including the root.
    #[serde(rename = "folders")]
    pub directories: u64,
    /// Names of symbolic links.
    pub symlinks: u64,
    /// Names that are not the first of their file.
    pub hard_links: u64,
    /// Names of devices and fifos.
    pub devices: u64,
    /// What was left out on purpose, one sentence for each kind.
    pub notes: Vec<String>,
}

/// How the holes of sparse files are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// As zeros, which every program reads.
    Zeros,
    /// Left out, in GNU tar's pax format 1.0. Programs that do not know it, such as 7-Zip and
    /// busybox, extract another file of another size without an error.
    LeftOut,
}

/// Writes a whole archive. Times later than `epoch` become `epoch`.
///
/// # Errors
/// The errors of the output, and `Interrupted`. A file that cannot be read is a problem of the job.
pub(crate) fn write(
    job: &Job<'_>,
    catalog: &Catalog,
    epoch: Option<i64>,
    holes: Holes,
    output: &mut Output,
) -> Result<Members> {
    let mut files = Vec::new();
    let mut known = HashSet::new();
    let mut walk = Walk::new(catalog);
    while let Some((_, id)) = walk.next() {
        let is_file = catalog.inode(id).file_kind() == FileKind::Regular;
        if is_file && (catalog.links(id) == 1 || known.insert(id)) {
            files.push(id);
        }
    }
    let mut writer = Writer {
        job,
        catalog,
        epoch,
        holes,
        filled: 0,
        output,
        walk: Walk::new(catalog),
        first: HashMap::new(),
        left_out: HashSet::new(),
        open: None,
        sockets: 0,
        members: Members { directories: 1, ..Members::default() },
    };
    feed(
        job,
        catalog,
        &files,
        1,
        |parts| parts,
        |parts| parts.into_iter().try_for_each(|part| writer.take(part)),
    )?;
    writer.finish()
}

struct Writer<'w> {
    job: &'w Job<'w>,
    catalog: &'w Catalog,
    epoch: Option<i64>,
    holes: Holes,
    /// Files whose holes are stored as zeros.
    filled: u64,
    output: &'w mut Output,
    walk: Walk<'w>,
    /// Files with several names, with the name that has the bytes.
    first: HashMap<InodeId, Box<[u8]>>,
    /// Files that could not be read.
    left_out: HashSet<InodeId>,
    /// The file that is being written.
    open: Option<(InodeId, Body)>,
    sockets: u64,
    members: Members,
}

impl Writer<'_> {
    fn take(&mut self, Part { file, pieces }: Part) -> Result<()> {
        if self.left_out.contains(&file) {
            return Ok(());
        }
        if self.open.as_ref().is_some_and(|(open, _)| *open != file) {
            self.end_early()?;
        }
        // An error is thus known before the header is written, unless the file has several parts.
        let pieces = match pieces {
            Ok(pieces) => pieces,
            Err(error) => return self.leave_out(file, &error),
        };
        let mut body = match self.open.take() {
            Some((_, body)) => body,
            None => match self.begin(file)? {
                Ok(body) => body,
                Err(error) => return self.leave_out(file, &error),
            },
        };
        let put = body.put(self.output, &pieces)?;
        match put {
            Ok(()) if body.is_whole() => {
                body.end(self.output)?;
                self.members.files += 1;
                self.members.bytes += self.catalog.inode(file).size();
                Ok(())
            }
            Ok(()) => {
                self.open = Some((file, body));
                Ok(())
            }
            Err(error) => {
                self.open = Some((file, body));
                self.leave_out(file, &error)
            }
        }
    }

    /// Writes everything before a file, and its header. The inner error is that of the file.
    fn begin(&mut self, file: InodeId) -> Result<Result<Body>> {
        let path = self.pass(Some(file))?.unwrap_or_default();
        let inode = self.catalog.inode(file);
        let map = match (&inode.kind, self.holes) {
            (InodeKind::File { size, content, sparse: true }, Holes::LeftOut) => {
                match SparseMap::of(self.catalog.content(*content), *content, *size) {
                    Ok(map) => map,
                    Err(error) => return Ok(Err(error)),
                }
            }
            (InodeKind::File { sparse: true, .. }, Holes::Zeros) => {
                self.filled += 1;
                None
            }
            _ => None,
        };
        let mut header = describe(self.catalog, file, &path, self.epoch);
        if let Some(map) = &map {
            header.size = map.stored();
            header.real_size = Some(inode.size());
            self.members.sparse += 1;
        }
        let body = Body::begin(self.output, &header.encode(), inode.size(), map)?;
        if self.catalog.links(file) > 1 {
            self.first.insert(file, path.into());
        }
        Ok(Ok(body))
    }

    /// Writes members without bytes until the walk reaches `file`, and returns its path.
    fn pass(&mut self, file: Option<InodeId>) -> Result<Option<Vec<u8>>> {
        while let Some((path, id)) = self.walk.next() {
            if Some(id) == file {
                return Ok(Some(path.to_vec()));
            }
            let mut header = describe(self.catalog, id, path, self.epoch);
            let directory;
            let kind = &self.catalog.inode(id).kind;
            if self.left_out.contains(&id) {
                continue;
            }
            let count = match (self.first.get(&id), kind) {
                (Some(first), _) => {
                    match kind {
                        InodeKind::File { .. } => self.members.files += 1,
                        InodeKind::Symlink(_) => self.members.symlinks += 1,
                        _ => self.members.devices += 1,
                    }
                    header = Header { size: 0, xattrs: NO_XATTRS, target: first, ..header };
                    header.flag = Flag::HardLink;
                    &mut self.members.hard_links
                }
                (None, InodeKind::Directory(_)) => {
                    directory = [path, b"/"].concat();
                    header.path = &directory;
                    &mut self.members.directories
                }
                (None, InodeKind::Symlink(_)) => &mut self.members.symlinks,
                (None, InodeKind::Device { .. } | InodeKind::Fifo) => &mut self.members.devices,
                (None, InodeKind::Socket) => {
                    self.sockets += 1;
                    continue;
                }
                // Files come in the order of the walk, so this one was read but produced no piece.
                (None, InodeKind::File { .. }) => {
                    self.job.problem(self.catalog.origin(id), &changed());
                    self.left_out.insert(id);
                    continue;
                }
            };
            *count += 1;
            self.output.append(&header.encode())?;
            let several = self.catalog.links(id) > 1 && !matches!(kind, InodeKind::Directory(_));
            if several && !self.first.contains_key(&id) {
                self.first.insert(id, path.into());
            }
        }
        Ok(None)
    }

    /// Removes what is written of a file, and records why.
    fn leave_out(&mut self, file: InodeId, error: &Error) -> Result<()> {
        self.job.problem(self.catalog.origin(file), error);
        self.left_out.insert(file);
        self.first.remove(&file);
        match self.open.take() {
            Some((_, body)) => {
                self.members.sparse -= u64::from(body.is_sparse());
                body.discard(self.output)
            }
            None => Ok(()),
        }
    }

    fn end_early(&mut self) -> Result<()> {
        match &self.open {
            Some((file, _)) => self.leave_out(*file, &changed()),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Result<Members> {
        self.end_early()?;
        self.pass(None)?;
        finish(self.output)?;
        if self.filled > 0 {
            let files = counted(self.filled, "file");
            let note = format!("holes of {files} stored as zeros; --sparse leaves them out");
            self.members.notes.push(note);
        }
        if self.sockets > 0 {
            let note = format!("{} left out: tar has no sockets", counted(self.sockets, "socket"));
            self.members.notes.push(note);
        }
        Ok(self.members)
    }
}

/// The header of an inode under one of its names. The caller adds the fields of sparse files.
pub(super) fn describe<'m>(
    catalog: &'m Catalog,
    id: InodeId,
    path: &'m [u8],
    epoch: Option<i64>,
) -> Header<'m> {
    let inode = catalog.inode(id);
    let meta = &inode.meta;
    let (flag, target, device): (_, &[u8], _) = match &inode.kind {
        InodeKind::Directory(_) => (Flag::Directory, b"", 0),
        InodeKind::File { .. } => (Flag::File, b"", 0),
        InodeKind::Symlink(target) => (Flag::Symlink, target, 0),
        InodeKind::Device { kind: FileKind::BlockDevice, number } => {
            (Flag::BlockDevice, b"", *number)
        }
        InodeKind::Device { number, .. } => (Flag::CharDevice, b"", *number),
        InodeKind::Fifo | InodeKind::Socket => (Flag::Fifo, b"", 0),
    };
    Header {
        flag,
        path,
        target,
        permissions: meta.permissions,
        uid: meta.uid,
        gid: meta.gid,
        modified: no_later(meta.modified, epoch),
        size: inode.size(),
        real_size: None,
        device,
        xattrs: meta.xattrs.map_or(NO_XATTRS, |number| catalog.xattrs(number)),
    }
}

/// The earlier of a time and `epoch`.
fn no_later(time: Timestamp, epoch: Option<i64>) -> Timestamp {
    match epoch {
        Some(epoch) if time.seconds >= epoch => Timestamp { seconds: epoch, nanoseconds: 0 },
        _ => time,
    }
}
