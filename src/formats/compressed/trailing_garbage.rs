//! The warning about other data after the end of a container.

use super::container::Container;

/// Warns that the bytes of file `name` from offset `at` on are ignored.
pub(super) fn warn(name: &str, container: Container, at: u64) {
    let (container, at) = (container.name(), crate::log::detail(format_args!(" at {at:#x}")));
    log::warn!("{name}: bytes after the {container} data{at} are ignored");
}
