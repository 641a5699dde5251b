//! An archive that the nodes of a job share: what identifies it on all of them, and where its bytes
//! come from.

use std::fs::File;
use std::ops::Range;

use super::{Bytes, FileStorage, NETWORK_FILE_SYSTEMS, NFS};
use crate::error::Result;
use crate::remote::{self, Requester};
use crate::storage::identity::{Identity, Origin, Validator};
use crate::storage::near::{NearCopy, Source};
use crate::sync::Arc;
use crate::together::{Group, Served, SharedArchive};
use crate::url;

impl FileStorage {
    /// Whether other nodes can see the same file: it is at a URL, or on a network file system.
    pub fn is_seen_by_other_nodes(&self) -> bool {
        let file_system = self.origin.file_system;
        self.is_remote() || file_system == NFS || NETWORK_FILE_SYSTEMS.contains(&file_system)
    }

    /// Has copies of it fetch its bytes from the nodes of `group`. No effect if nothing identifies
    /// its version, or if there is a copy already.
    pub(in crate::storage) fn share(self: &Arc<Self>, group: &Arc<Group>) {
        let Some(key) = self.shared_key() else { return };
        let source = self.own_source();
        let storage =
            move |buffer: &mut [u8], offset: u64| source.fetch(buffer, offset, Requester::Peer);
        let shared = group.share(key, self.identity.len, Box::new(storage));
        let _ = self.shared.set(shared);
    }

    /// The same version of the same file has the same key on all nodes, whatever its path. The
    /// device number differs from node to node.
    fn shared_key(&self) -> Option<String> {
        let Identity { len, modified, inode: (_, inode), .. } = self.identity;
        let Origin { file_system, changed, validator, .. } = self.origin;
        let version = match &self.bytes {
            Bytes::Remote(file) if validator != Validator::None => {
                let name = remote::lasting_identity(&url::text(&self.path));
                format!("{len} {:?} {name:?}", file.version())
            }
            Bytes::Local(_) | Bytes::Pooled(..) if self.identity.is_regular() => {
                format!("{len} {inode} {modified:?} {changed:?} {file_system}")
            }
            _ => return None,
        };
        Some(blake3::hash(version.as_bytes()).to_hex()[..32].to_owned())
    }

    /// The archive as other nodes of the job read it. `None` if they do not share it, or if there
    /// is no copy in which it could be kept for them.
    pub fn for_peers(self: &Arc<Self>) -> Option<Box<dyn Served>> {
        let Bytes::Near { copy, file, number, .. } = &self.bytes else { return None };
        Some(Box::new(ServedCopy {
            archive: Arc::clone(self.shared.get()?),
            copy: Arc::clone(copy),
            file: Arc::clone(file),
            number: *number,
            len: self.identity.len,
        }))
    }
}

/// An archive for peers: a copy of it.
struct ServedCopy {
    archive: Arc<SharedArchive>,
    copy: Arc<NearCopy>,
    file: Arc<File>,
    number: usize,
    len: u64,
}

impl Served for ServedCopy {
    fn key(&self) -> &str {
        self.archive.key()
    }

    fn size(&self) -> u64 {
        self.len
    }

    fn has(&self, range: &Range<u64>) -> bool {
        self.copy.has(self.number, range)
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.copy.read_for_peer(self.number, buffer, offset, &self.file)
    }
}

/// An archive whose bytes come from peers as well as from its own source.
pub(super) struct SharedSource {
    own: Arc<dyn Source>,
    archive: Arc<SharedArchive>,
}

impl SharedSource {
    pub(super) fn new(own: Arc<dyn Source>, archive: &Arc<SharedArchive>) -> Self {
        Self { own, archive: Arc::clone(archive) }
    }
}

impl Source for SharedSource {
    fn fetch(&self, buffer: &mut [u8], offset: u64, requester: Requester) -> Result<()> {
        let own = |buffer: &mut [u8], offset| self.own.fetch(buffer, offset, requester);
        match requester {
            // It would not ask if this node did not have to read the storage.
            Requester::Peer => self.archive.read_storage(buffer, offset, own),
            Requester::Reader | Requester::Fill => {
                self.archive.read(buffer, offset, requester, own)
            }
        }
    }

    fn check_version(&self) -> Result<()> {
        self.own.check_version()
    }

    fn note_opened(&self, is_read_once: bool) {
        self.own.note_opened(is_read_once);
    }

    fn shared(&self) -> Option<&Arc<SharedArchive>> {
        Some(&self.archive)
    }

    fn tables_at_once(&self) -> u64 {
        self.own.tables_at_once()
    }
}
