//! A private mount namespace for this process and its children.
//!
//! An ordinary user also gets a user namespace. The uid, the gid and access to files stay the same.
//! Later mounts outside the namespace appear inside it, but not the other way round.
//!
//! The kernel unmounts everything in the namespace when its last process ends, for whatever reason,
//! so no mount can be left behind. Supplementary groups still count in the kernel, but programs see
//! them as nogroup, because an ordinary user may map only one group (user_namespaces(7)).
#![expect(unsafe_code, reason = "no crate offers unshare(2) as a safe call")]

use std::fs;

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid, getpid};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, gettid, unshare_unsafe};

use crate::error::{Error, Kind, Result, reason};
use crate::os::trust;

/// Moves this process into a new mount namespace. Call it before any thread is started.
pub(crate) fn enter() -> Result<()> {
    // A small stack limit makes `cli` use a second thread, which cannot move the process.
    if gettid() != getpid() {
        let context = "cannot mount in a namespace: the stack limit is too low";
        return Err(Error::new(Kind::CannotMount, context)
            .with_hint("raise the stack limit: ulimit -s 512"));
    }
    // Root needs no user namespace, and keeps its groups and rights without one. The same holds for
    // a user with CAP_SYS_ADMIN.
    if unshare(UnshareFlags::NEWNS).is_err() {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(not_permitted)?;
        // An ordinary user may map a group only after disabling setgroups(2).
        for (file, text) in [
            ("setgroups", "deny".to_owned()),
            ("uid_map", format!("{uid} {uid} 1")),
            ("gid_map", format!("{gid} {gid} 1")),
        ] {
            let file = format!("/proc/self/{file}");
            fs::write(&file, text).map_err(|error| match Errno::from_io_error(&error) {
                // A security module, such as AppArmor in Ubuntu 24.04, allows the namespace and
                // forbids its use.
                Some(Errno::PERM | Errno::ACCESS) => not_permitted(Errno::PERM),
                _ => Error::io(format!("{file}: cannot write"), error),
            })?;
        }
    }
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", propagation).map_err(|error| match error {
        // For example, Landlock forbids all changes of mounts.
        Errno::PERM | Errno::ACCESS => not_permitted(error),
        _ => Error::io("cannot make the mounts private to this process", error.into()),
    })
}

/// Whether `enter` needs no user namespace, in which the owners of most files are unknown and no
/// process may change these files.
pub fn keeps_owners() -> bool {
    has_capability() && trust::is_root_of_node()
}

/// Whether this process has the capability to mount, perhaps only in its user namespace.
pub(super) fn has_capability() -> bool {
    capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_ADMIN))
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: the function requires that threads still share their descriptor table afterward. The
    // flags do not contain FILES, so they do.
    unsafe { unshare_unsafe(flags) }
}

fn not_permitted(error: Errno) -> Error {
    let context = format!("cannot create a namespace to mount in: {}", reason(error));
    Error::new(Kind::CannotMount, context).with_hint(
        "ask for fusermount3 (package fuse3), or for user namespaces (sysctl \
         user.max_user_namespaces)",
    )
}
