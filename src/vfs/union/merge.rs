//! Merges the directories that several trees share, and decides which of several entries with one
//! name is shown.
//!
//! Invariant: each merged directory is listed from that directory of its trees alone. So the cost
//! depends only on the shared directories.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::ControlFlow;

use super::{Entry, Inner, Layer, Merged, Numbers};
use crate::error::{Error, Result};
use crate::vfs::{Cookie, FileKind, Ino, joined};

/// A union under construction.
pub(super) struct Merging<'l> {
    pub(super) directories: Vec<Merged>,
    pub(super) names: Vec<u8>,
    /// By the later and the earlier layer: how many entries are hidden, and the path of one.
    pub(super) hidden: BTreeMap<(usize, usize), (u64, Vec<u8>)>,
    pub(super) numbers: Numbers,
    layers: &'l [Layer],
    /// For each layer, the names on the path from the root to its mount directory.
    paths: Vec<Vec<&'l [u8]>>,
    /// Directories still to be merged, in the order of their numbers, with their paths.
    pending: VecDeque<(Vec<u8>, Vec<Origin>)>,
    /// Number of directories that have a number.
    numbered: usize,
    /// Directories of trees that are part of a merged one. Each occurs once in an undamaged tree.
    merged: HashSet<(usize, Ino)>,
}

/// The origin of a part of a merged directory.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// A directory of a tree.
    Directory(Inner),
    /// A directory on the path to the mount directory of `layer`, `depth` names below the root.
    Way { layer: usize, depth: usize },
}

impl Origin {
    fn layer(self) -> usize {
        match self {
            Self::Directory(Inner { tree, .. }) => tree,
            Self::Way { layer, .. } => layer,
        }
    }
}

/// An entry to be merged.
struct Candidate {
    name: usize,
    kind: FileKind,
    origin: Origin,
}

impl<'l> Merging<'l> {
    /// Merges all directories that several of `layers` have.
    ///
    /// Fails with `Unsupported` if there are more directories or inodes than numbers; errors of a
    /// tree while it is listed.
    pub(super) fn of(layers: &'l [Layer]) -> Result<Self> {
        let mut merging = Self {
            directories: Vec::new(),
            names: Vec::new(),
            hidden: BTreeMap::new(),
            numbers: Numbers::of(layers),
            layers,
            paths: layers.iter().map(|layer| components(&layer.path)).collect(),
            pending: VecDeque::new(),
            numbered: 1,
            merged: HashSet::new(),
        };
        let root = (0..layers.len()).map(|layer| origin_of(&merging.paths, layer, 0)).collect();
        merging.pending.push_back((Vec::new(), root));
        while let Some((path, origins)) = merging.pending.pop_front() {
            let directory = merging.merge(&path, &origins)?;
            merging.directories.push(directory);
        }
        Ok(merging)
    }

    fn merge(&mut self, path: &[u8], origins: &[Origin]) -> Result<Merged> {
        let mut candidates = self.collect(origins)?;
        let name_of = |candidate: &Candidate| name(&self.names, candidate.name);
        // A stable sort, so that the later tree comes last among equal names.
        candidates.sort_by(|a, b| name_of(a).cmp(name_of(b)));
        let mut entries = Vec::with_capacity(candidates.len());
        for same in candidates.chunk_by(|a, b| name_of(a) == name_of(b)) {
            let Some(last) = same.last() else { continue };
            let directories = same.iter().rev().take_while(|one| one.kind == FileKind::Directory);
            let count = directories.count();
            for hidden in &same[..same.len() - count.max(1)] {
                let pair = (last.origin.layer(), hidden.origin.layer());
                let path = || (0, joined(path, name(&self.names, last.name)));
                self.hidden.entry(pair).or_insert_with(path).0 += 1;
            }
            let ino = match (count, last.origin) {
                (0 | 1, Origin::Directory(inner)) => self.numbers.outer(inner)?,
                _ => {
                    let shared =
                        same[same.len() - count..].iter().map(|candidate| candidate.origin);
                    let path = joined(path, name(&self.names, last.name));
                    self.pending.push_back((path, shared.collect()));
                    self.numbered += 1;
                    self.numbers.directory(self.numbered - 1)?
                }
            };
            entries.push(Entry { name: last.name, ino, kind: last.kind });
        }
        let shown = origins.iter().rev().find_map(|origin| match origin {
            Origin::Directory(inner) => Some(*inner),
            Origin::Way { .. } => None,
        });
        Ok(Merged { shown, entries: entries.into() })
    }

    /// The entries of all `origins`, in order.
    fn collect(&mut self, origins: &[Origin]) -> Result<Vec<Candidate>> {
        let mut candidates = Vec::new();
        let names = &mut self.names;
        let mut keep = |name: &[u8]| {
            let offset = names.len();
            names.push(name.len() as u8);
            names.extend(name);
            offset
        };
        for origin in origins {
            match *origin {
                Origin::Directory(Inner { tree, ino }) => {
                    // A damaged archive may have a directory inside itself; merging it would never
                    // end.
                    if !self.merged.insert((tree, ino)) {
                        let archive = &self.layers[tree].name;
                        let context = format!("{archive}: a directory contains itself");
                        return Err(Error::corrupt(context));
                    }
                    self.layers[tree].tree.read_dir(ino, Cookie::START, &mut |entry| {
                        let name = keep(entry.name.as_bytes());
                        let origin = Origin::Directory(Inner { tree, ino: entry.ino });
                        candidates.push(Candidate { name, kind: entry.kind, origin });
                        ControlFlow::Continue(())
                    })?;
                }
                Origin::Way { layer, depth } => {
                    let name = keep(self.paths[layer][depth]);
                    let origin = origin_of(&self.paths, layer, depth + 1);
                    candidates.push(Candidate { name, kind: FileKind::Directory, origin });
                }
            }
        }
        Ok(candidates)
    }
}

/// The name at `offset`, which starts with a length byte.
pub(super) fn name(names: &[u8], offset: usize) -> &[u8] {
    let len = usize::from(names[offset]);
    &names[offset + 1..offset + 1 + len]
}

/// The components of `path`.
fn components(path: &[u8]) -> Vec<&[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect()
}

/// What `layer` contributes to the directory `depth` names below the root on its path.
fn origin_of(paths: &[Vec<&[u8]>], layer: usize, depth: usize) -> Origin {
    if depth < paths[layer].len() {
        return Origin::Way { layer, depth };
    }
    Origin::Directory(Inner { tree: layer, ino: Ino::ROOT })
}
