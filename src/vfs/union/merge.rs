//! The folders that several trees share, listed once.
//!
//! Owns which of several entries of one name is shown; leaves answering requests to the union.
//! Invariant: each merged folder is listed from the folders of its trees alone, so merging costs
//! what those hold, and nothing for what one tree has alone.

use std::collections::{HashSet, VecDeque};
use std::ops::ControlFlow;

use super::numbers::Numbers;
use super::{Entry, Inner, Layer, Merged};
use crate::error::{Error, Result};
use crate::vfs::{Cookie, FileKind, Ino};

/// A union in the making.
pub(super) struct Merging<'l> {
    pub(super) folders: Vec<Merged>,
    pub(super) names: Vec<u8>,
    pub(super) hidden: u64,
    pub(super) numbers: Numbers,
    layers: &'l [Layer],
    /// Of each layer the names on the way from the root to where it is shown.
    ways: Vec<Vec<&'l [u8]>>,
    /// Folders still to be merged, in the order of their numbers.
    waiting: VecDeque<Vec<Source>>,
    /// Folders that have a number.
    begun: usize,
    /// Folders of trees that are part of a merged one: each is once, in a sound tree.
    merged: HashSet<(usize, Ino)>,
}

/// Where a part of a merged folder comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// A folder of a tree.
    Folder(Inner),
    /// A folder on the way to where layer `layer` is shown, so many names below the root.
    Way { layer: usize, depth: usize },
}

/// An entry on its way into a merged folder.
struct Found {
    name: usize,
    kind: FileKind,
    source: Source,
}

impl<'l> Merging<'l> {
    /// Merges all folders that several of `layers` have.
    ///
    /// # Errors
    /// `Unsupported` for more folders or inodes than there are numbers; what a tree reports while
    /// it is listed.
    pub(super) fn of(layers: &'l [Layer]) -> Result<Self> {
        let mut merging = Self {
            folders: Vec::new(),
            names: Vec::new(),
            hidden: 0,
            numbers: Numbers::of(layers),
            layers,
            ways: layers.iter().map(|layer| way(&layer.path)).collect(),
            waiting: VecDeque::new(),
            begun: 1,
            merged: HashSet::new(),
        };
        let root = (0..layers.len()).map(|layer| source(&merging.ways, layer, 0)).collect();
        merging.waiting.push_back(root);
        while let Some(sources) = merging.waiting.pop_front() {
            let folder = merging.merge(&sources)?;
            merging.folders.push(folder);
        }
        Ok(merging)
    }

    fn merge(&mut self, sources: &[Source]) -> Result<Merged> {
        let mut found = self.collect(sources)?;
        let name_of = |found: &Found| name(&self.names, found.name);
        // Stable, so that the later tree comes last among equals.
        found.sort_by(|a, b| name_of(a).cmp(name_of(b)));
        let mut entries = Vec::with_capacity(found.len());
        for same in found.chunk_by(|a, b| name_of(a) == name_of(b)) {
            let Some(last) = same.last() else { continue };
            let folders = same.iter().rev().take_while(|one| one.kind == FileKind::Directory);
            let count = folders.count();
            self.hidden += (same.len() - count.max(1)) as u64;
            let ino = match (count, last.source) {
                (0 | 1, Source::Folder(inner)) => self.numbers.outer(inner)?,
                _ => {
                    let shared = same[same.len() - count..].iter().map(|found| found.source);
                    self.waiting.push_back(shared.collect());
                    self.begun += 1;
                    self.numbers.folder(self.begun - 1)?
                }
            };
            entries.push(Entry { name: last.name, ino, kind: last.kind });
        }
        let shown = sources.iter().rev().find_map(|source| match source {
            Source::Folder(inner) => Some(*inner),
            Source::Way { .. } => None,
        });
        Ok(Merged { shown, entries: entries.into() })
    }

    /// The entries of all `sources`, in their order.
    fn collect(&mut self, sources: &[Source]) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        let names = &mut self.names;
        let mut keep = |name: &[u8]| {
            let at = names.len();
            names.push(name.len() as u8);
            names.extend(name);
            at
        };
        for source in sources {
            match *source {
                Source::Folder(Inner { tree, ino }) => {
                    // A damaged archive may hold a folder within itself, and merging would not end.
                    if !self.merged.insert((tree, ino)) {
                        let context = format!("archive {tree}: a folder lies within itself");
                        return Err(Error::corrupt(context));
                    }
                    self.layers[tree].tree.read_dir(ino, Cookie::START, &mut |entry| {
                        let name = keep(entry.name.as_bytes());
                        let source = Source::Folder(Inner { tree, ino: entry.ino });
                        found.push(Found { name, kind: entry.kind, source });
                        ControlFlow::Continue(())
                    })?;
                }
                Source::Way { layer, depth } => {
                    let name = keep(self.ways[layer][depth]);
                    let source = self::source(&self.ways, layer, depth + 1);
                    found.push(Found { name, kind: FileKind::Directory, source });
                }
            }
        }
        Ok(found)
    }
}

/// The name at `at`, behind the byte of its length.
pub(super) fn name(names: &[u8], at: usize) -> &[u8] {
    let len = usize::from(names[at]);
    &names[at + 1..at + 1 + len]
}

/// The names on the way from the root to `path`.
fn way(path: &[u8]) -> Vec<&[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect()
}

/// What layer `layer` adds to the folder `depth` names below the root, on its way.
fn source(ways: &[Vec<&[u8]>], layer: usize, depth: usize) -> Source {
    if depth < ways[layer].len() {
        return Source::Way { layer, depth };
    }
    Source::Folder(Inner { tree: layer, ino: Ino::ROOT })
}
