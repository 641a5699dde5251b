//! Everything of a tree, read: each name, attribute, link and byte.
//!
//! Owns what is read and in which order; leaves to each tree what only it knows of its format
//! (`Tree::audit`), and telling it to others.
//! Invariant: what cannot be read here is what a reader of a mount cannot read, name by name.
//!
//! Memory does not grow with the archive's bytes, but with its names: 24 bytes for each name of a
//! regular file, 8 for each folder. Paths are not kept. Those of damaged files, all of them where a
//! file has several, are found by a second walk, which a sound archive does without.

use std::collections::{HashMap, HashSet};
use std::thread;

use super::{Finding, Ino, Location, Tree};
use crate::progress::Progress;

mod contents;
mod names;

use names::Names;

/// What was there, and what is wrong.
#[derive(Debug, Default)]
pub struct Verified {
    /// What was read.
    pub counts: Counts,
    /// What was found, sorted by subject; no subject is an inode that has a name.
    pub findings: Vec<Finding>,
}

/// What was read. Names are counted, so a file with two counts twice; its bytes count once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Names of regular files.
    pub files: u64,
    /// Folders, the root among them.
    pub folders: u64,
    /// Names of symbolic links.
    pub links: u64,
    /// Names of devices, fifos and sockets.
    pub others: u64,
    /// Bytes of regular files, with their holes.
    pub bytes: u64,
}

impl Counts {
    /// Adds those of another tree.
    pub fn add(&mut self, other: Self) {
        let Self { files, folders, links, others, bytes } = other;
        self.files = self.files.saturating_add(files);
        self.folders = self.folders.saturating_add(folders);
        self.links = self.links.saturating_add(links);
        self.others = self.others.saturating_add(others);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Reads all of `tree` by `threads` threads.
pub fn verify(tree: &dyn Tree, threads: usize, progress: &Progress) -> Verified {
    progress.begin("reading names");
    let mut findings = Vec::new();
    let audit = || {
        let mut found = Vec::new();
        tree.audit(&mut |finding| found.push(finding));
        found
    };
    let (names, audited) = thread::scope(|scope| {
        // Where no thread can be had, one after the other.
        let beside = thread::Builder::new().spawn_scoped(scope, audit);
        let names = Names::of(tree);
        let audited = match beside {
            // A panic over there is one here.
            Ok(beside) => beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => audit(),
        };
        (names, audited)
    });
    let Names { mut files, mut counts, findings: met, .. } = names;
    findings.extend(audited);
    findings.extend(met);

    // The order of the archive, and each file once.
    files.sort_unstable();
    files.dedup();
    counts.bytes = files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.size));
    progress.begin("reading contents");
    progress.expect(counts.bytes);
    findings.extend(contents::read(tree, &files, threads, progress));

    let mut findings = named(tree, findings);
    findings.sort_by(|a, b| {
        (&a.location, a.severity, &a.what).cmp(&(&b.location, b.severity, &b.what))
    });
    findings.dedup();
    Verified { counts, findings }
}

/// The same findings, with every path of an inode in place of its number.
fn named(tree: &dyn Tree, findings: Vec<Finding>) -> Vec<Finding> {
    let about = |finding: &Finding| match finding.location {
        Location::Inode(ino) => Some(ino),
        _ => None,
    };
    let wanted: HashSet<Ino> = findings.iter().filter_map(about).collect();
    if wanted.is_empty() {
        return findings;
    }
    let mut paths: HashMap<Ino, Vec<Vec<u8>>> = HashMap::new();
    names::walk(tree, &mut |path, ino| {
        if wanted.contains(&ino) {
            paths.entry(ino).or_default().push(path.to_vec());
        }
    });
    let mut named = Vec::new();
    for finding in findings {
        match about(&finding).and_then(|ino| paths.get(&ino)) {
            None => named.push(finding),
            Some(paths) => {
                named.extend(paths.iter().map(|path| Finding {
                    location: Location::Path(path.clone()),
                    ..finding.clone()
                }));
            }
        }
    }
    named
}

#[cfg(test)]
mod tests;
