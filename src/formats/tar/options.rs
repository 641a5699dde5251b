//! How to open a tar, and what to do with its index.

use std::path::Path;

use super::acl::Acls;
use super::member::Nesting;
use crate::formats::index::Allowance;
use crate::progress::Progress;
use crate::storage::FileStorage;
use crate::sync::Arc;

/// How to open an archive.
pub(crate) struct TarOptions<'o> {
    /// Whether archives in it are shown as directories.
    pub(crate) recursive: bool,
    /// Where to find and save an index. `None` if the archive is not a file of its own.
    pub(crate) saved: Option<SavedIndexOptions<'o>>,
    pub(crate) progress: &'o Progress,
    /// Whether a tar with missing members is opened. Otherwise that is an error.
    pub(crate) partial: bool,
    /// Whether the notes of the index are logged.
    pub(crate) logs_notes: bool,
    /// Memory for decompressed chunks, bytes.
    pub(crate) memory: u64,
    pub(crate) acls: Acls,
    /// Memory for blocks of indexes.
    pub(crate) indexes: &'o Arc<Allowance>,
}

impl TarOptions<'_> {
    pub(super) fn nesting(&self) -> Nesting {
        if self.recursive { Nesting::Recognize } else { Nesting::Ignore }
    }
}

/// Where a saved index may be, and what to do with it.
pub(crate) struct SavedIndexOptions<'o> {
    /// The archive.
    pub(crate) file: &'o FileStorage,
    /// The path of the index that the user gave. Then no other path is tried.
    pub(crate) path: Option<&'o Path>,
    pub(crate) policy: IndexPolicy,
}

/// When a saved index is used, and when a new one is saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexPolicy {
    /// Uses a saved one. Saves a new one if it took long to make. A failure to save is only a
    /// warning.
    #[default]
    SaveIfWorthwhile,
    /// Always makes and saves a new one: the user asked for it.
    Save,
    /// Makes a new one and compares it with the saved one. Saves nothing.
    Compare,
    /// Makes a new one, ignores a saved one, and saves nothing.
    Ignore,
}
