//! A mount namespace that only this process and its children see.
//!
//! Owns entering one, with a user namespace where the user is not root. Invariant: uid, gid and the
//! files one may open stay the same; what is mounted outside later is seen inside, not the other
//! way.
//!
//! The kernel takes the mounts of a namespace away with its last process, whatever ended that, so
//! nothing can be left behind. Supplementary groups still count for the kernel, but programs see
//! those as nogroup: an ordinary user may map only one group (user_namespaces(7)).
#![expect(unsafe_code, reason = "no crate offers unshare(2) as a safe call")]

use std::fs;

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid, getpid};
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

use crate::error::{Error, Kind, Result};

/// Moves this process into a mount namespace of its own. Call it before there are threads.
///
/// # Errors
/// `CannotMount` where the node does not allow it; `Io`.
pub(in crate::lifecycle) fn enter() -> Result<()> {
    // A small stack limit makes `cli` use a second thread, which cannot move the process.
    if gettid() != getpid() {
        let context = "a namespace to mount in needs a larger stack limit";
        return Err(Error::new(Kind::CannotMount, context).with_hint("ulimit -s 512, or more"));
    }
    // Root needs no other user namespace, and keeps its groups and rights without one.
    let has_right = geteuid().is_root() && unshare(UnshareFlags::NEWNS).is_ok();
    if !has_right {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(refused)?;
        // A group is mapped by an ordinary user only once setgroups(2) is given up.
        for (file, text) in [
            ("setgroups", "deny".to_owned()),
            ("uid_map", format!("{uid} {uid} 1")),
            ("gid_map", format!("{gid} {gid} 1")),
        ] {
            let file = format!("/proc/self/{file}");
            fs::write(&file, text)
                .map_err(|error| Error::io(format!("{file}: can not write"), error))?;
        }
    }
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", propagation)
        .map_err(|error| Error::io("can not set mounts apart", error.into()))
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: FILES is not among the flags, so the table of descriptors stays shared, which is what
    // the function asks for.
    unsafe { unshare_unsafe(flags) }
}

fn refused(error: Errno) -> Error {
    let context = format!("this node lets you make no namespace to mount in: {error}");
    Error::new(Kind::CannotMount, context).with_hint(
        "ask for fusermount3 (package fuse3), or for user namespaces (sysctl \
         user.max_user_namespaces)",
    )
}
