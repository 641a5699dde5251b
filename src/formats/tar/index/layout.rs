//! From the members that were added to the finished tree: what a hard link names, and the order of
//! the nodes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;

use super::super::notes::Notes;
use super::builder::{Builder, Folder, cleaned, no_room};
use super::draft::Draft;
use super::groups::Groups;
use super::{Content, NestedImage, Node, NodeId, ROOT};
use crate::error::Result;
use crate::formats::bytes::index;
use crate::storage::Spilled;
use crate::vfs::{FileKind, Name};

/// A hard link: its place in `pending`, the folder its path starts at, and that path in
/// `link_paths`.
pub(super) struct HardLink {
    pub(super) pending: u32,
    pub(super) base: Folder,
    pub(super) path: std::ops::Range<usize>,
}

/// The members in the order of the nodes.
pub(super) struct Order {
    /// Of each node its place in `pending`; the root has none.
    pub(super) places: Spilled<u32>,
    /// Of each member its node; those that are not shown have none.
    ids: Spilled<NodeId>,
    /// Of each folder its first child and how many it has.
    children: Vec<(NodeId, u32)>,
    /// Of each hard link the place of the member that it names.
    targets: HashMap<u32, u32>,
    /// Nodes with more than one name, ascending, and how many they have.
    pub(super) links: Vec<(NodeId, u32)>,
}

/// No place, and no node.
const NONE: u32 = u32::MAX;

impl Builder {
    /// The finished tree.
    ///
    /// # Errors
    /// `Io` where there is no room for the order of its nodes.
    pub(in crate::formats::tar) fn finish(mut self, notes: &mut Notes) -> Result<Draft> {
        self.by_name.shrink_to_fit();
        let groups = Groups::new(&self)?;
        let depths = &self.depths;
        self.hard_links.sort_by_key(|link| depths.rank(link.pending));
        let targets = self.resolve_links(&groups, notes);
        let shown = groups.shown(&self, &targets, notes)?;
        drop(groups);
        let order = self.ordered(&shown, targets)?;
        Ok(Draft::new(self, order))
    }

    /// Of each hard link (by its place in `pending`) the place of the member it names.
    fn resolve_links(&self, groups: &Groups, notes: &mut Notes) -> HashMap<u32, u32> {
        let mut targets = HashMap::new();
        for link in &self.hard_links {
            let path = self.link_paths.get(link.path.clone()).unwrap_or_default();
            let found = self.existing(link.base, path).and_then(|(parent, name)| {
                let same = groups.named(self, parent, name.as_bytes());
                let not_folder = |&place: &&u32| {
                    self.kind(*place) != FileKind::Directory && *place != link.pending
                };
                // The latest before the link; if there is none, the first behind it. They are
                // sorted by rank, and one of them at most is a folder.
                let own = self.depths.rank(link.pending);
                let behind = same.partition_point(|&place| self.depths.rank(place) < own);
                let (before, after) = same.split_at_checked(behind)?;
                let before = before.iter().rev().find(not_folder);
                before.or_else(|| after.iter().find(not_folder)).copied()
            });
            // A link to a link names what that names; links are sorted as members are.
            let found = found.and_then(|place| match self.is_link(place) {
                true => targets.get(&place).copied(),
                false => Some(place),
            });
            match found {
                Some(place) => _ = targets.insert(link.pending, place),
                None => {
                    notes.lost_link(&self.path_of(link.pending), path);
                }
            }
        }
        targets
    }

    /// The folder and name that `path` leads to, without making any.
    fn existing<'p>(&self, base: Folder, path: &'p [u8]) -> Option<(Folder, Name<'p>)> {
        let names = cleaned(path);
        let (&last, way) = names.split_last()?;
        let mut folder = base;
        for &name in way {
            folder = *self.by_name.get(&(folder, Box::from(name)))?;
        }
        Some((folder, Name::parse(last)?))
    }

    /// Numbers the nodes: the root, its children, then the children of each folder in the order in
    /// which the folders stand.
    fn ordered(&self, shown: &Groups, targets: HashMap<u32, u32>) -> Result<Order> {
        let count = shown.order.len().saturating_add(1);
        let mut places = Spilled::with_capacity(count, &self.spill).map_err(no_room)?;
        let mut ids = Spilled::filled(NONE, self.pending.len(), &self.spill).map_err(no_room)?;
        let mut children = vec![(0, 0); self.folders.len()];
        places.push(NONE).map_err(no_room)?;
        let mut next = 0;
        while let Some(&place) = places.get(next) {
            if let Some(folder) = self.folder_at(place) {
                let list = shown.of(folder);
                let first = id_of(places.len());
                if let Some(children) = children.get_mut(index(folder.0)) {
                    *children = (first, id_of(list.len()));
                }
                for &place in list {
                    if let Some(id) = ids.get_mut(index(place)) {
                        *id = id_of(places.len());
                    }
                    places.push(place).map_err(no_room)?;
                }
            }
            next = next.saturating_add(1);
        }
        let mut order = Order { places, ids, children, targets, links: Vec::new() };
        order.count_links(self);
        Ok(order)
    }

    /// The folder that the member at `place` is; the root has no place.
    fn folder_at(&self, place: u32) -> Option<Folder> {
        match self.at(place) {
            None => Some(Folder::ROOT),
            Some(node) => match node.content() {
                Content::Folder { first, .. } => Some(Folder(first)),
                _ => None,
            },
        }
    }

    /// The path of a member from the root, with its name.
    pub(super) fn path_of(&self, place: u32) -> Vec<u8> {
        let mut path = self.path(Folder(self.at(place).map_or(0, |node| node.parent)));
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(self.name(place));
        path
    }

    /// The path of a folder from the root.
    pub(in crate::formats::tar) fn path(&self, folder: Folder) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut here = folder;
        while let Some(place) = self.folders.get(index(here.0)).copied().flatten() {
            parts.push(self.name(place));
            here = Folder(self.at(place).map_or(0, |node| node.parent));
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// The images in it, with their paths.
    pub(super) fn images(&self) -> impl Iterator<Item = NestedImage> {
        self.nested_images.iter().map(|&(folder, at, len)| NestedImage {
            path: self.path(folder),
            at,
            len,
        })
    }
}

impl Order {
    /// Whether what the kernel wrote out of it can be read back.
    ///
    /// # Errors
    /// That of the disk.
    pub(super) fn check(&self) -> io::Result<()> {
        self.places.check().and_then(|()| self.ids.check())
    }

    /// The node of the member at `place`, if it is shown.
    fn id(&self, place: u32) -> Option<NodeId> {
        self.ids.get(index(place)).copied().filter(|&id| id != NONE)
    }

    fn count_links(&mut self, builder: &Builder) {
        let mut names_of: HashMap<NodeId, u32> = HashMap::new();
        for (id, &place) in (0..).zip(self.places.iter()) {
            let target = builder.is_link(place).then(|| self.targets.get(&place)).flatten();
            let Some(known) = target.and_then(|&target| self.ids.get_mut(index(target))) else {
                continue;
            };
            if *known == NONE {
                // The member's own name was taken by a later one: the link is its only name now.
                *known = id;
            } else {
                let count = names_of.entry(*known).or_insert(1);
                *count = count.saturating_add(1);
            }
        }
        self.links = names_of.into_iter().collect();
        self.links.sort_unstable();
    }

    /// The node `id`, whose name and target are still among those of `builder`.
    pub(super) fn node(&self, builder: &Builder, id: NodeId) -> Node {
        let place = self.places.get(index(id)).copied().unwrap_or(NONE);
        let Some(own) = builder.at(place) else {
            return self.with_children(Node { parent: ROOT, ..builder.root }, Folder::ROOT);
        };
        let parent = builder.folders.get(index(own.parent)).copied().flatten();
        let parent = parent.and_then(|place| self.id(place)).unwrap_or(ROOT);
        let node = Node { parent, ..*own };
        match node.content() {
            Content::Folder { first, .. } => self.with_children(node, Folder(first)),
            Content::Link { .. } => {
                let target = self.targets.get(&place).copied().unwrap_or(NONE);
                let known = self.id(target).unwrap_or(ROOT);
                let mut node = node;
                node.set(Content::Link { target: known });
                match builder.at(target) {
                    Some(&found) if known == id => {
                        Node { name: node.name, name_len: node.name_len, parent, ..found }
                    }
                    _ => node,
                }
            }
            _ => node,
        }
    }

    fn with_children(&self, mut node: Node, folder: Folder) -> Node {
        let (first, count) = self.children.get(index(folder.0)).copied().unwrap_or((0, 0));
        node.set(Content::Folder { first, count });
        node.size = u64::from(count);
        node
    }

    /// Nodes with attributes, ascending, and where theirs begin.
    pub(super) fn with_xattrs(&self, builder: &Builder) -> Vec<(NodeId, u64)> {
        // The root has no place.
        let node = |place: u32| if place == NONE { Some(ROOT) } else { self.id(place) };
        let all = builder.with_xattrs.iter();
        let mut found: Vec<_> =
            all.filter_map(|&(place, at, depth)| Some((node(place)?, at, depth))).collect();
        // Of a folder that the archive names twice the later one counts.
        found.reverse();
        found.sort_by_key(|&(id, _, depth)| (id, Reverse(depth)));
        found.dedup_by_key(|&mut (id, ..)| id);
        found.into_iter().map(|(id, at, _)| (id, at)).collect()
    }
}

/// A count of nodes as a number of a node.
fn id_of(count: usize) -> NodeId {
    u32::try_from(count).unwrap_or(NONE)
}
