//! Which plans show the same, so that they can share a mount.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::record::{Record, boot};
use crate::batch_job;
use crate::error::Result;
use crate::lifecycle::{Layer, MountPlan};
use crate::os::memory;
use crate::os::process::ProcessId;
use crate::os::record_directory::{RecordDirectory, SOCKET_SUFFIX, node};
use crate::remote;
use crate::url;
use crate::vfs::ViewOptions;

/// The record of a process that is about to mount as `plan` says.
pub(crate) fn first_record(mount_point: &Path, plan: &MountPlan) -> Result<Record> {
    Ok(Record {
        process: ProcessId::own()?,
        mount: None,
        creates_directory: false,
        is_ending: false,
        node: node(),
        job: plan.cache_bytes.is_none().then(memory::job),
        identity: identity(plan),
        archives: real_paths(plan),
        mount_point: mount_point.to_owned(),
    })
}

/// The archives of `plan` as absolute paths without symbolic links.
pub(crate) fn real_paths(plan: &MountPlan) -> Vec<PathBuf> {
    let real = |path: &PathBuf| fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    plan.archives.iter().map(real).collect()
}

/// A digest that is equal for plans whose mounts show the same: the same archives, unchanged, in
/// the same order, with the same options for the view. Memory, threads and similar options do not
/// count; those of the process that mounts apply.
pub(super) fn identity(plan: &MountPlan) -> String {
    digest(plan, |_, found| {
        [found.dev(), found.ino()].iter().flat_map(|number| number.to_le_bytes()).collect()
    })
}

/// The name of a directory in which `plan` is shown. It is equal for all processes of a job on all
/// nodes whose plans show the same.
pub(crate) fn name_on_all_nodes(plan: &MountPlan) -> String {
    let job = batch_job::current().map(|(_, id)| id).unwrap_or_default();
    let key = format!("{job} {}", identity_on_all_nodes(plan));
    format!("archfs-{}-{:016x}", geteuid().as_raw(), xxh3_64(key.as_bytes()))
}

/// Calls `create` with the path of the socket at which `plan` is read without a mount. Only this
/// user can use it. It is equal for all processes of a job on this node whose plans show the same,
/// and read it with the same archfs.
pub fn at_read_socket<T>(
    plan: &MountPlan,
    mut create: impl FnMut(&Path) -> io::Result<T>,
) -> Result<T> {
    let job = batch_job::current().map(|(_, id)| id).unwrap_or_default();
    // Nodes may share /tmp.
    let key = [&job, env!("CARGO_PKG_VERSION"), &boot(), &identity(plan)].join(" ");
    let name = format!("read-{:016x}{SOCKET_SUFFIX}", xxh3_64(key.as_bytes()));
    RecordDirectory::try_each_parent(|directory| create(&directory.join(&name)))
}

/// Like `identity`, but equal on all nodes that have the archives at the same paths. Nodes number
/// the devices of a network file system differently.
pub(crate) fn identity_on_all_nodes(plan: &MountPlan) -> String {
    digest(plan, |path, _| {
        let real = fs::canonicalize(path);
        real.as_deref().unwrap_or(path).as_os_str().as_bytes().to_owned()
    })
}

/// A digest of what the mount of a plan shows. `file` identifies an archive.
fn digest(plan: &MountPlan, file: impl Fn(&Path, &Metadata) -> Vec<u8>) -> String {
    let MountPlan { archives, offset, recursive, partial, view, .. } = plan;
    let MountPlan { directories, names, access, overlay, no_exec, allow_changes, .. } = plan;
    let ViewOptions { subdir, uid, gid, umask } = view;
    let mut digest = Xxh3::new();
    for path in archives {
        match fs::metadata(path) {
            Ok(found) => {
                digest.update(&file(path, &found));
                digest.update(&found.size().to_le_bytes());
                for number in [found.mtime(), found.mtime_nsec()] {
                    digest.update(&number.to_le_bytes());
                }
            }
            Err(_) if url::is_url(path) => digest.update(&remote::identity_of(&url::text(path))),
            // Opening it later reports the error.
            Err(_) => digest.update(path.as_os_str().as_bytes()),
        }
    }
    let options = format!(
        "{offset} {recursive} {directories:?} {partial} {subdir:?} {uid:?} {gid:?} {access:?} {no_exec} \
         {allow_changes} {umask:?}"
    );
    // A daemon of an older version does not know it.
    let names = names.map(|names| format!(" {names:?}")).unwrap_or_default();
    digest.update(names.as_bytes());
    let overlay = overlay.as_ref().map(|overlay| match overlay {
        Layer::Memory => " Memory".to_owned(),
        Layer::Directory(path) => {
            // It may be about to be created.
            let name = path.file_name().unwrap_or_default();
            let created = || fs::canonicalize(path.parent()?).ok().map(|parent| parent.join(name));
            let real = fs::canonicalize(path).ok().or_else(created);
            format!(" {:?}", real.as_ref().unwrap_or(path))
        }
    });
    let overlay = overlay.unwrap_or_default();
    digest.update(overlay.as_bytes());
    digest.update(options.as_bytes());
    format!("{:032x}", digest.digest128())
}
