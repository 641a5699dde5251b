//! How a mount is detached, and the errors for one that is in use.

use std::path::Path;

use crate::error::{Error, Kind};

/// How hard to detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detach {
    /// Only if nobody uses it.
    IfIdle,
    /// From the tree of directories at once; files still open go on working.
    Lazily,
}

/// The error for a mount in use.
pub(in crate::lifecycle) fn busy(mount_point: &Path) -> Error {
    busy_with(format!("{}: in use", mount_point.display()))
}

/// The same, where its daemon says how it is in use.
pub(in crate::lifecycle) fn busy_with(why: String) -> Error {
    Error::new(Kind::Busy, why).with_hint(
        "close the files and leave the folders below it (fuser -vm tells who), or use --lazy",
    )
}
