//! The numbers of pending nodes (slots), their directories, and which of two nodes with the same
//! path is later (ranks).

use std::collections::HashMap;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::formats::bytes::index;
use crate::vfs::Name;

/// The number of a pending node, in the order in which members and implied directories are added.
/// It is not the number of a node in the finished tree (`NodeId`).
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(transparent)]
pub(super) struct Slot(u32);

impl Slot {
    /// Stands for the root, which is no pending node.
    pub(super) const ROOT: Self = Self(u32::MAX);

    /// The slot of the pending node that is added after `count` others. `None` if there are more
    /// than an index can number.
    pub(super) fn after(count: usize) -> Option<Self> {
        u32::try_from(count).ok().map(Self).filter(|&slot| slot != Self::ROOT)
    }

    /// Its index in the list of pending nodes.
    pub(super) fn index(self) -> usize {
        index(self.0)
    }
}

/// The number of a directory in the tree under construction, in order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DirectoryId(pub(super) u32);

impl DirectoryId {
    /// The root of the tree.
    pub(crate) const ROOT: Self = Self(0);
}

/// The parent and the name of a directory.
pub(super) type ParentAndName = (DirectoryId, Box<[u8]>);

/// All directories so far.
pub(super) struct Directories {
    /// The slot of each directory. `None` for the root, which is no pending node.
    slots: Vec<Option<Slot>>,
    /// Where the mode, owner and time of each directory come from.
    sources: Vec<AttributeSource>,
    /// Each directory except the root.
    by_name: HashMap<ParentAndName, DirectoryId>,
}

#[derive(Clone, Copy)]
enum AttributeSource {
    /// From no member: the root before the first one.
    Nothing,
    /// From a member at this depth, whose path contains the directory.
    Implied(u32),
    /// From a member at this depth that is the directory itself.
    Described(u32),
}

impl Directories {
    /// The root alone.
    pub(super) fn new() -> Self {
        Self { slots: vec![None], sources: vec![AttributeSource::Nothing], by_name: HashMap::new() }
    }

    /// Number of directories.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// All directories, in order of creation.
    pub(super) fn ids(&self) -> impl Iterator<Item = DirectoryId> {
        (0..u32::try_from(self.len()).unwrap_or(u32::MAX)).map(DirectoryId)
    }

    /// The directory that is added next.
    pub(super) fn next_id(&self) -> DirectoryId {
        DirectoryId(u32::try_from(self.len()).unwrap_or(u32::MAX))
    }

    /// Adds the directory in `slot`, for a member at `depth` whose path contains it.
    pub(super) fn add(&mut self, parent_and_name: ParentAndName, slot: Slot, depth: u32) {
        let directory = self.next_id();
        self.slots.push(Some(slot));
        self.sources.push(AttributeSource::Implied(depth));
        self.by_name.insert(parent_and_name, directory);
    }

    pub(super) fn get(&self, parent_and_name: &ParentAndName) -> Option<DirectoryId> {
        self.by_name.get(parent_and_name).copied()
    }

    /// The slot of a directory. `None` for the root.
    pub(super) fn slot(&self, directory: DirectoryId) -> Option<Slot> {
        self.slots.get(index(directory.0)).copied().flatten()
    }

    /// The parent directory of `components` below `base`, and the last of them.
    pub(super) fn find_parent<'p>(
        &self,
        base: DirectoryId,
        components: &[&'p [u8]],
    ) -> Option<(DirectoryId, Name<'p>)> {
        let (&last, parents) = components.split_last()?;
        let mut directory = base;
        for &name in parents {
            directory = self.get(&(directory, Box::from(name)))?;
        }
        Some((directory, Name::parse(last)?))
    }

    /// Claims `directory` for a member at `depth` whose path contains it. Returns true if the
    /// caller must copy the owner and time of the member: no member describes the directory, and
    /// only members at a greater depth have implied it.
    pub(super) fn claim_as_implied(&mut self, directory: DirectoryId, depth: u32) -> bool {
        let Some(source) = self.sources.get_mut(index(directory.0)) else { return false };
        let replaces = match *source {
            AttributeSource::Nothing => true,
            AttributeSource::Implied(known) => depth < known,
            AttributeSource::Described(_) => false,
        };
        if replaces {
            *source = AttributeSource::Implied(depth);
        }
        replaces
    }

    /// Claims `directory` for a member at `depth` that is the directory itself. Returns true if the
    /// caller must copy the mode, owner and time of the member: no member of an inner archive
    /// describes the directory.
    pub(super) fn claim_as_described(&mut self, directory: DirectoryId, depth: u32) -> bool {
        match self.sources.get_mut(index(directory.0)) {
            Some(AttributeSource::Described(known)) if depth < *known => false,
            Some(source) => {
                *source = AttributeSource::Described(depth);
                true
            }
            None => false,
        }
    }

    /// Gives back the memory for directories that will not come.
    pub(super) fn shrink(&mut self) {
        self.by_name.shrink_to_fit();
    }
}

/// The rank of each pending node. Of two nodes with the same path, that with the higher rank is
/// shown.
///
/// An outer archive's implied directory wins; an inner archive's own entry wins.
///
/// An archive that can be read at any offset is scanned level by level: first the outermost
/// archive, then the archives in it. A stream is scanned in the order of its bytes. Both must give
/// the same tree. So members are compared by depth first, and by their order only at the same
/// depth.
///
/// Invariant: the members of a nested archive rank after all members of the archive around it.
#[derive(Default)]
pub(super) struct Ranks {
    /// The depth of the members being added.
    current: u32,
    /// The slots at which the depth changes, and the depth from there.
    changes: Vec<(Slot, u32)>,
}

impl Ranks {
    /// Notes that members from `slot` on are at `depth`.
    pub(super) fn enter(&mut self, slot: Slot, depth: u32) {
        if self.current != depth {
            self.current = depth;
            self.changes.push((slot, depth));
        }
    }

    /// The depth of the members being added.
    pub(super) fn current(&self) -> u32 {
        self.current
    }

    /// The sort key of the pending node in `slot`.
    pub(super) fn rank(&self, slot: Slot) -> (u32, Slot) {
        let nth = self.changes.partition_point(|&(first_slot, _)| first_slot <= slot);
        let change = nth.checked_sub(1).and_then(|nth| self.changes.get(nth));
        (change.map_or(0, |&(_, depth)| depth), slot)
    }
}
