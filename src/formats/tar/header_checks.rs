//! Checks of an index that may be of another file than the archive, for example one beside a URL.
//!
//! The first read of a member compares the headers before its data with those in the index
//! (`index::Headers`). A read from the start of the member gets them together with the data, so the
//! check costs no request. Later reads cost a look at one bit for each node.
//!
//! If they differ, the read fails, and a list in the user's cache directory gets the hash of the
//! index. The next open finds it there, and makes a new index.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
// Not the model checker's atomics: nothing is decided by their order.
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::index_location::IndexLocation;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::formats::index::{Hash, Headers, NodeId};
use crate::os::directory::Directory;
use crate::os::new_file::{NewFile, Readers};
use crate::storage::{FilePart, FileStorage, Storage, Validator};

/// The checks of one open index.
pub(super) struct HeaderChecks {
    refusal: Refusal,
    has_failed: AtomicBool,
    /// A bit for each node, set if its headers are those in the index.
    done: Vec<AtomicU8>,
}

/// An index that can be refused.
pub(super) struct Refusal {
    index: PathBuf,
    hash: Hash,
    /// Whether the versions of the archive cannot be told apart well.
    is_weak: bool,
    /// The list of refused indexes of this archive. Its directory is not open: there may be more
    /// archives than a process may have open files.
    list: Option<IndexLocation>,
}

impl HeaderChecks {
    /// Checks for an index of `nodes` nodes.
    pub(super) fn new(refusal: Refusal, nodes: NodeId) -> Self {
        let bytes = nodes.div_ceil(u8::BITS);
        let done = (0..bytes).map(|_| AtomicU8::new(0)).collect();
        Self { refusal, has_failed: AtomicBool::new(false), done }
    }

    /// Why there are checks.
    pub(super) fn doubt(&self) -> String {
        format!("the index {} may be of another version", self.refusal.index.display())
    }

    /// What rids `archive` of them.
    pub(super) fn remedy(&self, archive: &str) -> String {
        match self.refusal.is_weak {
            // An index made again would be as doubtful.
            true => "use --stage, or a server that sends a strong ETag".to_owned(),
            false => format!("run `archfs index {archive}`"),
        }
    }

    /// Whether the headers of node `id` were compared.
    pub(super) fn is_done(&self, id: NodeId) -> bool {
        let byte = self.done.get(index(id / u8::BITS));
        byte.is_some_and(|byte| byte.load(Ordering::Relaxed) & bit(id) != 0)
    }

    /// Notes that the headers of node `id` are right.
    pub(super) fn done(&self, id: NodeId) {
        if let Some(byte) = self.done.get(index(id / u8::BITS)) {
            byte.fetch_or(bit(id), Ordering::Relaxed);
        }
    }

    /// Compares `headers` with those in `storage` that end at `end`.
    pub(super) fn read(&self, storage: &dyn Storage, headers: Headers, end: u64) -> Result<()> {
        let mut found = vec![0; headers.len()];
        let start = end.checked_sub(length(found.len())).ok_or_else(|| self.refuse())?;
        storage.read_contents_at(&mut found, start, FilePart::First)?;
        self.compare(headers, &found)
    }

    /// Compares `headers` with those that were `found`.
    pub(super) fn compare(&self, headers: Headers, found: &[u8]) -> Result<()> {
        if headers.are(found) { Ok(()) } else { Err(self.refuse()) }
    }

    fn refuse(&self) -> Error {
        let shown = self.refusal.index.display();
        let is_first = !self.has_failed.swap(true, Ordering::Relaxed);
        if is_first && let Err(error) = self.refusal.note() {
            let what = format_args!("{shown}: {}", crate::log::text_of(&error));
            crate::log::warn(what, "delete the index, or make it again with `archfs index`");
        }
        let what = format!("the index {shown} is of another version of the archive");
        // A mount logs no `Changed`: one message is enough.
        Error::new(if is_first { Kind::Io } else { Kind::Changed }, what.clone())
            .with_brief(format!("{what}; other files may fail as well"))
            .with_hint("mount the archive again: archfs then makes a new index")
    }
}

/// The bit of a node in its byte.
fn bit(id: NodeId) -> u8 {
    1_u8.checked_shl(id % u8::BITS).unwrap_or(0)
}

/// Bytes of a hash, and the most hashes in a list.
const HASH: usize = size_of::<Hash>();
const HASHES_MAX: usize = 16;

impl Refusal {
    /// The index of `archive` at `path`, with this `hash`.
    pub(super) fn new(archive: &FileStorage, recursive: bool, path: &Path, hash: Hash) -> Self {
        let list = IndexLocation::refused(archive, recursive);
        let list = list.map(|list| IndexLocation { directory: None, ..list });
        let is_weak = archive.origin().validator == Validator::Weak;
        Self { index: path.to_owned(), hash, is_weak, list }
    }

    /// Whether the index with this `hash` was refused.
    pub(super) fn is_noted(archive: &FileStorage, recursive: bool, hash: Hash) -> bool {
        let list = IndexLocation::refused(archive, recursive);
        let directory =
            list.as_ref().and_then(|list| list.directory.as_ref().zip(Some(&list.name)));
        directory.is_some_and(|(directory, name)| hashes(directory, name).contains(&hash))
    }

    /// Puts the index at the start of the list.
    fn note(&self) -> Result<()> {
        let failed = |error| Error::io("cannot be noted as refused", error);
        let none = || Error::new(Kind::Io, "cannot be noted as refused: HOME is not set");
        let list = self.list.as_ref().ok_or_else(none)?;
        let directory = list.directory_to_write().map_err(failed)?;
        let others = hashes(&directory, &list.name).into_iter().filter(|hash| *hash != self.hash);
        let hashes: Vec<_> = std::iter::once(self.hash).chain(others).take(HASHES_MAX).collect();
        let readers = Readers { group: None, mode: 0 };
        let write =
            &mut |file: &mut std::fs::File| std::io::Write::write_all(file, hashes.as_flattened());
        NewFile::replace(&directory, &list.name, readers, write).map_err(failed)?;
        Ok(())
    }
}

/// The hashes in the list `name`.
fn hashes(directory: &Directory, name: &OsStr) -> Vec<Hash> {
    let mut bytes = Vec::new();
    if let Ok(file) = directory.open_file(name) {
        let most = length(HASH.saturating_mul(HASHES_MAX));
        // What cannot be read is not refused.
        let _ = file.take(most).read_to_end(&mut bytes);
    }
    bytes.as_chunks().0.to_vec()
}
