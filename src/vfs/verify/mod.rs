//! Reads a whole tree: every name, attribute, link and byte.
//!
//! Each tree checks what only its format knows (`Tree::audit`). Invariant: verify fails on exactly
//! the names that a reader of a mount could not read.
//!
//! Memory grows with the number of names, not with the bytes: 32 bytes for each name of a regular
//! file, 8 for each directory. Paths are not kept. If there is damage, a second walk finds all
//! paths of the damaged files.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::thread;

use super::{
    Attr, Cookie, DirEntry, DirectoryWalk, FileKind, Finding, Ino, Location, Tree, joined,
};
use crate::error::{Error, Kind};
use crate::progress::Progress;

mod contents;

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
    let Names { mut files, mut counts, findings: name_findings, mut is_cut_short, .. } = names;
    findings.extend(audited);
    findings.extend(name_findings);

    // Archive order, and each file once.
    files.sort_unstable();
    files.dedup();
    counts.bytes = files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.size));
    progress.begin("reading contents");
    progress.expect(counts.bytes);
    let (content_findings, is_stopped) = contents::read(tree, &files, threads, progress);
    findings.extend(content_findings);
    is_cut_short |= is_stopped;
    if is_cut_short {
        let error = Error::new(Kind::Unreachable, "not all of it was read");
        findings.push(Finding::from_error(Location::Archive, &error));
        counts.bytes = progress.now().0;
    }

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
    walk(tree, &mut |path, ino| {
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

/// A regular file. The sort order is archive order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct File {
    data_offset: u64,
    ino: Ino,
    size: u64,
    /// The checksum of its contents, if `read` does not check it.
    crc32: Option<u32>,
}

/// Looks up every name of a tree as a reader would, and reads everything of the inodes except
/// contents. The walk ends, even if a damaged archive has a cycle of directories.
struct Names<'t> {
    tree: &'t dyn Tree,
    has_xattrs: bool,
    files: Vec<File>,
    counts: Counts,
    findings: Vec<Finding>,
    /// A server does not answer, so the rest cannot be read either.
    is_cut_short: bool,
}

impl<'t> Names<'t> {
    /// Walks all of `tree`.
    fn of(tree: &'t dyn Tree) -> Self {
        let mut names = Self {
            tree,
            has_xattrs: tree.has_xattrs(),
            files: Vec::new(),
            counts: Counts::default(),
            findings: Vec::new(),
            is_cut_short: false,
        };
        match tree.attr(Ino::ROOT) {
            Ok(_) => names.attributes(b"", Ino::ROOT),
            Err(error) => names.finding(b"", &error),
        }
        names.directories();
        names
    }

    fn directories(&mut self) {
        let mut directories = DirectoryWalk::from_root();
        while let Some((path, directory)) = directories.next() {
            if self.is_cut_short {
                break;
            }
            self.counts.directories += 1;
            let listed = self.tree.read_dir(directory, Cookie::START, &mut |entry| {
                let path = joined(&path, entry.name.as_bytes());
                if let Some(inner) = self.entry(directory, &path, &entry)
                    && !directories.add(path.clone(), inner)
                {
                    self.findings.push(Finding::damage(
                        Location::Path(path),
                        "a directory that contains itself or has two names",
                    ));
                }
                match self.is_cut_short {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            if let Err(error) = listed {
                self.finding(&path, &error);
            }
        }
    }

    /// Checks one entry. Returns its inode if it is a directory.
    fn entry(&mut self, directory: Ino, path: &[u8], entry: &DirEntry<'_>) -> Option<Ino> {
        let attr = match self.tree.lookup(directory, entry.name) {
            Ok(Some(attr)) if attr.ino == entry.ino => attr,
            Ok(other) => {
                let what = match other {
                    Some(_) => "listed, but its name leads to another file",
                    None => "listed, but not found by name",
                };
                self.findings.push(Finding::damage(Location::Path(path.to_vec()), what));
                return None;
            }
            Err(error) => {
                self.finding(path, &error);
                return None;
            }
        };
        if attr.kind != entry.kind {
            let what = format!("listed as {}, but it is {}", entry.kind, attr.kind);
            self.findings.push(Finding::damage(Location::Path(path.to_vec()), what));
        }
        self.attributes(path, attr.ino);
        self.count(path, &attr)
    }

    fn count(&mut self, path: &[u8], attr: &Attr) -> Option<Ino> {
        match attr.kind {
            FileKind::Directory => return Some(attr.ino),
            FileKind::Regular => {
                self.counts.files += 1;
                // If the offset is unknown, reading the file reports the error.
                let data_offset = self.tree.data_offset(attr.ino).unwrap_or(0);
                let crc32 = self.tree.stored_crc32(attr.ino).unwrap_or_else(|error| {
                    self.finding(path, &error);
                    None
                });
                self.files.push(File { data_offset, ino: attr.ino, size: attr.size, crc32 });
            }
            FileKind::Symlink => {
                self.counts.links += 1;
                if let Err(error) = self.tree.read_link(attr.ino) {
                    self.finding(path, &error);
                }
            }
            _ => self.counts.others += 1,
        }
        None
    }

    /// Reads all extended attributes.
    fn attributes(&mut self, path: &[u8], ino: Ino) {
        if !self.has_xattrs {
            return;
        }
        let read = self.tree.list_xattrs(ino).and_then(|names| {
            let mut names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
            names.try_for_each(|name| self.tree.xattr(ino, name).map(drop))
        });
        if let Err(error) = read {
            self.finding(path, &error.within("extended attributes"));
        }
    }

    fn finding(&mut self, path: &[u8], error: &Error) {
        self.is_cut_short |= error.kind() == Kind::Unreachable;
        self.findings.push(Finding::from_error(Location::Path(path.to_vec()), error));
    }
}

/// Visits the paths and inode numbers of everything that can be listed.
fn walk(tree: &dyn Tree, visit: &mut dyn FnMut(&[u8], Ino)) {
    visit(b"", Ino::ROOT);
    let mut directories = DirectoryWalk::from_root();
    while let Some((path, directory)) = directories.next() {
        // The first walk has already reported the error.
        let _ = tree.read_dir(directory, Cookie::START, &mut |entry| {
            let path = joined(&path, entry.name.as_bytes());
            visit(&path, entry.ino);
            if entry.kind == FileKind::Directory {
                directories.add(path, entry.ino);
            }
            ControlFlow::Continue(())
        });
    }
}

#[cfg(test)]
mod tests;
