//! A compressed file that contains no tar, such as data.csv.gz: a tree of one file, data.csv.
//!
//! Only the name of the archive decides, because a damaged or mistaken archive must not become a
//! file: without their suffixes, data.tar.gz and data.sqfs.gz are archives.

use super::BLOCK_LEN;
use crate::error::Result;
use crate::formats::compressed::Container;
use crate::formats::index::members::{Body, Kind, Member, Members, Parts, archive_stem};
use crate::formats::index::{
    ArchiveRange, Content, DirectoryId, FinishedTree, Index, NewTree, ROOT,
};
use crate::storage::FileStorage;
use crate::url;
use crate::vfs::{Name, Timestamp};

/// The file in a compressed file. Its name and attributes are those of the compressed file as it is
/// now, so that none of them is taken from a saved index.
pub(crate) struct LoneFile {
    name: Vec<u8>,
    permissions: u16,
    uid: u32,
    gid: u32,
    modified: Timestamp,
}

impl LoneFile {
    /// The file in `archive`, if its name is that of a compressed file.
    pub(crate) fn of(archive: &FileStorage) -> Option<Self> {
        let name = Container::stem(url::file_name(archive.path())?)?;
        if Name::parse(name).is_none() || archive_stem(name).is_some() {
            return None;
        }
        let identity = archive.identity();
        let (seconds, nanoseconds) = identity.modified;
        Some(Self {
            name: name.to_owned(),
            permissions: u16::try_from(identity.mode & 0o777).unwrap_or(0),
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
        let member = Member {
            permissions,
            uid,
            gid,
            modified,
            size: len,
            body: Body::Stored(0),
            ..Member::new(0, Kind::Regular)
        };
        members.push(member, Parts { path: name, link: &[], sparse: None, xattrs: Vec::new() });
        let whole = ArchiveRange { base: DirectoryId::ROOT, depth: 0, start: 0, end: len };
        let mut tree = NewTree::default();
        tree.add(whole, &members, &mut Vec::new())?;
        tree.finish()
    }
}

/// Whether `index` is of a lone file: in a tar, a header comes before the bytes of a file.
pub(super) fn is_indexed_by(index: &Index) -> bool {
    index
        .node(ROOT.saturating_add(1))
        .is_ok_and(|node| matches!(node.content(), Content::Stored { start } if start < BLOCK_LEN))
}
