//! Builds the tree of an archive from its members, in the order in which a scan finds them.
//!
//! Problem: a member says only its path. Paths come in any order, and some come twice. An index
//! needs the children of each directory side by side and sorted by name, and an archive may have
//! millions of members.
//!
//! In: batches of members. Out: a `FinishedTree`, which writes the index. In between:
//! 1. `Builder::add` appends each member to a `PendingTree`, as a pending node: one name from one
//!    member, not yet numbered. The position of that node is its slot. It has a name and a parent
//!    directory. The parent is a `DirectoryId`, which is assigned when a path first contains that
//!    directory. Only directories are looked up in this phase. Rare data goes into side tables.
//! 2. `SlotsByDirectory` sorts the slots by directory, then by name.
//! 3. `HardLinkTargets` finds the target of each hard link.
//! 4. `choose_shown` picks the one pending node to show for each path.
//! 5. `Numbering` numbers the nodes that are shown.
//!
//! For example, the members `a/f`, `b` and `a/f` add four pending nodes. Slot 0 is the directory
//! `a`, which the first path implies. Slots 1 to 3 are the members. The tree then has four nodes:
//! the root (0), `a` (1), `b` (2), and the later `f` (3). Slot 1 is not shown.
//!
//! Rules where the tar formats leave room:
//! - A path is normalized as text: `.` and empty components vanish, and `..` goes up, but not above
//!   the base directory.
//! - Parent directories that have no member of their own are created.
//! - A later member replaces an earlier one with the same path. `ranks` decides which is later.
//! - A directory is never replaced by anything else, because that would lose its contents. So a
//!   symbolic link in the archive cannot redirect other members.
//! - A hard link names the last member before it that has the target path, or else the first
//!   after it. (GNU tar extracts no link to a later member.) The target of a link to a link is the
//!   target of the latter.
//!
//! Invariant: whatever its path says, a member ends up in the directory that shows its archive, or
//! below it.

mod builder;
mod choose_shown;
mod directories;
mod finished_tree;
mod hard_link_targets;
mod hard_links;
mod numbering;
mod pending_node;
mod pending_tree;
mod ranks;
mod side_tables;
mod slot;
mod slots_by_directory;
mod sparse_maps;
mod unsaved_index;
mod xattrs;

pub(crate) use builder::{ArchiveRange, Builder};
pub(crate) use directories::DirectoryId;
pub(crate) use finished_tree::FinishedTree;
#[cfg(any(test, fuzzing))]
pub(crate) use unsaved_index::in_memory;
pub(crate) use unsaved_index::unsaved;
