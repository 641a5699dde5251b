//! A compressed file that contains no tar, such as data.csv.gz: a tree of one file, data.csv.
//!
//! Only the name of the archive decides, because a damaged or mistaken archive must not become a
//! file: without their suffixes, data.tar.gz and data.sqfs.gz are archives.

use std::os::unix::ffi::OsStrExt;

use super::BLOCK_LEN;
use super::Tar;
use crate::error::Result;
use crate::formats::compressed::Container;
use crate::formats::index::members::{Body, Kind, Member, Members, Parts, archive_stem};
use crate::formats::index::{ArchiveRange, Content, DirectoryId, FinishedTree, NewTree, ROOT};
use crate::storage::FileStorage;
use crate::vfs::Timestamp;

/// The file in a compressed file: its name, and the attributes of the compressed file.
pub(crate) struct LoneFile {
    name: Vec<u8>,
    permissions: u16,
    uid: u32,
    gid: u32,
    modified: Timestamp,
}

/// Of a file at a URL, which has none.
const PERMISSIONS: u16 = 0o644;

impl LoneFile {
    /// What `archive` contains, if its name is that of a compressed file.
    pub(crate) fn of(archive: &FileStorage) -> Option<Self> {
        let name = Container::stem(archive.path().file_name()?.as_bytes())?;
        if name.is_empty() || archive_stem(name).is_some() {
            return None;
        }
        let identity = archive.identity();
        let permissions = u16::try_from(identity.mode & 0o777).unwrap_or(0);
        let (seconds, nanoseconds) = identity.modified;
        Some(Self {
            name: name.to_owned(),
            permissions: if permissions == 0 { PERMISSIONS } else { permissions },
            uid: identity.owner,
            gid: archive.origin().group,
            modified: Timestamp { seconds, nanoseconds },
        })
    }

    /// Its tree, if it has `len` bytes.
    ///
    /// Fails as `NewTree::add` and `NewTree::finish` do.
    pub(super) fn tree(&self, len: u64) -> Result<FinishedTree> {
        let &Self { ref name, permissions, uid, gid, modified } = self;
        let mut members = Members::default();
        let body = Body::Stored(0);
        let member = Member {
            permissions,
            uid,
            gid,
            modified,
            size: len,
            body,
            ..Member::new(0, Kind::Regular)
        };
        members.push(member, Parts { path: name, link: &[], sparse: None, xattrs: Vec::new() });
        let whole = ArchiveRange { base: DirectoryId::ROOT, depth: 0, start: 0, end: len };
        let mut tree = NewTree::default();
        tree.add(whole, &members, &mut Vec::new())?;
        tree.finish()
    }
}

impl Tar {
    /// Whether it is a `LoneFile`: in a tar, a header comes before the bytes of a file.
    pub(super) fn is_lone_file(&self) -> bool {
        let first = ROOT.saturating_add(1);
        self.members.compressed.is_some()
            && self.index.node(first).is_ok_and(
                |node| matches!(node.content(), Content::Stored { start } if start < BLOCK_LEN),
            )
    }
}
