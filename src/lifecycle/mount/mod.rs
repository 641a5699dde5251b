//! Mounts and unmounts one FUSE connection: the mount point, mount(2) or fusermount, and
//! descriptors that another process passes on.

pub(super) mod attach;
pub(super) mod descriptor_path;
pub(super) mod detach;
pub(super) mod device;
pub(super) mod fusermount;
pub(super) mod inherited;
pub(super) mod mount_point;
pub(super) mod namespace;
pub(super) mod owned_directory;
pub(super) mod parent_directory;
pub(super) mod root_path;
