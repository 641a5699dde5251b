//! What may keep a user from a namespace of its own.
//!
//! Owns the settings that explain it; whether one can be made is tried by a process that enters one
//! and ends (`check_namespace`). Invariant: a setting that can not be read is no barrier.

use std::fs;

use crate::error::Result;
use crate::kernel_file;
use crate::lifecycle::mount::namespace;

/// A setting that forbids what a private mount needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// user.max_user_namespaces is 0.
    NoneAllowed,
    /// user.max_mnt_namespaces is 0.
    NoMountNamespaces,
    /// kernel.unprivileged_userns_clone is 0 (Debian).
    OnlyForRoot,
    /// kernel.apparmor_restrict_unprivileged_userns is 1 (Ubuntu).
    AppArmor,
    /// A filter of system calls is on this process, as in containers.
    Filter,
}

/// Those that are up.
pub(super) fn barriers() -> Vec<Barrier> {
    let is =
        |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    let found = [
        (is("/proc/sys/user/max_user_namespaces", "0"), Barrier::NoneAllowed),
        (is("/proc/sys/user/max_mnt_namespaces", "0"), Barrier::NoMountNamespaces),
        (is("/proc/sys/kernel/unprivileged_userns_clone", "0"), Barrier::OnlyForRoot),
        (is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"), Barrier::AppArmor),
        (kernel_file::own_status("Seccomp").as_deref() == Some("2"), Barrier::Filter),
    ];
    found.into_iter().filter_map(|(is_up, barrier)| is_up.then_some(barrier)).collect()
}

/// Enters a namespace as `run --private` does. To be called by a process that ends then.
///
/// # Errors
/// `CannotMount` where the node does not allow it; `Io`.
pub fn check_namespace() -> Result<()> {
    namespace::enter()
}
