//! The user's directories for caches and configuration (XDG Base Directory Specification).

use std::path::PathBuf;

/// The directory that `variable` names, or else `below_home` in the home directory. Relative paths
/// in the environment do not count.
pub(crate) fn base_directory(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(below_home)))
}
