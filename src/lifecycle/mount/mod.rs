//! Mounts and unmounts one FUSE connection: the mount point, mount(2) or fusermount, and
//! descriptors that another process passes on.

use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Kind};

pub(super) mod attach;
pub(super) mod device;
pub(super) mod fusermount;
pub(super) mod inherited;
pub(super) mod mount_point;
pub(super) mod namespace;
pub(super) mod overlay;
pub(super) mod owned_directory;
pub(super) mod shared_overlay;

/// How long to probe a mount before it counts as not stale. The kernel answers at once for a stale
/// one.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether to detach a mount that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detach {
    /// Only a mount that is not in use.
    IfIdle,
    /// Any mount, at once, as `umount -l` does. Open files stay usable.
    Lazily,
}

/// How the error for a mount in use ends.
pub(crate) const IN_USE: &str = ": in use";

/// The error for a mount in use.
pub(crate) fn busy(mount_point: &Path) -> Error {
    busy_with(format!("{}{IN_USE}", mount_point.display()))
}

/// The error for a mount in use, with the daemon's description `why`.
pub(crate) fn busy_with(why: String) -> Error {
    Error::new(Kind::Busy, why)
        .with_hint("close its files and leave its directories, or use --lazy")
}
