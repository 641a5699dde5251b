//! Mounts and unmounts one FUSE connection: the mount point, mount(2) or fusermount, and
//! descriptors that another process passes on.

use std::time::Duration;

pub(super) mod attach;
pub(super) mod descriptor_path;
pub(super) mod detach;
pub(super) mod device;
pub(super) mod fusermount;
pub(super) mod inherited;
pub(super) mod mount_point;
pub(super) mod namespace;
pub(super) mod owned_directory;

/// How long to probe a mount before it counts as not stale. The kernel answers at once for a stale
/// one.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
