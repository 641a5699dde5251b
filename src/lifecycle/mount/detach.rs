//! How a mount is detached, and the errors for one that is in use.

use std::path::Path;

use crate::error::{Error, Kind};

/// Whether to detach a mount that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detach {
    /// Only a mount that is not in use.
    IfIdle,
    /// Any mount, at once, as `umount -l` does. Open files stay usable.
    Lazily,
}

/// The error for a mount in use.
pub(crate) fn busy(mount_point: &Path) -> Error {
    busy_with(format!("{}: in use", mount_point.display()))
}

/// The error for a mount in use, with the daemon's description `why`.
pub(crate) fn busy_with(why: String) -> Error {
    Error::new(Kind::Busy, why).with_hint(
        "close its files and leave its directories (fuser -vm lists the processes), or use --lazy",
    )
}
