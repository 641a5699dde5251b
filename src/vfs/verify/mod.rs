//! Reads a whole tree: every name, attribute, link and byte.
//!
//! Each tree checks what only its format knows (`Tree::audit`). Invariant: verify fails on exactly
//! the names that a reader of a mount could not read.
//!
//! Memory grows with the number of names, not with the bytes: 32 bytes for each name of a regular
//! file, 8 for each directory. Paths are not kept. If there is damage, a second walk finds all
//! paths of the damaged files.

use std::collections::{HashMap, HashSet};
use std::thread;

use super::{Finding, Ino, Location, Tree};
use crate::progress::Progress;

mod contents;
mod names;

use names::Names;

/// The result: counts and problems.
#[derive(Debug, Default)]
pub struct Verified {
    /// What was read.
    pub counts: Counts,
    /// The problems, sorted by location. An inode that has a name is reported by its paths.
    pub findings: Vec<Finding>,
}

/// Counts of what was read. Names are counted, so a file with two names counts twice; its bytes
/// count once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Names of regular files.
    pub files: u64,
    /// Directories, including the root.
    pub directories: u64,
    /// Names of symbolic links.
    pub links: u64,
    /// Names of devices, fifos and sockets.
    pub others: u64,
    /// Bytes of regular files, including holes.
    pub bytes: u64,
}

impl Counts {
    /// Adds the counts of another tree.
    pub fn add(&mut self, other: Self) {
        let Self { files, directories, links, others, bytes } = other;
        self.files = self.files.saturating_add(files);
        self.directories = self.directories.saturating_add(directories);
        self.links = self.links.saturating_add(links);
        self.others = self.others.saturating_add(others);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Reads all of `tree` with `threads` threads.
pub fn verify(tree: &dyn Tree, threads: usize, progress: &Progress) -> Verified {
    progress.begin("reading names");
    let mut findings = Vec::new();
    let audit = || {
        let mut found = Vec::new();
        tree.audit(&mut |finding| found.push(finding));
        found
    };
    let (names, audited) = thread::scope(|scope| {
        // If no thread can be started, the audit runs afterward on this one.
        let auditor = thread::Builder::new().spawn_scoped(scope, audit);
        let names = Names::of(tree);
        let audited = match auditor {
            // Propagates a panic of that thread.
            Ok(auditor) => auditor.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => audit(),
        };
        (names, audited)
    });
    let Names { mut files, mut counts, findings: name_findings, .. } = names;
    findings.extend(audited);
    findings.extend(name_findings);

    // Archive order, and each file once.
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

/// The findings with each inode number replaced by all paths of the inode.
fn named(tree: &dyn Tree, findings: Vec<Finding>) -> Vec<Finding> {
    let inode_of = |finding: &Finding| match finding.location {
        Location::Inode(ino) => Some(ino),
        _ => None,
    };
    let wanted: HashSet<Ino> = findings.iter().filter_map(inode_of).collect();
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
        match inode_of(&finding).and_then(|ino| paths.get(&ino)) {
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
